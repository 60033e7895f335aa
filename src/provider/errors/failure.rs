//! Classifies a provider's error by its status and the typed fields of its body.
//!
//! Phrases decide only for cases where most providers have no code: a request larger than the model's window, exhausted credit, a blocked
//! prompt, and refused parts of a request.

use std::sync::Arc;

use reqwest::StatusCode;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map, Value};

use crate::domain::model::{ErrorDetails, ModelError, ModelErrorKind};
use crate::domain::tool::ToolDefinition;
use crate::provider::errors::facts::{
    PhrasePrecedence, error_facts, is_specific, kind_of_code, kind_of_status, kind_of_words, kind_without_status,
    refuses_reasoning, vendor_code,
};
use crate::provider::http::retry_after::{self, retry_after};
use crate::support::clock::UnixMillis;
use crate::support::redact;

/// The names in a request. They are no secrets when a provider's error repeats them.
#[derive(Clone, Copy, Default)]
pub(in crate::provider) struct RequestNames<'a> {
    pub model: &'a str,
    pub tools: &'a [Arc<ToolDefinition>],
}

/// Returns the error for an answer with an error status to a request with these names.
pub(in crate::provider) fn from_response(
    status: StatusCode,
    headers: &HeaderMap,
    body: &[u8],
    now: UnixMillis,
    names: RequestNames<'_>,
) -> ModelError {
    let mut error_body = ErrorBody::read(body);
    if status.is_redirection() {
        error_body.message = "the provider answered with a redirect, which is not followed: configure the final URL".to_owned();
    }
    if error_body.message.is_empty() {
        let reason = status.canonical_reason().unwrap_or("without a known reason");
        error_body.message = format!("the provider answered with {} {reason}", status.as_u16());
    }
    let kind = classify(Some(status.as_u16()), &error_body);
    let wait = || retry_after(headers, now).or_else(|| retry_after(&error_body.headers, now)).or_else(|| error_body.wait(kind));
    let retry_after_ms = if kind.is_retryable() { wait() } else { None };
    let refused_tool = error_body.refused_tool(status, names.tools).filter(|_| kind == ModelErrorKind::InvalidRequest);
    let refused_signed = kind == ModelErrorKind::InvalidRequest && refused_tool.is_none() && error_body.refuses_signed();
    let status = Some(status.as_u16());
    let (words, details) = error_body.into_parts();
    let known: Vec<&str> = std::iter::once(names.model).chain(names.tools.iter().map(|tool| tool.name.as_str())).collect();
    let message = redact::error_text_with_names(&words, &known);
    ModelError { message, status, retry_after_ms, refused_tool, refused_signed, details, ..ModelError::new(kind, "") }
}

pub(in crate::provider) fn from_event(error: &Value) -> ModelError {
    let mut error_body = ErrorBody::default();
    error_body.take(error, 0);
    if error_body.message.is_empty() {
        error_body.message = "the provider broke off with an error".to_owned();
    }
    let (status, kind) = (error_body.status, classify(error_body.status, &error_body));
    let retry_after_ms = error_body.wait(kind).filter(|_| kind.is_retryable());
    let (words, details) = error_body.into_parts();
    ModelError { status, retry_after_ms, details, ..ModelError::new(kind, &words) }
}

/// Fails if an event, or a complete answer, is an error in another shape: a list that contains it (Google), or the envelope of one gateway.
pub(in crate::provider) fn check_for_unusual_error(data: &str) -> Result<(), ModelError> {
    let Ok(answer) = serde_json::from_str::<Value>(data) else { return Ok(()) };
    let fails = |value: &&Value| value.as_object().is_some_and(reports_failure);
    let error = match &answer {
        Value::Array(items) => items.iter().find(|item| item.get("error").is_some() || fails(item)),
        Value::Object(_) => Some(&answer).filter(fails),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    };
    error.map_or(Ok(()), |error| Err(from_event(error)))
}

/// Returns whether an object reports a failure: by its fields, or by a text beside a code.
fn reports_failure(fields: &Map<String, Value>) -> bool {
    let is_given = |name: &str| fields.get(name).is_some_and(|value| !value.is_null());
    let mut words = error_facts().fields.words.iter().filter_map(|name| fields.get(name)?.as_str());
    let has_words = words.any(|words| !words.is_empty() && !is_success(words));
    let has_code = |name: &str| match fields.get(name) {
        Some(Value::Number(code)) if name == "status" => code.as_u64().is_some_and(is_status),
        Some(Value::Number(code)) => !is_success(&code.to_string()),
        Some(Value::String(code)) => match name {
            // Events of all kinds have a type, and many have a status.
            "type" | "status" => {
                let code = code.to_ascii_lowercase();
                let is_class = || ["error", "exception"].iter().any(|word| code.contains(word)) || kind_of_code(&code).is_some();
                code.parse().map_or_else(|_| is_class(), is_status)
            }
            _ => !code.is_empty() && !is_success(code),
        },
        Some(Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_)) | None => false,
    };
    let is_denied = fields.get("success") == Some(&Value::Bool(false));
    let mut codes = error_facts().fields.codes.iter();
    is_given("detail") || is_denied || has_code("error_code") || (has_words && codes.any(|name| has_code(name)))
}

fn is_status(code: u64) -> bool {
    (400..600).contains(&code)
}

fn is_success(text: &str) -> bool {
    let is_number = || text.parse::<u16>().is_ok_and(|code| matches!(code, 0 | 200..=299));
    is_number() || ["success", "succeeded", "ok"].iter().any(|word| text.eq_ignore_ascii_case(word))
}

#[derive(Debug, Default)]
struct ErrorBody {
    message: String,
    codes: Vec<String>,
    /// Paths of the request's fields that the error is about.
    paths: Vec<String>,
    status: Option<u16>,
    retry_after_ms: Option<u64>,
    headers: HeaderMap,
}

impl ErrorBody {
    fn read(body: &[u8]) -> Self {
        let mut error_body = Self::default();
        match serde_json::from_slice::<Value>(body) {
            Ok(value) => error_body.take(&value, 0),
            // A page of HTML must not reach a log or a conversation; a line of text may.
            Err(_) => {
                let text = String::from_utf8_lossy(body);
                if !text.trim_start().starts_with('<') {
                    error_body.message = text.into_owned();
                }
            }
        }
        error_body
    }

    fn refused_tool(&self, status: StatusCode, tools: &[Arc<ToolDefinition>]) -> Option<String> {
        let is_of_the_answer = self.codes.iter().any(|code| error_facts().refused_tool.not_of_codes.contains(code));
        if is_of_the_answer || !matches!(status, StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY) {
            return None;
        }
        refused_tool(self.paths.iter().map(String::as_str).chain([self.message.as_str()]), tools)
    }

    /// Returns whether the provider refuses reasoning that another account or model signed or encrypted, or an item that it does not have.
    fn refuses_signed(&self) -> bool {
        let all = self.codes.iter().chain(&self.paths).chain([&self.message]);
        all.into_iter().any(|text| refuses_reasoning(text))
    }

    /// Reads an error object: at the top, below another field, in a list, or in the first choice. The innermost code is the most exact.
    fn take(&mut self, value: &Value, depth: u8) {
        if depth > 4 {
            return;
        }
        match value {
            Value::Object(fields) => {
                if let Some(metadata) = fields.get("metadata") {
                    self.take_metadata(metadata, fields.get("message").and_then(Value::as_str).unwrap_or_default(), depth);
                }
                let inner = ["error", "errors", "detail", "choices", "innererror", "inner_error"];
                let inner = inner.into_iter().filter_map(|name| fields.get(name));
                // Mistral's message may be a list of errors.
                let complaints = fields.get("message").filter(|message| message.is_object() || message.is_array());
                inner.chain(complaints).for_each(|value| self.take(value, depth + 1));
                let words = error_facts().fields.words.iter().filter_map(|name| fields.get(name)?.as_str());
                words.for_each(|text| self.add_words(text));
                self.paths.extend(fields.get("param").and_then(Value::as_str).map(str::to_owned));
                // Pydantic's path: `["body", "tools", 2, "function", "parameters"]`.
                if let Some(path) = fields.get("loc").and_then(Value::as_array) {
                    let names: Vec<String> =
                        path.iter().map(|step| step.as_str().map_or_else(|| step.to_string(), str::to_owned)).collect();
                    self.paths.push(names.join("."));
                }
                for detail in fields.get("details").and_then(Value::as_array).into_iter().flatten() {
                    self.take_detail(detail);
                }
                let has = |name: &str| fields.contains_key(name);
                for name in &error_facts().fields.codes {
                    match fields.get(name) {
                        // A number in a shape that only one vendor uses is that vendor's code.
                        Some(Value::Number(number))
                            if name == "error_code" && has("error_msg") && number.as_u64().is_none_or(|code| !is_status(code)) =>
                        {
                            self.add_code(vendor_code("baidu", &number.to_string()));
                        }
                        Some(Value::String(code)) if name == "status" && has("msg") && has("body") && !code.is_empty() => {
                            self.add_code(vendor_code("iflow", code));
                            self.add_code(code.to_ascii_lowercase());
                        }
                        Some(Value::String(code)) => self.add_code(code.to_ascii_lowercase()),
                        Some(Value::Number(number)) => self.add_code(number.to_string()),
                        Some(Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_)) | None => {}
                    }
                }
            }
            Value::Array(items) => items.iter().take(1).for_each(|item| self.take(item, depth + 1)),
            Value::String(text) => self.add_words(text),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// Reads a detail of Google's errors: <https://github.com/googleapis/googleapis/blob/master/google/rpc/error_details.proto>.
    fn take_detail(&mut self, detail: &Value) {
        let text = |name: &str| detail.get(name).and_then(Value::as_str);
        if let Some(reason) = text("reason") {
            self.codes.push(reason.to_ascii_lowercase());
        }
        if let Some(delay) = text("retryDelay").and_then(|delay| delay.strip_suffix('s')) {
            self.retry_after_ms = retry_after::duration(delay, 1_000.0);
        }
        for violation in detail.get("fieldViolations").and_then(Value::as_array).into_iter().flatten() {
            self.paths.extend(violation.get("field").and_then(Value::as_str).map(str::to_owned));
        }
        // The name of a limit contains its period. A wait for a daily limit would be too long.
        let mut limits = detail.get("violations").and_then(Value::as_array).into_iter().flatten();
        if limits.any(|limit| limit.get("quotaId").and_then(Value::as_str).is_some_and(|id| id.contains("PerDay"))) {
            self.codes.insert(0, "quota_of_the_day".to_owned());
        }
    }

    /// Adds a code or a status, which some providers write as a text.
    fn add_code(&mut self, code: String) {
        match code.parse::<u16>() {
            Ok(status) if is_status(status.into()) => self.status = self.status.or(Some(status)),
            Ok(_) | Err(_) => self.codes.push(code),
        }
    }

    /// Reads OpenRouter's metadata: the upstream provider's error, the reason of a blocked prompt, and the wait.
    fn take_metadata(&mut self, metadata: &Value, error_body: &str, depth: u8) {
        if let Some(raw) = metadata.get("raw").and_then(Value::as_str) {
            self.paths.push(raw.to_owned());
            match serde_json::from_str::<Value>(raw) {
                Ok(inner @ (Value::Object(_) | Value::Array(_))) => self.take(&inner, depth + 1),
                Ok(_) | Err(_) if raw.trim_start().starts_with('<') => {}
                Ok(_) | Err(_) if error_body.is_empty() || error_body == "Provider returned error" => self.add_words(raw),
                Ok(_) | Err(_) => {}
            }
        }
        if metadata.get("reasons").is_some_and(Value::is_array) || metadata.get("flagged_input").is_some() {
            self.codes.insert(0, "content_filter".to_owned());
        }
        for (name, value) in metadata.get("headers").and_then(Value::as_object).into_iter().flatten() {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(text)) {
                self.headers.insert(name, value);
            }
        }
    }

    fn wait(&self, kind: ModelErrorKind) -> Option<u64> {
        let in_words = || retry_after::in_words(&self.message).filter(|_| kind == ModelErrorKind::RateLimit);
        self.retry_after_ms.or_else(in_words)
    }

    /// Returns the text and the details. Field names in the text become details, because the redaction would treat them as keys.
    fn into_parts(self) -> (String, Option<Box<ErrorDetails>>) {
        const MOST_FIELDS: usize = 16;
        let has_index = |word: &&str| word.contains('.') || word.contains('[');
        let named = self.message.split_whitespace().filter(has_index).filter(|word| word.bytes().any(|byte| byte.is_ascii_digit()));
        let mut fields = self.paths;
        fields.extend(named.take(MOST_FIELDS).map(str::to_owned));
        let details = ErrorDetails { codes: self.codes, fields };
        let is_given = details != ErrorDetails::default();
        (self.message, is_given.then(|| Box::new(details)))
    }

    fn add_words(&mut self, text: &str) {
        if self.message.is_empty() {
            self.message = text.to_owned();
        }
    }
}

/// Returns the refused tool of a request by these texts: paths of fields, then messages. The first match wins.
fn refused_tool<'a>(texts: impl Iterator<Item = &'a str> + Clone, tools: &[Arc<ToolDefinition>]) -> Option<String> {
    let at = |index: usize| tools.get(index).map(|tool| tool.name.clone());
    texts.clone().find_map(tool_index_in).and_then(at).or_else(|| texts.clone().find_map(|text| name_in(text, tools)))
}

/// Returns the index in `tools[2].function.parameters`, `tools.2.custom.input_schema`, `tools[0].function_declarations[2].name`.
fn tool_index_in(text: &str) -> Option<usize> {
    error_facts()
        .refused_tool
        .lists
        .iter()
        .find_map(|list| text.match_indices(list.as_str()).find_map(|(at, _)| index_at(text, at, list)))
}

fn index_at(text: &str, at: usize, list: &str) -> Option<usize> {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if text.get(..at)?.ends_with(is_of_name) {
        return None;
    }
    let rest = text.get(at + list.len()..)?;
    let rest = rest.strip_prefix(['[', '.'])?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).map_or(rest, |end| rest.split_at(end).0);
    digits.parse().ok()
}

fn name_in(text: &str, tools: &[Arc<ToolDefinition>]) -> Option<String> {
    // Lower case keeps the byte positions, because only ASCII letters change.
    let lower = text.to_ascii_lowercase();
    error_facts().refused_tool.names.iter().find_map(|[before, after]| {
        lower.match_indices(before.as_str()).find_map(|(at, _)| {
            let from = at + before.len();
            let length = lower.get(from..)?.find(after.as_str())?;
            let name = text.get(from..from + length)?;
            // Gemini may add an underscore before the name.
            let is_named = |tool: &&Arc<ToolDefinition>| tool.name == name || name.strip_prefix('_') == Some(tool.name.as_str());
            tools.iter().find(is_named).map(|tool| tool.name.clone())
        })
    })
}

fn classify(status: Option<u16>, error_body: &ErrorBody) -> ModelErrorKind {
    let kinds = || error_body.codes.iter().filter_map(|code| kind_of_code(code));
    if let Some(kind) = kind_of_words(&error_body.message, status, PhrasePrecedence::First) {
        return kind;
    }
    // A code can be more specific than the status: the same 400 may be a full window or a refused key.
    if let Some(kind) = kinds().find(|kind| is_specific(*kind)) {
        return kind;
    }
    if let Some(kind) = kind_of_words(&error_body.message, status, PhrasePrecedence::Last) {
        return kind;
    }
    let without_status = || error_body.codes.iter().find_map(|code| kind_without_status(code));
    status.map(kind_of_status).or_else(without_status).or_else(|| kinds().next()).unwrap_or(ModelErrorKind::Unavailable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const NOW: UnixMillis = UnixMillis(1_767_225_600_000); // Thu, 01 Jan 2026 00:00:00 GMT

    fn refused(status: u16, body: &str) -> ModelError {
        let tools = ["zero", "one", "2nd", "three"]
            .map(|name| Arc::new(ToolDefinition::new(name, "", Value::Null, crate::domain::tool::ReplayClass::Read)));
        from_response(
            StatusCode::from_u16(status).unwrap(),
            &HeaderMap::new(),
            body.as_bytes(),
            NOW,
            RequestNames { model: "", tools: &tools },
        )
    }

    // L-43: the text of each provider, as it was reported.
    #[rstest]
    #[case::openai(r#"{"error":{"message":"Invalid schema for function 'renamed': In context=(), object schema missing properties.","type":"invalid_request_error","param":"tools[1].function.parameters","code":"invalid_function_parameters"}}"#, Some("one"))]
    #[case::responses(r#"{"error":{"message":"Invalid schema for function 'one': x","type":"invalid_request_error","param":"tools[1].parameters","code":"invalid_function_parameters"}}"#, Some("one"))]
    #[case::deepseek(r#"{"error":{"message":"Invalid schema for function 'three': schema must be a JSON Schema of 'type: \"object\"', got 'type: null'.","type":"invalid_request_error","param":null,"code":"invalid_request_error"}}"#, Some("three"))]
    #[case::litellm(r#"{"error":{"message":"litellm.BadRequestError: OpenAIException - Invalid schema for function 'three': x. Received Model Group=m","type":null,"param":null,"code":"400"}}"#, Some("three"))]
    #[case::openrouter(r#"{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":"{\"error\":{\"message\":\"tools.1.custom.input_schema: x\"}}","provider_name":"Anthropic"}}}"#, Some("one"))]
    #[case::anthropic(r#"{"type":"error","error":{"type":"invalid_request_error","message":"tools.3.custom.input_schema: JSON schema is invalid. It must match JSON Schema draft 2020-12 (https://json-schema.org/draft/2020-12)."}}"#, Some("three"))]
    #[case::gemini(r#"[{"error":{"code":400,"message":"* GenerateContentRequest.tools[0].function_declarations[3].parameters.properties[x].items: missing field.\n","status":"INVALID_ARGUMENT"}}]"#, Some("three"))]
    #[case::gemini_field(r#"{"error":{"code":400,"message":"Request contains an invalid argument.","status":"INVALID_ARGUMENT","details":[{"@type":"type.googleapis.com/google.rpc.BadRequest","fieldViolations":[{"field":"tools[0].function_declarations[1].parameters","description":"x"}]}]}}"#, Some("one"))]
    #[case::vertex(r#"{"error":{"code":400,"message":"Unable to submit request because `_2nd` functionDeclaration `parameters.x` schema didn't specify the schema type field.","status":"INVALID_ARGUMENT"}}"#, Some("2nd"))]
    #[case::groq(r#"{"error":{"message":"invalid JSON schema for tool one, tools[1].function.parameters: 'required' present but 'properties' is missing","type":"invalid_request_error","param":"tool one, tools[1].function.parameters"}}"#, Some("one"))]
    #[case::pydantic(
        r#"{"detail":[{"type":"missing","loc":["body","tools",3,"function","name"],"msg":"Field required"}]}"#,
        Some("three")
    )]
    #[case::not_on_offer(r#"{"error":{"message":"x","param":"tools[9].function.parameters"}}"#, None)]
    #[case::no_list_of_tools(
        r#"{"error":{"message":"messages[1].tool_calls[0]: x; my_tools[1]; tools are bad","param":"messages.[1].tool_calls"}}"#,
        None
    )]
    #[case::an_answer(r#"{"error":{"message":"tool call validation failed: tools[1] ...","type":"invalid_request_error","code":"tool_use_failed"}}"#, None)]
    #[case::unsaid(r#"{"object":"error","message":"Invalid tool schema: {'type': 'object'} is not valid under any of the given schemas","type":"invalid_request_error"}"#, None)]
    fn refused_tools(#[case] body: &str, #[case] tool: Option<&str>) {
        assert_eq!(refused(400, body).refused_tool.as_deref(), tool);
        assert_eq!(refused(422, body).refused_tool.as_deref(), tool);
        assert_eq!(refused(500, body).refused_tool, None);
    }

    #[test]
    fn a_refused_key_is_no_refused_tool() {
        let body = r#"{"error":{"message":"tools[1]","code":"invalid_api_key"}}"#;
        assert_eq!(refused(400, body).refused_tool, None);
    }

    #[rstest]
    // L-17: a 429 that no wait resolves.
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
    // The same errors in the texts of providers without a code for them.
    #[case(400, r#"{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":"{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",\"message\":\"prompt is too long: 210000 tokens > 200000 maximum\"}}","provider_name":"Anthropic"}}}"#, ModelErrorKind::ContextOverflow)]
    #[case(400, r#"{"object":"error","message":"The decoder prompt (length 8357) is longer than the maximum model length of 8192","type":"BadRequestError","code":400}"#, ModelErrorKind::ContextOverflow)]
    #[case(
        400,
        r#"{"error":{"message":"The input (9000 tokens) is longer than the model's context length (8192 tokens)."}}"#,
        ModelErrorKind::ContextOverflow
    )]
    #[case(422, r#"{"error":"Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000","error_type":"validation"}"#, ModelErrorKind::ContextOverflow)]
    #[case(
        422,
        r#"{"error":"Input validation error: `inputs` must have less than 1024 tokens. Given: 5000","error_type":"validation"}"#,
        ModelErrorKind::ContextOverflow
    )]
    #[case(400, r#"{"error":{"message":"Invalid request: Your request exceeded model token limit: 262144","type":"invalid_request_error"}}"#, ModelErrorKind::ContextOverflow)]
    #[case(400, r#"{"error":{"message":"Range of input length should be [1, 129024]","type":"invalid_request_error","code":"invalid_parameter_error"}}"#, ModelErrorKind::ContextOverflow)]
    #[case(400, r#"{"error":{"code":"1261","message":"Prompt exceeds max length"}}"#, ModelErrorKind::ContextOverflow)]
    #[case(400, r#"[{"error":{"code":400,"message":"Unable to submit request because the input token count is 200000 but model only supports up to 131072.","status":"INVALID_ARGUMENT"}}]"#, ModelErrorKind::ContextOverflow)]
    #[case(400, r#"{"error":"The number of tokens to keep from the initial prompt is greater than the context length. Try to load the model with a larger context length"}"#, ModelErrorKind::ContextOverflow)]
    #[case(
        400,
        r#"{"message":"too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000"}"#,
        ModelErrorKind::ContextOverflow
    )]
    #[case(400, r#"{"error":"prompt too long; exceeded max context length by 100 tokens"}"#, ModelErrorKind::ContextOverflow)]
    #[case(400, r#"{"error":{"message":"prompt token count of 90000 exceeds the limit of 64000","code":"model_max_prompt_tokens_exceeded"}}"#, ModelErrorKind::ContextOverflow)]
    #[case(429, r#"{"message":"Too many tokens, please wait before trying again."}"#, ModelErrorKind::RateLimit)]
    #[case(
        429,
        r#"{"code":"Some resource has been exhausted","error":"Too many tokens for team x. Limit per minute: 1"}"#,
        ModelErrorKind::RateLimit
    )]
    // L-17
    #[case(400, r#"{"type":"error","error":{"type":"invalid_request_error","message":"Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing"}}"#, ModelErrorKind::Quota)]
    #[case(400, r#"{"type":"error","error":{"type":"invalid_request_error","message":"You have reached your specified API usage limits. You will regain access on 2026-02-01"}}"#, ModelErrorKind::Quota)]
    #[case(429, r#"{"code":"Some resource has been exhausted","error":"Your team x has either used all available credits or reached its monthly spending limit."}"#, ModelErrorKind::Quota)]
    #[case(403, r#"{"code":"The caller does not have permission to execute the specified operation","error":"Your newly created team doesn't have any credits yet."}"#, ModelErrorKind::Quota)]
    #[case(429, r#"{"error":{"code":"1113","message":"Insufficient balance or no resource package."}}"#, ModelErrorKind::Quota)]
    #[case(
        400,
        r#"{"error":{"code":"Arrearage","message":"Access denied, please make sure your account is in good standing."}}"#,
        ModelErrorKind::Quota
    )]
    #[case(403, r#"{"error":{"code":403,"message":"Key limit exceeded (total limit). Manage it using https://openrouter.ai/settings/keys"}}"#, ModelErrorKind::Quota)]
    #[case(403, r#"{"code":30001,"message":"Sorry, your account balance is insufficient","data":null}"#, ModelErrorKind::Quota)]
    #[case(412, r#"{"error":{"message":"Account x is suspended, possibly due to reaching the monthly spending limit or failure to pay past invoices"}}"#, ModelErrorKind::Quota)]
    // L-31
    #[case(403, r#"{"error":{"code":403,"message":"Your input was flagged","metadata":{"reasons":["violence"],"flagged_input":"x","provider_name":"OpenAI"}}}"#, ModelErrorKind::ContentFilter)]
    #[case(403, r#"{"code":"The caller does not have permission to execute the specified operation","error":"Content violates usage guidelines. Failed check: SAFETY_CHECK_TYPE_BIO"}"#, ModelErrorKind::ContentFilter)]
    #[case(400, r#"{"error":{"code":"data_inspection_failed","type":"data_inspection_failed","message":"Input data may contain inappropriate content."}}"#, ModelErrorKind::ContentFilter)]
    // Numbers that have a meaning at another vendor only.
    #[case(400, r#"{"error":{"code":"1301","message":"unsafe"}}"#, ModelErrorKind::InvalidRequest)]
    #[case(500, r#"{"error":{"code":1113,"message":"x"}}"#, ModelErrorKind::Unavailable)]
    #[case(400, r#"{"error_code":336103,"message":"x"}"#, ModelErrorKind::InvalidRequest)]
    #[case(439, r#"{"message":"x"}"#, ModelErrorKind::InvalidRequest)]
    #[case(
        400,
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"Output blocked by content filtering policy"}}"#,
        ModelErrorKind::ContentFilter
    )]
    #[case(400, r#"{"code":"Client specified an invalid argument","error":"Incorrect API key provided: xx***yy. You can obtain an API key from https://console.x.ai."}"#, ModelErrorKind::Auth)]
    // L-32
    #[case(400, r#"{"error":{"message":"Failed to call a function. Please adjust your prompt.","type":"invalid_request_error","code":"tool_use_failed","failed_generation":"x"}}"#, ModelErrorKind::BadStream)]
    #[case(400, r#"{"error":{"message":"Failed to generate JSON.","type":"invalid_request_error","code":"json_validate_failed","failed_generation":""}}"#, ModelErrorKind::BadStream)]
    // LM Studio and Bedrock, with their own grammar.
    #[case(400, r#"{"error":"Trying to keep the first 9066 tokens when context the overflows. However, the model is loaded with context length of only 4096 tokens, which is not enough."}"#, ModelErrorKind::ContextOverflow)]
    #[case(
        400,
        r#"{"message":"Too many input tokens. Max input tokens: 8192, request input token count: 9279"}"#,
        ModelErrorKind::ContextOverflow
    )]
    #[case(429, r#"{"message":"Too many input tokens per minute"}"#, ModelErrorKind::RateLimit)]
    #[case(429, r#"{"error":{"code":"1308","message":"Usage limit reached for 5 hour."}}"#, ModelErrorKind::RateLimit)]
    #[case(400, r#"{"error":{"code":"tokens_too_long","message":"x"}}"#, ModelErrorKind::ContextOverflow)]
    #[case(400, r#"{"error_code":336103,"error_msg":"x"}"#, ModelErrorKind::ContextOverflow)]
    #[case(498, r#"{"error":{"message":"Flex tier capacity exceeded","code":"capacity_exceeded"}}"#, ModelErrorKind::Overloaded)]
    #[case(424, r#"{"error":"Request failed during generation: x","error_type":"generation"}"#, ModelErrorKind::Unavailable)]
    #[case(429, r#"{"error":"Model is overloaded","error_type":"overloaded"}"#, ModelErrorKind::Overloaded)]
    #[case(
        499,
        r#"{"error":{"code":499,"message":"The operation was cancelled.","status":"CANCELLED"}}"#,
        ModelErrorKind::Unavailable
    )]
    fn classes(#[case] status: u16, #[case] body: &str, #[case] kind: ModelErrorKind) {
        let error = refused(status, body);
        assert_eq!((error.kind, error.status), (kind, Some(status)), "{error}");
        assert!(!error.message.contains("<h") && !error.message.is_empty());
    }

    // The text of each provider, as it was reported.
    #[rstest]
    #[case::openai(r#"{"error":{"message":"The encrypted content gAAA could not be verified. Reason: Encrypted content organization_id did not match the target organization.","type":"invalid_request_error","param":null,"code":"invalid_encrypted_content"}}"#, true)]
    #[case::item(r#"{"error":{"message":"Item with id 'rs_1' not found. Items are not persisted when `store` is set to false.","type":"invalid_request_error","param":"input","code":null}}"#, true)]
    #[case::pair(r#"{"error":{"message":"Item 'rs_1' of type 'reasoning' was provided without its required following item.","type":"invalid_request_error","param":"input","code":null}}"#, true)]
    #[case::anthropic(r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.1.content.0: Invalid `signature` in `thinking` block"}}"#, true)]
    #[case::changed(r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.3.content.0: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified."}}"#, true)]
    #[case::bound(r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.1.content.0: Invalid `signature` in `thinking` block. The block is bound to a different conversation. Remove the block, or set `thinking.block_binding.prefix_mismatch_behavior` to \"drop_block\"."}}"#, true)]
    #[case::beta(
        r#"{"message":"Unexpected value(s) `thinking-binding-controls-2026-08-01` for the `anthropic-beta` header"}"#,
        true
    )]
    #[case::unbound(
        r#"{"message":"thinking.adaptive.block_binding.prefix_mismatch_behavior: Extra inputs are not permitted"}"#,
        true
    )]
    #[case::gemini(r#"[{"error":{"code":400,"message":"Corrupted thought signature.","status":"INVALID_ARGUMENT"}}]"#, true)]
    #[case::other(r#"{"error":{"message":"max_tokens is too large","type":"invalid_request_error","param":"max_tokens"}}"#, false)]
    #[case::overflow(
        r#"{"error":{"message":"prompt is too long: the signature and all","code":"context_length_exceeded"}}"#,
        false
    )]
    fn foreign_signature_is_recognised(#[case] body: &str, #[case] refused_signed: bool) {
        let error = refused(400, body);
        assert_eq!(error.refused_signed, refused_signed, "{error}");
    }

    // Google's texts about its limits, and about a key.
    #[rstest]
    #[case::per_day(429, "GenerateRequestsPerDayPerProjectPerModel-FreeTier", None, ModelErrorKind::Quota)]
    #[case::per_minute(429, "GenerateRequestsPerMinutePerProjectPerModel", Some(3_500), ModelErrorKind::RateLimit)]
    fn limits_of_google(#[case] status: u16, #[case] id: &str, #[case] wait: Option<u64>, #[case] kind: ModelErrorKind) {
        let error = serde_json::json!({"error": {"code": status, "status": "RESOURCE_EXHAUSTED",
            "message": "You exceeded your current quota, please check your plan and billing details.",
            "details": [
                {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaMetric": "m", "quotaId": id}]},
                {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "RATE_LIMIT_EXCEEDED"},
                {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "3.5s"}]}});
        for body in [error.to_string(), format!("[{error}]")] {
            let refused = refused(status, &body);
            assert_eq!((refused.kind, refused.retry_after_ms), (kind, wait));
        }
        let sent = from_event(&error["error"]);
        assert_eq!((sent.kind, sent.status, sent.retry_after_ms), (kind, Some(status), wait));
    }

    #[rstest]
    #[case(r#"{"error":{"message":"x","type":"None","param":"None","code":"429"}}"#, ModelErrorKind::RateLimit, Some(429))]
    #[case(r#"{"error":{"message":"x","type":"None","param":"None","code":"400"}}"#, ModelErrorKind::InvalidRequest, Some(400))]
    #[case(r#"{"object":"error","message":"x","raw_status_code":401}"#, ModelErrorKind::Auth, Some(401))]
    #[case(r#"{"message":"x","type":"too_many_requests_error","status_code":503}"#, ModelErrorKind::Overloaded, Some(503))]
    #[case(r#"{"type":"error","error":{"type":"x","message":"x","http_code":"429"}}"#, ModelErrorKind::RateLimit, Some(429))]
    #[case(r#"{"error":{"code":1301,"message":"x"}}"#, ModelErrorKind::Unavailable, None)]
    #[case(r#"{"status":"439","msg":"x","body":null}"#, ModelErrorKind::Auth, Some(439))]
    #[case(r#"{"error":{"status":"RESOURCE_EXHAUSTED","message":"x"}}"#, ModelErrorKind::RateLimit, None)]
    #[case(r#"{"type":"error","code":"slow_down","message":"x"}"#, ModelErrorKind::Overloaded, None)]
    #[case(r#"{"error_code":429,"error_msg":"x"}"#, ModelErrorKind::RateLimit, Some(429))]
    #[case(r#"{"code":"Throttling.RateQuota","message":"x","request_id":"r"}"#, ModelErrorKind::RateLimit, None)]
    #[case(r#"{"code":"InvalidParameter","message":"x","request_id":"r"}"#, ModelErrorKind::InvalidRequest, None)]
    #[case(r#"{"error":{"code":"AccountOverdueError","message":"x","type":"Forbidden"}}"#, ModelErrorKind::Quota, None)]
    #[case(
        r#"{"error":{"code":"RateLimitExceeded.EndpointRPMExceeded","message":"x","type":"TooManyRequests"}}"#,
        ModelErrorKind::RateLimit,
        None
    )]
    #[case(r#"{"error":{"code":"SensitiveContentDetected.SevereViolation","message":"x"}}"#, ModelErrorKind::ContentFilter, None)]
    #[case(r#"{"code":"InternalError.Algo","message":"x","request_id":"r"}"#, ModelErrorKind::Unavailable, None)]
    #[case(r#"{"error":{"message":"x","http_status_code":422}}"#, ModelErrorKind::InvalidRequest, Some(422))]
    #[case(r#"{"error_code":"REQUEST_LIMIT_EXCEEDED","message":"x"}"#, ModelErrorKind::RateLimit, None)]
    #[case(r#"{"error_code":"TEMPORARILY_UNAVAILABLE","message":"x"}"#, ModelErrorKind::Overloaded, None)]
    fn errors_within_an_answer(#[case] body: &str, #[case] kind: ModelErrorKind, #[case] status: Option<u16>) {
        let error = from_event(&serde_json::from_str(body).unwrap());
        assert_eq!((error.kind, error.status, error.message.as_str()), (kind, status, "x"));
    }

    // L-01: errors that do not have the shape of an error.
    #[rstest]
    #[case(r#"[{"x":1},{"error":{"code":503,"message":"x"}}]"#, Some(ModelErrorKind::Overloaded))]
    #[case(r#"[{"code":401,"msg":"x"}]"#, Some(ModelErrorKind::Auth))]
    #[case(r#"{"success":false}"#, Some(ModelErrorKind::Unavailable))]
    #[case(r#"{"error_code":2}"#, Some(ModelErrorKind::Unavailable))]
    #[case(r#"{"error_code":2,"error_msg":"x"}"#, Some(ModelErrorKind::Overloaded))]
    #[case(r#"{"status":429,"message":"x"}"#, Some(ModelErrorKind::RateLimit))]
    #[case(r#"{"type":"ThrottlingException","message":"x"}"#, Some(ModelErrorKind::RateLimit))]
    #[case(r#"{"type":"SomeException","message":"x"}"#, Some(ModelErrorKind::Unavailable))]
    #[case(r#"{"detail":"x"}"#, Some(ModelErrorKind::Unavailable))]
    #[case(r#"{"detail":null,"success":true,"code":0,"error_code":0,"message":"x"}"#, None)]
    #[case(r#"{"code":20000,"message":"OK"}"#, None)]
    #[case(r#"{"code":"success","msg":"x"}"#, None)]
    #[case(r#"{"code":1,"message":"ok"}"#, None)]
    #[case(r#"{"code":401}"#, None)]
    #[case(r#"{"type":"ping","status":7,"message":"x"}"#, None)]
    #[case(r#"[1,[],{}]"#, None)]
    #[case("x", None)]
    fn errors_that_nothing_announces(#[case] data: &str, #[case] kind: Option<ModelErrorKind>) {
        assert_eq!(check_for_unusual_error(data).err().map(|error| error.kind), kind);
    }

    #[test]
    fn words_of_those_behind_a_gateway() {
        let refused = |raw: Value| {
            let error = serde_json::json!({"error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": raw}}});
            super::tests::refused(400, &error.to_string()).message
        };
        assert_eq!(refused(r#"{"error":{"message":"no such voice"}}"#.into()), "no such voice");
        assert_eq!(refused("upstream says no".into()), "upstream says no");
        assert_eq!(refused("<html>no</html>".into()), "Provider returned error");
        assert_eq!(refused(Value::Null), "Provider returned error");
    }

    // L-43: Mistral sends a list of errors.
    #[test]
    fn words_may_be_a_list_of_complaints() {
        let body = r#"{"object":"error","message":{"detail":[{"type":"x","loc":["body","tools",1,"function","parameters"],"msg":"Input should be a valid dictionary"}]},"type":"invalid_request_error","code":null}"#;
        let error = refused(422, body);
        assert_eq!((error.message.as_str(), error.refused_tool.as_deref()), ("Input should be a valid dictionary", Some("one")));
    }

    // L-16: waits that no header of the answer names.
    #[test]
    fn waits_in_the_body() {
        let body = r#"{"error":{"message":"Rate limit exceeded: free-models-per-min.","code":429,"metadata":{"headers":{"X-RateLimit-Limit":"20","X-RateLimit-Remaining":"0","X-RateLimit-Reset":"1767225660000"}}}}"#;
        assert_eq!(refused(429, body).retry_after_ms, Some(60_000));
        let within = |words: &str| from_event(&serde_json::json!({"message": words, "code": "rate_limit_exceeded"})).retry_after_ms;
        assert_eq!(within("Rate limit reached. Please try again in 1m2.5s."), Some(62_500));
        assert_eq!(within("Rate limit reached."), None);
        // Points in time inside an answer are not compared with the clock.
        assert_eq!(from_event(&serde_json::from_str::<Value>(body).unwrap()).retry_after_ms, None);
    }

    #[test]
    fn a_key_that_google_refuses() {
        let body = r#"{"error":{"code":400,"message":"API key not valid.","status":"INVALID_ARGUMENT","details":[
            {"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"API_KEY_INVALID","domain":"googleapis.com"}]}}"#;
        assert_eq!(refused(400, body).kind, ModelErrorKind::Auth);
    }

    #[test]
    fn words_are_kept_without_secrets() {
        let error = refused(401, r#"{"error":{"message":"Incorrect API key provided: sk-abcdef0123456789abcdef"}}"#);
        assert_eq!(error.message, "Incorrect API key provided: [redacted]");
        assert_eq!(refused(502, "<!DOCTYPE html><p>x").message, "the provider answered with 502 Bad Gateway");
    }
}
