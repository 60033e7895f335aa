//! `/api/chat`: chats of the AI SDK.

use std::collections::BTreeSet;

use axum::Json;
use axum::extract::{Path, Request, State};
use axum::http::header::HeaderName;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use utoipa::IntoParams;

use super::assistant_message_id::AssistantMessageId;
use super::regenerate::{
    Regeneration, RegenerationMethod, ResentMessage, decide_regeneration, edited_message, has_content, regenerates_unknown_message,
};
use super::request::{ChatBody, Trigger, UiMessage};
use super::translator::{ChatRunFacts, UiMessageTranslator, Version};
use super::ui_messages::ui_messages;
use crate::domain::agent::AgentProfile;
use crate::domain::conversation::Conversation;
use crate::domain::conversation::message::Role;
use crate::domain::event::EventBody;
use crate::domain::ids::{CallId, InputId, PartId, RunId};
use crate::domain::run::OnBusy;
use crate::domain::tool::approval::Approval;
use crate::http::api_router::{ApiRouter, routes};
use crate::http::clients::pauses::{RunPauses, Section};
use crate::http::clients::stream::{self, ChunkWriter, Frames};
use crate::http::clients::thread::{OpenQuestions, Thread, client_calls};
use crate::http::clients::{body, ids};
use crate::http::options::App;
use crate::http::wire::extract::{Input, Params};
use crate::http::wire::problem::HttpResult;
use crate::http::wire::request::Trace;
use crate::service::{
    Access, Content, ContinueRun, Error, Reader, RequestKey, RetryRun, RunSetup, StartRun, StartedRun, StreamStart,
};

const FRAMES: Frames = Frames { end: Some("data: [DONE]\n\n"), ids: false };
const PROTOCOL: (HeaderName, HeaderValue) =
    (HeaderName::from_static("x-vercel-ai-ui-message-stream"), HeaderValue::from_static("v1"));
const CHAT_ID: &str = "The client's name of the chat, or the id of a conversation";

pub(in crate::http) fn routes() -> ApiRouter {
    ApiRouter::new().routes(routes!(send)).routes(routes!(resume)).routes(routes!(stop)).routes(routes!(messages))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct ChatParams {
    /// The major version of the AI SDK that the client uses.
    #[param(minimum = 5, maximum = 7, default = 6)]
    v: Option<u32>,
}

impl ChatParams {
    fn version(&self) -> HttpResult<Version> {
        match self.v {
            Some(5) => Ok(Version::Five),
            None | Some(6) => Ok(Version::Six),
            Some(7) => Ok(Version::Seven),
            Some(other) => Err(Error::invalid(format!("the query parameter v is {other}; it must be 5, 6 or 7")).into()),
        }
    }
}

/// Streams the answer to a message
///
/// Sends or edits a message, regenerates an answer, or continues a run with answers.
#[utoipa::path(
    post, path = "/api/chat", tag = "ai-sdk", operation_id = "ai_sdk_send", params(ChatParams), request_body = ChatBody,
    responses((status = 200, description = "The chunks of the run", body = String, content_type = "text/event-stream")),
)]
async fn send(
    State(app): State<App>,
    access: Access,
    Trace(trace): Trace,
    Params(params): Params<ChatParams>,
    request: Request,
) -> HttpResult<Response> {
    let version = params.version()?;
    let Input { body, key } = body::read::<ChatBody>(request, &app, &access).await?;
    let thread = Thread::new(&app, access, trace, ("id", &body.id))?;
    let found = stream_of(&thread, &body, key).await?;
    Ok(respond(thread, found, version))
}

/// A run to stream, and what its translator needs.
pub(super) struct RunStream {
    pub reader: Reader,
    id: AssistantMessageId,
    section: Section,
    client_tools: BTreeSet<String>,
}

impl RunStream {
    fn of(id: AssistantMessageId, reader: Reader, section: Section, profile: AgentProfile) -> Self {
        let client_tools = profile.client_tools.into_iter().map(|tool| tool.name).collect();
        Self { reader, id, section, client_tools }
    }

    pub fn translated(self, version: Version) -> (Reader, UiMessageTranslator) {
        let Self { reader, id, section, client_tools } = self;
        (reader, UiMessageTranslator::new(ChatRunFacts { id, version, section, client_tools }))
    }
}

/// Executes a request, and returns the stream of its run.
pub(super) async fn stream_of(thread: &Thread, body: &ChatBody, key: Option<RequestKey>) -> HttpResult<RunStream> {
    match (body.trigger, body.newest_message()) {
        (Trigger::RegenerateMessage, _) => Box::pin(regenerate(thread, body, key)).await,
        (Trigger::SubmitMessage, Some(message)) if message.role == "assistant" => {
            let (id, section) = Box::pin(store_answers(thread, message)).await?;
            follow(thread, id, section).await
        }
        (Trigger::SubmitMessage, Some(message)) if message.role == "user" => Box::pin(submit(thread, body, message, key)).await,
        (Trigger::SubmitMessage, _) => Err(Error::field("/messages", "must end with the new message").into()),
    }
}

async fn submit(thread: &Thread, body: &ChatBody, message: &UiMessage, key: Option<RequestKey>) -> HttpResult<RunStream> {
    let content = message.content()?;
    let name = message.id.as_deref().filter(|name| !name.is_empty());
    let edited = edited_message(thread, name, body.message_id.as_deref()).await?;
    let row = thread.row_or_new().await?;
    let first_part = name.map(|name| ids::first_part(&thread.id, name));
    let on_busy = Thread::on_busy(row.as_ref());
    let stored_choice = Some(row.as_ref().map(Conversation::choice).unwrap_or_default());
    let mut request = StartRun { on_busy, create: row.is_none(), stored_choice, ..new_run(thread, body, content, first_part) };
    let Some(edited) = edited else {
        if let Some(name) = name.filter(|_| row.is_some())
            && let Some(run) = thread.run_of_repeated_message(name, |message| has_content(message, &request.content)).await?
        {
            // The client repeats a message whose idempotency record has expired or never existed.
            let id = newest_assistant_message(thread, run).await?;
            let section = match id.joined {
                // The pauses before the message are over.
                Some(_) => RunPauses::read(thread.service(), thread.principal(), &id.run).await?.after_pauses(),
                None => Section::default(),
            };
            return follow(thread, id, section).await;
        }
        let key = key.or_else(|| name.map(|name| thread.request_key("message", name)));
        return match store_answers_beside_message(thread, body, row.as_ref()).await? {
            Some(answered) => Box::pin(steer(thread, answered, request, key)).await,
            None => start(thread, request, key).await,
        };
    };
    let active = row.and_then(|row| row.active_run_id);
    // The client repeats an edit whose response it has lost: the active run answers the same content.
    if active.as_ref() == Some(&edited.run_id) && has_content(&edited, &request.content) {
        return follow(thread, edited.run_id, Section::default()).await;
    }
    request.edits = Some(edited.id);
    edit(thread, request, key).await
}

/// Returns the request of a run with the agent, model, options and tools of a body. `first_part` is the id of the message's first
/// part.
fn new_run(thread: &Thread, body: &ChatBody, content: Content, first_part: Option<PartId>) -> StartRun {
    StartRun {
        conversation_id: Some(thread.id.clone()),
        agent: body.agent.clone(),
        model: body.model.clone(),
        options: body.options.clone(),
        on_busy: OnBusy::Reject,
        setup: RunSetup { first_part, ..RunSetup::default() },
        tools: body.tools(),
        ..StartRun::new(content, "message", thread.trace.clone())
    }
}

async fn start(thread: &Thread, request: StartRun, key: Option<RequestKey>) -> HttpResult<RunStream> {
    let started = thread.service().start_run(thread.principal(), request, key).await?;
    stream_started(thread, started).await
}

async fn stream_started(thread: &Thread, mut started: StartedRun) -> HttpResult<RunStream> {
    let profile = thread.service().started_profile(thread.principal(), &mut started).await?;
    let run = started.run.id.clone();
    let reader = thread.service().stream_started(thread.principal(), started);
    Ok(RunStream::of(run.into(), reader, Section::default(), profile))
}

/// Adds a message to a run after its answers were stored, so that the run reads both together.
async fn steer(
    thread: &Thread,
    (run, section): (RunId, Section),
    request: StartRun,
    key: Option<RequestKey>,
) -> HttpResult<RunStream> {
    let request = StartRun { on_busy: OnBusy::Steer, ..request };
    let started = thread.service().start_run(thread.principal(), request, key).await?;
    if started.run.id != run {
        // The run has ended meanwhile, so the message has begun another.
        return stream_started(thread, started).await;
    }
    follow(thread, AssistantMessageId { run, joined: Some(started.message.id) }, section).await
}

/// Replaces a message of the user. Ends the active run first, because it answers a message that leaves the conversation.
async fn edit(thread: &Thread, request: StartRun, key: Option<RequestKey>) -> HttpResult<RunStream> {
    thread.end_active_run().await?;
    start(thread, StartRun { on_busy: OnBusy::Reject, create: false, ..request }, key).await
}

/// Answers the message of a run again, in a new run.
async fn regenerate(thread: &Thread, body: &ChatBody, key: Option<RequestKey>) -> HttpResult<RunStream> {
    if let Some(message) = body.newest_message()
        && regenerates_unknown_message(thread, message, body.message_id.as_deref()).await?
    {
        return Box::pin(submit(thread, body, message, key)).await;
    }
    let Regeneration { run, method } = decide_regeneration(thread, body.message_id.as_deref()).await?;
    let key = key.unwrap_or_else(|| thread.request_key("regenerate", run.as_str()));
    match method {
        RegenerationMethod::RetryRun => {
            thread.end_active_run().await?;
            let again = ContinueRun { principal: thread.principal(), run: &run, key: Some(key), trace: thread.trace.clone() };
            let (run, _) = thread.service().retry_run(again, RetryRun { model: body.model.clone() }).await?;
            follow(thread, run.id, Section::default()).await
        }
        RegenerationMethod::ResendMessage(ResentMessage { replaces, content, first_part }) => {
            let request = StartRun { edits: Some(replaces), ..new_run(thread, body, content, first_part) };
            edit(thread, request, Some(key)).await
        }
        RegenerationMethod::FollowRun(active) => follow(thread, active, Section::default()).await,
    }
}

/// Stores the answers that an assistant message contains: decisions about approvals, and results of client tools. Returns the message's
/// id, and the section of its run after the answers.
async fn store_answers(thread: &Thread, message: &UiMessage) -> HttpResult<(AssistantMessageId, Section)> {
    let mut id = message.id.as_deref().and_then(AssistantMessageId::parse);
    let mut answered: BTreeSet<String> = BTreeSet::new();
    for (approval, decided) in message.decisions() {
        // Ids come from an untrusted client: only an approval of the caller in this chat counts.
        let approval: InputId = approval.parse().map_err(|_| Error::NotFound("approval"))?;
        let run = thread.decide(&approval, decided).await?;
        answered.insert(approval.to_string());
        id = id.filter(|id| id.run == run).or_else(|| Some(run.into()));
    }
    let id = id.ok_or_else(|| Error::field("/messages", "must end with a message of the user, or with answers to a run"))?;
    thread.check_run(&id.run).await?;
    let results = message.results();
    let sent: Vec<CallId> = results.iter().map(|result| result.call_id.clone()).collect();
    let section = thread.section_after(&id.run, answered, (&sent, results)).await?;
    Ok((id, section))
}

/// Stores the answers in the assistant's message before a new message of the user, if the active run waits for nothing else. Returns
/// the run, and its section after the answers. A client that does not send answers automatically sends them with the next message.
async fn store_answers_beside_message(
    thread: &Thread,
    body: &ChatBody,
    row: Option<&Conversation>,
) -> HttpResult<Option<(RunId, Section)>> {
    let waits = row.filter(|row| row.waits_for_answer());
    let Some((message, active)) = body.assistant_message_before().zip(waits.and_then(|row| row.active_run_id.as_ref())) else {
        return Ok(None);
    };
    if message.id.as_deref().and_then(AssistantMessageId::parse).is_none_or(|id| id.run != *active) {
        return Ok(None);
    }
    let open = thread.open_questions(active).await?;
    let requested = RunPauses::read(thread.service(), thread.principal(), active).await?.requested;
    let (decisions, results) = (message.decisions(), message.results());
    let is_decided = |approval: &Approval| decisions.iter().any(|(id, _)| *id == approval.id.as_str());
    let has_result = |call: &CallId| results.iter().any(|result| result.call_id == *call);
    let is_answered = open.questions.is_empty() && open.approvals.iter().all(is_decided) && requested.keys().all(has_result);
    if !is_answered || open.approvals.is_empty() && requested.is_empty() {
        return Ok(None);
    }
    let (id, section) = store_answers(thread, message).await?;
    Ok(Some((id.run, section)))
}

/// Streams a run from its first event.
async fn follow(thread: &Thread, id: impl Into<AssistantMessageId>, section: Section) -> HttpResult<RunStream> {
    let id = id.into();
    let profile = thread.service().run_profile(thread.principal(), &id.run).await?;
    match thread.service().stream_run(thread.principal(), &id.run, None).await? {
        StreamStart::Stream(reader) => Ok(RunStream::of(id, reader, section, profile)),
        StreamStart::Finished { .. } => Err(Error::NotFound("event of this run").into()),
    }
}

fn respond(thread: Thread, found: RunStream, version: Version) -> Response {
    let (reader, translator) = found.translated(version);
    let Thread { app, access, .. } = thread;
    ([PROTOCOL], stream::respond(&app, access, reader, ChunkWriter { translator, frames: FRAMES, cursor: None })).into_response()
}

/// Streams the active run from its beginning
#[utoipa::path(
    get, path = "/api/chat/{id}/stream", tag = "ai-sdk", operation_id = "ai_sdk_resume",
    params(("id" = String, Path, description = CHAT_ID), ChatParams),
    responses((status = 200, description = "The chunks of the run", body = String, content_type = "text/event-stream"),
              (status = 204, description = "No run is active, or the active run waits for an answer")),
)]
async fn resume(
    State(app): State<App>,
    access: Access,
    Trace(trace): Trace,
    Path(id): Path<String>,
    Params(params): Params<ChatParams>,
) -> HttpResult<Response> {
    let version = params.version()?;
    let thread = Thread::new(&app, access, trace, ("id", &id))?;
    match active_stream(&thread).await? {
        Some(found) => Ok(respond(thread, found, version)),
        None => Ok(StatusCode::NO_CONTENT.into_response()),
    }
}

/// Returns the stream of the active run from its first event; `None` without an active run, or while it waits for an answer.
pub(super) async fn active_stream(thread: &Thread) -> HttpResult<Option<RunStream>> {
    let row = thread.row().await?.filter(|row| !row.waits_for_answer());
    // `reason` and `last_seq` come from the same read, so all pauses up to `last_seq` are over.
    let Some((run, head)) = row.and_then(|row| Some((row.active_run_id?, row.last_seq))) else { return Ok(None) };
    let section = RunPauses::read(thread.service(), thread.principal(), &run).await?.whole(head);
    let id = newest_assistant_message(thread, run).await?;
    follow(thread, id, section).await.map(Some)
}

/// Returns the id of the newest assistant message of a run. A run has several if a user message joined it after an answer.
async fn newest_assistant_message(thread: &Thread, run: RunId) -> HttpResult<AssistantMessageId> {
    let kinds = ["message.created", "message.completed"];
    let log = thread.service().run_events_of_kinds(thread.principal(), &run, &kinds).await?;
    let (mut is_answered, mut joined) = (false, None);
    for body in log.events.iter().filter_map(|event| event.body()) {
        match body {
            EventBody::MessageCompleted { message } => is_answered |= message.role == Role::Assistant && !message.internal,
            EventBody::MessageCreated { message } if is_answered => joined = Some(message.id),
            _ => {}
        }
    }
    Ok(AssistantMessageId { run, joined })
}

/// Cancels the active run
#[utoipa::path(
    post, path = "/api/chat/{id}/stop", tag = "ai-sdk", operation_id = "ai_sdk_stop",
    params(("id" = String, Path, description = CHAT_ID)),
    responses((status = 204, description = "No run is active any more")),
)]
async fn stop(State(app): State<App>, access: Access, Trace(trace): Trace, Path(id): Path<String>) -> HttpResult<StatusCode> {
    let thread = Thread::new(&app, access, trace, ("id", &id))?;
    if let Some(run) = thread.row().await?.and_then(|row| row.active_run_id) {
        thread.service().cancel_run(thread.principal(), &run, None).await?;
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Lists the messages of a chat for its first rendering
#[utoipa::path(
    get, path = "/api/chat/{id}/messages", tag = "ai-sdk", operation_id = "ai_sdk_list_messages",
    params(("id" = String, Path, description = CHAT_ID)),
    responses((status = 200, description = "The messages, oldest first", body = Vec<Value>)),
)]
async fn messages(State(app): State<App>, access: Access, Trace(trace): Trace, Path(id): Path<String>) -> HttpResult<Response> {
    let thread = Thread::new(&app, access, trace, ("id", &id))?;
    let Some((row, messages)) = thread.history().await? else { return Ok(Json([(); 0]).into_response()) };
    let waits = row.waits_for_answer();
    let (streaming, open) = match row.active_run_id {
        Some(run) if waits => (None, thread.open_questions(&run).await?),
        streaming => (streaming, OpenQuestions::default()),
    };
    let client_calls = client_calls(thread.service(), thread.principal(), &messages).await?;
    Ok(Json(ui_messages(&messages, streaming.as_ref(), &open, &client_calls)).into_response())
}
