//! What is known of the models, as data. A model that is not listed is taken for a new one.

use serde::Serialize;

use crate::domain::model::ReasoningEffort;

/// How a model is told to think.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Thinking {
    /// It cannot.
    No,
    /// By a budget of tokens between these.
    Budget { least: u32, most: u32 },
    /// By a level, for each effort from none to high.
    Level([&'static str; 5]),
}

/// What a model takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Traits {
    pub(super) thinking: Thinking,
    /// Whether it takes a system prompt. If not, the first message of the user begins with it.
    pub(super) system: bool,
    /// Whether it takes a schema for its answer beside tools.
    pub(super) schema_with_tools: bool,
    /// Whether it refuses a call of the current turn without a signature.
    pub(super) wants_signatures: bool,
}

const OLD: Traits = Traits { thinking: Thinking::No, system: true, schema_with_tools: false, wants_signatures: false };
const NEW: Traits = Traits {
    thinking: Thinking::Level(["low", "low", "low", "medium", "high"]),
    system: true,
    schema_with_tools: true,
    wants_signatures: true,
};
/// The first models of a generation that knew of a level below the low one.
const MINIMAL: Traits = Traits { thinking: Thinking::Level(["minimal", "minimal", "low", "medium", "high"]), ..NEW };

/// By the beginning of the name from the family on; the first that fits counts. Sources:
/// <https://ai.google.dev/gemini-api/docs/thinking>, <https://ai.google.dev/gemini-api/docs/structured-output>,
/// <https://ai.google.dev/gemini-api/docs/thought-signatures>.
const KNOWN: [(&str, Traits); 11] = [
    ("gemma", Traits { system: false, ..OLD }),
    ("gemini-1", OLD),
    ("gemini-2.0", OLD),
    ("gemini-2.5-pro", Traits { thinking: Thinking::Budget { least: 128, most: 32_768 }, ..OLD }),
    ("gemini-2.5-flash-image", OLD),
    ("gemini-2.5", Traits { thinking: Thinking::Budget { least: 0, most: 24_576 }, ..OLD }),
    ("gemini-3-pro", Traits { thinking: Thinking::Level(["low", "low", "low", "high", "high"]), ..NEW }),
    ("gemini-3-flash", MINIMAL),
    ("gemini-3.1-flash", MINIMAL),
    ("gemini-3.5-flash", MINIMAL),
    ("gemini-", NEW),
];

/// What a model is told about its thoughts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ThinkingConfig {
    include_thoughts: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking_budget: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking_level: Option<&'static str>,
}

impl Traits {
    /// A model of another family is taken for one without any peculiarity.
    pub(super) fn of(model: &str) -> Self {
        let start = ["gemini-", "gemma"].iter().filter_map(|family| model.find(family)).min();
        let Some(name) = start.and_then(|start| model.get(start..)) else { return OLD };
        KNOWN.iter().find(|(start, _)| name.starts_with(start)).map_or(OLD, |(_, traits)| *traits)
    }

    /// How the model is told to think this hard.
    pub(super) fn thinking_config(self, effort: ReasoningEffort) -> Option<ThinkingConfig> {
        let include_thoughts = effort != ReasoningEffort::None;
        match self.thinking {
            Thinking::No => None,
            Thinking::Budget { least, most } => {
                let wanted = match effort {
                    ReasoningEffort::None => 0,
                    ReasoningEffort::Minimal => 512,
                    ReasoningEffort::Low => 1_024,
                    ReasoningEffort::Medium => 8_192,
                    ReasoningEffort::High => 24_576,
                    // As far as the model goes.
                    ReasoningEffort::XHigh | ReasoningEffort::Max => 32_768,
                };
                Some(ThinkingConfig { include_thoughts, thinking_budget: Some(wanted.clamp(least, most)), thinking_level: None })
            }
            Thinking::Level([none, minimal, low, medium, high]) => {
                let level = match effort {
                    ReasoningEffort::None => none,
                    ReasoningEffort::Minimal => minimal,
                    ReasoningEffort::Low => low,
                    ReasoningEffort::Medium => medium,
                    ReasoningEffort::High | ReasoningEffort::XHigh | ReasoningEffort::Max => high,
                };
                Some(ThinkingConfig { include_thoughts, thinking_budget: None, thinking_level: Some(level) })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_all_sorts() {
        for (name, traits) in [
            ("gemini-1.5-flash", OLD),
            ("models/gemini-2.0-flash", OLD),
            ("gemini-3.8-flash", NEW),
            ("google/gemini-4-pro", NEW),
            ("gemini-3.1-flash-lite-preview", MINIMAL),
            ("gemini-3.1-pro-preview", NEW),
            ("tunedModels/mine", OLD),
        ] {
            assert_eq!(Traits::of(name), traits, "{name}");
        }
        assert!(!Traits::of("gemma-3-27b-it").system);
        assert!(!Traits::of("gemini-2.5-flash").wants_signatures && Traits::of("gemini-3-flash-preview").wants_signatures);
    }
}
