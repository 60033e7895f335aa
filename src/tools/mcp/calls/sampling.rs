//! Sampling: the run's model answers a server during a call (`sampling/createMessage`), if the configuration of the server allows
//! it.
//!
//! Only texts are allowed, within limits: the server decides how often it asks, and the owner of the run pays.

use rmcp::model::ErrorData;
use serde_json::Value;

use crate::domain::conversation::Role;
use crate::domain::model::ModelOptions;
use crate::support::text::prefix_chars;
use crate::tools::mcp::config::redaction::SecretRedactor;
use crate::tools::{SamplingAnswer, SamplingRequest};

/// The longest request, with its system prompt, in characters.
const MAX_CHARS: usize = 100_000;
const MAX_MESSAGES: usize = 100;
/// The longest reason of a refusal, in characters.
const MAX_REASON: usize = 300;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SamplingRules {
    /// The most requests during one call.
    pub max_calls: u32,
    /// The most tokens of one answer.
    pub max_tokens: u32,
}

impl Default for SamplingRules {
    fn default() -> Self {
        Self { max_calls: 5, max_tokens: 1_000 }
    }
}

impl SamplingRules {
    /// Parses `capstan.sampling` of an entry: `true`, `false`, or an object with limits.
    pub fn read(value: &Value) -> Result<Option<Self>, String> {
        let limits = match value {
            Value::Bool(allowed) => return Ok(allowed.then(Self::default)),
            Value::Object(limits) => limits,
            _ => return Err("capstan.sampling must be true, false or an object with max_calls and max_tokens".to_owned()),
        };
        let mut rules = Self::default();
        for (key, value) in limits {
            let within = |most: u32| {
                let n = value.as_u64().and_then(|n| u32::try_from(n).ok()).filter(|n| (1..=most).contains(n));
                n.ok_or_else(|| format!("capstan.sampling.{key} must be an integer from 1 to {most}"))
            };
            match key.as_str() {
                "max_calls" => rules.max_calls = within(100)?,
                "max_tokens" => rules.max_tokens = within(100_000)?,
                unknown => return Err(format!("capstan.sampling.{unknown} is unknown")),
            }
        }
        Ok(Some(rules))
    }
}

/// Checks a request and redacts the server's own secrets.
#[expect(deprecated, reason = "servers still use it")]
pub fn read_request(
    redactor: &SecretRedactor,
    rules: SamplingRules,
    params: rmcp::model::CreateMessageRequestParams,
) -> Result<SamplingRequest, String> {
    if params.tools.is_some_and(|tools| !tools.is_empty()) {
        return Err("sampling requests must not have tools".to_owned());
    }
    if params.messages.len() > MAX_MESSAGES {
        return Err(format!("a sampling request may have at most {MAX_MESSAGES} messages"));
    }
    let mut turns: Vec<(Role, String)> = Vec::with_capacity(params.messages.len());
    for message in params.messages {
        let role = match message.role {
            rmcp::model::Role::User => Role::User,
            rmcp::model::Role::Assistant => Role::Assistant,
        };
        for block in message.content.into_vec() {
            let rmcp::model::SamplingMessageContentBlock::Text(text) = block else {
                return Err("a sampling request may only contain texts".to_owned());
            };
            let text = redactor.redact_text(text.text);
            match turns.last_mut().filter(|(last, _)| *last == role) {
                Some((_, answer)) => answer.extend(["\n\n", &text]),
                None => turns.push((role, text)),
            }
        }
    }
    let system = redactor.redact_text(params.system_prompt.unwrap_or_default());
    let chars = system.chars().count() + turns.iter().map(|(_, text)| text.chars().count()).sum::<usize>();
    if chars > MAX_CHARS {
        return Err(format!("a sampling request may have at most {MAX_CHARS} characters, and this one has {chars}"));
    }
    if turns.first().is_none_or(|(role, _)| *role != Role::User) || turns.iter().all(|(_, text)| text.trim().is_empty()) {
        return Err("the first message must be the user's, and none may be empty".to_owned());
    }
    let options = ModelOptions {
        // Converted as text, because widening 0.7 would give 0.699999988079071.
        temperature: params.temperature.and_then(|temperature| temperature.to_string().parse().ok()),
        max_output_tokens: Some(params.max_tokens.clamp(1, rules.max_tokens)),
        stop: params.stop_sequences.unwrap_or_default(),
        ..ModelOptions::default()
    };
    options.check().map_err(|invalid| format!("{} {}", invalid.field, invalid.reason))?;
    Ok(SamplingRequest { system, turns, options })
}

#[expect(deprecated, reason = "servers still use it")]
pub fn result_from_answer(answer: Result<SamplingAnswer, String>) -> Result<rmcp::model::CreateMessageResult, ErrorData> {
    use rmcp::model::{CreateMessageResult, ErrorCode, SamplingMessage};
    let SamplingAnswer { model, text, is_cut } =
        answer.map_err(|reason| ErrorData::new(ErrorCode(-1), prefix_chars(&reason, MAX_REASON).to_owned(), None))?;
    let reason = if is_cut { CreateMessageResult::STOP_REASON_END_MAX_TOKEN } else { CreateMessageResult::STOP_REASON_END_TURN };
    Ok(CreateMessageResult::new(SamplingMessage::assistant_text(text), model).with_stop_reason(reason))
}

#[cfg(test)]
#[expect(deprecated, reason = "servers go on asking for it")]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case(json!(false), Ok(None))]
    #[case(json!(true), Ok(Some((5, 1_000))))]
    #[case(json!({"max_tokens": 50}), Ok(Some((5, 50))))]
    #[case(json!({"max_calls": 1, "max_tokens": 100_000}), Ok(Some((1, 100_000))))]
    #[case(json!({"max_calls": 0}), Err("max_calls must be"))]
    #[case(json!({"max_calls": 101}), Err("1 to 100"))]
    #[case(json!({"max_tokens": 1.5}), Err("max_tokens must be"))]
    #[case(json!({"model": "x"}), Err("model is unknown"))]
    #[case(json!("yes"), Err("true, false or"))]
    fn rules_are_read(#[case] entry: Value, #[case] expected: Result<Option<(u32, u32)>, &str>) {
        match (SamplingRules::read(&entry), expected) {
            (Ok(rules), Ok(expected)) => assert_eq!(rules.map(|rules| (rules.max_calls, rules.max_tokens)), expected),
            (Err(reason), Err(expected)) => assert!(reason.contains(expected), "{reason}"),
            (read, expected) => panic!("{read:?} for {expected:?}"),
        }
    }

    fn read_params(params: &Value) -> Result<SamplingRequest, String> {
        let mut redactor = SecretRedactor::default();
        redactor.add("API_TOKEN", "token-canary");
        read_request(&redactor, SamplingRules::default(), serde_json::from_value(params.clone()).unwrap())
    }

    #[test]
    fn a_request_is_bounded_and_without_the_secrets_of_its_server() {
        let text = |role: &str, text: &str| json!({"role": role, "content": {"type": "text", "text": text}});
        let request = read_params(&json!({
            "messages": [text("user", "Is token-canary"), text("user", "a word?"), text("assistant", "No."), text("user", "Why?")],
            "systemPrompt": "Be brief.", "maxTokens": 9_999, "temperature": 0.5, "stopSequences": ["END"],
            "modelPreferences": {"hints": [{"name": "other"}]}
        }));
        let SamplingRequest { system, turns, options } = request.unwrap();
        assert_eq!(system, "Be brief.");
        let answer: Vec<(Role, &str)> = turns.iter().map(|(role, text)| (*role, text.as_str())).collect();
        assert_eq!(answer, [(Role::User, "Is [redacted:API_TOKEN]\n\na word?"), (Role::Assistant, "No."), (Role::User, "Why?")]);
        assert_eq!(
            (options.max_output_tokens, options.temperature, options.stop),
            (Some(1_000), Some(0.5), vec!["END".to_owned()])
        );
    }

    #[rstest]
    #[case(json!({"messages": [], "maxTokens": 1}), "the first message must be")]
    #[case(json!({"messages": [{"role": "assistant", "content": {"type": "text", "text": "Hm"}}], "maxTokens": 1}), "the first message must be")]
    #[case(json!({"messages": [{"role": "user", "content": {"type": "image", "data": "AA==", "mimeType": "image/png"}}], "maxTokens": 1}), "only contain texts")]
    #[case(json!({"messages": [{"role": "user", "content": {"type": "text", "text": "x".repeat(MAX_CHARS + 1)}}], "maxTokens": 1}), "characters")]
    #[case(json!({"messages": [{"role": "user", "content": {"type": "text", "text": "x"}}], "maxTokens": 1, "temperature": 3}), "temperature")]
    #[case(json!({"messages": [{"role": "user", "content": {"type": "text", "text": "x"}}], "maxTokens": 1,
        "tools": [{"name": "a", "inputSchema": {}}]}), "must not have tools")]
    fn refused_sampling_request_is_explained(#[case] params: Value, #[case] reason: &str) {
        let refused = read_params(&params).unwrap_err();
        assert!(refused.contains(reason), "{refused}");
    }

    #[test]
    fn an_answer_says_whether_it_is_cut() {
        let answer = |is_cut| Ok(SamplingAnswer { model: "m".to_owned(), text: "yes".to_owned(), is_cut });
        let result = serde_json::to_value(result_from_answer(answer(true)).unwrap()).unwrap();
        assert_eq!(
            result,
            json!({"model": "m", "stopReason": "maxTokens", "role": "assistant", "content": {"type": "text", "text": "yes"}})
        );
        assert_eq!(result_from_answer(answer(false)).unwrap().stop_reason.as_deref(), Some("endTurn"));
        assert_eq!(result_from_answer(Err("x".repeat(1_000))).unwrap_err().message.len(), MAX_REASON);
    }
}
