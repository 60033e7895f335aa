//! MCP servers that owners keep.
//!
//! Owns the table `mcp_servers`. Must not know how a server is started.

use async_trait::async_trait;

use crate::domain::ids::{McpServerId, UserId};
use crate::domain::model::provider::Reach;
use crate::domain::tool::mcp_server::McpServerRecord;
use crate::store::pages::page_of;
use crate::store::records::mcp_servers::{McpServerCursor, McpServerStore};
use crate::store::rows::{encode_storable, read_json, read_word};
use crate::store::sql::backend::Backend;
use crate::store::sql::records::named::{NamedRow, owner_text};
use crate::store::sql::records::providers::read_sealed;
use crate::store::sql::row::Row;
use crate::store::sql::statement::statements;
use crate::store::sql::transaction::Transaction;
use crate::store::sql::value::{Value, values};
use crate::store::{IdempotencyClaim, Keyed, NamedChanged, NamedMade, Page, PageRequest, StoreResult};
use crate::support::clock::UnixMillis;

const TABLE: &str = "mcp_servers";

/// The number of the lock under which an owner's requests with keys wait for each other.
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

    RENEW = ["UPDATE mcp_servers SET generation = generation + 1 WHERE id = $1 AND coalesce(owner_id, '') = $2"];

    DELETE = ["DELETE FROM mcp_servers WHERE id = $1 AND coalesce(owner_id, '') = $2 AND version = $3"];

    DELETE_TOOL_REVIEWS = ["DELETE FROM tool_pins WHERE server = $1 AND owner_id = $2"];

    DELETE_TOKENS = ["DELETE FROM mcp_tokens WHERE server_id = $1"];

    DELETE_LOGINS = ["DELETE FROM mcp_logins WHERE server_id = $1"];
}

#[async_trait]
impl<B: Backend> McpServerStore for B {
    async fn create_mcp_server(
        &self,
        new: &McpServerRecord,
        most: u32,
        idempotency: Option<IdempotencyClaim>,
    ) -> StoreResult<Keyed<NamedMade<McpServerId>>> {
        let mut insert = values_of(new)?;
        insert.extend([Value::from(new.owner.as_ref().map(UserId::as_str)), new.created_at.into(), new.generation.into()]);
        let (owner, key) = (new.owner.as_ref(), idempotency.as_ref());
        let row = NamedRow { count: COUNT, lock: LOCK, owner, most, id: &new.id, key };
        self.database().create_named(row, &[(INSERT, &insert)]).await
    }

    async fn mcp_server(&self, viewer: &UserId, id: &McpServerId) -> StoreResult<Option<McpServerRecord>> {
        let row = self.database().fetch_optional(BY_ID, values![id.as_str(), viewer.as_str()]).await?;
        row.as_ref().map(read_mcp_server).transpose()
    }

    async fn mcp_servers(&self, viewer: &UserId, page: &PageRequest<McpServerCursor>) -> StoreResult<Page<McpServerRecord>> {
        let limit = page.limit.clamp(1, 100);
        let (name, id) = page.after.as_ref().map_or(("", ""), |after| (&after.name, after.id.as_str()));
        let rows = self.database().fetch_all(PAGE, values![viewer.as_str(), name, id, limit + 1]).await?;
        let cursor = |server: &McpServerRecord| McpServerCursor { name: server.name.clone(), id: server.id.clone() }.to_string();
        Ok(page_of(rows.iter().map(read_mcp_server).collect::<StoreResult<_>>()?, limit, cursor))
    }

    async fn usable_mcp_servers(&self, owner: &UserId) -> StoreResult<Vec<McpServerRecord>> {
        let rows = self.database().fetch_all(USABLE, values![owner.as_str()]).await?;
        rows.iter().map(read_mcp_server).collect()
    }

    async fn enabled_mcp_servers(&self, ids: &[McpServerId]) -> StoreResult<Vec<McpServerRecord>> {
        let ids: Value<'_> = ids.iter().map(McpServerId::as_str).collect();
        let rows = self.database().fetch_all(ENABLED, &[ids]).await?;
        rows.iter().map(read_mcp_server).collect()
    }

    async fn change_mcp_server(&self, changed: &McpServerRecord) -> StoreResult<NamedChanged> {
        self.database().change_named(UPDATE, &values_of(changed)?).await
    }

    async fn replace_mcp_server(
        &self,
        changed: &McpServerRecord,
        idempotency: Option<IdempotencyClaim>,
    ) -> StoreResult<Keyed<NamedChanged>> {
        let (database, key) = (self.database(), idempotency.as_ref());
        database
            .once(key, || async {
                let mut tx = database.begin().await?;
                let outcome = replace(&mut tx, changed, key).await?;
                tx.finish(outcome, |outcome| matches!(outcome, NamedChanged::Changed(_))).await
            })
            .await
    }

    async fn renew_mcp_server(&self, owner: Option<&UserId>, id: &McpServerId) -> StoreResult<bool> {
        Ok(self.database().execute(RENEW, values![id.as_str(), owner_text(owner)]).await? > 0)
    }

    async fn delete_mcp_server(&self, owner: Option<&UserId>, id: &McpServerId, version: i64) -> StoreResult<bool> {
        let (id, owner) = (id.as_str(), owner_text(owner));
        let mut tx = self.database().begin().await?;
        let is_deleted = tx.execute(DELETE, values![id, owner, version]).await? > 0;
        if is_deleted {
            tx.execute(DELETE_TOOL_REVIEWS, values![id, owner]).await?;
            tx.execute(DELETE_TOKENS, values![id]).await?;
            tx.execute(DELETE_LOGINS, values![id]).await?;
        }
        tx.commit().await?;
        Ok(is_deleted)
    }
}

async fn replace(
    tx: &mut Transaction,
    changed: &McpServerRecord,
    key: Option<&IdempotencyClaim>,
) -> StoreResult<Keyed<NamedChanged>> {
    // A request that is repeated while the first is under way finds a changed server, and has to see that the first changed it.
    tx.lock(owner_text(changed.owner.as_ref()), LOCK).await?;
    if let Some(recorded) = tx.recorded(key).await? {
        return Ok(recorded);
    }
    let outcome = tx.change_named(UPDATE, &values_of(changed)?).await?;
    if let NamedChanged::Changed(_) = &outcome {
        tx.record(key, &outcome).await?;
    }
    Ok(Keyed::Fresh(outcome))
}

/// Returns the values of [`UPDATE`], with which [`INSERT`] begins.
fn values_of(record: &McpServerRecord) -> StoreResult<Vec<Value<'_>>> {
    let secrets = record.secrets.as_ref();
    let values = values![
        record.id.as_str(),
        record.version,
        &record.name,
        encode_storable(TABLE, "entry", record.id.as_str(), &record.entry)?,
        secrets.map(|sealed| sealed.key_id.as_str()),
        secrets.map(|sealed| sealed.data.as_str()),
        record.reach.as_str(),
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
        secrets: read_sealed(row)?,
        reach: read_word(row, TABLE, "reach", &id, Reach::from_word)?,
        enabled: row.get("enabled")?,
        created_at: UnixMillis(row.get("created_at")?),
        updated_at: UnixMillis(row.get("updated_at")?),
        version: row.get("version")?,
        generation: row.get("generation")?,
        id: McpServerId::from_stored(id),
    })
}
