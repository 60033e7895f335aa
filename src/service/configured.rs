//! Providers of the server's configuration beside those that people keep: seen and asked in the same way, changed elsewhere.

use std::fmt::Display;

use sha2::{Digest as _, Sha256};

use crate::domain::ids::ProviderId;
use crate::domain::provider::{ProviderKind, ProviderRecord};
use crate::store::{NameCursor, Page, ProviderCursor};

/// A provider of the configuration or the environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfiguredProvider {
    /// The same in every process and after every start, because it is made of the name.
    pub id: ProviderId,
    /// What stands before the slash of its models.
    pub name: String,
    /// The wire.
    pub kind: ProviderKind,
    /// Where it is, without what may be secret of a URL.
    pub base_url: String,
    /// Whether it has a key.
    pub has_key: bool,
}

impl ConfiguredProvider {
    /// The provider of that name.
    #[must_use]
    pub fn new(name: &str, kind: ProviderKind, base_url: String, has_key: bool) -> Self {
        let hash = Sha256::digest(format!("capstan.configured_provider.{name}"));
        let digits: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        let id = ProviderId::from_stored(format!("{}{digits}", ProviderId::PREFIX));
        Self { id, name: name.to_owned(), kind, base_url, has_key }
    }
}

/// A provider as it is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnyProvider {
    /// One that somebody keeps.
    Kept(Box<ProviderRecord>),
    /// One of the configuration.
    Configured(ConfiguredProvider),
}

impl AnyProvider {
    /// What stands before the slash of its models.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Kept(record) => &record.name,
            Self::Configured(provider) => &provider.name,
        }
    }

    pub(super) fn cursor(&self) -> ProviderCursor {
        let id = match self {
            Self::Kept(record) => &record.id,
            Self::Configured(provider) => &provider.id,
        };
        ProviderCursor { name: self.name().to_owned(), id: id.clone() }
    }
}

/// The page of at most `limit` that follows `after`, of those of the configuration and those that people keep together. `kept` is
/// that page of the latter.
pub(super) fn page_of_all<T, I: Ord + Clone + Display>(
    kept: Page<T>,
    configured: Vec<T>,
    after: Option<&NameCursor<I>>,
    limit: usize,
    cursor: impl Fn(&T) -> NameCursor<I>,
) -> Page<T> {
    let key = |item: &T| {
        let NameCursor { name, id } = cursor(item);
        (name, id)
    };
    let after = after.map(|after| (after.name.clone(), after.id.clone()));
    let mut items = configured;
    items.retain(|item| after.as_ref().is_none_or(|after| key(item) > *after));
    items.extend(kept.items);
    items.sort_by_cached_key(key);
    let is_more = kept.next.is_some() || items.len() > limit;
    items.truncate(limit);
    let next = items.last().filter(|_| is_more).map(|last| cursor(last).to_string());
    Page { items, next }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::provider::{CallLimits, Reach};
    use crate::support::clock::UnixMillis;
    use crate::support::ids::SequentialIds;

    fn record(name: &str) -> ProviderRecord {
        ProviderRecord {
            id: ProviderId::generate(&SequentialIds::default()),
            owner: None,
            name: name.to_owned(),
            kind: ProviderKind::Openai,
            base_url: String::new(),
            reach: Reach::Public,
            key: None,
            models: Vec::new(),
            limits: CallLimits::default(),
            accent: None,
            enabled: true,
            created_at: UnixMillis(0),
            updated_at: UnixMillis(0),
            version: 1,
        }
    }

    #[test]
    fn pages_go_by_name_whoever_keeps_them() {
        let kept = ["b", "d", "e"];
        let configured: Vec<_> =
            ["a", "c", "f"].iter().map(|name| ConfiguredProvider::new(name, ProviderKind::Ollama, String::new(), false)).collect();
        for limit in 1..8 {
            let (mut seen, mut after) = (Vec::new(), None::<ProviderCursor>);
            loop {
                let begin = after.as_ref().map_or("", |after| after.name.as_str());
                let mut left: Vec<_> = kept.iter().filter(|name| **name > begin).map(|name| record(name)).collect();
                let next = (left.len() > limit).then(String::new);
                left.truncate(limit);
                let left = left.into_iter().map(|record| AnyProvider::Kept(Box::new(record))).collect();
                let all = configured.iter().cloned().map(AnyProvider::Configured).collect();
                let page = page_of_all(Page { items: left, next }, all, after.as_ref(), limit, AnyProvider::cursor);
                assert!(page.items.len() <= limit);
                seen.extend(page.items.iter().map(|provider| provider.name().to_owned()));
                after = page.next.map(|next| next.parse().unwrap());
                if after.is_none() {
                    break;
                }
            }
            assert_eq!(seen, ["a", "b", "c", "d", "e", "f"], "{limit}");
        }
        let id = configured[0].id.as_str();
        assert_eq!(ProviderId::parse(id).unwrap().as_str(), id);
    }
}
