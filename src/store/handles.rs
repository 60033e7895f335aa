//! The store as its users see it: workers, use cases, and the process that owns it.

use std::ops::Deref;
use std::time::Duration;

use async_trait::async_trait;

use super::sql::Backend;
use super::{
    BudgetStore, ConversationStore, ExpiredRowCounts, InputStore, LogStore, QueueStore, RunStore, StoreResult, TitleStore,
    ToolReviewStore,
};

/// Groups the aggregates that workers do not need: accounts, records of owners, files, reports and retention.
///
/// Their methods are in `sql`, as `impl dyn RecordStore + '_`: both databases share them, and no fake store needs them.
#[warn(missing_docs)]
pub trait RecordStore: Backend + ToolReviewStore {}

impl<B: Backend> RecordStore for B {}

/// Operations on the database that all users need, and access to its records.
#[async_trait]
#[warn(missing_docs)]
pub trait CommonStore: Send + Sync {
    /// Checks that the database answers within `statement_timeout` and accepts writes: a Postgres server can be read-only, and the
    /// disk of SQLite can be full.
    async fn ping(&self) -> StoreResult<()>;

    /// Returns whether other processes may write to the same database, so that the log must be polled for their events.
    fn is_shared(&self) -> bool;

    /// Returns whether a pooler keeps notifications of other processes from this one.
    fn is_pooled(&self) -> bool {
        false
    }

    /// Returns whether a limit of running runs per owner applies, so that a run may wait although workers are idle.
    fn caps_owners(&self) -> bool {
        false
    }

    /// Returns the records of the same database. A store handle dereferences to them.
    ///
    /// A fake store has none, and panics.
    fn records(&self) -> &(dyn RecordStore + 'static);
}

/// Groups the aggregates that workers use.
#[warn(missing_docs)]
pub trait WorkerStore: QueueStore + LogStore + InputStore + BudgetStore + ToolReviewStore + TitleStore + CommonStore {}

impl<S> WorkerStore for S where S: QueueStore + LogStore + InputStore + BudgetStore + ToolReviewStore + TitleStore + CommonStore {}

/// Groups the aggregates that use cases use in addition to the records.
#[warn(missing_docs)]
pub trait ServiceStore: ConversationStore + RunStore + InputStore + LogStore + CommonStore {}

impl<S> ServiceStore for S where S: ConversationStore + RunStore + InputStore + LogStore + CommonStore {}

/// The complete store, which a process opens once and cleans periodically.
#[async_trait]
#[warn(missing_docs)]
pub trait Store: WorkerStore + ServiceStore {
    /// Returns the age of the oldest transaction, of any session of this database, that holds a snapshot or a transaction id. Rows
    /// updated since then cannot be vacuumed. `None` if other sessions cannot hold snapshots.
    async fn oldest_snapshot(&self) -> StoreResult<Option<Duration>> {
        Ok(None)
    }

    /// Updates the low-water marks, so that claims do not scan entries that have left the queue. Called about every second. Without
    /// it, claims are correct but slower.
    async fn raise_low_water(&self) -> StoreResult<()> {
        Ok(())
    }

    /// Removes idempotency records that are at least `age_ms` old by the database's clock, and the remaining rows of interrupted
    /// deletions of conversations. Returns the number of records.
    async fn remove_expired_idempotency(&self, age_ms: u64) -> StoreResult<u64>;

    /// Counts the rows that the next cleaning would remove: idempotency and audit records of these ages, and all other expired
    /// rows.
    async fn count_expired(&self, keys_ms: u64, audit_ms: Option<u64>) -> StoreResult<ExpiredRowCounts>;

    /// Writes a mark from which clone detection recognizes an older database. Called periodically. Does nothing if clone detection
    /// needs no mark.
    async fn leave_mark(&self) -> StoreResult<()> {
        Ok(())
    }

    /// Closes all connections.
    async fn close(&self);
}

macro_rules! deref_to_records {
    ($($store:ident),+) => {$(
        impl Deref for dyn $store + '_ {
            type Target = dyn RecordStore;

            fn deref(&self) -> &Self::Target {
                self.records()
            }
        }
    )+};
}

deref_to_records!(WorkerStore, ServiceStore, Store);
