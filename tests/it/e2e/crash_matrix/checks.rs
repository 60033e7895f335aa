//! The checks at the end of a case.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::turn::{ID, LAST_WORDS, Turn};
use support::ledger::Entry;
use support::model::ModelMock;
use support::server::Site;
use support::sse::Frame;

/// A row of a tool call.
#[derive(Debug, Clone)]
pub struct Call {
    state: String,
    tool: String,
    /// The argument, which identifies the call.
    pub text: String,
}

impl Call {
    fn is_unsafe(&self) -> bool {
        matches!(self.tool.as_str(), "append" | "slow_append")
    }
}

/// Returns all calls by their ids.
pub async fn calls(site: &Site) -> HashMap<String, Call> {
    let rows = site.database.rows("SELECT id, state, name, arguments FROM tool_calls").await;
    let call = |row: Vec<Option<String>>| {
        let arguments: Value = serde_json::from_str(row[3].as_deref().unwrap()).unwrap();
        let tool = row[2].as_deref().unwrap().trim_start_matches("ledger__").to_owned();
        let text = arguments["text"].as_str().unwrap().to_owned();
        (row[0].clone().unwrap(), Call { state: row[1].clone().unwrap(), tool, text })
    };
    rows.into_iter().map(call).collect()
}

/// The state of the database when the process did nothing more.
pub struct Death {
    calls: HashMap<String, Call>,
    executed: Vec<Entry>,
    asked: usize,
    answers: usize,
    model_step_open: bool,
    /// The claims so far.
    pub epochs: i64,
    /// Whether no request was on its way to a tool: each later effect was started later.
    nothing_on_its_way: bool,
}

impl Death {
    /// Reads the rows. The process must be killed or stopped.
    pub async fn of(site: &Site, model: &ModelMock, nothing_on_its_way: bool) -> Self {
        site.database.quiet().await;
        // The rows of the newest run: another run may have come before it.
        let answers =
            "SELECT CAST(count(*) AS text) FROM messages WHERE role = 'assistant' AND run_id = (SELECT max(id) FROM runs)";
        let open = "SELECT CAST(count(*) AS text) FROM run_steps WHERE kind = 'model' AND status = 'started'";
        Self {
            calls: calls(site).await,
            executed: site.ledger.entries(),
            asked: model.total(),
            answers: usize::try_from(site.database.count(answers).await).unwrap(),
            model_step_open: site.database.count(open).await > 0,
            epochs: Self::epochs(site).await,
            nothing_on_its_way,
        }
    }

    /// Returns how often runs have been claimed so far.
    pub async fn epochs(site: &Site) -> i64 {
        site.database.count("SELECT CAST(coalesce(sum(epoch), 0) AS text) FROM conversation_heads").await
    }
}

/// The text of a call that shows that tools work.
pub const AFTER: &str = "after";

/// Asserts that a run whose tool server could not be started went on without it and made no call.
pub async fn no_tools(site: &Site, turn: &Turn) {
    let mut after = calls(site).await;
    after.retain(|_, call| call.text != AFTER);
    assert_eq!(after.len(), turn.calls(), "{after:#?}");
    for call in after.values() {
        assert_eq!((call.state.as_str(), count(&site.ledger.entries(), call)), ("failed", 0), "{call:?}");
    }
}

fn count(entries: &[Entry], call: &Call) -> usize {
    entries.iter().filter(|entry| entry.tool == call.tool && entry.arguments["text"] == call.text.as_str()).count()
}

/// Asserts that each call of a completed run ran exactly once, or at most once if its outcome can be unknown. No call ran after
/// its result was stored.
pub async fn tools(site: &Site, turn: &Turn, death: Option<&Death>, log: &[Frame]) {
    let mut after = calls(site).await;
    // A later run made this call to check that its tool works.
    after.retain(|_, call| call.text != AFTER);
    assert_eq!(after.len(), turn.calls(), "{after:#?}");
    let entries = site.ledger.entries();
    let unknown: HashSet<String> = log
        .iter()
        .filter(|frame| frame.kind() == "tool.outcome_unknown")
        .map(|frame| frame.json()["data"]["call_id"].as_str().unwrap().to_owned())
        .collect();
    for (id, call) in &after {
        let before = death.map(|death| {
            let state = death.calls.get(id).map_or("planned", |call| call.state.as_str());
            (state, count(&death.executed, call))
        });
        match before {
            Some(("done", executed)) => {
                assert_eq!((call.state.as_str(), count(&entries, call)), ("done", executed), "a finished call ran again: {call:?}");
            }
            Some(("started", executed)) if call.is_unsafe() => {
                assert_eq!(call.state, "unknown", "{call:?}");
                if death.is_some_and(|death| death.nothing_on_its_way) {
                    assert_eq!(count(&entries, call), executed, "a call of unknown outcome ran afterwards: {call:?}");
                }
            }
            Some(_) => assert_eq!(call.state, "done", "{call:?}"),
            None => {}
        }
        effect(&entries, id, call);
        assert_eq!(unknown.contains(id), call.state == "unknown", "{call:?}");
    }
}

/// Asserts that the ledger agrees with the stored state of a call.
pub fn effect(entries: &[Entry], id: &str, call: &Call) {
    let total = count(entries, call);
    assert!(call.state == "done" || call.is_unsafe() && call.state == "unknown", "{call:?}");
    assert!(total >= 1 || call.state == "unknown", "a completed call did not run: {call:?}");
    assert!(total <= 1 || !call.is_unsafe(), "an unsafe call ran {total} times: {call:?}");
    // A keyed call runs again with the same key. Capstan makes the key, not the model.
    if call.tool == "append_keyed" {
        for entry in entries.iter().filter(|entry| entry.tool == call.tool && entry.arguments["text"] == call.text.as_str()) {
            assert_eq!(entry.arguments["key"], id, "{call:?}");
        }
    }
}

/// Asserts that a killed attempt's text was reset, the last answer comes from one attempt, and no stored answer was requested
/// again.
pub fn text(model: &ModelMock, death: Option<&Death>, log: &[Frame]) {
    let last = log.iter().rev().find(|frame| frame.kind() == "message.completed").unwrap().json();
    let parts = last["data"]["message"]["parts"].as_array().unwrap();
    let text: String = parts.iter().filter_map(|part| part["text"].as_str()).collect();
    let tokens: Vec<&str> = text.split_whitespace().collect();
    assert_eq!(tokens.len(), LAST_WORDS, "{text}");
    let (of_request, _) = tokens[0].split_once('t').unwrap();
    let expected: Vec<String> = (0..LAST_WORDS).map(|index| format!("{of_request}t{index}")).collect();
    assert_eq!(tokens, expected, "one answer has text of two attempts");
    let Some(death) = death else { return };
    let resets = log.iter().filter(|frame| frame.kind() == "step.reset").map(Frame::json);
    let by_crash = resets.filter(|reset| reset["data"]["reason"] == "crash").count();
    assert_eq!(by_crash, usize::from(death.model_step_open), "one reset for the crash");
    for exchange in model.exchanges(ID).into_iter().filter(|exchange| exchange.number > death.asked) {
        assert!(exchange.round >= death.answers, "a stored answer was requested again");
    }
}

/// Asserts that the retry came once and not early. A worker that lost its lease because of the failure asks again without a
/// retry.
pub fn retry(model: &ModelMock, death: Option<&Death>, log: &[Frame]) {
    let events: Vec<Value> = log.iter().map(Frame::json).collect();
    let retrying: Vec<usize> = (0..events.len()).filter(|at| events[*at]["type"] == "run.retrying").collect();
    assert!(retrying.len() <= 1, "the timer was set {} times", retrying.len());
    if death.is_some() {
        assert_eq!(model.exchanges(ID).len(), 2, "the failed request and its retry");
    }
    let [retrying] = retrying[..] else { return };
    let next = events[retrying..].iter().find(|event| event["type"] == "step.started").unwrap();
    let at = |event: &Value| event["at"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    let waited = at(next).duration_since(at(&events[retrying])).as_millis();
    let wanted = i128::from(events[retrying]["data"]["after_ms"].as_i64().unwrap());
    // The process's clock stamps the events, and the database's clock decides.
    assert!(waited >= wanted - 5, "a retry after {waited} ms of {wanted}");
}

/// Returns a message that fills most of the context window.
pub fn much() -> String {
    format!("much {}", "word ".repeat(10_000))
}

/// Asserts that a summary and its event were stored once, in one transaction. Summarized messages are in no request and stay
/// stored.
pub async fn summary(site: &Site, model: &ModelMock, conversation: &str, log: &[Frame]) {
    let stored = format!("context_summaries WHERE conversation_id = '{conversation}'");
    assert_eq!(site.database.count(&format!("SELECT CAST(count(*) AS text) FROM {stored}")).await, 1);
    assert_eq!(log.iter().filter(|frame| frame.kind() == "context.compacted").count(), 1, "one event, stored with its summary");
    let exchanges = model.exchanges(ID);
    for request in exchanges.iter().map(|exchange| &exchange.request) {
        let messages = request["messages"].as_array().unwrap();
        assert!(messages[0]["content"].as_str().unwrap().contains("user: much word"), "{request}");
        assert!(!messages[1..].iter().any(|message| message["content"].to_string().contains("much word")), "{request}");
    }
    let first = format!("SELECT body FROM messages WHERE conversation_id = '{conversation}' AND position = 1");
    assert!(site.database.rows(&first).await[0][0].as_deref().unwrap().contains(much().trim_end()), "the summarized messages");
}

/// Asserts that a cancelled run was not continued.
pub async fn cancelled(site: &Site, model: &ModelMock, death: Option<&Death>) {
    assert!(site.ledger.count("slow_append", "endless") <= 1);
    if death.is_some() {
        assert_eq!(model.exchanges(ID).len(), 1, "a cancelled run was resumed");
    }
    let states = site
        .database
        .rows("SELECT state FROM tool_calls WHERE name = 'ledger__slow_append' AND state NOT IN ('unknown', 'cancelled')")
        .await;
    assert!(states.is_empty(), "a call without a result: {states:?}");
}

/// Asserts that nothing of a conversation remains, and no late write restores any of it.
pub async fn deleted(site: &Site, conversation: &str) {
    let of_conversation = [
        "conversations WHERE id",
        "conversation_heads WHERE conversation_id",
        "messages WHERE conversation_id",
        "events WHERE conversation_id",
        "runs WHERE conversation_id",
    ];
    for place in of_conversation {
        let left = site.database.count(&format!("SELECT CAST(count(*) AS text) FROM {place} = '{conversation}'")).await;
        assert_eq!(left, 0, "rows left in {place}");
    }
    for table in ["run_leases", "run_steps", "tool_calls"] {
        let orphans = format!("SELECT CAST(count(*) AS text) FROM {table} WHERE run_id NOT IN (SELECT id FROM runs)");
        assert_eq!(site.database.count(&orphans).await, 0, "rows without a run in {table}");
    }
}
