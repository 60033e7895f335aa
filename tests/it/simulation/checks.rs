//! The checks on the final state of a seed.

use std::collections::{BTreeMap, HashSet};

use capstan::domain::conversation::ConversationStatus;
use capstan::domain::conversation::message::{MessageStatus, Part, Role, ToolContent};
use capstan::domain::ids::CallId;
use capstan::domain::run::RunStatus;
use capstan::domain::run::budget::Amount;
use capstan::domain::run::change::{StepKind, StepRow, StepStatus};
use capstan::domain::run::question::InputState;
use capstan::domain::run::step_request::RecordedSteps;
use capstan::domain::tool::{ReplayClass, ToolCallState};

use super::hands::Ledger;
use super::people::Promises;
use super::witness::{Seen, digest_of};
use support::audit::{Entry, follow};
use support::model_store::{RunRow, State};

/// Returns a description of each violation.
pub fn problems(state: &State, seen: &Seen, ledger: &Ledger, promises: &Promises) -> Vec<String> {
    let mut wrong = seen.wrong.clone();
    conversations(state, &mut wrong);
    for row in state.runs.values() {
        run(row, seen, &mut wrong);
        requests(row, state, seen, &mut wrong);
    }
    calls(state, ledger, promises, &mut wrong);
    spending(state, &mut wrong);
    kept(state, promises, &mut wrong);
    wrong
}

/// Returns whether no run is under way.
pub fn is_at_rest(state: &State) -> bool {
    state.leases.is_empty() && state.runs.values().all(RunRow::is_over)
}

/// Checks that a run's usage under a daily budget equals the spending rows, despite crashes.
fn spending(state: &State, wrong: &mut Vec<String>) {
    for row in state.runs.values().filter(|row| row.profile.budget.is_shared()) {
        let of_run = state.spending.iter().filter(|((.., run), _)| *run == row.run.id);
        let booked = of_run.fold(Amount::default(), |sum, (_, row)| sum.plus(row.spent));
        if booked != Amount::of(&row.usage) {
            wrong.push(format!("{} has used {:?}, and {booked:?} are booked", row.run.id, row.usage));
        }
    }
}

fn conversations(state: &State, wrong: &mut Vec<String>) {
    for (id, row) in &state.conversations {
        if !matches!(row.status, ConversationStatus::Idle | ConversationStatus::Failed) {
            wrong.push(format!("{id} is not at rest: {:?}", row.status));
        }
        if row.log.iter().zip(1..).any(|(event, seq)| event.seq != seq) {
            wrong.push(format!("the log of {id} has a gap"));
        }
        let mut runs: BTreeMap<&str, Vec<Entry>> = BTreeMap::new();
        for event in &row.log {
            if let Some(run) = &event.run_id {
                runs.entry(run.as_str()).or_default().push(Entry {
                    seq: event.seq,
                    run: Some(run.to_string()),
                    attempt: i64::from(event.attempt),
                    kind: event.kind.to_string(),
                    data: serde_json::from_str(&event.data).unwrap(),
                });
            }
        }
        for (run, entries) in runs {
            if let Err(problem) = follow(&entries.iter().collect::<Vec<_>>()) {
                wrong.push(format!("log of {run}: {problem}"));
            }
        }
        let mut messages: Vec<_> = state.runs_in(id).into_iter().flat_map(|row| row.said()).collect();
        messages.sort_by_key(|(at, _)| *at);
        if messages.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            wrong.push(format!("two messages of {id} have one place"));
        }
    }
}

fn run(row: &RunRow, seen: &Seen, wrong: &mut Vec<String>) {
    let id = &row.run.id;
    if !row.is_over() || row.active || row.claimable_at.is_some() {
        wrong.push(format!(
            "{id} has not ended, or is still active or claimable: {:?}, attempt {}, active {}, claimable at {:?}",
            row.run.status, row.run.attempt, row.active, row.claimable_at
        ));
    }
    let ended = seen.ends.get(id).copied();
    if let Some((status, _)) = ended.filter(|(status, _)| *status != row.run.status) {
        wrong.push(format!("{id} ended as {status:?}, and is {:?}", row.run.status));
    }
    let is_closed = |state| matches!(state, InputState::Applied | InputState::Expired | InputState::Cancelled);
    if let Some(asked) = row.inputs.iter().find(|asked| !is_closed(asked.request.state)) {
        wrong.push(format!("{id} is over, and its question {} is not closed: {:?}", asked.request.id, asked.request.state));
    }
    for (_, message) in row.said() {
        let text = message.text();
        let is_whole = message.status == MessageStatus::Complete;
        // Without an answer of the model, a plan's report is a list of its steps.
        let is_list = text.lines().all(|line| line.starts_with("- plan-step"));
        let is_undoing = row.calls.iter().any(|call| call.undoes.is_some() && call.message_id == message.id);
        let is_said = is_list || is_undoing || seen.whole_answers.contains(&text);
        if message.role == Role::Assistant && is_whole && !text.trim().is_empty() && !is_said {
            wrong.push(format!("{text:?} in {id} passes for an answer, but no model has said it to the end"));
        }
        let is_users = message.role == Role::User && !message.internal;
        let is_heard = || ended.zip(seen.heard.get(&text)).is_some_and(|((_, ended), heard)| *heard <= ended);
        if is_users && row.run.status == RunStatus::Completed && !is_heard() {
            wrong.push(format!("{id} is completed, and no model has heard {text:?}"));
        }
    }
}

/// Checks that the request of each answered step, rebuilt from the rows, is one that a model has received.
fn requests(row: &RunRow, state: &State, seen: &Seen, wrong: &mut Vec<String>) {
    let records = row.requests.iter().map(|(step, text)| (*step, serde_json::from_str(text).unwrap()));
    let recorded = RecordedSteps::new(records);
    let runs = state.runs_in(&row.run.conversation_id);
    let messages = runs.iter().flat_map(|row| row.said()).map(|(_, message)| (message.id.clone(), message.clone())).collect();
    let answered = |step: &&StepRow| step.kind == StepKind::Model && step.status == StepStatus::Completed;
    for step in row.steps.iter().map(|(step, _)| step).filter(answered).map(|step| step.step) {
        let rebuilt = recorded.rebuild(&row.run.id, step, &messages, row.tools.as_deref().unwrap_or_default());
        match rebuilt {
            None => wrong.push(format!("step {step} of {} has no record of its request", row.run.id)),
            Some(request) if !request.missing.is_empty() || !seen.requests.contains(&digest_of(&request)) => {
                wrong.push(format!("no model has received the rebuilt request {request:?}"));
            }
            Some(_) => {}
        }
    }
}

fn calls(state: &State, ledger: &Ledger, promises: &Promises, wrong: &mut Vec<String>) {
    let mut rows = BTreeMap::new();
    // Calls with the same key, which stand for one effect.
    let mut alike: BTreeMap<&CallId, Vec<&CallId>> = BTreeMap::new();
    for call in state.runs.values().flat_map(|row| &row.calls) {
        alike.entry(call.key()).or_default().push(&call.id);
    }
    for row in state.runs.values() {
        let mut answered: HashSet<&CallId> = HashSet::new();
        let mut waiting: Vec<&CallId> = Vec::new();
        for (_, message) in row.said() {
            for part in &message.parts {
                match part {
                    Part::ToolResult(result) => {
                        if waiting.first() != Some(&&result.call_id) {
                            wrong.push(format!("the result of {} is not the next one: {waiting:?}", result.call_id));
                        }
                        waiting.retain(|open| *open != &result.call_id);
                        if !answered.insert(&result.call_id) {
                            wrong.push(format!("{} has two results", result.call_id));
                        }
                    }
                    Part::ToolCall(call) if message.status == MessageStatus::Complete => waiting.push(&call.call_id),
                    _ => {}
                }
            }
        }
        if !waiting.is_empty() {
            wrong.push(format!("calls {waiting:?} of {} have no result", row.run.id));
        }
        for call in &row.calls {
            rows.insert(&call.id, call);
            let Some(outcome) = call.outcome.as_ref().filter(|_| call.state.is_outcome()) else {
                wrong.push(format!("{} has no outcome", call.id));
                continue;
            };
            if !answered.contains(&call.id) {
                wrong.push(format!("{} has a row and no result", call.id));
            }
            // A tool's text refers to this call, or to the call whose key it has. A duplicate call quotes the first result.
            let ids = || alike[call.key()].iter().copied().chain([call.key()]);
            let is_own =
                |content: &ToolContent| matches!(content, ToolContent::Text { text } if ids().any(|id| text.contains(id.as_str())));
            if call.state == ToolCallState::Done && outcome.duration_ms > 0 && !outcome.content.iter().all(is_own) {
                wrong.push(format!("{} has the answer of another call: {:?}", call.id, outcome.content));
            }
        }
    }
    for (id, done) in ledger.0.lock().unwrap().iter() {
        let Some((name, replay)) = &done.call else { continue };
        let times = done.executions.len();
        let most = match replay {
            // Each answer "not done" permits one more execution. A stopped process may still send its call afterwards.
            ReplayClass::Unsafe | ReplayClass::Reconcile { .. } => 1 + done.denials,
            ReplayClass::Read | ReplayClass::Idempotent | ReplayClass::Keyed { .. } | ReplayClass::KeyedMeta { .. } => usize::MAX,
        };
        if times > most {
            wrong.push(format!("{id} of {name} was executed {times} times"));
        }
        if done.executions.iter().any(|arguments| *arguments != done.executions[0]) {
            wrong.push(format!("{id} of {name} was executed with other arguments: {:?}", done.executions));
        }
    }
    let ledger = ledger.0.lock().unwrap();
    let mut undone: BTreeMap<&CallId, (usize, usize)> = BTreeMap::new();
    for done in ledger.values() {
        if let Some(of) = &done.undoes {
            let (times, denials) = undone.entry(of).or_default();
            (*times, *denials) = (*times + done.executions.len(), *denials + done.denials);
        }
    }
    for (id, (times, denials)) in undone {
        if times > 1 + denials + promises.confirmed.get(id).copied().unwrap_or(0) {
            wrong.push(format!("{id} was taken back {times} times"));
        }
    }
    for (id, call) in rows {
        let ran = call.outcome.as_ref().is_some_and(|outcome| outcome.state == ToolCallState::Done && outcome.duration_ms > 0);
        if ran && ledger.get(call.key()).is_none_or(|done| !done.is_known) {
            wrong.push(format!("{id} is done, but nobody has done it"));
        }
    }
}

/// Checks the promises that users received.
fn kept(state: &State, promises: &Promises, wrong: &mut Vec<String>) {
    let mut said: BTreeMap<String, Vec<&RunRow>> = BTreeMap::new();
    for row in state.runs.values() {
        for (_, message) in row.said().into_iter().filter(|(_, message)| message.role == Role::User && !message.internal) {
            said.entry(message.text()).or_default().push(row);
        }
    }
    for (text, rows) in &said {
        if rows.len() != 1 {
            wrong.push(format!("{text:?} stands in {} runs", rows.len()));
        }
        if promises.refused.contains(text) {
            wrong.push(format!("{text:?} was refused and is stored"));
        }
    }
    for (text, (conversation, run)) in &promises.accepted {
        let is_kept = said.get(text).is_some_and(|rows| rows.iter().all(|row| row.run.id == *run));
        if !is_kept && !promises.deleted.contains(conversation) {
            wrong.push(format!("{text:?} was accepted as {run}, and is lost"));
        }
    }
}
