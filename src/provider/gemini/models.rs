//! Abilities of Gemini's models, by name.

use serde::{Deserialize, Serialize};

use crate::domain::model::ReasoningEffort;
use crate::provider::catalog::table::{Profiles, Table};

static MODELS: Table<Profiles<Traits>> = Table::new("Gemini's models", include_str!("../catalog/gemini.toml"));

/// How a request controls the reasoning of a model.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Thinking {
    #[default]
    No,
    /// By a budget of tokens in this range.
    Budget { least: u32, most: u32 },
    /// By a level for each effort from `none` to `high`.
    Level([Level; 5]),
}

/// The reasoning budget for each effort from `none` to `max`, in tokens.
const BUDGETS: [u32; 7] = [0, 512, 1_024, 8_192, 24_576, 32_768, 32_768];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Level {
    Minimal,
    Low,
    Medium,
    High,
}

/// The abilities of a model; `gemini.toml` explains them.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Traits {
    pub(super) thinking: Thinking,
    pub(super) system: bool,
    pub(super) schema_with_tools: bool,
    pub(super) wants_signatures: bool,
}

#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ThinkingConfig {
    include_thoughts: bool,
    thinking_budget: Option<u32>,
    thinking_level: Option<Level>,
}

impl Traits {
    /// Returns the abilities of a model. Gateways add prefixes to a name.
    pub(super) fn of(model: &str) -> Self {
        let start = ["gemini-", "gemma"].iter().filter_map(|family| model.find(family)).min();
        let name = start.and_then(|start| model.get(start..)).unwrap_or_default();
        MODELS.get().find(name).unwrap_or_default()
    }

    pub(super) fn thinking_config(self, effort: ReasoningEffort) -> Option<ThinkingConfig> {
        let include_thoughts = effort != ReasoningEffort::None;
        match self.thinking {
            Thinking::No => None,
            Thinking::Budget { least, most } => {
                let budget = BUDGETS[effort as usize].clamp(least, most);
                Some(ThinkingConfig { include_thoughts, thinking_budget: Some(budget), thinking_level: None })
            }
            Thinking::Level(levels) => {
                let level = levels[(effort as usize).min(levels.len() - 1)];
                Some(ThinkingConfig { include_thoughts, thinking_budget: None, thinking_level: Some(level) })
            }
        }
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
    fn model_names_have_the_traits_of_their_family() {
        for (name, like) in [
            ("gemini-1.5-flash", ""),
            ("models/gemini-2.0-flash", ""),
            ("gemini-3.8-flash", "gemini-"),
            ("google/gemini-4-pro", "gemini-"),
            ("gemini-3.1-flash-lite-preview", "gemini-3-flash"),
            ("gemini-3.1-pro-preview", "gemini-"),
            ("tunedModels/mine", ""),
        ] {
            assert_eq!(Traits::of(name), Traits::of(like), "{name}");
        }
        let thinking = |name: &str| Traits::of(name).thinking;
        assert_eq!(thinking(""), Thinking::No);
        assert_eq!(thinking("gemini-2.5-flash"), Thinking::Budget { least: 0, most: 24_576 });
        assert_eq!(thinking("gemini-4"), Thinking::Level([Level::Low, Level::Low, Level::Low, Level::Medium, Level::High]));
        assert!(!Traits::of("gemma-3-27b-it").system);
        assert!(!Traits::of("gemini-2.5-flash").wants_signatures && Traits::of("gemini-3-flash-preview").wants_signatures);
    }
}
