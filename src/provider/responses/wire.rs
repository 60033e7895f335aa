//! What the API sends, read without copying. Everything that is not needed is skipped.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::domain::cost::Cost;
use crate::provider::stream::TokenFigures;
use crate::provider::stream::lenient::{Arguments, Count, Dollars, Text, Ticks, object, whole_number};

/// One event of a stream.
#[derive(Debug, Deserialize)]
pub(super) struct Event<'a> {
    #[serde(borrow, default, rename = "type")]
    pub(super) kind: Text<'a>,
    #[serde(borrow, default)]
    pub(super) delta: Text<'a>,
    #[serde(borrow, default)]
    pub(super) text: Text<'a>,
    #[serde(borrow, default)]
    pub(super) refusal: Text<'a>,
    #[serde(borrow, default)]
    pub(super) arguments: Arguments<'a>,
    #[serde(borrow, default)]
    pub(super) item_id: Text<'a>,
    #[serde(default, deserialize_with = "whole_number")]
    pub(super) output_index: Option<i64>,
    #[serde(default, deserialize_with = "whole_number")]
    pub(super) content_index: Option<i64>,
    #[serde(default, deserialize_with = "whole_number")]
    pub(super) summary_index: Option<i64>,
    #[serde(borrow, default)]
    pub(super) item: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "object")]
    pub(super) part: Option<Content<'a>>,
    /// Large, and needed of the last event only.
    #[serde(borrow, default)]
    pub(super) response: Option<&'a RawValue>,
    #[serde(default)]
    pub(super) error: Option<Value>,
}

/// What an event is, whatever else is in it.
#[derive(Debug, Deserialize)]
pub(super) struct Kind<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Text<'a>,
}

impl Kind<'_> {
    /// Whether an event of this kind may say something that we need. One without a kind may be an error.
    pub(super) fn is_known(&self) -> bool {
        const KNOWN: [&str; 12] = [
            "error",
            "response.error",
            "response.output_",
            "response.content_part",
            "response.refusal",
            "response.reasoning",
            "response.function_call",
            "response.completed",
            "response.done",
            "response.incomplete",
            "response.failed",
            "response.cancelled",
        ];
        self.kind.0.is_empty() || KNOWN.iter().any(|known| self.kind.0.starts_with(known))
    }
}

/// An answer: at the end of a stream, or instead of one.
#[derive(Debug, Deserialize)]
pub(super) struct Response<'a> {
    #[serde(borrow, default)]
    pub(super) status: Text<'a>,
    #[serde(borrow, default)]
    pub(super) output: Option<Vec<&'a RawValue>>,
    #[serde(default)]
    pub(super) error: Option<Value>,
    #[serde(borrow, default)]
    pub(super) incomplete_details: Option<Incomplete<'a>>,
    #[serde(default, deserialize_with = "object")]
    pub(super) usage: Option<Figures>,
    /// `error` if the whole answer is one.
    #[serde(borrow, default)]
    pub(super) object: Text<'a>,
}

/// Why an answer is not whole.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Incomplete<'a> {
    #[serde(borrow, default)]
    pub(super) reason: Text<'a>,
}

/// An item of an answer's output.
#[derive(Debug, Deserialize)]
pub(super) struct Item<'a> {
    #[serde(borrow, default, rename = "type")]
    pub(super) kind: Text<'a>,
    #[serde(borrow, default)]
    pub(super) id: Text<'a>,
    #[serde(borrow, default)]
    pub(super) status: Text<'a>,
    #[serde(borrow, default)]
    pub(super) call_id: Text<'a>,
    #[serde(borrow, default)]
    pub(super) name: Text<'a>,
    #[serde(borrow, default)]
    pub(super) arguments: Arguments<'a>,
    #[serde(borrow, default)]
    pub(super) content: Option<Contents<'a>>,
    #[serde(borrow, default)]
    pub(super) summary: Option<Contents<'a>>,
}

/// The parts of a message or of reasoning; some gateways send a bare text.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Contents<'a> {
    #[serde(borrow)]
    Parts(Vec<Content<'a>>),
    #[serde(borrow)]
    Bare(Text<'a>),
}

impl Contents<'_> {
    /// The texts of the parts, and whether each is a refusal.
    pub(super) fn texts(&self) -> Vec<(&str, bool)> {
        match self {
            Self::Parts(parts) => parts.iter().map(Content::said).collect(),
            Self::Bare(text) => vec![(&text.0, false)],
        }
    }
}

/// A part of a message, or of reasoning.
#[derive(Debug, Deserialize)]
pub(super) struct Content<'a> {
    #[serde(borrow, default, rename = "type")]
    pub(super) kind: Text<'a>,
    #[serde(borrow, default)]
    pub(super) text: Text<'a>,
    #[serde(borrow, default)]
    pub(super) refusal: Text<'a>,
}

impl Content<'_> {
    /// The text, and whether it is a refusal.
    pub(super) fn said(&self) -> (&str, bool) {
        if self.refusal.0.is_empty() { (&self.text.0, false) } else { (&self.refusal.0, true) }
    }
}

/// Tokens used.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub(super) struct Figures {
    #[serde(default)]
    input_tokens: Count,
    #[serde(default)]
    output_tokens: Count,
    #[serde(default, deserialize_with = "object")]
    input_tokens_details: Option<InputDetails>,
    #[serde(default, deserialize_with = "object")]
    output_tokens_details: Option<OutputDetails>,
    /// What the call cost (`OpenRouter`).
    #[serde(default)]
    cost: Dollars,
    /// The same (xAI).
    #[serde(default)]
    cost_in_usd_ticks: Ticks,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
struct InputDetails {
    #[serde(default)]
    cached_tokens: Count,
    #[serde(default)]
    cache_write_tokens: Count,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
struct OutputDetails {
    #[serde(default)]
    reasoning_tokens: Count,
}

impl From<Figures> for TokenFigures {
    fn from(figures: Figures) -> Self {
        Self {
            input: figures.input_tokens.0,
            output: figures.output_tokens.0,
            cached_input: figures.input_tokens_details.and_then(|details| details.cached_tokens.0),
            cache_write: figures.input_tokens_details.and_then(|details| details.cache_write_tokens.0),
            reasoning: figures.output_tokens_details.and_then(|details| details.reasoning_tokens.0),
            cost: figures.cost.0.or(figures.cost_in_usd_ticks.dollars()).and_then(Cost::dollars),
        }
    }
}
