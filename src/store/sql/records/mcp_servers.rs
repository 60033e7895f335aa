//! User servers: MCP servers that are stored through the API.
//!
//! Owns the table `mcp_servers`. Must not know how a server is started.

use crate::domain::ids::{McpServerId, UserId};
use crate::domain::model::EgressScope;
use crate::domain::tool::McpServerRecord;
use crate::store::records::mcp_logins::McpServerCursor;
use crate::store::rows::{encode_storable, read_json, read_word};
use crate::store::sql::records::named::{NamedRow, owner_text};
use crate::store::sql::records::providers::read_encrypted;
use crate::store::sql::{Row, Transaction, Value, if_fresh, refuse, statements, values};
use crate::store::{
    CreateNamedOutcome, IdempotencyKey, IdempotentResult, Page, PageRequest, RecordStore, StoreResult, UpdateNamedOutcome,
};
use crate::support::clock::UnixMillis;

const TABLE: &str = "mcp_servers";

/// The number of the lock that serializes an owner's requests that create servers, or replace one with an idempotency key.
const LOCK: i64 = 8;

macro_rules! columns {
    ($dialect:ident) => {
        "id, owner_id, name, entry, key_id, key_data, reach, enabled, created_at, updated_at, version, generation"
    };
}

statements! {
    COUNT = ["SELECT count(*) FROM mcp_servers WHERE coalesce(owner_id, '') = $1"];

    INSERT = ["INSERT INTO mcp_servers (id, version, name, entry, key_id, key_data, reach, enabled, updated_at, owner_id, created_at,
             generation)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
         ON CONFLICT (coalesce(owner_id, ''), name) DO NOTHING"];

    BY_ID = ["SELECT ", columns, " FROM mcp_servers WHERE id = $1 AND coalesce(owner_id, '') IN ($2, '')"];

    PAGE = ["SELECT ", columns, " FROM mcp_servers WHERE coalesce(owner_id, '') IN ($1, '') AND (name, id) > ($2, $3)
         ORDER BY name, id LIMIT $4"];

    USABLE = ["SELECT ", columns, " FROM mcp_servers WHERE coalesce(owner_id, '') IN ($1, '') AND enabled ORDER BY name, id"];

    ENABLED = ["SELECT ", columns, " FROM mcp_servers WHERE id ", (in_list "$1"), " AND enabled"];

    UPDATE = ["UPDATE mcp_servers SET name = $3, entry = $4, key_id = $5, key_data = $6, reach = $7, enabled = $8, updated_at = $9,
             version = version + 1
         WHERE id = $1 AND version = $2 RETURNING version"];

    INCREMENT_GENERATION = ["UPDATE mcp_servers SET generation = generation + 1 WHERE id = $1 AND coalesce(owner_id, '') = $2"];

    DELETE = ["DELETE FROM mcp_servers WHERE id = $1 AND coalesce(owner_id, '') = $2 AND version = $3"];

    DELETE_TOOL_REVIEWS = ["DELETE FROM tool_pins WHERE server = $1 AND owner_id = $2"];

    DELETE_TOKENS = ["DELETE FROM mcp_tokens WHERE server_id = $1"];

    DELETE_LOGINS = ["DELETE FROM mcp_logins WHERE server_id = $1"];
}

/// MCP servers of one owner, and shared MCP servers (without an owner). A viewer sees their own and the shared ones.
impl dyn RecordStore + '_ {
    /// Stores a server, unless its owner has `most` already. Idempotent by `key`.
    pub async fn create_mcp_server(
        &self,
        new: &McpServerRecord,
        most: u32,
        key: Option<IdempotencyKey>,
    ) -> IdempotentResult<CreateNamedOutcome<McpServerId>> {
        let mut insert = values_of(new)?;
        insert.extend([Value::from(new.owner.as_ref().map(UserId::as_str)), new.created_at.into(), new.generation.into()]);
        let row = NamedRow { count: COUNT, lock: LOCK, owner: new.owner.as_ref(), most, id: &new.id };
        self.database().create_named(row, &[(INSERT, &insert)], key).await
    }

    /// Returns the server, unless it is missing or belongs to another owner.
    pub async fn mcp_server(&self, viewer: &UserId, id: &McpServerId) -> StoreResult<Option<McpServerRecord>> {
        self.database().read_optional(BY_ID, values![id.as_str(), viewer.as_str()], read_mcp_server).await
    }

    /// Returns a page of servers, ordered by name.
    pub async fn mcp_servers(&self, viewer: &UserId, page: &PageRequest<McpServerCursor>) -> StoreResult<Page<McpServerRecord>> {
        let cursor = |server: &McpServerRecord| McpServerCursor { name: server.name.clone(), id: server.id.clone() };
        self.database().named_page(PAGE, viewer, page, read_mcp_server, cursor).await
    }

    /// Returns all enabled servers that the owner's runs may use, ordered by name: the owner's and the shared ones.
    pub async fn usable_mcp_servers(&self, owner: &UserId) -> StoreResult<Vec<McpServerRecord>> {
        self.database().read_all(USABLE, values![owner.as_str()], read_mcp_server).await
    }

    /// Returns those of these servers that are enabled, of any owner. For a process with connections to them.
    pub async fn enabled_mcp_servers(&self, ids: &[McpServerId]) -> StoreResult<Vec<McpServerRecord>> {
        let ids: Value<'_> = ids.iter().map(McpServerId::as_str).collect();
        self.database().read_all(ENABLED, &[ids], read_mcp_server).await
    }

    /// Stores a changed server, except its owner, `created_at` and `generation`. `version` is the version that the change is based
    /// on.
    pub async fn change_mcp_server(&self, changed: &McpServerRecord) -> StoreResult<UpdateNamedOutcome> {
        self.database().change_named(UPDATE, &values_of(changed)?).await
    }

    /// Changes a server like [`Self::change_mcp_server`], idempotent by `key`. A repeated request changes nothing, even if the
    /// server has changed since. An outcome without a change is not recorded.
    pub async fn replace_mcp_server(
        &self,
        changed: &McpServerRecord,
        key: Option<IdempotencyKey>,
    ) -> IdempotentResult<UpdateNamedOutcome> {
        let (database, key) = (self.database(), key.as_ref());
        let is_stored = |outcome: &UpdateNamedOutcome| matches!(outcome, UpdateNamedOutcome::Changed(_));
        database.once(key, || database.transaction(async |tx| replace(tx, changed, key).await, if_fresh(is_stored))).await
    }

    /// Increments the generation of a server of that owner, or of a shared one if `owner` is `None`. Returns false if there is
    /// none.
    pub async fn renew_mcp_server(&self, owner: Option<&UserId>, id: &McpServerId) -> StoreResult<bool> {
        Ok(self.database().execute(INCREMENT_GENERATION, values![id.as_str(), owner_text(owner)]).await? > 0)
    }

    /// Deletes a server of that owner, or a shared one if `owner` is `None`. Returns false if none has that version.
    pub async fn delete_mcp_server(&self, owner: Option<&UserId>, id: &McpServerId, version: i64) -> StoreResult<bool> {
        let (id, owner) = (id.as_str(), owner_text(owner));
        let delete = async |tx: &mut Transaction| {
            let is_deleted = tx.execute(DELETE, values![id, owner, version]).await? > 0;
            if is_deleted {
                tx.execute(DELETE_TOOL_REVIEWS, values![id, owner]).await?;
                tx.execute(DELETE_TOKENS, values![id]).await?;
                tx.execute(DELETE_LOGINS, values![id]).await?;
            }
            Ok(is_deleted)
        };
        self.database().transaction(delete, |_| true).await
    }
}

async fn replace(
    tx: &mut Transaction,
    changed: &McpServerRecord,
    key: Option<&IdempotencyKey>,
) -> IdempotentResult<UpdateNamedOutcome> {
    // A repeated request waits here for the first one, and then finds its outcome.
    tx.lock(owner_text(changed.owner.as_ref()), LOCK).await?;
    if let Some(recorded) = tx.recorded(key).await? {
        return Ok(recorded);
    }
    let outcome = tx.change_named(UPDATE, &values_of(changed)?).await?;
    if matches!(outcome, UpdateNamedOutcome::Changed(_)) { tx.record(key, outcome).await } else { refuse(outcome) }
}

/// Returns the values for [`UPDATE`]. The values for [`INSERT`] begin with them.
fn values_of(record: &McpServerRecord) -> StoreResult<Vec<Value<'_>>> {
    let secrets = record.secrets.as_ref();
    let values = values![
        record.id.as_str(),
        record.version,
        &record.name,
        encode_storable(TABLE, "entry", record.id.as_str(), &record.entry)?,
        secrets.map(|encrypted| encrypted.key_id.as_str()),
        secrets.map(|encrypted| encrypted.data.as_str()),
        record.egress.as_str(),
        record.enabled,
        record.updated_at,
    ];
    Ok(values.to_vec())
}

fn read_mcp_server(row: &Row) -> StoreResult<McpServerRecord> {
    let id: String = row.get("id")?;
    Ok(McpServerRecord {
        owner: row.get::<Option<String>>("owner_id")?.map(UserId::from_stored),
        name: row.get("name")?,
        entry: read_json(row, TABLE, "entry", &id)?,
        secrets: read_encrypted(row)?,
        egress: read_word(row, TABLE, "reach", &id, EgressScope::from_name)?,
        enabled: row.get("enabled")?,
        created_at: UnixMillis(row.get("created_at")?),
        updated_at: UnixMillis(row.get("updated_at")?),
        version: row.get("version")?,
        generation: row.get("generation")?,
        id: McpServerId::from_stored(id),
    })
}
