//! The events of recorded runs.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::request::AgUiClient;
use super::translator::{AgUiRunFacts, AgUiTranslator};
use crate::domain::event::StoredEvent;
use crate::domain::ids::{CallId, RunId};
use crate::http::clients::pauses::Section;
use crate::http::clients::tests::{
    CONVERSATION, RUN, all, answer, approvals, calls, cancellation, id, log, plan_and_question, resets, runs_tool, says, seqs,
    tool_call, translated, whole,
};

fn facts(is_one: bool, section: Section) -> AgUiRunFacts {
    let (id, thread, run) = (RunId::parse(RUN).unwrap(), "thread-1".to_owned(), "run-1".to_owned());
    let said = json!([{ "id": "m1", "role": "user", "content": "hi" }]);
    let messages = Some(said.to_string().into());
    let client = if is_one { AgUiClient::Release1 } else { AgUiClient::BeforeRelease1 };
    AgUiRunFacts { id, thread, run, client, section, client_results: BTreeSet::new(), messages, history: Vec::new() }
}

fn events_in(events: &[StoredEvent], is_one: bool, section: Section) -> Vec<Value> {
    translated(AgUiTranslator::new(facts(is_one, section)), events)
}

fn types(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).filter(|kind| *kind != "STATE_SNAPSHOT").collect()
}

fn section(after: i64, passed: i64) -> Section {
    Section { after, passed, ..Section::default() }
}

#[test]
fn answer_becomes_one_text_message() {
    let sent = events_in(&answer(), false, Section::default());
    let expected = [
        "RUN_STARTED",
        "STEP_STARTED",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
        "STEP_FINISHED",
        "RUN_FINISHED",
    ];
    assert_eq!(types(&sent), expected);
    assert_eq!(sent[0], json!({ "type": "RUN_STARTED", "threadId": "thread-1", "runId": "run-1" }));
    let end = sent.last().unwrap();
    assert_eq!((&end["runId"], end.get("outcome")), (&json!("run-1"), None));
    assert_eq!((&end["usage"][0]["provider"], &end["usage"][0]["totalTokens"]), (&json!("demo"), &json!(12)));
}

#[test]
fn result_of_a_tool_is_a_text() {
    let sent = events_in(&tool_call(), false, Section::default());
    let result = sent.iter().find(|event| event["type"] == "TOOL_CALL_RESULT").unwrap();
    assert_eq!((&result["toolCallId"], &result["content"]), (&json!(id("call", 1)), &json!("noon")));
    let call = sent.iter().find(|event| event["type"] == "TOOL_CALL_START").unwrap();
    assert_eq!(call["parentMessageId"], id("msg", 1));
}

#[test]
fn run_that_waits_is_several_runs() {
    let events = approvals();
    let (pauses, answers) = (seqs(&events, "run.waiting"), seqs(&events, "approval.resolved"));
    let first = events_in(&events, false, Section::default());
    let outcome = &first.last().unwrap()["outcome"];
    let ids = |outcome: &Value| outcome["interrupts"].as_array().unwrap().iter().map(|open| open["id"].clone()).collect::<Vec<_>>();
    assert_eq!((&outcome["type"], ids(outcome)), (&json!("interrupt"), vec![json!(id("input", 1)), json!(id("input", 2))]));
    let second = events_in(&events, false, section(pauses[0], answers[0]));
    assert_eq!(types(&second), ["RUN_STARTED", "TOOL_CALL_RESULT", "RUN_FINISHED"]);
    assert_eq!(ids(&second.last().unwrap()["outcome"]), [json!(id("input", 2))]);
    let third = events_in(&events, false, section(pauses[1], answers[1]));
    assert_eq!(third.last().unwrap().get("outcome"), None);
}

/// Two answers in one request: the worker claims the run at the first, and waits for the second, which is stored already.
#[test]
fn wait_for_a_stored_answer_is_no_pause() {
    let approval = |number: u32, name: &str| {
        let request = json!({
            "id": id("input", number), "call_id": id("call", number), "name": name, "tool": name, "description": "Writes",
            "arguments": {}, "arguments_hash": "0", "destructive": false, "scopes": ["once"],
        });
        ("approval.requested", request)
    };
    let resolved = |number: u32| {
        ("approval.resolved", json!({ "id": id("input", number), "call_id": id("call", number), "status": "allowed" }))
    };
    let waits = |number: u32| ("run.waiting", json!({ "reason": "approval", "id": id("input", number) }));
    let mut events = calls(1, &["write", "erase"]);
    events.extend([approval(1, "write"), approval(2, "erase"), waits(1), resolved(1), resolved(2)]);
    events.extend(runs_tool(1, "write", "done", "written"));
    events.push(waits(2));
    events.extend(runs_tool(2, "erase", "done", "erased"));
    events.push(("step.completed", json!({ "step": 2 })));
    events.extend(says(3, ["Do", "ne."]));
    events.push(("run.completed", json!({ "finish_reason": "stop", "usage": { "input_tokens": 7, "output_tokens": 5 } })));
    let events = log(&events);
    let (pauses, answers) = (seqs(&events, "run.waiting"), seqs(&events, "approval.resolved"));
    let sent = events_in(&events, true, section(pauses[0], answers[1]));
    assert_eq!(sent.iter().filter(|event| event["type"] == "TOOL_CALL_RESULT").count(), 2, "{sent:?}");
    assert_eq!(sent.last().unwrap()["outcome"], json!({ "type": "success" }));
    check(&sent, "two answers");
}

/// A call of a client tool, its result, and an answer.
fn client_call() -> Vec<StoredEvent> {
    let (call, arguments) = (id("call", 1), json!({ "n": 1 }));
    let mut events = calls(1, &["look"]);
    events.extend([
        ("tool.requested", json!({ "call_id": call, "name": "look", "arguments": arguments })),
        ("run.waiting", json!({ "reason": "client_tool", "id": call })),
        ("run.resumed", json!({ "cause": "request" })),
        runs_tool(1, "look", "done", "a door").remove(1),
        ("step.completed", json!({ "step": 2 })),
    ]);
    events.extend(says(3, ["A do", "or."]));
    events.push(("run.completed", json!({ "finish_reason": "stop", "usage": { "input_tokens": 7, "output_tokens": 5 } })));
    log(&events)
}

#[test]
fn client_call_is_requested_where_the_run_waits() {
    let events = client_call();
    let pause = seqs(&events, "run.waiting")[0];
    let requests = |section: Section| {
        let sent = events_in(&events, true, section);
        check(&sent, "client call");
        sent.into_iter()
            .filter(|event| event["name"] == "tool-input-available")
            .map(|event| event["value"].clone())
            .collect::<Vec<_>>()
    };
    let call = json!({ "toolCallId": id("call", 1), "toolName": "look", "input": { "n": 1 } });
    assert_eq!(requests(Section::default()), [call]);
    assert_eq!((requests(whole(&events)), requests(section(pause, pause))), (vec![], vec![]), "the call has its result");
}

#[test]
fn result_that_the_client_has_sent_is_not_repeated() {
    let events = client_call();
    let pause = seqs(&events, "run.waiting")[0];
    let results = |client_results: BTreeSet<CallId>| {
        let facts = AgUiRunFacts { client_results, ..facts(true, section(pause, pause)) };
        let sent = translated(AgUiTranslator::new(facts), &events);
        sent.iter().filter(|event| event["type"] == "TOOL_CALL_RESULT").count()
    };
    let call = CallId::parse(&id("call", 1)).unwrap();
    assert_eq!((results(BTreeSet::new()), results(BTreeSet::from([call.clone()]))), (1, 0));
    // TanStack AI sends a message of its own for a decided call, which is no result.
    let facts = AgUiRunFacts { client_results: BTreeSet::from([call]), ..facts(true, Section::default()) };
    let sent = translated(AgUiTranslator::new(facts), &tool_call());
    assert_eq!(sent.iter().filter(|event| event["type"] == "TOOL_CALL_RESULT").count(), 1);
}

#[test]
fn call_with_unknown_outcome_has_the_stored_result() {
    let call = id("call", 1);
    let part = json!({
        "type": "tool_result", "id": id("part", 70), "call_id": call, "name": "write", "is_error": true, "state": "unknown",
        "content": [{ "type": "text", "text": "this call may or may not have taken effect" }],
    });
    let message = json!({
        "id": id("msg", 2), "conversation_id": CONVERSATION, "run_id": RUN, "role": "tool", "status": "complete", "parts": [part],
        "created_at": "2026-01-01T00:00:00.000Z",
    });
    let mut events = calls(1, &["write"]);
    events.extend([
        ("tool.outcome_unknown", json!({ "call_id": call, "name": "write", "arguments": { "n": 1 } })),
        ("message.completed", json!({ "message": message })),
        ("step.completed", json!({ "step": 2 })),
        ("run.completed", json!({ "finish_reason": "stop", "usage": { "input_tokens": 7, "output_tokens": 5 } })),
    ]);
    let sent = events_in(&log(&events), true, Section::default());
    let results: Vec<&Value> =
        sent.iter().filter(|event| event["type"] == "TOOL_CALL_RESULT").map(|event| &event["content"]).collect();
    assert_eq!(results, ["this call may or may not have taken effect"]);
    check(&sent, "unknown outcome");
}

/// The hash is `digestInterruptJson(canonicalInterruptJson(responseSchema))` of `@tanstack/ai`.
#[test]
fn binding_of_an_interrupt_has_the_hash_of_its_schema() {
    let sent = events_in(&approvals(), false, Section::default());
    let interrupt = &sent.last().unwrap()["outcome"]["interrupts"][0];
    let binding = &interrupt["metadata"]["tanstack:interruptBinding"];
    let hash = "sha256:67d7c1941b3806df9339b5c9ee100bb401983fa9ec05a5cb804e0eca6f656663";
    assert_eq!((&binding["interruptId"], &binding["responseSchemaHash"]), (&interrupt["id"], &json!(hash)));
}

#[test]
fn approval_for_tanstack_has_its_reason_and_input() {
    let facts = AgUiRunFacts { client: AgUiClient::TanStack, ..facts(false, Section::default()) };
    let sent = translated(AgUiTranslator::new(facts), &approvals());
    let interrupt = &sent.last().unwrap()["outcome"]["interrupts"][0];
    assert_eq!(interrupt["reason"], "approval_required");
    assert_eq!(interrupt["metadata"]["input"], interrupt["metadata"]["arguments"]);
    check(&sent, "approvals for TanStack AI");
}

#[test]
fn state_has_plan_usage_and_budget() {
    let events = plan_and_question();
    let sent = events_in(&events, false, whole(&events));
    let state = &sent.iter().rfind(|event| event["type"] == "STATE_SNAPSHOT").unwrap()["snapshot"];
    assert_eq!(state["plan"], json!([{ "step": 1, "description": "Ask", "state": "done" }]));
    assert_eq!((&state["budget"]["remaining"], &state["usage"]["inputTokens"]), (&json!(60), &json!(14)));
}

#[test]
fn newer_material_is_only_for_clients_of_release_one() {
    let (old, new) = (events_in(&cancellation(), false, Section::default()), events_in(&cancellation(), true, Section::default()));
    let error = json!({ "type": "RUN_ERROR", "message": "the run was cancelled", "code": "cancelled" });
    assert_eq!(old.last().unwrap(), &error);
    assert_eq!(new.last().unwrap()["outcome"], json!({ "type": "cancelled" }));
    assert_eq!((old[0].get("protocolVersion"), &new[0]["protocolVersion"]), (None, &json!("1.0")));
}

#[test]
fn reset_empties_the_messages_of_the_step() {
    let sent = events_in(&resets(), false, Section::default());
    let snapshot = sent.iter().find(|event| event["type"] == "MESSAGES_SNAPSHOT").unwrap();
    let emptied = json!({ "id": id("msg", 1), "role": "assistant", "content": "" });
    assert_eq!(snapshot["messages"], json!([{ "id": "m1", "role": "user", "content": "hi" }, emptied]));
    // A snapshot without the earlier messages would delete them in the client.
    let unknown = AgUiRunFacts { messages: None, ..facts(false, Section::default()) };
    let sent = translated(AgUiTranslator::new(unknown), &resets());
    check(&sent, "no snapshot");
    let has = |kind: &str, name: &str| {
        sent.iter().any(|event| event["type"] == kind && event["name"].as_str().unwrap_or_default() == name)
    };
    assert!(has("CUSTOM", "step.reset") && !has("MESSAGES_SNAPSHOT", ""), "{sent:?}");
}

#[test]
fn voided_step_is_shown_only_to_a_client_that_has_begun_it() {
    let resets_of = |section: Section| {
        let sent = events_in(&resets(), false, section);
        sent.iter().filter(|event| event["name"] == "step.reset").count()
    };
    let begun = seqs(&resets(), "part.delta")[0];
    let mut kept = whole(&resets());
    kept.keep_shown(begun);
    assert_eq!((resets_of(Section::default()), resets_of(kept), resets_of(whole(&resets()))), (2, 1, 0));
}

#[test]
fn events_of_a_cut_log_begin_the_events_of_the_whole_log() {
    for (name, events) in all() {
        let all = events_in(&events, true, whole(&events));
        for cut in 0..events.len() {
            assert!(all.starts_with(&events_in(&events[..cut], true, whole(&events))), "{name} cut at {cut}");
        }
    }
}

#[test]
fn events_obey_the_verifier_of_the_client() {
    for (name, events) in all() {
        for is_one in [false, true] {
            check(&events_in(&events, is_one, whole(&events)), name);
            check(&events_in(&events, is_one, Section::default()), name);
        }
    }
}

fn has_null(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.iter().any(has_null),
        Value::Object(fields) => fields.values().any(has_null),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// Checks the rules that the client enforces, and that the run ends.
fn check(events: &[Value], name: &str) {
    let mut open: BTreeSet<(&str, &str)> = BTreeSet::new();
    for (at, event) in events.iter().enumerate() {
        let what = || format!("{name} {at}: {event}");
        let field = |field: &str| event[field].as_str().unwrap_or_default();
        assert!(!has_null(event), "{}", what());
        let message = field("messageId");
        match field("type") {
            "RUN_STARTED" => assert_eq!(at, 0, "{}", what()),
            "RUN_FINISHED" | "RUN_ERROR" => assert!(at + 1 == events.len() && open.is_empty(), "{} {open:?}", what()),
            "STEP_STARTED" => assert!(open.insert(("step", field("stepName"))), "{}", what()),
            "STEP_FINISHED" => assert!(open.remove(&("step", field("stepName"))), "{}", what()),
            "TEXT_MESSAGE_START" => assert!(open.insert(("text", message)), "{}", what()),
            "TEXT_MESSAGE_CONTENT" => assert!(open.contains(&("text", message)) && !field("delta").is_empty(), "{}", what()),
            "TEXT_MESSAGE_END" => assert!(open.remove(&("text", message)), "{}", what()),
            "REASONING_START" => assert!(open.insert(("span", message)), "{}", what()),
            "REASONING_MESSAGE_START" => assert!(open.insert(("reasoning", message)), "{}", what()),
            "REASONING_MESSAGE_CONTENT" => assert!(open.contains(&("reasoning", message)), "{}", what()),
            "REASONING_MESSAGE_END" => assert!(open.remove(&("reasoning", message)), "{}", what()),
            "REASONING_END" => assert!(open.remove(&("span", message)), "{}", what()),
            "TOOL_CALL_START" => assert!(open.insert(("call", field("toolCallId"))), "{}", what()),
            "TOOL_CALL_ARGS" => assert!(open.contains(&("call", field("toolCallId"))), "{}", what()),
            "TOOL_CALL_END" => assert!(open.remove(&("call", field("toolCallId"))), "{}", what()),
            "TOOL_CALL_RESULT" => assert!(event["content"].is_string(), "{}", what()),
            "STATE_SNAPSHOT" | "MESSAGES_SNAPSHOT" | "ACTIVITY_SNAPSHOT" | "CUSTOM" => {}
            kind => panic!("{kind} in {}", what()),
        }
    }
    assert!(matches!(events.last().unwrap()["type"].as_str(), Some("RUN_FINISHED" | "RUN_ERROR")), "{name}");
}
