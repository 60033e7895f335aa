//! The error envelope of OpenAI.

use axum::http::header::{CONTENT_TYPE, HeaderName};
use axum::http::{HeaderMap, HeaderValue};
use serde_json::{Value, json};

use crate::domain::problem::{FieldError, ProblemBody, ProblemCode};
use crate::http::wire::problem::Problem;

/// Tells the SDKs whether to repeat a request. Without it, they repeat every 409, 429 and 5xx, and start another run.
const X_SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

pub(super) fn envelope(problem: &ProblemBody) -> (HeaderMap, String) {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let retry = problem.retryable && problem.status != 409;
    headers.insert(X_SHOULD_RETRY, HeaderValue::from_static(if retry { "true" } else { "false" }));
    (headers, json!({ "error": error(problem) }).to_string())
}

/// Returns the response to a run without an answer. It is not marked as retryable, because a repeated request would start another run.
pub(super) fn failure(problem: ProblemBody) -> Problem {
    Problem::from(ProblemBody { retryable: false, ..problem })
}

/// Returns the `error` object of a problem.
pub(super) fn error(problem: &ProblemBody) -> Value {
    let is = |code: ProblemCode| problem.code == code.as_str();
    let kind = match problem.status {
        401 => "authentication_error",
        403 => "permission_error",
        429 => "rate_limit_error",
        400..=499 => "invalid_request_error",
        _ => "server_error",
    };
    let param = problem.errors.first().map(FieldError::path).filter(|param| !param.is_empty());
    let code = match () {
        // After this code, clients send the whole history again.
        () if is(ProblemCode::NotFound) && param.as_deref() == Some("previous_response_id") => "previous_response_not_found",
        () if is(ProblemCode::UnknownModel) => "model_not_found",
        () if is(ProblemCode::Unauthorized) => "invalid_api_key",
        () if is(ProblemCode::ContextOverflow) => "context_length_exceeded",
        () => problem.code.as_str(),
    };
    json!({ "message": problem.detail, "type": kind, "param": param, "code": code })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problem_becomes_envelope_of_openai() {
        let field = FieldError { pointer: "/messages/0/content".to_owned(), detail: "is empty".to_owned() };
        let problem = ProblemBody { errors: vec![field], ..ProblemCode::InvalidRequest.body("it is empty") };
        let (headers, text) = envelope(&problem);
        let expected = json!({"error": {
            "message": "it is empty", "type": "invalid_request_error", "param": "messages[0].content", "code": "invalid_request"
        }});
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected);
        assert_eq!(headers["content-type"], "application/json");
        assert_eq!(headers["x-should-retry"], "false");
        let (headers, _) = envelope(&ProblemCode::RunActive.body("active"));
        assert_eq!(headers["x-should-retry"], "false", "409 is final, or the SDK repeats it");
        let (headers, _) = envelope(&ProblemCode::TooManyRequests.body("later"));
        assert_eq!(headers["x-should-retry"], "true");
    }
}
