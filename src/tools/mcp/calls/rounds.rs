//! Calls that the server answers with questions (`input_required` of the protocol, SEP-2322), and that are repeated with the answers.
//! The worker stores the call meanwhile, and asks the user.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rmcp::model::{CallToolRequestParams, InputRequest, InputRequiredResult, InputResponses};
use serde_json::json;
use tokio::time::Instant;

use crate::domain::ids::CallId;
use crate::domain::run::handle::{Pause, Round};
use crate::tools::mcp::calls::reply::ASKS;
use crate::tools::mcp::config::masks::Masks;
use crate::tools::mcp::transport::handler::{Allowed, MAX_QUESTIONS, readable, result_of};

const MAX_ROUNDS: u32 = 10;
/// The largest `request_state`, in bytes: it is stored with the call.
const MAX_STATE: usize = 64 * 1024;
/// The pause before a call without questions is repeated; it doubles each time.
const SHORTEST_REST: Duration = Duration::from_millis(100);
const LONGEST_REST: Duration = Duration::from_secs(1);
/// The longest key of a question, in bytes.
const MAX_KEY: usize = 256;

/// How long a connection stays open for a paused call, unless another server needs the process slot. The repeated call carries all
/// state, and the user may never answer.
const KEPT: Duration = Duration::from_secs(24 * 3_600);

/// The paused calls of one server, with the beginnings of their pauses.
#[derive(Default)]
pub struct Pauses(Mutex<HashMap<CallId, Instant>>);

impl Pauses {
    pub fn begin(&self, call: &CallId, now: Instant) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(call.clone(), now);
    }

    pub fn end(&self, call: &CallId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(call);
    }

    pub fn are_any(&self, now: Instant) -> bool {
        let mut pauses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pauses.retain(|_, since| now.duration_since(*since) < KEPT);
        !pauses.is_empty()
    }
}

/// Reads what a server requires after the round `earlier`, or says why it does not get that.
pub fn read(
    (server, masks): (&str, &Masks),
    allowed: &Allowed,
    asked: InputRequiredResult,
    earlier: Option<&Round>,
) -> Result<Pause, String> {
    let InputRequiredResult { input_requests, request_state, .. } = asked;
    let requests = input_requests.unwrap_or_default();
    let (questions, rounds) = earlier.map_or((0, 0), |round| (round.questions as usize, round.number));
    if rounds >= MAX_ROUNDS {
        return Err(format!("it wants to be called again after {MAX_ROUNDS} rounds"));
    }
    if let Some(bytes) = request_state.as_ref().map(String::len).filter(|bytes| *bytes > MAX_STATE) {
        return Err(format!("it wants {bytes} bytes back with what it asks for; at most {MAX_STATE} are kept"));
    }
    if requests.is_empty() && request_state.is_none() {
        return Err("it asks for input and does not say for which".to_owned());
    }
    let (mut given, mut asks) = (BTreeMap::new(), BTreeMap::new());
    for (key, request) in requests {
        match request {
            _ if key.len() > MAX_KEY => return Err(ASKS.to_owned()),
            InputRequest::ListRoots(_) if given.len() < MAX_QUESTIONS => {
                given.insert(key, json!(allowed.list_roots().ok_or(ASKS)?));
            }
            InputRequest::Elicitation(request) if allowed.elicits && questions + asks.len() < MAX_QUESTIONS => {
                asks.insert(key, readable(server, masks, request.params).ok_or(ASKS)?);
            }
            _ => return Err(ASKS.to_owned()),
        }
    }
    Ok(Pause { state: request_state, given, asks, number: rounds + 1 })
}

/// Returns the round after a pause without questions for the user.
pub fn at_once(pause: Pause, earlier: Option<&Round>) -> Round {
    let Pause { state, given, asks: _, number } = pause;
    let questions = earlier.map_or(0, |round| round.questions);
    Round { state, given, asked: BTreeMap::new(), answers: Some(BTreeMap::new()), questions, number }
}

/// Returns the pause before a call without questions is repeated. The protocol allows it at once, but a server that rejects early calls
/// would only use up the rounds.
pub fn rest(number: u32) -> Duration {
    SHORTEST_REST.saturating_mul(1 << number.saturating_sub(1).min(10)).min(LONGEST_REST)
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
        let rests: Vec<u128> = [1, 2, 3, 4, 5, 10, u32::MAX].into_iter().map(|number| rest(number).as_millis()).collect();
        assert_eq!(rests, [100, 200, 400, 800, 1_000, 1_000, 1_000]);
    }

    #[test]
    fn a_question_is_asked_without_the_secrets_of_its_server() {
        let mut masks = Masks::default();
        masks.add("API_TOKEN", "token-canary");
        let schema = json!({"type": "object", "properties": {"yes": {"type": "boolean"}}});
        let params = json!({"mode": "form", "message": "Is token-canary yours?", "requestedSchema": schema});
        let asked =
            json!({"resultType": "input_required", "inputRequests": {"q": {"method": "elicitation/create", "params": params}}});
        let allowed = Allowed { elicits: true, samples: None, roots: std::sync::Arc::default() };
        let pause = read(("s", &masks), &allowed, serde_json::from_value(asked).unwrap(), None).unwrap();
        assert_eq!((pause.asks["q"].0.as_str(), pause.number), ("Is [redacted:API_TOKEN] yours?", 1));
    }

    #[test]
    fn what_was_not_wanted_is_not_given() {
        let mut params = CallToolRequestParams::new("tool");
        answer(&mut params, &Round { answers: Some(BTreeMap::new()), ..Round::default() });
        assert_eq!((params.request_state, params.input_responses), (None, None));
    }
}
