//! What is said between the loop and a model, whatever wire the model speaks.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

pub use super::cost::{Cost, Price, Prices, Usage};
use super::ids::UserId;
use super::message::Message;
use super::problem::ProblemCode;
use super::run::FinishReason;
use super::tool::ToolDefinition;
use super::tool_names::check_tool_name;

/// One request to a model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelRequest {
    /// Whose run asks; `None` for nobody's. Decides whose providers the name stands for, and goes to no provider.
    pub owner: Option<UserId>,
    /// `provider/name`.
    pub model: String,
    /// The joined system prompt; empty for none.
    pub system: String,
    /// The history, which the engine has made sendable.
    pub messages: Vec<Message>,
    /// The tools on offer; empty for a call without tools.
    pub tools: Vec<Arc<ToolDefinition>>,
    /// Options passed through.
    pub options: ModelOptions,
    /// The tokens that the request and its answer are to have room in, where somebody has said it: servers that load a model with a
    /// smaller window of their own are told.
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
    /// The most tokens that one answer may have.
    #[schema(minimum = 1)]
    pub max_output_tokens: Option<u32>,
    /// Seed for providers that take one.
    pub seed: Option<i64>,
    /// Texts at which the model stops; at most 16 of up to 256 bytes each. Providers take fewer and say so.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    #[schema(max_items = 16)]
    pub stop: Vec<String>,
    /// Which tools the model may or must call. `required` and a named tool hold for a run's first answer only: held for all,
    /// the run could never end.
    pub tool_choice: Option<ToolChoice>,
    /// The shape that the answer's text must have. Asked of the provider, not tested by the server.
    pub output_schema: Option<OutputSchema>,
    /// How hard a reasoning model should think. Sent to models that take it, in the words of their provider.
    pub reasoning_effort: Option<ReasoningEffort>,
}

/// Why an option cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidOption {
    /// The option, as a path with `/`.
    pub field: &'static str,
    /// What is wrong, and what would be right.
    pub reason: &'static str,
}

impl ModelOptions {
    /// The most texts at which a model stops.
    pub const MAX_STOPS: usize = 16;
    /// The longest of them, in bytes.
    pub const MAX_STOP_BYTES: usize = 256;
    /// The largest schema of an answer, in bytes of JSON.
    pub const MAX_SCHEMA_BYTES: usize = 64 * 1024;

    /// These options where they are set, and those of `base` elsewhere.
    #[must_use]
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

    /// Tests what types do not say.
    ///
    /// # Errors
    /// The first option that no provider can use.
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

/// Which tools a model may or must call: `"auto"`, `"none"`, `"required"` or `{"tool": "name"}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolChoice {
    /// The model chooses.
    Auto,
    /// It must answer in words, although tools are on offer.
    None,
    /// It must call a tool.
    Required,
    /// It must call this one.
    Tool(String),
}

/// A JSON Schema for the text of an answer.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OutputSchema {
    /// A name for the shape, which some providers want: letters, digits, `_` and `-`.
    #[serde(default = "OutputSchema::default_name")]
    pub name: String,
    /// The schema, an object.
    #[schema(value_type = Object)]
    pub schema: Value,
    /// Whether the provider should hold the model to it exactly, where it can.
    #[serde(default)]
    pub strict: bool,
}

/// The order of properties counts: a model writes its answer in that order, and runs share profiles that are equal.
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

/// How hard a model should think.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReasoningEffort {
    /// Not at all, where that can be said.
    None,
    /// As little as possible.
    Minimal,
    /// A little.
    Low,
    /// Some.
    Medium,
    /// As much as it takes.
    High,
    /// More than that, where the model knows it; else like `high`.
    #[serde(rename = "xhigh")]
    XHigh,
    /// As much as the model can.
    Max,
}

/// One thing that a streaming model says. A dialect turns its wire into these.
#[derive(Debug, Clone, PartialEq)]
pub enum ModelEvent {
    /// More text of the answer.
    Text(String),
    /// More of what the model thinks aloud.
    Reasoning(String),
    /// The reasoning that is open is over, and this is the provider's own block of it (its signature, encrypted content or
    /// whole item), which goes back to the same model as it came. Without open reasoning, one without words.
    ReasoningBlock(Value),
    /// A tool call begins. `index` is unique within the answer and chosen by the dialect.
    ToolCallStarted {
        /// Tells parallel calls apart.
        index: usize,
        /// The provider's id, possibly empty.
        provider_call_id: String,
        /// The tool's name, complete.
        name: String,
    },
    /// More text of the arguments of a call.
    ToolCallArguments {
        /// The call.
        index: usize,
        /// More JSON text.
        delta: String,
    },
    /// What the provider wants back with a call beside its name and arguments, such as a signature.
    ToolCallBlock {
        /// The call.
        index: usize,
        /// The provider's own data.
        raw: Value,
    },
    /// The model began its answer anew: everything that it has said so far is void.
    Restarted,
    /// The figures, the last one counts.
    Usage(Usage),
    /// What tokens cost that are counted from here on, said before anything else by whoever knows it. No provider does.
    Prices(Prices),
    /// The request was changed before this answer, because the provider had refused it. Comes before anything that the model says.
    Adapted(Adaptation),
    /// The answer is whole. Nothing follows. A stream that ends without it was cut and is an error.
    Finished(ModelFinish),
}

/// A change of the requests to a model, made because its provider refused one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adaptation {
    /// The change as a stable word, such as `images_left_out`.
    pub change: String,
    /// The provider's words, redacted and bounded.
    pub reason: String,
}

/// Why a model stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelFinish {
    /// It had nothing more to say.
    Stop,
    /// It wants its tool calls answered.
    ToolCalls,
    /// It ran into the limit of output tokens.
    Length,
    /// It, or its provider's filter, refused.
    Refused,
}

impl ModelFinish {
    /// The reason as a finished run shows it.
    #[must_use]
    pub fn as_finish_reason(self) -> FinishReason {
        match self {
            Self::Stop | Self::ToolCalls => FinishReason::Stop,
            Self::Length => FinishReason::Length,
            Self::Refused => FinishReason::Refused,
        }
    }
}

/// The kinds of failure of a model call. The class decides on retries, never the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelErrorKind {
    /// The key was refused, or there is none.
    Auth,
    /// The account has no money left.
    Quota,
    /// Too many requests.
    RateLimit,
    /// The provider has no capacity at the moment.
    Overloaded,
    /// The provider is broken at the moment.
    Unavailable,
    /// A limit on first byte, idle or total time was reached.
    Timeout,
    /// The connection could not be made or broke before an answer.
    Network,
    /// The request is larger than the model's window.
    ContextOverflow,
    /// The provider refused the request; repeating it is useless.
    InvalidRequest,
    /// The answer could not be understood.
    BadStream,
    /// The answer ended without its end.
    IncompleteStream,
    /// The answer held nothing at all.
    EmptyResponse,
    /// The provider's filter blocked the request.
    ContentFilter,
}

impl ModelErrorKind {
    /// The stable code of the problem that a client sees.
    #[must_use]
    pub fn code(self) -> &'static str {
        ProblemCode::from(self).as_str()
    }

    /// Whether another model may answer what this one did not. A filter's refusal is an answer, after which nobody shops around.
    #[must_use]
    pub fn another_model_may_help(self) -> bool {
        match self {
            Self::Auth
            | Self::Quota
            | Self::RateLimit
            | Self::Overloaded
            | Self::Unavailable
            | Self::Timeout
            | Self::Network
            | Self::ContextOverflow
            | Self::InvalidRequest
            | Self::BadStream
            | Self::IncompleteStream
            | Self::EmptyResponse => true,
            Self::ContentFilter => false,
        }
    }

    /// Whether the model could not be reached at all, or not be understood: nobody has judged what it was asked.
    #[must_use]
    pub fn is_outage(self) -> bool {
        self.retryable() || self == Self::Auth || self == Self::Quota
    }

    /// Whether the same request may succeed a little later.
    #[must_use]
    pub fn retryable(self) -> bool {
        match self {
            Self::RateLimit
            | Self::Overloaded
            | Self::Unavailable
            | Self::Timeout
            | Self::Network
            | Self::BadStream
            | Self::IncompleteStream
            | Self::EmptyResponse => true,
            Self::Auth | Self::Quota | Self::ContextOverflow | Self::InvalidRequest | Self::ContentFilter => false,
        }
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

/// A failed model call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{}: {message}", kind.code())]
pub struct ModelError {
    /// The class.
    pub kind: ModelErrorKind,
    /// The provider's own words, redacted and bounded.
    pub message: String,
    /// The HTTP status, if there was an answer.
    pub status: Option<u16>,
    /// How long the provider asked us to wait, in milliseconds.
    pub retry_after_ms: Option<u64>,
    /// The offered tool whose definition the provider refused, if that was the reason.
    pub refused_tool: Option<String>,
    /// Whether the provider refused what a model is said to have signed: its reasoning, or the id of an item. Another account,
    /// key or server behind the same name is the usual reason, and without those the request may be taken.
    #[serde(default)]
    pub refused_signed: bool,
    /// Whether nobody was asked: the provider is left alone for a while. That is no failed try.
    #[serde(default)]
    pub not_asked: bool,
    /// Whether an answer that made progress reached the total time limit of a call. The same request would reach it again, so it is
    /// not repeated.
    #[serde(default)]
    pub over_total_limit: bool,
    /// The codes and fields of the provider's error, where it gave some.
    #[serde(skip)]
    pub details: Option<Box<ErrorDetails>>,
}

/// The typed parts of a provider's error.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ErrorDetails {
    /// Codes and types, in lower case, the most exact first.
    pub codes: Vec<String>,
    /// The fields of the request that the error is about, as paths.
    pub fields: Vec<String>,
}

impl ModelError {
    /// A failure of a class, with redacted words.
    #[must_use]
    pub fn new(kind: ModelErrorKind, message: &str) -> Self {
        Self {
            kind,
            message: crate::support::redact::error_text(message),
            status: None,
            retry_after_ms: None,
            refused_tool: None,
            refused_signed: false,
            not_asked: false,
            over_total_limit: false,
            details: None,
        }
    }
}

/// A model's whole answer, assembled from its events.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelTurn {
    /// Why it stopped.
    pub finish: ModelFinish,
    /// Text, reasoning and tool calls in the order in which they began.
    pub parts: Vec<TurnPart>,
    /// Tokens used; `estimated` if the provider gave none.
    pub usage: Usage,
    /// What is wrong with it, if it should be an object and is none. Then nothing of it counts.
    pub malformed: Option<MalformedAnswer>,
}

/// An answer that is not the object that it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MalformedAnswer {
    /// What is wrong, in words.
    pub reason: String,
    /// The beginning of what the model wrote.
    pub said: String,
}

/// A part of a model's answer, before it is given our ids by the assembler.
#[derive(Debug, Clone, PartialEq)]
pub enum TurnPart {
    /// Text.
    Text(String),
    /// Reasoning.
    Reasoning(String, Option<Value>),
    /// A tool call with the raw text of its arguments.
    ToolCall {
        /// The provider's id, possibly empty.
        provider_call_id: String,
        /// The tool's name.
        name: String,
        /// The text that should be a JSON object.
        arguments: String,
    },
}
