//! Elicitation in the middle of a call: the question is stored, put to the user, and closed before the call's outcome is stored.
//!
//! The call stays under way, so its run keeps its lease. If the process dies, the next claim closes the question and judges the
//! call by its class.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::domain::event::EventBody;
use crate::domain::ids::{CallId, InputId, UserId};
use crate::domain::run::change::Change;
use crate::domain::run::input::{InputAnswer, InputKind, InputRequest, InputState, Question};
use crate::domain::run::record::Fence;
use crate::live::{Subscription, Tail};
use crate::store::{StoreResult, patiently};
use crate::tools::Asks;
use crate::worker::WorkerDeps;
use crate::worker::log_writer::RunLog;

/// How often an open question is read without a wake-up.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// How long a database that is away is waited for.
const STORE_PATIENCE: Duration = Duration::from_secs(60);

/// Puts the questions of one call to its user.
pub struct Asker {
    pub deps: WorkerDeps,
    /// The current log of the run, which changes when the run is loaded again.
    pub log: watch::Receiver<RunLog>,
    pub fence: Fence,
    pub owner: UserId,
    /// The tool of the call.
    pub tool: String,
    /// Milliseconds until the question expires; 0 for never.
    pub expires_ms: u64,
}

impl Asker {
    /// Asks, and passes on the answer if it comes before the question expires or the call ends.
    pub async fn ask(&self, call: &CallId, asks: Asks) {
        let Asks { text, elicitation, mut answer } = asks;
        let heard = self.deps.hub.subscribe(&self.fence.conversation_id);
        // Question and answer use one log: a reload of the run closes the question.
        let log = self.log.borrow().clone();
        let question = Question::of_server(text, &self.tool, elicitation);
        let id = InputId::generate(self.deps.ids.as_ref());
        let request = InputRequest::about(call, id, self.fence.ids(), InputKind::Elicitation, question, self.expires_ms);
        let InputRequest { id, kind, call_id, question, .. } = request.clone();
        let asked = EventBody::InputRequested { id: id.clone(), kind, call_id, question };
        // Without its row there is no question, and the server is told that there is no answer.
        if log.commit(&[asked], vec![Change::AskInput(request)]).await.is_err() {
            return;
        }
        let expires = Instant::now() + Duration::from_millis(self.expires_ms);
        let why = tokio::select! {
            biased;
            () = log.broken().cancelled() => return,
            given = self.answered(&id, &heard) => return hand_on(&log, id, given, answer).await,
            () = answer.closed() => InputState::Cancelled,
            () = tokio::time::sleep_until(expires), if self.expires_ms > 0 => InputState::Expired,
        };
        let told = EventBody::InputResolved { id: id.clone(), state: why, answer: None, by: None };
        let closed = Change::InputClosed { id: id.clone(), state: why };
        if why == InputState::Cancelled {
            let _ = log.commit(&[told], vec![closed]).await;
            return;
        }
        // The question may be answered at this moment, and a confirmed answer must not be lost. Closed before the second read, so
        // that the store accepts no answer after it.
        if log.commit(&[], vec![closed]).await.is_err() {
            return;
        }
        let given = tokio::select! {
            biased;
            () = log.broken().cancelled() => return,
            given = self.given(&id) => given,
        };
        match given {
            Ok(Some(given)) => hand_on(&log, id, given, answer).await,
            Ok(None) => {
                let _ = log.commit(&[told], Vec::new()).await;
            }
            Err(error) => {
                tracing::error!(error = &error as &dyn std::error::Error, "whether a question was answered could not be read");
            }
        }
    }

    async fn answered(&self, id: &InputId, heard: &Subscription) -> InputAnswer {
        loop {
            if let Some(answer) = self.look(id).await {
                return answer;
            }
            let resolved = async {
                loop {
                    match heard.next().await {
                        Tail::Events(events) if events.iter().all(|event| event.kind != "input.resolved") => {}
                        Tail::Events(_) | Tail::Reread => return,
                        Tail::Deleted | Tail::Closed => std::future::pending().await,
                    }
                }
            };
            // A wake-up can be lost; the rows cannot.
            let _ = tokio::time::timeout(LOOK_AGAIN, resolved).await;
        }
    }

    async fn look(&self, id: &InputId) -> Option<InputAnswer> {
        let found = self.deps.store.input_request(&self.owner, id).await.ok().flatten()?;
        found.request.answer.filter(|_| found.request.state == InputState::Answered)
    }

    /// Reads the answer that was stored before the question was closed.
    async fn given(&self, id: &InputId) -> StoreResult<Option<InputAnswer>> {
        let found = patiently(STORE_PATIENCE, || self.deps.store.input_request(&self.owner, id)).await?;
        Ok(found.and_then(|found| found.request.answer))
    }
}

async fn hand_on(log: &RunLog, id: InputId, given: InputAnswer, answer: tokio::sync::oneshot::Sender<InputAnswer>) {
    // Stored first: an answer that is passed on is used up.
    let applied = Change::InputClosed { id, state: InputState::Applied };
    if log.commit(&[], vec![applied]).await.is_ok() {
        let _ = answer.send(given);
    }
}
