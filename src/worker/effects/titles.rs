//! Titles from a model. Each conversation gets one title, after its first run with an answer and outside the run. After a failure,
//! or at the end of the process, the first words of the conversation stay its title.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use crate::domain::agent::TitlePolicy;
use crate::domain::ids::{ConversationId, RunId, UserId};
use crate::domain::model::{ModelError, ModelErrorKind, ModelRequest};
use crate::domain::run::FinishReason;
use crate::engine::{RunState, cleaned_title, title_request};
use crate::store::{GeneratedTitle, StoreResult};
use crate::support::trace;
use crate::worker::effects::single_answer::one_answer;
use crate::worker::run::run_metrics;
use crate::worker::{WorkerDeps, WorkerOptions};

/// The maximum number of concurrent requests for titles. Further conversations wait for the end of their next run.
const MAX_CONCURRENT: usize = 16;

#[derive(Clone)]
pub struct Titles {
    tasks: TaskTracker,
    room: Arc<Semaphore>,
    stop: CancellationToken,
}

impl Default for Titles {
    fn default() -> Self {
        Self { tasks: TaskTracker::new(), room: Arc::new(Semaphore::new(MAX_CONCURRENT)), stop: CancellationToken::new() }
    }
}

impl Titles {
    /// Starts making a title for the conversation of a completed run, if its agent wants one and it has none. Does not wait.
    pub fn begin(&self, deps: &WorkerDeps, options: &WorkerOptions, run: &RunState) {
        if run.record.profile.title != TitlePolicy::Model || self.stop.is_cancelled() {
            return;
        }
        let Some(request) = title_request(run, deps.ids.as_ref()) else { return };
        let Ok(permit) = Arc::clone(&self.room).try_acquire_owned() else { return };
        let fence = &run.record.fence;
        let (owner, conversation) = (run.record.owner.clone(), fence.conversation_id.clone());
        let (run, is_budgeted) = (fence.run_id.clone(), run.record.profile.budget.is_shared());
        let job = TitleJob { owner, conversation, run, is_budgeted, request, time_limit: options.title_timeout };
        let (deps, stop) = (deps.clone(), self.stop.clone());
        let task = async move {
            let _permit = permit;
            if let Err(error) = job.make(&deps, &stop).await {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "no title was made for a conversation; its first words stay"
                );
            }
        };
        self.tasks.spawn(trace::within(trace::traceparent(), task).in_current_span());
    }

    /// Cancels pending titles, and waits until all writes have ended.
    pub async fn end(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

struct TitleJob {
    owner: UserId,
    conversation: ConversationId,
    run: RunId,
    /// Whether the usage counts in a shared budget.
    is_budgeted: bool,
    request: ModelRequest,
    time_limit: Duration,
}

impl TitleJob {
    async fn make(self, deps: &WorkerDeps, stop: &CancellationToken) -> StoreResult<()> {
        // After this claim, no other title is made for the conversation.
        let Some(was) = deps.store.claim_title(&self.owner, &self.conversation).await? else { return Ok(()) };
        let Self { owner, conversation, run, is_budgeted, request, time_limit } = self;
        let budget_of = is_budgeted.then(|| run.clone());
        let model = request.model.clone();
        let over = async {
            tokio::select! {
                biased;
                () = stop.cancelled() => ModelError::new(ModelErrorKind::Unavailable, "the process ends"),
                () = tokio::time::sleep(time_limit) => ModelError::new(ModelErrorKind::Timeout, "the title did not arrive in time"),
            }
        };
        let (finished, usage) = one_answer(deps, request, (run, conversation.clone()), over).await;
        let title = match finished {
            Ok((message, _)) if message.finish_reason == Some(FinishReason::Length) => {
                tracing::warn!("no title was made, because the model reached its output limit; the first words stay");
                None
            }
            Ok((message, _)) => cleaned_title(&message.text()),
            Err(error) => {
                tracing::warn!(code = error.kind.code(), error = %error.message, "no title was made; the first words stay");
                None
            }
        };
        let outcome = if title.is_some() { "made" } else { "failed" };
        metrics::counter!("capstan_titles_total", "outcome" => outcome).increment(1);
        run_metrics::count_tokens(&usage, &run_metrics::provider_label(&model));
        let usage = (usage.model_calls > 0).then_some(usage);
        let generated = GeneratedTitle {
            owner,
            conversation: conversation.clone(),
            was,
            title,
            model,
            usage,
            budget_of,
            now: deps.clock.now(),
        };
        let events = deps.store.finish_title(generated).await?;
        deps.hub.publish(&conversation, &events.into_iter().map(Arc::new).collect::<Vec<_>>());
        Ok(())
    }
}
