//! What is kept of MCP servers: the trait, its values, and how rows become them.

use async_trait::async_trait;
use sqlx::{ColumnIndex, Decode, Row, Type};

use super::providers::read_sealed;
use super::{IdempotencyClaim, Keyed, NameCursor, NamedChanged, NamedMade, Page, PageRequest, StoreResult, rows};
use crate::domain::ids::{McpServerId, UserId};
use crate::domain::mcp_server::McpServerRecord;
use crate::domain::provider::Reach;
use crate::support::clock::UnixMillis;

/// The last MCP server of a page.
pub type McpServerCursor = NameCursor<McpServerId>;

/// MCP servers that people keep. Those of an owner and those of the server: nobody sees the others.
#[async_trait]
pub trait McpServerStore: Send + Sync {
    /// Stores a server, unless its owner has `most` already. Idempotent by `idempotency`.
    async fn create_mcp_server(
        &self,
        new: &McpServerRecord,
        most: u32,
        idempotency: Option<IdempotencyClaim>,
    ) -> StoreResult<Keyed<NamedMade<McpServerId>>>;

    /// The server, unless it is missing or another owner's.
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

/// The columns that [`read_mcp_server`] reads.
macro_rules! mcp_server_columns {
    () => {
        "id, owner_id, name, entry, key_id, key_data, reach, enabled, created_at, updated_at, version, generation"
    };
}
pub(super) use mcp_server_columns;

/// Reads [`mcp_server_columns`].
pub(super) fn read_mcp_server<'r, R>(row: &'r R) -> StoreResult<McpServerRecord>
where
    R: Row,
    &'static str: ColumnIndex<R>,
    String: Decode<'r, R::Database> + Type<R::Database>,
    i64: Decode<'r, R::Database> + Type<R::Database>,
    bool: Decode<'r, R::Database> + Type<R::Database>,
{
    const TABLE: &str = "mcp_servers";
    let text = |column: &'static str| -> Result<String, sqlx::Error> { row.try_get(column) };
    let id = text("id")?;
    Ok(McpServerRecord {
        owner: row.try_get::<Option<String>, _>("owner_id")?.map(UserId::from_stored),
        name: text("name")?,
        entry: rows::decode(TABLE, "entry", &id, &text("entry")?)?,
        secrets: read_sealed(row)?,
        reach: rows::word(TABLE, "reach", &id, &text("reach")?, Reach::from_word)?,
        enabled: row.try_get("enabled")?,
        created_at: UnixMillis(row.try_get("created_at")?),
        updated_at: UnixMillis(row.try_get("updated_at")?),
        version: row.try_get("version")?,
        generation: row.try_get("generation")?,
        id: McpServerId::from_stored(id),
    })
}

/// The cursor of a server.
pub(super) fn cursor(record: &McpServerRecord) -> String {
    McpServerCursor { name: record.name.clone(), id: record.id.clone() }.to_string()
}
