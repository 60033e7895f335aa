//! Rows of either database.
//!
//! Owns the conversion of columns. Must not know any table.

use sqlx::postgres::{PgRow, Postgres};
use sqlx::sqlite::{Sqlite, SqliteRow};
use sqlx::{Decode, Row as _, Type};

use crate::store::StoreResult;

pub enum Row {
    Postgres(PgRow),
    Sqlite(SqliteRow),
}

/// A type that both databases can read.
pub trait Column<'r>: Decode<'r, Postgres> + Type<Postgres> + Decode<'r, Sqlite> + Type<Sqlite> {}

impl<'r, T: Decode<'r, Postgres> + Type<Postgres> + Decode<'r, Sqlite> + Type<Sqlite>> Column<'r> for T {}

impl Row {
    pub fn get<'r, T: Column<'r>>(&'r self, column: &'static str) -> Result<T, sqlx::Error> {
        match self {
            Self::Postgres(row) => row.try_get(column),
            Self::Sqlite(row) => row.try_get(column),
        }
    }

    /// Reads a count or a sum. NULL counts as 0, and so does a negative value, which no statement writes.
    pub fn count(&self, column: &'static str) -> Result<u64, sqlx::Error> {
        Ok(self.get::<Option<i64>>(column)?.and_then(|count| u64::try_from(count).ok()).unwrap_or(0))
    }

    /// Reads the only column of a row, regardless of its name.
    pub fn only<'r, T: Column<'r>>(&'r self) -> Result<T, sqlx::Error> {
        match self {
            Self::Postgres(row) => row.try_get(0),
            Self::Sqlite(row) => row.try_get(0),
        }
    }
}

/// Returns the row of a statement that always returns one.
pub(in crate::store) fn the_row(row: Option<Row>) -> StoreResult<Row> {
    Ok(row.ok_or(sqlx::Error::RowNotFound)?)
}
