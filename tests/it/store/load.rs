//! The record that a worker loads after a claim.

use std::sync::Arc;

use capstan::domain::agent::prompt::ProvidedContext;
use capstan::domain::agent::{AgentProfile, BreakerScope};
use capstan::domain::conversation::message::{BinaryContent, Message, Role, ToolContent};
use capstan::domain::ids::{CallId, MessageId, RunId};
use capstan::domain::model::Usage;
use capstan::domain::run::call_handle::{Handle, Round};
use capstan::domain::run::change::{Change, RunCounters, StepKind, StepRow, StepStatus};
use capstan::domain::run::context::{ContextPolicy, ContextSummary};
use capstan::domain::run::record::{ClaimCause, RunRecord};
use capstan::domain::run::{OnBusy, RunStatus};
use capstan::domain::tool::{ReplayClass, ToolCall, ToolCallState, ToolDefinition, ToolOutcome};
use capstan::store::{
    AcceptOutcome, AcceptRun, CancelRun, Compact, CompactOutcome, ControlSignal, IdempotentOutcome, WriteRejection,
};
use capstan::support::ids::UuidIds;

use super::fixture::{
    NOW, World, assistant, changes, completed, conversation, fresh, hello, key, planned_call, released, started, user,
};

contract! {
    everything_comes_back,
    history_goes_run_by_run,
    tool_calls_move_only_forwards,
    a_call_under_way_may_have_a_handle,
    a_call_keeps_its_key_until_its_arguments_change,
    only_the_first_start_counts,
    hints_of_the_loop_have_not_joined,
    older_messages_are_left_out_on_demand,
    earlier_tool_failures_count_until_a_success,
    ;
    summarized_messages_are_not_loaded,
    // D-17.
    unknown_fields_of_a_newer_version_are_skipped,
    a_message_that_cannot_be_read_hides_no_other_signal,
}

/// A repeated call has the key of the first one. With other arguments it is another call.
async fn a_call_keeps_its_key_until_its_arguments_change(world: &World) {
    let fence = world.claimed(&user()).await;
    let message = assistant(&fence, "again");
    let keyed = |position: u32| {
        let (key, undoes) = (Some(CallId::generate(&UuidIds)), Some(CallId::generate(&UuidIds)));
        ToolCall { key, undoes, ..planned_call(&fence, &message.id, position) }
    };
    let calls = vec![keyed(0), keyed(1), keyed(2)];
    let edit = |call: &ToolCall| Change::EditCall {
        id: call.id.clone(),
        arguments: serde_json::json!({"path": "another"}),
        hash: "cd".repeat(32),
    };
    let work = vec![
        Change::StartStep { step: 2, kind: StepKind::Tools, request: None },
        Change::AddMessage(message.clone()),
        Change::AddToolCalls(calls.clone()),
        // In the write that starts the call, and in a later one.
        edit(&calls[1]),
    ];
    world.commit_one(changes(&fence, work)).await.unwrap();
    world.commit_one(changes(&fence, vec![edit(&calls[2])])).await.unwrap();
    let found = world.load(&fence).await.calls;
    let kept: Vec<_> = found.iter().map(|call| (call.key.as_ref(), call.undoes.as_ref())).collect();
    let expected: Vec<_> =
        calls.iter().map(|call| (call.key.as_ref().filter(|_| call.position == 0), call.undoes.as_ref())).collect();
    assert_eq!(kept, expected);
}

/// Old and new versions share one database during a rolling deploy.
async fn unknown_fields_of_a_newer_version_are_skipped(world: &World) {
    let fence = world.claimed(&user()).await;
    let known = world.load(&fence).await;
    let columns = [
        ("profile", "\"name\":", "\"later\":{\"a\":1},\"budget\":{\"later\":1},\"admission\":{\"later\":1},\"name\":"),
        ("profile", "\"options\":{}", "\"options\":{\"seed\":7,\"later\":1}"),
        ("profile", "\"llm_retry\":{", "\"llm_retry\":{\"later\":[],"),
        ("counters", "\"rounds\":", "\"later\":true,\"rounds\":"),
    ];
    for (column, old, new) in columns {
        let replaced = format!("UPDATE runs SET {column} = replace({column}, '{old}', '{new}') WHERE id = '{}'", fence.run_id);
        world.database.rows(&replaced).await;
    }
    let mut found = world.load(&fence).await;
    assert_eq!(Arc::make_mut(&mut found.profile).options.seed.take(), Some(7), "the rows were changed");
    assert_eq!(found, known);
}

pub(super) fn tools() -> Vec<Arc<ToolDefinition>> {
    let parameters = serde_json::json!({"type": "object", "properties": {"path": {"type": "string"}}});
    vec![Arc::new(ToolDefinition {
        server: Some("files".to_owned()),
        tool: "read".to_owned(),
        definition_hash: "cd".repeat(32),
        ..ToolDefinition::new("files__read", "reads \u{1F600}", parameters, ReplayClass::Read)
    })]
}

fn outcome() -> ToolOutcome {
    let content = vec![ToolContent::text("all of it"), ToolContent::Image(BinaryContent::inline("image/png", None, "AA=="))];
    ToolOutcome { state: ToolCallState::Done, content, is_error: false, duration_ms: 12 }
}

async fn everything_comes_back(world: &World) {
    let (owner, id) = (user(), conversation());
    let profile = AgentProfile {
        name: "clerk".to_owned(),
        version: 7,
        model: "openai/gpt-5".to_owned(),
        system_prompt: "Be \"brief\".\n\u{1F600}".to_owned(),
        tools: Some(vec!["files__read".to_owned()]),
        max_rounds: 3,
        ..AgentProfile::default()
    };
    let stored = world.accept(AcceptRun { profile: profile.clone(), ..hello(&owner, &id) }).await;
    assert_eq!((stored.run.agent.as_str(), stored.run.agent_version, stored.run.model.as_str()), ("clerk", 7, "openai/gpt-5"));
    let fence = world.claim_one().await;
    let fresh = RunRecord { history: vec![stored.message], ..RunRecord::first(fence.clone(), owner.clone(), profile) };
    assert_eq!(world.load(&fence).await, fresh);

    let message = assistant(&fence, "let me see");
    let calls = vec![planned_call(&fence, &message.id, 0), planned_call(&fence, &message.id, 1)];
    let counters = RunCounters { rounds: 1, force_final: true, dropped_tools: vec!["x".to_owned()], ..RunCounters::default() };
    let usage = Usage { input_tokens: 1 << 40, output_tokens: 5, model_calls: 1, ..Usage::default() };
    let contexts = vec![ProvidedContext { name: "page".to_owned(), text: "invoice 7".to_owned() }];
    world.commit_one(started(&fence)).await.unwrap();
    let step = changes(
        &fence,
        vec![
            Change::FreezeTools(tools()),
            Change::StoreContexts(contexts.clone()),
            Change::StartStep { step: 1, kind: StepKind::Model, request: None },
            Change::EndStep { step: 1, status: StepStatus::Completed, usage: Some(usage) },
            Change::SetCounters(counters.clone()),
            Change::SetUsage(usage),
            Change::AddMessage(message.clone()),
            Change::AddToolCalls(calls.clone()),
            Change::SetStatus(RunStatus::ToolLoop, None),
            Change::StartStep { step: 2, kind: StepKind::Tools, request: None },
            Change::StartCall(calls[0].id.clone()),
        ],
    );
    world.commit_one(step).await.unwrap();
    world.commit_one(changes(&fence, vec![Change::FinishCall(calls[0].id.clone(), outcome())])).await.unwrap();
    assert_eq!(world.status(&owner, &id).await, "tool_loop");

    let record = world.load(&fence).await;
    let row = |step, kind, status| StepRow { run_id: fence.run_id.clone(), step, kind, status };
    let expected = RunRecord {
        // A start of the step completes the claim's cause.
        cause: ClaimCause::HandedBack,
        status: RunStatus::ToolLoop,
        tools: Some(tools()),
        contexts: Some(contexts),
        counters,
        usage,
        elapsed_ms: record.elapsed_ms,
        history: fresh.history.iter().cloned().chain([message]).collect(),
        steps: vec![row(1, StepKind::Model, StepStatus::Completed), row(2, StepKind::Tools, StepStatus::Started)],
        calls: vec![
            Arc::new(ToolCall { state: ToolCallState::Done, outcome: Some(outcome()), ..calls[0].clone() }),
            Arc::new(calls[1].clone()),
        ],
        ..fresh
    };
    assert_eq!(record, expected);
    let run = world.view(&owner, &fence.run_id).await.run;
    assert_eq!((run.usage, run.attempt), (Some(usage), 1));
    // A step that starts again is one row.
    world.commit_one(changes(&fence, vec![Change::StartStep { step: 2, kind: StepKind::Tools, request: None }])).await.unwrap();
    assert_eq!(world.load(&fence).await.steps.len(), 2);
}

async fn history_goes_run_by_run(world: &World) {
    let (owner, id) = (user(), conversation());
    let first = world.accept(hello(&owner, &id)).await;
    let fence = world.claim_one().await;
    // The second message arrives before the first answer.
    let second = world.accept(hello(&owner, &id)).await;
    let answer = assistant(&fence, "first answer");
    world.commit_one(changes(&fence, vec![Change::AddMessage(answer.clone())])).await.unwrap();
    assert_eq!(
        world.load(&fence).await.history,
        [first.message.clone(), answer.clone()],
        "the second message belongs to the queued run"
    );
    world.commit_one(completed(&fence)).await.unwrap();

    let fence = world.claim_one().await;
    assert_eq!(fence.run_id, second.run.id);
    let history = [first.message.clone(), answer.clone(), second.message.clone()];
    assert_eq!(world.load(&fence).await.history, history);
    // Pages are in the order in which messages arrived.
    let page = world.store.messages(&owner, &id, &super::fixture::page(10, None)).await.unwrap().unwrap();
    assert_eq!(page.items, [first.message, second.message, answer]);
}

/// For agents with this option: failures count within the conversation, with the same result for each load.
async fn earlier_tool_failures_count_until_a_success(world: &World) {
    use ToolCallState::{Done, Failed, Unknown};
    let (owner, id) = (user(), conversation());
    let counting = AgentProfile { breaker_scope: BreakerScope::Conversation, ..AgentProfile::default() };
    // Runs calls with these outcomes and returns the counters at the start of the run.
    let run = async |profile: &AgentProfile, made: &[(&str, ToolCallState)]| {
        world.accept(AcceptRun { profile: profile.clone(), ..hello(&owner, &id) }).await;
        let fence = world.claim_one().await;
        let counters = world.load(&fence).await.counters;
        let message = assistant(&fence, "let me see");
        let call = |(position, (name, _)): (u32, &(&str, ToolCallState))| ToolCall {
            name: (*name).to_owned(),
            ..planned_call(&fence, &message.id, position)
        };
        let calls: Vec<ToolCall> = (0..).zip(made).map(call).collect();
        let ended = calls.iter().zip(made).flat_map(|(call, (_, state))| {
            let outcome = ToolOutcome { state: *state, is_error: *state != Done, ..outcome() };
            [Change::StartCall(call.id.clone()), Change::FinishCall(call.id.clone(), outcome)]
        });
        let mut step =
            vec![Change::SetCounters(counters.clone()), Change::AddMessage(message), Change::AddToolCalls(calls.clone())];
        step.extend(ended);
        world.commit_one(started(&fence)).await.unwrap();
        world.commit_one(changes(&fence, step)).await.unwrap();
        assert_eq!(world.load(&fence).await.counters, counters, "the run's own calls are not counted");
        world.commit_one(completed(&fence)).await.unwrap();
        counters.earlier_failures.into_iter().collect::<Vec<(String, u32)>>()
    };
    let named = |counts: &[(&str, u32)]| counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect::<Vec<_>>();
    assert_eq!(run(&counting, &[("read", Failed), ("write", Failed)]).await, named(&[]));
    assert_eq!(run(&counting, &[("read", Failed), ("read", Unknown)]).await, named(&[("read", 1), ("write", 1)]));
    assert_eq!(run(&counting, &[("write", Failed), ("read", Done)]).await, named(&[("read", 2), ("write", 1)]));
    assert_eq!(run(&counting, &[("write", Done), ("write", Failed)]).await, named(&[("write", 2)]));
    assert_eq!(run(&AgentProfile::default(), &[]).await, named(&[]), "an agent without the option");
    assert_eq!(run(&counting, &[]).await, named(&[("write", 1)]));
    for other in [hello(&owner, &conversation()), hello(&user(), &conversation())] {
        world.accept(AcceptRun { profile: counting.clone(), ..other }).await;
        assert!(world.load(&world.claim_one().await).await.counters.earlier_failures.is_empty());
    }
}

async fn summarized_messages_are_not_loaded(world: &World) {
    let (owner, id) = (user(), conversation());
    let asked = world.accept(hello(&owner, &id)).await.message;
    let fence = world.claim_one().await;
    let answers: Vec<Message> = ["one \0", "two", "three"].into_iter().map(|words| assistant(&fence, words)).collect();
    for answer in &answers {
        world.commit_one(changes(&fence, vec![Change::AddMessage(answer.clone())])).await.unwrap();
    }
    let whole = world.load(&fence).await;
    assert_eq!((whole.history.len(), &whole.summary, whole.covered), (4, &None, 0));

    // Of two summaries in one write the last one counts, and a later write replaces it.
    let summary = |covers: &Message, messages| ContextSummary {
        covers: covers.id.clone(),
        messages,
        asked: vec![asked.id.clone()],
        text: format!("up to {messages}\n\u{1f980}"),
        files: vec!["a.txt".to_owned()],
    };
    for (first, second) in [(0, 0), (0, 1)] {
        let both = [first, second].map(|at| Change::SetSummary(summary(&answers[at], u32::try_from(at).unwrap() + 2)));
        world.commit_one(changes(&fence, both.to_vec())).await.unwrap();
    }
    let known = Some(summary(&answers[1], 3));
    let found = world.load(&fence).await;
    assert_eq!((&found.summary, found.covered), (&known, 1), "the message of the current run is loaded");
    assert_eq!(found.history, [&asked, &whole.history[3]].map(Clone::clone));
    world.commit_one(completed(&fence)).await.unwrap();

    // The next run starts from the summary, after any kind of claim.
    let next = world.accept(hello(&owner, &id)).await.message;
    let fence = world.claim_one().await;
    let found = world.load(&fence).await;
    assert_eq!((&found.summary, found.covered), (&known, 1), "the summary covers one message here");
    assert_eq!(found.history, [&asked, &whole.history[3], &next].map(Clone::clone));

    // A summary whose last message was superseded is not used.
    let gone = format!("UPDATE messages SET superseded_by = '{}' WHERE id = '{}'", fence.run_id, answers[1].id);
    world.database.rows(&gone).await;
    let found = world.load(&fence).await;
    assert_eq!((found.history.len(), &found.summary, found.covered), (4, &None, 0));
    world.commit_one(completed(&fence)).await.unwrap();

    // It is deleted with its conversation.
    world.store.delete_conversation(&owner, &id).await.unwrap().unwrap();
    assert_eq!(world.database.rows(&format!("SELECT covers FROM context_summaries WHERE conversation_id = '{id}'")).await.len(), 0);
}

async fn older_messages_are_left_out_on_demand(world: &World) {
    let (owner, id) = (user(), conversation());
    let asked = world.accept(hello(&owner, &id)).await.message;
    let fence = world.claim_one().await;
    for words in ["one", "two", "three"] {
        world.commit_one(changes(&fence, vec![Change::AddMessage(assistant(&fence, words))])).await.unwrap();
    }
    let policy = ContextPolicy { keep_last: 2, ..ContextPolicy::default() };
    let compact = Compact { owner: owner.clone(), conversation: id.clone(), policy, now: NOW };
    let ask = async |compact: &Compact, with| world.store.compact(compact.clone(), with).await.unwrap();
    assert_eq!(ask(&compact, None).await, IdempotentOutcome::Fresh(CompactOutcome::Busy));
    world.commit_one(completed(&fence)).await.unwrap();
    let others = Compact { owner: user(), ..compact.clone() };
    assert_eq!(ask(&others, None).await, IdempotentOutcome::Fresh(CompactOutcome::NoConversation));

    let claim = || key(&owner, "k", "f");
    let IdempotentOutcome::Fresh(CompactOutcome::Done { messages, summary: Some(summary), events }) = ask(&compact, claim()).await
    else {
        panic!("it is done")
    };
    assert_eq!((messages, summary.messages, summary.asked.as_slice()), (2, 2, std::slice::from_ref(&asked.id)));
    assert!(summary.text.ends_with("assistant: one"), "{}", summary.text);
    assert_eq!(events.iter().map(|event| event.kind.as_ref()).collect::<Vec<_>>(), ["context.compacted"]);
    // The repeated request returns its answer. Without the key, there is nothing to do and no event.
    let same = CompactOutcome::Done { messages, summary: Some(summary.clone()), events: Vec::new() };
    assert_eq!(ask(&compact, claim()).await, IdempotentOutcome::Replayed(same));
    let nothing = CompactOutcome::Done { messages: 0, summary: Some(summary.clone()), events: Vec::new() };
    assert_eq!(ask(&compact, None).await, IdempotentOutcome::Fresh(nothing));
    world.accept(hello(&owner, &id)).await;
    let found = world.load(&world.claim_one().await).await;
    assert_eq!((found.summary, found.history.len()), (Some(summary), 4));
}

async fn tool_calls_move_only_forwards(world: &World) {
    let owner = user();
    let fence = world.claimed(&owner).await;
    let message = assistant(&fence, "calls");
    let calls = vec![planned_call(&fence, &message.id, 0), planned_call(&fence, &message.id, 1)];
    let add = vec![Change::AddMessage(message), Change::AddToolCalls(calls.clone())];
    world.commit_one(changes(&fence, add)).await.unwrap();
    let (start, finish) = (Change::StartCall(calls[0].id.clone()), Change::FinishCall(calls[0].id.clone(), outcome()));
    world.commit_one(changes(&fence, vec![start.clone()])).await.unwrap();
    let head = world.log(&owner, &fence.conversation_id).await.len();

    assert_eq!(world.commit_one(changes(&fence, vec![start.clone()])).await, Err(WriteRejection::Fenced), "started twice");
    world.commit_one(changes(&fence, vec![finish.clone()])).await.unwrap();
    assert_eq!(world.commit_one(changes(&fence, vec![finish])).await, Err(WriteRejection::Fenced), "two outcomes");
    assert_eq!(world.commit_one(changes(&fence, vec![start])).await, Err(WriteRejection::Fenced), "started after its outcome");
    assert_eq!(world.log(&owner, &fence.conversation_id).await.len(), head + 1, "a refused write leaves no event");

    // A call that never ran still gets an outcome, but not a call of another run.
    let other = world.claimed(&user()).await;
    let failed = Change::FinishCall(calls[1].id.clone(), ToolOutcome::failed("no \u{0} such tool", 0));
    assert_eq!(world.commit_one(changes(&other, vec![failed.clone()])).await, Err(WriteRejection::Fenced));
    world.commit_one(changes(&fence, vec![failed])).await.unwrap();
    let calls = world.load(&fence).await.calls;
    assert_eq!(calls.iter().map(|call| call.state).collect::<Vec<_>>(), [ToolCallState::Done, ToolCallState::Failed]);
    assert_eq!(calls[1].outcome.as_ref().unwrap().content, [ToolContent::text("no \u{fffd} such tool")]);
}

async fn a_call_under_way_may_have_a_handle(world: &World) {
    let fence = world.claimed(&user()).await;
    let message = assistant(&fence, "calls");
    let calls = vec![planned_call(&fence, &message.id, 0), planned_call(&fence, &message.id, 1)];
    let add = vec![Change::AddMessage(message), Change::AddToolCalls(calls.clone())];
    world.commit_one(changes(&fence, add)).await.unwrap();
    let task = |name: &str| Handle::Task(name.to_owned());
    let state = Some("opaque \0 \u{1F600}".to_owned());
    let round = Handle::Round(Box::new(Round { state, questions: 1, number: 1, ..Round::default() }));
    let handle =
        |at: usize, handle: Option<&Handle>| changes(&fence, vec![Change::SetHandle(calls[at].id.clone(), handle.cloned())]);
    assert_eq!(world.commit_one(handle(0, Some(&task("early")))).await, Err(WriteRejection::Fenced), "it has not started");
    let started = calls.iter().map(|call| Change::StartCall(call.id.clone())).collect();
    world.commit_one(changes(&fence, started)).await.unwrap();
    world.commit_one(handle(0, Some(&task("task \u{1F600}")))).await.unwrap();
    world.commit_one(handle(1, Some(&round))).await.unwrap();
    let handles = async || world.load(&fence).await.calls.into_iter().map(|call| call.handle.clone()).collect::<Vec<_>>();
    assert_eq!(handles().await, [Some(task("task \u{1F600}")), Some(round.clone())]);

    world.commit_one(handle(1, None)).await.unwrap();
    let finish = Change::FinishCall(calls[0].id.clone(), outcome());
    world.commit_one(changes(&fence, vec![finish])).await.unwrap();
    assert_eq!(world.commit_one(handle(0, Some(&task("late")))).await, Err(WriteRejection::Fenced), "it has ended");
    assert_eq!(handles().await, [Some(task("task \u{1F600}")), None]);
    let states: Vec<_> = world.load(&fence).await.calls.iter().map(|call| call.state).collect();
    assert_eq!(states, [ToolCallState::Done, ToolCallState::Started]);
    // The fence of another run cannot set it either.
    let other = world.claimed(&user()).await;
    let strange = changes(&other, vec![Change::SetHandle(calls[1].id.clone(), Some(task("strange")))]);
    assert_eq!(world.commit_one(strange).await, Err(WriteRejection::Fenced));
}

async fn only_the_first_start_counts(world: &World) {
    let owner = user();
    let fence = world.claimed(&owner).await;
    world.commit_one(started(&fence)).await.unwrap();
    let first = world.view(&owner, &fence.run_id).await.run.started_at;
    assert!(first.is_some());
    world.commit_one(released(&fence, Some(0), capstan::domain::run::change::ReleaseCause::Drain)).await.unwrap();
    let fence = world.claim_one().await;
    world.commit_one(started(&fence)).await.unwrap();
    assert_eq!(world.view(&owner, &fence.run_id).await.run.started_at, first);
}

async fn a_message_that_cannot_be_read_hides_no_other_signal(world: &World) {
    let (owner, id) = (user(), conversation());
    world.accept(hello(&owner, &id)).await;
    let damaged = world.claim_one().await;
    let steer = AcceptRun { create_with_title: None, on_busy: OnBusy::Steer, ..hello(&owner, &id) };
    for _ in 0..2 {
        let joined = fresh(world.store.accept_run(steer_again(&steer), None).await.unwrap());
        assert!(matches!(joined, AcceptOutcome::Steered { .. }), "{joined:?}");
    }
    let newest = format!("(SELECT max(position) FROM messages WHERE run_id = '{}' AND role = 'user')", damaged.run_id);
    world.database.rows(&format!("UPDATE messages SET body = '{{' WHERE conversation_id = '{id}' AND position = {newest}")).await;
    let other = world.claimed(&owner).await;
    world.store.cancel_run(CancelRun { owner: &owner, id: &other.run_id, by: "user", now: NOW }, None).await.unwrap();
    let mut signals = world.store.control_signals(&[damaged.run_id.clone(), other.run_id.clone()]).await.unwrap();
    signals.sort_by_key(|signal| signal.run_id != damaged.run_id);
    let [hurt, cancelled] = &signals[..] else { panic!("two signals: {signals:?}") };
    assert_eq!((&hurt.run_id, hurt.is_damaged, hurt.joined.len()), (&damaged.run_id, true, 1));
    assert_eq!((&cancelled.run_id, cancelled.is_damaged, cancelled.cancel_by.as_deref()), (&other.run_id, false, Some("user")));
    // A run with such a message can still be cancelled.
    world.store.cancel_run(CancelRun { owner: &owner, id: &damaged.run_id, by: "user", now: NOW }, None).await.unwrap();
    let signals = world.store.control_signals(std::slice::from_ref(&damaged.run_id)).await.unwrap();
    assert_eq!((signals[0].is_damaged, signals[0].cancel_by.as_deref()), (true, Some("user")));
}

/// Returns a copy of the message with new ids.
fn steer_again(steer: &AcceptRun) -> AcceptRun {
    AcceptRun { run_id: RunId::generate(&UuidIds), message_id: MessageId::generate(&UuidIds), ..steer.clone() }
}

async fn hints_of_the_loop_have_not_joined(world: &World) {
    let fence = world.claimed(&user()).await;
    let hint = Message {
        id: MessageId::generate(&UuidIds),
        role: Role::User,
        internal: true,
        model: None,
        created_at: NOW.to_rfc3339(),
        ..assistant(&fence, "go on")
    };
    world.commit_one(changes(&fence, vec![Change::AddMessage(hint.clone())])).await.unwrap();
    assert_eq!(world.load(&fence).await.history[1], hint);
    assert_eq!(world.store.control_signals(std::slice::from_ref(&fence.run_id)).await.unwrap(), []);
    // A missing run is reported, so that its worker stops.
    let missing = RunId::generate(&UuidIds);
    let gone = ControlSignal { run_id: missing.clone(), cancel_by: None, joined: Vec::new(), is_damaged: false, is_gone: true };
    assert_eq!(world.store.control_signals(&[fence.run_id, missing]).await.unwrap(), [gone]);
    assert_eq!(world.store.control_signals(&[]).await.unwrap(), []);
}
