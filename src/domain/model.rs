//! What is said between the loop and a model, whatever wire the model speaks.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::message::Message;
use super::run::FinishReason;
use super::tool::ToolDefinition;

/// Tokens that one or more model calls used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    /// Tokens of the request.
    pub input_tokens: u64,
    /// Tokens of the answer, reasoning included.
    pub output_tokens: u64,
    /// Part of the input that the provider had cached.
    #[serde(default)]
    pub cached_input_tokens: u64,
    /// Part of the output that was reasoning.
    #[serde(default)]
    pub reasoning_tokens: u64,
    /// Model calls counted here.
    #[serde(default)]
    pub model_calls: u64,
    /// True if a provider gave no figures and they were estimated.
    #[serde(default)]
    pub estimated: bool,
}

impl Usage {
    /// Adds another call's figures.
    pub fn add(&mut self, other: Self) {
        self.input_tokens = self.input_tokens.saturating_add(other.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(other.output_tokens);
        self.cached_input_tokens = self.cached_input_tokens.saturating_add(other.cached_input_tokens);
        self.reasoning_tokens = self.reasoning_tokens.saturating_add(other.reasoning_tokens);
        self.model_calls = self.model_calls.saturating_add(other.model_calls);
        self.estimated |= other.estimated;
    }
}

/// One request to a model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelRequest {
    /// `provider/name`.
    pub model: String,
    /// The joined system prompt; empty for none.
    pub system: String,
    /// The history, which the engine has made sendable.
    pub messages: Vec<Message>,
    /// The tools on offer; empty for a call without tools.
    pub tools: Vec<ToolDefinition>,
    /// Options passed through.
    pub options: ModelOptions,
}

/// Options of a model request that callers may set.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelOptions {
    /// Sampling temperature, 0 to 2.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(minimum = 0, maximum = 2)]
    pub temperature: Option<f64>,
    /// Nucleus sampling, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(minimum = 0, maximum = 1)]
    pub top_p: Option<f64>,
    /// The most tokens that one answer may have.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(minimum = 1)]
    pub max_output_tokens: Option<u32>,
    /// Seed for providers that take one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub seed: Option<i64>,
}

/// One thing that a streaming model says. A dialect turns its wire into these.
#[derive(Debug, Clone, PartialEq)]
pub enum ModelEvent {
    /// More text of the answer.
    Text(String),
    /// More of what the model thinks aloud.
    Reasoning(String),
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
    /// The figures, the last one counts.
    Usage(Usage),
    /// The answer is whole. Nothing follows. A stream that ends without it was cut and is an error.
    Finished(ModelFinish),
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
        match self {
            Self::Auth => "provider_auth",
            Self::Quota => "provider_quota",
            Self::RateLimit => "provider_rate_limit",
            Self::Overloaded => "provider_overloaded",
            Self::Unavailable => "provider_unavailable",
            Self::Timeout => "provider_timeout",
            Self::Network => "provider_network",
            Self::ContextOverflow => "context_overflow",
            Self::InvalidRequest => "provider_invalid_request",
            Self::BadStream => "provider_bad_stream",
            Self::IncompleteStream => "provider_incomplete_stream",
            Self::EmptyResponse => "provider_empty_response",
            Self::ContentFilter => "content_filter",
        }
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

/// A failed model call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{}: {message}", kind.code())]
pub struct ModelError {
    /// The class.
    pub kind: ModelErrorKind,
    /// The provider's own words, redacted and bounded.
    pub message: String,
    /// The HTTP status, if there was an answer.
    #[serde(default)]
    pub status: Option<u16>,
    /// How long the provider asked us to wait, in milliseconds.
    #[serde(default)]
    pub retry_after_ms: Option<u64>,
}

impl ModelError {
    /// A failure of a class, with redacted words.
    #[must_use]
    pub fn new(kind: ModelErrorKind, message: &str) -> Self {
        Self { kind, message: crate::support::redact::error_text(message), status: None, retry_after_ms: None }
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
