//! The reference page of all settings, with the defaults that the code has.
//!
//! Owns the text of `docs/reference/settings.md`, in which `{}` stands for a default. Must not know what a setting does.

use toml::{Table, Value};

use super::Config;

/// The page. `{}` in the second cell of a row is the default of the setting in the first cell.
const PAGE: &str = include_str!("reference.md");

/// Returns the page, or the name of a setting without a default.
pub fn reference() -> Result<String, String> {
    let defaults = Table::try_from(Config::default()).map_err(|error| error.to_string())?;
    let lines = PAGE.lines().map(|line| match row(line) {
        Some((name, "{}", _)) => {
            let default = default_of(&defaults, name).ok_or_else(|| format!("{name} has no default"))?;
            Ok(line.replacen("{}", &cell(default), 1))
        }
        Some(_) | None => Ok(line.to_owned()),
    });
    Ok(lines.collect::<Result<Vec<_>, String>>()?.join("\n") + "\n")
}

/// Returns the cells of a row that explains one setting.
fn row(line: &str) -> Option<(&str, &str, &str)> {
    let mut cells = line.strip_prefix("| `")?.strip_suffix(" |")?.splitn(3, " | ");
    let (name, default, meaning) = (cells.next()?.strip_suffix('`')?, cells.next()?, cells.next()?);
    (name.contains('.') && !name.contains(['`', ' '])).then_some((name, default, meaning))
}

/// Returns the names of the explained settings, each with its meaning in Markdown.
pub(super) fn meanings() -> Vec<(&'static str, &'static str)> {
    let rows = PAGE.lines().filter_map(|line| {
        let (names, rest) = line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | ")?;
        Some((names, rest.split_once("| ")?.1.trim()))
    });
    let names = rows.flat_map(|(names, meaning)| names.split(", ").map(move |name| (name, meaning)));
    let names = names.filter_map(|(name, meaning)| Some((name.strip_prefix('`')?.strip_suffix('`')?, meaning)));
    names.filter(|(name, _)| name.contains('.') && !name.contains(['`', ' ', '=', '/'])).collect()
}

fn default_of<'t>(defaults: &'t Table, name: &str) -> Option<&'t Value> {
    let (first, rest) = name.split_once('.')?;
    rest.split('.').try_fold(defaults.get(first)?, |value, key| value.get(key))
}

/// Writes a default as a cell. An empty text leaves the cell empty.
fn cell(value: &Value) -> String {
    match value {
        Value::String(text) if text.is_empty() => String::new(),
        Value::String(text) => format!("`{text}`"),
        other => format!("`{other}`"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::app::config::{Environment, load, show};

    /// Rows whose default depends on another setting, or is described in words.
    fn has_literal(default: &str) -> bool {
        default.starts_with('`') && !default.contains('<') && default.matches('`').count() == 2
    }

    #[test]
    fn page_explains_each_setting_with_its_default() {
        let page = reference().unwrap();
        let rows: Vec<_> = page.lines().filter_map(row).filter(|(name, ..)| !name.contains("NAME")).collect();
        let effective = show(&load(None, &Environment::default(), &[]).unwrap());
        for (name, default, _) in &rows {
            // A setting with this default changes nothing.
            let variable = format!("CAPSTAN_{}", name.replace('.', "__").to_uppercase());
            if has_literal(default) {
                let set = load(None, &Environment::from_iter([(variable.as_str(), default.trim_matches('`'))]), &[]).unwrap();
                let plain = |shown: &str| {
                    shown.lines().map(|line| line.split(" # ").next().unwrap().trim_end().to_owned()).collect::<Vec<_>>()
                };
                assert_eq!(plain(&show(&set)), plain(&effective), "{name} has another default than {default}");
            }
        }
        let explained: BTreeSet<&str> = rows.iter().map(|(name, ..)| *name).collect();
        assert!(explained.len() > 100, "{}", explained.len());
    }
}
