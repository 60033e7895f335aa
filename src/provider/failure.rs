//! What a provider's error means.
//!
//! The class comes from the status and from the typed fields of the body. Words decide in one case only: most providers have
//! no code for a request that is larger than the model's window.

use reqwest::StatusCode;
use reqwest::header::{HeaderMap, RETRY_AFTER};
use serde_json::Value;

use crate::domain::model::{ModelError, ModelErrorKind};
use crate::support::clock::UnixMillis;

/// The error of an answer with an error status.
pub(super) fn from_response(status: StatusCode, headers: &HeaderMap, body: &[u8], now: UnixMillis) -> ModelError {
    let mut said = Said::read(body);
    if status.is_redirection() {
        said.words = "the provider answered with a redirect, which is not followed: configure the final URL".to_owned();
    }
    if said.words.is_empty() {
        let reason = status.canonical_reason().unwrap_or("without a known reason");
        said.words = format!("the provider answered with {} {reason}", status.as_u16());
    }
    let kind = classify(Some(status.as_u16()), &said);
    let retry_after_ms = if kind.retryable() { retry_after(headers, now) } else { None };
    ModelError { status: Some(status.as_u16()), retry_after_ms, ..ModelError::new(kind, &said.words) }
}

/// The error that a provider sent as part of an answer that had begun well.
pub(super) fn from_event(error: &Value) -> ModelError {
    let mut said = Said::default();
    said.take(error, 0);
    if said.words.is_empty() {
        said.words = "the provider broke off with an error".to_owned();
    }
    let status = said.status.filter(|status| (400..600).contains(status));
    ModelError { status, ..ModelError::new(classify(status, &said), &said.words) }
}

/// The fields of an error's body that mean something.
#[derive(Debug, Default)]
struct Said {
    words: String,
    codes: Vec<String>,
    status: Option<u16>,
}

impl Said {
    fn read(body: &[u8]) -> Self {
        let mut said = Self::default();
        match serde_json::from_slice::<Value>(body) {
            Ok(value) => said.take(&value, 0),
            // A page of HTML says nothing to anyone and must not reach a log or a history; a line of text may.
            Err(_) => {
                let text = String::from_utf8_lossy(body);
                if !text.trim_start().starts_with('<') {
                    said.words = text.into_owned();
                }
            }
        }
        said
    }

    /// The error object is at the top, under `error` or `detail`, in a list, or part of the first choice; nested ones carry the more exact code.
    fn take(&mut self, value: &Value, depth: u8) {
        if depth > 4 {
            return;
        }
        match value {
            Value::Object(fields) => {
                for name in ["error", "detail", "choices", "innererror", "inner_error"] {
                    if let Some(inner) = fields.get(name) {
                        self.take(inner, depth + 1);
                    }
                }
                if let Some(text) = fields.get("message").and_then(Value::as_str) {
                    self.add_words(text);
                }
                for name in ["code", "type", "status"] {
                    match fields.get(name) {
                        Some(Value::String(code)) => self.codes.push(code.to_ascii_lowercase()),
                        Some(Value::Number(number)) => {
                            self.status = self.status.or(number.as_u64().and_then(|number| u16::try_from(number).ok()));
                        }
                        Some(Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_)) | None => {}
                    }
                }
            }
            Value::Array(items) => items.iter().take(1).for_each(|item| self.take(item, depth + 1)),
            Value::String(text) => self.add_words(text),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn add_words(&mut self, text: &str) {
        if self.words.is_empty() {
            self.words = text.to_owned();
        }
    }
}

fn classify(status: Option<u16>, said: &Said) -> ModelErrorKind {
    let kinds = || said.codes.iter().filter_map(|code| kind_of_code(code));
    // A code that says more than the status: the same 400 may be a full window or a refused key.
    if let Some(kind) = kinds().find(|kind| is_specific(*kind)) {
        return kind;
    }
    if status.is_none_or(|status| matches!(status, 400 | 413 | 422 | 429 | 500)) && says_overflow(&said.words) {
        return ModelErrorKind::ContextOverflow;
    }
    match status {
        Some(status) => kind_of_status(status),
        None => kinds().next().unwrap_or(ModelErrorKind::Unavailable),
    }
}

fn is_specific(kind: ModelErrorKind) -> bool {
    match kind {
        ModelErrorKind::Auth
        | ModelErrorKind::Quota
        | ModelErrorKind::RateLimit
        | ModelErrorKind::Overloaded
        | ModelErrorKind::ContextOverflow
        | ModelErrorKind::ContentFilter => true,
        ModelErrorKind::Unavailable
        | ModelErrorKind::Timeout
        | ModelErrorKind::Network
        | ModelErrorKind::InvalidRequest
        | ModelErrorKind::BadStream
        | ModelErrorKind::IncompleteStream
        | ModelErrorKind::EmptyResponse => false,
    }
}

fn kind_of_status(status: u16) -> ModelErrorKind {
    match status {
        401 | 403 => ModelErrorKind::Auth,
        402 => ModelErrorKind::Quota,
        408 => ModelErrorKind::Timeout,
        413 => ModelErrorKind::ContextOverflow,
        429 => ModelErrorKind::RateLimit,
        503 | 529 => ModelErrorKind::Overloaded,
        409 | 425 | 500.. => ModelErrorKind::Unavailable,
        _ => ModelErrorKind::InvalidRequest,
    }
}

/// The codes and types that providers of this dialect document, in lower case.
fn kind_of_code(code: &str) -> Option<ModelErrorKind> {
    Some(match code {
        "context_length_exceeded"
        | "context_window_exceeded"
        | "exceed_context_size_error"
        | "too_many_prompt_tokens"
        | "model_max_prompt_tokens_exceeded"
        | "tokens_limit_reached"
        | "request_too_large" => ModelErrorKind::ContextOverflow,
        "insufficient_quota"
        | "insufficient_balance"
        | "insufficient_credits"
        | "billing_hard_limit_reached"
        | "billing_not_active"
        | "billing_error"
        | "exceeded_current_quota_error"
        | "spend_limit_exceeded"
        | "payment_required" => ModelErrorKind::Quota,
        "invalid_api_key"
        | "incorrect_api_key_provided"
        | "authentication_error"
        | "invalid_authentication_error"
        | "permission_error"
        | "permission_denied"
        | "unauthenticated"
        | "unauthorized"
        | "account_deactivated" => ModelErrorKind::Auth,
        "rate_limit_exceeded" | "rate_limit_error" | "rate_limit_reached_error" | "too_many_requests" => ModelErrorKind::RateLimit,
        "overloaded"
        | "overloaded_error"
        | "engine_overloaded"
        | "engine_overloaded_error"
        | "insufficient_system_resource"
        | "service_unavailable"
        | "service_unavailable_error"
        | "unavailable" => ModelErrorKind::Overloaded,
        "content_filter" | "content_policy_violation" | "responsibleaipolicyviolation" | "moderation_blocked" => {
            ModelErrorKind::ContentFilter
        }
        "server_error" | "internal_server_error" | "internal_error" | "api_error" | "internal" => ModelErrorKind::Unavailable,
        "timeout" | "timeout_error" | "request_timeout" | "gateway_timeout" | "deadline_exceeded" => ModelErrorKind::Timeout,
        "invalid_request_error"
        | "invalid_request"
        | "bad_request"
        | "model_not_found"
        | "not_found_error"
        | "invalid_argument" => ModelErrorKind::InvalidRequest,
        _ => return None,
    })
}

/// Whether the words complain about the length of the prompt. Providers use similar words for limits per minute, which veto.
fn says_overflow(words: &str) -> bool {
    const OVERFLOW: [&str; 12] = [
        "maximum context length",
        "context length exceeded",
        "exceeds the context",
        "exceed context limit",
        "exceeds the model's context",
        "available context size",
        "context window",
        "prompt is too long",
        "input is too long",
        "maximum prompt length",
        "exceeds the maximum number of tokens",
        "reduce the length of the messages",
    ];
    const VETO: [&str; 8] =
        ["rate limit", "rate_limit", "per minute", "per day", "per hour", "too many requests", "quota", "(tpm)"];
    let words = words.to_lowercase();
    OVERFLOW.iter().any(|phrase| words.contains(phrase)) && !VETO.iter().any(|phrase| words.contains(phrase))
}

/// How long the provider asks us to wait, in milliseconds: the first header that can be read, rounded up. A moment that is
/// past is no wait.
fn retry_after(headers: &HeaderMap, now: UnixMillis) -> Option<u64> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    if let Some(millis) = text("retry-after-ms").and_then(|text| duration(text, 1.0)) {
        return Some(millis);
    }
    let after = text(RETRY_AFTER.as_str())?;
    duration(after, 1_000.0).or_else(|| {
        let date = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(after).ok()?;
        Some(u64::try_from(date.as_millisecond().saturating_sub(now.0)).unwrap_or(0))
    })
}

fn duration(text: &str, unit_ms: f64) -> Option<u64> {
    let amount: f64 = text.parse().ok().filter(|amount: &f64| amount.is_finite() && *amount >= 0.0)?;
    // A float that is too large becomes the largest integer.
    Some((amount * unit_ms).ceil() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const NOW: UnixMillis = UnixMillis(1_767_225_600_000); // Thu, 01 Jan 2026 00:00:00 GMT

    fn refused(status: u16, body: &str) -> ModelError {
        from_response(StatusCode::from_u16(status).unwrap(), &HeaderMap::new(), body.as_bytes(), NOW)
    }

    #[rstest]
    // L-17: a 429 that waiting does not cure.
    #[case(
        429,
        r#"{"error":{"message":"You exceeded your current quota","type":"insufficient_quota","code":"insufficient_quota"}}"#,
        ModelErrorKind::Quota
    )]
    #[case(429, r#"{"error":{"message":"Limit 1","type":"requests","code":"rate_limit_exceeded"}}"#, ModelErrorKind::RateLimit)]
    #[case(429, r#"{"error":{"message":"The engine is overloaded","type":"engine_overloaded_error"}}"#, ModelErrorKind::Overloaded)]
    #[case(429, "", ModelErrorKind::RateLimit)]
    // L-18
    #[case(529, r#"{"error":{"type":"overloaded_error"}}"#, ModelErrorKind::Overloaded)]
    #[case(503, "", ModelErrorKind::Overloaded)]
    #[case(500, r#"{"error":{"message":"oops","type":"invalid_request_error"}}"#, ModelErrorKind::Unavailable)]
    #[case(502, "<html><body>Bad gateway</body></html>", ModelErrorKind::Unavailable)]
    #[case(504, "upstream timed out", ModelErrorKind::Unavailable)]
    // L-19
    #[case(400, r#"{"error":{"message":"unknown field","type":"invalid_request_error"}}"#, ModelErrorKind::InvalidRequest)]
    #[case(400, r#"{"error":{"message":"Incorrect API key","code":"invalid_api_key"}}"#, ModelErrorKind::Auth)]
    #[case(401, "no", ModelErrorKind::Auth)]
    #[case(402, "{}", ModelErrorKind::Quota)]
    #[case(403, "{}", ModelErrorKind::Auth)]
    #[case(404, r#"{"error":{"code":"model_not_found"}}"#, ModelErrorKind::InvalidRequest)]
    #[case(422, r#"{"detail":[{"msg":"x"}]}"#, ModelErrorKind::InvalidRequest)]
    #[case(
        400,
        r#"{"error":{"message":"filtered","code":"content_filter","innererror":{"code":"ResponsibleAIPolicyViolation"}}}"#,
        ModelErrorKind::ContentFilter
    )]
    // L-20
    #[case(413, "<html></html>", ModelErrorKind::ContextOverflow)]
    #[case(400, r#"{"error":{"message":"too long","code":"context_length_exceeded"}}"#, ModelErrorKind::ContextOverflow)]
    #[case(400, r#"{"error":{"message":"This model's maximum context length is 65536 tokens. However, you requested 70000 tokens","type":"invalid_request_error","param":null,"code":"invalid_request_error"}}"#, ModelErrorKind::ContextOverflow)]
    #[case(400, r#"{"error":{"code":400,"message":"the request exceeds the available context size","type":"exceed_context_size_error","n_ctx":4096}}"#, ModelErrorKind::ContextOverflow)]
    #[case(
        400,
        r#"{"error":{"message":"Prompt too large","type":"too_many_prompt_tokens","code":400}}"#,
        ModelErrorKind::ContextOverflow
    )]
    #[case(400, r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 210000 tokens > 200000 maximum"}}"#, ModelErrorKind::ContextOverflow)]
    #[case(
        400,
        r#"{"error":{"type":"invalid_request_error","message":"input length and `max_tokens` exceed context limit: 1 + 2 > 3"}}"#,
        ModelErrorKind::ContextOverflow
    )]
    #[case(429, r#"[{"error":{"code":429,"message":"The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).","status":"RESOURCE_EXHAUSTED"}}]"#, ModelErrorKind::ContextOverflow)]
    #[case(429, r#"{"error":{"message":"Request too large: tokens per minute, the input exceeds the maximum number of tokens","type":"tokens"}}"#, ModelErrorKind::RateLimit)]
    fn classes(#[case] status: u16, #[case] body: &str, #[case] kind: ModelErrorKind) {
        let error = refused(status, body);
        assert_eq!((error.kind, error.status), (kind, Some(status)), "{error}");
        assert!(!error.message.contains('<') && !error.message.is_empty());
    }

    #[test]
    fn words_are_kept_without_secrets() {
        let error = refused(401, r#"{"error":{"message":"Incorrect API key provided: sk-abcdef0123456789abcdef"}}"#);
        assert_eq!(error.message, "Incorrect API key provided: [redacted]");
        assert_eq!(refused(502, "<!DOCTYPE html><p>x").message, "the provider answered with 502 Bad Gateway");
    }

    #[rstest]
    #[case::seconds(&[("retry-after", "3")], Some(3_000))]
    #[case::fraction_is_rounded_up(&[("retry-after", "0.0001")], Some(1))]
    #[case::milliseconds(&[("retry-after-ms", "1250.2")], Some(1_251))]
    #[case::both(&[("retry-after", "3"), ("retry-after-ms", "250")], Some(250))]
    #[case::one_is_garbage(&[("retry-after", "3"), ("retry-after-ms", "soon")], Some(3_000))]
    #[case::date(&[("retry-after", "Thu, 01 Jan 2026 00:01:30 GMT")], Some(90_000))]
    #[case::past(&[("retry-after", "Wed, 31 Dec 2025 23:00:00 GMT")], Some(0))]
    #[case::three_hours(&[("retry-after", "10800")], Some(10_800_000))]
    #[case::garbage(&[("retry-after", "in a while")], None)]
    #[case::negative(&[("retry-after", "-4")], None)]
    #[case::endless(&[("retry-after", "inf")], None)]
    #[case::none(&[], None)]
    fn waits(#[case] headers: &'static [(&'static str, &'static str)], #[case] wait: Option<u64>) {
        let headers: HeaderMap = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
        assert_eq!(retry_after(&headers, NOW), wait);
    }
}
