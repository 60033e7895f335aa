//! Measures the cost of a request for conversations with more and more messages: complete, or with a summary of the older ones. The
//! summary must stop the growth of the cost. Each request offers the tools of an agent with many tools.
//!
//! Fails if a request takes longer than [`GOAL`], or if one with a summary grows more in a long conversation than [`GROWTH`]
//! allows.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use capstan::domain::agent::AgentProfile;
use capstan::domain::conversation::message::{Message, Part, Role, TextPart, ToolCallPart, ToolContent, ToolResultPart};
use capstan::domain::ids::{CallId, ConversationId, MessageId, PartId, RunId, UserId};
use capstan::domain::model::{ModelRequest, Usage};
use capstan::domain::run::context::{Capacity, ContextPolicy, json_tokens};
use capstan::domain::run::record::{Fence, RunRecord};
use capstan::domain::tool::{ReplayClass, ToolCallState, ToolDefinition};
use capstan::engine::{Command, DecisionEnvironment, Input, RunFacts, RunState, count_ahead, counts_tokens, decide};
use capstan::support::clock::UnixMillis;
use capstan::support::ids::SequentialIds;
use capstan::support::tokens::Tokenizer;
use serde_json::json;

/// The most that a request may take, its budget and its messages together.
const GOAL: Duration = Duration::from_millis(5);
/// How many times as much a request of the longest conversation may cost as one of [`SHORT`] messages, when the rest of both is summarised.
/// It is about the same, of the fastest of many rounds each; were what is summarised looked at, it would be many times as much.
const GROWTH: u32 = 3;
/// The tokenizer for budgets in tokens.
const TOKENIZER: Tokenizer = Tokenizer::O200kBase;
/// A budget, in tokens, in which everything fits.
const WIDE: u64 = 100_000_000;
/// A budget for messages, beside the tools, in which only few of them fit.
const NARROW: u64 = 8_192;
/// A conversation that is long enough to be summarised.
const SHORT: usize = 50;
/// Rounds of which the fastest counts: everything else is the machine's.
const ROUNDS: usize = 50;
/// Messages of each conversation.
const SIZES: [usize; 6] = [10, 50, 200, 500, 1_000, 2_000];

/// So many words, which stand in no other message of this process: a text that has been counted once is not counted again.
fn prose(conversation: usize, place: usize, words: usize) -> String {
    // Twenty-nine words, so that steps of any other length come by all of them.
    let said = "the report says that deliveries of March were late because a supplier in Rotterdam had changed its invoices \
                without telling anybody and 2,450 parts went to another warehouse, where";
    let mut text = format!("{conversation}.{place}:");
    for word in said.split(' ').cycle().skip(place % 29).step_by(1 + place % 7).take(words) {
        text.push(' ');
        text.push_str(word);
    }
    text
}

/// Forty tools as servers of the MCP define them: what each is for and when it is not to be used, and a schema that says as much of
/// every argument.
fn tools() -> Vec<Arc<ToolDefinition>> {
    let servers = [
        ("files", "file"),
        ("git", "commit"),
        ("tickets", "ticket"),
        ("calendar", "appointment"),
        ("mail", "message"),
        ("customers", "customer"),
        ("wiki", "page"),
        ("orders", "order"),
    ];
    servers.into_iter().flat_map(|(server, thing)| tools_of(server, thing)).collect()
}

fn tools_of(server: &str, thing: &str) -> [Arc<ToolDefinition>; 5] {
    let id = json!({
        "type": "string", "minLength": 1, "maxLength": 128,
        "description": format!("The id of the {thing}, as `search` has said it. Never make one up."),
    });
    let content = json!({
        "type": "object",
        "description": format!("What the {thing} says."),
        "properties": {
            "title": { "type": "string", "maxLength": 200, "description": "One line, without Markdown." },
            "body": { "type": "string", "description": "The text, as Markdown. Leave out what the title says already." },
            "labels": { "type": "array", "items": { "type": "string" }, "maxItems": 10, "description": "Words to find it by." },
            "priority": { "type": "string", "enum": ["low", "normal", "high", "urgent"], "default": "normal" },
            "due": { "type": ["string", "null"], "format": "date-time", "description": "When it has to be done, RFC 3339." },
        },
        "required": ["title"],
        "additionalProperties": false,
    });
    let version = json!({
        "type": "integer", "minimum": 1,
        "description": "The version that was read. If somebody has changed it meanwhile, the call fails: then read it again.",
    });
    let search = json!({
        "query": { "type": "string", "description": "Words that must all be in it; phrases in quotes, `-` before what must not." },
        "owner": { "type": "string", "description": "The user name of whoever made it. Leave it out for everybody's." },
        "changed_after": { "type": "string", "format": "date-time", "description": "Only what was changed after that, RFC 3339." },
        "state": { "type": "string", "enum": ["open", "closed", "archived", "any"], "default": "open" },
        "sort": { "type": "string", "enum": ["relevance", "newest", "oldest"], "default": "relevance" },
        "limit": { "type": "integer", "minimum": 1, "maximum": 100, "default": 20, "description": "The most that are told." },
        "cursor": { "type": "string", "description": "Where the last page has ended, as it has said." },
    });
    let read = json!({
        "id": id,
        "lines": {
            "type": "array", "items": { "type": "integer" }, "minItems": 2, "maxItems": 2,
            "description": "The first line and the last, counted from 1.",
        },
        "include": { "type": "array", "items": { "enum": ["history", "comments", "attachments"] }, "uniqueItems": true },
        "format": { "type": "string", "enum": ["markdown", "text", "html"], "default": "markdown" },
    });
    let parent = json!({
        "type": "string", "description": format!("The {thing} below which it is made. Without one, it stands by itself."),
    });
    let notify =
        json!({ "type": "boolean", "default": false, "description": "Whether those who follow it are told of it by mail." });
    let reason = json!({ "type": "string", "maxLength": 500, "description": "Why, for those who read the history later." });
    [
        (
            "search",
            "Finds",
            "Use it before you read one whose id you do not know. It says ids, titles and a line of each, and nothing else",
            search,
        ),
        (
            "read",
            "Reads",
            "Use it for one whose id you know, and to find out its version before it is changed. A long one is told in parts",
            read,
        ),
        (
            "create",
            "Makes",
            "Search first: the same thing must not be made twice. It says the id of the new one",
            json!({
                "content": content, "parent": parent, "notify": notify,
            }),
        ),
        (
            "update",
            "Changes",
            "What is not named stays as it is. Do not use it to close one that is done; that is a state",
            json!({
                "id": id, "version": version, "content": content, "reason": reason, "notify": notify,
            }),
        ),
        (
            "delete",
            "Deletes",
            "Only if the user has asked for exactly that. It cannot be taken back after thirty days",
            json!({
                "id": id, "version": version, "reason": reason,
            }),
        ),
    ]
    .map(|(tool, does, when, properties)| {
        let required = match tool {
            "search" => json!(["query"]),
            "create" => json!(["content"]),
            "update" => json!(["id", "version", "content"]),
            _ => json!(["id"]),
        };
        let schema = json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false });
        let description = format!("{does} a {thing} of the server `{server}`. {when}. Fails if the user may not see the {thing}.");
        let replay = if matches!(tool, "search" | "read") { ReplayClass::Read } else { ReplayClass::Unsafe };
        Arc::new(ToolDefinition {
            server: Some(server.to_owned()),
            tool: tool.to_owned(),
            definition_hash: "0".repeat(64),
            ..ToolDefinition::new(&format!("{server}__{tool}"), description, schema, replay)
        })
    })
}

/// How long the definitions are that a model reads.
fn bytes_of(tool: &ToolDefinition) -> usize {
    tool.name.len() + tool.description.len() + tool.parameters.to_string().len()
}

/// A conversation of turns of four messages: question, call, result of some 600 bytes, answer.
fn record(ids: &SequentialIds, messages: usize, limit: u64) -> RunRecord {
    let conversation_id = ConversationId::generate(ids);
    let own = RunId::generate(ids);
    let mut history = Vec::with_capacity(messages + 1);
    let mut run_id = RunId::generate(ids);
    let mut add = |run_id: &RunId, role, parts| {
        history.push(Message::new(MessageId::generate(ids), (run_id.clone(), conversation_id.clone()), role, parts));
    };
    let words = |at: usize, count: usize| Part::Text(TextPart { id: PartId::generate(ids), text: prose(messages, at, count) });
    let mut call_id = CallId::generate(ids);
    for at in 0..messages {
        match at % 4 {
            0 => {
                run_id = RunId::generate(ids);
                add(&run_id, Role::User, vec![words(at, 40)]);
            }
            1 => {
                call_id = CallId::generate(ids);
                let call = ToolCallPart {
                    id: PartId::generate(ids),
                    call_id: call_id.clone(),
                    name: "files__read".to_owned(),
                    arguments: json!({ "id": format!("/notes/{messages}/{at}.md"), "lines": [1, 200] }),
                    provider_call_id: None,
                    raw: None,
                    undoes: None,
                };
                add(&run_id, Role::Assistant, vec![words(at, 25), Part::ToolCall(call)]);
            }
            2 => {
                let result = ToolResultPart {
                    id: PartId::generate(ids),
                    call_id: call_id.clone(),
                    name: "files__read".to_owned(),
                    content: vec![ToolContent::text(prose(messages, at, 100))],
                    is_error: false,
                    state: ToolCallState::Done,
                    undoable: false,
                };
                add(&run_id, Role::Tool, vec![Part::ToolResult(result)]);
            }
            _ => add(&run_id, Role::Assistant, vec![words(at, 45)]),
        }
    }
    add(&own, Role::User, vec![words(messages, 30)]);
    let fence = Fence { run_id: own, conversation_id, epoch: 1 };
    let profile =
        AgentProfile { context: ContextPolicy { limit: Some(limit), ..ContextPolicy::default() }, ..AgentProfile::default() };
    RunRecord { history, ..RunRecord::first(fence, UserId::generate(ids), profile) }
}

/// The run's state, with a model that counts by the tokenizer.
fn loaded(record: RunRecord, tokenizer: Option<Tokenizer>) -> RunState {
    let model = record.model().to_owned();
    let mut state = RunState::load(record);
    state.set_facts(RunFacts { capacities: vec![(model, Capacity { tokenizer, ..Capacity::default() })], ..RunFacts::default() });
    state
}

/// The claim of a run that is offered the tools.
fn claimed(tools: &[Arc<ToolDefinition>]) -> Input {
    Input::Claimed { tools: tools.to_vec(), contexts: None, finished: Vec::new() }
}

/// Measures the first count of a conversation's tokens, with only the tools counted before. [`GOAL`] does not apply. A server
/// counts before the first decision about a run, on a thread for long work (`counted` in `src/worker/leases/claimed.rs`). Later
/// decisions and requests reuse the counts. Content that comes later, such as the result of a call, is counted when it is decided
/// about. Tools that no run of the process was offered before are counted with the first decision.
fn first_count(record: &RunRecord, tools: &[Arc<ToolDefinition>]) -> Duration {
    let state = loaded(RunRecord { tools: Some(tools.to_vec()), ..record.clone() }, Some(TOKENIZER));
    assert!(counts_tokens(&state), "nothing is counted for the budget");
    let began = Instant::now();
    count_ahead(&state);
    began.elapsed()
}

/// The request of a decision that makes a model call.
fn request_of(commands: Vec<Command>) -> Box<ModelRequest> {
    let mut requests = commands.into_iter().filter_map(|command| match command {
        Command::CallModel(request) => Some(request),
        Command::RankTools | Command::Reserve(_) | Command::RunTool(_) | Command::Reconcile(_) | Command::Stop => None,
    });
    requests.next().expect("the decision makes a model call")
}

/// The fastest of many rounds: what is decided before a model call, and the request of it.
fn cost(ids: &SequentialIds, record: &RunRecord, tools: &[Arc<ToolDefinition>], tokenizer: Option<Tokenizer>) -> (Duration, usize) {
    let around = DecisionEnvironment { now: UnixMillis(0), ids, elapsed_ms: 0, spent: Usage::default() };
    let mut fastest = Duration::MAX;
    let mut messages = 0;
    for _ in 0..ROUNDS {
        let mut state = loaded(record.clone(), tokenizer);
        let input = claimed(tools);
        let began = Instant::now();
        let decision = decide(&mut state, input, &around);
        state.apply(&decision.changes);
        let request = black_box(request_of(decision.commands));
        fastest = fastest.min(began.elapsed());
        assert_eq!(request.tools.len(), tools.len(), "a request that is not the one that is meant");
        messages = request.messages.len();
    }
    (fastest, messages)
}

/// The record as the next run of the conversation is loaded: without what the summary stands for.
fn summarised(ids: &SequentialIds, record: &RunRecord, tools: &[Arc<ToolDefinition>]) -> RunRecord {
    let around = DecisionEnvironment { now: UnixMillis(0), ids, elapsed_ms: 0, spent: Usage::default() };
    let mut state = RunState::load(record.clone());
    let decision = decide(&mut state, claimed(tools), &around);
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
    let tools = tools();
    // Beside the tools, messages have the same room as in a conversation without any.
    let narrow = NARROW + tools.iter().map(|tool| json_tokens(bytes_of(tool))).sum::<u64>();
    let micros = |time: Duration| format!("{} us", time.as_micros());
    // The first count of a process loads the tables, which is none of any conversation's.
    black_box(TOKENIZER.count("The tables are loaded."));
    let definitions = first_count(&record(&ids, 0, WIDE), &tools);
    println!(
        "| messages | whole | whole, by a tokenizer | counted for the first time | summarised now | with the summary | messages in it |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    let mut slowest = Duration::ZERO;
    let (mut short, mut long) = (Duration::ZERO, Duration::ZERO);
    for size in SIZES {
        let all = record(&ids, size, WIDE);
        // Before anything else that counts: its texts are those of this size alone.
        let first = first_count(&all, &tools);
        let (whole, _) = cost(&ids, &all, &tools, None);
        let (counted, _) = cost(&ids, &all, &tools, Some(TOKENIZER));
        let small = record(&ids, size, narrow);
        let (now, _) = cost(&ids, &small, &tools, None);
        let (later, messages) = cost(&ids, &summarised(&ids, &small, &tools), &tools, None);
        let (whole_us, counted_us, first_us) = (micros(whole), micros(counted), micros(first));
        println!("| {size} | {whole_us} | {counted_us} | {first_us} | {} | {} | {messages} |", micros(now), micros(later));
        slowest = slowest.max(whole).max(counted).max(now).max(later);
        if size == SHORT {
            short = later;
        }
        long = later;
    }
    let bytes: usize = tools.iter().map(|tool| bytes_of(tool)).sum();
    println!("\n{} tools with {bytes} bytes of definitions: {} to count them for the first time", tools.len(), micros(definitions));
    assert!(slowest <= GOAL, "a request takes {slowest:?}; the goal is {GOAL:?}");
    assert!(
        long <= short * GROWTH,
        "with a summary, a request of the longest conversation takes {long:?}, and one of {SHORT} messages {short:?}"
    );
}
