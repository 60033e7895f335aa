//! The quirks of models, by dialect.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::table::Table;

static QUIRKS: Table<ModelQuirks> = Table::new("quirks", include_str!("quirks.toml"));

/// See `quirks.toml` for the fields.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::provider) struct ModelQuirks {
    pub(in crate::provider) chat_completions: ChatCompletionsModels,
    pub(in crate::provider) responses: ResponsesModels,
    pub(in crate::provider) ollama: OllamaModels,
    pub(in crate::provider) not_chat: NotChat,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::provider) struct NotChat {
    pub(in crate::provider) names: Vec<String>,
    pub(in crate::provider) types: Vec<String>,
    pub(in crate::provider) families: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::provider) struct ChatCompletionsModels {
    pub(in crate::provider) new_limit_models: Vec<String>,
    pub(in crate::provider) think_models: Vec<String>,
    pub(in crate::provider) think_tags: Vec<[String; 2]>,
    pub(in crate::provider) fixed_sampling: BTreeMap<String, bool>,
    pub(in crate::provider) efforts_of: BTreeMap<String, [String; 7]>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::provider) struct ResponsesModels {
    pub(in crate::provider) no_reasoning: Vec<String>,
    pub(in crate::provider) know_max_effort: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::provider) struct OllamaModels {
    pub(in crate::provider) thinking_levels: Vec<String>,
}

/// Returns whether a model's name has one of these prefixes.
pub(in crate::provider) fn starts_with_any(model: &str, starts: &[String]) -> bool {
    starts.iter().any(|start| model.starts_with(start.as_str()))
}

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
        for start in starts.chain(chat.efforts_of.keys()).chain(others).chain(&quirks.not_chat.names) {
            assert!(!start.is_empty() && *start == start.to_ascii_lowercase(), "{start:?} matches no name, or all");
        }
        assert!(chat.think_tags.iter().flatten().all(|tag| !tag.is_empty()));
        let words = ["", "none", "minimal", "low", "medium", "high", "xhigh", "max"];
        assert!(chat.efforts_of.values().flatten().all(|word| words.contains(&word.as_str())));
    }
}
