//! The selection of offered tools. Too many tools make small models choose wrongly, and make every model call more expensive.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::domain::enum_names::named_enum;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolFilterMode {
    #[default]
    Off,
    /// Offers the tools most similar to the user's message.
    Semantic,
    /// Offers the tools of the servers that the model selects in a separate call.
    Categories,
}

/// Configured facts about a server.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServerHint {
    /// Its purpose in one line, for models that select servers.
    pub about: String,
    /// Words that refer to it, in addition to its name.
    pub words: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ToolFilter {
    pub mode: ToolFilterMode,
    /// The number of offered tools, not counting those that the run has called.
    pub k: usize,
    /// The model selects categories if there are more tools than this.
    pub above: usize,
    /// Whether a server that the user or the step of a plan names is offered with all its tools, even beyond `k`.
    pub whole_servers: bool,
    /// Models that are offered all tools, as `provider/name`. A `*` at the end matches any ending.
    pub skip_models: Vec<String>,
    /// Hints by server, named as in the first half of its tools' names.
    pub servers: BTreeMap<String, ServerHint>,
}

impl Default for ToolFilter {
    fn default() -> Self {
        Self {
            mode: ToolFilterMode::Off,
            k: 15,
            above: 30,
            whole_servers: false,
            skip_models: Vec::new(),
            servers: BTreeMap::new(),
        }
    }
}

impl ToolFilter {
    /// The largest `k`: some providers accept no more tools.
    pub const MAX_K: usize = 128;

    /// Returns whether a model is offered all tools.
    pub fn skips(&self, model: &str) -> bool {
        self.skip_models.iter().any(|skipped| match skipped.strip_suffix('*') {
            Some(beginning) => model.starts_with(beginning),
            None => model == skipped,
        })
    }
}

named_enum! {
    /// How the offered tools were selected.
    pub enum SelectionMethod {
        /// By vectors.
        Semantic = "semantic",
        /// By words.
        Lexical = "lexical",
        /// By categories that the model named.
        Categories = "categories",
    }
}

/// The selected tools of a turn. Tools that the run has called since are offered too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolSelection {
    pub by: SelectionMethod,
    /// Names of tools, or of categories if the model selected.
    pub names: Vec<String>,
}

/// All tools, ordered by relevance, the best match first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankedTools {
    pub by: SelectionMethod,
    pub names: Vec<String>,
}

/// The number of a run's tools that a model call was offered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OfferedTools {
    pub offered: usize,
    pub of: usize,
    /// `semantic`, `lexical` or `categories`; `choosing` for a call in which the model is asked for categories.
    pub by: String,
    /// Tools that are left out because the model does not accept so many, at most 200.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
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
