//! Checks single values of settings, and removes values from error messages.

use serde::Deserialize as _;
use toml::{Table, Value};

use super::settings::Config;
use crate::support::nearest::with_suggestion;

/// Checks that a key exists and takes this value, by reading settings with this key alone.
pub(super) fn fits(key: &str, value: Value) -> Result<(), String> {
    let mut alone = Table::new();
    put(&mut alone, key, value).map_err(|()| format!("`{key}` is not a section"))?;
    Config::deserialize(alone).map(drop).map_err(|error| error_words(&error))
}

pub(super) fn parse_value(text: &str) -> Option<Value> {
    toml::from_str::<Table>(&format!("value = {text}")).ok()?.remove("value")
}

pub(super) fn put(table: &mut Table, key: &str, value: Value) -> Result<(), ()> {
    match key.split_once('.') {
        None => {
            table.insert(key.to_owned(), value);
            Ok(())
        }
        Some((section, rest)) => match table.entry(section).or_insert_with(|| Value::Table(Table::new())) {
            Value::Table(inner) => put(inner, rest, value),
            _ => Err(()),
        },
    }
}

/// Returns the error without the text that it quotes, which may hold a secret.
pub(super) fn error_words(error: &toml::de::Error) -> String {
    let full = error.to_string();
    let place = full.lines().find_map(|line| line.trim().strip_prefix("in `")).map(|rest| rest.trim_end_matches('`'));
    let message = with_suggestion(&without_value(error.message()));
    match place {
        Some(place) => format!("{message}, in `{place}`"),
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
