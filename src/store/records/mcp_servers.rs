//! MCP servers that owners keep: the trait and its values.

use async_trait::async_trait;

use crate::domain::ids::{McpServerId, UserId};
use crate::domain::tool::mcp_server::McpServerRecord;
use crate::store::{IdempotencyClaim, Keyed, NameCursor, NamedChanged, NamedMade, Page, PageRequest, StoreResult};

pub type McpServerCursor = NameCursor<McpServerId>;

/// MCP servers of owners and of the server. A viewer sees their own and the server's.
#[async_trait]
pub trait McpServerStore: Send + Sync {
    /// Stores a server, unless its owner has `most` already. Idempotent by `idempotency`.
    async fn create_mcp_server(
        &self,
        new: &McpServerRecord,
        most: u32,
        idempotency: Option<IdempotencyClaim>,
    ) -> StoreResult<Keyed<NamedMade<McpServerId>>>;

    /// Returns the server, unless it is missing or another owner's.
    async fn mcp_server(&self, viewer: &UserId, id: &McpServerId) -> StoreResult<Option<McpServerRecord>>;

    /// A page of servers, by name.
    async fn mcp_servers(&self, viewer: &UserId, page: &PageRequest<McpServerCursor>) -> StoreResult<Page<McpServerRecord>>;

    /// Returns all enabled servers that the owner's runs may use, by name: the owner's and the server's.
    async fn usable_mcp_servers(&self, owner: &UserId) -> StoreResult<Vec<McpServerRecord>>;

    /// Returns those of these servers that are enabled, of any owner: for the process that holds connections to them.
    async fn enabled_mcp_servers(&self, ids: &[McpServerId]) -> StoreResult<Vec<McpServerRecord>>;

    /// Stores a changed server: all but owner, `created_at` and `generation`. `version` is the one that it was changed from.
    async fn change_mcp_server(&self, changed: &McpServerRecord) -> StoreResult<NamedChanged>;

    /// Changes a server as [`Self::change_mcp_server`] does, idempotent by `idempotency`. A repeated request changes nothing more, even if
    /// the server has changed since. An outcome without a change is not recorded.
    async fn replace_mcp_server(
        &self,
        changed: &McpServerRecord,
        idempotency: Option<IdempotencyClaim>,
    ) -> StoreResult<Keyed<NamedChanged>>;

    /// Raises the generation of a server of that owner, or of the server. False if there is none.
    async fn renew_mcp_server(&self, owner: Option<&UserId>, id: &McpServerId) -> StoreResult<bool>;

    /// Deletes a server of that owner, or of the server. False if there is none of that version.
    async fn delete_mcp_server(&self, owner: Option<&UserId>, id: &McpServerId, version: i64) -> StoreResult<bool>;
}
