//! Accepts a message: stores it with its run and their first events.
//!
//! A message for a new or idle conversation takes one statement, and so one round trip: see [`super::accept_idle`]. Any other
//! message, and one with a transcript, takes a transaction that locks the head of its conversation.

use super::accept_idle::{Head, OwnerCap};
use super::{PostgresStore, accept_idle};
use crate::store::sql::{Backend as _, PostgresTransaction, Transaction, accept_once, refused_files};
use crate::store::{AcceptOutcome, AcceptRun, IdempotencyKey, IdempotentOutcome, IdempotentResult, StoreError, StoreResult};

/// Limit of lost races with requests that create or delete the conversation. Then the message fails as contended.
const MAX_RACES: usize = 5;

impl PostgresStore {
    pub(super) async fn accept(&self, accept: &AcceptRun, key: Option<&IdempotencyKey>) -> IdempotentResult<AcceptOutcome> {
        if accept.transcript.is_some() {
            return match accept_once(self.database(), accept, key).await? {
                Some(outcome) => Ok(outcome),
                None => Err(StoreError::Contended(sqlx::Error::RowNotFound)),
            };
        }
        let mut last = None;
        // If the owner's conversations are limited, the conversation is first read by a transaction, which checks the limit.
        let mut may_be_made = accept.create_with_title.is_some() && accept.max_conversations == 0;
        for _ in 0..MAX_RACES {
            if may_be_made {
                match self.accept_idle(Head::New, accept, key).await {
                    Ok(Some(accepted)) => return Ok(IdempotentOutcome::Fresh(accepted)),
                    Ok(None) => {}
                    Err(error) if error.is_unique_violation() => last = Some(error),
                    Err(error) => return Err(error),
                }
            }
            match self.accept_into(accept, key).await {
                Ok(Some(outcome)) => return Ok(outcome),
                Ok(None) => may_be_made = accept.create_with_title.is_some(),
                Err(error) if error.is_unique_violation() => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(match last {
            Some(StoreError::Statement(error)) => StoreError::Contended(error),
            Some(_) | None => StoreError::Contended(sqlx::Error::RowNotFound),
        })
    }

    /// Accepts into an existing conversation. `None` if it was just deleted or is not yet visible, so that the caller tries again.
    async fn accept_into(
        &self,
        accept: &AcceptRun,
        key: Option<&IdempotencyKey>,
    ) -> StoreResult<Option<IdempotentOutcome<AcceptOutcome>>> {
        match self.accept_idle(Head::Idle, accept, key).await? {
            Some(accepted) => Ok(Some(IdempotentOutcome::Fresh(accepted))),
            None => {
                // The transaction needs a connection of the pool. The cached connection is returned only if the pool has no idle
                // one, because the pool tests every returned connection.
                if self.api.pool.num_idle() == 0 {
                    self.accept.release();
                }
                accept_once(self.database(), accept, key).await
            }
        }
    }

    /// Accepts in one statement, if possible. A message with files needs a transaction, because the statement cannot check its
    /// files.
    async fn accept_idle(
        &self,
        head: Head,
        accept: &AcceptRun,
        key: Option<&IdempotencyKey>,
    ) -> StoreResult<Option<AcceptOutcome>> {
        let cap = OwnerCap { most: self.owner_cap, since: self.low_water.marks().leases };
        if accept.files().is_empty() {
            let mut cached = self.accept.take().await?;
            let accepted = cached.ask(async |connection| accept_idle::write(connection, head, accept, cap, key).await).await?;
            self.accept.keep(cached);
            return Ok(accepted);
        }
        let mut tx = PostgresTransaction::begin(&self.api).await?;
        let accepted = tx.work(async |connection| accept_idle::write(connection, head, accept, cap, key).await).await?;
        let mut tx = Transaction::Postgres(tx);
        let refused = match accepted {
            Some(_) => refused_files(&mut tx, accept).await,
            None => Ok(None),
        };
        let refused = tx.end(refused, Option::is_none).await?;
        Ok(refused.or(accepted))
    }
}
