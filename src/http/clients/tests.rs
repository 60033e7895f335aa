//! Event lists of runs, as the log contains them, for the tests of all translators.

use serde_json::{Value, json};

use super::pauses::{RunPauses, Section};
use super::stream::ChunkTranslator;
use crate::domain::event::StoredEvent;
use crate::domain::ids::{ConversationId, RunId};
use crate::support::clock::UnixMillis;

pub(in crate::http) const RUN: &str = "run_00000000000000000000000000000001";
pub(in crate::http) const CONVERSATION: &str = "conv_00000000000000000000000000000001";

/// The type and the data of an event.
type Event = (&'static str, Value);

/// Returns an id with a small number.
pub(in crate::http) fn id(prefix: &str, number: u32) -> String {
    format!("{prefix}_{number:032x}")
}

/// Returns events with these types and data, numbered from 1.
pub(in crate::http) fn log(events: &[Event]) -> Vec<StoredEvent> {
    let stored = |(seq, (kind, data)): (i64, &Event)| StoredEvent {
        seq,
        kind: (*kind).into(),
        conversation_id: ConversationId::parse(CONVERSATION).unwrap(),
        run_id: Some(RunId::parse(RUN).unwrap()),
        attempt: 1,
        at: UnixMillis(0),
        data: data.to_string(),
    };
    (1..).zip(events).map(stored).collect()
}

fn usage() -> Value {
    json!({ "input_tokens": 7, "output_tokens": 5 })
}

fn begin() -> Vec<Event> {
    vec![
        ("run.queued", json!({ "position": 0 })),
        ("run.started", json!({ "model": "demo/demo", "agent": "default", "agent_version": 1 })),
    ]
}

/// Returns the log of a run that has these events, and completes.
fn completed(events: impl IntoIterator<Item = Vec<Event>>) -> Vec<StoredEvent> {
    let mut all = begin();
    all.extend(events.into_iter().flatten());
    all.push(("run.completed", json!({ "finish_reason": "stop", "usage": usage() })));
    log(&all)
}

/// A model step that says a text in two deltas. Its ids contain `number`.
pub(in crate::http) fn says(number: u32, [first, second]: [&str; 2]) -> Vec<Event> {
    let (message, part) = (id("msg", number), id("part", number));
    let whole = json!({ "type": "text", "id": part, "text": format!("{first}{second}") });
    vec![
        ("step.started", json!({ "step": number, "kind": "model" })),
        ("message.started", json!({ "message_id": message, "role": "assistant" })),
        ("part.started", json!({ "message_id": message, "part_id": part, "index": 0, "kind": "text" })),
        ("part.delta", json!({ "part_id": part, "delta": first })),
        ("part.delta", json!({ "part_id": part, "delta": second })),
        ("part.completed", json!({ "message_id": message, "part": whole })),
        ("message.completed", json!({ "message": stored_message(&message, &[whole]) })),
        ("step.completed", json!({ "step": number, "usage": usage() })),
    ]
}

fn stored_message(id: &str, parts: &[Value]) -> Value {
    json!({
        "id": id, "conversation_id": CONVERSATION, "run_id": RUN, "role": "assistant", "status": "complete", "parts": parts,
        "created_at": "2026-01-01T00:00:00.000Z",
    })
}

/// A model step that thinks, and calls tools. The ids of the calls count from `number`.
pub(in crate::http) fn calls(number: u32, names: &[&str]) -> Vec<Event> {
    let (message, thought) = (id("msg", number), id("part", number + 50));
    let reasoning = json!({ "type": "reasoning", "id": thought, "text": "hm" });
    let mut events = vec![
        ("step.started", json!({ "step": number, "kind": "model" })),
        ("message.started", json!({ "message_id": message, "role": "assistant" })),
        ("part.started", json!({ "message_id": message, "part_id": thought, "index": 0, "kind": "reasoning" })),
        ("part.delta", json!({ "part_id": thought, "delta": "hm" })),
        ("part.completed", json!({ "message_id": message, "part": reasoning })),
    ];
    let mut parts = vec![reasoning];
    for (name, at) in names.iter().zip(number..) {
        let (part, call) = (id("part", at), id("call", at));
        let whole = json!({ "type": "tool_call", "id": part, "call_id": call, "name": name, "arguments": { "n": at } });
        events.extend([
            (
                "part.started",
                json!({ "message_id": message, "part_id": part, "index": 1, "kind": "tool_call", "call_id": call, "name": name }),
            ),
            ("part.delta", json!({ "part_id": part, "delta": format!("{{\"n\":{at}}}") })),
            ("part.completed", json!({ "message_id": message, "part": whole })),
        ]);
        parts.push(whole);
    }
    events.extend([
        ("message.completed", json!({ "message": stored_message(&message, &parts) })),
        ("step.completed", json!({ "step": number, "usage": usage() })),
        ("step.started", json!({ "step": number + 1, "kind": "tools" })),
    ]);
    events
}

pub(in crate::http) fn runs_tool(call: u32, name: &str, state: &str, text: &str) -> Vec<Event> {
    let content = json!([{ "type": "text", "text": text }]);
    vec![
        ("tool.started", json!({ "call_id": id("call", call), "name": name, "arguments": { "n": call } })),
        (
            "tool.completed",
            json!({
                "call_id": id("call", call), "name": name, "state": state, "content": content, "is_error": state != "done",
                "duration_ms": 1, "truncated": false,
            }),
        ),
    ]
}

fn asks(approval: u32, call: u32, name: &str) -> Event {
    let request = json!({
        "id": id("input", approval), "call_id": id("call", call), "name": name, "tool": name, "description": "Writes",
        "arguments": { "n": call }, "arguments_hash": "0", "destructive": false, "scopes": ["once"],
    });
    ("approval.requested", request)
}

fn resolves(approval: u32, call: u32, status: &str) -> Event {
    ("approval.resolved", json!({ "id": id("input", approval), "call_id": id("call", call), "status": status }))
}

fn waits(approval: u32) -> Event {
    ("run.waiting", json!({ "reason": "approval", "id": id("input", approval) }))
}

fn resumes() -> Event {
    ("run.resumed", json!({ "cause": "request" }))
}

fn tools_step_ends() -> Event {
    ("step.completed", json!({ "step": 2 }))
}

/// A plain answer.
pub(in crate::http) fn answer() -> Vec<StoredEvent> {
    completed([says(1, ["Hel", "lo"])])
}

/// A call with progress, then an answer with a source.
pub(in crate::http) fn tool_call() -> Vec<StoredEvent> {
    let mut run = runs_tool(1, "clock", "done", "noon");
    run.insert(1, ("tool.progress", json!({ "call_id": id("call", 1), "progress": 1.0, "total": 2.0, "message": "half" })));
    let source = json!({ "type": "source", "id": id("part", 9), "url": "https://time.example/", "title": "Time" });
    let mut answer = says(3, ["It is ", "noon."]);
    answer.insert(answer.len() - 2, ("part.completed", json!({ "message_id": id("msg", 3), "part": source })));
    completed([calls(1, &["clock"]), run, vec![tools_step_ends()], answer])
}

/// Two calls that need an approval: one is allowed, then the other denied. The run waits twice.
pub(in crate::http) fn approvals() -> Vec<StoredEvent> {
    let denied = runs_tool(2, "erase", "denied", "the user denied the call").remove(1);
    completed([
        calls(1, &["write", "erase"]),
        vec![asks(1, 1, "write"), asks(2, 2, "erase"), waits(1), resolves(1, 1, "allowed"), resumes()],
        runs_tool(1, "write", "done", "written"),
        vec![waits(2), resolves(2, 2, "denied"), resumes(), denied, tools_step_ends()],
        says(3, ["Writ", "ten."]),
    ])
}

/// Two calls that need an approval, and two answers at the same time: the worker claims the run after the first answer.
pub(in crate::http) fn answers_together() -> Vec<StoredEvent> {
    completed([
        calls(1, &["write", "erase"]),
        vec![asks(1, 1, "write"), asks(2, 2, "erase"), waits(1)],
        vec![resolves(1, 1, "allowed"), resolves(2, 2, "allowed"), resumes()],
        runs_tool(1, "write", "done", "written"),
        vec![waits(2), resumes()],
        runs_tool(2, "erase", "done", "erased"),
        vec![tools_step_ends()],
        says(3, ["Do", "ne."]),
    ])
}

/// A call of the client's tool `look` beside a call that needs an approval. The client sends its result before the approval is
/// decided.
pub(in crate::http) fn client_call_beside_approval() -> Vec<StoredEvent> {
    let requested = json!({ "call_id": id("call", 1), "name": "look", "arguments": { "n": 1 }, "expires_at": null });
    let looked = runs_tool(1, "look", "done", "a door").remove(1);
    completed([
        calls(1, &["look", "write"]),
        vec![("tool.requested", requested), asks(1, 2, "write"), waits(1), resumes(), looked],
        vec![waits(1), resolves(1, 2, "allowed"), resumes()],
        runs_tool(2, "write", "done", "written"),
        vec![tools_step_ends()],
        says(3, ["Do", "ne."]),
    ])
}

/// A model call that is cut off twice: inside a text, and inside a call.
pub(in crate::http) fn resets() -> Vec<StoredEvent> {
    let error = json!({
        "type": "/docs/errors/provider_network", "title": "t", "status": 502, "detail": "the model was cut off",
        "code": "provider_network", "retryable": true,
    });
    let retry =
        vec![("step.reset", json!({ "step": 1, "reason": "retry" })), ("run.retrying", json!({ "after_ms": 10, "error": error }))];
    let (mut wrong, mut call) = (says(1, ["Wro", "ng"]), calls(1, &["clock"]));
    wrong.truncate(4);
    call.truncate(7);
    completed([wrong, retry.clone(), call, retry, says(1, ["Rig", "ht"])])
}

/// A plan with one step, and a question to the user.
pub(in crate::http) fn plan_and_question() -> Vec<StoredEvent> {
    let question = json!({ "text": "Which colour?", "choices": [{ "value": "red", "label": "Red" }] });
    completed([
        vec![
            ("plan.created", json!({ "steps": [{ "step": 1, "description": "Ask" }] })),
            ("plan.step_started", json!({ "step": 1 })),
        ],
        calls(1, &["ask_user"]),
        vec![
            (
                "input.requested",
                json!({ "id": id("input", 1), "kind": "question", "call_id": id("call", 1), "question": question }),
            ),
            ("run.waiting", json!({ "reason": "input", "id": id("input", 1) })),
            ("input.resolved", json!({ "id": id("input", 1), "state": "answered", "answer": { "choice": "red" } })),
            resumes(),
        ],
        runs_tool(1, "ask_user", "done", "red"),
        vec![
            ("plan.step_completed", json!({ "step": 1, "state": "done" })),
            ("context.budget", json!({ "unit": "tokens", "window": 100, "used": 40, "remaining": 60 })),
        ],
        says(3, ["Re", "d."]),
    ])
}

/// A run that is cancelled during a call, so that the outcome of the call is unknown.
pub(in crate::http) fn unknown_outcome() -> Vec<StoredEvent> {
    let mut events = begin();
    events.extend(calls(1, &["write"]));
    events.push(runs_tool(1, "write", "done", "").remove(0));
    let call = json!({ "call_id": id("call", 1), "name": "write", "server": null, "arguments": { "n": 1 } });
    let content = json!([{ "type": "text", "text": "check before repeating" }]);
    let result = json!({
        "type": "tool_result", "id": id("part", 2), "call_id": id("call", 1), "name": "write", "state": "unknown", "content": content,
        "is_error": true,
    });
    let mut message = stored_message(&id("msg", 2), &[result]);
    message["role"] = json!("tool");
    events.extend([
        ("tool.outcome_unknown", call),
        ("message.started", json!({ "message_id": id("msg", 2), "role": "tool" })),
        ("message.completed", json!({ "message": message })),
        tools_step_ends(),
        ("run.cancelled", json!({ "by": "user" })),
    ]);
    log(&events)
}

/// A run that fails inside a text.
pub(in crate::http) fn failure() -> Vec<StoredEvent> {
    let mut events = begin();
    events.extend(says(1, ["Un", "finished"]).into_iter().take(4));
    let error = json!({
        "type": "/docs/errors/provider_auth", "title": "t", "status": 502, "detail": "the key was refused",
        "code": "provider_auth", "retryable": false,
    });
    events.push(("run.failed", json!({ "error": error })));
    log(&events)
}

/// A run that is cancelled inside a call.
pub(in crate::http) fn cancellation() -> Vec<StoredEvent> {
    let mut events = begin();
    events.extend(calls(1, &["clock"]).into_iter().take(7));
    events.push(("run.cancelled", json!({ "by": "user" })));
    log(&events)
}

/// All lists, with their names.
pub(in crate::http) fn all() -> Vec<(&'static str, Vec<StoredEvent>)> {
    vec![
        ("answer", answer()),
        ("tool_call", tool_call()),
        ("approvals", approvals()),
        ("resets", resets()),
        ("plan_and_question", plan_and_question()),
        ("failure", failure()),
        ("cancellation", cancellation()),
    ]
}

/// Returns the chunks of all events, up to the end of the translation.
pub(in crate::http) fn translated(mut translator: impl ChunkTranslator, events: &[StoredEvent]) -> Vec<Value> {
    events.iter().flat_map(|event| translator.translate(event)).collect()
}

/// Returns the section of a response that begins after the run has ended, and shows the whole run.
pub(in crate::http) fn whole(events: &[StoredEvent]) -> Section {
    let mut pauses = RunPauses::default();
    events.iter().for_each(|event| pauses.add(event));
    pauses.whole(events.len() as i64)
}

/// Returns the `seq` of each event of a type.
pub(in crate::http) fn seqs(events: &[StoredEvent], kind: &str) -> Vec<i64> {
    events.iter().filter(|event| event.kind == kind).map(|event| event.seq).collect()
}

#[test]
fn recorded_events_have_known_types() {
    for (name, events) in all() {
        for event in events {
            assert!(event.body().is_some(), "{name}: {} {}", event.kind, event.data);
        }
    }
}
