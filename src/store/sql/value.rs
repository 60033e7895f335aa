//! Values that are bound to a statement.

use std::borrow::Cow;

use sqlx::SqlSafeStr;
use sqlx::postgres::{PgArguments, Postgres};
use sqlx::query::Query;
use sqlx::sqlite::{Sqlite, SqliteArguments};

use crate::store::sqlite::batch::Batch;
use crate::support::clock::UnixMillis;
use crate::support::text::storable;

/// A value for one parameter of a statement.
///
/// Texts are bound without U+0000, which Postgres cannot store, so that both databases store the same text.
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

/// Implements how a type is bound, and an option of it, by the kind of the value.
macro_rules! bound {
    ($($kind:ident { $($type:ty, $value:ident => $bound:expr;)+ })+) => {$($(
        impl<'a> From<$type> for Value<'a> {
            fn from($value: $type) -> Self {
                Self::$kind(Some($bound))
            }
        }

        impl<'a> From<Option<$type>> for Value<'a> {
            fn from($value: Option<$type>) -> Self {
                Self::$kind($value.map(|$value| $bound))
            }
        }
    )+)+};
}

bound! {
    Text {
        &'a str, text => storable(text);
        &'a String, text => storable(text);
        String, text => Cow::Owned(storable(&text).into_owned());
    }
    Integer {
        i64, integer => integer;
        i32, integer => integer.into();
        u32, integer => integer.into();
        // A larger number becomes the largest integer of the database.
        u64, integer => i64::try_from(integer).unwrap_or(i64::MAX);
        UnixMillis, at => at.0;
    }
    Boolean {
        bool, is => is;
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
        Value::Texts(texts) => query.bind(json_array(texts)),
    })
}

/// Adds a statement with its values to a batch of SQLite, whose parameters have no numbers.
pub(super) fn add_to_batch(batch: &mut Batch, statement: &'static str, values: &[Value<'_>]) {
    let (text, numbers) = without_numbers(statement);
    batch.push(&text);
    for number in numbers {
        let Some(value) = number.checked_sub(1).and_then(|index: usize| values.get(index)) else {
            batch.fail(format!("the value of ${number} is missing: {statement}"));
            continue;
        };
        match value {
            Value::Text(text) => batch.bind(text.as_deref()),
            Value::Integer(integer) => batch.bind(*integer),
            Value::Boolean(is) => batch.bind(*is),
            Value::Bytes(bytes) => batch.bind(*bytes),
            Value::Texts(texts) => batch.bind(json_array(texts)),
        };
    }
}

/// Replaces each numbered parameter by `?`. Returns the text, and the numbers in the order of the parameters.
fn without_numbers(statement: &str) -> (String, Vec<usize>) {
    let mut pieces = statement.split('$');
    let mut text = pieces.next().unwrap_or_default().to_owned();
    let mut numbers = Vec::new();
    for piece in pieces {
        let rest = piece.trim_start_matches(|c: char| c.is_ascii_digit());
        match piece[..piece.len() - rest.len()].parse() {
            Ok(number) => {
                text.push('?');
                numbers.push(number);
            }
            // The beginning of a JSON path.
            Err(_) => text.push('$'),
        }
        text.push_str(rest);
    }
    (text, numbers)
}

fn json_array(texts: &[Cow<'_, str>]) -> String {
    serde_json::json!(texts).to_string()
}

#[cfg(test)]
mod tests {
    use super::without_numbers;

    #[test]
    fn numbered_parameters_become_a_list() {
        let (text, numbers) = without_numbers("UPDATE t SET a = $12, b = a ->> '$.b' WHERE c = $1 OR d = $12");
        assert_eq!(text, "UPDATE t SET a = ?, b = a ->> '$.b' WHERE c = ? OR d = ?");
        assert_eq!(numbers, [12, 1, 12]);
    }
}
