//! Creates a response: begins a run, or answers the run of an earlier response.

use std::collections::BTreeSet;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};

use crate::domain::access::principal::Principal;
use crate::domain::conversation::message::ToolContent;
use crate::domain::ids::{CallId, ConversationId};
use crate::domain::problem::{FieldError, ProblemCode};
use crate::domain::run::{OnBusy, Run, RunStatus, WaitReason};
use crate::domain::tool::approval::{ApprovalAnswer, Decision};
use crate::domain::trace::TraceId;
use crate::http::clients::pauses::{GivenAnswer, RunPauses};
use crate::http::clients::thread::open_questions;
use crate::http::clients::{body, stream};
use crate::http::openai::client_disconnect::{DisconnectGuard, GuardedWriter};
use crate::http::openai::content::{question_answer, text_of};
use crate::http::openai::error::failure;
use crate::http::openai::events;
use crate::http::openai::ids::parse_conversation;
use crate::http::openai::responses::object::{ResponseDetails, ResponseId};
use crate::http::openai::responses::references::known_items;
use crate::http::openai::responses::request::{CreateRequest, Input as ResponseInput, KnownItems};
use crate::http::openai::responses::translate::ResponseTranslator;
use crate::http::openai::responses::{details, items, reader, unfinished, unfinished_response};
use crate::http::openai::target::without_agent;
use crate::http::options::App;
use crate::http::wire::extract::Input;
use crate::http::wire::problem::{HttpResult, Problem};
use crate::http::wire::request::Trace;
use crate::service::{
    Access, Content, CopyUntil, Error, NewPart, NewToolResult, PageRequest, Reader, Replay, RequestKey, RunFilter, SentMessage,
    SentResult, SentTranscript, StartRun, StartedRun, check_protocol_size,
};
use crate::support::text;

/// Creates a response
///
/// `model` is the name of an agent, or `provider/name`. With `background`, the response is sent before the run ends. A disconnect
/// cancels a run only if `store` is false and the request continues no conversation: no client can read its response later.
#[utoipa::path(
    post, path = "/v1/responses", tag = "responses", operation_id = "openai_create_response", request_body = CreateRequest,
    responses((status = 200, description = "The response, or a stream of its events",
               content((Object = "application/json"), (String = "text/event-stream")))),
)]
pub(in crate::http) async fn create(
    access: Access,
    Trace(trace): Trace,
    State(app): State<App>,
    request: Request,
) -> HttpResult<Response> {
    let Input { body, key } = body::read::<CreateRequest>(request, &app, &access).await?;
    let Begun { facts, reader, mut guard } = begin(&app, access.principal(), &body, trace, key).await?;
    let mut translator = ResponseTranslator::new(facts, None);
    if body.stream == Some(true) {
        return Ok(stream::respond(&app, access, reader, GuardedWriter { translator, guard }));
    }
    if body.background != Some(true) {
        let flow = events::complete(&app, reader, &mut translator).await.map_err(failure)?;
        if let Some(guard) = &mut guard {
            guard.settle(flow);
        }
    }
    Ok(Json(translator.response()).into_response())
}

pub(super) struct Begun {
    pub facts: ResponseDetails,
    /// Reads the run from its first event.
    pub reader: Reader,
    /// Cancels the run after a disconnect if no client can read the response later.
    pub guard: Option<DisconnectGuard>,
}

pub(super) async fn begin(
    app: &App,
    principal: &Principal,
    body: &CreateRequest,
    trace: TraceId,
    key: Option<RequestKey>,
) -> HttpResult<Begun> {
    Box::pin(Creation { app, principal, body, trace, key }.begin()).await.map_err(without_agent)
}

struct Creation<'a> {
    app: &'a App,
    principal: &'a Principal,
    body: &'a CreateRequest,
    trace: TraceId,
    key: Option<RequestKey>,
}

impl Creation<'_> {
    async fn begin(self) -> HttpResult<Begun> {
        let known = match known_items(&self.app.service, self.principal, self.body.references()).await {
            Ok(known) => known,
            // A repeated request is answered even if its items are gone.
            Err(problem) => return self.repeated(&self.body.input(&KnownItems::new())?).await?.ok_or(problem),
        };
        let input = self.body.input(&known)?;
        match (&self.body.previous_response_id, &self.body.conversation) {
            (Some(_), Some(_)) => Err(Error::field("/conversation", "cannot be sent together with previous_response_id").into()),
            (Some(previous), None) => self.follow(previous, input).await,
            (None, Some(conversation)) => {
                let id = parse_conversation(conversation.id())?;
                match self.waiting_run(&id).await? {
                    Some(run) => self.continue_newest(run, input).await,
                    None => {
                        let newest = self.newest_run(&id).await?;
                        Box::pin(self.send(id, newest, input)).await
                    }
                }
            }
            (None, None) if !input.approvals.is_empty() => self.approve(input).await,
            (None, None) => {
                let run = self.body.run(&input, None, None, self.trace.clone())?;
                let hidden = self.body.store == Some(false);
                if hidden && self.body.background == Some(true) {
                    return Err(
                        Error::field("/background", "needs `store`: a client must be able to return to the response").into()
                    );
                }
                let sent = SentTranscript { messages: input.messages, questions: input.questions, hidden, field: "input" };
                let started = self.app.service.start_transcript(self.principal, run, sent, self.key.clone()).await?;
                let guard = hidden.then(|| DisconnectGuard::new(self.app, self.principal, &started.run.id));
                Ok(Begun { guard, ..self.started(started).await? })
            }
        }
    }

    /// Returns the run of a conversation that waits for an answer.
    async fn waiting_run(&self, conversation: &ConversationId) -> HttpResult<Option<Run>> {
        let row = self.app.service.conversation(self.principal, conversation).await?;
        let active = row.active_run_id.filter(|_| row.reason.is_some_and(WaitReason::needs_answer));
        Ok(match active {
            Some(id) => Some(self.app.service.run(self.principal, &id).await?),
            None => None,
        })
    }

    /// Continues the run of an approval. The request has the whole history, but only the answers are new to the run.
    async fn approve(self, mut input: ResponseInput) -> HttpResult<Begun> {
        let unknown = |error| match error {
            Error::NotFound(_) => Error::field("/input", "answers an approval request that does not exist"),
            other => other,
        };
        let mut run = None;
        for answer in &input.approvals {
            let approval = self.app.service.approval(self.principal, &answer.id).await.map_err(unknown)?;
            if run.replace(approval.run_id).is_some_and(|other| Some(&other) != run.as_ref()) {
                return Err(Error::field("/input", "answers approval requests of several responses").into());
            }
        }
        let Some(id) = run else { return Err(Error::NotFound("approval").into()) };
        let run = self.app.service.run(self.principal, &id).await?;
        let pauses = RunPauses::read(&self.app.service, self.principal, &run.id).await?;
        input.keep_results(|call| pauses.requested.keys().any(|open| open.as_str() == call));
        self.continue_newest(run, input).await
    }

    /// Continues after the newest ended response of a run.
    async fn continue_newest(self, run: Run, input: ResponseInput) -> HttpResult<Begun> {
        let pauses = RunPauses::read_with_results(&self.app.service, self.principal, &run.id).await?;
        let newest = ResponseId { run: run.id.clone(), segment: pauses.ended_responses().saturating_sub(1) };
        Box::pin(self.continue_run((newest, run), &pauses, input)).await
    }

    async fn follow(self, previous: &str, input: ResponseInput) -> HttpResult<Begun> {
        let missing = || {
            let detail = format!("Previous response with id {previous:?} not found.");
            Problem::from(ProblemCode::NotFound.body_about("/previous_response_id", detail))
        };
        let id = ResponseId::parse(previous).ok_or_else(missing)?;
        let run = match self.app.service.run(self.principal, &id.run).await {
            Ok(run) => run,
            Err(Error::NotFound(_)) => return self.repeated(&input).await?.ok_or_else(missing),
            Err(error) => return Err(error.into()),
        };
        let pauses = RunPauses::read_with_results(&self.app.service, self.principal, &run.id).await?;
        let is_deleted = self.app.service.deleted_responses(self.principal, &run.id).await?.contains(&id.segment);
        if id.segment > pauses.newest_response() || is_deleted && !self.is_repeated(&pauses, id.segment).await? {
            return Err(missing());
        }
        Box::pin(self.continue_run((id, run), &pauses, input)).await
    }

    /// Returns the response of the run that an earlier request with this key has begun, although its previous response is gone.
    async fn repeated(&self, input: &ResponseInput) -> HttpResult<Option<Begun>> {
        // A request with tool results continues the run of its conversation. It begins a run only if it names none.
        let continues = self.body.previous_response_id.is_some() || self.body.conversation.is_some();
        if continues && !input.answers().1.is_empty() {
            return Ok(None);
        }
        match self.app.service.repeated_run(self.principal, self.key.clone()).await? {
            Some(run) => self.continued(&run, 0).await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns whether an earlier request with this key has answered the response `segment` of a run. Answers to approvals and
    /// questions are stored under keys of their own.
    async fn is_repeated(&self, pauses: &RunPauses, segment: u32) -> HttpResult<bool> {
        if self.key.is_none() {
            return Ok(false);
        }
        let of_answers = pauses.answers_after(segment).map(|answer| self.key_of(answer));
        for key in [self.key.clone()].into_iter().chain(of_answers) {
            if self.app.service.is_repeated(self.principal, key).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn continue_run(self, (id, run): (ResponseId, Run), pauses: &RunPauses, input: ResponseInput) -> HttpResult<Begun> {
        let next = id.segment.saturating_add(1);
        match (run.status, run.reason) {
            (RunStatus::Waiting, Some(reason)) if reason.needs_answer() && next == pauses.ended_responses() => {
                Box::pin(self.answer(id, run, pauses, input)).await
            }
            // The response ended in a pause that is over.
            _ if next <= pauses.ended_responses() => {
                let repeats = input.repeats(pauses) && has_same_answers(pauses, &input);
                if repeats || self.is_repeated(pauses, id.segment).await? {
                    return self.continued(&run, next).await;
                }
                // The client has cancelled the run, and continues after the last response that it has.
                if run.status == RunStatus::Cancelled && next == pauses.ended_responses() && !input.has_answers() {
                    let conversation = self.conversation_after(&run).await?;
                    return Box::pin(self.send(conversation, Some(run), input)).await;
                }
                let newest = ResponseId { run: run.id, segment: pauses.newest_response() };
                let reason = format!("names a response that has been answered; the run's newest response is {newest}");
                Err(Error::field("/previous_response_id", reason).into())
            }
            (RunStatus::Completed | RunStatus::Failed | RunStatus::Cancelled, _) => {
                let conversation = self.conversation_after(&run).await?;
                Box::pin(self.send(conversation, Some(run), input)).await
            }
            (RunStatus::Queued | RunStatus::Processing | RunStatus::ToolLoop | RunStatus::Waiting, _) => {
                Err(unfinished_response(&ResponseId { run: run.id, segment: pauses.newest_response() }))
            }
        }
    }

    /// Returns a conversation that ends with this run: the run's conversation, or a copy of it if it has newer runs.
    async fn conversation_after(&self, run: &Run) -> HttpResult<ConversationId> {
        if self.newest_run(&run.conversation_id).await?.is_some_and(|newest| newest.id == run.id) {
            return Ok(run.conversation_id.clone());
        }
        // The newer run may be that of this request, which the client repeats.
        if let Some(repeated) = self.app.service.repeated_run(self.principal, self.key.clone()).await? {
            return Ok(repeated.conversation_id);
        }
        let (until, key) = (CopyUntil::Run(run.id.clone()), self.key_of("copy"));
        let (copy, _) = self.app.service.fork_conversation(self.principal, &run.conversation_id, until, None, key).await?;
        Ok(copy.id)
    }

    async fn newest_run(&self, conversation: &ConversationId) -> HttpResult<Option<Run>> {
        let filter = RunFilter { conversation: Some(conversation.clone()), ..RunFilter::default() };
        let newest = self.app.service.runs(self.principal, &filter, &PageRequest { limit: 1, after: None }).await?;
        Ok(newest.items.into_iter().next())
    }

    /// Sends the user's messages in a conversation, after the run `previous`. Earlier messages that the client has from elsewhere
    /// come before them.
    async fn send(self, conversation: ConversationId, previous: Option<Run>, mut input: ResponseInput) -> HttpResult<Begun> {
        if let Some(previous) = &previous {
            let profile = self.app.service.run_profile(self.principal, &previous.id).await?;
            let continued = self.app.service.continued_requests(self.principal, &previous.id).await?;
            input.add_earlier_system_items(profile.protocol.iter().chain(continued.values()));
        }
        let (content, earlier) = input.new_messages();
        if let Some(call) = unknown_call(&earlier) {
            return Err(Error::field("/input", format!("no run waits for the output of the call {call:?}")).into());
        }
        if !earlier.is_empty() {
            let run = self.body.run(&input, Some(conversation), None, self.trace.clone())?;
            let messages = earlier.into_iter().chain(content.map(SentMessage::User)).collect();
            let sent = SentTranscript { messages, questions: Vec::new(), hidden: false, field: "input" };
            return match self.app.service.start_transcript(self.principal, run, sent, self.key.clone()).await {
                Ok(started) => self.started(started).await,
                Err(error) => Err(unfinished(self.app, self.principal, error).await),
            };
        }
        let run = self.body.run(&input, Some(conversation), content, self.trace.clone())?;
        match self.app.service.start_run(self.principal, run, self.key.clone()).await {
            Ok(started) => self.started(started).await,
            Err(error) => Err(unfinished(self.app, self.principal, error).await),
        }
    }

    async fn started(&self, mut started: StartedRun) -> HttpResult<Begun> {
        // A repeated request gets the run and the profile of the first request.
        let profile = self.app.service.started_profile(self.principal, &mut started).await?;
        if started.replay == Replay::Replayed {
            self.check_kept(&started.run, 0).await?;
        }
        let facts = details(self.app, self.principal, (&started.run, 0), &profile).await?;
        Ok(Begun { facts, reader: self.app.service.stream_started(self.principal, started), guard: None })
    }

    /// Returns the response of a run with the number `segment`.
    async fn continued(&self, run: &Run, segment: u32) -> HttpResult<Begun> {
        self.check_kept(run, segment).await?;
        let profile = self.app.service.run_profile(self.principal, &run.id).await?;
        let facts = details(self.app, self.principal, (run, segment), &profile).await?;
        Ok(Begun { facts, reader: reader(self.app, self.principal, run).await?, guard: None })
    }

    /// Fails if the client has deleted this response of a run.
    async fn check_kept(&self, run: &Run, segment: u32) -> HttpResult<()> {
        match self.app.service.deleted_responses(self.principal, &run.id).await?.contains(&segment) {
            false => Ok(()),
            true => Err(Error::NotFound("response").into()),
        }
    }

    /// Returns the idempotency key of a part of the request, which is stored before the rest.
    fn key_of(&self, part: &str) -> Option<RequestKey> {
        self.key
            .as_ref()
            .map(|RequestKey { key, fingerprint }| RequestKey { key: format!("{part}.{key}"), fingerprint: fingerprint.clone() })
    }

    /// Answers a run that waits for approvals, questions or its client. The answer must have a result for each requested client
    /// tool call, because with only some of them the run would wait again at once.
    async fn answer(self, previous: ResponseId, run: Run, pauses: &RunPauses, input: ResponseInput) -> HttpResult<Begun> {
        let service = &self.app.service;
        // The run keeps its own options, but a request that could not begin one is refused.
        self.body.check()?;
        let (content, results) = input.answers();
        let open = open_questions(service, self.principal, (&run.conversation_id, &run.id)).await?;
        let question = open.questions.first();
        if results.is_empty() && input.approvals.is_empty() && (content.is_none() || question.is_none()) {
            let reason = "must answer the previous response, which waits for function_call_output, mcp_approval_response, or the \
                          user's answer to a question";
            return Err(Error::field("/input", reason).into());
        }
        let results = results.into_iter().map(tool_result).collect::<Result<Vec<_>, _>>()?;
        if let Some(call) = pauses.requested.keys().find(|call| results.iter().all(|result| result.call_id != **call)) {
            // The text is that of OpenAI's own service.
            let detail = format!("No tool output found for function call {call}.");
            let errors = vec![FieldError { pointer: "/input".to_owned(), detail: detail.clone() }];
            return Err(Error::Invalid { detail, errors }.into());
        }
        if results.iter().any(|result| !pauses.requested.contains_key(&result.call_id)) {
            return Err(Error::NotFound("call of a client tool in this run").into());
        }
        let next = previous.segment.saturating_add(1);
        let profile = service.run_profile(self.principal, &run.id).await?;
        let fields = self.body.continued_fields(&input, &profile);
        fields.as_ref().map_or(Ok(()), check_protocol_size)?;
        match (question, content) {
            (Some(question), Some(content)) => {
                let answer = question_answer(&question.question, &text_of(&content));
                let key = self.key_of(question.id.as_str());
                service.resolve_input(self.principal, &question.id, answer, key).await.map_err(in_input)?;
            }
            (None, Some(content)) => {
                service.start_run(self.principal, self.message(&run, content), self.key_of("message")).await?;
            }
            (_, None) => {}
        }
        for approval in &input.approvals {
            let decision = if approval.approve { Decision::Allow } else { Decision::Deny };
            let reason = approval.reason.clone();
            let answer = ApprovalAnswer { decision, scope: None, arguments: None, reason, arguments_hash: None };
            service.resolve_approval(self.principal, &approval.id, answer, self.key_of(approval.id.as_str())).await?;
        }
        if !results.is_empty() {
            service.store_tool_results(self.principal, &run.id, results, self.key.clone()).await?;
        }
        // Stored after the answers, so that the fields of a refused answer replace none.
        if let Some(fields) = fields {
            service.store_continued_request(self.principal, &run.id, next, fields).await?;
        }
        self.continued(&run, next).await
    }

    /// Returns the request of a message that joins a run.
    fn message(&self, run: &Run, content: Content) -> StartRun {
        let new = StartRun::new(content, "input", self.trace.clone());
        StartRun { conversation_id: Some(run.conversation_id.clone()), on_busy: OnBusy::Steer, ..new }
    }
}

/// Returns whether the answers of the request are those that the run has got.
fn has_same_answers(pauses: &RunPauses, input: &ResponseInput) -> bool {
    pauses.given.iter().all(|given| match given {
        GivenAnswer::Result { call, content } => {
            let mut sent = input.results().filter(|result| result.call_id == call.as_str());
            sent.all(|result| is_same_result(&result.content, content))
        }
        GivenAnswer::Decision { id, is_allowed } => {
            let mut sent = input.approvals.iter().filter(|answer| answer.id == *id);
            sent.all(|answer| answer.approve == *is_allowed)
        }
    })
}

/// Returns whether a run has stored the result `sent` as `stored`. Files are not compared, because they are stored apart. Line breaks
/// are not compared, because the pieces of a result are joined by them.
fn is_same_result(sent: &Content, stored: &[ToolContent]) -> bool {
    let has_file = |content: &Content| match content {
        Content::Text(_) => false,
        Content::Parts(parts) => parts.iter().any(|part| !matches!(part, NewPart::Text { .. })),
    };
    let without_line_breaks = |text: &str| text.replace('\n', "");
    has_file(sent) || without_line_breaks(&text::storable(&text_of(sent))) == without_line_breaks(&items::tool_text(stored))
}

/// Returns the call of the first result whose call is not among the messages before it.
fn unknown_call(messages: &[SentMessage]) -> Option<&str> {
    let mut calls = BTreeSet::new();
    for message in messages {
        match message {
            SentMessage::User(_) => {}
            SentMessage::Assistant { calls: sent, .. } => calls.extend(sent.iter().map(|call| call.id.as_str())),
            SentMessage::Results(results) => {
                if let Some(result) = results.iter().find(|result| !calls.contains(result.call_id.as_str())) {
                    return Some(&result.call_id);
                }
            }
        }
    }
    None
}

/// Moves an error about a part of an answer to the field `input`.
fn in_input(error: Error) -> Error {
    match error {
        Error::Invalid { detail, .. } => Error::field("/input", detail),
        other => other,
    }
}

fn tool_result(sent: SentResult) -> Result<NewToolResult, Error> {
    let SentResult { call_id, content, is_error } = sent;
    let call_id = CallId::parse(&call_id).map_err(|_| Error::NotFound("call of a client tool in this run"))?;
    Ok(NewToolResult { call_id, content, is_error })
}
