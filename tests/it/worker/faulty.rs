//! A store whose calls fail as a test demands.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use capstan::domain::event::StoredEvent;
use capstan::domain::ids::{ConversationId, NodeId, RunId, UserId};
use capstan::domain::run::record::{Fence, RunRecord, RunWrite};
use capstan::store::*;
use tokio::sync::Notify;

use super::intercept::{InterceptedStore, Interceptor};

/// The fate of a call.
pub enum Fate {
    /// It succeeds.
    Goes,
    /// It fails without effect.
    Fails(StoreError),
    /// It succeeds, and its reply is lost.
    Unheard(StoreError),
    /// It is executed twice.
    Twice,
    /// It is executed once it is released.
    Late(Arc<Notify>),
    /// It is executed, and its reply arrives once it is released.
    HeardLate(Arc<Notify>),
    /// It never returns.
    Hangs,
    /// It panics.
    Panics,
}

type Judge = Box<dyn FnMut(&[RunWrite]) -> Fate + Send>;

type Trouble = Box<dyn FnMut(&'static str) -> Fate + Send>;

/// A real store in which a test decides the fate of batches, of worker calls and of accepted messages.
pub type FaultyStore = InterceptedStore<Faults>;

pub struct Faults {
    inner: Arc<dyn Store>,
    judge: Mutex<Judge>,
    trouble: Mutex<Trouble>,
    /// Whether the next sweep panics.
    pub panics: std::sync::atomic::AtomicBool,
}

/// Returns the error of a database that is away.
pub fn away() -> StoreError {
    StoreError::Unavailable(sqlx::Error::PoolTimedOut)
}

/// Returns the error of a locked row.
pub fn locked() -> StoreError {
    StoreError::Contended(sqlx::Error::PoolTimedOut)
}

/// Returns a permanent error.
pub fn wrong() -> StoreError {
    StoreError::Statement(sqlx::Error::RowNotFound)
}

impl FaultyStore {
    pub fn new(inner: Arc<dyn Store>) -> Arc<Self> {
        let (judge, trouble) = (Mutex::new(Box::new(|_: &[_]| Fate::Goes) as _), Mutex::new(Box::new(|_| Fate::Goes) as _));
        Arc::new(Self(Faults { inner, judge, trouble, panics: false.into() }))
    }
}

impl Faults {
    /// Sets the fate of later batches.
    pub fn judge(&self, judge: impl FnMut(&[RunWrite]) -> Fate + Send + 'static) {
        *self.judge.lock().unwrap() = Box::new(judge);
    }

    /// Sets the fate of later worker calls and of `accept_run`, by name. A batch with the fate [`Fate::Goes`] is judged, too.
    pub fn trouble(&self, trouble: impl FnMut(&'static str) -> Fate + Send + 'static) {
        *self.trouble.lock().unwrap() = Box::new(trouble);
    }

    async fn troubled<T, F: Future<Output = StoreResult<T>>>(&self, name: &'static str, call: impl Fn() -> F) -> StoreResult<T> {
        let fate = (self.trouble.lock().unwrap())(name);
        meet(fate, call).await
    }
}

async fn meet<T, F: Future<Output = StoreResult<T>>>(fate: Fate, call: impl Fn() -> F) -> StoreResult<T> {
    match fate {
        Fate::Goes => call().await,
        Fate::Fails(error) => Err(error),
        Fate::Unheard(error) => {
            call().await?;
            Err(error)
        }
        Fate::Twice => {
            call().await?;
            call().await
        }
        Fate::Late(gate) => {
            gate.notified().await;
            call().await
        }
        Fate::HeardLate(gate) => {
            let done = call().await;
            gate.notified().await;
            done
        }
        Fate::Hangs => std::future::pending().await,
        Fate::Panics => panic!("the call was told to panic"),
    }
}

/// Calls whose fate [`Faults::trouble`] decides, beside those of the queue and the log.
const TROUBLED: [&str; 7] =
    ["accept_run", "claim_title", "finish_title", "input_request", "reserve", "compare_tool_definitions", "tool_grants"];

impl Interceptor for Faults {
    type Store = dyn Store;

    fn store(&self) -> &(dyn Store + 'static) {
        &*self.inner
    }

    async fn pass<T: Send, F: Future<Output = StoreResult<T>> + Send>(
        &self,
        name: &'static str,
        call: impl Fn() -> F + Send,
    ) -> StoreResult<T> {
        match TROUBLED.contains(&name) {
            true => self.troubled(name, call).await,
            false => call().await,
        }
    }
}

#[async_trait]
impl LogStore for FaultyStore {
    async fn commit(&self, writes: &[RunWrite]) -> StoreResult<Vec<Result<CommitReceipt, WriteRejection>>> {
        let trouble = (self.trouble.lock().unwrap())("commit");
        let fate = match trouble {
            Fate::Goes => (self.judge.lock().unwrap())(writes),
            trouble => trouble,
        };
        meet(fate, || self.inner.commit(writes)).await
    }
    async fn events(&self, owner: &UserId, conversation: &ConversationId, after: i64, limit: u32) -> StoreResult<Vec<StoredEvent>> {
        self.inner.events(owner, conversation, after, limit).await
    }
    async fn log_bounds(&self, owner: &UserId, conversation: &ConversationId) -> StoreResult<Option<LogBounds>> {
        self.inner.log_bounds(owner, conversation).await
    }
    async fn heads(&self, conversations: &[ConversationId]) -> StoreResult<Vec<(ConversationId, i64)>> {
        self.inner.heads(conversations).await
    }
    async fn events_after(
        &self,
        after: &[(ConversationId, i64)],
        limit: u32,
    ) -> StoreResult<Vec<(ConversationId, Vec<StoredEvent>)>> {
        self.inner.events_after(after, limit).await
    }
}

#[async_trait]
impl QueueStore for FaultyStore {
    async fn claim_runs(&self, node: &NodeId, limit: u32, lease_ms: u64) -> StoreResult<Vec<Claim>> {
        self.troubled("claim_runs", || self.inner.claim_runs(node, limit, lease_ms)).await
    }
    async fn raise_fence(&self, fence: &Fence, attempt: u32) -> StoreResult<Option<Fence>> {
        self.troubled("raise_fence", || self.inner.raise_fence(fence, attempt)).await
    }
    async fn clear_of_crashes(&self, fence: &Fence) -> StoreResult<()> {
        self.troubled("clear_of_crashes", || self.inner.clear_of_crashes(fence)).await
    }
    async fn load_bare(&self, fence: &Fence) -> StoreResult<Option<RunRecord>> {
        self.troubled("load_bare", || self.inner.load_bare(fence)).await
    }
    async fn load_run(&self, fence: &Fence) -> StoreResult<Option<RunRecord>> {
        self.troubled("load_run", || self.inner.load_run(fence)).await
    }
    async fn renew_leases(&self, node: &NodeId, fences: &[Fence], lease_ms: u64, grace_ms: u64) -> StoreResult<Renewal> {
        self.troubled("renew_leases", || self.inner.renew_leases(node, fences, lease_ms, grace_ms)).await
    }
    async fn give_up_leases(&self, fences: &[Fence]) -> StoreResult<Vec<RunId>> {
        self.troubled("give_up_leases", || self.inner.give_up_leases(fences)).await
    }
    async fn sweep_expired_leases(&self, limit: u32, despite_outage: bool) -> StoreResult<Sweep> {
        assert!(!self.panics.load(std::sync::atomic::Ordering::SeqCst), "the test makes this sweep panic");
        self.troubled("sweep_expired_leases", || self.inner.sweep_expired_leases(limit, despite_outage)).await
    }
    async fn expire_foreign_leases(&self, node: &NodeId) -> StoreResult<u64> {
        self.troubled("expire_foreign_leases", || self.inner.expire_foreign_leases(node)).await
    }
    async fn control_signals(&self, runs: &[RunId]) -> StoreResult<Vec<ControlSignal>> {
        self.troubled("control_signals", || self.inner.control_signals(runs)).await
    }
    async fn next_claimable_in(&self) -> StoreResult<Option<u64>> {
        self.troubled("next_claimable_in", || self.inner.next_claimable_in()).await
    }
}
