//! What a server asks in the middle of a call: written down, put to the user, and closed before the call's outcome is written.
//!
//! The call stays under way, so its run keeps its lease. Should the process die, the answer has nobody to go to any more: whoever
//! takes the run up closes the question and judges the call by its class.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::log_writer::RunLog;
use crate::domain::change::Change;
use crate::domain::event::EventBody;
use crate::domain::ids::{CallId, InputId, UserId};
use crate::domain::input::{InputAnswer, InputKind, InputRequest, InputState, Question};
use crate::domain::record::Fence;
use crate::live::{Hub, Subscription, Tail};
use crate::store::{StoreResult, WorkerStore, patiently};
use crate::support::ids::SharedIds;
use crate::tools::Asks;

/// How soon a question is looked at again if nobody says that something happened.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// How long a database that is away is waited for.
const STORE_PATIENCE: Duration = Duration::from_secs(60);

/// Puts the questions of one call to its user.
pub struct Asker {
    /// Where questions and answers are kept.
    pub store: Arc<dyn WorkerStore>,
    /// Where answers are heard of.
    pub hub: Arc<Hub>,
    /// Makes their ids.
    pub ids: SharedIds,
    /// The log of the run, as it is now.
    pub log: watch::Receiver<RunLog>,
    /// The run.
    pub fence: Fence,
    /// Who is asked.
    pub owner: UserId,
    /// The tool that is being called, and what with.
    pub tool: String,
    /// How long there may be no answer; 0 for any time.
    pub expires_ms: u64,
}

impl Asker {
    /// Asks, and hands on the answer if there is one before its time is over or the call is.
    pub async fn ask(&self, call: &CallId, asks: Asks) {
        let Asks { text, elicitation, mut answer } = asks;
        let heard = self.hub.subscribe(&self.fence.conversation_id);
        // What is asked is asked in one log: whoever loads the run again closes the question.
        let log = self.log.borrow().clone();
        let request = InputRequest {
            id: InputId::generate(self.ids.as_ref()),
            conversation_id: self.fence.conversation_id.clone(),
            run_id: self.fence.run_id.clone(),
            call_id: Some(call.clone()),
            kind: InputKind::Elicitation,
            question: Question::of_server(text, &self.tool, elicitation),
            state: InputState::Pending,
            answer: None,
            expires_in_ms: Some(self.expires_ms).filter(|limit| *limit > 0),
        };
        let InputRequest { id, kind, call_id, question, .. } = request.clone();
        let asked = EventBody::InputRequested { id: id.clone(), kind, call_id, question };
        // Without its row there is no question, and its server hears that nobody answers.
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
        // Nobody waits for an answer any more.
        if why == InputState::Cancelled {
            let _ = log.commit(&[told], vec![closed]).await;
            return;
        }
        // It may be answered in this moment, and whoever was told so shall not have answered in vain. Closed first, so that the store
        // takes no answer after the look.
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
            // Nobody is told what nobody knows.
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
        let found = self.store.input_request(&self.owner, id).await.ok().flatten()?;
        found.request.answer.filter(|_| found.request.state == InputState::Answered)
    }

    /// The answer that was taken before the question was closed.
    async fn given(&self, id: &InputId) -> StoreResult<Option<InputAnswer>> {
        let found = patiently(STORE_PATIENCE, || self.store.input_request(&self.owner, id)).await?;
        Ok(found.and_then(|found| found.request.answer))
    }
}

async fn hand_on(log: &RunLog, id: InputId, given: InputAnswer, answer: tokio::sync::oneshot::Sender<InputAnswer>) {
    // Written first: what is handed on is used up.
    let applied = Change::InputClosed { id, state: InputState::Applied };
    if log.commit(&[], vec![applied]).await.is_ok() {
        let _ = answer.send(given);
    }
}
