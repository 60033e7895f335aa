//! What users may do, and users who leave: the trait.

use async_trait::async_trait;

use super::StoreResult;
use crate::domain::ids::UserId;
use crate::domain::principal::{User, UserRole};

/// How much a user owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owned {
    /// Conversations.
    pub conversations: u64,
    /// Everything else that does not hang on them: files, agents, providers, MCP servers, rows of the audit and so on.
    pub records: u64,
}

/// What users may do, and users who leave.
#[async_trait]
pub trait UserStore: Send + Sync {
    /// The user of that name.
    async fn user_named(&self, name: &str) -> StoreResult<Option<User>>;

    /// Gives a user another role, with all their keys. What a member keeps reaches no further than what members make, whoever they were
    /// when they made it: it gets another version, by which processes that use it notice.
    async fn set_role(&self, user: &UserId, role: UserRole) -> StoreResult<()>;

    /// Puts a user into these groups and no others. Checked before.
    async fn set_groups(&self, user: &UserId, groups: &[String]) -> StoreResult<()>;

    /// The groups that a user is in; none for one who is not there.
    async fn groups_of(&self, user: &UserId) -> StoreResult<Vec<String>>;

    /// How much they own.
    async fn owned_by(&self, user: &UserId) -> StoreResult<Owned>;

    /// Removes a user with their keys and all that they own, in one transaction. False, and nothing is removed, as long as they have
    /// conversations: those are deleted one by one before.
    async fn remove_user(&self, user: &UserId) -> StoreResult<bool>;
}
