//! One live connection to a server, over any transport.

use std::collections::{BTreeSet, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rmcp::RoleClient;
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CancelledNotificationParam, ClientRequest, ErrorCode, InputRequest, InputRequests,
    InputRequiredResult, InputResponses, JsonObject, MetaObject, PaginatedRequestParams, PingRequest, Prompt, ProtocolVersion,
    RequestId, RequestMetaObject, Resource, ServerResult, Tool,
};
use rmcp::service::{ClientLifecycleMode, Peer, PeerRequestOptions, RequestHandle, RunningService, ServiceError};
use serde::Serialize;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::domain::run::handle::Round;
use crate::domain::run::input::{CANCEL, DECLINE, InputAnswer};
use crate::support::failpoint;
use crate::support::number;
use crate::support::text::prefix_chars;
use crate::tools::mcp::calls::content;
use crate::tools::mcp::calls::fates::{self, Fate};
use crate::tools::mcp::calls::questions::{OpenQuestion, answer_of, put};
use crate::tools::mcp::calls::reply::{ASKS, Limits, Reply, Task};
use crate::tools::mcp::calls::rounds;
use crate::tools::mcp::config::masks::Masks;
use crate::tools::mcp::errors::chain;
use crate::tools::mcp::process::container::Launch;
use crate::tools::mcp::process::{self, LastWords, Process, Program, last_words};
use crate::tools::mcp::servers::tool_list::{self, Listed, MAX_LISTED, Page, size_of};
use crate::tools::mcp::transport::endpoint::{Endpoint, Fault, OpenError};
use crate::tools::mcp::transport::handler::{Allowed, Handler, Heard, MAX_QUESTIONS, Wanted, readable, result_of};
use crate::tools::mcp::transport::remote::Remote;
use crate::tools::mcp::transport::stdio::{Ending, NOTICE_LIMIT, StdioTransport};
use crate::tools::mcp::{ServerConfig, ServerTransport};
use crate::tools::{Asks, CallPermit, ProgressSender, Report};

const MAX_PAGES: usize = 100;
/// The most bytes of JSON in all pages of a list.
const MAX_LISTED_BYTES: usize = 8 * 1024 * 1024;
const CANCEL_LIMIT: Duration = Duration::from_millis(500);
/// How long a server may take to answer a ping.
const PULSE_LIMIT: Duration = Duration::from_secs(5);
const CLOSE_LIMIT: Duration = Duration::from_secs(6);

pub struct Connection {
    name: String,
    pub masks: Masks,
    allowed: Allowed,
    service: tokio::sync::Mutex<RunningService<RoleClient, Handler>>,
    pub peer: Peer<RoleClient>,
    pub heard: Arc<Heard>,
    process: Option<Process>,
    ending: Ending,
    tasks: TaskTracker,
    /// Whether a new connection is needed although this one is open.
    stale: AtomicBool,
    /// Holds a token for each call under way.
    calls: TaskTracker,
}

impl Connection {
    /// Connects and greets the server: by `initialize`, or by `server/discover` if it speaks the stateless revision.
    pub async fn open(server: Endpoint<'_>) -> Result<Self, Fault> {
        let discover = ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] };
        let stateless = server.stateless.load(Ordering::SeqCst);
        let (first, second) = match stateless {
            false => (ClientLifecycleMode::Initialize, discover),
            true => (discover, ClientLifecycleMode::Initialize),
        };
        let not_understood = match Self::greet(server, first).await {
            Ok(connection) => return Ok(connection),
            Err(OpenError::Other(error)) => return Err(error),
            // Only a server that read the first greeting and did not know it gets the second one.
            Err(OpenError::NotUnderstood(fault)) => fault,
        };
        let connection = Self::greet(server, second).await.map_err(|_| not_understood)?;
        server.stateless.store(!stateless, Ordering::SeqCst);
        Ok(connection)
    }

    async fn greet(server: Endpoint<'_>, lifecycle: ClientLifecycleMode) -> Result<Self, OpenError> {
        let Endpoint { name, config: ServerConfig { transport, masks, .. }, common, home, remains, .. } = server;
        let handler =
            Handler { server: name.to_owned(), allowed: Allowed::of(server.config), masks: masks.clone(), heard: Arc::default() };
        // Both own values that the program borrows; the launch also owns a file that the engine reads before the server answers.
        let (launch, settled);
        let program = match transport {
            ServerTransport::Container { container, command, args, env } => {
                let word = common.words.next();
                launch = Launch::prepare(container, (command.as_deref(), args), env, &word, &common.containers).await?;
                let Launch { engine, args, env, removal, .. } = &launch;
                Program { command: engine, args, env, cwd: None, word, removal: Some(removal.clone()), remains }
            }
            ServerTransport::Stdio { command, args, env, cwd } => {
                let cwd = cwd.as_deref().map(Path::new);
                settled = process::at_home((args, env), home, cwd.is_none()).await?;
                let (args, env, cwd, word) = (&settled.0, &settled.1, cwd.or(home), common.words.next());
                Program { command, args, env, cwd, word, removal: None, remains }
            }
            ServerTransport::Http { url, headers, style, reach, .. } => {
                let remote = Remote::new(url, headers, *reach, server)?;
                let (service, ending) = remote.greet(*style, lifecycle, &handler, CancellationToken::new()).await?;
                return Self::greeted(service, None, ending, &common.tasks).await;
            }
        };
        let (process, stdout, stdin) = Process::start(&program, masks, &common.environment, &common.tasks)?;
        failpoint::reached("C30");
        let transport = StdioTransport::new(stdout, stdin, name, masks);
        let ending = transport.ending.clone();
        match transport.greet(handler, lifecycle, process.exit_token(), &common.tasks).await {
            Ok(service) => Self::greeted(service, Some(process), ending, &common.tasks).await,
            Err(error) => {
                // An exit right after the failed greeting explains it.
                let _ = tokio::time::timeout(NOTICE_LIMIT * 2, process.exit_token().cancelled_owned()).await;
                let words = process.last_words();
                Err(match ending.reason() {
                    Some(reason) => OpenError::Other(Fault::after(reason, words)),
                    None => OpenError::new(*error, masks, words),
                })
            }
        }
    }

    /// Returns the connection to a server that has answered the greeting. Closes it if the protocol version is not supported.
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
        let version = connection.peer.peer_info().map(|info| info.protocol_version.clone());
        let Some(unknown) = version.filter(|version| !ProtocolVersion::KNOWN_VERSIONS.contains(version)) else {
            return Ok(connection);
        };
        connection.close().await;
        let known: Vec<&str> = ProtocolVersion::KNOWN_VERSIONS.iter().map(ProtocolVersion::as_str).collect();
        let (version, known) = (prefix_chars(unknown.as_str(), 40), known.join(", "));
        Err(format!("the server speaks version {version:?} of the protocol; known here are {known}").into())
    }

    pub fn is_alive(&self) -> bool {
        !self.stale.load(Ordering::SeqCst)
            && !self.peer.is_transport_closed()
            && self.process.as_ref().is_none_or(|process| !process.exit_token().is_cancelled())
    }

    /// Waits for the calls under way on a connection that gets no new ones. Each of them ends within its own limits.
    pub async fn is_idle(&self) {
        self.calls.close();
        self.calls.wait().await;
    }

    pub async fn list_tools(&self) -> Result<(Vec<Tool>, Listed), Fault> {
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
        Ok((tools, Listed::now(holds_for, left_out || !is_whole)))
    }

    /// Lists all resources; none if the server does not declare the capability.
    pub async fn list_resources(&self) -> Result<Vec<Resource>, Fault> {
        if self.peer.peer_info().is_none_or(|info| info.capabilities.resources.is_none()) {
            return Ok(Vec::new());
        }
        let page =
            |asked| async move { self.peer.list_resources(Some(asked)).await.map(|page| (page.resources, page.next_cursor)) };
        Ok(self.all("resources", page).await?.0)
    }

    /// Lists all prompts; none if the server does not declare the capability.
    pub async fn list_prompts(&self) -> Result<Vec<Prompt>, Fault> {
        if self.peer.peer_info().is_none_or(|info| info.capabilities.prompts.is_none()) {
            return Ok(Vec::new());
        }
        let page = |asked| async move { self.peer.list_prompts(Some(asked)).await.map(|page| (page.prompts, page.next_cursor)) };
        Ok(self.all("prompts", page).await?.0)
    }

    /// Reads a list page by page, and returns whether it is complete. Stops at an empty or repeated cursor, after 100 pages, and at
    /// the limit of memory: lists are held as long as the server is connected.
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
                // A server without this kind of list does not know the method.
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

    /// Calls a tool, with `meta` beside its arguments, and with the answers of the last `round` if there was one.
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
        // The sampling requests of a call belong to its first round.
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
            // No user is asked, so there is nothing to store: after a crash, the replay class alone decides about the call.
            tokio::select! {
                biased;
                () = permit.token.cancelled() => return Reply::Cancelled,
                () = tokio::time::sleep(rounds::rest(pause.number)) => {}
            }
            round = Some(rounds::at_once(pause, round.as_ref()));
        };
        match progress.send(Report::Pauses(Box::new(pause))).await {
            Ok(()) => Reply::Paused,
            Err(_) => Reply::Refused(ASKS.to_owned()),
        }
    }

    /// Asks the user the questions of a task. `None` if one of them is not allowed, or the call is cancelled.
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
        // Registered before anything else: a server may ask at once.
        let mut reports = self.heard.reports_of(handle.progress_token.clone());
        // A test that stops at the second point waits there until the server has acted.
        failpoint::reached("C11");
        failpoint::reached("C12");
        let mut underway = Underway { peer: &self.peer, id: &handle.id.clone(), tasks: &self.tasks, is_over: false };
        let Limits { silence, whole } = limits;
        let mut end = Instant::now() + whole;
        let mut limit = (Instant::now() + silence).min(end);
        let mut furthest = f64::NEG_INFINITY;
        // The open question, and those that wait behind it.
        let (mut open, mut queue): (Option<OpenQuestion>, VecDeque<Wanted>) = (None, VecDeque::new());
        loop {
            if open.is_none() {
                open = put(queue.pop_front(), progress).await;
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
                () = answer_of(&mut open) => {
                    let Some(OpenQuestion { since, .. }) = open.take() else { continue };
                    // The server's time limit stands still while a user or a model answers.
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
                    // Neither is heard unasked.
                    Report::Handle(_) | Report::Pauses(_) => {}
                    Report::Progress(mut report) => {
                        report.message = report.message.map(|message| self.masks.hide_in_text(message));
                        limit = end.min(Instant::now() + silence);
                        // Progress only increases; an overtaken report is out of date.
                        if report.progress > furthest {
                            furthest = report.progress;
                            let _ = progress.try_send(Report::Progress(report));
                        }
                    }
                },
                () = tokio::time::sleep_until(limit), if open.is_none() => {
                    self.give_up(handle, "the time limit is over").await;
                    underway.is_over = true;
                    return Once::Reply(Reply::TimedOut(if limit == end { whole } else { silence }));
                }
            }
        }
    }

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
                    // The connection often ends because the process exits; its status belongs to the reason.
                    let _ = tokio::time::timeout(NOTICE_LIMIT, process.exit_token().cancelled_owned()).await;
                }
                Reply::Lost(self.lost(error))
            }
        }
    }

    async fn give_up(&self, handle: RequestHandle<RoleClient>, reason: &str) {
        let told = tokio::time::timeout(CANCEL_LIMIT, handle.cancel(Some(reason.to_owned()))).await;
        if told.is_err() {
            // A server that does not read its input would not read the next call either.
            self.stale.store(true, Ordering::SeqCst);
        }
    }

    /// Pings the server after it did not answer a call. Without an answer, the next use connects again: many servers never recover
    /// from a cancelled call.
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

    /// Returns the last output of its process on standard error, for operators only.
    pub fn said(&self) -> Option<String> {
        self.process.as_ref().and_then(Process::said)
    }

    fn last_words(&self) -> LastWords {
        self.process.as_ref().map(Process::last_words).unwrap_or_default()
    }

    /// Says why a call was lost. The output of the process goes to the log only: the reason is shown to the model and the user.
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
            // The outer text of the library only names its own types.
            ServiceError::TransportSend(transport) => self.masks.error_text(&chain(transport.error.as_ref())),
            error => self.masks.error_text(&chain(error)),
        }
    }

    pub async fn close(&self) {
        let closed = async { self.service.lock().await.close_with_timeout(CLOSE_LIMIT).await };
        // A child that does not read its input keeps the transport from closing, so both go on at once.
        let ended = async {
            if let Some(process) = &self.process {
                process.end().await;
            }
        };
        let _ = tokio::join!(closed, ended);
    }
}

/// The outcome of one request of a call.
enum Once {
    Reply(Reply),
    /// The server requires input, and must then be called again.
    Asks(InputRequiredResult),
}

/// A call that was sent. If it is dropped without an answer, such as with a lost or deleted run, it sends a cancellation.
struct Underway<'a> {
    peer: &'a Peer<RoleClient>,
    id: &'a RequestId,
    tasks: &'a TaskTracker,
    is_over: bool,
}

impl Drop for Underway<'_> {
    fn drop(&mut self) {
        // Without a runtime the process is ending, and nothing can be sent.
        let Some(runtime) = Handle::try_current().ok().filter(|_| !self.is_over) else { return };
        let (peer, request_id) = (self.peer.clone(), Some(self.id.clone()));
        let reason = Some("nobody waits for the answer any more".to_owned());
        let told = async move {
            let params = CancelledNotificationParam::new(request_id, reason);
            let _ = tokio::time::timeout(CANCEL_LIMIT, peer.notify_cancelled(params)).await;
        };
        self.tasks.spawn_on(told, &runtime);
    }
}

fn reply_from(result: ServerResult) -> Reply {
    match result {
        ServerResult::CallToolResult(result) => {
            let value = serde_json::to_value(result).map_err(|error| error.to_string());
            let checked = value.and_then(|value| number::check_value(&value).map(|()| value).map_err(|error| error.to_string()));
            match checked {
                Ok(value) => Reply::Result(value),
                Err(error) => Reply::Refused(format!("its answer cannot be read: {error}")),
            }
        }
        // A result that the library cannot parse may still have content, such as content of an unknown kind.
        ServerResult::CustomResult(result) if result.0.get("content").is_some() => match content::malformed(&result.0) {
            Some(reason) => Reply::Refused(reason.to_owned()),
            None => Reply::Result(result.0),
        },
        ServerResult::CreateTaskResult(created) => Task::read(created).map_or_else(Reply::Refused, Reply::Task),
        _ => Reply::Refused("its answer is no result of a tool call".to_owned()),
    }
}
