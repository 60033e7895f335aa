//! Providers, their logins, and the encrypted secrets of all tables.
//!
//! Owns the tables `providers` and `provider_logins`. Must not know how a secret is encrypted.

use crate::domain::ids::{ProviderId, UserId};
use crate::domain::model::{EgressScope, ProviderKind, ProviderRecord, StoredSecret};
use crate::store::records::providers::{
    EncryptedRow, LoginClaimant, ProviderChanged, ProviderCursor, ProviderLogin, ProviderMade, SecretKind,
};
use crate::store::rows::{encode_storable, read_json, read_optional_json, read_word};
use crate::store::sql::records::named::{NamedRow, owner_text};
use crate::store::sql::{Row, Statement, Value, statements, values};
use crate::store::{IdempotencyKey, IdempotentResult, Page, PageRequest, RecordStore, StoreResult};
use crate::support::clock::UnixMillis;
use crate::support::encryption::EncryptedSecret;

const TABLE: &str = "providers";

/// The number of the lock that allows one request per owner to create a provider at a time.
const LOCK: i64 = 7;

macro_rules! columns {
    ($dialect:ident) => {
        "id, owner_id, name, kind, base_url, reach, key_id, key_data, key_hint, models, limits, accent, enabled, created_at,
         updated_at, version"
    };
}

statements! {
    COUNT = ["SELECT count(*) FROM providers WHERE coalesce(owner_id, '') = $1"];

    INSERT = ["INSERT INTO providers (id, version, name, kind, base_url, reach, key_id, key_data, key_hint, models, limits, accent,
             enabled, updated_at, owner_id, created_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)
         ON CONFLICT (coalesce(owner_id, ''), name) DO NOTHING"];

    BY_ID = ["SELECT ", columns, " FROM providers WHERE id = $1 AND coalesce(owner_id, '') IN ($2, '')"];

    PAGE = ["SELECT ", columns, " FROM providers WHERE coalesce(owner_id, '') IN ($1, '') AND (name, id) > ($2, $3)
         ORDER BY name, id LIMIT $4"];

    BY_NAME = ["SELECT ", columns, " FROM providers
         WHERE coalesce(owner_id, '') IN ($1, '') AND name = $2 AND enabled ORDER BY owner_id IS NULL LIMIT 1"];

    UPDATE = ["UPDATE providers SET name = $3, kind = $4, base_url = $5, reach = $6, key_id = $7, key_data = $8, key_hint = $9,
             models = $10, limits = $11, accent = $12, enabled = $13, updated_at = $14, version = version + 1
         WHERE id = $1 AND version = $2 RETURNING version"];

    DELETE = ["DELETE FROM providers WHERE id = $1 AND coalesce(owner_id, '') = $2 AND version = $3"];

    INSERT_LOGIN = ["INSERT INTO provider_logins (owner_id, state_hash, browser_hash, key_hash, key_id, key_data, expires_at)
         VALUES ($1, $2, $3, $4, $5, $6, ", now, " + $7)
         ON CONFLICT (owner_id) DO UPDATE SET state_hash = excluded.state_hash, browser_hash = excluded.browser_hash,
             key_hash = excluded.key_hash, key_id = excluded.key_id, key_data = excluded.key_data, expires_at = excluded.expires_at"];

    LOGIN_EXISTS = ["SELECT EXISTS (SELECT 1 FROM provider_logins WHERE state_hash = $1)"];

    TAKE_LOGIN = ["DELETE FROM provider_logins WHERE state_hash = $1 AND (owner_id = $2 OR browser_hash = $3)
         RETURNING owner_id, browser_hash, key_hash, key_id, key_data, expires_at > ", now, " AS is_valid"];

    MASTER_KEYS = ["SELECT key_id, count(*) AS secrets
         FROM (SELECT key_id FROM providers UNION ALL SELECT key_id FROM mcp_servers UNION ALL SELECT key_id FROM mcp_tokens)
             AS secrets
         WHERE key_id IS NOT NULL GROUP BY key_id ORDER BY key_id"];

    ENCRYPTED_ROWS = ["SELECT 'provider' AS kind, id, owner_id, key_id, key_data FROM providers WHERE key_id IS NOT NULL AND id > $1
         UNION ALL
         SELECT 'mcp_server', id, owner_id, key_id, key_data FROM mcp_servers WHERE key_id IS NOT NULL AND id > $1
         UNION ALL
         SELECT 'mcp_tokens', server_id || '.tokens', owner_id, key_id, key_data FROM mcp_tokens
         WHERE key_id IS NOT NULL AND server_id || '.tokens' > $1
         ORDER BY id LIMIT $2"];

    REENCRYPT_PROVIDER = ["UPDATE providers SET key_id = $4, key_data = $5,
             key_hint = CASE WHEN CAST($4 AS text) IS NULL THEN NULL ELSE key_hint END, version = version + 1
         WHERE id = $1 AND key_id = $2 AND key_data = $3"];

    REENCRYPT_MCP_SERVER = ["UPDATE mcp_servers SET key_id = $4, key_data = $5, version = version + 1
         WHERE id = $1 AND key_id = $2 AND key_data = $3"];

    REENCRYPT_MCP_TOKENS = ["UPDATE mcp_tokens SET key_id = $4, key_data = $5
         WHERE server_id || '.tokens' = $1 AND key_id = $2 AND key_data = $3"];
}

/// Providers of owners and of the server. A viewer sees their own and the server's.
impl dyn RecordStore + '_ {
    /// Stores a provider, unless its owner has `most` already. Idempotent by `key`.
    pub async fn create_provider(
        &self,
        new: &ProviderRecord,
        most: u32,
        key: Option<IdempotencyKey>,
    ) -> IdempotentResult<ProviderMade> {
        let mut insert = values_of(new)?;
        insert.extend([Value::from(new.owner.as_ref().map(UserId::as_str)), new.created_at.into()]);
        let row = NamedRow { count: COUNT, lock: LOCK, owner: new.owner.as_ref(), most, id: &new.id };
        self.database().create_named(row, &[(INSERT, &insert)], key).await
    }

    /// Returns the provider, unless it is missing or belongs to another owner.
    pub async fn provider(&self, viewer: &UserId, id: &ProviderId) -> StoreResult<Option<ProviderRecord>> {
        self.database().read_optional(BY_ID, values![id.as_str(), viewer.as_str()], read_provider).await
    }

    /// Returns a page of providers, ordered by name.
    pub async fn providers(&self, viewer: &UserId, page: &PageRequest<ProviderCursor>) -> StoreResult<Page<ProviderRecord>> {
        let cursor = |provider: &ProviderRecord| ProviderCursor { name: provider.name.clone(), id: provider.id.clone() };
        self.database().named_page(PAGE, viewer, page, read_provider, cursor).await
    }

    /// Returns the enabled provider with that name: the owner's own, or else the server's.
    pub async fn provider_named(&self, owner: &UserId, name: &str) -> StoreResult<Option<ProviderRecord>> {
        self.database().read_optional(BY_NAME, values![owner.as_str(), name], read_provider).await
    }

    /// Stores a changed provider, except its owner and `created_at`. `version` is the version that the change is based on.
    pub async fn change_provider(&self, changed: &ProviderRecord) -> StoreResult<ProviderChanged> {
        self.database().change_named(UPDATE, &values_of(changed)?).await
    }

    /// Deletes a provider of that owner, or of the server. Returns false if none has that version.
    pub async fn delete_provider(&self, owner: Option<&UserId>, id: &ProviderId, version: i64) -> StoreResult<bool> {
        Ok(self.database().execute(DELETE, values![id.as_str(), owner_text(owner), version]).await? > 0)
    }

    /// Stores a login for `lifetime_ms`, by the database's clock. It replaces the owner's earlier login.
    pub async fn create_login(&self, state_hash: &str, login: &ProviderLogin, lifetime_ms: u32) -> StoreResult<()> {
        self.database().execute(INSERT_LOGIN, &login_values(state_hash, login, lifetime_ms)).await?;
        Ok(())
    }

    /// Consumes a login that matches `claimant` by its owner or browser. `None` if it is unknown, consumed or expired, or does not
    /// match.
    pub async fn take_login(&self, state_hash: &str, claimant: &LoginClaimant) -> StoreResult<Option<ProviderLogin>> {
        let (owner, browser) = claimant.parts();
        let row = self.database().take(LOGIN_EXISTS, TAKE_LOGIN, values![state_hash, owner, browser]).await?;
        Ok(row.as_ref().map(read_login).transpose()?.flatten())
    }

    /// Returns the master keys that encrypt secrets, each with the number of its secrets.
    pub async fn master_keys_in_use(&self) -> StoreResult<Vec<(String, i64)>> {
        self.database().read_all(MASTER_KEYS, &[], |row| Ok((row.get("key_id")?, row.get("secrets")?))).await
    }

    /// Returns encrypted secrets ordered by id, after the given one, at most `limit`.
    pub async fn encrypted_rows(&self, after: Option<&str>, limit: u32) -> StoreResult<Vec<EncryptedRow>> {
        let values = values![after.unwrap_or_default(), limit];
        let rows = self.database().read_all(ENCRYPTED_ROWS, values, read_encrypted_row).await?;
        Ok(rows.into_iter().flatten().collect())
    }

    /// Replaces the secret of `row` by the same secret under another master key, or removes it. Returns false if the stored secret
    /// is no longer that of `row`.
    pub async fn reencrypt(&self, row: &EncryptedRow, replacement: Option<&EncryptedSecret>) -> StoreResult<bool> {
        let reencrypt: Statement = match row.of {
            // Increments the version although the decrypted secret is the same: a change based on the old version would restore the
            // old encryption.
            SecretKind::Provider => REENCRYPT_PROVIDER,
            SecretKind::McpServer => REENCRYPT_MCP_SERVER,
            // Keeps the version: a running refresh must not lose its tokens, which are encrypted with the newest key as well.
            SecretKind::McpTokens => REENCRYPT_MCP_TOKENS,
        };
        let values = values![
            &row.id,
            &row.encrypted.key_id,
            &row.encrypted.data,
            replacement.map(|encrypted| encrypted.key_id.as_str()),
            replacement.map(|encrypted| encrypted.data.as_str()),
        ];
        Ok(self.database().execute(reencrypt, values).await? > 0)
    }
}

/// Returns the values for [`UPDATE`]. The values for [`INSERT`] begin with them.
fn values_of(record: &ProviderRecord) -> StoreResult<Vec<Value<'_>>> {
    let (id, key) = (record.id.as_str(), record.key.as_ref());
    let values = values![
        id,
        record.version,
        &record.name,
        record.kind.as_str(),
        &record.base_url,
        record.egress.as_str(),
        key.map(|key| key.encrypted.key_id.as_str()),
        key.map(|key| key.encrypted.data.as_str()),
        key.and_then(|key| key.hint.as_deref()),
        encode_storable(TABLE, "models", id, &record.models)?,
        encode_storable(TABLE, "limits", id, &record.limits)?,
        record.quirks.as_ref().map(|quirks| encode_storable(TABLE, "accent", id, quirks)).transpose()?,
        record.enabled,
        record.updated_at,
    ];
    Ok(values.to_vec())
}

fn read_provider(row: &Row) -> StoreResult<ProviderRecord> {
    let (id, hint) = (row.get::<String>("id")?, row.get("key_hint")?);
    Ok(ProviderRecord {
        owner: row.get::<Option<String>>("owner_id")?.map(UserId::from_stored),
        name: row.get("name")?,
        kind: read_word(row, TABLE, "kind", &id, ProviderKind::from_name)?,
        base_url: row.get("base_url")?,
        egress: read_word(row, TABLE, "reach", &id, EgressScope::from_name)?,
        key: read_encrypted(row)?.map(|encrypted| StoredSecret { encrypted, hint }),
        models: read_json(row, TABLE, "models", &id)?,
        limits: read_json(row, TABLE, "limits", &id)?,
        quirks: read_optional_json(row, TABLE, "accent", &id)?,
        enabled: row.get("enabled")?,
        created_at: UnixMillis(row.get("created_at")?),
        updated_at: UnixMillis(row.get("updated_at")?),
        version: row.get("version")?,
        id: ProviderId::from_stored(id),
    })
}

/// Reads `key_id` and `key_data`.
pub fn read_encrypted(row: &Row) -> Result<Option<EncryptedSecret>, sqlx::Error> {
    let (key_id, data): (Option<String>, Option<String>) = (row.get("key_id")?, row.get("key_data")?);
    Ok(key_id.zip(data).map(|(key_id, data)| EncryptedSecret { key_id, data }))
}

fn read_encrypted_row(row: &Row) -> StoreResult<Option<EncryptedRow>> {
    let owner = row.get::<Option<String>>("owner_id")?.map(UserId::from_stored);
    let id: String = row.get("id")?;
    let of = read_word(row, "secrets", "kind", &id, SecretKind::from_name)?;
    Ok(read_encrypted(row)?.map(|encrypted| EncryptedRow { of, owner, id, encrypted }))
}

/// Returns the first values for the insertion of a login.
pub fn login_values<'a>(state_hash: &'a str, login: &'a ProviderLogin, lifetime_ms: u32) -> Vec<Value<'a>> {
    let (owner, key_hash) = (login.owner.as_str(), login.key_hash.as_deref());
    let EncryptedSecret { key_id, data } = &login.verifier;
    values![owner, state_hash, &login.browser_hash, key_hash, key_id, data, lifetime_ms].to_vec()
}

/// Reads a consumed login, unless it has expired.
pub fn read_login(row: &Row) -> Result<Option<ProviderLogin>, sqlx::Error> {
    if !row.get::<bool>("is_valid")? {
        return Ok(None);
    }
    let (owner, browser_hash) = (UserId::from_stored(row.get("owner_id")?), row.get("browser_hash")?);
    let key_hash = row.get("key_hash")?;
    Ok(read_encrypted(row)?.map(|verifier| ProviderLogin { owner, browser_hash, key_hash, verifier }))
}
