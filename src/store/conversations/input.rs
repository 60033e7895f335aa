//! Questions to a human and the grants that come of approvals: the trait.

use async_trait::async_trait;

use crate::domain::ids::{ConversationId, GrantId, InputId, UserId};
use crate::domain::run::input::InputRecord;
use crate::domain::tool::approval::ToolGrant;
use crate::store::{IdempotencyClaim, InputCursor, InputFilter, Keyed, Page, PageRequest, ResolveInput, Resolved, StoreResult};

/// The most answers that hold for later calls which are looked at.
pub const MAX_GRANTS: i64 = 1_000;

/// Questions to a human, approvals among them. Runs ask them through the log.
#[async_trait]
pub trait InputStore: Send + Sync {
    /// Returns the question, unless it is missing or another owner's.
    async fn input_request(&self, owner: &UserId, id: &InputId) -> StoreResult<Option<InputRecord>>;

    /// Returns a page of questions, newest first.
    async fn input_requests(&self, filter: InputFilter<'_>, page: &PageRequest<InputCursor>) -> StoreResult<Page<InputRecord>>;

    /// Answers to approvals that hold for later calls, newest first, at most [`MAX_GRANTS`]: those that hold in one conversation, or
    /// all of the owner.
    async fn tool_grants(&self, owner: &UserId, within: Option<&ConversationId>) -> StoreResult<Vec<ToolGrant>>;

    /// Takes such an answer back. `false` if there is none.
    async fn delete_tool_grant(&self, owner: &UserId, id: &GrantId) -> StoreResult<bool>;

    /// Stores the one answer of a question, tells the log, and makes the run claimable, in one transaction. A run that a worker has
    /// is claimable when it is released to wait.
    async fn resolve_input(&self, resolve: ResolveInput, idempotency: Option<IdempotencyClaim>) -> StoreResult<Keyed<Resolved>>;
}
