//! Deserializes the needed fields of an answer without copying. `null`, an absent field and other empty values are equal.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::domain::model::Cost;
use crate::provider::stream::ReportedUsage;
use crate::provider::stream::lenient::{
    Arguments, Count, Dollars, Flag, Function, Lenient, Text, Ticks, TokenDetails, deserialize_leniently, list, many, object,
    whole_number,
};

/// A field that most events lack. It is boxed, because an event with all of them in place would have several kilobytes, and each level of
/// it is moved a few times for each token.
type Rare<T> = Option<Box<T>>;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Chunk<'a> {
    /// Requests ask for one choice, but some providers send more.
    #[serde(borrow, deserialize_with = "list")]
    pub(super) choices: Vec<Choice<'a>>,
    #[serde(deserialize_with = "object")]
    pub(super) usage: Rare<TokenCounts>,
    #[serde(deserialize_with = "reported")]
    error: Rare<Value>,
    /// Cloudflare's errors.
    #[serde(deserialize_with = "reported")]
    errors: Rare<Value>,
    /// `error` if the event is an error, as vLLM sends it.
    pub(super) object: Text<'a>,
    /// Groq's usage and errors.
    #[serde(deserialize_with = "object")]
    pub(super) x_groq: Rare<Groq>,
    /// MiniMax's errors, which have the HTTP status 200.
    #[serde(deserialize_with = "object")]
    pub(super) base_resp: Rare<BaseResponse<'a>>,
    /// Cloudflare's answer, which has no choices.
    pub(super) response: Text<'a>,
    #[serde(deserialize_with = "many")]
    pub(super) tool_calls: Vec<Fragment<'a>>,
    /// Perplexity's and xAI's sources: addresses, and the same with titles.
    pub(super) citations: Rare<Value>,
    pub(super) search_results: Rare<Value>,
}

impl Chunk<'_> {
    /// Returns whether it has no content of an answer.
    pub(super) fn is_empty(&self) -> bool {
        self.choices.is_empty() && self.response.0.is_empty() && self.tool_calls.is_empty()
    }

    pub(super) fn is_error(&self) -> bool {
        // Gateways add an error with empty fields to good events.
        [&self.error, &self.errors].into_iter().flatten().any(|error| is_meaningful(error) || self.is_empty())
            || self.object.0 == "error"
    }
}

/// An answer in Cloudflare's envelope.
#[derive(Debug, Deserialize)]
pub(super) struct Envelope<'a> {
    #[serde(borrow)]
    result: &'a RawValue,
}

impl<'a> Envelope<'a> {
    /// Returns the answer in an envelope, and its JSON.
    pub(super) fn open(event: &'a str) -> Option<(Chunk<'a>, &'a str)> {
        let Self { result } = serde_json::from_str(event).ok()?;
        // serde would read a list as the fields of an object.
        let json = Some(result.get()).filter(|json| json.starts_with('{'))?;
        Some((serde_json::from_str(json).ok()?, json))
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Groq {
    #[serde(deserialize_with = "object")]
    pub(super) usage: Option<TokenCounts>,
    #[serde(deserialize_with = "reported")]
    pub(super) error: Rare<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct BaseResponse<'a> {
    /// 0 for success.
    #[serde(deserialize_with = "whole_number")]
    pub(super) status_code: Option<i64>,
    #[serde(borrow)]
    pub(super) status_msg: Text<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Choice<'a> {
    #[serde(deserialize_with = "whole_number")]
    pub(super) index: Option<i64>,
    #[serde(borrow, deserialize_with = "object")]
    pub(super) delta: Option<Delta<'a>>,
    /// Replaces `delta` in an answer that is not streamed.
    #[serde(deserialize_with = "object")]
    pub(super) message: Rare<Delta<'a>>,
    /// Replaces both at servers with the API of the older completions. Beside them it is redundant.
    pub(super) text: Text<'a>,
    pub(super) finish_reason: Text<'a>,
    /// The stop reason of Gemini's compatible endpoint if the other field is absent.
    #[serde(rename = "finishReason")]
    pub(super) own_finish_reason: Text<'a>,
    #[serde(deserialize_with = "reported")]
    pub(super) error: Rare<Value>,
    /// Moonshot's usage.
    #[serde(deserialize_with = "object")]
    pub(super) usage: Rare<TokenCounts>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Delta<'a> {
    #[serde(borrow)]
    pub(super) content: MessageContent<'a>,
    pub(super) reasoning_content: Text<'a>,
    pub(super) reasoning: Text<'a>,
    /// Copilot's name of the reasoning field.
    pub(super) reasoning_text: Text<'a>,
    /// OpenRouter's reasoning, which goes back unchanged.
    pub(super) reasoning_details: Rare<Value>,
    pub(super) refusal: Text<'a>,
    /// Text Generation Inference sends one piece without a list.
    #[serde(deserialize_with = "many")]
    pub(super) tool_calls: Vec<Fragment<'a>>,
    /// LiteLLM's blocks of Claude's reasoning, which go back unchanged.
    pub(super) thinking_blocks: Rare<Value>,
    #[serde(deserialize_with = "object")]
    pub(super) function_call: Option<Function<'a>>,
    /// Gemini's mark and signature of reasoning.
    pub(super) extra_content: Rare<Value>,
    /// The field name of gateways for the same.
    pub(super) provider_specific_fields: Rare<Value>,
    pub(super) thought_signature: Text<'a>,
    pub(super) thinking_signature: Text<'a>,
    /// Copilot's encrypted reasoning.
    pub(super) reasoning_opaque: Text<'a>,
    /// Pictures that the model made, as `OpenRouter` sends them.
    pub(super) images: Rare<Value>,
    /// Sources of the answer.
    pub(super) annotations: Rare<Value>,
}

/// Content: a text, a part, or a list of both, some of them reasoning (Mistral, Databricks). Other parts are ignored.
#[derive(Debug, Default)]
pub(super) struct MessageContent<'a> {
    pub(super) thought: Cow<'a, str>,
    pub(super) text: Cow<'a, str>,
}

/// A piece of a tool call; [`super::calls`] assigns it to its call.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Fragment<'a> {
    #[serde(deserialize_with = "whole_number")]
    pub(super) index: Option<i64>,
    #[serde(borrow)]
    pub(super) id: Text<'a>,
    #[serde(deserialize_with = "object")]
    pub(super) function: Option<Function<'a>>,
    /// Replaces `function` in Cloudflare's calls.
    pub(super) name: Text<'a>,
    pub(super) arguments: Arguments<'a>,
    /// Gemini's signature, which goes back unchanged.
    pub(super) extra_content: Option<Value>,
    /// The field name of gateways for the same.
    pub(super) provider_specific_fields: Option<Value>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(super) struct TokenCounts {
    prompt_tokens: Count,
    completion_tokens: Count,
    total_tokens: Count,
    #[serde(deserialize_with = "object")]
    prompt_tokens_details: Option<TokenDetails>,
    #[serde(deserialize_with = "object")]
    completion_tokens_details: Option<TokenDetails>,
    /// DeepSeek's name of the cached part.
    prompt_cache_hit_tokens: Count,
    /// Moonshot's name of the cached part.
    cached_tokens: Count,
    /// Anthropic's names of cached and newly cached input, which gateways pass on.
    cache_read_input_tokens: Count,
    cache_creation_input_tokens: Count,
    /// Perplexity's name of the reasoning part.
    reasoning_tokens: Count,
    /// Names of other dialects, which gateways pass on.
    input_tokens: Count,
    output_tokens: Count,
    /// The cost, as OpenRouter and Perplexity name it.
    cost: Dollars,
    /// Whether the upstream provider bills separately, so that `cost` is only the gateway's part.
    is_byok: Flag,
    cost_details: Dollars,
    /// The cost, as DeepInfra names it.
    estimated_cost: Dollars,
    /// The cost, as xAI names it.
    cost_in_usd_ticks: Ticks,
}

impl From<TokenCounts> for ReportedUsage {
    fn from(counts: TokenCounts) -> Self {
        let details = counts.prompt_tokens_details.unwrap_or_default();
        let cached_input = details.cached_tokens.0.or(counts.prompt_cache_hit_tokens.0).or(counts.cached_tokens.0);
        let cached_input = cached_input.or(counts.cache_read_input_tokens.0);
        let cache_write = details.cache_write_tokens.0.or(counts.cache_creation_input_tokens.0);
        let reasoning = counts.completion_tokens_details.and_then(|details| details.reasoning_tokens.0);
        let mut reasoning = reasoning.or(counts.reasoning_tokens.0);
        let mut input = counts.prompt_tokens.0.or(counts.input_tokens.0);
        let mut output = counts.completion_tokens.0.or(counts.output_tokens.0);
        // The total also contains tokens that are in neither of the two.
        if let (Some(input_count), Some(output_count), Some(total)) = (input, output, counts.total_tokens.0)
            && let Some(hidden_tokens @ 1..) = total.checked_sub(input_count + output_count)
        {
            let cached = cached_input.unwrap_or(0);
            if reasoning == Some(hidden_tokens) {
                // xAI's reasoning.
                output = Some(output_count + hidden_tokens);
            } else if hidden_tokens == cached || hidden_tokens == cached + cache_write.unwrap_or(0) {
                // Claude's cache, as some gateways count it.
                input = Some(input_count + hidden_tokens);
            } else if reasoning.is_none() {
                // Gemini's reasoning, which is in no other field.
                (output, reasoning) = (Some(output_count + hidden_tokens), Some(hidden_tokens));
            }
        }
        let cost = match (counts.cost.0, counts.is_byok) {
            (Some(own), Flag(true)) => counts.cost_details.0.map(|behind| own + behind),
            (own, Flag(_)) => own.or(counts.estimated_cost.0).or(counts.cost_in_usd_ticks.dollars()),
        };
        Self { input, output, cached_input, reasoning, cache_write, cost: cost.and_then(Cost::from_dollars) }
    }
}

/// Reads an error. Gateways fill the field with empty values of any type.
fn reported<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Rare<Value>, D::Error> {
    Ok(Rare::<Value>::deserialize(deserializer)?.filter(|value| match **value {
        Value::Null | Value::Bool(false) => false,
        Value::Bool(true) | Value::Number(_) => true,
        Value::String(ref text) => !text.is_empty(),
        Value::Array(ref list) => !list.is_empty(),
        Value::Object(ref fields) => !fields.is_empty(),
    }))
}

pub(super) fn is_meaningful(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(truth) => *truth,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => list.iter().any(is_meaningful),
        Value::Object(fields) => fields.values().any(is_meaningful),
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ContentPart<'a> {
    #[serde(borrow)]
    text: Text<'a>,
    thinking: Text<'a>,
    summary: Text<'a>,
}

deserialize_leniently!(MessageContent);

impl<'de> Lenient<'de> for MessageContent<'de> {
    const EXPECTED: &'static str = "a text, a part, or a list of them";

    fn from_text<E: Error>(text: Cow<'de, str>) -> Result<Self, E> {
        Ok(Self { text, ..Self::default() })
    }

    fn from_list<A: SeqAccess<'de>>(mut parts: A) -> Result<Self, A::Error> {
        let (mut thought, mut text) = (String::new(), String::new());
        while let Some(part) = parts.next_element::<Self>()? {
            thought.push_str(&part.thought);
            text.push_str(&part.text);
        }
        Ok(Self { thought: Cow::Owned(thought), text: Cow::Owned(text) })
    }

    fn from_object<A: MapAccess<'de>>(fields: A) -> Result<Self, A::Error> {
        let part = ContentPart::deserialize(MapAccessDeserializer::new(fields))?;
        Ok(Self { thought: part.thinking.0 + part.summary.0, text: part.text.0 })
    }
}
