//! Renders the effective settings: valid TOML, secrets redacted, with the source of each value.

use std::fmt::Write as _;

use toml::{Table, Value};

use super::load::{Loaded, Sources};
use crate::support::variable_expansion::escape;

pub fn show(loaded: &Loaded) -> String {
    let mut out = String::new();
    match Table::try_from(&loaded.config) {
        Ok(table) => write_section(&mut out, "", &table, &loaded.sources),
        // Serialization of plain values cannot fail. If it did, empty output would hide it.
        Err(error) => {
            let _ = writeln!(out, "# the settings cannot be shown: {error}");
        }
    }
    out
}

fn write_section(out: &mut String, path: &str, table: &Table, sources: &Sources) {
    let key_of = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    let (tables, values): (Vec<_>, Vec<_>) = table.iter().partition(|(_, value)| value.is_table());
    if !path.is_empty() && (!values.is_empty() || tables.is_empty()) {
        let _ = writeln!(out, "{}[{path}]", if out.is_empty() { "" } else { "\n" });
    }
    for (key, value) in values {
        let full = key_of(key);
        let source = source_of(&full, sources).map_or_else(|| "default".to_owned(), |source| source.to_string());
        let line = format!("{key} = {}", escaped(value.clone()));
        let _ = writeln!(out, "{line:<48} # {source}");
    }
    for (key, value) in tables {
        if let Value::Table(inner) = value {
            write_section(out, &key_of(key), inner, sources);
        }
    }
}

/// Escapes `${`, which begins a variable in the file.
fn escaped(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(escape(&text)),
        Value::Array(values) => Value::Array(values.into_iter().map(escaped).collect()),
        Value::Table(table) => Value::Table(table.into_iter().map(|(key, value)| (key, escaped(value))).collect()),
        scalar => scalar,
    }
}

/// Returns the source of a key, or of the table that contained it.
pub(super) fn source_of<'a>(key: &str, sources: &'a Sources) -> Option<&'a super::load::Source> {
    let of_table = |parent: &str| key.strip_prefix(parent).is_some_and(|rest| rest.starts_with('.'));
    sources.get(key).or_else(|| sources.iter().find(|(parent, _)| of_table(parent)).map(|(_, source)| source))
}
