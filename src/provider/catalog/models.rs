//! Facts about models: context windows, prices, abilities, time to first byte.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::providers::{name_at, providers};
use super::table::{Table, longest_prefix};
use crate::domain::model::{LongPrices, Price, Prices};
use crate::domain::run::Capacity;
use crate::support::tokens::Tokenizer;

/// The facts, by the prefix of a model's bare name: its name without provider and vendor.
static MODELS: Table<BTreeMap<String, ModelFacts>> = Table::new("models", include_str!("models.toml"));

/// The facts about a model. Each may be unknown.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelFacts {
    /// Tokens of the context window.
    pub context: Option<u64>,
    /// The most tokens of one answer.
    pub output: Option<u64>,
    pub tokenizer: Option<Tokenizer>,
    /// The price of a million input tokens, in US dollars.
    pub input: Option<f64>,
    /// The price of a million cached input tokens.
    pub cached: Option<f64>,
    /// The price of a million output tokens.
    pub output_price: Option<f64>,
    pub long: Option<LongPrices>,
    pub tools: Option<bool>,
    pub vision: Option<bool>,
    pub reasoning: Option<bool>,
    /// Whether the model accepts a system prompt; if not, the first user message begins with it.
    pub system_role: Option<bool>,
    /// The longest time to the first byte, in seconds.
    pub first_byte_s: Option<u64>,
    /// The provider that charges these prices.
    pub provider: Option<String>,
}

impl ModelFacts {
    pub fn capacity(&self) -> Capacity {
        Capacity { window: self.context, tokenizer: self.tokenizer, prices: self.prices(), vision: self.vision, max_tools: None }
    }

    /// Returns the prices of the model, if all of them are known.
    pub fn prices(&self) -> Option<Prices> {
        let price = |dollars: Option<f64>| Price::per_million(dollars?).ok();
        let (input, output) = (price(self.input)?, price(self.output_price)?);
        Some(Prices { input, cached_input: price(self.cached), output, long: self.long })
    }
}

/// Returns the facts about a model by its name, with or without prefixes of provider and vendor; no facts about an unknown one. Prices need
/// the provider that charges them, and an exact name, not only a known prefix.
pub fn model(name: &str) -> ModelFacts {
    let (provider, bare) = match name.split_once('/') {
        Some((provider, _)) => (Some(provider), name.rsplit('/').next().unwrap_or(name)),
        None => (None, name),
    };
    facts(bare, provider.filter(|provider| name.len() == provider.len() + 1 + bare.len()))
}

/// Returns the facts about a model at a base URL, by its name there. Its prices are known if the URL is that of the provider that charges
/// them.
pub fn model_at(base_url: &str, name: &str) -> ModelFacts {
    let bare = name.rsplit('/').next().unwrap_or(name);
    facts(bare, name_at(base_url).filter(|_| bare == name))
}

fn facts(bare: &str, provider: Option<&str>) -> ModelFacts {
    let bare = bare.to_ascii_lowercase();
    let shared = provider.and_then(|name| providers().ok()?.get(name)?.shares_endpoint_with.as_deref());
    let provider = shared.or(provider);
    let Some((start, facts)) = longest_prefix(MODELS.get(), &bare) else { return ModelFacts::default() };
    let is_priced = provider.is_some() && facts.provider.as_deref() == provider && is_same_model(&bare[start.len()..]);
    if is_priced {
        facts.clone()
    } else {
        ModelFacts { input: None, cached: None, output_price: None, long: None, ..facts.clone() }
    }
}

/// Returns whether the rest of a name is only an edition: empty, `-latest`, or a date such as `-2025-08-07`, `@20250514` or `-0709`.
fn is_same_model(rest: &str) -> bool {
    let Some(edition) = rest.strip_prefix(['-', '@']) else { return rest.is_empty() };
    let digits = edition.split('-').map(|part| if part.bytes().all(|byte| byte.is_ascii_digit()) { part.len() } else { 0 });
    edition == "latest" || matches!(digits.collect::<Vec<_>>().as_slice(), [4] | [8] | [4, 2, 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_table_is_valid() {
        let models = MODELS.checked().unwrap();
        assert!(models.len() > 20);
        for (start, facts) in models {
            assert_eq!(*start, start.to_ascii_lowercase());
            assert_ne!(*facts, ModelFacts::default(), "{start}");
            let priced_by = facts.provider.as_deref();
            assert!(priced_by.is_none_or(|name| providers().unwrap().contains_key(name)), "{start}");
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
        // All facts except the price stay known.
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
            // The publishers of these models publish no tokenizer.
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
