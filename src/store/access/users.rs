//! Roles and groups of users, and users who leave: the trait.

use async_trait::async_trait;

use crate::domain::access::principal::{User, UserRole};
use crate::domain::ids::UserId;
use crate::store::StoreResult;

/// How much a user owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owned {
    pub conversations: u64,
    /// Rows that belong to no conversation: files, agents, providers, MCP servers, rows of the audit and so on.
    pub records: u64,
}

#[async_trait]
pub trait UserStore: Send + Sync {
    async fn user_named(&self, name: &str) -> StoreResult<Option<User>>;

    /// Gives a user and their keys another role. Providers and MCP servers of a new member are limited to the reach of members. They get
    /// another version, by which processes that use them notice.
    async fn set_role(&self, user: &UserId, role: UserRole) -> StoreResult<()>;

    /// Puts a user into these groups and no others. The caller has checked them.
    async fn set_groups(&self, user: &UserId, groups: &[String]) -> StoreResult<()>;

    /// Returns the groups of a user; none for an unknown user.
    async fn groups_of(&self, user: &UserId) -> StoreResult<Vec<String>>;

    async fn owned_by(&self, user: &UserId) -> StoreResult<Owned>;

    /// Removes a user with their keys and all that they own, in one transaction. Returns false, and removes nothing, while they have
    /// conversations: those are deleted one by one before.
    async fn remove_user(&self, user: &UserId) -> StoreResult<bool>;
}
