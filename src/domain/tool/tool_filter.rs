//! The selection of the tools that a model is offered: too many make small models choose wrongly, and every model call dearer.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::domain::words::words;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolFilterMode {
    #[default]
    Off,
    /// To those most similar to the user's words.
    Semantic,
    /// To those of the servers that the model asks for, in a separate call.
    Categories,
}

/// Facts about a server beside its tools.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServerHint {
    /// Its purpose in a line, for models that choose among servers.
    pub about: String,
    /// Words that refer to it, beside its name.
    pub words: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ToolFilter {
    pub mode: ToolFilterMode,
    /// The number of tools on offer, without those that the run has called.
    pub k: usize,
    /// The model is asked for categories if there are more tools than this.
    pub above: usize,
    /// Models that are offered all tools, as `provider/name`; a `*` at the end stands for any ending.
    pub skip_models: Vec<String>,
    /// Servers, by the first half of their tools' names.
    pub servers: BTreeMap<String, ServerHint>,
}

impl Default for ToolFilter {
    fn default() -> Self {
        Self { mode: ToolFilterMode::Off, k: 15, above: 30, skip_models: Vec::new(), servers: BTreeMap::new() }
    }
}

impl ToolFilter {
    /// The largest `k`: some providers take no more tools.
    pub const MAX_K: usize = 128;

    /// Returns whether a model is offered all tools.
    pub fn skips(&self, model: &str) -> bool {
        self.skip_models.iter().any(|skipped| match skipped.strip_suffix('*') {
            Some(beginning) => model.starts_with(beginning),
            None => model == skipped,
        })
    }
}

/// How the tools on offer were selected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChosenBy {
    /// By vectors.
    Semantic,
    /// By words.
    Lexical,
    /// By the model, which named categories.
    Categories,
}

words!(ChosenBy { Semantic = "semantic", Lexical = "lexical", Categories = "categories" });

/// The tools that were selected for a turn. Tools that the run has called since are offered, too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChosenTools {
    pub by: ChosenBy,
    /// Names of tools, or of categories if the model has selected.
    pub names: Vec<String>,
}

/// All tools in an order, the best match first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankedTools {
    pub by: ChosenBy,
    pub names: Vec<String>,
}

/// The number of a run's tools that a model call was offered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolsOffered {
    pub offered: usize,
    pub of: usize,
    /// `semantic`, `lexical` or `categories`; `choosing` for a call in which the model is asked for categories.
    pub by: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_models_are_named_whole_or_by_their_beginning() {
        let filter = ToolFilter { skip_models: vec!["openai/gpt-5".to_owned(), "anthropic/*".to_owned()], ..ToolFilter::default() };
        let skipped = ["openai/gpt-5", "openai/gpt-5-mini", "anthropic/x", "ollama/anthropic/x"].map(|model| filter.skips(model));
        assert_eq!(skipped, [true, false, true, false]);
    }
}
