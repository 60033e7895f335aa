//! Built-in TOML tables, parsed once at their first use.

use std::sync::OnceLock;

use serde::Deserialize;
use serde::de::DeserializeOwned;

/// A mistake in a built-in table. Tests find it before a release.
#[derive(Debug, thiserror::Error)]
#[error("the built-in table of {table} is wrong: {reason}")]
pub struct CatalogError {
    table: &'static str,
    reason: String,
}

/// A built-in table of facts.
pub(in crate::provider) struct Table<T> {
    name: &'static str,
    text: &'static str,
    read: OnceLock<(T, Option<CatalogError>)>,
}

impl<T: DeserializeOwned + Default> Table<T> {
    pub(in crate::provider) const fn new(name: &'static str, text: &'static str) -> Self {
        Self { name, text, read: OnceLock::new() }
    }

    /// Returns the facts; no facts if the table has a mistake.
    pub(in crate::provider) fn get(&self) -> &T {
        &self.entry().0
    }

    /// Returns the facts, or the mistake in the table.
    pub(in crate::provider) fn checked(&self) -> Result<&T, &CatalogError> {
        let (facts, error) = self.entry();
        error.as_ref().map_or(Ok(facts), Err)
    }

    fn entry(&self) -> &(T, Option<CatalogError>) {
        let wrong = |error: toml::de::Error| CatalogError { table: self.name, reason: error.to_string() };
        self.read.get_or_init(|| match toml::from_str(self.text) {
            Ok(facts) => (facts, None),
            Err(error) => (T::default(), Some(wrong(error))),
        })
    }
}

/// Returns the entry whose key is the longest prefix of the name, and that key.
pub(in crate::provider) fn longest_prefix<'a, T>(
    entries: impl IntoIterator<Item = (&'a String, T)>,
    name: &str,
) -> Option<(&'a str, T)> {
    let starting = entries.into_iter().filter(|(start, _)| name.starts_with(start.as_str()));
    starting.max_by_key(|(start, _)| start.len()).map(|(start, entry)| (start.as_str(), entry))
}

/// Groups of models with the same abilities.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::provider) struct Profiles<T> {
    profile: Vec<Profile<T>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Profile<T> {
    traits: T,
    /// Prefixes of names.
    #[serde(default)]
    starts: Vec<String>,
    /// Full names. A date may follow, or words that do not begin with a number.
    #[serde(default)]
    names: Vec<String>,
}

impl<T: Copy> Profiles<T> {
    /// Returns the abilities of a model: those of its full name, or else of the longest prefix of its name.
    pub(in crate::provider) fn find(&self, model: &str) -> Option<T> {
        let is_named = |name: &String| model.strip_prefix(name.as_str()).is_some_and(has_no_version);
        let named = self.profile.iter().find(|profile| profile.names.iter().any(is_named)).map(|profile| profile.traits);
        let starts = self.profile.iter().flat_map(|profile| profile.starts.iter().map(|start| (start, profile.traits)));
        named.or_else(|| longest_prefix(starts, model).map(|(_, traits)| traits))
    }
}

#[cfg(test)]
impl<T: Copy + PartialEq + std::fmt::Debug> Profiles<T> {
    /// Checks that each name and each prefix finds the abilities of its own profile.
    pub(in crate::provider) fn assert_reachable(&self, traits_of: impl Fn(&str) -> T) {
        for profile in &self.profile {
            for name in profile.starts.iter().chain(&profile.names) {
                assert_eq!(traits_of(name), profile.traits, "{name}");
            }
        }
    }
}

/// Returns whether the rest of a name is a date, or begins with no number: then it names no other version.
fn has_no_version(rest: &str) -> bool {
    let digits = rest.trim_start_matches('-').bytes().take_while(u8::is_ascii_digit).count();
    digits == 0 || digits == 8
}
