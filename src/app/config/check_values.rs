//! Checks single values of settings, and removes values from error messages.

use serde::Deserialize as _;
use toml::{Table, Value};

use super::settings::Config;
use crate::support::suggestion::with_suggestion;

/// Checks that a key exists and accepts this value, by parsing settings with only this key.
pub(super) fn check_value(key: &str, value: Value) -> Result<(), String> {
    let mut alone = Table::new();
    insert_dotted(&mut alone, key, value).map_err(|()| format!("`{key}` is not a section"))?;
    Config::deserialize(alone).map(drop).map_err(|error| error_without_values(&error))
}

pub(super) fn parse_value(text: &str) -> Option<Value> {
    toml::from_str::<Table>(&format!("value = {text}")).ok()?.remove("value")
}

pub(super) fn insert_dotted(table: &mut Table, key: &str, value: Value) -> Result<(), ()> {
    match key.split_once('.') {
        None => {
            table.insert(key.to_owned(), value);
            Ok(())
        }
        Some((section, rest)) => match table.entry(section).or_insert_with(|| Value::Table(Table::new())) {
            Value::Table(inner) => insert_dotted(inner, rest, value),
            _ => Err(()),
        },
    }
}

/// Returns the error without the quoted text, which may contain a secret.
pub(super) fn error_without_values(error: &toml::de::Error) -> String {
    let full = error.to_string();
    let key = full.lines().find_map(|line| line.trim().strip_prefix("in `")).map(|rest| rest.trim_end_matches('`'));
    let message = with_suggestion(&without_value(error.message()));
    match key {
        Some(key) => format!("{message}, in `{key}`"),
        None => message,
    }
}

/// Removes the value that serde quotes in `invalid type: string "...", expected ...`.
fn without_value(message: &str) -> String {
    let quoted = message.starts_with("invalid type") || message.starts_with("invalid value");
    match message.rsplit_once(", expected ") {
        Some((_, expected)) if quoted => format!("wrong value: expected {expected}"),
        _ => message.to_owned(),
    }
}
