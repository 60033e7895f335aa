//! Titles that models make, once for a conversation: after its first turn with an answer, beside everything else.
//!
//! A run is over before its conversation gets a title, and holds nothing for it. What goes wrong here leaves the first words, and so does
//! the end of the process.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use super::one_answer::one_answer;
use super::{WorkerDeps, WorkerOptions};
use crate::domain::agent::TitlePolicy;
use crate::domain::ids::{ConversationId, RunId, UserId};
use crate::domain::model::{ModelError, ModelErrorKind, ModelRequest, Usage};
use crate::engine::{RunState, cleaned_title, title_request};
use crate::store::{StoreResult, TitleMade};

/// Titles that are asked for at a time. While so many are, conversations wait for their next turn.
const AT_A_TIME: usize = 16;

/// Asks for titles.
#[derive(Clone)]
pub struct Titles {
    tasks: TaskTracker,
    room: Arc<Semaphore>,
    stop: CancellationToken,
}

impl Default for Titles {
    fn default() -> Self {
        Self { tasks: TaskTracker::new(), room: Arc::new(Semaphore::new(AT_A_TIME)), stop: CancellationToken::new() }
    }
}

impl Titles {
    /// Has a title made for the conversation of a run that has completed, if its agent wants one and it has none of its own. Returns at
    /// once.
    pub fn begin(&self, deps: &WorkerDeps, options: &WorkerOptions, run: &RunState) {
        if run.record.profile.title != TitlePolicy::Model || self.stop.is_cancelled() {
            return;
        }
        let Some(request) = title_request(run, deps.ids.as_ref()) else { return };
        let Ok(place) = Arc::clone(&self.room).try_acquire_owned() else { return };
        let fence = &run.record.fence;
        let (owner, conversation) = (run.record.owner.clone(), fence.conversation_id.clone());
        let (run, is_budgeted) = (fence.run_id.clone(), run.record.profile.budget.is_shared());
        let wanted = Wanted { owner, conversation, run, is_budgeted, request, patience: options.title_patience };
        let (deps, stop) = (deps.clone(), self.stop.clone());
        let task = async move {
            let _place = place;
            if let Err(error) = wanted.make(&deps, &stop).await {
                tracing::warn!(error = &error as &dyn std::error::Error, "a conversation keeps its first words as its title");
            }
        };
        self.tasks.spawn(task.in_current_span());
    }

    /// Gives up what is asked for, and waits until nothing is written any more.
    pub async fn end(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

struct Wanted {
    owner: UserId,
    conversation: ConversationId,
    run: RunId,
    /// Whether what it takes counts in a budget that others spend from, too.
    is_budgeted: bool,
    request: ModelRequest,
    /// How long the model may take.
    patience: Duration,
}

impl Wanted {
    async fn make(self, deps: &WorkerDeps, stop: &CancellationToken) -> StoreResult<()> {
        // From here on nobody asks for this conversation again, whatever becomes of it.
        let Some(was) = deps.store.claim_title(&self.owner, &self.conversation).await? else { return Ok(()) };
        let Self { owner, conversation, run, is_budgeted, request, patience } = self;
        let budget_of = is_budgeted.then(|| run.clone());
        let model = request.model.clone();
        let over = async {
            tokio::select! {
                biased;
                () = stop.cancelled() => ModelError::new(ModelErrorKind::Unavailable, "the process ends"),
                () = tokio::time::sleep(patience) => ModelError::new(ModelErrorKind::Timeout, "the title did not come in time"),
            }
        };
        let (finished, usage) = one_answer(deps, request, (run, conversation.clone()), over).await;
        let title = match finished {
            Ok((message, _)) => cleaned_title(&message.text()),
            Err(error) => {
                tracing::warn!(code = error.kind.code(), error = %error.message, "no title was made; the first words stay");
                None
            }
        };
        count(title.is_some(), &usage);
        let usage = (usage.model_calls > 0).then_some(usage);
        let made =
            TitleMade { owner, conversation: conversation.clone(), was, title, model, usage, budget_of, now: deps.clock.now() };
        let events = deps.store.finish_title(made).await?;
        deps.hub.publish(&conversation, &events.into_iter().map(Arc::new).collect::<Vec<_>>());
        Ok(())
    }
}

fn count(is_made: bool, usage: &Usage) {
    metrics::counter!("capstan_titles_total", "outcome" => if is_made { "made" } else { "failed" }).increment(1);
    metrics::counter!("capstan_tokens_total", "direction" => "input").increment(usage.input_tokens);
    metrics::counter!("capstan_tokens_total", "direction" => "output").increment(usage.output_tokens);
}
