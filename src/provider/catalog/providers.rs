//! The providers in the built-in table.

use std::collections::BTreeMap;

use reqwest::Url;
use serde::Deserialize;

use super::table::{CatalogError, Table};
use crate::domain::model::ProviderKind;
use crate::provider::http::endpoint::host;
use crate::provider::request::quirks::Quirks;

static PROVIDERS: Table<BTreeMap<String, KnownProvider>> = Table::new("providers", include_str!("providers.toml"));

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownProvider {
    pub kind: ProviderKind,
    pub base_url: Option<String>,
    /// Suffixes of its host names, if every customer has a separate host.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// The environment variable for another base URL.
    pub base_url_env: Option<String>,
    /// The environment variables for the key; the first one that is set applies.
    #[serde(default)]
    pub key_env: Vec<String>,
    /// Whether the provider works without a key.
    #[serde(default)]
    pub keyless: bool,
    /// The bare name of the default model.
    pub default_model: Option<String>,
    /// The order of providers for runs without a model; a provider without a rank is used only by name.
    pub rank: Option<u32>,
    /// The most tools of one request.
    pub max_tools: Option<u32>,
    /// The largest image of a request.
    #[serde(default)]
    pub images: ImageLimits,
    pub shares_endpoint_with: Option<String>,
    #[serde(default, rename = "accent")]
    pub quirks: Quirks,
}

/// The largest image that a provider accepts. A note replaces a larger image, because the provider would refuse the request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageLimits {
    /// In bytes of base64.
    pub max_bytes: Option<usize>,
    /// The longer side, in pixels.
    pub max_edge: Option<usize>,
}

/// Returns the built-in providers, or the mistake in the built-in table.
pub fn providers() -> Result<&'static BTreeMap<String, KnownProvider>, &'static CatalogError> {
    PROVIDERS.checked()
}

/// Returns the quirks of the provider with this base URL; if it is unknown, those of OpenAI's chat completions.
pub fn quirks_at(base_url: &str) -> Quirks {
    provider_at(base_url).map(|provider| provider.quirks.clone()).unwrap_or_default()
}

/// Returns the most tools of one request to the provider that has this base URL.
pub fn max_tools_at(base_url: &str) -> Option<u32> {
    provider_at(base_url)?.max_tools
}

pub fn image_limits_at(base_url: &str) -> ImageLimits {
    provider_at(base_url).map(|provider| provider.images).unwrap_or_default()
}

fn provider_at(base_url: &str) -> Option<&'static KnownProvider> {
    let wanted_host = host(base_url).filter(|host| host.parse::<std::net::IpAddr>().is_err())?;
    // Endpoints with a path, such as Azure's `/openai/v1`, have no quirks.
    let has_path = Url::parse(base_url.trim()).is_ok_and(|url| url.path() != "/");
    let is_there = |provider: &&KnownProvider| {
        provider.base_url.as_deref().and_then(host).is_some_and(|own| own == wanted_host)
            || (!has_path && provider.hosts.iter().any(|end| wanted_host.ends_with(end.as_str())))
    };
    PROVIDERS.get().values().find(is_there)
}

/// Returns the name of the provider with the host of this base URL.
pub(super) fn name_at(base_url: &str) -> Option<&'static str> {
    let wanted_host = host(base_url)?;
    let mut known = PROVIDERS.get().iter();
    known
        .find(|(_, provider)| provider.base_url.as_deref().and_then(host).as_ref() == Some(&wanted_host))
        .map(|(name, _)| name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn provider_table_is_valid() {
        let providers = providers().unwrap();
        for (name, provider) in providers {
            assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-'), "{name}");
            if let Some(other) = &provider.shares_endpoint_with {
                assert!(providers.contains_key(other), "{name} shares with {other}");
            } else {
                assert!(provider.base_url.is_some() || provider.base_url_env.is_some(), "{name} has no place");
                assert!(provider.keyless || !provider.key_env.is_empty(), "{name} has no key");
            }
        }
        let ranks: std::collections::BTreeSet<_> = providers.values().filter_map(|provider| provider.rank).collect();
        assert_eq!(ranks.len(), providers.values().filter(|provider| provider.rank.is_some()).count(), "each rank once");
    }

    #[test]
    fn base_url_has_the_image_limit_of_its_provider() {
        let limits = ImageLimits { max_bytes: Some(5 * 1024 * 1024), max_edge: Some(8_000) };
        assert_eq!(image_limits_at("https://api.anthropic.com"), limits);
        assert_eq!(image_limits_at("http://127.0.0.1:8000/v1"), ImageLimits::default());
    }

    #[test]
    fn base_url_has_the_quirks_of_its_provider() {
        let mistral = &providers().unwrap()["mistral"].quirks;
        assert_ne!(*mistral, Quirks::default());
        assert_eq!(quirks_at("https://API.mistral.ai/v2?x=y"), *mistral);
        let azure = &providers().unwrap()["azure"].quirks;
        assert_eq!(quirks_at("https://mine.openai.azure.com/?api-version=1"), *azure);
        assert_eq!(quirks_at("https://mine.openai.azure.com/openai/v1"), Quirks::default());
        assert_eq!(quirks_at("https://openai.azure.com.example"), Quirks::default());
        // A port of this machine identifies no provider.
        for url in ["https://mistral.example", "http://127.0.0.1:1234/v1", "nonsense", ""] {
            assert_eq!(quirks_at(url), Quirks::default(), "{url}");
        }
    }
}
