//! Logins at MCP servers, and the tokens that they brought: the trait and its values.

use async_trait::async_trait;

use crate::domain::ids::{McpServerId, UserId};
use crate::store::{LoginTaker, ProviderLogin, StoreResult};
use crate::support::seal::Sealed;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpTokens {
    pub server: McpServerId,
    /// The owner of the server; `None` for one of all owners.
    pub owner: Option<UserId>,
    pub sealed: Sealed,
    /// Milliseconds until they are to be refreshed, negative if that is overdue; `None` if they have no known end.
    pub fresh_for_ms: Option<i64>,
    /// Raised by one at each change.
    pub version: i64,
}

/// Logins at MCP servers. The caller has checked that the principal may use the server.
#[async_trait]
pub trait McpLoginStore: Send + Sync {
    /// Stores a login at a server for `lifetime_ms`, by the database's clock. It replaces an earlier one of its owner there.
    async fn create_mcp_login(
        &self,
        state_hash: &str,
        server: &McpServerId,
        login: &ProviderLogin,
        lifetime_ms: u32,
    ) -> StoreResult<()>;

    /// Takes a login, if it is the taker's: one of concurrent callers gets it. `None` if it is unknown, another owner's, taken or expired.
    async fn take_mcp_login(&self, state_hash: &str, taker: &LoginTaker) -> StoreResult<Option<(McpServerId, ProviderLogin)>>;

    async fn mcp_tokens(&self, server: &McpServerId) -> StoreResult<Option<McpTokens>>;

    /// Stores tokens in place of any others of the server, and voids a refresh under way. Their `version` is ignored.
    async fn put_mcp_tokens(&self, tokens: &McpTokens) -> StoreResult<()>;

    /// Claims the right to refresh tokens of this version, for `for_ms` by the database's clock. Returns false if another process has it,
    /// or the tokens are of another version by now.
    async fn claim_mcp_tokens(&self, server: &McpServerId, version: i64, for_ms: u32) -> StoreResult<bool>;

    /// Ends a refresh of tokens of this version: stores new ones, with how long they are fresh, or leaves them as they are. Returns
    /// false, and changes nothing, if they are of another version by now.
    async fn end_mcp_refresh(&self, server: &McpServerId, version: i64, anew: Option<(&Sealed, Option<i64>)>) -> StoreResult<bool>;

    /// Deletes the tokens of a server: of one version, or all of them with the logins under way. Returns false if there are none.
    async fn forget_mcp_tokens(&self, server: &McpServerId, version: Option<i64>) -> StoreResult<bool>;

    /// Notes that a process has these servers in its configuration now.
    async fn see_mcp_tokens(&self, servers: &[McpServerId]) -> StoreResult<()>;

    /// Deletes the tokens of servers that are not stored, and that no process has had in its configuration for `unseen_ms` by the
    /// database's clock. Deletes expired logins, too. Returns how many tokens.
    async fn forget_unseen_mcp_tokens(&self, unseen_ms: i64) -> StoreResult<u64>;
}
