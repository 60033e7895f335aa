//! Lists the settings in force, secrets redacted, with source and meaning: what `capstan config` prints, as data.

use std::collections::{HashMap, HashSet};

use toml::{Table, Value};

use super::load::{Source, Sources};
use super::reference::meanings;
use super::settings::Config;
use super::show::source_of;
use crate::domain::setting::{Setting, SettingSource};

/// Returns the settings in the order of their names: those that have a value, and those that could have one.
pub fn effective(config: &Config, sources: &Sources) -> Result<Vec<Setting>, toml::ser::Error> {
    let mut values = Vec::new();
    collect(String::new(), Table::try_from(config)?, &mut values);
    // To compare each setting with each row of the reference would be a large part of a server's start.
    let mut sections: HashMap<&str, Vec<(&str, &str)>> = HashMap::new();
    for row in meanings() {
        sections.entry(first_part(row.0)).or_default().push(row);
    }
    let mut explained = HashSet::new();
    let mut settings: Vec<Setting> = Vec::new();
    for (name, value) in values {
        let rows = sections.get(first_part(&name)).into_iter().flatten();
        let rows: Vec<_> = rows.filter(|(row, _)| explains(row, &name)).collect();
        explained.extend(rows.iter().map(|(row, _)| *row));
        settings.push(setting(name, serde_json::to_value(value).ok(), rows.first().map(|(_, meaning)| *meaning), sources));
    }
    let unset = sections.values().flatten().filter(|(row, _)| !row.contains("NAME") && !explained.contains(row));
    settings.extend(unset.map(|(row, meaning)| setting((*row).to_owned(), None, Some(meaning), sources)));
    settings.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(settings)
}

fn setting(name: String, value: Option<serde_json::Value>, meaning: Option<&str>, sources: &Sources) -> Setting {
    let section = name.rsplit_once('.').map_or("", |(section, _)| section).to_owned();
    let (source, origin) = match source_of(&name, sources) {
        None => (SettingSource::Default, None),
        Some(from @ Source::File(_)) => (SettingSource::File, Some(from.to_string())),
        Some(from @ Source::Environment(_)) => (SettingSource::Environment, Some(from.to_string())),
        Some(from @ Source::Flag(_)) => (SettingSource::Flag, Some(from.to_string())),
    };
    Setting { name, section, value, source, origin, help: meaning.map(plain) }
}

fn collect(path: String, table: Table, values: &mut Vec<(String, Value)>) {
    for (key, value) in table {
        let full = if path.is_empty() { key } else { format!("{path}.{key}") };
        match value {
            Value::Table(inner) => collect(full, inner, values),
            scalar => values.push((full, scalar)),
        }
    }
}

fn first_part(name: &str) -> &str {
    name.split_once('.').map_or(name, |(first, _)| first)
}

/// Returns whether a row explains a key. `NAME` in the row stands for any name, and a row for a table explains its keys.
fn explains(row: &str, key: &str) -> bool {
    let mut keys = key.split('.');
    row.split('.').all(|part| keys.next().is_some_and(|key| part == key || part == "NAME"))
}

/// Returns Markdown as plain text: without code marks, and links as their words.
fn plain(markdown: &str) -> String {
    let mut text = String::new();
    let mut rest = markdown;
    while let Some((before, link)) = rest.split_once('[') {
        text.push_str(before);
        rest = match link.split_once("](").and_then(|(words, after)| Some((words, after.split_once(')')?.1))) {
            Some((words, after)) if !words.contains('[') => {
                text.push_str(words);
                after
            }
            Some(_) | None => {
                text.push('[');
                link
            }
        };
    }
    (text + rest).replace('`', "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::config::{Environment, Flag, load};

    #[test]
    fn effective_settings_have_source_and_meaning_without_secrets() {
        let file = "worker.slots = 7\n[auth]\nkeys = [{user = \"ann\", key = \"cap_canary_0123456789\"}]\n[providers.acme]\nkind = \"openai\"\n\
                    base_url = \"https://acme.example/v1\"\n";
        let environment =
            Environment::from_iter([("DATABASE_URL", "postgres://me:canary@db/x"), ("CAPSTAN_SECRET_KEY", "canary canary canary")]);
        let flag = Flag { name: "--listen", key: "server.listen", value: "127.0.0.1:9".to_owned() };
        let loaded = load(Some(("capstan.toml".into(), file.to_owned())), &environment, &[flag]).unwrap();
        let settings = effective(&loaded.config, &loaded.sources).unwrap();
        let of = |name: &str| settings.iter().find(|setting| setting.name == name).unwrap_or_else(|| panic!("{name}"));
        let shown = serde_json::to_string(&settings).unwrap();
        assert!(!shown.contains("canary"), "{shown}");
        assert_eq!(of("worker.slots").value, Some(7.into()));
        assert_eq!((of("worker.slots").source, of("worker.slots").origin.as_deref()), (SettingSource::File, Some("capstan.toml")));
        assert_eq!(of("database.url").origin.as_deref(), Some("DATABASE_URL"));
        assert_eq!((of("server.listen").source, of("worker.lease_ms").source), (SettingSource::Flag, SettingSource::Default));
        assert_eq!((&of("auth.secret_key_previous").value, of("server.public_url").section.as_str()), (&None, "server"));
        assert_eq!(of("providers.acme.base_url").help.as_deref(), Some("URL of the API"));
        assert_eq!(of("server.listen").help.as_deref(), Some("an address other than loopback needs a key"));
        let unexplained: Vec<_> = settings.iter().filter(|setting| setting.help.is_none()).map(|setting| &setting.name).collect();
        assert!(unexplained.is_empty(), "{unexplained:?}");
    }
}
