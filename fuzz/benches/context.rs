//! What building a request costs for conversations of more and more messages: whole, and with a summary of the older ones, which
//! shall make the cost stop growing.
//!
//! Fails if a request takes longer than [`GOAL`], or if one with a summary costs more of a long conversation than [`GROWTH`] allows.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use capstan_fuzz::domain::agent::AgentProfile;
use capstan_fuzz::domain::change::RunCounters;
use capstan_fuzz::domain::context::{Capacity, ContextPolicy};
use capstan_fuzz::domain::ids::{CallId, ConversationId, MessageId, PartId, RunId, UserId};
use capstan_fuzz::domain::message::{Message, MessageStatus, Part, Role, TextPart, ToolCallPart, ToolContent, ToolResultPart};
use capstan_fuzz::domain::model::Usage;
use capstan_fuzz::domain::record::{ClaimCause, Fence, RunRecord};
use capstan_fuzz::domain::run::RunStatus;
use capstan_fuzz::domain::tool::ToolCallState;
use capstan_fuzz::engine::{Input, RunState, Surroundings, decide, model_request};
use capstan_fuzz::support::clock::UnixMillis;
use capstan_fuzz::support::ids::SequentialIds;
use capstan_fuzz::support::tokens::Tokenizer;
use serde_json::json;

/// The most that a request may take, its budget and its messages together.
const GOAL: Duration = Duration::from_millis(5);
/// How many times as much a request of the longest conversation may cost as one of [`SHORT`] messages, when the rest of both is summarised.
/// It is about the same, of the fastest of many rounds each; were what is summarised looked at, it would be some forty times as much.
const GROWTH: u32 = 3;
/// A conversation that is long enough to be summarised.
const SHORT: usize = 50;
/// Rounds of which the fastest counts: everything else is the machine's.
const ROUNDS: usize = 50;
/// Messages of each conversation.
const SIZES: [usize; 6] = [10, 50, 200, 500, 1_000, 2_000];

/// A conversation of turns of four messages: question, call, result of some 600 bytes, answer.
fn record(ids: &SequentialIds, messages: usize, limit: u64) -> RunRecord {
    let conversation_id = ConversationId::generate(ids);
    let own = RunId::generate(ids);
    let mut history = Vec::with_capacity(messages + 1);
    let mut run_id = RunId::generate(ids);
    let mut add = |run_id: &RunId, role, parts| {
        history.push(Message {
            id: MessageId::generate(ids),
            conversation_id: conversation_id.clone(),
            run_id: run_id.clone(),
            role,
            status: MessageStatus::Complete,
            parts,
            finish_reason: None,
            model: None,
            usage: None,
            internal: false,
            feedback: None,
            created_at: String::new(),
        });
    };
    let words = |text: &str| Part::Text(TextPart { id: PartId::generate(ids), text: text.repeat(20) });
    let mut call_id = CallId::generate(ids);
    for at in 0..messages {
        match at % 4 {
            0 => {
                run_id = RunId::generate(ids);
                add(&run_id, Role::User, vec![words("What is it? ")]);
            }
            1 => {
                call_id = CallId::generate(ids);
                let call = ToolCallPart {
                    id: PartId::generate(ids),
                    call_id: call_id.clone(),
                    name: "files__read".to_owned(),
                    arguments: json!({ "path": format!("/notes/{at}.md"), "lines": [1, 200] }),
                    provider_call_id: None,
                    raw: None,
undoes: None,
};
                add(&run_id, Role::Assistant, vec![words("I look. "), Part::ToolCall(call)]);
            }
            2 => {
                let result = ToolResultPart {
                    id: PartId::generate(ids),
                    call_id: call_id.clone(),
                    name: "files__read".to_owned(),
                    content: vec![ToolContent::text("a line of some words\n".repeat(30))],
                    is_error: false,
                    state: ToolCallState::Done,
undoable: false,
};
                add(&run_id, Role::Tool, vec![Part::ToolResult(result)]);
            }
            _ => add(&run_id, Role::Assistant, vec![words("It is a note. ")]),
        }
    }
    add(&own, Role::User, vec![words("And now? ")]);
    RunRecord {
        fence: Fence { run_id: own, conversation_id, epoch: 1 },
        owner: UserId::generate(ids),
        attempt: 1,
        crashes: 0,
        cause: ClaimCause::First,
        status: RunStatus::Queued,
        reason: None,
        profile: Arc::new(AgentProfile {
            context: ContextPolicy { limit: Some(limit), ..ContextPolicy::default() },
            ..AgentProfile::default()
        }),
        own_layers: Default::default(),
        tools: None,
        contexts: None,
        counters: RunCounters::default(),
        usage: Usage::default(),
        lost: None,
        elapsed_ms: 0,
        history,
        summary: None,
        covered: 0,
        steps: Vec::new(),
        calls: Vec::new(),
        inputs: Vec::new(),
        cancel_requested_by: None,
        joined: 0,
    }
}

/// The fastest of many rounds: what is decided before a model call, and the request of it.
fn cost(ids: &SequentialIds, record: &RunRecord, tokenizer: Option<Tokenizer>) -> (Duration, usize) {
    let around = Surroundings { now: UnixMillis(0), ids, elapsed_ms: 0, spent: Usage::default() };
    let mut fastest = Duration::MAX;
    let mut messages = 0;
    for _ in 0..ROUNDS {
        let mut state = RunState::load(record.clone());
        state.know_capacities(vec![(record.model().to_owned(), Capacity { tokenizer, ..Capacity::default() })]);
        let began = Instant::now();
        let decision = decide(&state, Input::Claimed { tools: Vec::new(), contexts: None, finished: Vec::new() }, &around);
        state.apply(&decision.changes);
        let request = black_box(model_request(&state));
        fastest = fastest.min(began.elapsed());
        messages = request.messages.len();
    }
    (fastest, messages)
}

/// The record as the next run of the conversation is loaded: without what the summary stands for.
fn summarised(ids: &SequentialIds, record: &RunRecord) -> RunRecord {
    let around = Surroundings { now: UnixMillis(0), ids, elapsed_ms: 0, spent: Usage::default() };
    let mut state = RunState::load(record.clone());
    let decision = decide(&state, Input::Claimed { tools: Vec::new(), contexts: None, finished: Vec::new() }, &around);
    state.apply(&decision.changes);
    let mut left = RunRecord { summary: state.record.summary, ..record.clone() };
    let covers = left.summary.as_ref().map(|summary| summary.covers.clone());
    if let Some(at) = left.history.iter().position(|message| Some(&message.id) == covers.as_ref()) {
        left.history.drain(..=at);
    }
    left
}

fn main() {
    let ids = SequentialIds::default();
    println!("| messages | whole | whole, by a tokenizer | summarised now | with the summary | messages in it |");
    println!("| --- | --- | --- | --- | --- | --- |");
    let mut slowest = Duration::ZERO;
    let (mut short, mut long) = (Duration::ZERO, Duration::ZERO);
    for size in SIZES {
        let all = record(&ids, size, 100_000_000);
        let (whole, _) = cost(&ids, &all, None);
        // The first round counts, the others find the counts.
        let (counted, _) = cost(&ids, &all, Some(Tokenizer::O200kBase));
        let small = record(&ids, size, 8_192);
        let (now, _) = cost(&ids, &small, None);
        let (later, messages) = cost(&ids, &summarised(&ids, &small), None);
        let micros = |time: Duration| format!("{} us", time.as_micros());
        println!("| {size} | {} | {} | {} | {} | {messages} |", micros(whole), micros(counted), micros(now), micros(later));
        slowest = slowest.max(whole).max(counted).max(now).max(later);
        if size == SHORT {
            short = later;
        }
        long = later;
    }
    assert!(slowest <= GOAL, "a request takes {slowest:?}; the goal is {GOAL:?}");
    assert!(
        long <= short * GROWTH,
        "with a summary, a request of the longest conversation takes {long:?}, and one of {SHORT} messages {short:?}"
    );
}
