//! Abilities of Anthropic's models, by name.

use serde::Deserialize;

use crate::provider::catalog::table::{Profiles, Table};

static MODELS: Table<Profiles<Traits>> = Table::new("Anthropic's models", include_str!("../catalog/anthropic.toml"));

/// How a request controls the reasoning of a model.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Thinking {
    #[default]
    No,
    Budget,
    /// By an effort. The model reasons only if the request asks for it.
    Adaptive,
    /// By an effort. The model reasons unless the request turns it off.
    OnByDefault,
    /// By an effort. A request can limit reasoning to the time between tool calls, but not turn it off.
    BetweenTools,
    /// By an effort. Reasoning cannot be turned off.
    Always,
}

/// The abilities of a model; `anthropic.toml` explains them.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Traits {
    pub(super) thinking: Thinking,
    pub(super) sampling: bool,
    pub(super) output_schema: bool,
    pub(super) binds_thoughts: bool,
    pub(super) max_tokens: u32,
}

impl Traits {
    /// Returns the abilities of a model. Gateways add prefixes to a name, and write versions with a dot. Vertex writes them with an
    /// `@`.
    pub(super) fn of(model: &str) -> Self {
        let name = model.find("claude-").and_then(|at| model.get(at..)).unwrap_or_default();
        MODELS.get().find(&name.replace(['.', '@'], "-")).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_table_is_reachable() {
        MODELS.checked().unwrap().assert_reachable(Traits::of);
    }

    #[test]
    fn names_of_all_sorts() {
        for (name, thinking, max_tokens) in [
            ("claude-3-haiku-20240307", Thinking::No, 4_096),
            ("claude-3-5-sonnet-latest", Thinking::No, 8_192),
            ("claude-3-7-sonnet-20250219", Thinking::Budget, 16_384),
            ("claude-sonnet-4-20250514", Thinking::Budget, 16_384),
            ("claude-sonnet-4-5", Thinking::Budget, 16_384),
            ("anthropic/claude-opus-4.6", Thinking::Adaptive, 16_384),
            ("us.anthropic.claude-opus-4-7-v1:0", Thinking::Adaptive, 16_384),
            ("claude-opus-5", Thinking::OnByDefault, 32_000),
            ("claude-opus-5-20260724", Thinking::OnByDefault, 32_000),
            ("us.anthropic.claude-sonnet-5-v1:0", Thinking::OnByDefault, 32_000),
            ("anthropic/claude-4.7-opus", Thinking::Adaptive, 16_384),
            ("claude-5-sonnet", Thinking::OnByDefault, 32_000),
            ("claude-opus-5-5", Thinking::Always, 32_000),
            ("anthropic/claude-sonnet-5.5", Thinking::BetweenTools, 32_000),
            ("claude-haiku-5-5", Thinking::Always, 32_000),
            ("claude-opus-6", Thinking::Always, 32_000),
            ("claude-fable-5", Thinking::Always, 32_000),
            ("kimi-k2", Thinking::Budget, 8_192),
            ("claude-sonnet-4", Thinking::Budget, 16_384),
            ("claude-opus-4@20250514", Thinking::Budget, 15_616),
            ("claude-opus-4-1-20250805", Thinking::Budget, 15_616),
            ("claude-opus-4-5", Thinking::Budget, 16_384),
            ("claude-sonnet-4-5@20250929", Thinking::Budget, 16_384),
            ("anthropic/claude-sonnet-4:thinking", Thinking::Budget, 16_384),
            ("claude-4-sonnet", Thinking::Budget, 16_384),
            ("claude-4.6-opus", Thinking::Adaptive, 16_384),
            ("claude-opus-4-7@20260401", Thinking::Adaptive, 16_384),
        ] {
            let traits = Traits::of(name);
            assert_eq!((traits.thinking, traits.max_tokens), (thinking, max_tokens), "{name}");
        }
        assert!(Traits::of("claude-opus-4-6").sampling && !Traits::of("claude-opus-4-7").sampling);
        assert!(!Traits::of("claude-sonnet-4-20250514").output_schema && Traits::of("claude-sonnet-4-5").output_schema);
        for (name, binds) in [
            ("claude-opus-5", false),
            ("claude-fable-5", false),
            ("claude-mythos-5-1", false),
            ("claude-fable-5-1", true),
            ("claude-fable-5-20260609", false),
            ("claude-opus-5-5", true),
            ("claude-sonnet-5-5-20260922", true),
        ] {
            assert_eq!(Traits::of(name).binds_thoughts, binds, "{name}");
        }
    }
}
