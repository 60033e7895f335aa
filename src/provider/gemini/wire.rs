//! Deserializes the needed fields of an answer without copying. Gateways write some names with underscores.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::provider::stream::ReportedUsage;
use crate::provider::stream::lenient::{Count, Text, many, object, whole_number};

/// A chunk, or a list of chunks from a gateway that drops `alt=sse`.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(super) struct Chunks<'a>(#[serde(borrow, deserialize_with = "many")] pub(super) Vec<Chunk<'a>>);

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Chunk<'a> {
    #[serde(borrow)]
    pub(super) candidates: Option<Vec<Candidate<'a>>>,
    #[serde(alias = "prompt_feedback")]
    pub(super) prompt_feedback: Option<PromptFeedback<'a>>,
    #[serde(alias = "usage_metadata", deserialize_with = "object")]
    pub(super) usage_metadata: Option<TokenCounts>,
    pub(super) error: Option<Value>,
    /// The chunk in the envelope of Code Assist and of some Vertex proxies.
    #[serde(deserialize_with = "object")]
    pub(super) response: Option<Box<Self>>,
}

impl Chunk<'_> {
    /// Returns whether it has no field of a chunk.
    pub(super) fn is_empty(&self) -> bool {
        let Self { candidates, prompt_feedback, usage_metadata, error, response } = self;
        let is_bare = candidates.is_none() && prompt_feedback.is_none() && usage_metadata.is_none() && error.is_none();
        is_bare && response.as_ref().is_none_or(|response| response.is_empty())
    }
}

/// One answer of the model. Requests ask for one answer only.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Candidate<'a> {
    #[serde(deserialize_with = "whole_number")]
    pub(super) index: Option<i64>,
    #[serde(borrow, deserialize_with = "object")]
    pub(super) content: Option<Content<'a>>,
    #[serde(alias = "finish_reason")]
    pub(super) finish_reason: Text<'a>,
    #[serde(alias = "finish_message")]
    pub(super) finish_message: Text<'a>,
    #[serde(alias = "grounding_metadata")]
    pub(super) grounding_metadata: Value,
    #[serde(alias = "citation_metadata")]
    pub(super) citation_metadata: Value,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Content<'a> {
    #[serde(borrow, deserialize_with = "many")]
    pub(super) parts: Vec<Part<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Part<'a> {
    #[serde(borrow)]
    pub(super) text: Option<Text<'a>>,
    pub(super) thought: Option<bool>,
    #[serde(alias = "thought_signature")]
    pub(super) thought_signature: Text<'a>,
    #[serde(alias = "function_call")]
    pub(super) function_call: Option<FunctionCall<'a>>,
    #[serde(alias = "inline_data", deserialize_with = "object")]
    pub(super) inline_data: Option<InlineData<'a>>,
}

/// A picture that the model made.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct InlineData<'a> {
    #[serde(borrow, alias = "mime_type")]
    pub(super) mime_type: Text<'a>,
    pub(super) data: Text<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct FunctionCall<'a> {
    #[serde(borrow)]
    pub(super) id: Text<'a>,
    pub(super) name: Text<'a>,
    pub(super) args: Option<&'a RawValue>,
    #[serde(alias = "partial_args")]
    partial_args: Option<Vec<Value>>,
    #[serde(alias = "will_continue")]
    will_continue: Option<bool>,
}

impl FunctionCall<'_> {
    /// Returns whether its arguments arrive in pieces, each with its path.
    pub(super) fn is_in_pieces(&self) -> bool {
        self.partial_args.as_ref().is_some_and(|pieces| !pieces.is_empty()) || self.will_continue == Some(true)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PromptFeedback<'a> {
    #[serde(borrow, alias = "block_reason")]
    pub(super) block_reason: Text<'a>,
}

/// Token counts. Reasoning tokens are not part of the answer's count.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct TokenCounts {
    #[serde(alias = "prompt_token_count")]
    prompt_token_count: Count,
    #[serde(alias = "tool_use_prompt_token_count")]
    tool_use_prompt_token_count: Count,
    #[serde(alias = "cached_content_token_count")]
    cached_content_token_count: Count,
    #[serde(alias = "candidates_token_count")]
    candidates_token_count: Count,
    #[serde(alias = "thoughts_token_count")]
    thoughts_token_count: Count,
    #[serde(alias = "total_token_count")]
    total_token_count: Count,
}

impl TokenCounts {
    /// Returns whether the counts of both request and answer are known.
    pub(super) fn are_complete(&self) -> bool {
        self.prompt_token_count.0.is_some() && self.candidates_token_count.0.is_some()
    }

    /// Replaces earlier counts by later ones.
    pub(super) fn update(&mut self, later: Self) {
        let last = |old: Count, new: Count| Count(new.0.or(old.0));
        *self = Self {
            prompt_token_count: last(self.prompt_token_count, later.prompt_token_count),
            tool_use_prompt_token_count: last(self.tool_use_prompt_token_count, later.tool_use_prompt_token_count),
            cached_content_token_count: last(self.cached_content_token_count, later.cached_content_token_count),
            candidates_token_count: last(self.candidates_token_count, later.candidates_token_count),
            thoughts_token_count: last(self.thoughts_token_count, later.thoughts_token_count),
            total_token_count: last(self.total_token_count, later.total_token_count),
        };
    }
}

impl From<TokenCounts> for ReportedUsage {
    fn from(counts: TokenCounts) -> Self {
        let sum = |one: Count, other: Count| match (one.0, other.0) {
            (None, None) => None,
            (one, other) => Some(one.unwrap_or(0) + other.unwrap_or(0)),
        };
        let input = counts.prompt_token_count.0.map(|prompt| prompt + counts.tool_use_prompt_token_count.0.unwrap_or(0));
        let rest = counts.total_token_count.0.zip(input).and_then(|(total, input)| total.checked_sub(input));
        Self {
            input,
            output: sum(counts.candidates_token_count, counts.thoughts_token_count).or(rest),
            cached_input: counts.cached_content_token_count.0,
            reasoning: counts.thoughts_token_count.0,
            ..Self::default()
        }
    }
}
