//! OAuth logins at MCP servers, and their tokens.
//!
//! Owns the tables `mcp_logins` and `mcp_tokens`. Must not know how a token is refreshed.

use crate::domain::ids::{McpServerId, UserId};
use crate::store::records::mcp_logins::McpTokens;
use crate::store::sql::records::providers::{login_values, read_encrypted, read_login};
use crate::store::sql::{Row, Transaction, Value, statements, values};
use crate::store::{LoginClaimant, ProviderLogin, RecordStore, StoreResult};
use crate::support::encryption::EncryptedSecret;

statements! {
    INSERT_LOGIN = ["INSERT INTO mcp_logins (owner_id, state_hash, browser_hash, key_hash, key_id, key_data, expires_at, server_id)
         VALUES ($1, $2, $3, $4, $5, $6, ", now, " + $7, $8)
         ON CONFLICT (owner_id, server_id) DO UPDATE SET state_hash = excluded.state_hash,
             browser_hash = excluded.browser_hash, key_hash = excluded.key_hash, key_id = excluded.key_id,
             key_data = excluded.key_data, expires_at = excluded.expires_at"];

    LOGIN_EXISTS = ["SELECT EXISTS (SELECT 1 FROM mcp_logins WHERE state_hash = $1)"];

    TAKE_LOGIN = ["DELETE FROM mcp_logins WHERE state_hash = $1 AND (owner_id = $2 OR browser_hash = $3)
         RETURNING server_id, owner_id, browser_hash, key_hash, key_id, key_data, expires_at > ", now, " AS is_valid"];

    TOKENS = ["SELECT server_id, owner_id, key_id, key_data, fresh_until - ", now, " AS fresh_for, version
         FROM mcp_tokens WHERE server_id = $1"];

    PUT_TOKENS = ["INSERT INTO mcp_tokens (server_id, owner_id, key_id, key_data, fresh_until, seen_at)
         VALUES ($1, $2, $3, $4, ", now, " + $5, ", now, ")
         ON CONFLICT (server_id) DO UPDATE SET owner_id = excluded.owner_id, key_id = excluded.key_id,
             key_data = excluded.key_data, fresh_until = excluded.fresh_until, claimed_until = 0, seen_at = excluded.seen_at,
             version = mcp_tokens.version + 1"];

    CLAIM_TOKENS = ["UPDATE mcp_tokens SET claimed_until = ", now, " + $3
         WHERE server_id = $1 AND version = $2 AND claimed_until <= ", now];

    RELEASE_TOKENS = ["UPDATE mcp_tokens SET claimed_until = 0 WHERE server_id = $1 AND version = $2"];

    REFRESH_TOKENS = ["UPDATE mcp_tokens SET claimed_until = 0, version = version + 1, key_id = $3, key_data = $4,
             fresh_until = ", now, " + $5
         WHERE server_id = $1 AND version = $2"];

    DELETE_TOKENS = ["DELETE FROM mcp_tokens WHERE server_id = $1"];

    DELETE_TOKENS_OF_VERSION = ["DELETE FROM mcp_tokens WHERE server_id = $1 AND version = $2"];

    DELETE_LOGINS = ["DELETE FROM mcp_logins WHERE server_id = $1"];

    MARK_TOKENS = ["UPDATE mcp_tokens SET seen_at = ", now, " WHERE server_id ", (in_list "$1")];

    DELETE_EXPIRED_LOGINS = ["DELETE FROM mcp_logins WHERE expires_at <= ", now];

    DELETE_UNSEEN_TOKENS = ["DELETE FROM mcp_tokens
         WHERE seen_at <= ", now, " - $1 AND NOT EXISTS (SELECT 1 FROM mcp_servers s WHERE s.id = mcp_tokens.server_id)"];
}

/// Logins at MCP servers. The caller has checked that the principal may use the server.
impl dyn RecordStore + '_ {
    /// Stores a login at a server for `lifetime_ms`, by the database's clock. It replaces the owner's earlier login at that server.
    pub async fn create_mcp_login(
        &self,
        state_hash: &str,
        server: &McpServerId,
        login: &ProviderLogin,
        lifetime_ms: u32,
    ) -> StoreResult<()> {
        let mut insert = login_values(state_hash, login, lifetime_ms);
        insert.push(server.as_str().into());
        self.database().execute(INSERT_LOGIN, &insert).await?;
        Ok(())
    }

    /// Consumes a login that matches `claimant` by its owner or browser. `None` if it is unknown, consumed or expired, or does not
    /// match.
    pub async fn take_mcp_login(
        &self,
        state_hash: &str,
        claimant: &LoginClaimant,
    ) -> StoreResult<Option<(McpServerId, ProviderLogin)>> {
        let (owner, browser) = claimant.parts();
        let row = self.database().take(LOGIN_EXISTS, TAKE_LOGIN, values![state_hash, owner, browser]).await?;
        let Some(row) = row else { return Ok(None) };
        let server = McpServerId::from_stored(row.get("server_id")?);
        Ok(read_login(&row)?.map(|login| (server, login)))
    }

    pub async fn mcp_tokens(&self, server: &McpServerId) -> StoreResult<Option<McpTokens>> {
        let row = self.database().fetch_optional(TOKENS, values![server.as_str()]).await?;
        row.as_ref().map_or(Ok(None), read_tokens)
    }

    /// Stores tokens, replacing any others of the server, and voids a running refresh. Ignores their `version`.
    pub async fn put_mcp_tokens(&self, tokens: &McpTokens) -> StoreResult<()> {
        let put = values![
            tokens.server.as_str(),
            tokens.owner.as_ref().map(UserId::as_str),
            &tokens.encrypted.key_id,
            &tokens.encrypted.data,
            tokens.fresh_for_ms,
        ];
        self.database().execute(PUT_TOKENS, put).await?;
        Ok(())
    }

    /// Claims the right to refresh tokens of this version, for `for_ms` by the database's clock. Returns false if another process
    /// holds it, or the tokens have another version.
    pub async fn claim_mcp_tokens(&self, server: &McpServerId, version: i64, for_ms: u32) -> StoreResult<bool> {
        Ok(self.database().execute(CLAIM_TOKENS, values![server.as_str(), version, for_ms]).await? > 0)
    }

    /// Ends a refresh of tokens of this version. Stores the new tokens with their lifetime, or keeps the old ones. Returns false,
    /// and changes nothing, if the tokens have another version.
    pub async fn end_mcp_refresh(
        &self,
        server: &McpServerId,
        version: i64,
        new_tokens: Option<(&EncryptedSecret, Option<i64>)>,
    ) -> StoreResult<bool> {
        let (database, server) = (self.database(), server.as_str());
        let ended = match new_tokens {
            None => database.execute(RELEASE_TOKENS, values![server, version]).await?,
            Some((encrypted, fresh_for_ms)) => {
                let refresh = values![server, version, &encrypted.key_id, &encrypted.data, fresh_for_ms];
                database.execute(REFRESH_TOKENS, refresh).await?
            }
        };
        Ok(ended > 0)
    }

    /// Deletes the tokens of a server. With `version`, only if they have that version. Without it, also deletes unfinished logins.
    /// Returns false if no tokens were deleted.
    pub async fn forget_mcp_tokens(&self, server: &McpServerId, version: Option<i64>) -> StoreResult<bool> {
        let (database, server) = (self.database(), server.as_str());
        if let Some(version) = version {
            return Ok(database.execute(DELETE_TOKENS_OF_VERSION, values![server, version]).await? > 0);
        }
        let forget = async |tx: &mut Transaction| {
            tx.execute(DELETE_LOGINS, values![server]).await?;
            tx.execute(DELETE_TOKENS, values![server]).await
        };
        Ok(database.transaction(forget, |_| true).await? > 0)
    }

    /// Records that these servers are in the configuration of this process now.
    pub async fn mark_mcp_tokens_configured(&self, servers: &[McpServerId]) -> StoreResult<()> {
        let servers: Value<'_> = servers.iter().map(McpServerId::as_str).collect();
        self.database().execute(MARK_TOKENS, &[servers]).await?;
        Ok(())
    }

    /// Deletes the tokens of servers that are not stored, and that no process has had in its configuration for `unseen_ms`, by the
    /// database's clock. Also deletes expired logins. Returns the number of deleted tokens.
    pub async fn forget_unseen_mcp_tokens(&self, unseen_ms: i64) -> StoreResult<u64> {
        let forget = async |tx: &mut Transaction| {
            tx.execute(DELETE_EXPIRED_LOGINS, &[]).await?;
            tx.execute(DELETE_UNSEEN_TOKENS, values![unseen_ms]).await
        };
        self.database().transaction(forget, |_| true).await
    }
}

/// Reads tokens. `None` if the row has no encrypted data any more, because its master key was lost.
fn read_tokens(row: &Row) -> StoreResult<Option<McpTokens>> {
    let server = McpServerId::from_stored(row.get("server_id")?);
    let owner = row.get::<Option<String>>("owner_id")?.map(UserId::from_stored);
    let (fresh_for_ms, version) = (row.get("fresh_for")?, row.get("version")?);
    Ok(read_encrypted(row)?.map(|encrypted| McpTokens { server, owner, encrypted, fresh_for_ms, version }))
}
