//! Requests to models and their answers, independent of the dialect.
//!
//! Owns the events of an answer and the errors of a call. Must not know any provider.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::domain::conversation::{BinaryContent, Message};
use crate::domain::ids::UserId;
use crate::domain::problem::ProblemCode;
use crate::domain::run::FinishReason;
use crate::domain::tool::ToolDefinition;
use crate::domain::tool::tool_name_check::check_tool_name;
use crate::support::text::{prefix_chars, storable};

pub mod cost;
pub mod embeddings;
pub mod provider;
pub mod sampling;

pub use cost::{Cost, LongPrices, Price, Prices, Usage, Usd};
pub use embeddings::Embeddings;
pub use provider::{CallLimits, EgressScope, LearnedLimitation, ModelEntry, ProviderKind, ProviderRecord, StoredSecret};
pub use sampling::SamplingByTurn;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct ModelRequest {
    /// Selects the owner's providers for the model's name. Never sent.
    pub owner: Option<UserId>,
    pub model: String,
    pub system: String,
    pub messages: Vec<Message>,
    /// The offered tools; empty for a call without tools.
    pub tools: Vec<Arc<ToolDefinition>>,
    pub options: ModelOptions,
    /// Limit of the tokens of the request and its answer, if known. Sent to servers that would otherwise load a model with a
    /// smaller window.
    pub window: Option<u64>,
}

/// Options of a model request that callers may set.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelOptions {
    /// Sampling temperature, 0 to 2.
    #[schema(minimum = 0, maximum = 2)]
    pub temperature: Option<f64>,
    /// Nucleus sampling, 0 to 1.
    #[schema(minimum = 0, maximum = 1)]
    pub top_p: Option<f64>,
    /// Maximum number of tokens of one answer.
    #[schema(minimum = 1)]
    pub max_output_tokens: Option<u32>,
    /// Seed for providers that accept one.
    pub seed: Option<i64>,
    /// Texts at which the model stops: at most 16 of up to 256 bytes each. A provider that accepts fewer returns an error.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    #[schema(max_items = 16)]
    pub stop: Vec<String>,
    /// The tools that the model may or must call. `required` and a named tool apply only to the first answer of a run: otherwise
    /// the run could never end.
    pub tool_choice: Option<ToolChoice>,
    /// The schema of the answer's text. The provider receives it; the server does not validate the answer.
    pub output_schema: Option<OutputSchema>,
    /// The reasoning effort of the model. The server sends it to models that accept it, in the provider's terms.
    pub reasoning_effort: Option<ReasoningEffort>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidOption {
    /// As a path with `/`.
    pub field: &'static str,
    pub reason: &'static str,
}

impl ModelOptions {
    pub const MAX_STOPS: usize = 16;
    pub const MAX_STOP_BYTES: usize = 256;
    /// The largest schema of an answer, in bytes of JSON.
    pub const MAX_SCHEMA_BYTES: usize = 64 * 1024;

    /// Sets unset options from `base`.
    pub fn over(self, base: Self) -> Self {
        Self {
            temperature: self.temperature.or(base.temperature),
            top_p: self.top_p.or(base.top_p),
            max_output_tokens: self.max_output_tokens.or(base.max_output_tokens),
            seed: self.seed.or(base.seed),
            stop: if self.stop.is_empty() { base.stop } else { self.stop },
            tool_choice: self.tool_choice.or(base.tool_choice),
            output_schema: self.output_schema.or(base.output_schema),
            reasoning_effort: self.reasoning_effort.or(base.reasoning_effort),
        }
    }

    /// Checks values that the types allow. Returns the first one that no provider accepts.
    pub fn check(&self) -> Result<(), InvalidOption> {
        let refuse = |field, reason| Err(InvalidOption { field, reason });
        let in_range = |value: Option<f64>, most: f64| value.is_none_or(|value| (0.0..=most).contains(&value));
        if !in_range(self.temperature, 2.0) {
            return refuse("temperature", "must be between 0 and 2");
        }
        if !in_range(self.top_p, 1.0) {
            return refuse("top_p", "must be between 0 and 1");
        }
        if self.max_output_tokens == Some(0) {
            return refuse("max_output_tokens", "must be at least 1");
        }
        if self.stop.len() > Self::MAX_STOPS {
            return refuse("stop", "at most 16 texts");
        }
        if self.stop.iter().any(|stop| stop.is_empty() || stop.len() > Self::MAX_STOP_BYTES) {
            return refuse("stop", "each text has 1 to 256 bytes");
        }
        if let Some(ToolChoice::Tool(name)) = &self.tool_choice
            && check_tool_name(name).is_err()
        {
            return refuse("tool_choice/tool", "must be the name of one tool as models see it, such as mail__send; no pattern");
        }
        let Some(output) = &self.output_schema else { return Ok(()) };
        let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if output.name.is_empty() || output.name.len() > 64 || !output.name.bytes().all(is_name_byte) {
            return refuse("output_schema/name", "has 1 to 64 letters, digits, _ and -");
        }
        if !output.schema.is_object() {
            return refuse("output_schema/schema", "must be an object: a JSON Schema");
        }
        if output.schema.to_string().len() > Self::MAX_SCHEMA_BYTES {
            return refuse("output_schema/schema", "is larger than 64 KiB");
        }
        Ok(())
    }
}

/// The tools that a model may or must call: `"auto"`, `"none"`, `"required"` or `{"tool": "name"}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolChoice {
    /// The model chooses.
    Auto,
    /// The model must answer in text, although tools are offered.
    None,
    /// The model must call a tool.
    Required,
    /// The model must call the named tool.
    Tool(String),
}

/// A JSON Schema for the text of an answer.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OutputSchema {
    /// The name of the schema, which some providers require: letters, digits, `_` and `-`.
    #[serde(default = "OutputSchema::default_name")]
    pub name: String,
    /// The JSON Schema, an object.
    #[schema(value_type = Object)]
    pub schema: Value,
    /// Whether the provider must follow the schema exactly, where it can.
    #[serde(default)]
    pub strict: bool,
}

/// The order of properties counts: a model writes its answer in that order, and runs share equal profiles.
impl PartialEq for OutputSchema {
    fn eq(&self, other: &Self) -> bool {
        let written = |schema: &Value| serde_json::to_string(schema).ok();
        self.name == other.name && self.strict == other.strict && written(&self.schema) == written(&other.schema)
    }
}

impl OutputSchema {
    fn default_name() -> String {
        "answer".to_owned()
    }
}

/// The reasoning effort of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReasoningEffort {
    /// No reasoning, where the provider has such a value.
    None,
    /// The lowest effort.
    Minimal,
    /// Low effort.
    Low,
    /// Medium effort.
    Medium,
    /// High effort.
    High,
    /// Higher effort than `high`. Models without this value use `high`.
    #[serde(rename = "xhigh")]
    XHigh,
    /// The highest effort of the model.
    Max,
}

/// An event of a streamed answer, which a dialect decodes from its frames.
#[derive(Debug, Clone, PartialEq)]
pub enum ModelEvent {
    Text(String),
    Reasoning(String),
    /// Ends the open reasoning with the provider's own block (signature, encrypted content or complete item). It is sent back to
    /// the same model unchanged. Without open reasoning, it is a block without text.
    ReasoningBlock(Value),
    /// A tool call begins. The dialect assigns `index`, which is unique within the answer.
    ToolCallStarted {
        index: usize,
        /// The provider's id, possibly empty.
        provider_call_id: String,
        name: String,
    },
    ToolCallArguments {
        index: usize,
        delta: String,
    },
    /// Provider data that must be returned with a call, such as a signature.
    ToolCallBlock {
        index: usize,
        raw: Value,
    },
    /// A picture, with its bytes until the worker has stored it.
    Picture(BinaryContent),
    /// A source of the answer.
    Source(Source),
    /// The model began its answer again: earlier events are void.
    Restarted,
    /// Token usage. The last event counts.
    Usage(Usage),
    /// The prices of the tokens that are counted from here on. It is the first event of an answer, and no provider sends it.
    Prices(Prices),
    /// The request was changed before this answer, because the provider refused it. Precedes all events of the answer.
    Adapted(Adaptation),
    /// The answer is complete. The last event: a stream without it was cut off, which is an error.
    Finished(ModelFinish),
}

/// A change of the requests to a model after its provider refused one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adaptation {
    pub change: String,
    /// The provider's text, redacted and bounded.
    pub reason: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelFinish {
    Stop,
    ToolCalls,
    /// The model reached its limit of output tokens.
    Length,
    /// The model, or its provider's filter, refused.
    Refused,
}

impl ModelFinish {
    pub fn as_finish_reason(self) -> FinishReason {
        match self {
            Self::Stop | Self::ToolCalls => FinishReason::Stop,
            Self::Length => FinishReason::Length,
            Self::Refused => FinishReason::Refused,
        }
    }
}

/// The class of a failed model call. It decides on retries, together with the agent's `llm_retry`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelErrorKind {
    Auth,
    /// The account has no credit.
    Quota,
    RateLimit,
    Overloaded,
    Unavailable,
    /// A limit for the first byte, idle time or total time was reached.
    Timeout,
    /// The connection failed or broke before an answer.
    Network,
    /// The request is larger than the model's window.
    ContextOverflow,
    /// The provider refused the request; a retry is useless.
    InvalidRequest,
    /// The stream is malformed.
    BadStream,
    IncompleteStream,
    EmptyResponse,
    /// The provider's filter blocked the request.
    ContentFilter,
}

impl ModelErrorKind {
    pub fn code(self) -> &'static str {
        ProblemCode::from(self).as_str()
    }

    /// Returns whether a fallback model may answer. A filter's refusal counts as an answer, so no other model is called.
    pub fn another_model_may_help(self) -> bool {
        self != Self::ContentFilter
    }

    /// Returns whether the provider did not judge the request: it was unreachable or overloaded, its answer was unusable, or it
    /// refused the key or the account.
    pub fn is_outage(self) -> bool {
        self.is_retryable() || self == Self::Auth || self == Self::Quota
    }

    pub fn is_retryable(self) -> bool {
        !matches!(self, Self::Auth | Self::Quota | Self::ContextOverflow | Self::InvalidRequest | Self::ContentFilter)
    }
}

impl From<ModelErrorKind> for ProblemCode {
    fn from(kind: ModelErrorKind) -> Self {
        match kind {
            ModelErrorKind::Auth => Self::ProviderAuth,
            ModelErrorKind::Quota => Self::ProviderQuota,
            ModelErrorKind::RateLimit => Self::ProviderRateLimit,
            ModelErrorKind::Overloaded => Self::ProviderOverloaded,
            ModelErrorKind::Unavailable => Self::ProviderUnavailable,
            ModelErrorKind::Timeout => Self::ProviderTimeout,
            ModelErrorKind::Network => Self::ProviderNetwork,
            ModelErrorKind::ContextOverflow => Self::ContextOverflow,
            ModelErrorKind::InvalidRequest => Self::ProviderInvalidRequest,
            ModelErrorKind::BadStream => Self::ProviderBadStream,
            ModelErrorKind::IncompleteStream => Self::ProviderIncompleteStream,
            ModelErrorKind::EmptyResponse => Self::ProviderEmptyResponse,
            ModelErrorKind::ContentFilter => Self::ContentFilter,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{}: {message}", kind.code())]
pub struct ModelError {
    pub kind: ModelErrorKind,
    /// The provider's text, redacted and bounded.
    pub message: String,
    pub status: Option<u16>,
    pub retry_after_ms: Option<u64>,
    /// The tool whose definition the provider refused, if that was the reason.
    pub refused_tool: Option<String>,
    /// Whether the provider refused signed content or item ids of an earlier answer. Usually the name now refers to another
    /// account, key or server, which accepts the request without them.
    #[serde(default)]
    pub refused_signed: bool,
    /// Whether the circuit breaker was open, so that no request was sent. This does not count as a failed attempt.
    #[serde(default)]
    pub request_not_sent: bool,
    /// Whether an answer that made progress reached the total time limit. It is not retried, because the retry would reach the
    /// limit again.
    #[serde(default)]
    pub over_total_limit: bool,
    #[serde(skip)]
    pub details: Option<Box<ErrorDetails>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ErrorDetails {
    /// Codes and types, in lower case, the most specific first.
    pub codes: Vec<String>,
    /// The paths of the request's fields that caused the error.
    pub fields: Vec<String>,
}

impl ModelError {
    /// Creates a failure, and redacts the message.
    pub fn new(kind: ModelErrorKind, message: &str) -> Self {
        Self {
            kind,
            message: crate::support::redact::error_text(message),
            status: None,
            retry_after_ms: None,
            refused_tool: None,
            refused_signed: false,
            request_not_sent: false,
            over_total_limit: false,
            details: None,
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct ModelTurn {
    pub finish: ModelFinish,
    /// The raw texts of the calls' arguments, in the order of the calls. Each should be a JSON object.
    pub arguments: Vec<String>,
    /// Estimated if the provider gave no figures.
    pub usage: Usage,
    /// Present if the answer is not the requested JSON object. Then the answer is discarded.
    pub malformed: Option<MalformedAnswer>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MalformedAnswer {
    pub reason: String,
    /// The beginning of the model's text.
    pub quoted: String,
}

/// The longest address, in bytes. A longer one could not be opened.
const MAX_URL: usize = 2_048;

/// The longest title and the longest passage, in characters.
const MAX_TITLE: usize = 300;
const MAX_TEXT: usize = 1_000;

/// A source of an answer. It has an address or a title.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    pub url: Option<String>,
    pub title: Option<String>,
    pub text: Option<String>,
}

impl Source {
    /// Returns a source with texts cut to their limits. Drops an address that is too long or no web page. `None` if neither address
    /// nor title is left.
    pub fn new(url: &str, title: &str, text: &str) -> Option<Self> {
        let is_page = url.starts_with("https://") || url.starts_with("http://");
        let url = Some(url).filter(|url| is_page && url.len() <= MAX_URL && !url.contains(char::is_whitespace));
        let shortened = |text: &str, most: usize| {
            let text = prefix_chars(text.trim(), most);
            (!text.is_empty()).then(|| storable(text).into_owned())
        };
        let title = shortened(title, MAX_TITLE);
        let url = url.map(|url| storable(url).into_owned());
        (url.is_some() || title.is_some()).then(|| Self { url, title, text: shortened(text, MAX_TEXT) })
    }

    /// Returns whether both name the same page, or without an address the same passage.
    pub fn is_same(&self, other: &Self) -> bool {
        match (&self.url, &other.url) {
            (Some(one), Some(other)) => one == other,
            (None, None) => self == other,
            (Some(_), None) | (None, Some(_)) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Source;

    #[test]
    fn source_without_page_and_title_is_none() {
        let source = |url: &str, title: &str| Source::new(url, title, "").map(|source| (source.url.is_some(), source.title));
        assert_eq!(source("https://example.com/a", ""), Some((true, None)));
        assert_eq!(source("javascript:alert(1)", "A title"), Some((false, Some("A title".to_owned()))));
        for url in ["", "javascript:alert(1)", "file:///etc/passwd", &format!("https://{}", "a".repeat(3_000)), "https://a b"] {
            assert_eq!(source(url, " "), None, "{url}");
        }
    }
}
