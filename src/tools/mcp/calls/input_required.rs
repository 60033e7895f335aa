//! Calls that the server answers with questions (`input_required`, SEP-2322), and that are repeated with the answers. Must not know how the
//! worker stores such a call and asks the user.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::time::Duration;

use rmcp::model::{CallToolRequestParams, InputRequest, InputRequiredResult, InputResponses};
use serde_json::json;
use tokio::time::Instant;

use crate::domain::ids::CallId;
use crate::domain::run::{InputRequired, Round};
use crate::support::locks::lock;
use crate::tools::mcp::calls::reply::ASKS;
use crate::tools::mcp::config::redaction::SecretRedactor;
use crate::tools::mcp::transport::handler::{AllowedRequests, MAX_QUESTIONS, checked_question, result_of};

const MAX_ROUNDS: u32 = 10;
/// The largest `request_state`, in bytes. It is stored with the call.
const MAX_STATE: usize = 64 * 1024;
/// The wait before a call without questions is repeated; it doubles each time.
const MIN_WAIT: Duration = Duration::from_millis(100);
const MAX_WAIT: Duration = Duration::from_secs(1);
/// The longest key of a question, in bytes.
const MAX_KEY: usize = 256;

/// How long a connection stays open for a paused call, unless another server needs the process slot. The limit exists because the user may
/// never answer; the repeated call contains all state.
const OPEN_FOR: Duration = Duration::from_secs(24 * 3_600);

/// The paused calls of one server, with the start of each pause.
#[derive(Default)]
pub struct InputRequiredCalls(Mutex<HashMap<CallId, Instant>>);

impl InputRequiredCalls {
    pub fn begin(&self, call: &CallId, now: Instant) {
        lock(&self.0).insert(call.clone(), now);
    }

    pub fn end(&self, call: &CallId) {
        lock(&self.0).remove(call);
    }

    pub fn are_any(&self, now: Instant) -> bool {
        let mut pauses = lock(&self.0);
        pauses.retain(|_, since| now.duration_since(*since) < OPEN_FOR);
        !pauses.is_empty()
    }
}

/// Reads the server's request for input after the round `earlier`, or returns why it is refused.
pub fn read(
    (server, redactor): (&str, &SecretRedactor),
    allowed: &AllowedRequests,
    asked: InputRequiredResult,
    earlier: Option<&Round>,
) -> Result<InputRequired, String> {
    let InputRequiredResult { input_requests, request_state, .. } = asked;
    let requests = input_requests.unwrap_or_default();
    let (questions, rounds) = earlier.map_or((0, 0), |round| (round.questions as usize, round.number));
    if rounds >= MAX_ROUNDS {
        return Err(format!("it asks for input again after {MAX_ROUNDS} rounds"));
    }
    if let Some(bytes) = request_state.as_ref().map(String::len).filter(|bytes| *bytes > MAX_STATE) {
        return Err(format!("its request_state has {bytes} bytes, and at most {MAX_STATE} are stored"));
    }
    if requests.is_empty() && request_state.is_none() {
        return Err("it asks for input without any question".to_owned());
    }
    let (mut given, mut asks) = (BTreeMap::new(), BTreeMap::new());
    for (key, request) in requests {
        match request {
            _ if key.len() > MAX_KEY => return Err(ASKS.to_owned()),
            InputRequest::ListRoots(_) if given.len() < MAX_QUESTIONS => {
                given.insert(key, json!(allowed.list_roots().ok_or(ASKS)?));
            }
            InputRequest::Elicitation(request) if allowed.elicits && questions + asks.len() < MAX_QUESTIONS => {
                asks.insert(key, checked_question(server, redactor, request.params).ok_or(ASKS)?);
            }
            _ => return Err(ASKS.to_owned()),
        }
    }
    Ok(InputRequired { state: request_state, given, asks, number: rounds + 1 })
}

/// Returns the next round of a pause without questions for the user.
pub fn at_once(pause: InputRequired, earlier: Option<&Round>) -> Round {
    let InputRequired { state, given, asks: _, number } = pause;
    let questions = earlier.map_or(0, |round| round.questions);
    Round { state, given, asked: BTreeMap::new(), answers: Some(BTreeMap::new()), questions, number }
}

/// Returns the wait before a call without questions is repeated. The protocol allows an immediate repetition, but a server that
/// rejects early calls would only use up the rounds.
pub fn repeat_pause(number: u32) -> Duration {
    MIN_WAIT.saturating_mul(1 << number.saturating_sub(1).min(10)).min(MAX_WAIT)
}

/// Adds the answers of a round to a request.
pub fn answer(params: &mut CallToolRequestParams, round: &Round) {
    params.request_state.clone_from(&round.state);
    let answers = round.answers.iter().flatten().map(|(key, answer)| (key.clone(), json!(result_of(answer.clone()))));
    params.input_responses =
        Some(round.given.clone().into_iter().chain(answers).collect()).filter(|all: &InputResponses| !all.is_empty());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_asks_for_nothing_is_called_again_in_time() {
        let rests: Vec<u128> = [1, 2, 3, 4, 5, 10, u32::MAX].into_iter().map(|number| repeat_pause(number).as_millis()).collect();
        assert_eq!(rests, [100, 200, 400, 800, 1_000, 1_000, 1_000]);
    }

    #[test]
    fn a_question_is_asked_without_the_secrets_of_its_server() {
        let mut redactor = SecretRedactor::default();
        redactor.add("API_TOKEN", "token-canary");
        let schema = json!({"type": "object", "properties": {"yes": {"type": "boolean"}}});
        let params = json!({"mode": "form", "message": "Is token-canary yours?", "requestedSchema": schema});
        let asked =
            json!({"resultType": "input_required", "inputRequests": {"q": {"method": "elicitation/create", "params": params}}});
        let allowed = AllowedRequests { elicits: true, samples: None, roots: std::sync::Arc::default() };
        let pause = read(("s", &redactor), &allowed, serde_json::from_value(asked).unwrap(), None).unwrap();
        assert_eq!((pause.asks["q"].0.as_str(), pause.number), ("Is [redacted:API_TOKEN] yours?", 1));
    }

    #[test]
    fn unrequested_input_is_not_sent() {
        let mut params = CallToolRequestParams::new("tool");
        answer(&mut params, &Round { answers: Some(BTreeMap::new()), ..Round::default() });
        assert_eq!((params.request_state, params.input_responses), (None, None));
    }
}
