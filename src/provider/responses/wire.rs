//! Deserializes the needed fields of an answer without copying.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Error, MapAccess, SeqAccess};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::domain::model::Cost;
use crate::provider::stream::ReportedUsage;
use crate::provider::stream::lenient::{
    Arguments, Count, Dollars, Lenient, Text, Ticks, TokenDetails, lenient, object, whole_number,
};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Event<'a> {
    #[serde(borrow, rename = "type")]
    pub(super) kind: Text<'a>,
    pub(super) delta: Text<'a>,
    pub(super) text: Text<'a>,
    pub(super) refusal: Text<'a>,
    pub(super) arguments: Arguments<'a>,
    pub(super) item_id: Text<'a>,
    #[serde(deserialize_with = "whole_number")]
    pub(super) output_index: Option<i64>,
    #[serde(deserialize_with = "whole_number")]
    pub(super) content_index: Option<i64>,
    #[serde(deserialize_with = "whole_number")]
    pub(super) summary_index: Option<i64>,
    pub(super) item: Option<&'a RawValue>,
    #[serde(deserialize_with = "object")]
    pub(super) part: Option<Content<'a>>,
    /// The complete answer. It is large and needed from the last event only, so it is parsed later.
    pub(super) response: Option<&'a RawValue>,
    pub(super) error: Option<Value>,
    /// A source of the text.
    pub(super) annotation: Value,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Kind<'a> {
    #[serde(borrow, rename = "type")]
    kind: Text<'a>,
}

impl Kind<'_> {
    /// Returns whether events of this kind are read. An event without a kind may be an error.
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

/// An answer: at the end of a stream, or instead of a stream.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Response<'a> {
    #[serde(borrow)]
    pub(super) status: Text<'a>,
    pub(super) output: Option<Vec<&'a RawValue>>,
    pub(super) error: Option<Value>,
    pub(super) incomplete_details: Option<Incomplete<'a>>,
    #[serde(deserialize_with = "object")]
    pub(super) usage: Option<TokenCounts>,
    /// `error` if the complete answer is an error.
    pub(super) object: Text<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Incomplete<'a> {
    #[serde(borrow)]
    pub(super) reason: Text<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Item<'a> {
    #[serde(borrow, rename = "type")]
    pub(super) kind: Text<'a>,
    pub(super) id: Text<'a>,
    pub(super) status: Text<'a>,
    pub(super) call_id: Text<'a>,
    pub(super) name: Text<'a>,
    pub(super) arguments: Arguments<'a>,
    #[serde(deserialize_with = "lenient")]
    pub(super) content: Contents<'a>,
    #[serde(deserialize_with = "lenient")]
    pub(super) summary: Contents<'a>,
}

/// The parts of a message or of reasoning. Some gateways send a plain text.
#[derive(Debug, Default)]
pub(super) struct Contents<'a>(Vec<Content<'a>>);

impl<'de: 'a, 'a> Lenient<'de> for Contents<'a> {
    const EXPECTED: &'static str = "a list of parts, or a text";

    fn from_text<E: Error>(text: Cow<'de, str>) -> Result<Self, E> {
        Ok(Self(vec![Content { text: Text(text), ..Content::default() }]))
    }

    fn from_list<A: SeqAccess<'de>>(items: A) -> Result<Self, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(items)).map(Self)
    }

    fn from_object<A: MapAccess<'de>>(part: A) -> Result<Self, A::Error> {
        Content::deserialize(MapAccessDeserializer::new(part)).map(|part| Self(vec![part]))
    }
}

impl Contents<'_> {
    /// Returns the texts of the parts, and whether each is a refusal.
    pub(super) fn texts(&self) -> impl Iterator<Item = (&str, bool)> {
        self.0.iter().map(Content::text_and_refusal)
    }

    /// Returns the sources of each part.
    pub(super) fn annotations(&self) -> impl Iterator<Item = &Value> {
        self.0.iter().map(|content| &content.annotations)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Content<'a> {
    #[serde(borrow, rename = "type")]
    pub(super) kind: Text<'a>,
    pub(super) text: Text<'a>,
    pub(super) refusal: Text<'a>,
    annotations: Value,
}

impl Content<'_> {
    pub(super) fn text_and_refusal(&self) -> (&str, bool) {
        if self.refusal.0.is_empty() { (&self.text.0, false) } else { (&self.refusal.0, true) }
    }
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(super) struct TokenCounts {
    input_tokens: Count,
    output_tokens: Count,
    #[serde(deserialize_with = "object")]
    input_tokens_details: Option<TokenDetails>,
    #[serde(deserialize_with = "object")]
    output_tokens_details: Option<TokenDetails>,
    /// The cost, as OpenRouter names it.
    cost: Dollars,
    /// The cost, as xAI names it.
    cost_in_usd_ticks: Ticks,
}

impl From<TokenCounts> for ReportedUsage {
    fn from(counts: TokenCounts) -> Self {
        Self {
            input: counts.input_tokens.0,
            output: counts.output_tokens.0,
            cached_input: counts.input_tokens_details.and_then(|details| details.cached_tokens.0),
            cache_write: counts.input_tokens_details.and_then(|details| details.cache_write_tokens.0),
            reasoning: counts.output_tokens_details.and_then(|details| details.reasoning_tokens.0),
            cost: counts.cost.0.or(counts.cost_in_usd_ticks.dollars()).and_then(Cost::from_dollars),
        }
    }
}
