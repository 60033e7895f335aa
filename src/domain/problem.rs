//! Errors that clients see: one shape everywhere (RFC 9457), with a stable code.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `application/problem+json`, also inside `run.failed` events and WebSocket errors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProblemBody {
    /// Where the code is explained, relative to the project's documentation.
    #[serde(rename = "type")]
    pub type_uri: String,
    /// The code in words.
    pub title: String,
    /// The HTTP status that belongs to the code.
    pub status: u16,
    /// This occurrence: the thing, the reason and the way out. Empty of causes for a 5xx.
    pub detail: String,
    /// A stable word for programs.
    pub code: String,
    /// The request in the log; empty in errors of runs.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub request_id: String,
    /// In the answer to a request: whether the same request may succeed a little later. In the error of a run: whether
    /// `POST /api/v1/runs/{id}/resume` may succeed, now or a little later, without any other change.
    pub retryable: bool,
    /// What is wrong where in the request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
}

/// One thing that is wrong in a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FieldError {
    /// Where, as a JSON pointer.
    pub pointer: String,
    /// What.
    pub detail: String,
}

/// The places in which a code is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FoundIn {
    /// Answers to requests.
    Requests,
    /// Errors of runs.
    Runs,
    /// Both.
    Both,
}

impl FoundIn {
    /// Returns whether a run can fail with the code.
    #[must_use]
    pub fn runs(self) -> bool {
        match self {
            Self::Requests => false,
            Self::Runs | Self::Both => true,
        }
    }
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $status:literal, $found:ident, $retryable:literal, $title:literal;)*) => {
        /// Every error code there is. `docs/errors/` has a page for each.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum ProblemCode {
            $($(#[$doc])* $name,)*
        }

        impl ProblemCode {
            /// Every code, for documentation and tests.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The stable word.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $code,)* }
            }

            /// The HTTP status that belongs to it.
            #[must_use]
            pub fn status(self) -> u16 {
                match self { $(Self::$name => $status,)* }
            }

            /// Returns where the code is found.
            #[must_use]
            pub fn found_in(self) -> FoundIn {
                match self { $(Self::$name => FoundIn::$found,)* }
            }

            /// Returns whether the same request, or resuming the run, may succeed a little later with nothing else changed.
            #[must_use]
            pub fn retryable(self) -> bool {
                match self { $(Self::$name => $retryable,)* }
            }

            /// The code in words.
            #[must_use]
            pub fn title(self) -> &'static str {
                match self { $(Self::$name => $title,)* }
            }

            /// The code's page of `docs/errors/`, in Markdown.
            #[must_use]
            pub fn page(self) -> &'static str {
                match self { $(Self::$name => include_str!(concat!("../../docs/errors/", $code, ".md")),)* }
            }
        }
    };
}

// The one table of all codes: HTTP status, where the code is found, and whether trying again can help. `retryable` means a request sent
// again, or a failed run resumed. A resumed run has rounds, time and answers of its own, so running out of those can be helped. A refused
// key, an empty account or a request that the provider does not take stay as they are until a person changes something.
codes! {
    /// The body is not JSON, or not of the documented shape.
    InvalidRequest = "invalid_request", 400, Requests, false, "The request is not valid";
    /// A cursor that is not one of ours.
    InvalidCursor = "invalid_cursor", 400, Requests, false, "The cursor is not valid";
    /// No key, or one that is unknown or revoked.
    Unauthorized = "unauthorized", 401, Requests, false, "Authentication is required";
    /// The key's role does not allow this.
    Forbidden = "forbidden", 403, Requests, false, "The key does not allow this";
    /// Missing, or somebody else's.
    NotFound = "not_found", 404, Requests, false, "There is no such thing";
    /// The path exists, the method does not.
    MethodNotAllowed = "method_not_allowed", 405, Requests, false, "The method is not supported here";
    /// Nothing that can be produced is acceptable.
    NotAcceptable = "not_acceptable", 406, Requests, false, "The wanted media type cannot be produced";
    /// The client took too long to send its request.
    RequestTimeout = "request_timeout", 408, Requests, true, "The request took too long to arrive";
    /// The conversation has an active run and the request said `reject`.
    RunActive = "run_active", 409, Requests, true, "The conversation has an active run";
    /// The thing is not in a state in which this can be done.
    Conflict = "conflict", 409, Requests, false, "The state does not allow this";
    /// A request with the same idempotency key is under way.
    IdempotencyInProgress = "idempotency_in_progress", 409, Requests, true, "The first request with this key is still under way";
    /// The cursor is in the future or older than what is kept.
    CursorGone = "cursor_gone", 410, Requests, false, "Events at this cursor are not available";
    /// The thing has another version than the request says.
    PreconditionFailed = "precondition_failed", 412, Requests, false, "It was changed meanwhile";
    /// The body is over the limit.
    PayloadTooLarge = "payload_too_large", 413, Requests, false, "The body is too large";
    /// Not `application/json`.
    UnsupportedMediaType = "unsupported_media_type", 415, Requests, false, "The body must be application/json";
    /// The Host header names a host that this server does not answer for.
    MisdirectedRequest = "misdirected_request", 421, Requests, false, "This server does not answer for that host";
    /// The same idempotency key was used with another body.
    IdempotencyMismatch = "idempotency_mismatch", 422, Requests, false, "The idempotency key was used for another request";
    /// A file that is not accepted, or that a message cannot have.
    UnusableFile = "unusable_file", 422, Requests, false, "The file cannot be used";
    /// Too much at a time.
    TooManyRequests = "too_many_requests", 429, Requests, true, "Too many requests";
    /// Our fault; the log says more.
    Internal = "internal_error", 500, Both, true, "Something went wrong in the server";
    /// The database is not reachable, or the server is shutting down.
    Unavailable = "unavailable", 503, Requests, true, "The server cannot do this at the moment";
    /// See `ModelErrorKind`.
    ProviderAuth = "provider_auth", 502, Both, false, "The model provider refused the key";
    /// See `ModelErrorKind`.
    ProviderQuota = "provider_quota", 502, Both, false, "The account at the model provider is used up";
    /// See `ModelErrorKind`.
    ProviderRateLimit = "provider_rate_limit", 502, Both, true, "The model provider limits the rate";
    /// See `ModelErrorKind`.
    ProviderOverloaded = "provider_overloaded", 502, Both, true, "The model provider is overloaded";
    /// See `ModelErrorKind`.
    ProviderUnavailable = "provider_unavailable", 502, Both, true, "The model provider is not available";
    /// See `ModelErrorKind`.
    ProviderTimeout = "provider_timeout", 504, Both, true, "The model provider took too long";
    /// See `ModelErrorKind`.
    ProviderNetwork = "provider_network", 502, Both, true, "The model provider could not be reached";
    /// See `ModelErrorKind`.
    ContextOverflow = "context_overflow", 502, Both, false, "The conversation is larger than the model's window";
    /// See `ModelErrorKind`.
    ProviderInvalidRequest = "provider_invalid_request", 502, Both, false, "The model provider refused the request";
    /// See `ModelErrorKind`.
    ProviderBadStream = "provider_bad_stream", 502, Both, true, "The model's answer could not be understood";
    /// See `ModelErrorKind`.
    ProviderIncompleteStream = "provider_incomplete_stream", 502, Both, true, "The model's answer was cut off";
    /// See `ModelErrorKind`.
    ProviderEmptyResponse = "provider_empty_response", 502, Both, true, "The model answered nothing";
    /// The model's answers were not of the form that the agent wants (`output: structured`), after all corrections.
    InvalidOutput = "invalid_output", 502, Runs, true, "The model's answers are not of the wanted form";
    /// See `ModelErrorKind`.
    ContentFilter = "content_filter", 502, Both, true, "The model provider's filter blocked the request";
    /// The rounds were used up and the agent says that this is a failure.
    MaxRounds = "max_rounds", 500, Runs, true, "The run used up its rounds";
    /// What may be spent is spent.
    BudgetSpent = "budget_spent", 402, Runs, false, "The budget is spent";
    /// Money is counted and nobody knows what the model costs.
    UnpricedModel = "unpriced_model", 500, Runs, false, "The price of the model is not known";
    /// The run's wall-clock limit was reached.
    RunTimeout = "run_timeout", 500, Runs, true, "The run took too long";
    /// The run died with its worker too often.
    Poison = "poison", 500, Runs, true, "The run was given up after repeated crashes";
    /// The worker died and the agent says that this ends the run.
    Interrupted = "interrupted", 500, Runs, true, "The run was interrupted";
    /// A tool failed and the agent says that this ends the run.
    ToolFailed = "tool_failed", 500, Runs, true, "A tool failed";
    /// It is not known whether a tool call took effect and the agent says that this ends the run.
    ToolOutcomeUnknown = "tool_outcome_unknown", 500, Runs, true, "It is not known whether a tool call took effect";
    /// The run's model is not one that is configured.
    UnknownModel = "unknown_model", 400, Requests, false, "The model is not known";
}

impl ProblemCode {
    /// A problem with this code.
    #[must_use]
    pub fn body(self, detail: impl Into<String>) -> ProblemBody {
        ProblemBody {
            type_uri: format!("/docs/errors/{}", self.as_str()),
            title: self.title().to_owned(),
            status: self.status(),
            detail: detail.into(),
            code: self.as_str().to_owned(),
            request_id: String::new(),
            retryable: self.retryable(),
            errors: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique() {
        let mut words: Vec<_> = ProblemCode::ALL.iter().map(|code| code.as_str()).collect();
        words.sort_unstable();
        let before = words.len();
        words.dedup();
        assert_eq!(words.len(), before);
    }
}
