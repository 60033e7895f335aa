//! The operations of use cases that each database carries out in its own way.
//!
//! Owns the seam between aggregates that are written once and statements that only one database has. Must not know any table.

use async_trait::async_trait;

use super::backend::Backend;
use crate::domain::ids::{CallId, ConversationId, RunId, UserId};
use crate::store::rows::ConversationRow;
use crate::store::{
    AcceptRun, Accepted, CallBatch, Cancelled, ConversationCursor, ConversationFilter, Created, DeletedConversation,
    IdempotencyClaim, Keyed, NewConversation, ResumeRun, Resumed, StoreResult,
};
use crate::support::clock::UnixMillis;

/// A store whose hot paths are statements of its own database.
#[async_trait]
pub trait PerBackend: Backend {
    /// Returns the most runs of one owner that workers have at a time; 0 for no limit.
    fn owner_cap(&self) -> u32;

    /// Makes a conversation.
    async fn create(&self, new: &NewConversation, key: Option<&IdempotencyClaim>) -> StoreResult<Keyed<Created>>;

    /// Lists at most `limit` conversations, newest first.
    async fn list(
        &self,
        owner: &UserId,
        filter: &ConversationFilter,
        after: Option<&ConversationCursor>,
        limit: usize,
    ) -> StoreResult<Vec<ConversationRow>>;

    /// Deletes a conversation with all its rows.
    async fn delete(&self, owner: &UserId, id: &ConversationId) -> StoreResult<Option<DeletedConversation>>;

    /// Accepts a message.
    async fn accept(&self, accept: &AcceptRun, key: Option<&IdempotencyClaim>) -> StoreResult<Keyed<Accepted>>;

    /// Cancels a run, or asks its worker to.
    async fn cancel(
        &self,
        owner: &UserId,
        id: &RunId,
        by: &str,
        now: UnixMillis,
        key: Option<&IdempotencyClaim>,
    ) -> StoreResult<Keyed<Cancelled>>;

    /// Wakes a waiting run, or continues after one that has ended.
    async fn resume(&self, resume: &ResumeRun, key: Option<&IdempotencyClaim>) -> StoreResult<Keyed<Resumed>>;

    /// Returns the answer of a run that holds a call, with all its calls.
    async fn call_batch(&self, owner: &UserId, run: &RunId, call: &CallId) -> StoreResult<Option<CallBatch>>;
}
