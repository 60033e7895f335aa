//! A message becomes durable: with its run and their first events.
//!
//! A message for a new conversation, or for one in which nothing happens, is one statement, and so one round trip: see
//! [`super::accept_alone`]. Any other takes a transaction that locks the head of its conversation.

use super::accept_alone::{Head, OwnerCap};
use super::{PostgresStore, accept_alone};
use crate::store::sql::{Backend as _, PostgresTransaction, Transaction, accept_once, refused_files};
use crate::store::{AcceptRun, Accepted, IdempotencyClaim, Keyed, StoreError, StoreResult};

/// The most races with requests that make or delete the conversation before the message fails as contended.
const MAX_RACES: usize = 5;

impl PostgresStore {
    pub(super) async fn accept(&self, accept: &AcceptRun, key: Option<&IdempotencyClaim>) -> StoreResult<Keyed<Accepted>> {
        let mut last = None;
        // Whether another conversation may be made is known once the conversation was looked for.
        let mut may_be_made = accept.create_with_title.is_some() && accept.max_conversations == 0;
        for _ in 0..MAX_RACES {
            if may_be_made {
                match self.accept_alone(Head::New, accept, key).await {
                    Ok(Some(accepted)) => return Ok(Keyed::Fresh(accepted)),
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

    /// Accepts into a conversation that exists. `None` if it has just gone or not yet come and another try will tell.
    async fn accept_into(&self, accept: &AcceptRun, key: Option<&IdempotencyClaim>) -> StoreResult<Option<Keyed<Accepted>>> {
        match self.accept_alone(Head::Idle, accept, key).await? {
            Some(accepted) => Ok(Some(Keyed::Fresh(accepted))),
            None => {
                // The transaction needs a connection of the pool. The cache gives its own back only if the pool has none idle: the pool
                // tests what comes back.
                if self.api.pool.num_idle() == 0 {
                    self.accept.release();
                }
                accept_once(self.database(), accept, key).await
            }
        }
    }

    /// Accepts in one statement, if that can be done. A message with files takes a transaction, because only what is stored tells
    /// whether it has them.
    async fn accept_alone(&self, head: Head, accept: &AcceptRun, key: Option<&IdempotencyClaim>) -> StoreResult<Option<Accepted>> {
        let cap = OwnerCap { most: self.owner_cap, since: self.low_water.marks().leases };
        if accept.files().is_empty() {
            let mut cached = self.accept.take().await?;
            let accepted = cached.ask(async |connection| accept_alone::write(connection, head, accept, cap, key).await).await?;
            self.accept.keep(cached);
            return Ok(accepted);
        }
        let mut tx = PostgresTransaction::begin(&self.api).await?;
        let accepted = tx.work(async |connection| accept_alone::write(connection, head, accept, cap, key).await).await?;
        let mut tx = Transaction::Postgres(tx);
        if accepted.is_some()
            && let Some(refused) = refused_files(&mut tx, accept).await?
        {
            tx.rollback().await?;
            return Ok(Some(refused));
        }
        tx.commit().await?;
        Ok(accepted)
    }
}
