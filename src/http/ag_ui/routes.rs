//! `/ag-ui/{agent}`: runs of an agent, for `HttpAgent` and TanStack AI.

use std::collections::BTreeSet;

use axum::Json;
use axum::extract::{Path, Request, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::IntoParams;

use super::messages::{ag_ui_messages, is_visible, tanstack_messages};
use super::request::{
    AgUiClient, MAX_KEPT_BYTES, ResumeEntry, ResumeStatus, RunInput, RunIntent, ToolMessage, UserMessage, kept_messages,
};
use super::translator::{AgUiRunFacts, AgUiTranslator, approval_interrupt, for_tanstack, question_interrupt, with_binding};
use crate::domain::access::principal::Principal;
use crate::domain::conversation::Conversation;
use crate::domain::conversation::message::Message;
use crate::domain::ids::{CallId, InputId, MessageId, RunId};
use crate::domain::problem::ProblemCode;
use crate::domain::run::question::{ACCEPT, InputAnswer, InputRequest, InputState};
use crate::domain::run::{OnBusy, Run};
use crate::domain::tool::approval::Approval;
use crate::domain::trace::TraceId;
use crate::http::api_router::{ApiRouter, routes};
use crate::http::clients::pauses::{RunPauses, Section};
use crate::http::clients::stream::{self, ChunkWriter, Frames};
use crate::http::clients::thread::{ApprovalDecision, Thread};
use crate::http::clients::{body, ids};
use crate::http::options::App;
use crate::http::wire::extract::{Input, Params};
use crate::http::wire::problem::{HttpResult, Problem, found};
use crate::http::wire::request::Trace;
use crate::service::{Access, Content, Cursor, Error, NewToolResult, Reader, RequestKey, RunSetup, StartRun, StreamStart};

const FRAMES: Frames = Frames { end: None, ids: true };

/// Number of messages in one read for a snapshot.
const SNAPSHOT_ROWS: u32 = 50;

pub(super) fn routes() -> ApiRouter {
    ApiRouter::new().routes(routes!(run, read))
}

/// Starts, continues or joins a run
///
/// A client that reconnects with `Last-Event-ID` gets the frames after that id.
#[utoipa::path(
    post, path = "/ag-ui/{agent}", tag = "ag-ui", operation_id = "ag_ui_run", request_body = RunInput,
    params(("agent" = String, Path, description = "The agent by name or id"), ("Last-Event-ID" = Option<String>, Header)),
    responses((status = 200, description = "The events of the run", body = String, content_type = "text/event-stream")),
)]
pub(super) async fn run(
    State(app): State<App>,
    access: Access,
    Trace(trace): Trace,
    Path(agent): Path<String>,
    headers: HeaderMap,
    request: Request,
) -> HttpResult<Response> {
    let Input { body, key } = body::read::<RunInput>(request, &app, &access).await?;
    let thread = Thread::new(&app, access, trace, ("threadId", &body.thread_id))?;
    let cursor = stream_cursor(&headers, None);
    // Most requests start a run and need both reads. They run in parallel, because the first token waits for them.
    let (run, row) = tokio::join!(find_run(&app, thread.principal(), &body.run_id), thread.row_or_new());
    let (id, reader, section) = match run? {
        Some(run) => attach(&thread, run, &body.run_id, cursor).await?,
        None => Box::pin(proceed(&thread, agent, (&body, row?), key, cursor)).await?,
    };
    tracing::debug!(run.id = %id, "streaming a run as AG-UI");
    let (client, messages, client_results) = (body.client(), kept_messages(&body.messages), body.client_results());
    let (thread_name, run, history) = (body.thread_id, body.run_id, Vec::new());
    let facts = AgUiRunFacts { id, thread: thread_name, run, client, section, client_results, messages, history };
    Ok(respond(thread, reader, facts, cursor))
}

type RunStream = (RunId, Reader, Section);

/// Streams an existing run. If `name` is the run's native id, shows the whole run. Otherwise repeats the response to its first
/// request.
async fn attach(thread: &Thread, run: Run, name: &str, cursor: StreamCursor) -> HttpResult<RunStream> {
    if run.conversation_id != thread.id {
        return Err(Error::conflict("this runId names a run of another thread; use a new one").into());
    }
    let section = match name == run.id.as_str() {
        true => whole_run(thread, &run.id, 0).await?,
        false => RunPauses::read(thread.service(), thread.principal(), &run.id).await?.whole(0),
    };
    follow(thread, run.id, section, cursor).await
}

/// Starts a run, or continues one with answers.
async fn proceed(
    thread: &Thread,
    agent: String,
    (body, row): (&RunInput, Option<Conversation>),
    key: Option<RequestKey>,
    cursor: StreamCursor,
) -> HttpResult<RunStream> {
    let intent = body.intent()?;
    // The message is checked before any answer is stored.
    let content = intent.message.as_ref().map(UserMessage::content).transpose()?;
    let (has_answers, ends_with_message) = (intent.has_answers(), intent.ends_with_message);
    // A message alone begins a run with the client's `runId`, which the database accepts once. Answers may continue an earlier run.
    if !has_answers && cursor.is_some() {
        let detail = "the run of this runId was deleted; send the message with a new runId";
        return Err(Problem::new(ProblemCode::NotFound, detail));
    }
    let name = intent.message.as_ref().and_then(UserMessage::name);
    let repeated = match name.filter(|_| row.is_some()) {
        Some(name) => thread.run_of_repeated_message(name, |_| true).await?,
        None => None,
    };
    // A message without a name that stands before results may be one that the server has, so it does not count as new.
    let is_new = intent.message.is_some() && repeated.is_none() && (ends_with_message || name.is_some());
    let continued = store_answers(thread, row.as_ref(), &intent, is_new).await?;
    let (continued, edits) = match (continued, intent.message, repeated) {
        (continued, Some(_), _) if is_new => (continued, None),
        (Some((run, section)), ..) => return follow(thread, run, section, cursor).await,
        (None, Some(_), Some(run)) if has_answers || !ends_with_message => {
            return follow(thread, run, Section::default(), cursor).await;
        }
        (None, Some(message), Some(run)) => match begin_regeneration(thread, (row.as_ref(), &run), (body, &message)).await? {
            Some(edited) => (None, Some(edited)),
            None => return follow(thread, run, Section::default(), cursor).await,
        },
        (None, Some(_), None) => (None, None),
        (None, None, _) => {
            let reason = "must end with a message of the user, or with results of calls that this thread has requested";
            return Err(Error::field("/messages", reason).into());
        }
    };
    let on_busy = match (&continued, &edits) {
        // The run that continues with the answers reads the message with them.
        (Some(_), _) => OnBusy::Steer,
        (None, Some(_)) => OnBusy::Reject,
        (None, None) => Thread::on_busy(row.as_ref()),
    };
    let setup = RunSetup {
        instructions: body.instructions(),
        protocol: Some(json!({ "thread": body.thread_id, "run": body.run_id })),
        run_id: Some(ids::run(&thread.principal().user_id, &body.run_id)),
        first_part: name.map(|name| ids::first_part(&thread.id, name)),
        ..RunSetup::default()
    };
    let request = StartRun {
        conversation_id: Some(thread.id.clone()),
        agent: Some(agent),
        model: body.model(),
        tools: body.tools(),
        on_busy,
        create: row.is_none(),
        stored_choice: Some(row.as_ref().map(Conversation::choice).unwrap_or_default()),
        edits,
        setup,
        ..StartRun::new(content.unwrap_or(Content::Parts(Vec::new())), "messages", thread.trace.clone())
    };
    let key = key.or_else(|| has_answers.then(|| thread.request_key("run", &body.run_id)));
    let started = match thread.service().start_run(thread.principal(), request, key).await {
        Ok(started) => started,
        // The same request may have arrived at the same time, and begun the run.
        Err(error) => {
            let run = find_run(&thread.app, thread.principal(), &body.run_id).await?.ok_or(error)?;
            return attach(thread, run, &body.run_id, cursor).await;
        }
    };
    let id = started.run.id.clone();
    match continued {
        Some((run, section)) if run == id => follow(thread, run, section, cursor).await,
        _ => {
            let reader = thread.service().stream_started(thread.principal(), started).with_queued_messages();
            Ok((id, reader, Section::default()))
        }
    }
}

/// Decides whether the client asks for another answer to the user's newest message, which `run` answers. Ends the active run, and
/// returns the id of the message to replace. Returns `None` if this request began `run`, or if `run` is queued.
async fn begin_regeneration(
    thread: &Thread,
    (row, run): (Option<&Conversation>, &RunId),
    (body, message): (&RunInput, &UserMessage<'_>),
) -> HttpResult<Option<MessageId>> {
    let is_own = *run == ids::run(&thread.principal().user_id, &body.run_id);
    let is_queued = row.and_then(|row| row.active_run_id.as_ref()).is_some_and(|active| active != run);
    let Some(name) = message.name().filter(|_| !is_own && !is_queued) else { return Ok(None) };
    thread.end_active_run().await?;
    Ok(thread.find_message(name).await?.map(|message| message.id))
}

/// Stores the answers in an input. Returns the run that continues with them, and its section after them. `is_new` is whether the
/// message of the user is new.
async fn store_answers(
    thread: &Thread,
    row: Option<&Conversation>,
    intent: &RunIntent<'_>,
    is_new: bool,
) -> HttpResult<Option<(RunId, Section)>> {
    // A run that has ended takes no results. A new message must not fail because of them.
    let last_run = || row.and_then(|row| row.last_run.as_ref()).filter(|_| !is_new).map(|run| run.id.clone());
    let newest = row.and_then(|row| row.active_run_id.clone()).or_else(last_run).filter(|_| !intent.results.is_empty());
    if intent.interrupt_answers.is_empty() {
        return match newest {
            Some(run) => store_results(thread, run, &intent.results, is_new).await,
            None => Ok(None),
        };
    }
    let mut answered = BTreeSet::new();
    if let Some(run) = newest {
        let pauses = RunPauses::read(thread.service(), thread.principal(), &run).await?;
        let open = open_results(&pauses, &intent.results)?;
        answered.extend(open.iter().map(|result| result.call_id.to_string()));
        if !open.is_empty() {
            // The results are stored before the first decision, because a worker may claim the run right after it.
            thread.section_after(&run, BTreeSet::new(), (&[], open)).await?;
        }
    }
    let mut run = None;
    for entry in intent.interrupt_answers {
        let id: InputId = entry.interrupt_id.parse().map_err(|_| Error::NotFound("interrupt"))?;
        run = Some(answer(thread, &id, entry).await?);
        answered.insert(id.to_string());
    }
    let Some(run) = run else { return Ok(None) };
    let pauses = RunPauses::read(thread.service(), thread.principal(), &run).await?;
    Ok(Some((run, pauses.section_after(&answered))))
}

/// Returns the results for which a run waits.
fn open_results(pauses: &RunPauses, results: &[ToolMessage<'_>]) -> HttpResult<Vec<NewToolResult>> {
    let open = results.iter().filter(|result| pauses.requested.contains_key(&result.call_id));
    open.map(ToolMessage::result).collect()
}

/// Stores the results for which the run waits. Returns the run that requested the calls, and its section after the results. Ignores
/// results that the run has, and those of other calls.
///
/// Returns `None` if no result is left and the user's message `is_new`, or if the thread has requested none of the calls.
async fn store_results(
    thread: &Thread,
    mut run: RunId,
    results: &[ToolMessage<'_>],
    is_new: bool,
) -> HttpResult<Option<(RunId, Section)>> {
    let pauses = RunPauses::read(thread.service(), thread.principal(), &run).await?;
    let open = open_results(&pauses, results)?;
    if open.is_empty() && is_new {
        return Ok(None);
    }
    let sent = results.iter().map(|result| result.call_id.clone());
    let mut calls: Vec<CallId> = sent.clone().filter(|call| pauses.has_requested(call)).collect();
    if calls.is_empty() {
        // The results of an earlier run arrive late, or are repeated.
        let of_call =
            |message: &Message| message.tool_calls().any(|call| results.iter().any(|result| result.call_id == call.call_id));
        let Some(message) = thread.find(of_call).await? else { return Ok(None) };
        run = message.run_id;
        calls = sent.collect();
    }
    let section = thread.section_after(&run, BTreeSet::new(), (&calls, open)).await?;
    Ok(Some((run, section)))
}

/// Returns the run with this `runId`: a name that a client chose, or a run id of the native API.
pub(super) async fn find_run(app: &App, owner: &Principal, name: &str) -> HttpResult<Option<Run>> {
    ids::check("runId", name)?;
    for id in [ids::run(&owner.user_id, name)].into_iter().chain(name.parse().ok()) {
        if let Some(run) = found(app.service.run(owner, &id).await)? {
            return Ok(Some(run));
        }
    }
    Ok(None)
}

/// Answers one interrupt: an approval or a question. Returns its run.
async fn answer(thread: &Thread, id: &InputId, entry: &ResumeEntry) -> HttpResult<RunId> {
    let ResumeEntry { status, payload, .. } = entry;
    let is_resolved = *status == ResumeStatus::Resolved;
    match found(thread.service().input_request(thread.principal(), id).await)? {
        Some(asked) => {
            if asked.request.conversation_id != thread.id {
                return Err(Error::NotFound("interrupt").into());
            }
            if asked.request.state == InputState::Pending {
                let answer = if is_resolved { resolved(payload) } else { asked.request.declining_answer() };
                thread.service().resolve_input(thread.principal(), id, answer, None).await?;
            }
            Ok(asked.request.run_id)
        }
        None => {
            let approved = payload.as_bool().or_else(|| payload["approved"].as_bool()).unwrap_or(false);
            let text = |name: &str| payload[name].as_str().map(str::to_owned);
            let arguments = ["arguments", "editedArgs"].iter().find_map(|name| payload.get(*name)).cloned();
            let decided = ApprovalDecision { approved: is_resolved && approved, reason: text("reason"), arguments };
            thread.decide(id, decided).await
        }
    }
}

fn resolved(payload: &Value) -> InputAnswer {
    let text = |name: &str| payload[name].as_str().map(str::to_owned);
    let content = payload.get("content").filter(|content| content.is_object()).cloned();
    let accepts = || content.as_ref().map(|_| ACCEPT.to_owned());
    let choice = text("choice").or_else(accepts).unwrap_or_default();
    let words = text("text").or_else(|| payload.as_str().map(str::to_owned));
    InputAnswer { content, ..InputAnswer::new(choice, words) }
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct ReadParams {
    /// The run to join.
    #[serde(rename = "runId")]
    run: Option<String>,
    /// The thread whose messages are read.
    #[serde(rename = "threadId")]
    thread: Option<String>,
    /// The id of the last frame that the client has, or -1 for none.
    offset: Option<String>,
}

/// Joins a run, or reads the messages of a thread
///
/// The query has `runId` or `threadId`.
#[utoipa::path(
    get, path = "/ag-ui/{agent}", tag = "ag-ui", operation_id = "ag_ui_read",
    params(("agent" = String, Path, description = "Any agent"), ReadParams, ("Last-Event-ID" = Option<String>, Header)),
    responses((status = 200, description = "The events of the run, or the messages of the thread",
               content((Object = "application/json"), (String = "text/event-stream")))),
)]
async fn read(
    State(app): State<App>,
    access: Access,
    Trace(trace): Trace,
    Params(params): Params<ReadParams>,
    headers: HeaderMap,
) -> HttpResult<Response> {
    match params {
        ReadParams { run: Some(run), thread, offset } => {
            join(&app, (access, trace), (&run, thread), stream_cursor(&headers, offset.as_deref())).await
        }
        ReadParams { thread: Some(thread), .. } => {
            let thread = Thread::new(&app, access, trace, ("threadId", &thread))?;
            Ok(Json(hydration(&thread).await?).into_response())
        }
        ReadParams { .. } => Err(Error::invalid("the query must have runId, to join a run, or threadId, to read a thread").into()),
    }
}

/// Streams a run from its beginning, or from the last frame that the client has.
async fn join(
    app: &App,
    (access, trace): (Access, TraceId),
    (name, thread): (&str, Option<String>),
    cursor: StreamCursor,
) -> HttpResult<Response> {
    let owner = access.principal().clone();
    let run = find_run(app, &owner, name).await?.ok_or(Error::NotFound("run"))?;
    let id = run.id.clone();
    let thread_name = match thread {
        Some(thread) => thread,
        None => {
            let kept = app.service.run_profile(&owner, &id).await?.protocol;
            let kept = kept.as_ref().and_then(|kept| kept["thread"].as_str()).map(str::to_owned);
            kept.unwrap_or_else(|| run.conversation_id.to_string())
        }
    };
    let thread = Thread::new(app, access, trace, ("threadId", run.conversation_id.as_str()))?;
    let section = whole_run(&thread, &id, 0).await?;
    let messages = if run.status.is_terminal() { None } else { messages_beside(&thread, &id).await? };
    let (id, reader, section) = follow(&thread, id, section, cursor).await?;
    let (run, history, client_results) = (name.to_owned(), Vec::new(), BTreeSet::new());
    // Only TanStack AI joins a run by a GET.
    let client = AgUiClient::TanStack;
    let facts = AgUiRunFacts { id, thread: thread_name, run, client, section, client_results, messages, history };
    Ok(respond(thread, reader, facts, cursor))
}

/// Returns the messages of the thread without those of the active run's answer, for a snapshot. Returns `None` above the limit.
///
/// Returns `None` also if `run` is not the active run. The stream of an ended run omits voided parts and needs no snapshot. A
/// snapshot for a queued run would lack the answer of the run before it.
async fn messages_beside(thread: &Thread, run: &RunId) -> HttpResult<Option<Box<str>>> {
    if thread.row().await?.is_none_or(|row| row.active_run_id.as_ref() != Some(run)) {
        return Ok(None);
    }
    let (mut pages, mut before, mut left) = (Vec::new(), None, MAX_KEPT_BYTES);
    loop {
        let mut page = thread.service().earlier_messages(thread.principal(), &thread.id, before, SNAPSHOT_ROWS).await?;
        // The snapshot has the order of the runs, so it needs the messages of all pages. Hidden ones are dropped at once.
        page.items.retain(|message| is_visible(message, Some(run)));
        let shown = ag_ui_messages(&page.items, Some(run));
        let Some(rest) = left.checked_sub(json!(shown).to_string().len()) else { return Ok(None) };
        left = rest;
        pages.push(page.items);
        match page.next.and_then(|next| next.parse().ok()) {
            Some(next) => before = Some(next),
            None => {
                let messages: Vec<Message> = pages.into_iter().rev().flatten().collect();
                return Ok(kept_messages(&ag_ui_messages(&messages, Some(run))));
            }
        }
    }
}

/// Streams the messages of a thread as a run of its own, and then the active run, if there is one.
pub(super) async fn connect_stream(
    thread: Thread,
    (active, head): (Option<RunId>, i64),
    body: RunInput,
    messages: Vec<Value>,
) -> HttpResult<Response> {
    let name = |what: &str| json!({ "type": what, "threadId": body.thread_id, "runId": body.run_id });
    let snapshot = json!({ "type": "MESSAGES_SNAPSHOT", "messages": messages });
    let history = vec![name("RUN_STARTED"), snapshot, name("RUN_FINISHED")];
    let Some(run) = active else { return Ok(stream::complete(FRAMES, &history)) };
    let section = whole_run(&thread, &run, head).await?;
    let kept = thread.service().run_profile(thread.principal(), &run).await?.protocol;
    let name = kept.as_ref().and_then(|kept| kept["run"].as_str()).unwrap_or(run.as_str()).to_owned();
    let (id, reader, section) = follow(&thread, run, section, None).await?;
    // The snapshot lacks the results of the active run, so its stream has them all.
    let (client, messages, client_results) = (body.client(), kept_messages(&messages), BTreeSet::new());
    let facts = AgUiRunFacts { id, thread: body.thread_id, run: name, client, section, client_results, messages, history };
    Ok(respond(thread, reader, facts, None))
}

/// Returns the section of the whole run. Its pauses up to now are over, except the last one of a waiting run. The caller has read
/// the log up to `head`.
async fn whole_run(thread: &Thread, run: &RunId, head: i64) -> HttpResult<Section> {
    // The state and `last_seq` come from the same read, so all pauses up to `last_seq` are over, except that of a waiting run.
    let row = thread.row().await?.ok_or(Error::NotFound("thread"))?;
    let waits = row.waits_for_answer() && row.active_run_id.as_ref() == Some(run);
    let pauses = RunPauses::read(thread.service(), thread.principal(), run).await?;
    let passed = if waits { pauses.before_last() } else { row.last_seq.max(head) };
    Ok(pauses.whole(passed))
}

/// Returns the messages of a thread, its active run, and the open interrupts.
async fn hydration(thread: &Thread) -> HttpResult<Value> {
    let Some((row, messages)) = thread.history().await? else {
        return Ok(json!({ "messages": [], "activeRun": null, "interrupts": null, "page": { "truncated": false } }));
    };
    let waits = row.waits_for_answer();
    let mut pending = Vec::new();
    if let Some(run) = row.active_run_id.as_ref().filter(|_| waits) {
        let open = thread.open_questions(run).await?;
        let question = |asked: &InputRequest| question_interrupt(asked.id.as_str(), asked.call_id.as_ref(), &asked.question);
        let approval = |asked: &Approval| approval_interrupt(asked.id.as_str(), asked.call_id.as_ref(), &asked.request);
        let interrupts = open.approvals.iter().map(approval).chain(open.questions.iter().map(question));
        pending.extend(interrupts.map(|interrupt| for_tanstack(with_binding(interrupt, run.as_str()))));
    }
    let streaming = row.active_run_id.as_ref().filter(|_| !waits);
    let interrupts =
        row.active_run_id.as_ref().filter(|_| !pending.is_empty()).map(|run| json!({ "runId": run, "pending": pending }));
    Ok(json!({
        "messages": tanstack_messages(&messages, streaming),
        "activeRun": streaming.map(|run| json!({ "runId": run })),
        "interrupts": interrupts,
        "page": { "truncated": false },
    }))
}

/// Reads a run from its first event. Fails if the log cannot continue at the cursor, for example inside compacted deltas: the
/// client would get their text twice.
async fn follow(thread: &Thread, run: RunId, section: Section, cursor: StreamCursor) -> HttpResult<RunStream> {
    if let Some((seq, _)) = cursor {
        thread.service().run_events(thread.principal(), &run, Some(Cursor(seq)), 1).await?;
    }
    match thread.service().stream_run(thread.principal(), &run, None).await? {
        StreamStart::Stream(reader) => Ok((run, reader.with_queued_messages(), section)),
        StreamStart::Finished { .. } => Err(Error::NotFound("event of this run").into()),
    }
}

fn respond(thread: Thread, reader: Reader, mut facts: AgUiRunFacts, cursor: StreamCursor) -> Response {
    if let Some((seq, _)) = cursor {
        facts.section.keep_shown(seq);
    }
    let Thread { app, access, .. } = thread;
    stream::respond(&app, access, reader, ChunkWriter { translator: AgUiTranslator::new(facts), frames: FRAMES, cursor })
}

/// The id of the last frame that the client has: the `seq` of its event, and its position among the frames of that event, from 0.
type StreamCursor = Option<(i64, usize)>;

/// Returns the cursor of a request: `Last-Event-ID`, or the offset in the query.
fn stream_cursor(headers: &HeaderMap, offset: Option<&str>) -> StreamCursor {
    let header = headers.get("last-event-id").and_then(|value| value.to_str().ok()).filter(|id| !id.is_empty());
    let (seq, position) = header.or(offset)?.split_once('-')?;
    Some((seq.parse().ok()?, position.parse().ok()?))
}
