//! One live connection to a server, over either transport.

use std::collections::{BTreeSet, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rmcp::RoleClient;
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CancelledNotificationParam, ClientRequest, ErrorCode, InputRequest, InputRequests,
    InputRequiredResult, InputResponses, JsonObject, MetaObject, PaginatedRequestParams, PingRequest, Prompt, ProtocolVersion,
    RequestId, RequestMetaObject, Resource, ServerResult,
};
use rmcp::service::{ClientLifecycleMode, Peer, PeerRequestOptions, RequestHandle, RunningService, ServiceError};
use serde::Serialize;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::ServerTransport;
use super::container::Launch;
use super::content;
use super::endpoint::{Endpoint, Fault, OpenError};
use super::errors::chain;
use super::fates::{self, Fate};
use super::handler::{Allowed, Handler, Heard, MAX_QUESTIONS, Wanted, readable, result_of};
use super::masks::Masks;
use super::process::{self, LastWords, Process, Program, last_words};
use super::remote::Remote;
use super::reply::{ASKS, Limits, Reply, Task};
use super::rounds;
use super::stdio::{Ending, NOTICE_LIMIT, StdioTransport};
use super::thought::{Thought, answer_of, put};
use super::tool_list::{self, Listed, MAX_LISTED, Page, ToolList, size_of};
use crate::domain::handle::Round;
use crate::domain::input::{CANCEL, DECLINE, InputAnswer};
use crate::support::failpoint;
use crate::support::number;
use crate::support::text::prefix_chars;
use crate::tools::{Asks, CallPermit, Environment, ProgressSender, Report};

/// The most pages of a list that are asked for.
const MAX_PAGES: usize = 100;
/// The most bytes of JSON that they may have together.
const MAX_LISTED_BYTES: usize = 8 * 1024 * 1024;
/// How long telling a server of a cancelled call may take.
const CANCEL_LIMIT: Duration = Duration::from_millis(500);
/// How long a server may take to give a sign of life.
const PULSE_LIMIT: Duration = Duration::from_secs(5);
/// How long a closed connection may take to wind up.
const CLOSE_LIMIT: Duration = Duration::from_secs(6);

/// How the greeting goes: older servers want `initialize`, the stateless revision has `server/discover` instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Greeting {
    Initialize,
    Discover,
}

/// A live connection.
pub struct Connection {
    name: String,
    masks: Masks,
    allowed: Allowed,
    service: tokio::sync::Mutex<RunningService<RoleClient, Handler>>,
    peer: Peer<RoleClient>,
    heard: Arc<Heard>,
    process: Option<Process>,
    ending: Ending,
    tasks: TaskTracker,
    /// Whether a new connection is needed though this one is not closed.
    stale: AtomicBool,
    /// Holds a token for each call that is under way.
    calls: TaskTracker,
}

impl Connection {
    /// Connects, greets and waits for the greeting of the server.
    ///
    /// # Errors
    /// Why not, redacted.
    pub async fn open(server: Endpoint<'_>, environment: &Environment, tasks: &TaskTracker) -> Result<Self, Fault> {
        let greetings = match server.stateless.load(Ordering::SeqCst) {
            false => [Greeting::Initialize, Greeting::Discover],
            true => [Greeting::Discover, Greeting::Initialize],
        };
        let first = match Self::greet(server, environment, tasks, greetings[0]).await {
            Ok(connection) => return Ok(connection),
            Err(OpenError::Other(error)) => return Err(error),
            // Only a server that read the greeting and did not know it is greeted in the other way.
            Err(OpenError::NotUnderstood(first)) => first,
        };
        let connection = Self::greet(server, environment, tasks, greetings[1]).await.map_err(|_| first)?;
        server.stateless.store(greetings[1] == Greeting::Discover, Ordering::SeqCst);
        Ok(connection)
    }

    async fn greet(
        server: Endpoint<'_>,
        environment: &Environment,
        tasks: &TaskTracker,
        greeting: Greeting,
    ) -> Result<Self, OpenError> {
        let Endpoint { name, transport, masks, allowed, words, containers, home, remains, .. } = server;
        let lifecycle = match greeting {
            Greeting::Initialize => ClientLifecycleMode::Initialize,
            Greeting::Discover => ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] },
        };
        let handler = Handler { server: name.to_owned(), allowed: allowed.clone(), masks: masks.clone(), heard: Arc::default() };
        let (service, process, ending) = match transport {
            ServerTransport::Stdio { .. } | ServerTransport::Container { .. } => {
                let word = words.next();
                // Kept until the server has answered: it holds what the container is given.
                let (launch, settled);
                let program = match transport {
                    ServerTransport::Container { container, command, args, env } => {
                        let program = (command.as_deref(), args.as_slice());
                        let prepared = Launch::prepare(container, program, env, &word, containers).await;
                        launch = prepared.map_err(|reason| OpenError::Other(reason.into()))?;
                        launch.program(word, remains)
                    }
                    ServerTransport::Stdio { command, args, env, cwd } => {
                        let cwd = cwd.as_deref().map(Path::new);
                        let made = process::at_home((args, env), home, cwd.is_none()).await;
                        settled = made.map_err(|reason| OpenError::Other(reason.into()))?;
                        let (args, env, cwd) = (&settled.0, &settled.1, cwd.or(home));
                        Program { command, args, env, cwd, word, removal: None, remains }
                    }
                    ServerTransport::Http { .. } => return Err(OpenError::Other("it has no process".to_owned().into())),
                };
                let (process, stdout, stdin) =
                    Process::start(&program, masks, environment, tasks).map_err(|reason| OpenError::Other(reason.into()))?;
                failpoint::reached("C30");
                let transport = StdioTransport::new(stdout, stdin, name, masks);
                let ending = transport.ending();
                match transport.greet(handler, lifecycle, process.exit_token(), tasks).await {
                    Ok(service) => (service, Some(process), ending),
                    Err(error) => {
                        // Its exit is news, too, if it comes at once.
                        let _ = tokio::time::timeout(NOTICE_LIMIT * 2, process.exited()).await;
                        let words = process.last_words();
                        return Err(match ending.reason() {
                            Some(reason) => OpenError::Other(Fault::after(reason, words)),
                            None => OpenError::new(*error, masks, words),
                        });
                    }
                }
            }
            ServerTransport::Http { url, headers, style, reach, .. } => {
                let remote = Remote::new(url, headers, *reach, server).map_err(|reason| OpenError::Other(reason.into()))?;
                let (service, ending) = remote.greet(*style, lifecycle, &handler, CancellationToken::new()).await?;
                (service, None, ending)
            }
        };
        Self::greeted(service, process, ending, tasks).await
    }

    /// The connection to a server that has answered the greeting. `process` is what it runs as, if that is known, and `ending` that of
    /// its transport.
    ///
    /// # Errors
    /// If it speaks a version of the protocol that nobody knows; it is left then.
    pub async fn greeted(
        service: RunningService<RoleClient, Handler>,
        process: Option<Process>,
        ending: Ending,
        tasks: &TaskTracker,
    ) -> Result<Self, OpenError> {
        let Handler { server: name, allowed, masks, heard } = service.service().clone();
        let (peer, tasks, stale, calls) = (service.peer().clone(), tasks.clone(), AtomicBool::new(false), TaskTracker::new());
        let service = tokio::sync::Mutex::new(service);
        let connection = Self { name, masks, allowed, peer, service, heard, process, ending, tasks, stale, calls };
        match connection.unknown_version() {
            None => Ok(connection),
            Some(version) => {
                connection.close().await;
                let known: Vec<&str> = ProtocolVersion::KNOWN_VERSIONS.iter().map(ProtocolVersion::as_str).collect();
                let known = known.join(", ");
                Err(OpenError::Other(
                    format!("the server speaks version {version:?} of the protocol; known here are {known}").into(),
                ))
            }
        }
    }

    /// The version of the protocol that the server wants to speak, if nobody knows it.
    fn unknown_version(&self) -> Option<String> {
        let version = &self.peer.peer_info()?.protocol_version;
        let is_known = ProtocolVersion::KNOWN_VERSIONS.contains(version);
        (!is_known).then(|| prefix_chars(version.as_str(), 40).to_owned())
    }

    /// Whether calls can be made.
    pub fn is_alive(&self) -> bool {
        let stale = self.stale.load(Ordering::SeqCst);
        !stale
            && !self.peer.is_transport_closed()
            && self.process.as_ref().is_none_or(|process| !process.exit_token().is_cancelled())
    }

    /// Waits until no call is under way on a connection that gets no new ones. Each of them ends within its own limits.
    pub async fn is_idle(&self) {
        self.calls.close();
        self.calls.wait().await;
    }

    /// The library's side of it.
    pub fn peer(&self) -> &Peer<RoleClient> {
        &self.peer
    }

    /// What the server has said, as it may be shown.
    pub fn masked(&self, text: &str) -> String {
        self.masks.error_text(text)
    }

    /// The same for what is shown of a call that goes on.
    pub fn shown_news(&self, text: String) -> String {
        self.masks.hide_in_text(text)
    }

    /// What was heard on this connection.
    pub fn heard(&self) -> &Heard {
        &self.heard
    }

    /// Asks for all tools.
    ///
    /// # Errors
    /// If the server refuses or the connection is lost.
    pub async fn list_tools(&self) -> Result<ToolList, Fault> {
        let said = Mutex::new((None::<Duration>, false));
        let page = |asked| {
            let said = &said;
            async move {
                let Page { tools, next, holds_for, left_out } = tool_list::page(&self.name, &self.peer, asked).await?;
                let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
                *said = (holds_for.into_iter().chain(said.0).min(), said.1 || left_out);
                Ok((tools, next))
            }
        };
        let (tools, is_whole) = self.all("tools", page).await?;
        let (holds_for, left_out) = said.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(ToolList { tools, listed: Listed::now(holds_for, left_out || !is_whole) })
    }

    /// Asks for all resources; a server that does not say that it has any has none.
    ///
    /// # Errors
    /// If the server refuses or the connection is lost.
    pub async fn list_resources(&self) -> Result<Vec<Resource>, Fault> {
        if self.peer.peer_info().is_none_or(|info| info.capabilities.resources.is_none()) {
            return Ok(Vec::new());
        }
        let page =
            |asked| async move { self.peer.list_resources(Some(asked)).await.map(|page| (page.resources, page.next_cursor)) };
        Ok(self.all("resources", page).await?.0)
    }

    /// Asks for all prompts; a server that does not say that it has any has none.
    ///
    /// # Errors
    /// If the server refuses or the connection is lost.
    pub async fn list_prompts(&self) -> Result<Vec<Prompt>, Fault> {
        if self.peer.peer_info().is_none_or(|info| info.capabilities.prompts.is_none()) {
            return Ok(Vec::new());
        }
        let page = |asked| async move { self.peer.list_prompts(Some(asked)).await.map(|page| (page.prompts, page.next_cursor)) };
        Ok(self.all("prompts", page).await?.0)
    }

    /// Asks for all of something, page by page. Stops when a cursor comes again, is empty, after 100 pages, and when there is no room
    /// for more: what a server lists is held in memory as long as it is connected. Whether that is all of it stands beside it.
    async fn all<T, F>(&self, what: &str, page: impl Fn(PaginatedRequestParams) -> F) -> Result<(Vec<T>, bool), Fault>
    where
        T: Serialize,
        F: Future<Output = Result<(Vec<T>, Option<String>), ServiceError>>,
    {
        let (mut all, mut bytes) = (Vec::new(), 0);
        let mut cursors = BTreeSet::new();
        let mut cursor = None;
        for _ in 0..MAX_PAGES {
            let (items, next) = match page(PaginatedRequestParams::default().with_cursor(cursor)).await {
                Ok(page) => page,
                // A server may have none at all.
                Err(ServiceError::McpError(error)) if error.code == ErrorCode::METHOD_NOT_FOUND => return Ok((all, true)),
                Err(error) => {
                    return Err(Fault::after(format!("its {what} could not be listed: {}", self.shown(&error)), self.last_words()));
                }
            };
            for item in items {
                bytes += size_of(&item);
                if all.len() == MAX_LISTED || bytes > MAX_LISTED_BYTES {
                    let kept = all.len();
                    tracing::warn!(mcp.server = self.name, what, kept, "MCP server offers too much, the rest is left out");
                    return Ok((all, false));
                }
                all.push(item);
            }
            let Some(next) = next.filter(|next| !next.is_empty() && cursors.insert(next.clone())) else { return Ok((all, true)) };
            cursor = Some(next);
        }
        tracing::warn!(mcp.server = self.name, what, pages = MAX_PAGES, "MCP server has more pages, which are left out");
        Ok((all, false))
    }

    /// Calls a tool; `meta` goes beside its arguments, and `round` is what was answered to its server before.
    pub async fn call(
        &self,
        params: CallToolRequestParams,
        meta: &JsonObject,
        round: Option<&Round>,
        limits: Limits,
        progress: &ProgressSender,
        permit: &CallPermit,
    ) -> Reply {
        let _underway = self.calls.token();
        let mut round = round.cloned();
        // A server that has let go of the call and is called again has had them.
        let mut samples = match (&round, self.allowed.samples) {
            (None, Some(rules)) => rules.max_calls,
            (Some(_), _) | (None, None) => 0,
        };
        let pause = loop {
            let mut params = params.clone();
            if let Some(round) = &round {
                rounds::answer(&mut params, round);
            }
            let questions = round.as_ref().map_or(0, |round| round.questions as usize);
            let asked = match self.call_once(params, meta, limits, (questions, &mut samples), progress, permit).await {
                Once::Reply(reply) => return reply,
                Once::Asks(asked) => asked,
            };
            let pause = match rounds::read((&self.name, &self.masks), &self.allowed, asked, round.as_ref()) {
                Ok(pause) => pause,
                Err(reason) => return Reply::Refused(reason),
            };
            if !pause.asks.is_empty() {
                break pause;
            }
            // Nobody is asked, so there is nothing to store: after a crash the call is judged by its class, with this round or without.
            tokio::select! {
                biased;
                () = permit.token.cancelled() => return Reply::Cancelled,
                () = tokio::time::sleep(rounds::rest(pause.number)) => {}
            }
            round = Some(rounds::at_once(pause, round.as_ref()));
        };
        match progress.send(Report::Pauses(Box::new(pause))).await {
            Ok(()) => Reply::Paused,
            // Nobody is there who could ask.
            Err(_) => Reply::Refused(ASKS.to_owned()),
        }
    }

    /// Asks the user what a server wants to know before it carries out a call. `None` if it asks for what nobody gives.
    pub async fn input(
        &self,
        requests: InputRequests,
        questions: &mut usize,
        progress: &ProgressSender,
        cancel: &CancellationToken,
    ) -> Option<InputResponses> {
        let mut answers = InputResponses::new();
        if requests.is_empty() {
            return None;
        }
        for (key, request) in requests {
            let request = match request {
                InputRequest::Elicitation(request) if self.allowed.elicits => request,
                InputRequest::ListRoots(_) => {
                    answers.insert(key, serde_json::to_value(self.allowed.list_roots()?).ok()?);
                    continue;
                }
                _ => return None,
            };
            *questions += 1;
            let (answer, answered) = oneshot::channel();
            // One that goes on asking after that is not called again.
            let (text, elicitation) = readable(&self.name, &self.masks, request.params).filter(|_| *questions <= MAX_QUESTIONS)?;
            progress.send(Report::Asks(Box::new(Asks { text, elicitation, answer }))).await.ok()?;
            let answer = tokio::select! {
                biased;
                () = cancel.cancelled() => return None,
                answer = answered => answer.unwrap_or_else(|_| InputAnswer::new(CANCEL, None)),
            };
            answers.insert(key, serde_json::to_value(result_of(answer)).ok()?);
        }
        Some(answers)
    }

    async fn call_once(
        &self,
        params: CallToolRequestParams,
        meta: &JsonObject,
        limits: Limits,
        (mut questions, samples): (usize, &mut u32),
        progress: &ProgressSender,
        permit: &CallPermit,
    ) -> Once {
        if !permit.is_held() {
            return Once::Reply(Reply::NotSent("its run is not here any more".to_owned()));
        }
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
        let mut options = PeerRequestOptions::no_options();
        options.meta = (!meta.is_empty()).then(|| RequestMetaObject(MetaObject(meta.clone())));
        let mut handle = match self.peer.send_cancellable_request(request, options).await {
            Ok(handle) => handle,
            Err(error) => return Once::Reply(Reply::NotSent(self.lost(&error))),
        };
        // Before anything else: a server may ask at once.
        let mut reports = self.heard.reports_of(handle.progress_token.clone());
        // Whoever listens at the second point waits there until the server has acted.
        failpoint::reached("C11");
        failpoint::reached("C12");
        let mut underway = Underway { peer: &self.peer, id: &handle.id.clone(), tasks: &self.tasks, is_over: false };
        let Limits { silence, whole } = limits;
        let mut end = Instant::now() + whole;
        let mut limit = (Instant::now() + silence).min(end);
        let mut furthest = f64::NEG_INFINITY;
        // Since when somebody thinks about what the server wants to know, and what else it does.
        let (mut thinks, mut queue): (Option<Thought>, VecDeque<Wanted>) = (None, VecDeque::new());
        loop {
            // One thing after the other is asked.
            if thinks.is_none() {
                thinks = put(queue.pop_front(), progress).await;
            }
            tokio::select! {
                biased;
                response = &mut handle.rx => {
                    underway.is_over = true;
                    reports.answered();
                    return match response {
                        Ok(Ok(ServerResult::InputRequiredResult(asked))) => Once::Asks(asked),
                        Ok(Ok(result)) => Once::Reply(reply_from(result)),
                        Ok(Err(error)) => Once::Reply(self.reply_from_error(&error).await),
                        Err(_) => Once::Reply(self.reply_from_error(&ServiceError::TransportClosed).await),
                    };
                }
                () = permit.token.cancelled() => {
                    self.give_up(handle, "the run was cancelled").await;
                    failpoint::reached("C21");
                    underway.is_over = true;
                    return Once::Reply(Reply::Cancelled);
                }
                () = answer_of(&mut thinks) => {
                    let Some(Thought { since, .. }) = thinks.take() else { continue };
                    // The server's time does not run while somebody thinks.
                    end += since.elapsed();
                    limit = end.min(Instant::now() + silence);
                }
                said = reports.next() => match said {
                    Report::Asks(asks) => {
                        questions += 1;
                        if questions > MAX_QUESTIONS {
                            let _ = asks.answer.send(InputAnswer::new(DECLINE, None));
                        } else {
                            queue.push_back(Wanted::Asks(asks));
                        }
                    }
                    Report::Samples(wanted) => {
                        match samples.checked_sub(1) {
                            Some(left) => {
                                *samples = left;
                                queue.push_back(Wanted::Samples(wanted));
                            }
                            None => {
                                let most = self.allowed.samples.map_or(0, |rules| rules.max_calls);
                                let _ = wanted.answer.send(Err(format!("a model answers {most} times during one call")));
                            }
                        }
                    }
                    // Both are answers.
                    Report::Handle(_) | Report::Pauses(_) => {}
                    Report::Progress(mut report) => {
                        report.message = report.message.map(|message| self.masks.hide_in_text(message));
                        limit = end.min(Instant::now() + silence);
                        // Progress only goes forward; what was overtaken on the way is old news.
                        if report.progress > furthest {
                            furthest = report.progress;
                            let _ = progress.try_send(Report::Progress(report));
                        }
                    }
                },
                () = tokio::time::sleep_until(limit), if thinks.is_none() => {
                    self.give_up(handle, "the time limit is over").await;
                    underway.is_over = true;
                    return Once::Reply(Reply::TimedOut(if limit == end { whole } else { silence }));
                }
            }
        }
    }

    /// What an error means that stands for the answer to a request.
    pub async fn reply_from_error(&self, error: &ServiceError) -> Reply {
        let over_http = self.process.is_none();
        if over_http && fates::asks_for_new_session(error) {
            self.stale.store(true, Ordering::SeqCst);
        }
        match error {
            ServiceError::McpError(error) if over_http && fates::is_of_no_session(error) => {
                Reply::NoSession(self.masks.error_text(&error.message))
            }
            ServiceError::McpError(error) => Reply::Refused(self.masks.error_text(&error.message)),
            ServiceError::TransportSend(transport) => match Fate::of(transport.error.as_ref()) {
                Fate::NeverArrived => Reply::NotSent(self.shown(error)),
                Fate::Refused => Reply::Refused(self.shown(error)),
                Fate::Unknown => Reply::Lost(self.shown(error)),
            },
            error => {
                if let Some(process) = &self.process {
                    // The end of the connection is often news of the end of the process.
                    let _ = tokio::time::timeout(NOTICE_LIMIT, process.exited()).await;
                }
                Reply::Lost(self.lost(error))
            }
        }
    }

    async fn give_up(&self, handle: RequestHandle<RoleClient>, reason: &str) {
        let told = tokio::time::timeout(CANCEL_LIMIT, handle.cancel(Some(reason.to_owned()))).await;
        if told.is_err() {
            // A server that does not read its input will not read the next call either.
            self.stale.store(true, Ordering::SeqCst);
        }
    }

    /// Asks the server for a sign of life after it did not answer a call. One that gives none is replaced at the next use: many
    /// servers never recover from a call that was cancelled.
    pub async fn check_pulse(&self) {
        let ping = ClientRequest::PingRequest(PingRequest::default());
        let answered = match self.peer.send_cancellable_request(ping, PeerRequestOptions::with_timeout(PULSE_LIMIT)).await {
            Ok(handle) => handle.await_response().await,
            Err(error) => Err(error),
        };
        match answered {
            // An error is a sign of life, too.
            Ok(_) | Err(ServiceError::McpError(_)) => {}
            Err(_) => self.stale.store(true, Ordering::SeqCst),
        }
    }

    /// The end of what its process said on its standard error stream, for operators only.
    pub fn said(&self) -> Option<String> {
        self.process.as_ref().and_then(Process::said)
    }

    fn last_words(&self) -> LastWords {
        self.process.as_ref().map(Process::last_words).unwrap_or_default()
    }

    /// Why a call was lost. What the process said goes to the log: the reason goes to the model and into the conversation.
    fn lost(&self, error: &ServiceError) -> String {
        let Fault { reason, stderr } = Fault::after(self.shown(error), self.last_words());
        if let Some(stderr) = stderr.as_deref().map(last_words) {
            tracing::warn!(mcp.server = self.name, reason, stderr, "a call was lost with its MCP server");
        }
        reason
    }

    fn shown(&self, error: &ServiceError) -> String {
        match error {
            ServiceError::TransportClosed => self.ending.reason().unwrap_or_else(|| "the connection was closed".to_owned()),
            // What the library says around the cause names only its own types.
            ServiceError::TransportSend(transport) => self.masks.error_text(&chain(transport.error.as_ref())),
            error => self.masks.error_text(&chain(error)),
        }
    }

    /// Closes the connection and ends the process with its group.
    pub async fn close(&self) {
        let closed = async { self.service.lock().await.close_with_timeout(CLOSE_LIMIT).await };
        match &self.process {
            // A child that does not read its input keeps the transport from closing, so both go on at once.
            Some(process) => {
                let _ = tokio::join!(closed, process.end());
            }
            None => {
                let _ = closed.await;
            }
        }
    }
}

/// What became of one request of a call.
enum Once {
    /// The call is over.
    Reply(Reply),
    /// The server wants to know more, and to be called again then.
    Asks(InputRequiredResult),
}

/// A call that was sent. If whoever made it goes away without an answer, such as a run that was lost or deleted, the server is
/// told: it would work on for nobody.
struct Underway<'a> {
    peer: &'a Peer<RoleClient>,
    id: &'a RequestId,
    tasks: &'a TaskTracker,
    is_over: bool,
}

impl Drop for Underway<'_> {
    fn drop(&mut self) {
        // Without a runtime nothing can be sent any more: the process ends.
        let Some(runtime) = Handle::try_current().ok().filter(|_| !self.is_over) else { return };
        let (peer, request_id) = (self.peer.clone(), Some(self.id.clone()));
        let reason = Some("nobody waits for the answer any more".to_owned());
        let told = async move {
            let params = CancelledNotificationParam::new(request_id, reason);
            // A server that is gone needs no telling.
            let _ = tokio::time::timeout(CANCEL_LIMIT, peer.notify_cancelled(params)).await;
        };
        self.tasks.spawn_on(told, &runtime);
    }
}

fn reply_from(result: ServerResult) -> Reply {
    match result {
        ServerResult::CallToolResult(result) => {
            let value = serde_json::to_value(result).map_err(|error| error.to_string());
            let checked = value.and_then(|value| match number::check_value(&value) {
                Ok(()) => Ok(value),
                Err(error) => Err(error.to_string()),
            });
            match checked {
                Ok(value) => Reply::Result(value),
                Err(error) => Reply::Refused(format!("its answer cannot be read: {error}")),
            }
        }
        // What the library cannot read may still hold content, such as content of a kind that it does not know.
        ServerResult::CustomResult(result) if result.0.get("content").is_some() => match content::malformed(&result.0) {
            Some(reason) => Reply::Refused(reason.to_owned()),
            None => Reply::Result(result.0),
        },
        ServerResult::CreateTaskResult(created) => match Task::read(created) {
            Ok(task) => Reply::Task(task),
            Err(reason) => Reply::Refused(reason),
        },
        _ => Reply::Refused("its answer is no result of a tool call".to_owned()),
    }
}
