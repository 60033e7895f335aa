//! A reservation of a model call in a budget that runs share.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::domain::ids::UserId;
use crate::domain::run::{Fence, ReservationOutcome, ReservationRequest};
use crate::engine::{Input, RunState};
use crate::store::StoreResult;
use crate::worker::WorkerDeps;
use crate::worker::run::attempt::AttemptEnd;

/// How long to wait for a reply that will not be used.
const LIMIT: Duration = Duration::from_secs(3);

/// A pending request for a reservation.
pub struct Reservation {
    reserve: ReservationRequest,
    reply: Pin<Box<dyn Future<Output = StoreResult<Option<ReservationOutcome>>> + Send>>,
}

impl Reservation {
    pub fn ask(deps: &WorkerDeps, fence: Fence, owner: UserId, reserve: ReservationRequest) -> Self {
        let store = Arc::clone(&deps.store);
        Self { reserve, reply: Box::pin(async move { store.reserve(&fence, &owner, &reserve).await }) }
    }

    /// Waits for the reply to the pending request; never completes without one.
    pub async fn answer(under_way: &mut Option<Self>) -> StoreResult<Option<ReservationOutcome>> {
        match under_way {
            Some(Self { reply, .. }) => reply.await,
            None => std::future::pending().await,
        }
    }

    /// Converts the reply to an input of the run.
    pub fn into_input(self, answer: StoreResult<Option<ReservationOutcome>>) -> Result<Input, AttemptEnd> {
        match answer {
            Ok(Some(answer)) => Ok(Input::Reserved(self.reserve, answer)),
            Ok(None) => Err(AttemptEnd::Fenced),
            Err(error) => {
                tracing::error!(error = &error as &dyn std::error::Error, "a model call could not be reserved");
                Err(AttemptEnd::from(&error))
            }
        }
    }

    /// Waits for a reply that will not be used, so that the next write releases the reserved budget.
    pub async fn end(mut self, state: &mut RunState) {
        if let Ok(Ok(Some(answer))) = tokio::time::timeout(LIMIT, self.reply.as_mut()).await {
            state.learn(&Input::Reserved(self.reserve, answer));
        }
    }
}
