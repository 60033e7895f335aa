//! Deserializes the needed fields of an answer without copying.

use serde::Deserialize;
use serde_json::Value;

use crate::provider::stream::lenient::{Count, Flag, Function, Text, many, object};

/// One line of a stream, or a complete answer.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Line<'a> {
    #[serde(borrow)]
    pub(super) message: Option<Message<'a>>,
    pub(super) done: Flag,
    pub(super) done_reason: Text<'a>,
    pub(super) error: Option<Value>,
    pub(super) prompt_eval_count: Count,
    pub(super) eval_count: Count,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Message<'a> {
    #[serde(borrow)]
    pub(super) content: Text<'a>,
    pub(super) thinking: Text<'a>,
    /// Proxies send a single call without a list.
    #[serde(deserialize_with = "many")]
    pub(super) tool_calls: Vec<Call<'a>>,
}

/// A complete tool call. Its index is not read: several calls share one.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Call<'a> {
    #[serde(borrow)]
    pub(super) id: Text<'a>,
    #[serde(deserialize_with = "object")]
    pub(super) function: Option<Function<'a>>,
}
