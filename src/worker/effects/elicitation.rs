//! Elicitation during a call: the question is stored, asked, and closed before the call's outcome is stored.
//!
//! The call stays under way, so its run keeps its lease. If the process crashes, the next claim closes the question, and the replay
//! class decides whether the call is repeated.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::domain::event::EventBody;
use crate::domain::ids::{CallId, InputId, UserId};
use crate::domain::run::{Change, Fence, InputAnswer, InputKind, InputRequest, InputState, Question};
use crate::live::{Subscription, Tail};
use crate::store::{StoreResult, retry_while_unavailable};
use crate::tools::ElicitationRequest;
use crate::worker::WorkerDeps;
use crate::worker::log_writer::RunLog;

/// The interval of reads of an open question without a wake-up.
const POLL: Duration = Duration::from_secs(5);

/// How long to wait for an unavailable database.
const STORE_LIMIT: Duration = Duration::from_secs(60);

/// Asks the user the questions of one call.
pub struct QuestionSender {
    pub deps: WorkerDeps,
    /// The current log of the run, which changes when the run is reloaded.
    pub log: watch::Receiver<RunLog>,
    pub fence: Fence,
    pub owner: UserId,
    /// The tool of the call.
    pub tool: String,
    /// Milliseconds until the question expires; 0 for never.
    pub expires_ms: u64,
}

impl QuestionSender {
    /// Asks the user, and passes the answer to the server if it arrives before the question expires or the call ends.
    pub async fn ask(&self, call: &CallId, request: ElicitationRequest) {
        let ElicitationRequest { text, elicitation, mut answer } = request;
        let subscription = self.deps.hub.subscribe(&self.fence.conversation_id);
        // Question and answer use one log, because a reload of the run closes the question.
        let log = self.log.borrow().clone();
        let question = Question::of_server(text, &self.tool, elicitation);
        let id = InputId::generate(self.deps.ids.as_ref());
        let request = InputRequest::about(call, id, self.fence.ids(), InputKind::Elicitation, question, self.expires_ms);
        let InputRequest { id, kind, call_id, question, .. } = request.clone();
        let requested = EventBody::InputRequested { id: id.clone(), kind, call_id, question };
        // A question without a row is not asked: the server learns that there is no answer.
        if log.commit(&[requested], vec![Change::RequestInput(request)]).await.is_err() {
            return;
        }
        let expires = Instant::now() + Duration::from_millis(self.expires_ms);
        let end_state = tokio::select! {
            biased;
            () = log.broken().cancelled() => return,
            stored_answer = self.answered(&id, &subscription) => return store_and_deliver(&log, id, stored_answer, answer).await,
            () = answer.closed() => InputState::Cancelled,
            () = tokio::time::sleep_until(expires), if self.expires_ms > 0 => InputState::Expired,
        };
        let event = EventBody::InputResolved { id: id.clone(), state: end_state, answer: None, by: None };
        let closed = Change::CloseInput { id: id.clone(), state: end_state };
        if end_state == InputState::Cancelled {
            let _ = log.commit(&[event], vec![closed]).await;
            return;
        }
        // The question may be answered at this moment, and a confirmed answer must not be lost. The question is closed before the
        // second read, so that the store accepts no answer after that read.
        if log.commit(&[], vec![closed]).await.is_err() {
            return;
        }
        let stored_answer = tokio::select! {
            biased;
            () = log.broken().cancelled() => return,
            stored_answer = self.stored_answer(&id) => stored_answer,
        };
        match stored_answer {
            Ok(Some(stored_answer)) => store_and_deliver(&log, id, stored_answer, answer).await,
            Ok(None) => {
                let _ = log.commit(&[event], Vec::new()).await;
            }
            Err(error) => {
                tracing::error!(error = &error as &dyn std::error::Error, "the answer to a question could not be read");
            }
        }
    }

    async fn answered(&self, id: &InputId, subscription: &Subscription) -> InputAnswer {
        loop {
            if let Some(answer) = self.poll_answer(id).await {
                return answer;
            }
            let resolved = async {
                loop {
                    match subscription.next().await {
                        Tail::Events(events) if events.iter().all(|event| event.kind != "input.resolved") => {}
                        Tail::Events(_) | Tail::Reread => return,
                        Tail::Deleted | Tail::Closed => std::future::pending().await,
                    }
                }
            };
            // A wake-up can be lost; the rows cannot.
            let _ = tokio::time::timeout(POLL, resolved).await;
        }
    }

    async fn poll_answer(&self, id: &InputId) -> Option<InputAnswer> {
        let found = self.deps.store.input_request(&self.owner, id).await.ok().flatten()?;
        found.request.answer.filter(|_| found.request.state == InputState::Answered)
    }

    /// Returns the answer that was stored before the question was closed.
    async fn stored_answer(&self, id: &InputId) -> StoreResult<Option<InputAnswer>> {
        let found = retry_while_unavailable(STORE_LIMIT, || self.deps.store.input_request(&self.owner, id)).await?;
        Ok(found.and_then(|found| found.request.answer))
    }
}

async fn store_and_deliver(
    log: &RunLog,
    id: InputId,
    stored_answer: InputAnswer,
    answer: tokio::sync::oneshot::Sender<InputAnswer>,
) {
    // The answer is marked as applied before the server gets it, so that it is never used twice.
    let applied = Change::CloseInput { id, state: InputState::Applied };
    if log.commit(&[], vec![applied]).await.is_ok() {
        let _ = answer.send(stored_answer);
    }
}
