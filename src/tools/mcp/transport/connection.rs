//! One open connection to a server, over any transport.

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

use crate::domain::run::question::{CANCEL, DECLINE};
use crate::domain::run::{InputAnswer, Round};
use crate::support::locks::lock;
use crate::support::text::prefix_chars;
use crate::support::trace;
use crate::support::{failpoint, number};
use crate::tools::mcp::calls::questions::{OpenQuestion, answer_of, put};
use crate::tools::mcp::calls::reply::{ASKS, Limits, Reply, Task};
use crate::tools::mcp::calls::request_effect::{self, RequestEffect};
use crate::tools::mcp::calls::{content, input_required};
use crate::tools::mcp::config::redaction::SecretRedactor;
use crate::tools::mcp::errors::error_chain_without_urls;
use crate::tools::mcp::process::container::Launch;
use crate::tools::mcp::process::{self, ExitReport, Process, Program, stderr_end};
use crate::tools::mcp::server::tool_list::{self, MAX_LISTED, Page, ToolListState, size_of};
use crate::tools::mcp::transport::ending::Ending;
use crate::tools::mcp::transport::endpoint::{Endpoint, OpenError, ServerError};
use crate::tools::mcp::transport::handler::{
    AllowedRequests, CallSubscriptions, Handler, MAX_QUESTIONS, ServerRequest, checked_question, result_of,
};
use crate::tools::mcp::transport::remote::Remote;
use crate::tools::mcp::transport::stdio::{NOTICE_LIMIT, StdioTransport};
use crate::tools::mcp::{ServerConfig, ServerTransport};
use crate::tools::{CallPermit, ElicitationRequest, ProgressSender, Report};

const MAX_PAGES: usize = 100;
/// The most bytes of JSON in all pages of a list.
const MAX_LISTED_BYTES: usize = 8 * 1024 * 1024;
const CANCEL_LIMIT: Duration = Duration::from_millis(500);
/// How long a server may take to answer a ping.
const PING_LIMIT: Duration = Duration::from_secs(5);
const CLOSE_LIMIT: Duration = Duration::from_secs(6);

pub struct Connection {
    name: String,
    pub redactor: SecretRedactor,
    allowed: AllowedRequests,
    service: tokio::sync::Mutex<RunningService<RoleClient, Handler>>,
    pub peer: Peer<RoleClient>,
    pub subscriptions: Arc<CallSubscriptions>,
    process: Option<Process>,
    ending: Ending,
    tasks: TaskTracker,
    /// Whether a new connection is needed although this one is open.
    stale: AtomicBool,
    /// Holds a token for each call under way.
    calls: TaskTracker,
}

impl Connection {
    /// Connects and performs the handshake: `initialize`, or `server/discover` if the server supports the stateless revision.
    pub async fn open(server: Endpoint<'_>) -> Result<Self, ServerError> {
        let discover = ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] };
        let stateless = server.stateless.load(Ordering::SeqCst);
        let (first, second) = match stateless {
            false => (ClientLifecycleMode::Initialize, discover),
            true => (discover, ClientLifecycleMode::Initialize),
        };
        let not_understood = match Self::initialize(server, first).await {
            Ok(connection) => return Ok(connection),
            Err(OpenError::Other(error)) => return Err(error),
            // Only a server that read the first handshake and did not know it gets the second one.
            Err(OpenError::NotUnderstood(fault)) => fault,
        };
        let connection = Self::initialize(server, second).await.map_err(|_| not_understood)?;
        server.stateless.store(!stateless, Ordering::SeqCst);
        Ok(connection)
    }

    async fn initialize(server: Endpoint<'_>, lifecycle: ClientLifecycleMode) -> Result<Self, OpenError> {
        let Endpoint { name, config: ServerConfig { transport, redactor, .. }, common, home, open_resources, .. } = server;
        let handler = Handler {
            server: name.to_owned(),
            allowed: AllowedRequests::of(server.config),
            redactor: redactor.clone(),
            subscriptions: Arc::default(),
        };
        // Both own values that the program borrows; the launch also owns a file that the engine reads before the server answers.
        let (launch, settled);
        let program = match transport {
            ServerTransport::Container { container, command, args, env } => {
                let marker = common.markers.next();
                launch = Launch::prepare(container, (command.as_deref(), args), env, &marker, &common.containers).await?;
                let Launch { engine, args, env, removal, .. } = &launch;
                Program { command: engine, args, env, cwd: None, marker, removal: Some(removal.clone()), open_resources }
            }
            ServerTransport::Stdio { command, args, env, cwd } => {
                let cwd = cwd.as_deref().map(Path::new);
                settled = process::expand_home((args, env), home, cwd.is_none()).await?;
                let (args, env, cwd, marker) = (&settled.0, &settled.1, cwd.or(home), common.markers.next());
                Program { command, args, env, cwd, marker, removal: None, open_resources }
            }
            ServerTransport::Http { url, headers, style, egress, .. } => {
                let remote = Remote::new(url, headers, *egress, server)?;
                let (service, ending) = remote.initialize(*style, lifecycle, &handler, CancellationToken::new()).await?;
                return Self::check_initialized(service, None, ending, &common.tasks).await;
            }
        };
        let (process, stdout, stdin) = Process::start(&program, redactor, &common.environment, &common.tasks)?;
        failpoint::hit("C30");
        let transport = StdioTransport::new(stdout, stdin, name, redactor);
        let ending = transport.ending.clone();
        match transport.initialize(handler, lifecycle, process.exit_token(), &common.tasks).await {
            Ok(service) => Self::check_initialized(service, Some(process), ending, &common.tasks).await,
            Err(error) => {
                // An exit directly after the failed handshake explains it.
                let _ = tokio::time::timeout(NOTICE_LIMIT * 2, process.exit_token().cancelled_owned()).await;
                let exit_report = process.exit_report();
                Err(match ending.reason() {
                    Some(reason) => OpenError::Other(ServerError::after(reason, exit_report)),
                    None => OpenError::new(*error, redactor, exit_report),
                })
            }
        }
    }

    /// Returns the connection to a server that has answered the handshake. Closes it if the protocol version is not supported.
    pub async fn check_initialized(
        service: RunningService<RoleClient, Handler>,
        process: Option<Process>,
        ending: Ending,
        tasks: &TaskTracker,
    ) -> Result<Self, OpenError> {
        let Handler { server: name, allowed, redactor, subscriptions } = service.service().clone();
        let (peer, tasks, stale, calls) = (service.peer().clone(), tasks.clone(), AtomicBool::new(false), TaskTracker::new());
        let service = tokio::sync::Mutex::new(service);
        let connection = Self { name, redactor, allowed, peer, service, subscriptions, process, ending, tasks, stale, calls };
        let version = connection.peer.peer_info().map(|info| info.protocol_version.clone());
        let Some(unknown) = version.filter(|version| !ProtocolVersion::KNOWN_VERSIONS.contains(version)) else {
            return Ok(connection);
        };
        connection.close().await;
        let known: Vec<&str> = ProtocolVersion::KNOWN_VERSIONS.iter().map(ProtocolVersion::as_str).collect();
        let (version, known) = (prefix_chars(unknown.as_str(), 40), known.join(", "));
        Err(format!("the server uses version {version:?} of the protocol; supported versions are {known}").into())
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

    pub async fn list_tools(&self) -> Result<(Vec<Tool>, ToolListState), ServerError> {
        let announced = Mutex::new((None::<Duration>, false));
        let page = |params| {
            let announced = &announced;
            async move {
                let Page { tools, next, holds_for, left_out } = tool_list::page(&self.name, &self.peer, params).await?;
                let mut announced = lock(announced);
                *announced = (holds_for.into_iter().chain(announced.0).min(), announced.1 || left_out);
                Ok((tools, next))
            }
        };
        let (tools, is_whole) = self.list_all("tools", page).await?;
        let (holds_for, left_out) = announced.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok((tools, ToolListState::now(holds_for, left_out || !is_whole)))
    }

    /// Lists all resources; none if the server does not declare the capability.
    pub async fn list_resources(&self) -> Result<Vec<Resource>, ServerError> {
        if self.peer.peer_info().is_none_or(|info| info.capabilities.resources.is_none()) {
            return Ok(Vec::new());
        }
        let page =
            |params| async move { self.peer.list_resources(Some(params)).await.map(|page| (page.resources, page.next_cursor)) };
        Ok(self.list_all("resources", page).await?.0)
    }

    /// Lists all prompts; none if the server does not declare the capability.
    pub async fn list_prompts(&self) -> Result<Vec<Prompt>, ServerError> {
        if self.peer.peer_info().is_none_or(|info| info.capabilities.prompts.is_none()) {
            return Ok(Vec::new());
        }
        let page = |params| async move { self.peer.list_prompts(Some(params)).await.map(|page| (page.prompts, page.next_cursor)) };
        Ok(self.list_all("prompts", page).await?.0)
    }

    /// Reads a list page by page, and returns whether it is complete. Stops at an empty or repeated cursor, after 100 pages, and at
    /// the limits of items and bytes. The limits exist because lists stay in memory as long as the server is connected.
    async fn list_all<T, F>(
        &self,
        list_name: &str,
        page: impl Fn(PaginatedRequestParams) -> F,
    ) -> Result<(Vec<T>, bool), ServerError>
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
                    return Err(ServerError::after(
                        format!("its {list_name} could not be listed: {}", self.redacted_error(&error)),
                        self.exit_report(),
                    ));
                }
            };
            for item in items {
                bytes += size_of(&item);
                if all.len() == MAX_LISTED || bytes > MAX_LISTED_BYTES {
                    let kept = all.len();
                    tracing::warn!(mcp.server = self.name, list_name, kept, "MCP server offers too much; the rest is omitted");
                    return Ok((all, false));
                }
                all.push(item);
            }
            let Some(next) = next.filter(|next| !next.is_empty() && cursors.insert(next.clone())) else {
                return Ok((all, true));
            };
            cursor = Some(next);
        }
        tracing::warn!(mcp.server = self.name, list_name, pages = MAX_PAGES, "MCP server has more pages, which are omitted");
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
        // A call may make sampling requests in its first round only.
        let mut samples = match (&round, self.allowed.samples) {
            (None, Some(rules)) => rules.max_calls,
            (Some(_), _) | (None, None) => 0,
        };
        let pause = loop {
            let mut params = params.clone();
            if let Some(round) = &round {
                input_required::answer(&mut params, round);
            }
            let questions = round.as_ref().map_or(0, |round| round.questions as usize);
            let required = match self.call_once(params, meta, limits, (questions, &mut samples), progress, permit).await {
                RequestOutcome::Reply(reply) => return reply,
                RequestOutcome::Asks(required) => required,
            };
            let pause = match input_required::read((&self.name, &self.redactor), &self.allowed, required, round.as_ref()) {
                Ok(pause) => pause,
                Err(reason) => return Reply::Refused(reason),
            };
            if !pause.asks.is_empty() {
                break pause;
            }
            // No user is asked, so there is no round to store: after a crash, the replay class alone decides about the call.
            tokio::select! {
                biased;
                () = permit.token.cancelled() => return Reply::Cancelled,
                () = tokio::time::sleep(input_required::repeat_pause(pause.number)) => {}
            }
            round = Some(input_required::at_once(pause, round.as_ref()));
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
            let (text, elicitation) =
                checked_question(&self.name, &self.redactor, request.params).filter(|_| *questions <= MAX_QUESTIONS)?;
            progress.send(Report::Asks(Box::new(ElicitationRequest { text, elicitation, answer }))).await.ok()?;
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
    ) -> RequestOutcome {
        if !permit.is_held() {
            return RequestOutcome::Reply(Reply::NotSent("this process no longer holds its run".to_owned()));
        }
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
        let mut options = PeerRequestOptions::no_options();
        let mut meta = meta.clone();
        if let Some(traceparent) = trace::traceparent() {
            meta.insert(trace::TRACEPARENT.to_owned(), traceparent.into());
        }
        options.meta = (!meta.is_empty()).then_some(RequestMetaObject(MetaObject(meta)));
        let sending = self.subscriptions.delay_questions().await;
        let mut handle = match self.peer.send_cancellable_request(request, options).await {
            Ok(handle) => handle,
            Err(error) => return RequestOutcome::Reply(Reply::NotSent(self.reason_of_loss(&error))),
        };
        let mut reports = self.subscriptions.reports_of(handle.progress_token.clone());
        drop(sending);
        // A test that stops at the second point waits there until the server has acted.
        failpoint::hit("C11");
        failpoint::hit("C12");
        let mut underway = InFlightCall { peer: &self.peer, id: &handle.id.clone(), tasks: &self.tasks, is_over: false };
        let Limits { idle, total } = limits;
        let mut end = Instant::now() + total;
        let mut limit = (Instant::now() + idle).min(end);
        let mut furthest = f64::NEG_INFINITY;
        // The open question, and those that wait behind it.
        let (mut open, mut queue): (Option<OpenQuestion>, VecDeque<ServerRequest>) = (None, VecDeque::new());
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
                        Ok(Ok(ServerResult::InputRequiredResult(required))) => RequestOutcome::Asks(required),
                        Ok(Ok(result)) => RequestOutcome::Reply(reply_from(result)),
                        Ok(Err(error)) => RequestOutcome::Reply(self.reply_from_error(&error).await),
                        Err(_) => RequestOutcome::Reply(self.reply_from_error(&ServiceError::TransportClosed).await),
                    };
                }
                () = permit.token.cancelled() => {
                    self.give_up(handle, "the run was cancelled").await;
                    failpoint::hit("C21");
                    underway.is_over = true;
                    return RequestOutcome::Reply(Reply::Cancelled);
                }
                () = answer_of(&mut open) => {
                    let Some(OpenQuestion { since, .. }) = open.take() else { continue };
                    // The time limit is suspended while a user or a model answers.
                    end += since.elapsed();
                    limit = end.min(Instant::now() + idle);
                }
                report = reports.next() => match report {
                    Report::Asks(asks) => {
                        questions += 1;
                        if questions > MAX_QUESTIONS {
                            let _ = asks.answer.send(InputAnswer::new(DECLINE, None));
                        } else {
                            queue.push_back(ServerRequest::Asks(asks));
                        }
                    }
                    Report::Samples(sampling_call) => {
                        match samples.checked_sub(1) {
                            Some(left) => {
                                *samples = left;
                                queue.push_back(ServerRequest::Samples(sampling_call));
                            }
                            None => {
                                let most = self.allowed.samples.map_or(0, |rules| rules.max_calls);
                                let _ = sampling_call.answer.send(Err(format!("the limit of {most} sampling requests during one call is reached")));
                            }
                        }
                    }
                    // The server cannot cause these reports: `call` and `tasks` send them.
                    Report::Handle(_) | Report::Pauses(_) => {}
                    Report::Progress(mut report) => {
                        report.message = report.message.map(|message| self.redactor.redact_text(message));
                        limit = end.min(Instant::now() + idle);
                        // Progress only increases; an overtaken report is outdated.
                        if report.progress > furthest {
                            furthest = report.progress;
                            let _ = progress.try_send(Report::Progress(report));
                        }
                    }
                },
                () = tokio::time::sleep_until(limit), if open.is_none() => {
                    self.give_up(handle, "the time limit was reached").await;
                    underway.is_over = true;
                    return RequestOutcome::Reply(Reply::TimedOut(if limit == end { total } else { idle }));
                }
            }
        }
    }

    pub async fn reply_from_error(&self, error: &ServiceError) -> Reply {
        let over_http = self.process.is_none();
        if over_http && request_effect::asks_for_new_session(error) {
            self.stale.store(true, Ordering::SeqCst);
        }
        match error {
            ServiceError::McpError(error) if over_http && request_effect::is_unknown_session(error) => {
                Reply::NoSession(self.redactor.error_text(&error.message))
            }
            ServiceError::McpError(error) => Reply::Refused(self.redactor.error_text(&error.message)),
            ServiceError::TransportSend(transport) => match RequestEffect::of(transport.error.as_ref()) {
                RequestEffect::NotProcessed => Reply::NotSent(self.redacted_error(error)),
                RequestEffect::Refused => Reply::Refused(self.redacted_error(error)),
                RequestEffect::Unknown => Reply::Lost(self.redacted_error(error)),
            },
            error => {
                if let Some(process) = &self.process {
                    // The connection often ends because the process exits; its status belongs to the reason.
                    let _ = tokio::time::timeout(NOTICE_LIMIT, process.exit_token().cancelled_owned()).await;
                }
                Reply::Lost(self.reason_of_loss(error))
            }
        }
    }

    async fn give_up(&self, handle: RequestHandle<RoleClient>, reason: &str) {
        let cancel = tokio::time::timeout(CANCEL_LIMIT, handle.cancel(Some(reason.to_owned()))).await;
        if cancel.is_err() {
            // A server that does not read its input would not read the next call either.
            self.stale.store(true, Ordering::SeqCst);
        }
    }

    /// Pings the server after it did not answer a call. Without an answer, the next use connects again: many servers never recover from a
    /// cancelled call.
    pub async fn ping_after_timeout(&self) {
        let ping = ClientRequest::PingRequest(PingRequest::default());
        let answered = match self.peer.send_cancellable_request(ping, PeerRequestOptions::with_timeout(PING_LIMIT)).await {
            Ok(handle) => handle.await_response().await,
            Err(error) => Err(error),
        };
        match answered {
            // An error also proves that the server answers.
            Ok(_) | Err(ServiceError::McpError(_)) => {}
            Err(_) => self.stale.store(true, Ordering::SeqCst),
        }
    }

    /// Returns the last output of its process on standard error, for operators only.
    pub fn stderr_tail(&self) -> Option<String> {
        self.process.as_ref().and_then(Process::stderr_tail)
    }

    fn exit_report(&self) -> ExitReport {
        self.process.as_ref().map(Process::exit_report).unwrap_or_default()
    }

    /// Returns why a call was lost. Only the log gets the output of the process, because the model and the user see the reason.
    fn reason_of_loss(&self, error: &ServiceError) -> String {
        let ServerError { reason, stderr } = ServerError::after(self.redacted_error(error), self.exit_report());
        if let Some(stderr) = stderr.as_deref().map(stderr_end) {
            tracing::warn!(mcp.server = self.name, reason, stderr, "a tool call was lost with the connection to its MCP server");
        }
        reason
    }

    fn redacted_error(&self, error: &ServiceError) -> String {
        match error {
            ServiceError::TransportClosed => self.ending.reason().unwrap_or_else(|| "the connection was closed".to_owned()),
            // The outer text of the library only names its own types.
            ServiceError::TransportSend(transport) => self.redactor.error_text(&error_chain_without_urls(transport.error.as_ref())),
            error => self.redactor.error_text(&error_chain_without_urls(error)),
        }
    }

    pub async fn close(&self) {
        let closed = async { self.service.lock().await.close_with_timeout(CLOSE_LIMIT).await };
        // A child that does not read its input keeps the transport from closing, so both run at once.
        let ended = async {
            if let Some(process) = &self.process {
                process.end().await;
            }
        };
        let _ = tokio::join!(closed, ended);
    }
}

/// The outcome of one request of a call.
enum RequestOutcome {
    Reply(Reply),
    /// The server requires input, and must then be called again.
    Asks(InputRequiredResult),
}

/// A call that was sent. If it is dropped without an answer, such as with a lost or deleted run, it sends a cancellation.
struct InFlightCall<'a> {
    peer: &'a Peer<RoleClient>,
    id: &'a RequestId,
    tasks: &'a TaskTracker,
    is_over: bool,
}

impl Drop for InFlightCall<'_> {
    fn drop(&mut self) {
        // Without a runtime the process is ending, and no message can be sent.
        let Some(runtime) = Handle::try_current().ok().filter(|_| !self.is_over) else { return };
        let (peer, request_id) = (self.peer.clone(), Some(self.id.clone()));
        let reason = Some("the caller no longer waits for the answer".to_owned());
        let cancel = async move {
            let params = CancelledNotificationParam::new(request_id, reason);
            let _ = tokio::time::timeout(CANCEL_LIMIT, peer.notify_cancelled(params)).await;
        };
        self.tasks.spawn_on(cancel, &runtime);
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
        // A result that the library cannot parse may still have content, such as content of an unknown type.
        ServerResult::CustomResult(result) if result.0.get("content").is_some() => match content::malformed(&result.0) {
            Some(reason) => Reply::Refused(reason.to_owned()),
            None => Reply::Result(result.0),
        },
        ServerResult::CreateTaskResult(created) => Task::read(created).map_or_else(Reply::Refused, Reply::Task),
        _ => Reply::Refused("its answer is not the result of a tool call".to_owned()),
    }
}
