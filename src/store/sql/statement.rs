//! Statements: one text per database, composed at compile time.

/// One statement in both dialects. Its parameters are `$1`, `$2` and so on in both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statement {
    pub name: &'static str,
    pub postgres: &'static str,
    pub sqlite: &'static str,
}

impl Statement {
    /// Returns a statement that is never executed on SQLite.
    pub(in crate::store) const fn of_postgres(name: &'static str, postgres: &'static str) -> Self {
        Self { name, postgres, sqlite: "" }
    }
}

/// Defines the statements of a module as constants, and `STATEMENTS`, which lists them.
///
/// A statement is a list of pieces: literal texts, keywords of [`piece`], and macros of the module that take a dialect.
macro_rules! statements {
    ($($(#[$meta:meta])* $name:ident = [$($piece:tt),+ $(,)?];)+) => {
        $(
            $(#[$meta])*
            pub(super) const $name: $crate::store::sql::Statement = $crate::store::sql::Statement {
                name: stringify!($name),
                postgres: $crate::store::sql::text!(postgres: $($piece)+),
                sqlite: $crate::store::sql::text!(sqlite: $($piece)+),
            };
        )+

        /// Lists every statement of this module, for the test that prepares them.
        pub(in crate::store) const STATEMENTS: &[$crate::store::sql::Statement] = &[$($name),+];
    };
}
pub(in crate::store) use statements;

/// Composes a text in one dialect from pieces.
macro_rules! text {
    ($dialect:ident: $($piece:tt)+) => {
        concat!($($crate::store::sql::piece!($dialect $piece)),+)
    };
}
pub(in crate::store) use text;

/// Expands one piece of a text in one dialect.
///
/// - `now`: the database's clock in milliseconds, constant within a statement.
/// - `least`: the function that returns the smallest of several values.
/// - `(in_list "$1")`: membership in a bound list of texts.
/// - `(elements "$1")`: the rows `e` of a bound JSON array, with the column `value`.
/// - `{ postgres: "..", sqlite: ".." }`: a text per dialect, where no keyword fits.
/// - any other identifier, or `(identifier "..")`: a macro of the module, called with the dialect and the text.
macro_rules! piece {
    ($dialect:ident $text:literal) => {
        $text
    };
    (postgres now) => {
        "(SELECT now_ms())"
    };
    (sqlite now) => {
        "CAST(unixepoch('subsec') * 1000 AS INTEGER)"
    };
    (postgres least) => {
        "least"
    };
    (sqlite least) => {
        "min"
    };
    (postgres (in_list $list:literal)) => {
        concat!("= ANY(", $list, "::text[])")
    };
    (sqlite (in_list $list:literal)) => {
        concat!("IN (SELECT value FROM json_each(", $list, "))")
    };
    (postgres (elements $list:literal)) => {
        concat!("json_array_elements(CAST(", $list, " AS json)) AS e (value)")
    };
    (sqlite (elements $list:literal)) => {
        concat!("json_each(", $list, ") AS e")
    };
    (postgres { postgres: $postgres:literal, sqlite: $sqlite:literal }) => {
        $postgres
    };
    (sqlite { postgres: $postgres:literal, sqlite: $sqlite:literal }) => {
        $sqlite
    };
    ($dialect:ident $word:ident) => {
        $word!($dialect)
    };
    ($dialect:ident ($word:ident $text:literal)) => {
        $word!($dialect $text)
    };
}
pub(in crate::store) use piece;
