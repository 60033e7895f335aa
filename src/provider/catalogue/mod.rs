//! What is known of providers and models, as data: which wire a provider speaks and where, what a model takes and costs.
//!
//! Owns the two tables beside it. Must not know keys, nor which providers this server uses: that is configuration.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use reqwest::Url;
use serde::Deserialize;

use super::openai::{self, Accent};
use super::{ClientOptions, ModelClient, SetupError, anthropic, gemini, ollama, responses};
use crate::domain::context::Capacity;
use crate::domain::cost::{LongPrices, Price, Prices};
pub use crate::domain::provider::ProviderKind;
use crate::support::tokens::Tokenizer;

/// A client of an endpoint, on the wire that it speaks. The accent is for chat completions alone.
///
/// # Errors
/// If the base URL, the key or a header cannot be used.
pub fn client(kind: ProviderKind, options: ClientOptions, accent: Accent) -> Result<Arc<dyn ModelClient>, SetupError> {
    match kind {
        ProviderKind::Openai => openai::client(options, accent),
        ProviderKind::OpenaiResponses => responses::client(options),
        ProviderKind::Anthropic => anthropic::client(options),
        ProviderKind::Gemini => gemini::client(options),
        ProviderKind::Ollama => ollama::client(options),
    }
}

/// The accent of chat completions at a place: that of the provider whose own place it is, or else OpenAI's.
#[must_use]
pub fn accent_at(base_url: &str) -> Accent {
    let host = |url: &str| Url::parse(url.trim()).ok().and_then(|url| url.host_str().map(str::to_owned));
    let Some(wanted) = host(base_url).filter(|host| host.parse::<std::net::IpAddr>().is_err()) else { return Accent::default() };
    // Below a path, such as Azure's `/openai/v1`, they speak as OpenAI does.
    let has_path = Url::parse(base_url.trim()).is_ok_and(|url| url.path() != "/");
    let is_there = |provider: &KnownProvider| {
        provider.base_url.as_deref().and_then(host).is_some_and(|own| own == wanted)
            || (!has_path && provider.hosts.iter().any(|end| wanted.ends_with(end.as_str())))
    };
    let mut known = providers().ok().into_iter().flatten().map(|(_, provider)| provider);
    known.find(|provider| is_there(provider)).map(|provider| provider.accent.clone()).unwrap_or_default()
}

/// A provider that is known by name.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownProvider {
    /// Its wire.
    pub kind: ProviderKind,
    /// Where its API is.
    #[serde(default)]
    pub base_url: Option<String>,
    /// Ends of hosts that are its own, where every customer has one.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// The variable that names another place.
    #[serde(default)]
    pub base_url_env: Option<String>,
    /// Variables that may hold the key; the first that is set counts.
    #[serde(default)]
    pub key_env: Vec<String>,
    /// Whether it may be used without a key.
    #[serde(default)]
    pub keyless: bool,
    /// The bare name of the model of runs that name none.
    #[serde(default)]
    pub default_model: Option<String>,
    /// Its place among the providers that may answer runs that name no model; without one, it has to be named.
    #[serde(default)]
    pub rank: Option<u32>,
    /// The provider whose key and place it uses.
    #[serde(default)]
    pub shares: Option<String>,
    /// How its chat completions differ from OpenAI's own.
    #[serde(default)]
    pub accent: Accent,
}

/// What is known of a model. Everything may be unknown.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelFacts {
    /// Tokens of the window.
    pub context: Option<u64>,
    /// The most tokens of one answer.
    pub output: Option<u64>,
    /// What cuts its texts into tokens.
    pub tokenizer: Option<Tokenizer>,
    /// US dollars for a million tokens of input.
    pub input: Option<f64>,
    /// The same for input that the provider had cached.
    pub cached: Option<f64>,
    /// The same for output.
    pub output_price: Option<f64>,
    /// What calls with long requests cost.
    pub long: Option<LongPrices>,
    /// Whether it calls tools.
    pub tools: Option<bool>,
    /// Whether it sees pictures.
    pub vision: Option<bool>,
    /// Whether it thinks before it answers.
    pub reasoning: Option<bool>,
    /// Whether it takes a system prompt as such; otherwise it is put before the first message of the user.
    pub system_role: Option<bool>,
    /// How long it may take to its first byte, in seconds.
    pub first_byte_s: Option<u64>,
    /// The provider whose prices these are. Others ask for others.
    pub provider: Option<String>,
}

impl ModelFacts {
    /// What it reads at most, how it counts that, and whether it sees pictures.
    #[must_use]
    pub fn capacity(&self) -> Capacity {
        Capacity { window: self.context, tokenizer: self.tokenizer, prices: self.prices(), vision: self.vision }
    }

    /// What it costs, if that is known.
    #[must_use]
    pub fn prices(&self) -> Option<Prices> {
        let price = |dollars: Option<f64>| Price::per_million(dollars?).ok();
        let (input, output) = (price(self.input)?, price(self.output_price)?);
        Some(Prices { input, cached_input: price(self.cached), output, long: self.long })
    }
}

#[derive(Deserialize)]
struct Entry {
    start: String,
    #[serde(flatten)]
    facts: toml::Table,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Models {
    model: Vec<Entry>,
}

/// A mistake in the tables, which the tests below find before anybody runs them.
#[derive(Debug, thiserror::Error)]
#[error("the built-in table of {table} is wrong: {reason}")]
pub struct CatalogueError {
    table: &'static str,
    reason: String,
}

/// The providers that are known by name.
///
/// # Errors
/// If the built-in table cannot be read.
pub fn providers() -> Result<&'static BTreeMap<String, KnownProvider>, &'static CatalogueError> {
    static TABLE: OnceLock<Result<BTreeMap<String, KnownProvider>, CatalogueError>> = OnceLock::new();
    let read = || {
        toml::from_str(include_str!("providers.toml"))
            .map_err(|error| CatalogueError { table: "providers", reason: error.to_string() })
    };
    TABLE.get_or_init(read).as_ref()
}

/// What is known of a model by its name, with or without provider and vendor before it. Nothing, for an unknown one. Prices are
/// known only under the provider that asks for them, and not of models whose names only begin like that of another.
#[must_use]
pub fn model(name: &str) -> ModelFacts {
    let (provider, bare) = match name.split_once('/') {
        Some((provider, _)) => (Some(provider), name.rsplit('/').next().unwrap_or(name)),
        None => (None, name),
    };
    facts(bare, provider.filter(|provider| name.len() == provider.len() + 1 + bare.len()))
}

/// The same of a model at a place, by the name that it has there. Its prices are known if the place is its provider's own.
#[must_use]
pub fn model_at(base_url: &str, name: &str) -> ModelFacts {
    let host = |url: &str| Url::parse(url.trim()).ok().and_then(|url| url.host_str().map(str::to_owned));
    let wanted = host(base_url);
    let known = providers().ok().into_iter().flatten();
    let mut there = known.filter(|(_, provider)| wanted.is_some() && provider.base_url.as_deref().and_then(host) == wanted);
    let bare = name.rsplit('/').next().unwrap_or(name);
    facts(bare, there.next().map(|(provider, _)| provider.as_str()).filter(|_| bare == name))
}

fn facts(bare: &str, provider: Option<&str>) -> ModelFacts {
    static TABLE: OnceLock<Vec<(String, ModelFacts)>> = OnceLock::new();
    let table = TABLE.get_or_init(|| read_models().unwrap_or_default());
    let bare = bare.to_ascii_lowercase();
    let shared = provider.and_then(|name| providers().ok()?.get(name)?.shares.as_deref());
    let provider = shared.or(provider);
    let known = table.iter().filter(|(start, _)| bare.starts_with(start.as_str())).max_by_key(|(start, _)| start.len());
    let Some((start, facts)) = known else { return ModelFacts::default() };
    let is_priced = provider.is_some() && facts.provider.as_deref() == provider && is_same_model(&bare[start.len()..]);
    if is_priced {
        facts.clone()
    } else {
        ModelFacts { input: None, cached: None, output_price: None, long: None, ..facts.clone() }
    }
}

/// Whether what follows the name of a model only says which edition it is: nothing, `-latest`, or a date such as `-2025-08-07`,
/// `-20250514`, `@20250514` or `-0709`.
fn is_same_model(rest: &str) -> bool {
    let Some(edition) = rest.strip_prefix(['-', '@']) else { return rest.is_empty() };
    let digits = edition.split('-').map(|part| if part.bytes().all(|byte| byte.is_ascii_digit()) { part.len() } else { 0 });
    edition == "latest" || matches!(digits.collect::<Vec<_>>().as_slice(), [4] | [8] | [4, 2, 2])
}

fn read_models() -> Result<Vec<(String, ModelFacts)>, CatalogueError> {
    let wrong = |reason: String| CatalogueError { table: "models", reason };
    let models: Models = toml::from_str(include_str!("models.toml")).map_err(|error| wrong(error.to_string()))?;
    let facts = |Entry { start, facts }| {
        let facts = ModelFacts::deserialize(facts).map_err(|error| wrong(format!("{start}: {error}")))?;
        Ok((start, facts))
    };
    models.model.into_iter().map(facts).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_can_be_read() {
        let providers = providers().unwrap();
        for (name, provider) in providers {
            assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-'), "{name}");
            if let Some(other) = &provider.shares {
                assert!(providers.contains_key(other), "{name} shares with {other}");
            } else {
                assert!(provider.base_url.is_some() || provider.base_url_env.is_some(), "{name} has no place");
                assert!(provider.keyless || !provider.key_env.is_empty(), "{name} has no key");
            }
        }
        let ranks: std::collections::BTreeSet<_> = providers.values().filter_map(|provider| provider.rank).collect();
        assert_eq!(ranks.len(), providers.values().filter(|provider| provider.rank.is_some()).count(), "each rank once");
        assert!(read_models().unwrap().len() > 20);
    }

    #[test]
    fn a_place_has_the_accent_of_who_lives_there() {
        let mistral = &providers().unwrap()["mistral"].accent;
        assert_ne!(*mistral, Accent::default());
        assert_eq!(accent_at("https://API.mistral.ai/v2?x=y"), *mistral);
        let azure = &providers().unwrap()["azure"].accent;
        assert_eq!(accent_at("https://mine.openai.azure.com/?api-version=1"), *azure);
        assert_eq!(accent_at("https://mine.openai.azure.com/openai/v1"), Accent::default());
        assert_eq!(accent_at("https://openai.azure.com.example"), Accent::default());
        // Whatever runs on this machine, its port says nothing.
        for url in ["https://mistral.example", "http://127.0.0.1:1234/v1", "nonsense", ""] {
            assert_eq!(accent_at(url), Accent::default(), "{url}");
        }
    }

    #[test]
    fn prices_are_known_if_all_of_them_are() {
        assert!(model("openai/gpt-5").prices().is_some_and(|prices| prices.cached_input.is_some()));
        assert_eq!(model("nobody/knows").prices(), None);
        let above = |name: &str| model(name).prices().and_then(|prices| prices.long).map(|long| long.above);
        for (name, tokens) in [
            ("gemini/gemini-2.5-pro", Some(200_000)),
            ("anthropic/claude-sonnet-4-5-20250929", Some(200_000)),
            ("xai/grok-4-0709", Some(128_000)),
            ("openai/gpt-6-astra", Some(272_000)),
            ("xai/grok-4.5", Some(199_999)),
            ("anthropic/claude-haiku-4-5", None),
            ("openrouter/google/gemini-2.5-pro", None),
        ] {
            assert_eq!(above(name), tokens, "{name}");
        }
    }

    #[test]
    fn prices_are_those_of_the_model_and_its_provider() {
        let input = |name: &str| model(name).input;
        for (name, price) in [
            ("openai/gpt-5", 1.25),
            ("openai-responses/gpt-5-2025-08-07", 1.25),
            ("openai/gpt-4o", 2.5),
            ("openai/gpt-4o-2024-05-13", 5.0),
            ("openai/o3-2025-04-16", 2.0),
            ("openai/o3-pro", 20.0),
            ("anthropic/claude-sonnet-4-5-20250929", 3.0),
            ("anthropic/claude-opus-4-20250514", 15.0),
            ("anthropic/claude-opus-4-1", 15.0),
            ("anthropic/claude-3-5-haiku-latest", 0.8),
            ("xai/grok-4-0709", 3.0),
            ("openai/gpt-5.1-2025-11-13", 1.25),
            ("openai/gpt-6.2-sol", 2.0),
            ("anthropic/claude-opus-5", 5.0),
            ("anthropic/claude-opus-5-5", 4.0),
            ("anthropic/claude-sonnet-4-6", 3.0),
            ("gemini/gemini-3.1-pro-preview", 2.0),
            ("xai/grok-4.7", 2.0),
            ("deepseek/deepseek-v4-pro", 0.435),
            ("deepseek/deepseek-chat", 0.28),
        ] {
            assert_eq!(input(name), Some(price), "{name}");
        }
        for name in [
            "gpt-5",
            "openai/gpt-5.9",
            "openai/gpt-5.2-pro",
            "openai/gpt-5-codex",
            "openai/gpt-4.1-mini-fast",
            "openai/o3-deep-research",
            "openai/o1",
            "openai/gpt-5:free",
            "openai/gpt-4o-audio-preview-2024-12-17",
            "anthropic/claude-opus-4-9",
            "anthropic/claude-haiku-5-5",
            "anthropic/claude-opus-4-20250514-v1:0",
            "ollama/gpt-5",
            "azure/gpt-5",
            "openrouter/gpt-5",
            "openrouter/openai/gpt-5",
            "openrouter/openai/gpt-5:free",
            "openrouter/deepseek/deepseek-chat",
            "openai/openai/gpt-5",
            "mine/gpt-5",
            "gemini/gemini-2.5-flash-image",
        ] {
            assert_eq!(input(name), None, "{name}");
        }
        // What is known beside the price stays known.
        assert_eq!(model("openrouter/openai/gpt-5:free").context, Some(400_000));
        assert_eq!(model_at("https://api.openai.com/v1", "gpt-5").input, Some(1.25));
        for (place, name) in
            [("https://gateway.example/v1", "gpt-5"), ("https://openrouter.ai/api/v1", "openai/gpt-5"), ("", "gpt-5")]
        {
            assert_eq!(model_at(place, name).input, None, "{place}");
        }
    }

    #[test]
    fn tokenizers_are_those_of_families() {
        for (name, tokenizer) in [
            ("openai/gpt-5-mini-2025-08-07", Some(Tokenizer::O200kBase)),
            ("azure/gpt-4o", Some(Tokenizer::O200kBase)),
            ("openrouter/openai/gpt-4.1", Some(Tokenizer::O200kBase)),
            ("ollama/gpt-oss:20b", Some(Tokenizer::O200kBase)),
            ("openai/gpt-4-turbo-2024-04-09", Some(Tokenizer::Cl100kBase)),
            ("openai/gpt-3.5-turbo", Some(Tokenizer::Cl100kBase)),
            // Nobody has said how these count.
            ("openai/gpt-4.9", None),
            ("anthropic/claude-sonnet-4-5", None),
            ("gemini/gemini-2.5-pro", None),
            ("mine/own", None),
        ] {
            assert_eq!(model(name).tokenizer, tokenizer, "{name}");
        }
        assert_eq!((model("openai/gpt-4.9").context, model("openai/gpt-4-0613").context), (None, Some(8_192)));
    }

    #[test]
    fn the_longest_start_of_a_name_wins() {
        assert_eq!(model("openai/gpt-5-mini-2025-08-07").input, Some(0.25));
        assert_eq!(model("openai/gpt-5").input, Some(1.25));
        assert_eq!(model("openrouter/anthropic/Claude-Sonnet-4-5").context, Some(200_000));
        assert_eq!(model("ollama/gemma3:4b").system_role, Some(false));
        assert_eq!(model("nobody/knows"), ModelFacts::default());
    }
}
