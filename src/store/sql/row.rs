//! Rows of either database.
//!
//! Owns how a column is read. Must not know any table.

use sqlx::postgres::{PgRow, Postgres};
use sqlx::sqlite::{Sqlite, SqliteRow};
use sqlx::{Decode, Row as _, Type};

use crate::store::StoreResult;

/// One row of a result.
pub enum Row {
    /// A row of Postgres.
    Postgres(PgRow),
    /// A row of SQLite.
    Sqlite(SqliteRow),
}

/// A type that both databases can read.
pub trait Column<'r>: Decode<'r, Postgres> + Type<Postgres> + Decode<'r, Sqlite> + Type<Sqlite> {}

impl<'r, T: Decode<'r, Postgres> + Type<Postgres> + Decode<'r, Sqlite> + Type<Sqlite>> Column<'r> for T {}

impl Row {
    /// Reads a column.
    ///
    /// # Errors
    /// A missing column, or one of another type. The error names the column.
    pub fn get<'r, T: Column<'r>>(&'r self, column: &'static str) -> Result<T, sqlx::Error> {
        match self {
            Self::Postgres(row) => row.try_get(column),
            Self::Sqlite(row) => row.try_get(column),
        }
    }

    /// Reads the only column of a row, whatever its name.
    ///
    /// # Errors
    /// A column of another type.
    pub fn only<'r, T: Column<'r>>(&'r self) -> Result<T, sqlx::Error> {
        match self {
            Self::Postgres(row) => row.try_get(0),
            Self::Sqlite(row) => row.try_get(0),
        }
    }
}

/// Returns the row of a statement that always has one.
pub(super) fn the_row(row: Option<Row>) -> StoreResult<Row> {
    Ok(row.ok_or(sqlx::Error::RowNotFound)?)
}

/// Reads a row by a function that reads the rows of any one database.
macro_rules! read_row {
    ($row:expr, $read:path) => {
        match $row {
            $crate::store::sql::Row::Postgres(row) => $read(row),
            $crate::store::sql::Row::Sqlite(row) => $read(row),
        }
    };
}
pub(super) use read_row;
