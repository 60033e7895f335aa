//! MCP servers that owners keep: the trait and its values.

use async_trait::async_trait;

use super::{IdempotencyClaim, Keyed, NameCursor, NamedChanged, NamedMade, Page, PageRequest, StoreResult};
use crate::domain::ids::{McpServerId, UserId};
use crate::domain::mcp_server::McpServerRecord;

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

    /// All enabled servers that the owner's runs may use, by name: the owner's and everybody's.
    async fn usable_mcp_servers(&self, owner: &UserId) -> StoreResult<Vec<McpServerRecord>>;

    /// Those of these that are enabled, whoever owns them: for whoever holds connections to them.
    async fn enabled_mcp_servers(&self, ids: &[McpServerId]) -> StoreResult<Vec<McpServerRecord>>;

    /// Stores a changed server: all but owner, `created_at` and `generation`. `version` is the one that it was changed from.
    async fn change_mcp_server(&self, changed: &McpServerRecord) -> StoreResult<NamedChanged>;

    /// The same, idempotent by `idempotency`: a request that comes again changes nothing more, whatever has become of the server since.
    /// What has changed nothing is not remembered.
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
