//! The calls of one server: each waits for its turn and for a live connection that still offers what was promised, and is sent.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rmcp::model::{CallToolRequestParams, JsonObject};
use serde_json::Value;
use tokio::sync::{AcquireError, SemaphorePermit};
use tokio::time::Instant;

use super::Server;
use crate::domain::handle::Handle;
use crate::tools::mcp::answers::{self, cancelled, failed};
use crate::tools::mcp::content;
use crate::tools::mcp::live::{Known, Live, REFRESH_PATIENCE};
use crate::tools::mcp::reply::{Limits, Reply, Task};
use crate::tools::mcp::servers::{McpAnswer, McpCall};
use crate::tools::mcp::tasks;
use crate::tools::{Progress, ProgressSender, Report};

/// Progress extends the time limit of a call, up to this many times the limit unless the entry of the server says otherwise.
const HARD_LIMIT_FACTOR: u32 = 10;

impl Server {
    /// Carries out one call.
    pub async fn call(self: &Arc<Self>, call: McpCall<'_>) -> McpAnswer {
        let _work = Arc::clone(&self.work);
        let timeout = self.config.timeout.unwrap_or(call.timeout);
        if let Some(task) = call.handle.and_then(Handle::task) {
            let reply = self.take_up(Task::known(task), timeout, &call).await;
            return self.answer(reply, &call);
        }
        let Value::Object(arguments) = &call.arguments else { return failed("the arguments are not an object".to_owned()) };
        let mut until = Instant::now() + timeout;
        let slot = match self.turn(until, timeout, &call).await {
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
            // The connection had died unnoticed. What never arrived may be sent again, whatever the tool does: once.
            Ok(Reply::NotSent(_) | Reply::NoSession(_)) => self.send(arguments, timeout, until, &call).await,
            sent => sent,
        };
        drop(slot);
        match reply {
            Ok(reply) => self.answer(reply, &call),
            Err(unsent) => unsent,
        }
    }

    /// Sends a call if the server is ready for it before `until`; an error is the answer to a call that was not sent.
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
            Ok(Err(reason)) => return Err(failed(reason)),
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

    /// Goes on with a call that its server was working on when another process, or this one earlier, had to leave it.
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

    /// What is given to whoever made the call, who stores it, shows it and gives it to a model: without our own secrets.
    fn answer(&self, mut reply: Reply, call: &McpCall<'_>) -> McpAnswer {
        if let Reply::Result(result) = &mut reply {
            content::decode_texts(result);
            self.config.masks.hide_in(result);
        }
        answers::of(&self.name, reply, call.may_repeat)
    }

    fn limits(&self, timeout: Duration) -> Limits {
        Limits { silence: timeout, whole: self.config.max_timeout.unwrap_or(timeout * HARD_LIMIT_FACTOR) }
    }

    /// A place among the calls that it works on; an error is the answer to a call that was not sent.
    async fn turn(&self, until: Instant, timeout: Duration, call: &McpCall<'_>) -> Result<SemaphorePermit<'_>, McpAnswer> {
        let slot = async {
            match self.config.asks() {
                // A person may think about the call before it, which is over within its own limits.
                true => Ok(self.slot(&call.progress).await),
                false => tokio::time::timeout_at(until, self.slot(&call.progress)).await,
            }
        };
        tokio::select! {
            biased;
            () = call.permit.token.cancelled() => Err(cancelled()),
            slot = slot => match slot {
                Ok(slot) => slot.map_err(|_| failed("the server is shut down".to_owned())),
                Err(_) => Err(self.not_ready(timeout)),
            },
        }
    }

    fn not_ready(&self, timeout: Duration) -> McpAnswer {
        failed(format!("the server {} was not ready within {timeout:?}; nothing was sent", self.name))
    }

    /// A live connection that still offers the tool, with the definition that was frozen if one was.
    async fn prepare(self: &Arc<Self>, call: &McpCall<'_>) -> Result<Arc<Live>, String> {
        let tool = call.tool;
        let unreachable = |reason| format!("the server {} cannot be reached, nothing was sent: {reason}", self.name);
        let live = self.live().await.map_err(unreachable)?;
        match self.refresh(&live).await {
            // It may mean something else by now.
            Known::Outdated if !call.may_repeat => {
                return Err(format!(
                    "the tools of the server {} are changing, and its new list did not come within {REFRESH_PATIENCE:?}; nothing was sent",
                    self.name
                ));
            }
            Known::Outdated | Known::Current => {}
        }
        let Some(current) = live.tool(tool).await else {
            return Err(format!("the server {} does not offer the tool {tool} any more", self.name));
        };
        if call.frozen_hash.is_some_and(|frozen| current.definition_hash != frozen) {
            return Err(format!("the tool {tool} has changed since this run began and is not called"));
        }
        if call.frozen_destination.is_some_and(|frozen| current.destination.as_deref() != Some(frozen)) {
            return Err(format!("the server {} is elsewhere since this run began; nothing was sent", self.name));
        }
        Ok(live)
    }

    /// Whoever has to wait for a place can see it.
    async fn slot(&self, progress: &ProgressSender) -> Result<SemaphorePermit<'_>, AcquireError> {
        let began = Instant::now();
        let slot = match self.slots.try_acquire() {
            Ok(slot) => slot,
            Err(_) => {
                let message = Some(format!("waits: {} works on {} other calls", self.name, self.config.concurrency));
                let _ = progress.try_send(Report::Progress(Progress { progress: 0.0, total: None, message }));
                self.slots.acquire().await?
            }
        };
        metrics::histogram!("capstan_mcp_queue_seconds").record(began.elapsed().as_secs_f64());
        Ok(slot)
    }

    /// Ends a connection on which a server that may ask would be told that nobody answers, before the next call: after one that was given up
    /// nobody knows whose a question is that it puts there. Not while something else is under way there, which goes on. Two of one
    /// server may be in each other's way, so the old one is gone before the next one is made.
    async fn renew(&self) {
        // Without a session questions are answers to their calls.
        if self.stateless.load(Ordering::SeqCst) {
            return;
        }
        let leaves = Arc::clone(&self.leaves).lock_owned().await;
        let left = self.let_go(|live| Arc::strong_count(&self.sent) > 1 || !live.connection.heard().has_strays());
        let Some((live, token)) = left else { return };
        tracing::debug!(mcp.server = self.name, "MCP server {} is connected to anew: a call was given up", self.name);
        let closed = self.common.tasks.spawn(async move {
            live.connection.close().await;
            drop((live, token, leaves));
        });
        // It is closed, too, if nobody waits for that.
        let _ = closed.await;
    }
}
