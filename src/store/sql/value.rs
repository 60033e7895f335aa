//! Values that are bound to a statement.
//!
//! Owns how each kind of value is bound on each database. Must not know any statement.

use std::borrow::Cow;

use sqlx::SqlSafeStr;
use sqlx::postgres::{PgArguments, Postgres};
use sqlx::query::Query;
use sqlx::sqlite::{Sqlite, SqliteArguments};

use crate::support::clock::UnixMillis;
use crate::support::text::storable;

/// A value for one parameter of a statement.
///
/// Texts are bound without U+0000, which Postgres cannot hold: both databases store the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value<'a> {
    Text(Option<Cow<'a, str>>),
    Integer(Option<i64>),
    Boolean(Option<bool>),
    Bytes(&'a [u8]),
    /// A list of texts, for `in_list`.
    Texts(Vec<Cow<'a, str>>),
}

/// Lists values for the parameters of a statement, in their order.
macro_rules! values {
    ($($value:expr),* $(,)?) => {
        &[$($crate::store::sql::Value::from($value)),*]
    };
}
pub(in crate::store) use values;

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(Some(storable(text)))
    }
}

impl<'a> From<Option<&'a str>> for Value<'a> {
    fn from(text: Option<&'a str>) -> Self {
        Self::Text(text.map(storable))
    }
}

impl<'a> From<&'a String> for Value<'a> {
    fn from(text: &'a String) -> Self {
        Self::from(text.as_str())
    }
}

impl From<String> for Value<'_> {
    fn from(text: String) -> Self {
        Self::Text(Some(owned(text)))
    }
}

impl From<Option<String>> for Value<'_> {
    fn from(text: Option<String>) -> Self {
        Self::Text(text.map(owned))
    }
}

fn owned<'a>(text: String) -> Cow<'a, str> {
    Cow::Owned(storable(&text).into_owned())
}

macro_rules! from_integer {
    ($($integer:ty),+) => {
        $(
            impl From<$integer> for Value<'_> {
                fn from(integer: $integer) -> Self {
                    Self::Integer(Some(integer.into()))
                }
            }

            impl From<Option<$integer>> for Value<'_> {
                fn from(integer: Option<$integer>) -> Self {
                    Self::Integer(integer.map(Into::into))
                }
            }
        )+
    };
}
from_integer!(i64, i32, u32);

impl From<UnixMillis> for Value<'_> {
    fn from(at: UnixMillis) -> Self {
        Self::from(at.0)
    }
}

/// Binds what is too large for the database as its largest integer.
impl From<u64> for Value<'_> {
    fn from(integer: u64) -> Self {
        Self::from(i64::try_from(integer).unwrap_or(i64::MAX))
    }
}

impl From<Option<u64>> for Value<'_> {
    fn from(integer: Option<u64>) -> Self {
        Self::from(integer.map(|integer| i64::try_from(integer).unwrap_or(i64::MAX)))
    }
}

impl From<bool> for Value<'_> {
    fn from(is: bool) -> Self {
        Self::Boolean(Some(is))
    }
}

impl From<Option<bool>> for Value<'_> {
    fn from(is: Option<bool>) -> Self {
        Self::Boolean(is)
    }
}

impl<'a> From<&'a [u8]> for Value<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::Bytes(bytes)
    }
}

impl<'a> FromIterator<&'a str> for Value<'a> {
    fn from_iter<I: IntoIterator<Item = &'a str>>(texts: I) -> Self {
        Self::Texts(texts.into_iter().map(storable).collect())
    }
}

/// Binds values to a statement of Postgres.
pub(super) fn postgres_query<'q>(text: impl SqlSafeStr, values: &'q [Value<'q>]) -> Query<'q, Postgres, PgArguments> {
    values.iter().fold(sqlx::query(text), |query, value| match value {
        Value::Text(text) => query.bind(text.as_deref()),
        Value::Integer(integer) => query.bind(*integer),
        Value::Boolean(is) => query.bind(*is),
        Value::Bytes(bytes) => query.bind(*bytes),
        Value::Texts(texts) => query.bind(texts.iter().map(|text| &**text).collect::<Vec<&str>>()),
    })
}

/// Binds values to a statement of SQLite. A list is bound as a JSON array.
pub(super) fn sqlite_query<'q>(text: impl SqlSafeStr, values: &'q [Value<'q>]) -> Query<'q, Sqlite, SqliteArguments> {
    values.iter().fold(sqlx::query(text), |query, value| match value {
        Value::Text(text) => query.bind(text.as_deref()),
        Value::Integer(integer) => query.bind(*integer),
        Value::Boolean(is) => query.bind(*is),
        Value::Bytes(bytes) => query.bind(*bytes),
        Value::Texts(texts) => query.bind(serde_json::json!(texts).to_string()),
    })
}
