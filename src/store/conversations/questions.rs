//! Questions to a human, and the grants that come from approvals: the trait.

use async_trait::async_trait;

use crate::domain::ids::{ConversationId, GrantId, InputId, UserId};
use crate::domain::run::InputRecord;
use crate::domain::tool::ToolGrant;
use crate::store::{
    IdempotencyKey, IdempotentResult, InputCursor, InputFilter, Page, PageRequest, ResolveInput, ResolveOutcome, StoreResult,
    ToolResults, ToolResultsOutcome,
};

pub const MAX_GRANTS: i64 = 1_000;

/// Questions to a human, including approvals. Runs ask them through the log.
#[async_trait]
#[warn(missing_docs)]
pub trait InputStore: Send + Sync {
    /// Returns the question, unless it is missing or belongs to another owner.
    async fn input_request(&self, owner: &UserId, id: &InputId) -> StoreResult<Option<InputRecord>>;

    /// Returns a page of questions, newest first.
    async fn input_requests(&self, filter: InputFilter<'_>, page: &PageRequest<InputCursor>) -> StoreResult<Page<InputRecord>>;

    /// Returns the grants of one conversation or of all, newest first, at most [`MAX_GRANTS`].
    async fn tool_grants(&self, owner: &UserId, within: Option<&ConversationId>) -> StoreResult<Vec<ToolGrant>>;

    /// Deletes a grant. Returns false if there is none.
    async fn delete_tool_grant(&self, owner: &UserId, id: &GrantId) -> StoreResult<bool>;

    /// Stores the answer of a question, appends its event, and makes the run claimable, in one transaction. If a worker holds the
    /// run, it becomes claimable when the worker releases it.
    async fn resolve_input(&self, resolve: ResolveInput, key: Option<IdempotencyKey>) -> IdempotentResult<ResolveOutcome>;

    /// Stores the client's results of calls, and makes their run claimable, in one transaction. If a worker holds the run, it
    /// becomes claimable when the worker releases it.
    async fn store_tool_results(&self, results: ToolResults, key: Option<IdempotencyKey>) -> IdempotentResult<ToolResultsOutcome>;
}
