//! Values of rows that an owner keeps under names, each name once.
//!
//! Owns cursors by name and the outcomes of making and changing. Must not know any aggregate.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::store::pages::{InvalidCursor, written_by_us};

/// The last one of a page that goes by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameCursor<I> {
    pub name: String,
    pub id: I,
}

impl<I: fmt::Display> fmt::Display for NameCursor<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, self.id)
    }
}

impl<I: FromStr + fmt::Display> FromStr for NameCursor<I> {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        let (name, id) = text.rsplit_once(':').ok_or(InvalidCursor)?;
        let cursor = Self { name: name.to_owned(), id: id.parse().map_err(|_| InvalidCursor)? };
        written_by_us(cursor, text)
    }
}

/// The outcome of making a row under a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NamedMade<I> {
    Made(I),
    /// The owner has one of this name. Nothing is stored.
    NameTaken,
    /// The owner has as many as allowed. Nothing is stored.
    TooMany,
}

/// The outcome of changing a row under a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NamedChanged {
    /// It is stored, with this version.
    Changed(i64),
    /// It is not of the version that the change was made from, or is gone. Nothing is changed.
    Stale,
    /// The owner has another one of this name. Nothing is changed.
    NameTaken,
}
