//! The chunks of recorded runs.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::assistant_message_id::AssistantMessageId;
use super::translator::{ChatRunFacts, UiMessageTranslator, Version};
use crate::domain::event::StoredEvent;
use crate::http::clients::pauses::Section;
use crate::http::clients::tests::{
    CONVERSATION, RUN, all, answer, answers_together, approvals, client_call_beside_approval, failure, id, log, plan_and_question,
    resets, seqs, tool_call, translated, unknown_outcome, whole,
};

const VERSIONS: [Version; 3] = [Version::Five, Version::Six, Version::Seven];

fn chunks(events: &[StoredEvent], version: Version, section: Section) -> Vec<Value> {
    let facts =
        ChatRunFacts { id: AssistantMessageId::parse(RUN).unwrap(), version, section, client_tools: ["look".to_owned()].into() };
    translated(UiMessageTranslator::new(facts), events)
}

fn types(chunks: &[Value]) -> Vec<&str> {
    chunks.iter().map(|chunk| chunk["type"].as_str().unwrap()).collect()
}

fn section(after: i64, passed: i64) -> Section {
    Section { after, passed, ..Section::default() }
}

#[test]
fn answer_becomes_one_message_with_one_step() {
    let sent = chunks(&answer(), Version::Six, Section::default());
    let part = id("part", 1);
    assert_eq!(sent[0]["messageId"], RUN);
    assert_eq!(sent[3], json!({ "type": "text-delta", "id": part, "delta": "Hel" }));
    assert_eq!(
        types(&sent),
        ["start", "start-step", "text-start", "text-delta", "text-delta", "text-end", "finish-step", "finish"]
    );
    assert_eq!(sent.last().unwrap()["finishReason"], "stop");
}

#[test]
fn server_tool_is_dynamic_and_executed_by_the_provider() {
    let sent = chunks(&tool_call(), Version::Six, Section::default());
    for chunk in sent.iter().filter(|chunk| chunk["type"].as_str().unwrap().starts_with("tool-") && chunk.get("toolName").is_some())
    {
        assert_eq!((&chunk["dynamic"], &chunk["providerExecuted"]), (&json!(true), &json!(true)), "{chunk}");
    }
    let outputs: Vec<&Value> = sent.iter().filter(|chunk| chunk["type"] == "tool-output-available").collect();
    assert_eq!(outputs[0]["preliminary"], true);
    assert_eq!((&outputs[1]["output"], outputs[1].get("preliminary")), (&json!("noon"), None));
    assert!(types(&sent).contains(&"source-url"), "{sent:?}");
}

#[test]
fn plan_is_sent_again_with_each_state_of_its_steps() {
    let events = plan_and_question();
    let sent = chunks(&events, Version::Six, whole(&events));
    let plans = sent.iter().filter(|chunk| chunk["type"] == "data-plan");
    let states: Vec<&Value> = plans.map(|chunk| &chunk["data"]["steps"][0]["state"]).collect();
    assert_eq!(states, ["pending", "active", "done"]);
}

#[test]
fn response_ends_at_a_pause_and_the_next_continues_its_message() {
    let events = approvals();
    let (pauses, answers) = (seqs(&events, "run.waiting"), seqs(&events, "approval.resolved"));
    let first = chunks(&events, Version::Six, Section::default());
    assert_eq!(types(&first)[first.len() - 4..], ["tool-approval-request", "tool-approval-request", "finish-step", "finish"]);
    let second = chunks(&events, Version::Six, section(pauses[0], answers[0]));
    assert_eq!(types(&second), ["start", "tool-output-available", "finish"]);
    let third = chunks(&events, Version::Six, section(pauses[1], answers[1]));
    assert_eq!(types(&third)[..3], ["start", "tool-output-denied", "start-step"]);
    assert_eq!(third.last().unwrap()["finishReason"], "stop");
    for response in [&first, &second, &third] {
        assert_eq!(response[0]["messageId"], RUN);
    }
}

#[test]
fn response_after_two_answers_continues_to_the_end() {
    let events = answers_together();
    let (pauses, answers) = (seqs(&events, "run.waiting"), seqs(&events, "approval.resolved"));
    let sent = chunks(&events, Version::Six, section(pauses[0], answers[1]));
    assert_eq!(types(&sent)[..4], ["start", "tool-output-available", "tool-output-available", "start-step"]);
    assert_eq!(sent.last().unwrap()["finishReason"], "stop");
}

#[test]
fn call_that_waits_is_unmarked_after_the_results() {
    let events = client_call_beside_approval();
    let (pauses, results) = (seqs(&events, "run.waiting"), seqs(&events, "tool.completed"));
    let marks = |chunks: &[Value]| -> Vec<Value> {
        let starts = chunks.iter().filter(|chunk| chunk["type"] == "tool-input-start" && chunk["toolName"] == "write");
        starts.map(|chunk| chunk["providerExecuted"].clone()).collect()
    };
    for version in VERSIONS {
        let first = chunks(&events, version, Section::default());
        assert_eq!(marks(&first), [true], "the client executes its call first");
        let second = chunks(&events, version, section(pauses[0], results[0]));
        assert_eq!(marks(&second), [false]);
        let expected =
            ["start", "tool-output-available", "tool-input-start", "tool-input-delta", "tool-approval-request", "finish"];
        let expected = expected.iter().filter(|kind| version > Version::Five || **kind != "tool-approval-request");
        assert_eq!(types(&second), expected.copied().collect::<Vec<_>>());
        assert_eq!(second[3]["inputTextDelta"], r#"{"n":2}"#);
        let third = chunks(&events, version, section(pauses[1], seqs(&events, "approval.resolved")[0]));
        let output = third.iter().find(|chunk| chunk["type"] == "tool-output-available").unwrap();
        assert_eq!(output["providerExecuted"], true);
        check(&first, "client_call_beside_approval");
    }
}

#[test]
fn message_that_joins_a_run_gets_its_own_answer() {
    let mut events = client_call_beside_approval();
    let (pauses, resumed) = (seqs(&events, "run.waiting"), seqs(&events, "run.resumed"));
    let joined = id("msg", 99);
    let user = json!({
        "id": joined, "conversation_id": CONVERSATION, "run_id": RUN, "role": "user", "status": "complete", "parts": [],
        "created_at": "2026-01-01T00:00:00.000Z",
    });
    // The message joins after the decision, before the worker claims the run.
    let place = events.iter().position(|event| event.seq == resumed[1]).unwrap();
    events[place] = log(&[("message.created", json!({ "message": user }))]).remove(0);
    events[place].seq = resumed[1];
    let section = section(pauses[1], seqs(&events, "approval.resolved")[0]);
    for version in VERSIONS {
        let name = format!("{RUN}.{joined}");
        let (id, client_tools) = (AssistantMessageId::parse(&name).unwrap(), ["look".to_owned()].into());
        let facts = ChatRunFacts { id, version, section: section.clone(), client_tools };
        let sent = translated(UiMessageTranslator::new(facts), &events);
        // The new message has the call that runs now, and no output of an earlier call.
        assert_eq!(
            types(&sent)[..5],
            ["start", "start-step", "tool-input-available", "tool-output-available", "finish-step"],
            "{sent:?}"
        );
        assert_eq!((&sent[0]["messageId"], &sent[0]["messageMetadata"]["run_id"]), (&json!(name), &json!(RUN)));
        assert_eq!(sent.last().unwrap()["finishReason"], "stop");
        check(&sent, "joined");
    }
}

#[test]
fn whole_run_has_no_end_at_passed_pauses() {
    for (name, events) in all() {
        let sent = chunks(&events, Version::Six, whole(&events));
        let ends = sent.iter().filter(|chunk| ["finish", "error", "abort"].contains(&chunk["type"].as_str().unwrap())).count();
        assert_eq!((ends, types(&sent)[0]), (1, "start"), "{name}");
    }
}

#[test]
fn newer_chunks_are_sent_only_on_request() {
    let sent = |version| chunks(&approvals(), version, whole(&approvals()));
    let (five, six, seven) = (sent(Version::Five), sent(Version::Six), sent(Version::Seven));
    assert!(!types(&five).iter().any(|kind| kind.starts_with("tool-approval") || *kind == "tool-output-denied"), "{five:?}");
    assert!(types(&five).contains(&"data-approval-request"), "{five:?}");
    assert!(!types(&six).contains(&"tool-approval-response"), "{six:?}");
    assert!(types(&seven).contains(&"tool-approval-response"), "{seven:?}");
    assert!(!types(&chunks(&resets(), Version::Six, Section::default())).contains(&"reset-step"));
    assert!(types(&chunks(&resets(), Version::Seven, Section::default())).contains(&"reset-step"));
}

#[test]
fn later_response_has_no_voided_text() {
    let said = |chunks: &[Value]| chunks.iter().filter_map(|chunk| chunk["delta"].as_str()).collect::<String>();
    for version in VERSIONS {
        let (live, later) = (chunks(&resets(), version, Section::default()), chunks(&resets(), version, whole(&resets())));
        assert!(said(&live).len() > said(&later).len() && said(&live).ends_with(&said(&later)), "{live:?} {later:?}");
        assert_eq!(types(&later).iter().filter(|kind| **kind == "start-step").count(), 1, "{later:?}");
    }
}

#[test]
fn failed_run_ends_with_its_error() {
    let sent = chunks(&failure(), Version::Six, Section::default());
    assert_eq!(sent.last().unwrap(), &json!({ "type": "error", "errorText": "the key was refused" }));
}

#[test]
fn call_with_unknown_outcome_ends_with_the_stored_text() {
    for version in VERSIONS {
        let sent = chunks(&unknown_outcome(), version, Section::default());
        assert_eq!(types(&sent)[sent.len() - 4..], ["tool-output-error", "tool-output-error", "finish-step", "abort"]);
        let error = &sent[sent.len() - 3];
        assert_eq!((&error["errorText"], &error["providerExecuted"]), (&json!("check before repeating"), &json!(true)));
    }
}

#[test]
fn chunks_of_a_cut_log_begin_the_chunks_of_the_whole_log() {
    for (name, events) in all() {
        for version in VERSIONS {
            let all = chunks(&events, version, whole(&events));
            for cut in 0..events.len() {
                let part = chunks(&events[..cut], version, whole(&events));
                assert!(all.starts_with(&part), "{name} cut at {cut}");
            }
        }
    }
}

#[test]
fn chunks_obey_the_rules_of_the_client() {
    for (name, events) in all() {
        for version in VERSIONS {
            check(&chunks(&events, version, whole(&events)), name);
            check(&chunks(&events, version, Section::default()), name);
        }
    }
}

/// Checks the rules that the reader of a UI message stream enforces, and that nothing stays open.
fn check(chunks: &[Value], name: &str) {
    let mut open: BTreeSet<(&str, &str)> = BTreeSet::new();
    let mut calls: BTreeMap<&str, &str> = BTreeMap::new();
    let mut is_in_step = false;
    for (at, chunk) in chunks.iter().enumerate() {
        let what = || format!("{name} {at}: {chunk}");
        let field = |field: &str| chunk[field].as_str().unwrap_or_default();
        assert!(
            !chunk.as_object().unwrap().values().any(|value| value.is_null() && field("type") != "tool-input-error"),
            "{}",
            what()
        );
        match (field("type"), field("id"), field("toolCallId")) {
            ("start-step", ..) => assert!(!std::mem::replace(&mut is_in_step, true), "{}", what()),
            ("finish-step", ..) => assert!(std::mem::take(&mut is_in_step) && open.is_empty(), "{} {open:?}", what()),
            ("reset-step", ..) => {
                open.clear();
                calls.clear();
            }
            ("text-start", id, _) => assert!(is_in_step && open.insert(("text", id)), "{}", what()),
            ("text-delta", id, _) => assert!(open.contains(&("text", id)), "{}", what()),
            ("text-end", id, _) => assert!(open.remove(&("text", id)), "{}", what()),
            ("reasoning-start", id, _) => assert!(is_in_step && open.insert(("reasoning", id)), "{}", what()),
            ("reasoning-delta", id, _) => assert!(open.contains(&("reasoning", id)), "{}", what()),
            ("reasoning-end", id, _) => assert!(open.remove(&("reasoning", id)), "{}", what()),
            ("tool-input-start", _, call) => assert_eq!(calls.insert(call, "streaming"), None, "{}", what()),
            ("tool-input-delta", _, call) => assert_eq!(calls.get(call), Some(&"streaming"), "{}", what()),
            ("tool-input-available", _, call) => assert_ne!(calls.insert(call, "available"), Some("over"), "{}", what()),
            ("tool-input-error" | "tool-output-error" | "tool-output-denied", _, call) => {
                assert!(calls.insert(call, "over").is_some_and(|before| before != "over"), "{}", what());
            }
            ("tool-output-available", _, call) => {
                assert_eq!(calls.get(call), Some(&"available"), "{}", what());
                if chunk.get("preliminary").is_none() {
                    calls.insert(call, "over");
                }
            }
            ("tool-approval-request", _, call) => assert_eq!(calls.get(call), Some(&"available"), "{}", what()),
            ("start", ..) => assert_eq!(at, 0, "{}", what()),
            ("finish" | "error" | "abort", ..) => {
                assert!(at + 1 == chunks.len() && open.is_empty() && !is_in_step, "{} {open:?}", what());
            }
            ("source-url" | "source-document" | "file" | "tool-approval-response", ..) => {}
            (kind, ..) => assert!(kind.starts_with("data-"), "{}", what()),
        }
    }
    assert!(!calls.values().any(|state| *state == "streaming"), "{name}: {calls:?}");
}
