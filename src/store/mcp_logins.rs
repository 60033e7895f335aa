//! Logins at MCP servers, and the tokens that they brought: the trait and its values.

use async_trait::async_trait;

use super::{LoginTaker, ProviderLogin, StoreResult};
use crate::domain::ids::{McpServerId, UserId};
use crate::support::seal::Sealed;

/// The tokens of an MCP server, as they are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpTokens {
    /// The server.
    pub server: McpServerId,
    /// Whose the server is; `None` for one of everybody.
    pub owner: Option<UserId>,
    /// The tokens.
    pub sealed: Sealed,
    /// In how many milliseconds they are to be refreshed, negative if they should have been; `None` if nobody has said that they end.
    pub fresh_for_ms: Option<i64>,
    /// Raised by one at each change.
    pub version: i64,
}

/// Logins at MCP servers. Whoever asks knows that the server is one that the principal may use.
#[async_trait]
pub trait McpLoginStore: Send + Sync {
    /// Keeps a login at a server for `lifetime_ms`, by the database's clock, in the place of an earlier one of its owner there.
    async fn create_mcp_login(
        &self,
        state_hash: &str,
        server: &McpServerId,
        login: &ProviderLogin,
        lifetime_ms: u32,
    ) -> StoreResult<()>;

    /// Takes a login out, if it is the taker's: of all that ask for it, one gets it. `None` if it is unknown, somebody else's, was
    /// taken or has expired.
    async fn take_mcp_login(&self, state_hash: &str, taker: &LoginTaker) -> StoreResult<Option<(McpServerId, ProviderLogin)>>;

    /// The tokens of a server.
    async fn mcp_tokens(&self, server: &McpServerId) -> StoreResult<Option<McpTokens>>;

    /// Keeps tokens, in the place of any others of the server; a refresh that is under way comes to nothing. Their `version` is not
    /// looked at.
    async fn put_mcp_tokens(&self, tokens: &McpTokens) -> StoreResult<()>;

    /// Claims the right to refresh tokens of this version, alone, for `for_ms` by the database's clock. False if somebody else has it,
    /// or they are of another version by now.
    async fn claim_mcp_tokens(&self, server: &McpServerId, version: i64, for_ms: u32) -> StoreResult<bool>;

    /// Ends a refresh of tokens of this version: puts new ones in their place, with how long they are fresh, or leaves them as they
    /// are. False if they are of another version by now; nothing is changed then.
    async fn end_mcp_refresh(&self, server: &McpServerId, version: i64, anew: Option<(&Sealed, Option<i64>)>) -> StoreResult<bool>;

    /// Forgets the tokens of a server, of one version if one is named; if none is, also the logins there that are under way. False if there are
    /// no such tokens.
    async fn forget_mcp_tokens(&self, server: &McpServerId, version: Option<i64>) -> StoreResult<bool>;

    /// Notes that a process has these servers in its configuration now.
    async fn see_mcp_tokens(&self, servers: &[McpServerId]) -> StoreResult<()>;

    /// Forgets the tokens of servers that are not kept, and that no process has had in its configuration for `unseen_ms` by the
    /// database's clock; and logins that nobody has ended in time. How many tokens.
    async fn forget_unseen_mcp_tokens(&self, unseen_ms: i64) -> StoreResult<u64>;
}
