//! What Ollama sends, read without copying. Everything that is not needed is skipped.

use serde::Deserialize;
use serde_json::Value;

use crate::provider::stream::lenient::{Arguments, Count, Flag, Text, many, object};

/// One line of a stream, or a whole answer.
#[derive(Debug, Deserialize)]
pub(super) struct Line<'a> {
    #[serde(borrow, default)]
    pub(super) message: Option<Message<'a>>,
    #[serde(default)]
    pub(super) done: Flag,
    #[serde(borrow, default)]
    pub(super) done_reason: Text<'a>,
    #[serde(default)]
    pub(super) error: Option<Value>,
    #[serde(default)]
    pub(super) prompt_eval_count: Count,
    #[serde(default)]
    pub(super) eval_count: Count,
}

/// More of an answer, or all of it.
#[derive(Debug, Deserialize)]
pub(super) struct Message<'a> {
    #[serde(borrow, default)]
    pub(super) content: Text<'a>,
    #[serde(borrow, default)]
    pub(super) thinking: Text<'a>,
    /// Proxies give one call alone.
    #[serde(borrow, default, deserialize_with = "many")]
    pub(super) tool_calls: Vec<Call<'a>>,
}

/// A tool call, whole. Its index is not read: several calls share one.
#[derive(Debug, Deserialize)]
pub(super) struct Call<'a> {
    #[serde(borrow, default)]
    pub(super) id: Text<'a>,
    #[serde(borrow, default, deserialize_with = "object")]
    pub(super) function: Option<Function<'a>>,
}

/// What is called.
#[derive(Debug, Deserialize)]
pub(super) struct Function<'a> {
    #[serde(borrow, default)]
    pub(super) name: Text<'a>,
    #[serde(borrow, default)]
    pub(super) arguments: Arguments<'a>,
}
