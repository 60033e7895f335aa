//! The store as each of its users holds it: workers, use cases, and the process that owns it.
//!
//! Owns which aggregates each user sees. Must not know any statement, nor what an aggregate does.

use std::ops::Deref;
use std::time::Duration;

use async_trait::async_trait;

use super::{
    AgentStore, AuditStore, BudgetStore, ConversationStore, Expired, FeedbackStore, FileStore, InputStore, KeyStore, LogStore,
    McpLoginStore, McpServerStore, PinStore, ProviderStore, QueueStore, RetentionStore, RunStore, SearchStore, StoreResult,
    TicketStore, TitleStore, UsageStore, UserStore,
};

/// Groups the aggregates that no run depends on: accounts, records of owners, files, reports and retention.
pub trait RecordStore:
    AgentStore
    + AuditStore
    + FeedbackStore
    + FileStore
    + KeyStore
    + McpLoginStore
    + McpServerStore
    + PinStore
    + ProviderStore
    + RetentionStore
    + SearchStore
    + TicketStore
    + UsageStore
    + UserStore
{
}

/// Describes the database behind the aggregates, and leads to its records.
#[async_trait]
pub trait CommonStore: Send + Sync {
    /// Checks that the database answers within `statement_timeout` and takes writes: Postgres can be read-only as a whole, and the disk
    /// of SQLite can be full.
    async fn ping(&self) -> StoreResult<()>;

    /// Whether other processes may write to the same database, so that the log must be polled for their events.
    fn is_shared(&self) -> bool;

    /// Whether a run may have to wait in the queue for another one of its owner to end, however many workers are idle.
    fn caps_owners(&self) -> bool {
        false
    }

    /// Returns the records of the same database. A handle to a store dereferences to them.
    ///
    /// They are reached through one method, so that a fake store implements only the aggregates that it fakes.
    fn records(&self) -> &(dyn RecordStore + 'static);
}

/// Groups the aggregates that workers use.
pub trait WorkerStore: QueueStore + LogStore + InputStore + BudgetStore + PinStore + TitleStore + CommonStore {}

impl<S> WorkerStore for S where S: QueueStore + LogStore + InputStore + BudgetStore + PinStore + TitleStore + CommonStore {}

/// Groups the aggregates that use cases use beside the records.
pub trait ServiceStore: ConversationStore + RunStore + InputStore + LogStore + CommonStore {}

impl<S> ServiceStore for S where S: ConversationStore + RunStore + InputStore + LogStore + CommonStore {}

/// Owns a database: opened once for each process, which also keeps it clean.
#[async_trait]
pub trait Store: WorkerStore + ServiceStore {
    /// Returns the age of the oldest open snapshot in this database, by any session. Rows updated since cannot be vacuumed. `None` where
    /// no other session can hold one.
    async fn oldest_snapshot(&self) -> StoreResult<Option<Duration>> {
        Ok(None)
    }

    /// Refreshes the low-water marks, so that claims do not scan past entries that have left the queue. Called about every second;
    /// without it, claims are only slower.
    async fn raise_low_water(&self) -> StoreResult<()> {
        Ok(())
    }

    /// Removes idempotency records of this age by the database's clock, and the rest of conversations whose deletion was interrupted.
    /// Returns how many records.
    async fn remove_expired_idempotency(&self, age_ms: u64) -> StoreResult<u64>;

    /// How many rows there are that the next cleaning removes: idempotency records and rows of the audit of these ages.
    async fn count_expired(&self, keys_ms: u64, audit_ms: Option<u64>) -> StoreResult<Expired>;

    /// Leaves a mark by which clone detection notices an older database in place of this one. Called now and then; does nothing where
    /// clone detection needs no mark.
    async fn leave_mark(&self) -> StoreResult<()> {
        Ok(())
    }

    async fn close(&self);
}

impl Deref for dyn WorkerStore + '_ {
    type Target = dyn RecordStore;

    fn deref(&self) -> &Self::Target {
        self.records()
    }
}

impl Deref for dyn ServiceStore + '_ {
    type Target = dyn RecordStore;

    fn deref(&self) -> &Self::Target {
        self.records()
    }
}

impl Deref for dyn Store + '_ {
    type Target = dyn RecordStore;

    fn deref(&self) -> &Self::Target {
        self.records()
    }
}
