//! Providers of the configuration. They are listed and used like stored providers, but only the configuration can change them.

use crate::domain::ids::ProviderId;
use crate::domain::model::provider::{ProviderKind, ProviderRecord};
use crate::store::ProviderCursor;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfiguredProvider {
    /// Derived from the name, and so the same in every process and after every start.
    pub id: ProviderId,
    pub name: String,
    pub kind: ProviderKind,
    /// The URL without parts that may be secret.
    pub base_url: String,
    pub has_key: bool,
}

impl ConfiguredProvider {
    pub fn new(name: &str, kind: ProviderKind, base_url: String, has_key: bool) -> Self {
        let id = ProviderId::derived("capstan.configured_provider", name);
        Self { id, name: name.to_owned(), kind, base_url, has_key }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnyProvider {
    Stored(Box<ProviderRecord>),
    Configured(ConfiguredProvider),
}

impl AnyProvider {
    pub fn name(&self) -> &str {
        match self {
            Self::Stored(record) => &record.name,
            Self::Configured(provider) => &provider.name,
        }
    }

    pub(in crate::service) fn cursor(&self) -> ProviderCursor {
        let id = match self {
            Self::Stored(record) => &record.id,
            Self::Configured(provider) => &provider.id,
        };
        ProviderCursor { name: self.name().to_owned(), id: id.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_provider_id_is_valid() {
        let provider = ConfiguredProvider::new("a", ProviderKind::Ollama, String::new(), false);
        assert_eq!(ProviderId::parse(provider.id.as_str()).unwrap(), provider.id);
    }
}
