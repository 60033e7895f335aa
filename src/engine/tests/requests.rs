//! Requests follow the providers' rules for any stored history.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;

use crate::domain::agent::AgentProfile;
use crate::domain::conversation::message::{
    Message, MessageStatus, Part, ReasoningPart, Role, TextPart, ToolCallPart, ToolContent, ToolResultPart,
};
use crate::domain::ids::{CallId, MessageId, PartId, RunId};
use crate::domain::run::record::ClaimCause;
use crate::domain::tool::ToolCallState;
use crate::engine::tests::world::{World, call, content_text, done};
use crate::engine::{RunState, model_request, prompts};
use crate::engine::{Unsendable, check_sendable};
use crate::support::ids::SequentialIds;

#[test]
fn a_missing_result_names_the_stored_state() {
    let mut world = World::started(AgentProfile::default());
    world.calls(&[call("write", &json!({})), call("read", &json!({}))]);
    let mut rows = world.rows.clone();
    Arc::make_mut(&mut rows.calls[1]).state = ToolCallState::Done;
    Arc::make_mut(&mut rows.calls[1]).outcome = Some(done("stored"));
    let request = model_request(&RunState::load(rows));
    check_sendable(&request.messages).unwrap();
    let texts: Vec<_> = results(request.messages.last().unwrap());
    assert!(texts[0].contains("started"));
    assert_eq!(texts[1], "stored");
}

#[test]
fn messages_between_a_call_and_its_result_come_after_it() {
    let mut world = World::started(AgentProfile::default());
    world.calls(&[call("read", &json!({}))]);
    world.join("Wait!");
    world.tool_says(0, "ok");
    let roles: Vec<_> = world.asked.as_ref().unwrap().messages.iter().map(|message| message.role).collect();
    assert_eq!(roles, [Role::User, Role::Assistant, Role::Tool, Role::User]);
}

/// Each request of a test world is compared with its record; this shows that records stay small.
#[test]
fn records_of_one_claim_contain_each_message_once() {
    let mut world = World::started(AgentProfile { tool_result_chars: 100, ..AgentProfile::default() });
    for _ in 0..3 {
        world.calls(&[call("read", &json!({"n": world.decisions}))]);
        world.tool_says(0, &"ü".repeat(1_000));
    }
    let sizes: Vec<_> = world.recorded.values().map(String::len).collect();
    assert!(sizes.len() == 4 && sizes[1..].iter().all(|size| *size < 400), "{sizes:?}");
    world.die();
    world.claim(ClaimCause::Crash);
    assert!(world.recorded[&7].contains("\"system\""), "the new claim has forgotten earlier records");
    world.says_text("Done.");
    assert_eq!(world.rebuilt(7).messages.len(), 7);
}

#[test]
fn hints_of_earlier_runs_are_left_out() {
    let mut world = World::started(AgentProfile::default());
    world.says(&[], crate::domain::model::ModelFinish::Stop);
    assert!(world.asked.as_ref().unwrap().messages[0].text().contains(prompts::EMPTY_REPLY));
    let mut rows = world.rows.clone();
    rows.fence.run_id = RunId::generate(&world.ids);
    let request = model_request(&RunState::load(rows));
    assert_eq!(request.messages[0].text(), "What is in the file?");
}

#[test]
fn long_results_are_cut_for_the_model_only() {
    let mut world = World::started(AgentProfile { tool_result_chars: 100, ..AgentProfile::default() });
    world.calls(&[call("read", &json!({}))]);
    let decision = world.tool_says(0, &"ü".repeat(1_000));
    let crate::domain::event::EventBody::ToolCompleted { truncated, .. } = &decision.events[0] else { panic!("{decision:?}") };
    assert!(truncated);
    let sent = results(world.asked.as_ref().unwrap().messages.last().unwrap());
    assert!(sent[0].chars().count() <= 100 && sent[0].contains("of 1000 characters"), "{sent:?}");
    let stored = world.rows.calls[0].outcome.as_ref().unwrap();
    assert_eq!(content_text(&stored.content[0]).chars().count(), 1_000);
}

#[test]
fn calls_of_a_partial_message_are_not_sent() {
    let mut world = World::new(AgentProfile::default());
    let ids = SequentialIds::default();
    let parts = vec![text_part(&ids, "Let me"), call_part(&ids, &CallId::generate(&ids))];
    world.rows.history.push(Message { status: MessageStatus::Partial, ..message(&ids, Role::Assistant, parts) });
    world.rows.history.push(world.user("Go on."));
    let request = model_request(&RunState::load(world.rows));
    check_sendable(&request.messages).unwrap();
    assert_eq!(request.messages[1].parts.len(), 1);
    assert_eq!(request.messages[1].text(), "Let me");
}

#[test]
fn nothing_at_all_still_makes_a_request() {
    let mut world = World::new(AgentProfile::default());
    world.rows.history.clear();
    check_sendable(&model_request(&RunState::load(world.rows)).messages).unwrap();
}

#[test]
fn the_validator_finds_every_breach() {
    let ids = SequentialIds::default();
    let [user, answer] =
        [(Role::User, "a"), (Role::Assistant, "b")].map(|(role, text)| message(&ids, role, vec![text_part(&ids, text)]));
    let id = CallId::generate(&ids);
    let asks = message(&ids, Role::Assistant, vec![call_part(&ids, &id)]);
    let told = message(&ids, Role::Tool, vec![result_part(&ids, &id)]);
    let twice = message(&ids, Role::Tool, vec![result_part(&ids, &id), result_part(&ids, &id)]);
    let empty = message(&ids, Role::User, Vec::new());
    let odd = message(&ids, Role::Assistant, vec![named_call(&ids, &id, "functions.read", json!({}))]);
    let other = CallId::generate(&ids);
    let alike = message(&ids, Role::Assistant, vec![call_part(&ids, &other)]);
    let told_other = message(&ids, Role::Tool, vec![result_part(&ids, &other)]);
    let check = |messages: &[&Message]| check_sendable(&messages.iter().copied().cloned().collect::<Vec<_>>());

    assert_eq!(check(&[&user, &asks, &told]), Ok(()));
    assert_eq!(check(&[&user, &answer, &user]), Ok(()));
    assert_eq!(check(&[]), Err(Unsendable::Nothing));
    assert_eq!(check(&[&answer, &user]), Err(Unsendable::OutOfTurn { at: 0 }));
    assert_eq!(check(&[&user, &user]), Err(Unsendable::OutOfTurn { at: 1 }));
    assert_eq!(check(&[&user, &answer]), Err(Unsendable::OutOfTurn { at: 1 }));
    assert_eq!(check(&[&user, &told]), Err(Unsendable::OutOfTurn { at: 1 }));
    assert_eq!(check(&[&user, &answer, &told]), Err(Unsendable::OutOfTurn { at: 2 }));
    assert_eq!(check(&[&user, &asks]), Err(Unsendable::Unanswered { at: 1 }));
    assert_eq!(check(&[&user, &asks, &user]), Err(Unsendable::Unanswered { at: 1 }));
    assert_eq!(check(&[&user, &asks, &twice]), Err(Unsendable::Unanswered { at: 1 }));
    assert_eq!(check(&[&user, &asks, &told, &asks, &told]), Err(Unsendable::RepeatedCall { call_id: id }));
    assert_eq!(check(&[&user, &asks, &told, &alike, &told_other]), Err(Unsendable::RepeatedCall { call_id: other }));
    assert_eq!(check(&[&user, &odd, &told]), Err(Unsendable::Misplaced { at: 1 }));
    assert_eq!(check(&[&empty]), Err(Unsendable::Empty { at: 0 }));
    assert_eq!(check(&[&message(&ids, Role::User, told.parts)]), Err(Unsendable::Misplaced { at: 0 }));
}

fn results(message: &Message) -> Vec<String> {
    let parts = message.parts.iter();
    parts
        .map(|part| match part {
            Part::ToolResult(result) => result.content.iter().map(content_text).collect(),
            other => panic!("no result: {other:?}"),
        })
        .collect()
}

fn message(ids: &SequentialIds, role: Role, parts: Vec<Part>) -> Message {
    Message::new(MessageId::generate(ids), (RunId::generate(ids), crate::domain::ids::ConversationId::generate(ids)), role, parts)
}

fn text_part(ids: &SequentialIds, text: &str) -> Part {
    Part::Text(TextPart { id: PartId::generate(ids), text: text.to_owned() })
}

fn call_part(ids: &SequentialIds, call_id: &CallId) -> Part {
    named_call(ids, call_id, "read", json!({}))
}

/// Providers choose the ids of calls: here all are equal.
fn named_call(ids: &SequentialIds, call_id: &CallId, name: &str, arguments: serde_json::Value) -> Part {
    Part::ToolCall(ToolCallPart {
        id: PartId::generate(ids),
        call_id: call_id.clone(),
        name: name.to_owned(),
        arguments,
        provider_call_id: Some("call_0".to_owned()),
        raw: None,
        undoes: None,
    })
}

fn result_part(ids: &SequentialIds, call_id: &CallId) -> Part {
    Part::ToolResult(ToolResultPart {
        id: PartId::generate(ids),
        call_id: call_id.clone(),
        name: "read".to_owned(),
        content: vec![ToolContent::text("ok")],
        is_error: false,
        state: ToolCallState::Done,
        undoable: false,
    })
}

/// Generates a part of any kind, with the number of its call.
fn any_part() -> impl Strategy<Value = (u8, usize)> {
    (0..7_u8, 0..4_usize)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Rows that no correct run writes: calls without results, results without calls, repeated results, wrong roles.
    #[test]
    fn any_history_becomes_sendable(rows in prop::collection::vec((0..3_u8, any::<bool>(), any::<bool>(), prop::collection::vec(any_part(), 0..4)), 0..12)) {
        let mut world = World::new(AgentProfile::default());
        world.rows.history.clear();
        let ids = SequentialIds::default();
        let calls: Vec<_> = (0..4).map(|_| CallId::generate(&ids)).collect();
        for (role, is_partial, is_internal, parts) in rows {
            let role = [Role::User, Role::Assistant, Role::Tool][role as usize];
            let parts = parts.into_iter().map(|(kind, at)| match kind {
                0 => text_part(&ids, "words"),
                1 => text_part(&ids, " "),
                2 => Part::Reasoning(ReasoningPart { id: PartId::generate(&ids), text: "hm".to_owned(), raw: None }),
                3 => call_part(&ids, &calls[at]),
                4 => result_part(&ids, &calls[at]),
                5 => named_call(&ids, &calls[at], ["", "functions.read", "ä b", "x"][at], json!([1])),
                _ => text_part(&ids, ""),
            }).collect();
            let mut message = message(&ids, role, parts);
            message.status = if is_partial { MessageStatus::Partial } else { MessageStatus::Complete };
            message.internal = is_internal;
            world.rows.history.push(message);
        }
        let request = model_request(&RunState::load(world.rows));
        prop_assert_eq!(check_sendable(&request.messages), Ok(()));
    }
}
