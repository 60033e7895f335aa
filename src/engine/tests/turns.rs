//! The ordinary run: the events and rows of each decision.

use rstest::rstest;
use serde_json::json;

use crate::domain::agent::prompt::ServerNote;
use crate::domain::agent::{AgentProfile, BreakerAction, LlmRetry, OnLimit, ToolsPolicy};
use crate::domain::conversation::message::{Message, MessageStatus, Part, Role};
use crate::domain::event::EventBody;
use crate::domain::model::{ModelErrorKind, ModelFinish};
use crate::domain::run::change::{Change, ReleaseCause, StepStatus};
use crate::domain::run::record::ClaimCause;
use crate::domain::run::{FinishReason, RunStatus};
use crate::domain::tool::approval::{ApprovalMode, ToolSafety};
use crate::domain::tool::{ReplayClass, ToolCallState, ToolDefinition};
use crate::engine::tests::world::{Say, World, call, tool};
use crate::engine::{Command, Decision, Input, prompts};

fn kinds(decision: &Decision) -> Vec<&'static str> {
    decision.events.iter().map(EventBody::kind).collect()
}

fn changes(decision: &Decision) -> Vec<String> {
    decision
        .changes
        .iter()
        .map(|change| format!("{change:?}").split(['(', ' ', '{']).next().unwrap_or_default().to_owned())
        .collect()
}

/// M-11. The log of the run names the servers whose tools were left out.
#[test]
fn the_start_names_servers_whose_tools_are_left_out() {
    let started = |tools: Option<Vec<String>>| {
        let mut world = World::new(AgentProfile { tools, ..AgentProfile::default() });
        world.load(ClaimCause::First);
        let note = |name: &str, left_out| ServerNote {
            prefix: format!("{name}__"),
            name: name.to_owned(),
            unavailable_reason: None,
            left_out,
        };
        let notes = vec![note("crowd", true), note("few", false)];
        world.state.as_mut().unwrap().facts.servers = notes;
        world.feed(Input::Claimed { tools: crate::engine::tests::world::tools(), contexts: None, finished: Vec::new() });
        let EventBody::RunStarted { left_out, .. } = &world.events[0] else { panic!("{:?}", world.events) };
        left_out.clone()
    };
    assert_eq!(started(None), ["crowd"]);
    assert!(started(Some(vec!["few__read".to_owned()])).is_empty(), "the profile does not allow this server anyway");
}

#[test]
fn a_plain_answer_takes_two_decisions() {
    let mut world = World::new(AgentProfile::default());
    let first = world.claim(crate::domain::run::record::ClaimCause::First);
    assert_eq!(kinds(&first), ["run.started", "conversation.updated", "step.started"]);
    assert_eq!(changes(&first), ["Start", "FreezeTools", "SetStatus", "StartStep"]);
    assert!(matches!(first.commands[..], [Command::CallModel(_)]));
    assert_eq!(world.asked.as_ref().unwrap().tools.len(), 3);

    let last = world.says_text("Nothing.");
    assert_eq!(kinds(&last), ["part.completed", "message.completed", "step.completed", "conversation.updated", "run.completed"]);
    assert_eq!(changes(&last), ["SetCounters", "SetUsage", "AddMessage", "EndStep", "Finish"]);
    assert_eq!(last.commands, [Command::Stop]);
    assert_eq!(world.ended().reason, Some(FinishReason::Stop));
    assert_eq!(world.rows.usage.model_calls, 1);
    world.check_next_turn();
}

#[test]
fn calls_are_stored_and_started_with_their_message() {
    let mut world = World::started(AgentProfile { tool_parallelism: 2, ..AgentProfile::default() });
    let calls = [call("read", &json!({"n": 1})), call("write", &json!({"n": 2})), call("read", &json!({"n": 3}))];
    let planned = world.calls(&calls);
    assert_eq!(
        kinds(&planned),
        [
            "part.completed",
            "part.completed",
            "part.completed",
            "message.completed",
            "step.completed",
            "conversation.updated",
            "step.started",
            "tool.started",
            "tool.started"
        ]
    );
    assert_eq!(
        changes(&planned),
        ["SetCounters", "SetUsage", "AddMessage", "EndStep", "SetStatus", "AddToolCalls", "StartStep", "StartCall", "StartCall"]
    );
    assert_eq!(world.rows.status, RunStatus::ToolLoop);
    assert_eq!(world.states(), [ToolCallState::Started, ToolCallState::Started, ToolCallState::Planned]);

    let second = world.tool_says(1, "second");
    assert_eq!(kinds(&second), ["tool.completed", "tool.started"]);
    assert_eq!(changes(&second), ["FinishCall", "StartCall"]);
    world.tool_says(1, "third");
    let last = world.tool_says(0, "first");
    assert_eq!(
        kinds(&last),
        ["tool.completed", "message.started", "message.completed", "step.completed", "conversation.updated", "step.started"]
    );
    assert_eq!(changes(&last), ["FinishCall", "AddMessage", "EndStep", "SetStatus", "StartStep"]);
    assert!(matches!(last.commands[..], [Command::CallModel(_)]));
    assert_eq!(world.results(), ["first", "second", "third"]);

    world.says_text("Done.");
    assert_eq!(world.ended().status, RunStatus::Completed);
    assert_eq!(world.rows.usage.model_calls, 2);
    world.check_next_turn();
}

/// An exclusive call is a barrier: it starts after all earlier calls finish, and later calls wait for it.
#[test]
fn a_tool_that_is_called_alone_is_overtaken_by_nothing() {
    let alone = ToolSafety { alone: true, ..ToolSafety::default() };
    let write = ToolDefinition { safety: alone, ..tool("write", ReplayClass::Unsafe) };
    let mut world = World::new(AgentProfile::default());
    world.claim_with(ClaimCause::First, vec![tool("read", ReplayClass::Read).into(), write.into()]);
    let calls: Vec<Say> = ["read", "read", "write", "write", "read", "read"]
        .iter()
        .enumerate()
        .map(|(n, name)| call(name, &json!({"n": n})))
        .collect();
    world.calls(&calls);
    let mut together = Vec::new();
    while !world.under_way.is_empty() {
        together.push(world.under_way.len());
        for _ in 0..world.under_way.len() {
            world.tool_says(0, "done");
        }
    }
    assert_eq!(together, [2, 1, 1, 2]);
    world.says_text("Done.");
    assert_eq!(world.executions.values().copied().collect::<Vec<_>>(), [1; 6]);
}

/// A file is to be deleted and written again: a write during the approval would be lost.
#[rstest]
#[case::allowed("allow", [1, 1, 1])]
#[case::denied("deny", [1, 0, 1])]
fn nothing_overtakes_a_call_that_waits_for_its_human(#[case] word: &str, #[case] made: [usize; 3]) {
    let safety = ToolSafety { alone: true, destructive: true, ..ToolSafety::default() };
    let write = ToolDefinition { safety, ..tool("write", ReplayClass::Unsafe) };
    let mut world = World::new(AgentProfile::default());
    world.claim_with(ClaimCause::First, vec![tool("read", ReplayClass::Read).into(), write.into()]);
    world.calls(&[call("read", &json!({"n": 0})), call("write", &json!({"n": 1})), call("read", &json!({"n": 2}))]);
    assert_eq!(world.states(), [ToolCallState::Started, ToolCallState::AwaitingApproval, ToolCallState::Planned]);
    world.tool_says(0, "before");
    assert_eq!(world.rows.status, RunStatus::Waiting);
    assert!(matches!(world.released, Some((_, ReleaseCause::Waiting))), "no worker has it meanwhile");
    // Also after a crash or a timer.
    world.claim(ClaimCause::Timer);
    assert_eq!(world.states()[2], ToolCallState::Planned);
    assert!(world.human_says(word));
    world.claim(ClaimCause::Timer);
    let mut together = Vec::new();
    while !world.under_way.is_empty() {
        together.push(world.under_way.len());
        world.tool_says(0, "done");
    }
    assert!(together.iter().all(|count| *count == 1), "{together:?}");
    let calls = world.rows.calls.iter().map(|call| world.executions.get(&call.id).copied().unwrap_or_default() as usize);
    assert_eq!(calls.collect::<Vec<_>>(), made);
    world.says_text("Done.");
    world.check_next_turn();
}

/// An exclusive call also waits for earlier calls that wait for an approval or a question.
#[test]
fn exclusive_call_waits_for_earlier_waiting_calls() {
    let alone = ToolSafety { alone: true, ..ToolSafety::default() };
    let asks = ToolSafety { approval: Some(ApprovalMode::AlwaysAsk), ..ToolSafety::default() };
    let tools = || {
        let of = |name, safety| ToolDefinition { safety, ..tool(name, ReplayClass::Unsafe) };
        vec![tool("read", ReplayClass::Read).into(), of("send", asks).into(), of("write", alone).into()]
    };
    let mut world = World::new(AgentProfile::default());
    world.claim_with(ClaimCause::First, tools());
    let calls = [("send", 0), ("write", 1), ("read", 2), ("send", 3)].map(|(name, n)| call(name, &json!({ "n": n })));
    world.calls(&calls);
    let (planned, awaiting) = (ToolCallState::Planned, ToolCallState::AwaitingApproval);
    assert_eq!(world.states(), [awaiting, planned, planned, awaiting], "all questions are asked at once");
    assert!(matches!(world.released, Some((_, ReleaseCause::Waiting))));
    for _ in 0..2 {
        assert!(world.human_says("allow"));
    }
    world.claim(ClaimCause::Timer);
    // Both sends were allowed, and the write runs alone.
    let mut order = Vec::new();
    while !world.under_way.is_empty() {
        let mut names: Vec<String> = world.under_way.iter().map(|call| call.name.clone()).collect();
        names.sort();
        order.push(names.join(" "));
        world.tool_says(0, "done");
    }
    assert!(order.iter().all(|names| !names.contains("write") || names == "write"), "{order:?}");
    let at = |name: &str| order.iter().position(|names| names.contains(name)).unwrap();
    assert!(at("send") < at("write") && at("write") < at("read"), "{order:?}");
    world.says_text("Done.");
    assert_eq!(world.executions.values().copied().collect::<Vec<_>>(), [1; 4]);
    world.check_next_turn();
}

/// A question is asked even if all call slots are taken.
#[test]
fn approval_is_asked_while_all_tool_slots_are_busy() {
    let asks = ToolSafety { approval: Some(ApprovalMode::AlwaysAsk), ..ToolSafety::default() };
    let send = ToolDefinition { safety: asks, ..tool("send", ReplayClass::Unsafe) };
    let mut world = World::new(AgentProfile { tool_parallelism: 1, ..AgentProfile::default() });
    world.claim_with(ClaimCause::First, vec![tool("read", ReplayClass::Read).into(), send.into()]);
    world.calls(&[("read", 0), ("read", 1), ("send", 2)].map(|(name, n)| call(name, &json!({ "n": n }))));
    let (started, planned, awaiting) = (ToolCallState::Started, ToolCallState::Planned, ToolCallState::AwaitingApproval);
    assert_eq!(world.states(), [started, planned, awaiting]);
    world.tool_says(0, "one");
    world.tool_says(0, "two");
    assert!(world.human_says("allow"));
    world.claim(ClaimCause::Timer);
    assert_eq!(world.under_way.len(), 1);
    world.tool_says(0, "sent");
    world.says_text("Done.");
    assert_eq!(world.executions.values().copied().collect::<Vec<_>>(), [1; 3]);
    world.check_next_turn();
}

#[test]
fn answer_cut_at_the_output_limit_is_marked() {
    let mut world = World::started(AgentProfile::default());
    world.says(&[Say::Text("Once upon")], ModelFinish::Length);
    assert_eq!(world.ended().reason, Some(FinishReason::Length));
}

#[test]
fn a_refusal_is_kept_and_not_repeated() {
    let mut world = World::started(AgentProfile::default());
    world.says(&[Say::Text("I will not."), call("write", &json!({}))], ModelFinish::Refused);
    assert_eq!(world.ended().reason, Some(FinishReason::Refused));
    assert_eq!(world.rows.history.last().unwrap().text(), "I will not.");
    assert!(world.rows.calls.is_empty());
    world.check_next_turn();
}

#[test]
fn calls_run_although_the_model_says_stop() {
    let mut world = World::started(AgentProfile::default());
    world.says(&[call("read", &json!({}))], ModelFinish::Stop);
    assert_eq!(world.under_way.len(), 1);
}

#[test]
fn a_message_that_joins_is_seen_by_the_next_call() {
    let mut world = World::started(AgentProfile::default());
    world.calls(&[call("read", &json!({}))]);
    world.join("And be quick.");
    world.tool_says(0, "ok");
    let request = world.asked.clone().unwrap();
    assert_eq!(request.messages.last().unwrap().text(), "And be quick.");
    world.says_text("Quickly done.");
    assert_eq!(world.ended().status, RunStatus::Completed);
}

#[test]
fn a_message_that_joins_during_the_last_answer_is_answered_too() {
    let mut world = World::started(AgentProfile::default());
    world.join("And the weather?");
    world.says_text("The file is empty.");
    assert!(world.ending.is_none());
    let request = world.asked.clone().unwrap();
    assert!(request.messages[0].text().contains("And the weather?"));
    world.says_text("Sunny.");
    assert_eq!(world.ended().status, RunStatus::Completed);
}

/// A message joins during a forced answer.
#[rstest]
#[case(AgentProfile { max_rounds: 1, ..AgentProfile::default() }, true)]
#[case(AgentProfile { duplicate_calls: 1, ..AgentProfile::default() }, true)]
#[case(AgentProfile { max_run_tokens: 15, ..AgentProfile::default() }, false)]
#[case(AgentProfile { breaker_failures: 1, breaker_action: BreakerAction::ForceFinal, ..AgentProfile::default() }, false)]
fn a_message_that_joins_a_forced_answer_is_answered_too(#[case] profile: AgentProfile, #[case] with_tools: bool) {
    for finish in [ModelFinish::Stop, ModelFinish::Refused] {
        let mut world = World::started(profile.clone());
        for _ in 0..2 {
            if world.asked.as_ref().is_some_and(|request| request.tools.is_empty()) {
                break;
            }
            world.calls(&[call("read", &json!({}))]);
            if !world.under_way.is_empty() {
                let fails = profile.breaker_action == BreakerAction::ForceFinal;
                if fails {
                    world.tool_fails(0)
                } else {
                    world.tool_says(0, "ok")
                };
            }
        }
        assert!(world.asked.as_ref().unwrap().tools.is_empty(), "the last call");
        world.join("And the weather?");
        world.says(&[Say::Text("So far.")], finish);
        assert!(world.ending.is_none());
        let request = world.asked.clone().unwrap();
        assert!(request.messages.iter().any(|message| message.text().contains("And the weather?")));
        assert_eq!(!request.tools.is_empty(), with_tools, "{:?}", world.hints());
        assert_eq!(world.hints().contains(&prompts::NO_LONGER_FORCED.to_owned()), with_tools);
        world.says_text("Sunny.");
        assert_eq!(world.ended().status, RunStatus::Completed);
        world.check_next_turn();
    }
}

#[test]
fn joined_message_resets_the_round_count() {
    for on_limit in [OnLimit::Fail, OnLimit::Message] {
        let mut world = World::started(AgentProfile { max_rounds: 1, on_limit, ..AgentProfile::default() });
        world.calls(&[call("read", &json!({}))]);
        // No worker has the run when the message arrives, so only the rows contain it.
        world.die();
        world.join("And the weather?");
        world.claim(ClaimCause::Crash);
        world.tool_says(0, "ok");
        assert!(world.ending.is_none());
        world.says_text("Sunny.");
        assert_eq!(world.ended().reason, Some(FinishReason::Stop));
    }
}

#[test]
fn a_message_that_joins_gets_a_round_of_tools_of_its_own() {
    let mut world = World::started(AgentProfile { tools_policy: ToolsPolicy::OneRoundThenText, ..AgentProfile::default() });
    world.calls(&[call("read", &json!({"n": 1}))]);
    world.join("And the weather?");
    world.tool_says(0, "ok");
    let has_tools = |world: &World| !world.asked.as_ref().unwrap().tools.is_empty();
    assert!(has_tools(&world));
    world.calls(&[call("read", &json!({"n": 2}))]);
    world.tool_says(0, "sunny");
    assert!(!has_tools(&world));
}

#[test]
fn a_message_that_joins_an_empty_answer_gets_a_try_of_its_own() {
    let mut world = World::started(AgentProfile { empty_replies: 0, ..AgentProfile::default() });
    world.join("And the weather?");
    world.says(&[], ModelFinish::Stop);
    assert!(world.ending.is_none());
    world.says(&[], ModelFinish::Stop);
    assert_eq!(world.error_code(), "provider_empty_response");
}

#[test]
fn cancelling_keeps_what_was_shown_and_answers_every_call() {
    let mut world = World::started(AgentProfile { tool_parallelism: 1, ..AgentProfile::default() });
    world.calls(&[call("write", &json!({"n": 1})), call("write", &json!({"n": 2}))]);
    let under_way = world.under_way[0].id.clone();
    let outcome = crate::engine::tests::world::done("it was just done");
    world.feed(Input::CancelRequested { by: "user".to_owned(), partial: None, stopped: vec![(under_way, outcome)] });
    assert_eq!(world.ended().status, RunStatus::Cancelled);
    assert_eq!(world.states(), [ToolCallState::Done, ToolCallState::Cancelled]);
    assert_eq!(world.results().len(), 2);
    world.check_next_turn();
}

fn cancelled_while_it_says(say: &[Say]) -> (World, Decision) {
    let mut world = World::started(AgentProfile::default());
    world.show(say);
    let partial = world.hang_up();
    let decision = world.feed(Input::CancelRequested { by: "user".to_owned(), partial, stopped: Vec::new() });
    assert_eq!(world.ended().status, RunStatus::Cancelled);
    assert!(world.rows.calls.is_empty());
    assert_eq!(world.rows.steps[0].status, StepStatus::Abandoned);
    assert_eq!(world.followed(), world.rows.history[1..]);
    world.check_next_turn();
    (world, decision)
}

#[test]
fn cancelling_keeps_the_words_of_an_answer_and_drops_its_calls() {
    let (world, decision) = cancelled_while_it_says(&[Say::Text("The file ho")]);
    assert_eq!(kinds(&decision)[..2], ["part.completed", "message.completed"]);
    assert_eq!(world.rows.history[1].status, MessageStatus::Partial);

    // The kept text is shown again without the calls.
    let (world, decision) = cancelled_while_it_says(&[Say::Text("The file ho"), Say::Call("read", "{\"pa".to_owned())]);
    assert_eq!(decision.events[0], EventBody::StepReset { step: 1, reason: "cancelled".to_owned() });
    assert_eq!(kinds(&decision)[1..6], ["message.started", "part.started", "part.delta", "part.completed", "message.completed"]);
    let kept = &world.rows.history[1];
    assert_eq!((kept.text().as_str(), kept.parts.len(), kept.status), ("The file ho", 1, MessageStatus::Partial));

    let (world, decision) = cancelled_while_it_says(&[call("read", &json!({}))]);
    assert_eq!(kinds(&decision), ["step.reset", "conversation.updated", "run.cancelled"]);
    assert_eq!(world.rows.history.len(), 1);
    assert_eq!(world.rows.usage.model_calls, 1, "the call is charged");
}

#[test]
fn failed_step_resets_its_shown_text() {
    let mut world = World::started(AgentProfile {
        llm_retry: LlmRetry { delays_ms: Vec::new(), ..LlmRetry::default() },
        ..AgentProfile::default()
    });
    world.show(&[Say::Text("The file ho"), call("read", &json!({}))]);
    let failed = world.fails(ModelErrorKind::IncompleteStream);
    assert_eq!(failed.events[0], EventBody::StepReset { step: 1, reason: "failed".to_owned() });
    assert_eq!(kinds(&failed), ["step.reset", "conversation.updated", "run.failed"]);
    assert_eq!(world.followed(), []);

    let mut world = World::started(AgentProfile::default());
    world.show(&[Say::Text("The file ho")]);
    world.hang_up();
    assert_eq!(
        kinds(&world.feed(Input::TimedOut { partial: None, stopped: Vec::new() })),
        ["step.reset", "conversation.updated", "run.failed"]
    );
    assert_eq!(world.followed(), []);
}

#[test]
fn calls_that_are_not_carried_out_are_not_shown_as_if_they_were() {
    let mut world = World::started(AgentProfile { max_rounds: 0, ..AgentProfile::default() });
    let last = world.says(&[Say::Text("In short: nothing."), call("write", &json!({}))], ModelFinish::ToolCalls);
    assert_eq!(last.events[0], EventBody::StepReset { step: 1, reason: "calls_dropped".to_owned() });
    assert_eq!(world.followed(), world.rows.history[1..]);
}

#[test]
fn the_policy_says_when_tools_are_on_offer() {
    let offered = |policy: ToolsPolicy| {
        let mut world = World::started(AgentProfile { tools_policy: policy, ..AgentProfile::default() });
        let first = world.asked.as_ref().unwrap().tools.len();
        if first > 0 {
            world.says(&[], ModelFinish::Stop);
            let second = world.asked.as_ref().unwrap().tools.len();
            if second > 0 {
                world.calls(&[call("read", &json!({}))]);
                world.tool_says(0, "ok");
                return (first, second, world.asked.as_ref().unwrap().tools.len());
            }
            return (first, second, 0);
        }
        (0, 0, 0)
    };
    assert_eq!(offered(ToolsPolicy::EveryRound), (3, 3, 3));
    assert_eq!(offered(ToolsPolicy::FirstRoundOnly), (3, 0, 0));
    assert_eq!(offered(ToolsPolicy::OneRoundThenText), (3, 3, 0));
    assert_eq!(offered(ToolsPolicy::None), (0, 0, 0));
}

/// The client has sent the answer, so it does not end the run.
#[test]
fn answer_of_the_client_is_continued() {
    let mut world = World::new(AgentProfile::default());
    let sent = Message { role: Role::Assistant, ..world.user("One, two") };
    world.rows.history.push(sent);
    world.claim(ClaimCause::First);
    let asked = &world.asked.as_ref().unwrap().messages;
    let texts: Vec<String> = asked.iter().skip(1).map(Message::text).collect();
    assert_eq!(texts, ["One, two", prompts::CONTINUE]);
    world.says_text("three.");
    assert_eq!(world.ended().status, RunStatus::Completed);
}

/// A tool that the first round offered may be called until the rounds are used up, and no other tool may.
#[test]
fn tool_offered_earlier_may_be_called() {
    let mut world = World::started(AgentProfile { tools_policy: ToolsPolicy::FirstRoundOnly, ..AgentProfile::default() });
    for n in 0..3 {
        world.calls(&[call("read", &json!({ "n": n }))]);
        assert_eq!(world.under_way.len(), 1, "round {n}");
        world.tool_says(0, "ok");
        assert!(world.asked.as_ref().unwrap().tools.is_empty());
    }
    world.calls(&[call("nothing", &json!({}))]);
    assert!(world.under_way.is_empty());
    world.says_text("Done.");
    assert_eq!(world.ended().status, RunStatus::Completed);
}

#[test]
fn only_the_agents_own_tools_are_frozen() {
    let world = World::started(AgentProfile { tools: Some(vec!["read".to_owned(), "gone".to_owned()]), ..AgentProfile::default() });
    let frozen: Vec<_> = world.rows.tools.as_ref().unwrap().iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(frozen, ["read"]);
}

#[test]
fn calls_reach_the_rows_with_what_the_run_has_frozen() {
    let mut world = World::started(AgentProfile::default());
    let decision = world.calls(&[call("read", &json!({"b": 1, "a": 2}))]);
    let row = &world.rows.calls[0];
    assert_eq!(row.server.as_deref(), Some("files"));
    assert!(row.replay.may_repeat());
    assert_eq!(row.step, 2);
    let added =
        decision.changes.iter().find_map(|change| if let Change::AddMessage(message) = change { Some(message) } else { None });
    let Part::ToolCall(part) = &added.unwrap().parts[0] else { panic!("the message holds the call") };
    assert_eq!(part.call_id, row.id);
}
