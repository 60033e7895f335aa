//! Which of many tools a model is offered: too many make small models choose wrongly, and every model call dearer.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::words::words;

/// How the tools of a run are narrowed down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolFilterMode {
    /// Not at all.
    #[default]
    Off,
    /// To those that are most like what the user says.
    Semantic,
    /// To those of the servers that the model asks for, in a call of its own.
    Categories,
}

/// What is known of a server beyond its tools.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServerHint {
    /// What it is for, in a line, for models that choose among servers.
    pub about: String,
    /// Words that mean it, beside its name.
    pub words: Vec<String>,
}

/// Which tools a model is offered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ToolFilter {
    /// How they are narrowed down.
    pub mode: ToolFilterMode,
    /// How many are left of more than that; what a run has called comes on top.
    pub k: usize,
    /// The model is asked for categories if there are more tools than that.
    pub above: usize,
    /// Models that are offered everything, as `provider/name`; a `*` at the end stands for any ending.
    pub skip_models: Vec<String>,
    /// Servers, by the name that their tools begin with.
    pub servers: BTreeMap<String, ServerHint>,
}

impl Default for ToolFilter {
    fn default() -> Self {
        Self { mode: ToolFilterMode::Off, k: 15, above: 30, skip_models: Vec::new(), servers: BTreeMap::new() }
    }
}

impl ToolFilter {
    /// The most tools that `k` may be: some providers take no more.
    pub const MAX_K: usize = 128;

    /// Whether it is as it is by itself.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a model is offered everything.
    #[must_use]
    pub fn skips(&self, model: &str) -> bool {
        self.skip_models.iter().any(|skipped| match skipped.strip_suffix('*') {
            Some(beginning) => model.starts_with(beginning),
            None => model == skipped,
        })
    }
}

/// Who has chosen the tools on offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChosenBy {
    /// The nearest by meaning.
    Semantic,
    /// The nearest by words.
    Lexical,
    /// The model, by categories.
    Categories,
}

words!(ChosenBy { Semantic = "semantic", Lexical = "lexical", Categories = "categories" });

/// The tools that were chosen for a turn. Those that the run has called meanwhile are offered, too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChosenTools {
    /// By whom.
    pub by: ChosenBy,
    /// Their names; those of their categories, if the model has chosen.
    pub names: Vec<String>,
}

/// All tools in an order, the fittest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankedTools {
    /// What the order goes by.
    pub by: ChosenBy,
    /// Their names.
    pub names: Vec<String>,
}

/// How many of a run's tools a model call was offered, as its step says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolsOffered {
    /// So many.
    pub offered: usize,
    /// Of so many.
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
