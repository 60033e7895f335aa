//! Variables in texts of the configuration file: `${VAR}` and `${VAR:-default}`.

use toml::{Table, Value};

use super::check_values::{check_value, parse_value};
use super::environment::{Environment, check_unquoted};
use crate::support::variable_expansion;

/// Replaces the variables in all texts, and returns whether there were any. A key that does not accept text gets the TOML value in
/// the text, as from the environment. Errors contain the key and the variable, never a value.
pub(super) fn expand(table: &mut Table, environment: &Environment) -> Result<bool, String> {
    let mut changed = false;
    for (key, value) in table.iter_mut() {
        changed |= expand_value(value, key, true, environment)?;
    }
    Ok(changed)
}

fn expand_value(value: &mut Value, key: &str, is_setting: bool, environment: &Environment) -> Result<bool, String> {
    match value {
        Value::String(text) if text.contains("${") => {
            let mut unquoted = Ok(());
            let expanded = variable_expansion::expand(text, |name| {
                if let Err(reason) = check_unquoted(environment, name) {
                    unquoted = Err(format!("{key}: the variable {name}: {reason}"));
                }
                environment.get(name).map(str::to_owned)
            });
            let expanded = Value::String(expanded.map_err(|error| format!("{key}: {error}"))?);
            unquoted?;
            let spelled = || expanded.as_str().and_then(parse_value).filter(|spelled| check_value(key, spelled.clone()).is_ok());
            *value = match is_setting && check_value(key, expanded.clone()).is_err() {
                true => spelled().unwrap_or(expanded),
                false => expanded,
            };
            Ok(true)
        }
        Value::Array(values) => {
            let mut changed = false;
            for (index, value) in values.iter_mut().enumerate() {
                changed |= expand_value(value, &format!("{key}[{index}]"), false, environment)?;
            }
            Ok(changed)
        }
        Value::Table(table) => {
            let mut changed = false;
            for (inner, value) in table.iter_mut() {
                changed |= expand_value(value, &format!("{key}.{inner}"), is_setting, environment)?;
            }
            Ok(changed)
        }
        Value::String(_) | Value::Integer(_) | Value::Float(_) | Value::Boolean(_) | Value::Datetime(_) => Ok(false),
    }
}
