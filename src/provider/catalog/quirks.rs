//! How models differ within a dialect.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::table::Table;

static QUIRKS: Table<ModelQuirks> = Table::new("quirks", include_str!("quirks.toml"));

/// The quirks of models, by dialect.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::provider) struct ModelQuirks {
    pub(in crate::provider) chat_completions: ChatCompletionsModels,
    pub(in crate::provider) responses: ResponsesModels,
    pub(in crate::provider) ollama: OllamaModels,
}

/// See `quirks.toml` for the fields.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::provider) struct ChatCompletionsModels {
    pub(in crate::provider) new_limit_models: Vec<String>,
    pub(in crate::provider) think_models: Vec<String>,
    pub(in crate::provider) think_tags: Vec<[String; 2]>,
    pub(in crate::provider) fixed_sampling: BTreeMap<String, bool>,
    pub(in crate::provider) efforts_of: BTreeMap<String, [String; 7]>,
}

/// See `quirks.toml` for the fields.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::provider) struct ResponsesModels {
    no_reasoning: Vec<String>,
    know_max_effort: Vec<String>,
}

impl ResponsesModels {
    /// Returns whether a model reasons.
    pub(in crate::provider) fn reasons(&self, model: &str) -> bool {
        !self.no_reasoning.iter().any(|start| model.starts_with(start))
    }

    /// Returns whether a model knows the effort `max`.
    pub(in crate::provider) fn knows_max_effort(&self, model: &str) -> bool {
        self.know_max_effort.iter().any(|start| model.starts_with(start))
    }
}

/// See `quirks.toml` for the fields.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::provider) struct OllamaModels {
    thinking_levels: Vec<String>,
}

impl OllamaModels {
    /// Returns whether a model knows how hard to think.
    pub(in crate::provider) fn has_thinking_levels(&self, model: &str) -> bool {
        let bare = model.rsplit('/').next().unwrap_or(model);
        self.thinking_levels.iter().any(|start| bare.starts_with(start))
    }
}

/// Returns the quirks of models.
pub(in crate::provider) fn model_quirks() -> &'static ModelQuirks {
    QUIRKS.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quirk_table_is_valid() {
        let quirks = QUIRKS.checked().unwrap();
        let chat = &quirks.chat_completions;
        let starts = chat.new_limit_models.iter().chain(&chat.think_models).chain(chat.fixed_sampling.keys());
        let others =
            quirks.responses.no_reasoning.iter().chain(&quirks.responses.know_max_effort).chain(&quirks.ollama.thinking_levels);
        for start in starts.chain(chat.efforts_of.keys()).chain(others) {
            assert!(!start.is_empty() && *start == start.to_ascii_lowercase(), "{start:?} matches no name, or all");
        }
        assert!(chat.think_tags.iter().flatten().all(|tag| !tag.is_empty()));
        let words = ["", "none", "minimal", "low", "medium", "high", "xhigh", "max"];
        assert!(chat.efforts_of.values().flatten().all(|word| words.contains(&word.as_str())));
    }
}
