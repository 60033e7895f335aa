//! Checks single values of settings, and removes values from error messages.

use serde::Deserialize as _;
use toml::{Table, Value};

use super::settings::Config;
use crate::support::suggestion::with_suggestion;

/// Checks that a key exists and accepts this value: parses settings that contain only this key. Returns the reason otherwise.
pub(super) fn check_value(key: &str, value: Value) -> Result<(), String> {
    let mut settings = Table::new();
    insert_dotted(&mut settings, key, value).map_err(|()| format!("`{key}` is not a section"))?;
    Config::deserialize(settings).map(drop).map_err(|error| error_without_values(&error))
}

/// Parses a value in the syntax of the configuration file. Returns `None` for other text.
pub(super) fn parse_value(text: &str) -> Option<Value> {
    toml::from_str::<Table>(&format!("value = {text}")).ok()?.remove("value")
}

/// Inserts a value at a key with dots, and creates the missing sections. Fails if the key leads through a value that is no section.
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

/// Returns the message of an error, with its key if that is known. Omits the quoted line and a value of the wrong type,
/// because they may be secrets.
pub(super) fn error_without_values(error: &toml::de::Error) -> String {
    let full = error.to_string();
    let key = full.lines().find_map(|line| line.trim().strip_prefix("in `")).map(|rest| rest.trim_end_matches('`'));
    let message = with_suggestion(&without_value(error.message()));
    match key {
        Some(key) => format!("{message}, in `{key}`"),
        None => message,
    }
}

/// Removes the value from a message of serde, such as `invalid type: string "...", expected ...`.
fn without_value(message: &str) -> String {
    let quotes_value = message.starts_with("invalid type") || message.starts_with("invalid value");
    match message.rsplit_once(", expected ") {
        Some((_, expected)) if quotes_value => format!("wrong value: expected {expected}"),
        _ => message.to_owned(),
    }
}
