//! Deserializes the needed fields of an answer without copying.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, SeqAccess, Unexpected};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::provider::stream::ReportedUsage;
use crate::provider::stream::lenient::{Count, Lenient, Text, deserialize_leniently, object, whole_number};

/// One event of a stream. A complete answer has the fields of [`Message`] instead.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Event<'a> {
    #[serde(rename = "type", borrow)]
    pub(super) kind: Text<'a>,
    #[serde(deserialize_with = "whole_number")]
    pub(super) index: Option<i64>,
    #[serde(deserialize_with = "object")]
    pub(super) message: Option<Message<'a>>,
    #[serde(deserialize_with = "object")]
    pub(super) content_block: Option<Block<'a>>,
    #[serde(deserialize_with = "object")]
    pub(super) delta: Option<Delta<'a>>,
    #[serde(deserialize_with = "object")]
    pub(super) usage: Option<TokenCounts>,
    pub(super) error: Option<Value>,
}

/// A complete answer, or its start.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Message<'a> {
    #[serde(borrow)]
    pub(super) content: Option<Content<'a>>,
    pub(super) stop_reason: Text<'a>,
    #[serde(deserialize_with = "object")]
    pub(super) usage: Option<TokenCounts>,
    pub(super) error: Option<Value>,
}

/// The blocks of an answer. Some gateways send a plain text, or a single block without a list.
#[derive(Debug, Default)]
pub(super) struct Content<'a>(pub(super) Vec<Block<'a>>);

/// A complete content block, or its start.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Block<'a> {
    #[serde(rename = "type", borrow)]
    pub(super) kind: Text<'a>,
    pub(super) text: Text<'a>,
    pub(super) thinking: Text<'a>,
    pub(super) signature: Text<'a>,
    pub(super) data: Text<'a>,
    pub(super) id: Text<'a>,
    pub(super) name: Text<'a>,
    pub(super) input: Option<&'a RawValue>,
    pub(super) citations: Value,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Delta<'a> {
    #[serde(rename = "type", borrow)]
    pub(super) kind: Text<'a>,
    pub(super) text: Text<'a>,
    pub(super) partial_json: Text<'a>,
    pub(super) thinking: Text<'a>,
    pub(super) signature: Text<'a>,
    pub(super) stop_reason: Text<'a>,
    pub(super) citation: Value,
}

/// Token counts. `input_tokens` does not include cached tokens.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(super) struct TokenCounts {
    input_tokens: Count,
    cache_creation_input_tokens: Count,
    cache_read_input_tokens: Count,
    output_tokens: Count,
}

deserialize_leniently!(Content);

impl<'de> Lenient<'de> for Content<'de> {
    const EXPECTED: &'static str = "a list of blocks, a block, or a text";

    fn from_text<E: Error>(text: Cow<'de, str>) -> Result<Self, E> {
        let is_empty = text.is_empty();
        let block = Block { kind: Text(Cow::Borrowed("text")), text: Text(text), ..Block::default() };
        Ok(Self(if is_empty { Vec::new() } else { vec![block] }))
    }

    fn from_bool<E: Error>(truth: bool) -> Result<Self, E> {
        Self::default_if(false, Unexpected::Bool(truth))
    }

    fn from_number<E: Error>(_number: String) -> Result<Self, E> {
        Self::default_if(false, Unexpected::Other("a number"))
    }

    fn from_list<A: SeqAccess<'de>>(mut items: A) -> Result<Self, A::Error> {
        let mut blocks = Vec::new();
        while let Some(Self(more)) = items.next_element()? {
            blocks.extend(more);
        }
        Ok(Self(blocks))
    }

    fn from_object<A: MapAccess<'de>>(fields: A) -> Result<Self, A::Error> {
        Ok(Self(vec![Block::deserialize(MapAccessDeserializer::new(fields))?]))
    }
}

impl TokenCounts {
    /// Replaces earlier counts by later ones. Gateways repeat unknown counts as 0, which are ignored.
    pub(super) fn update(&mut self, later: Self) {
        let last = |old: Count, new: Count| Count(new.0.filter(|count| *count > 0).or(old.0).or(new.0));
        *self = Self {
            input_tokens: last(self.input_tokens, later.input_tokens),
            cache_creation_input_tokens: last(self.cache_creation_input_tokens, later.cache_creation_input_tokens),
            cache_read_input_tokens: last(self.cache_read_input_tokens, later.cache_read_input_tokens),
            output_tokens: last(self.output_tokens, later.output_tokens),
        };
    }
}

impl From<TokenCounts> for ReportedUsage {
    fn from(counts: TokenCounts) -> Self {
        let cached = counts.cache_read_input_tokens.0;
        let parts = [counts.input_tokens.0, counts.cache_creation_input_tokens.0, cached];
        let input: u64 = parts.iter().flatten().sum();
        Self {
            // No request is empty, so zero means unknown.
            input: Some(input).filter(|input| *input > 0),
            output: counts.output_tokens.0.filter(|output| *output > 0),
            cached_input: cached,
            cache_write: counts.cache_creation_input_tokens.0,
            ..Self::default()
        }
    }
}
