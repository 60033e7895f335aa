//! Calls of tools: a message to an agent, and the wait for its run.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::http::Method;
use axum::http::request::Parts;
use rmcp::RoleServer;
use rmcp::model::{
    CallToolResponse, CallToolResult, ContentBlock, ErrorData, InputResponses, ProgressNotificationParam, ProtocolVersion,
};
use rmcp::service::RequestContext;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior};

use super::questions::{self, AskOutcome};
use crate::domain::access::principal::Principal;
use crate::domain::ids::{ConversationId, RunId};
use crate::domain::run::{OnBusy, Run, RunStatus};
use crate::domain::trace::TraceId;
use crate::http::clients::thread::{OpenQuestions, Thread};
use crate::http::options::App;
use crate::http::wire::idempotency_header::{idempotency_key, request_key};
use crate::http::wire::problem::HttpResult;
use crate::http::wire::request::Trace;
use crate::service::{Access, Content, Cursor, Error, Service, StartRun, StreamItem, StreamStart};

/// Seconds that a call waits for the end of its run. Most clients have a time limit of a minute, so this is shorter.
pub(super) const DEFAULT_WAIT_SECONDS: u64 = 50;
pub(super) const MAX_WAIT_SECONDS: u64 = 300;
/// The events after which a run may need its user.
const QUESTIONS: [&str; 3] = ["run.waiting", "approval.requested", "input.requested"];
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AgentArguments {
    message: String,
    conversation_id: Option<String>,
    wait_seconds: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RunArguments {
    run_id: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WaitArguments {
    run_id: String,
    wait_seconds: Option<u64>,
}

pub(super) struct McpToolCall {
    app: App,
    access: Access,
    trace: TraceId,
    key: HttpResult<Option<String>>,
    context: RequestContext<RoleServer>,
    /// The number of progress notifications so far.
    notified: AtomicU32,
}

impl McpToolCall {
    pub(super) fn new(app: &App, context: RequestContext<RoleServer>) -> Result<Self, ErrorData> {
        let parts = context.extensions.get::<Parts>();
        let known = parts.and_then(|parts| Some((parts.extensions.get::<Access>()?.clone(), idempotency_key(&parts.headers))));
        let (access, key) = known.ok_or_else(|| ErrorData::internal_error("the request has no caller", None))?;
        let trace = parts.and_then(|parts| parts.extensions.get::<Trace>()).map(|Trace(trace)| trace.clone());
        let trace = trace.unwrap_or_else(|| TraceId::generate(app.service.ids().as_ref()));
        Ok(Self { app: app.clone(), access, trace, key, context, notified: AtomicU32::new(0) })
    }

    pub(super) fn service(&self) -> &Service {
        &self.app.service
    }

    pub(super) fn principal(&self) -> &Principal {
        self.access.principal()
    }

    pub(super) fn context(&self) -> &RequestContext<RoleServer> {
        &self.context
    }

    /// Returns the public URL of a path of this server, or only the path if no public URL is set.
    pub(super) fn address(&self, path: &str) -> String {
        let base = self.app.options.public_url.as_deref().unwrap_or_default();
        format!("{}{path}", base.trim_end_matches('/'))
    }

    /// Waits until the client cancels the call or the key is revoked. The run continues in both cases.
    pub(super) async fn wait_until_ended(&self) {
        tokio::select! {
            () = self.context.ct.cancelled() => {}
            () = self.access.wait_until_over() => {}
        }
    }

    /// Returns whether the client's protocol version is 2026-07-28 or later. Its result contains the questions, and the client
    /// repeats its call with the answers.
    pub(super) fn repeats_with_answers(&self) -> bool {
        self.context.protocol_version().is_some_and(|version| version.as_str() >= ProtocolVersion::V_2026_07_28.as_str())
    }

    pub(super) async fn start(&self, agent: &str, input: AgentArguments) -> HttpResult<CallToolResponse> {
        let AgentArguments { message, conversation_id, wait_seconds } = input;
        let identity = json!([agent, message, conversation_id]);
        let key = self.key.clone()?.map(|key| request_key(key, &Method::POST, "/mcp", &identity));
        let (conversation_id, on_busy, stored_choice) = match conversation_id {
            None => (None, OnBusy::Queue, None),
            Some(id) => {
                let id: ConversationId = id.parse().map_err(|_| Error::NotFound("conversation"))?;
                let row = self.service().conversation(self.principal(), &id).await?;
                (Some(id), Thread::on_busy(Some(&row)), Some(row.choice()))
            }
        };
        let request = StartRun {
            create: conversation_id.is_none(),
            stored_choice,
            conversation_id,
            agent: Some(agent.to_owned()),
            on_busy,
            ..StartRun::new(Content::Text(message), "message", self.trace.clone())
        };
        let started = self.service().start_run(self.principal(), request, key).await?;
        self.follow(&started.run.id, wait_seconds).await
    }

    pub(super) async fn get(&self, RunArguments { run_id }: RunArguments) -> HttpResult<CallToolResponse> {
        self.state(&self.run(&parse_id(&run_id)?).await?).await
    }

    async fn state(&self, run: &Run) -> HttpResult<CallToolResponse> {
        Ok(self.result(run, &self.open_questions(run).await?).into())
    }

    pub(super) async fn wait(&self, WaitArguments { run_id, wait_seconds }: WaitArguments) -> HttpResult<CallToolResponse> {
        self.follow(&parse_id(&run_id)?, wait_seconds).await
    }

    pub(super) async fn cancel(&self, RunArguments { run_id }: RunArguments) -> HttpResult<CallToolResponse> {
        let (run, _) = self.service().cancel_run(self.principal(), &parse_id(&run_id)?, None).await?;
        let mut result = self.result(&run, &OpenQuestions::default());
        result.is_error = Some(false);
        Ok(result.into())
    }

    /// Stores the answers to the questions of a run, and waits for it.
    pub(super) async fn continue_answered(
        &self,
        run_id: &str,
        answers: InputResponses,
        wait_seconds: Option<u64>,
    ) -> HttpResult<CallToolResponse> {
        let id = parse_id(run_id)?;
        let run = self.run(&id).await?;
        let open = self.open_questions(&run).await?;
        if questions::store_answers(&self.thread(&run)?, &open, answers).await? {
            return self.follow(&id, wait_seconds).await;
        }
        self.state(&run).await
    }

    /// Waits until the run ends, its questions need an answer that the client cannot give, or the time is over.
    async fn follow(&self, id: &RunId, wait_seconds: Option<u64>) -> HttpResult<CallToolResponse> {
        let limit = Duration::from_secs(wait_seconds.unwrap_or(DEFAULT_WAIT_SECONDS).min(MAX_WAIT_SECONDS));
        let mut deadline = Instant::now() + limit;
        loop {
            let conversation = self.run(id).await?.conversation_id;
            // The run is read after the head of its log, so that no later change is missed.
            let head = self.service().conversation(self.principal(), &conversation).await?.last_seq;
            let run = self.run(id).await?;
            let open = self.open_questions(&run).await?;
            if run.status.is_terminal() {
                return Ok(self.result(&run, &open).into());
            }
            if !open.is_empty() {
                match questions::ask(self, &self.thread(&run)?, &run, &open).await? {
                    AskOutcome::Answered => deadline = Instant::now() + limit,
                    AskOutcome::Required(questions) => return Ok(questions.into()),
                    AskOutcome::Unanswered => return self.state(&run).await,
                }
                continue;
            }
            let changed = self.notifying(&run, self.changed(id, Cursor(head)));
            match tokio::time::timeout_at(deadline, changed).await {
                Ok(changed) => changed?,
                Err(_elapsed) => return self.state(&self.run(id).await?).await,
            }
        }
    }

    /// Waits for an event after `after` that ends the run or may ask a question.
    async fn changed(&self, id: &RunId, after: Cursor) -> HttpResult<()> {
        let start = self.service().stream_run(self.principal(), id, Some(after)).await?;
        let StreamStart::Stream(mut reader) = start else { return Ok(()) };
        while let Some(items) = reader.next().await.map_err(Error::from)? {
            let asks = |item: &StreamItem| matches!(item, StreamItem::Event(event) if QUESTIONS.contains(&event.kind.as_ref()));
            if items.iter().any(|item| item.is_last() || asks(item)) {
                return Ok(());
            }
        }
        Err(Error::Ending.into())
    }

    /// Sends progress notifications, if the client wants them, until the work is done.
    pub(super) async fn notifying<T>(&self, run: &Run, work: impl Future<Output = T>) -> T {
        let Some(token) = self.context.meta.get_progress_token() else { return work.await };
        let message = format!("{} is {}", run.id, run.status.as_str());
        let mut work = std::pin::pin!(work);
        let mut ticks = tokio::time::interval(PROGRESS_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                _ = ticks.tick() => {
                    let number = self.notified.fetch_add(1, Ordering::Relaxed) + 1;
                    let progress = ProgressNotificationParam::new(token.clone(), f64::from(number)).with_message(message.clone());
                    if let Err(error) = self.context.peer.notify_progress(progress).await {
                        tracing::debug!(%error, "a progress notification was not sent");
                    }
                }
            }
        }
    }

    async fn run(&self, id: &RunId) -> HttpResult<Run> {
        Ok(self.service().run(self.principal(), id).await?)
    }

    fn thread(&self, run: &Run) -> HttpResult<Thread> {
        Thread::new(&self.app, self.access.clone(), self.trace.clone(), ("conversation_id", run.conversation_id.as_str()))
    }

    async fn open_questions(&self, run: &Run) -> HttpResult<OpenQuestions> {
        match run.status.is_terminal() {
            true => Ok(OpenQuestions::default()),
            // A question of an MCP server can be open while its call runs, so the run's status may not be `waiting`.
            false => self.thread(run)?.open_questions(&run.id).await,
        }
    }

    /// Returns the answer of a run that has ended, or else its state and the way to continue.
    fn result(&self, run: &Run, open: &OpenQuestions) -> CallToolResult {
        let id = &run.id;
        let text = match run.status {
            RunStatus::Completed => run.output.as_ref().map(|output| output.text.clone()).unwrap_or_default(),
            RunStatus::Failed => {
                let detail = run.error.as_ref().map_or("no reason is known", |error| error.detail.as_str());
                format!("The run {id} has failed: {detail}")
            }
            RunStatus::Cancelled => format!("The run {id} was cancelled."),
            RunStatus::Queued | RunStatus::Processing | RunStatus::ToolLoop | RunStatus::Waiting if !open.is_empty() => {
                questions::described(self, run, open)
            }
            RunStatus::Queued | RunStatus::Processing | RunStatus::ToolLoop | RunStatus::Waiting => {
                format!("The run {id} has not ended yet. Call run_wait with this run_id to get its answer.")
            }
        };
        let is_error = matches!(run.status, RunStatus::Failed | RunStatus::Cancelled);
        let make = if is_error { CallToolResult::error } else { CallToolResult::success };
        let mut result = make(vec![ContentBlock::text(text.clone())]);
        result.structured_content = Some(self.facts(run, open, text));
        result
    }

    fn facts(&self, run: &Run, open: &OpenQuestions, text: String) -> Value {
        let mut facts = json!({ "run_id": run.id, "conversation_id": run.conversation_id, "status": run.status });
        if let Some(reason) = run.reason {
            facts["reason"] = json!(reason);
        }
        if run.status == RunStatus::Completed {
            facts["text"] = json!(text);
        }
        if let Some(output) = run.output.as_ref().and_then(|output| output.structured.as_ref()) {
            facts["output"] = output.clone();
        }
        if let Some(error) = &run.error {
            facts["error"] = json!(error.code);
        }
        if !open.is_empty() {
            facts["pending"] = json!(questions::listed(self, open));
        }
        facts
    }
}

fn parse_id(run_id: &str) -> HttpResult<RunId> {
    run_id.parse().map_err(|_| Error::NotFound("run").into())
}
