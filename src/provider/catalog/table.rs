//! Built-in TOML tables, parsed once at their first use.

use std::sync::OnceLock;

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
