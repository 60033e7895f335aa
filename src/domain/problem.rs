//! Errors that clients see: one shape everywhere (RFC 9457), with a stable code.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An `application/problem+json` body. `run.failed` events and WebSocket errors contain it too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProblemBody {
    /// The page that explains the code, relative to the project's documentation.
    #[serde(rename = "type")]
    pub type_uri: String,
    /// A short title of the code.
    pub title: String,
    /// The HTTP status of the code.
    pub status: u16,
    /// The explanation of this occurrence: the resource, the reason and the remedy. It names no cause for a 5xx status.
    pub detail: String,
    /// A stable identifier for programs.
    #[schema(value_type = ProblemCode)]
    pub code: String,
    /// The id of the request in the log. Empty in errors of runs.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub request_id: String,
    /// Whether a retry may succeed without any other change. The retry is the same request or, for the error of a run,
    /// `POST /api/v1/runs/{id}/resume`.
    pub retryable: bool,
    /// The invalid fields of the request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
}

/// One invalid field of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FieldError {
    /// The location of the field, as a JSON pointer.
    pub pointer: String,
    /// The explanation of the error.
    pub detail: String,
}

impl FieldError {
    /// Returns the pointer as people write it: `messages[0].content`.
    pub fn path(&self) -> String {
        let mut path = String::new();
        for part in self.pointer.split('/').skip(1) {
            match part.parse::<usize>() {
                Ok(index) => path.push_str(&format!("[{index}]")),
                Err(_) if path.is_empty() => path.push_str(part),
                Err(_) => path.extend([".", part]),
            }
        }
        path
    }
}

/// The places in which a code occurs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProblemScope {
    Requests,
    Runs,
    Both,
}

impl ProblemScope {
    pub fn runs(self) -> bool {
        self != Self::Requests
    }
}

macro_rules! codes {
    ($($name:ident = $code:literal, $status:literal, $found:ident, $retryable:literal, $title:literal;)*) => {
        /// The error codes. `docs/errors/` has a page for each.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ToSchema)]
        pub enum ProblemCode {
            $(#[schema(rename = $code)] $name,)*
        }

        impl ProblemCode {
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $code,)* }
            }

            pub fn status(self) -> u16 {
                match self { $(Self::$name => $status,)* }
            }

            pub fn found_in(self) -> ProblemScope {
                match self { $(Self::$name => ProblemScope::$found,)* }
            }

            /// Returns whether the same request, or a resumed run, may succeed later without any other change.
            pub fn retryable(self) -> bool {
                match self { $(Self::$name => $retryable,)* }
            }

            pub fn title(self) -> &'static str {
                match self { $(Self::$name => $title,)* }
            }

            pub fn page(self) -> &'static str {
                match self { $(Self::$name => include_str!(concat!("../../docs/errors/", $code, ".md")),)* }
            }
        }
    };
}

// The table of all codes: HTTP status, where the code occurs, and whether a retry may help. A retry is the same request, or a
// resumed run. A resumed run has its own limits of rounds, time and answers, so reaching such a limit is retryable. A refused key,
// an empty account and an invalid request stay until a person changes something.
codes! {
    InvalidRequest = "invalid_request", 400, Requests, false, "The request is not valid";
    InvalidCursor = "invalid_cursor", 400, Requests, false, "The cursor is not valid";
    Unauthorized = "unauthorized", 401, Requests, false, "Authentication is required";
    Forbidden = "forbidden", 403, Requests, false, "The key does not allow this";
    NotFound = "not_found", 404, Requests, false, "The resource does not exist";
    MethodNotAllowed = "method_not_allowed", 405, Requests, false, "The method is not supported here";
    NotAcceptable = "not_acceptable", 406, Requests, false, "The requested media type is not available";
    RequestTimeout = "request_timeout", 408, Requests, true, "The request took too long to arrive";
    RunActive = "run_active", 409, Requests, true, "The conversation has an active run";
    Conflict = "conflict", 409, Requests, false, "The state does not allow this";
    AlreadyAnswered = "already_answered", 409, Requests, false, "The call has a result already";
    IdempotencyInProgress = "idempotency_in_progress", 409, Requests, true, "The first request with this key is still being processed";
    CursorGone = "cursor_gone", 410, Requests, false, "Events at this cursor are not available";
    PreconditionFailed = "precondition_failed", 412, Requests, false, "It was changed meanwhile";
    PayloadTooLarge = "payload_too_large", 413, Requests, false, "The body is too large";
    UnsupportedMediaType = "unsupported_media_type", 415, Requests, false, "The body must be application/json";
    MisdirectedRequest = "misdirected_request", 421, Requests, false, "This server does not answer for that host";
    IdempotencyMismatch = "idempotency_mismatch", 422, Requests, false, "The idempotency key was used for another request";
    UnusableFile = "unusable_file", 422, Requests, false, "The file cannot be used";
    TooManyRequests = "too_many_requests", 429, Requests, true, "Too many requests";
    Internal = "internal_error", 500, Both, true, "Something went wrong in the server";
    Unavailable = "unavailable", 503, Requests, true, "The server cannot do this at the moment";
    ProviderAuth = "provider_auth", 502, Both, false, "The model provider refused the key";
    ProviderQuota = "provider_quota", 502, Both, false, "The account at the model provider is used up";
    ProviderRateLimit = "provider_rate_limit", 502, Both, true, "The model provider limits the rate";
    ProviderOverloaded = "provider_overloaded", 502, Both, true, "The model provider is overloaded";
    ProviderUnavailable = "provider_unavailable", 502, Both, true, "The model provider is not available";
    ProviderTimeout = "provider_timeout", 504, Both, true, "The model provider took too long";
    ProviderNetwork = "provider_network", 502, Both, true, "The model provider could not be reached";
    ContextOverflow = "context_overflow", 502, Both, false, "The conversation is larger than the model's window";
    ProviderInvalidRequest = "provider_invalid_request", 502, Both, false, "The model provider refused the request";
    ProviderBadStream = "provider_bad_stream", 502, Both, true, "The model's answer could not be understood";
    ProviderIncompleteStream = "provider_incomplete_stream", 502, Both, true, "The model's answer was cut off";
    ProviderEmptyResponse = "provider_empty_response", 502, Both, true, "The model answered nothing";
    InvalidOutput = "invalid_output", 502, Runs, true, "The model's answers do not have the requested format";
    ContentFilter = "content_filter", 502, Both, true, "The model provider's filter blocked the request";
    MaxRounds = "max_rounds", 500, Runs, true, "The run used up its rounds";
    BudgetSpent = "budget_spent", 402, Runs, false, "The budget is spent";
    UnpricedModel = "unpriced_model", 500, Runs, false, "The price of the model is not known";
    RunTimeout = "run_timeout", 500, Runs, true, "The run took too long";
    Poison = "poison", 500, Runs, true, "The run was given up after repeated crashes";
    Interrupted = "interrupted", 500, Runs, true, "The run was interrupted";
    ToolFailed = "tool_failed", 500, Runs, true, "A tool failed";
    ToolOutcomeUnknown = "tool_outcome_unknown", 500, Runs, true, "It is not known whether a tool call took effect";
    UnknownModel = "unknown_model", 400, Requests, false, "The model is not known";
}

impl ProblemCode {
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

    /// Returns a problem about the field at this JSON pointer.
    pub fn body_about(self, pointer: &str, detail: impl Into<String>) -> ProblemBody {
        let body = self.body(detail);
        let errors = vec![FieldError { pointer: pointer.to_owned(), detail: body.detail.clone() }];
        ProblemBody { errors, ..body }
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
