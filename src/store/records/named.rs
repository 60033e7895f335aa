//! Values of rows with a name that is unique per owner.
//!
//! Owns cursors by name, and the outcomes of creation and change. Must not know any aggregate.

use serde::{Deserialize, Serialize};

use crate::store::pages::cursor_text;

cursor_text!(NameCursor<I>);

/// The cursor of a list that is ordered by name: its last row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameCursor<I> {
    pub name: String,
    pub id: I,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CreateNamedOutcome<I> {
    Made(I),
    /// The owner has a row with this name. Nothing was stored.
    NameTaken,
    /// The owner has reached the limit. Nothing was stored.
    TooMany,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UpdateNamedOutcome {
    /// The change is stored, with this version.
    Changed(i64),
    /// The row has another version than the one that the change is based on, or is gone. Nothing was changed.
    Stale,
    /// The owner has another row with this name. Nothing was changed.
    NameTaken,
}
