//! The calls of one server: each waits for a call permit and for a connection that still offers the frozen tool, and is then sent.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rmcp::model::{CallToolRequestParams, JsonObject};
use serde_json::Value;
use tokio::sync::{AcquireError, SemaphorePermit};
use tokio::time::Instant;

use crate::domain::run::Handle;
use crate::domain::tool::ToolCallState;
use crate::tools::mcp::calls::reply::{Limits, Reply, Task};
use crate::tools::mcp::calls::{content, tasks};
use crate::tools::mcp::registry::{McpAnswer, McpCall};
use crate::tools::mcp::server::Server;
use crate::tools::mcp::server::connected_server::{ConnectedServer, REFRESH_PATIENCE, ToolListFreshness};
use crate::tools::{Progress, ProgressSender, Report};

/// Progress extends the time limit of a call, up to this factor unless the entry of the server sets another limit.
const HARD_LIMIT_FACTOR: u32 = 10;

impl Server {
    pub async fn call(self: &Arc<Self>, call: McpCall<'_>) -> McpAnswer {
        let _use = Arc::clone(&self.uses);
        let timeout = self.config.timeout.unwrap_or(call.timeout);
        if let Some(id) = call.handle.and_then(Handle::task) {
            let task = Task { id: id.to_owned(), pause: Duration::ZERO };
            let reply = self.resume_task(task, timeout, &call).await;
            return self.answer(reply, &call);
        }
        let Value::Object(arguments) = &call.arguments else {
            return McpAnswer::failed("the arguments are not an object".to_owned());
        };
        let mut until = Instant::now() + timeout;
        let call_permit = match self.wait_for_call_permit(timeout, &call).await {
            Ok(permit) => permit,
            Err(unsent) => return unsent,
        };
        if self.config.may_ask() {
            tokio::select! {
                biased;
                () = call.permit.token.cancelled() => return cancelled(),
                () = self.renew() => {}
            }
            until = Instant::now() + timeout;
        }
        let reply = match self.send(arguments, timeout, until, &call).await {
            // The connection was lost unnoticed. A request that never arrived may be sent once more, for every tool.
            Ok(Reply::NotSent(_) | Reply::NoSession(_)) => self.send(arguments, timeout, until, &call).await,
            sent => sent,
        };
        drop(call_permit);
        match reply {
            Ok(reply) => self.answer(reply, &call),
            Err(unsent) => unsent,
        }
    }

    /// Sends a call if the server is ready before `until`. An error is the result of a call that was not sent.
    async fn send(
        self: &Arc<Self>,
        arguments: &JsonObject,
        timeout: Duration,
        until: Instant,
        call: &McpCall<'_>,
    ) -> Result<Reply, McpAnswer> {
        let prepared = tokio::select! {
            biased;
            () = call.permit.token.cancelled() => return Err(cancelled()),
            prepared = tokio::time::timeout_at(until, self.prepare(call)) => prepared,
        };
        let connected = match prepared {
            Ok(Ok(prepared)) => prepared,
            Ok(Err(reason)) => return Err(McpAnswer::failed(reason)),
            Err(_) => return Err(self.not_ready(timeout)),
        };
        let _request = Arc::clone(&self.requests);
        let params = CallToolRequestParams::new(call.tool.to_owned()).with_arguments(arguments.clone());
        let round = call.handle.and_then(Handle::round);
        self.paused_calls.end(call.id);
        let limits = self.limits(timeout);
        let mut reply = connected.connection.call(params, &call.meta, round, limits, &call.progress, call.permit).await;
        match reply {
            Reply::TimedOut(_) | Reply::Cancelled => {
                let connected = Arc::clone(&connected);
                self.common.tasks.spawn(async move { connected.connection.ping_after_timeout().await });
            }
            Reply::Task(task) => {
                tasks::store(&task, &call.progress).await;
                reply = tasks::follow(self, task, limits, &call.progress, &call.permit.token).await;
            }
            Reply::Paused => self.paused_calls.begin(call.id, Instant::now()),
            _ => {}
        }
        if let Reply::Result(result) = &mut reply {
            connected.outputs.check(call.tool, result);
        }
        Ok(reply)
    }

    /// Continues to follow a task that another process, or an earlier attempt of this one, had started.
    async fn resume_task(self: &Arc<Self>, task: Task, timeout: Duration, call: &McpCall<'_>) -> Reply {
        if call.frozen_destination.is_some_and(|frozen| self.destination.as_deref() != Some(frozen)) {
            return Reply::Gone("its server has another destination since this run began".to_owned());
        }
        let _request = Arc::clone(&self.requests);
        let mut reply = tasks::follow(self, task, self.limits(timeout), &call.progress, &call.permit.token).await;
        if let Reply::Result(result) = &mut reply
            && let Ok(connected) = self.connected().await
        {
            connected.outputs.check(call.tool, result);
        }
        reply
    }

    /// Redacts the secrets of the entry, because the result is stored, shown and sent to a model.
    fn answer(&self, mut reply: Reply, call: &McpCall<'_>) -> McpAnswer {
        if let Reply::Result(result) = &mut reply {
            content::decode_texts(result);
            self.config.redactor.redact_value(result);
        }
        call_result(&self.identity.name, reply, call.may_repeat)
    }

    fn limits(&self, timeout: Duration) -> Limits {
        Limits { idle: timeout, total: self.config.max_timeout.unwrap_or(timeout * HARD_LIMIT_FACTOR) }
    }

    /// Waits for a call permit. An error is the result of a call that was not sent.
    async fn wait_for_call_permit(&self, timeout: Duration, call: &McpCall<'_>) -> Result<SemaphorePermit<'_>, McpAnswer> {
        // A user may be answering a question of the previous call, which has its own limits.
        let limit = if self.config.may_ask() { Duration::MAX } else { timeout };
        tokio::select! {
            biased;
            () = call.permit.token.cancelled() => Err(cancelled()),
            permit = tokio::time::timeout(limit, self.call_permit(&call.progress)) => match permit {
                Ok(permit) => permit.map_err(|_| McpAnswer::failed("the server is shut down".to_owned())),
                Err(_) => Err(self.not_ready(timeout)),
            },
        }
    }

    fn not_ready(&self, timeout: Duration) -> McpAnswer {
        McpAnswer::failed(format!("the server {} was not ready within {timeout:?}; nothing was sent", self.identity.name))
    }

    /// Returns an open connection that still offers the tool, with the frozen definition if there is one.
    async fn prepare(self: &Arc<Self>, call: &McpCall<'_>) -> Result<Arc<ConnectedServer>, String> {
        let tool = call.tool;
        let unreachable = |reason| format!("the server {} cannot be reached, nothing was sent: {reason}", self.identity.name);
        let connected = self.connected().await.map_err(unreachable)?;
        match self.refresh(&connected).await {
            // The tool may have another meaning by now.
            ToolListFreshness::Outdated if !call.may_repeat => {
                return Err(format!(
                    "the tools of the server {} are changing, and its new list did not arrive within {REFRESH_PATIENCE:?}; nothing was sent",
                    self.identity.name
                ));
            }
            ToolListFreshness::Outdated | ToolListFreshness::Current => {}
        }
        let Some(current) = connected.tool(tool).await else {
            return Err(format!("the server {} does not offer the tool {tool} any more", self.identity.name));
        };
        if call.frozen_hash.is_some_and(|frozen| current.definition_hash != frozen) {
            return Err(format!("the tool {tool} has changed since this run began and is not called"));
        }
        if call.frozen_destination.is_some_and(|frozen| current.destination.as_deref() != Some(frozen)) {
            return Err(format!(
                "the server {} has another destination since this run began; nothing was sent",
                self.identity.name
            ));
        }
        Ok(connected)
    }

    /// Waits for a call permit, and reports the wait as progress.
    async fn call_permit(&self, progress: &ProgressSender) -> Result<SemaphorePermit<'_>, AcquireError> {
        let began = Instant::now();
        let permit = match self.call_permits.try_acquire() {
            Ok(permit) => permit,
            Err(_) => {
                let message = Some(format!("waits: {} is executing {} other calls", self.identity.name, self.config.concurrency));
                let _ = progress.try_send(Report::Progress(Progress { progress: 0.0, total: None, message }));
                self.call_permits.acquire().await?
            }
        };
        metrics::histogram!("capstan_mcp_queue_seconds").record(began.elapsed().as_secs_f64());
        Ok(permit)
    }

    /// Replaces a connection with an abandoned call, before the next call of a server that may ask questions.
    ///
    /// A question does not name its call, so after an abandoned call it cannot be attributed and would be declined. A connection with other
    /// requests under way is kept. Two connections of one server may disturb each other, so the old one closes first.
    async fn renew(&self) {
        // In the stateless revision a question is the answer to its call.
        if self.stateless.load(Ordering::SeqCst) {
            return;
        }
        let closing = Arc::clone(&self.closing_lock).lock_owned().await;
        let detached = self.detach_connection(|connected| {
            Arc::strong_count(&self.requests) > 1 || !connected.connection.subscriptions.has_abandoned_calls()
        });
        let Some((connected, token)) = detached else { return };
        tracing::debug!(
            mcp.server = self.identity.name,
            "MCP server {} is reconnected after an abandoned call",
            self.identity.name
        );
        let closed = self.common.tasks.spawn(async move {
            connected.connection.close().await;
            drop((connected, token, closing));
        });
        // The task closes the connection even if this call is cancelled meanwhile.
        let _ = closed.await;
    }
}

/// Returns the result for a reply of the server `name`. `may_repeat`: the call may be repeated if its outcome is unknown.
fn call_result(name: &str, reply: Reply, may_repeat: bool) -> McpAnswer {
    let open = |reason| if may_repeat { McpAnswer::failed(reason) } else { unknown(reason) };
    let fate = if may_repeat { "it may be repeated" } else { "it may have taken effect" };
    match reply {
        Reply::Result(result) => {
            let is_error = content::is_error(&result);
            let state = if is_error { ToolCallState::Failed } else { ToolCallState::Done };
            let structured = result.get("structuredContent").filter(|structured| !structured.is_null()).cloned();
            McpAnswer { state, content: content::from_result(&result), is_error, structured }
        }
        // A server that knows no new session either may mean something else by this error. So the call may have had an effect.
        Reply::Refused(reason) | Reply::NoSession(reason) => {
            McpAnswer::failed(format!("the server {name} answered with an error: {reason}"))
        }
        Reply::NotSent(reason) => McpAnswer::failed(format!("the server {name} cannot be reached, nothing was sent: {reason}")),
        Reply::TimedOut(limit) => {
            open(format!("the tool did not answer within {limit:?} and was cancelled; it may have taken effect"))
        }
        // The worker ignores this result: it already knows that the server requires input.
        Reply::Paused => unknown("the server waits for input".to_owned()),
        // Tasks are followed before this point.
        Reply::Task(_) => unknown("the server continues the call as a task".to_owned()),
        Reply::Gone(reason) => open(format!("the server {name} no longer knows the task of the call; {fate}: {reason}")),
        Reply::PollFailed(reason) => open(format!(
            "the server {name} did not report the end of the call's task in time; {fate}: the last poll failed: {reason}"
        )),
        Reply::Lost(reason) => open(format!("the connection to the server {name} was lost during the call; {fate}: {reason}")),
        Reply::Cancelled => unknown("the call was cancelled while it was under way; it may have taken effect".to_owned()),
    }
}

fn unknown(reason: String) -> McpAnswer {
    McpAnswer::error(ToolCallState::Unknown, reason)
}

pub fn cancelled() -> McpAnswer {
    McpAnswer::error(ToolCallState::Cancelled, "the call was cancelled before it was sent".to_owned())
}
