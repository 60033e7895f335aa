//! The calls of one server: each waits for a slot and for a live connection that still offers the frozen tool, and is then sent.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rmcp::model::{CallToolRequestParams, JsonObject};
use serde_json::Value;
use tokio::sync::{AcquireError, SemaphorePermit};
use tokio::time::Instant;

use super::Server;
use crate::domain::run::handle::Handle;
use crate::tools::mcp::calls::answers::{self, cancelled};
use crate::tools::mcp::calls::content;
use crate::tools::mcp::calls::reply::{Limits, Reply, Task};
use crate::tools::mcp::calls::tasks;
use crate::tools::mcp::servers::live::{Known, Live, REFRESH_PATIENCE};
use crate::tools::mcp::servers::{McpAnswer, McpCall};
use crate::tools::{Progress, ProgressSender, Report};

/// Progress extends the time limit of a call, up to this many times the limit unless the entry of the server says otherwise.
const HARD_LIMIT_FACTOR: u32 = 10;

impl Server {
    pub async fn call(self: &Arc<Self>, call: McpCall<'_>) -> McpAnswer {
        let _work = Arc::clone(&self.work);
        let timeout = self.config.timeout.unwrap_or(call.timeout);
        if let Some(id) = call.handle.and_then(Handle::task) {
            let task = Task { id: id.to_owned(), pause: Duration::ZERO };
            let reply = self.take_up(task, timeout, &call).await;
            return self.answer(reply, &call);
        }
        let Value::Object(arguments) = &call.arguments else {
            return McpAnswer::failed("the arguments are not an object".to_owned());
        };
        let mut until = Instant::now() + timeout;
        let slot = match self.turn(timeout, &call).await {
            Ok(slot) => slot,
            Err(unsent) => return unsent,
        };
        if self.config.asks() {
            tokio::select! {
                biased;
                () = call.permit.token.cancelled() => return cancelled(),
                () = self.renew() => {}
            }
            until = Instant::now() + timeout;
        }
        let reply = match self.send(arguments, timeout, until, &call).await {
            // The connection had died unnoticed. A request that never arrived is safe to send again for every tool, once.
            Ok(Reply::NotSent(_) | Reply::NoSession(_)) => self.send(arguments, timeout, until, &call).await,
            sent => sent,
        };
        drop(slot);
        match reply {
            Ok(reply) => self.answer(reply, &call),
            Err(unsent) => unsent,
        }
    }

    /// Sends a call if the server is ready before `until`. An error is the answer to a call that was not sent.
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
        let live = match prepared {
            Ok(Ok(prepared)) => prepared,
            Ok(Err(reason)) => return Err(McpAnswer::failed(reason)),
            Err(_) => return Err(self.not_ready(timeout)),
        };
        let _sent = Arc::clone(&self.sent);
        let params = CallToolRequestParams::new(call.tool.to_owned()).with_arguments(arguments.clone());
        let round = call.handle.and_then(Handle::round);
        self.pauses.end(call.id);
        let limits = self.limits(timeout);
        let mut reply = live.connection.call(params, &call.meta, round, limits, &call.progress, call.permit).await;
        match reply {
            Reply::TimedOut(_) | Reply::Cancelled => {
                let live = Arc::clone(&live);
                self.common.tasks.spawn(async move { live.connection.check_pulse().await });
            }
            Reply::Task(task) => {
                tasks::store(&task, &call.progress).await;
                reply = tasks::follow(self, task, limits, &call.progress, &call.permit.token).await;
            }
            Reply::Paused => self.pauses.begin(call.id, Instant::now()),
            Reply::Result(_) | Reply::Gone(_) | Reply::Refused(_) | Reply::NoSession(_) | Reply::NotSent(_) | Reply::Lost(_) => {}
        }
        if let Reply::Result(result) = &mut reply {
            live.outputs.look_at(call.tool, result);
        }
        Ok(reply)
    }

    /// Continues to follow a task that another process, or this one earlier, had to leave.
    async fn take_up(self: &Arc<Self>, task: Task, timeout: Duration, call: &McpCall<'_>) -> Reply {
        if call.frozen_destination.is_some_and(|frozen| self.destination.as_deref() != Some(frozen)) {
            return Reply::Gone("it is elsewhere since this run began".to_owned());
        }
        let _sent = Arc::clone(&self.sent);
        let mut reply = tasks::follow(self, task, self.limits(timeout), &call.progress, &call.permit.token).await;
        if let Reply::Result(result) = &mut reply
            && let Ok(live) = self.live().await
        {
            live.outputs.look_at(call.tool, result);
        }
        reply
    }

    /// Redacts the secrets of the entry: the answer is stored, shown and sent to a model.
    fn answer(&self, mut reply: Reply, call: &McpCall<'_>) -> McpAnswer {
        if let Reply::Result(result) = &mut reply {
            content::decode_texts(result);
            self.config.masks.hide_in(result);
        }
        answers::of(&self.identity.name, reply, call.may_repeat)
    }

    fn limits(&self, timeout: Duration) -> Limits {
        Limits { silence: timeout, whole: self.config.max_timeout.unwrap_or(timeout * HARD_LIMIT_FACTOR) }
    }

    /// Waits for a slot. An error is the answer to a call that was not sent.
    async fn turn(&self, timeout: Duration, call: &McpCall<'_>) -> Result<SemaphorePermit<'_>, McpAnswer> {
        // A user may be thinking about the call before, which ends within its own limits.
        let limit = if self.config.asks() { Duration::MAX } else { timeout };
        tokio::select! {
            biased;
            () = call.permit.token.cancelled() => Err(cancelled()),
            slot = tokio::time::timeout(limit, self.slot(&call.progress)) => match slot {
                Ok(slot) => slot.map_err(|_| McpAnswer::failed("the server is shut down".to_owned())),
                Err(_) => Err(self.not_ready(timeout)),
            },
        }
    }

    fn not_ready(&self, timeout: Duration) -> McpAnswer {
        McpAnswer::failed(format!("the server {} was not ready within {timeout:?}; nothing was sent", self.identity.name))
    }

    /// Returns a live connection that still offers the tool, with the frozen definition if there is one.
    async fn prepare(self: &Arc<Self>, call: &McpCall<'_>) -> Result<Arc<Live>, String> {
        let tool = call.tool;
        let unreachable = |reason| format!("the server {} cannot be reached, nothing was sent: {reason}", self.identity.name);
        let live = self.live().await.map_err(unreachable)?;
        match self.refresh(&live).await {
            // The tool may mean something else by now.
            Known::Outdated if !call.may_repeat => {
                return Err(format!(
                    "the tools of the server {} are changing, and its new list did not come within {REFRESH_PATIENCE:?}; nothing was sent",
                    self.identity.name
                ));
            }
            Known::Outdated | Known::Current => {}
        }
        let Some(current) = live.tool(tool).await else {
            return Err(format!("the server {} does not offer the tool {tool} any more", self.identity.name));
        };
        if call.frozen_hash.is_some_and(|frozen| current.definition_hash != frozen) {
            return Err(format!("the tool {tool} has changed since this run began and is not called"));
        }
        if call.frozen_destination.is_some_and(|frozen| current.destination.as_deref() != Some(frozen)) {
            return Err(format!("the server {} is elsewhere since this run began; nothing was sent", self.identity.name));
        }
        Ok(live)
    }

    /// Waits for a slot, and reports the wait as progress.
    async fn slot(&self, progress: &ProgressSender) -> Result<SemaphorePermit<'_>, AcquireError> {
        let began = Instant::now();
        let slot = match self.slots.try_acquire() {
            Ok(slot) => slot,
            Err(_) => {
                let message = Some(format!("waits: {} works on {} other calls", self.identity.name, self.config.concurrency));
                let _ = progress.try_send(Report::Progress(Progress { progress: 0.0, total: None, message }));
                self.slots.acquire().await?
            }
        };
        metrics::histogram!("capstan_mcp_queue_seconds").record(began.elapsed().as_secs_f64());
        Ok(slot)
    }

    /// Replaces a connection on which a call was abandoned, before the next call of a server that may ask questions.
    ///
    /// A question does not name its call, so after an abandoned call it cannot be attributed and would be declined. A connection with
    /// other requests under way is kept. Two connections of one server may disturb each other, so the old one closes first.
    async fn renew(&self) {
        // In the stateless revision a question is the answer to its call.
        if self.stateless.load(Ordering::SeqCst) {
            return;
        }
        let leaves = Arc::clone(&self.leaves).lock_owned().await;
        let left = self.let_go(|live| Arc::strong_count(&self.sent) > 1 || !live.connection.heard.has_strays());
        let Some((live, token)) = left else { return };
        tracing::debug!(
            mcp.server = self.identity.name,
            "MCP server {} is connected to anew: a call was given up",
            self.identity.name
        );
        let closed = self.common.tasks.spawn(async move {
            live.connection.close().await;
            drop((live, token, leaves));
        });
        // The task closes the connection even if this call is cancelled meanwhile.
        let _ = closed.await;
    }
}
