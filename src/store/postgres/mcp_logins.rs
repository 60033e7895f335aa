//! Logins at MCP servers.

use async_trait::async_trait;

use super::PostgresStore;
use crate::domain::ids::{McpServerId, UserId};
use crate::store::mcp_logins::{read_mcp_login, read_tokens};
use crate::store::{LoginTaker, McpLoginStore, McpTokens, ProviderLogin, StoreResult};
use crate::support::seal::Sealed;

#[async_trait]
impl McpLoginStore for PostgresStore {
    async fn create_mcp_login(
        &self,
        state_hash: &str,
        server: &McpServerId,
        login: &ProviderLogin,
        lifetime_ms: u32,
    ) -> StoreResult<()> {
        sqlx::query(
            "INSERT INTO mcp_logins (owner_id, server_id, state_hash, browser_hash, key_hash, key_id, key_data, expires_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, now_ms() + $8)
             ON CONFLICT (owner_id, server_id) DO UPDATE SET state_hash = excluded.state_hash,
                 browser_hash = excluded.browser_hash, key_hash = excluded.key_hash, key_id = excluded.key_id,
                 key_data = excluded.key_data, expires_at = excluded.expires_at",
        )
        .bind(login.owner.as_str())
        .bind(server.as_str())
        .bind(state_hash)
        .bind(&login.browser_hash)
        .bind(&login.key_hash)
        .bind(&login.verifier.key_id)
        .bind(&login.verifier.data)
        .bind(i64::from(lifetime_ms))
        .execute(&self.api)
        .await?;
        Ok(())
    }

    async fn take_mcp_login(&self, state_hash: &str, taker: &LoginTaker) -> StoreResult<Option<(McpServerId, ProviderLogin)>> {
        let (owner, browser) = taker.parts();
        let taken = sqlx::query(
            "DELETE FROM mcp_logins WHERE state_hash = $1 AND (owner_id = $2 OR browser_hash = $3)
             RETURNING server_id, owner_id, browser_hash, key_hash, key_id, key_data, expires_at > now_ms() AS is_valid",
        )
        .bind(state_hash)
        .bind(owner)
        .bind(browser)
        .fetch_optional(&self.api)
        .await?;
        Ok(taken.as_ref().map(read_mcp_login).transpose()?.flatten())
    }

    async fn mcp_tokens(&self, server: &McpServerId) -> StoreResult<Option<McpTokens>> {
        let row = sqlx::query(
            "SELECT server_id, owner_id, key_id, key_data, fresh_until - now_ms() AS fresh_for, version
             FROM mcp_tokens WHERE server_id = $1",
        )
        .bind(server.as_str())
        .fetch_optional(&self.api)
        .await?;
        Ok(row.as_ref().map(read_tokens).transpose()?.flatten())
    }

    async fn put_mcp_tokens(&self, tokens: &McpTokens) -> StoreResult<()> {
        sqlx::query(
            "INSERT INTO mcp_tokens (server_id, owner_id, key_id, key_data, fresh_until) VALUES ($1, $2, $3, $4, now_ms() + $5)
             ON CONFLICT (server_id) DO UPDATE SET owner_id = excluded.owner_id, key_id = excluded.key_id,
                 key_data = excluded.key_data, fresh_until = excluded.fresh_until, claimed_until = 0, seen_at = excluded.seen_at,
                 version = mcp_tokens.version + 1",
        )
        .bind(tokens.server.as_str())
        .bind(tokens.owner.as_ref().map(UserId::as_str))
        .bind(&tokens.sealed.key_id)
        .bind(&tokens.sealed.data)
        .bind(tokens.fresh_for_ms)
        .execute(&self.api)
        .await?;
        Ok(())
    }

    async fn claim_mcp_tokens(&self, server: &McpServerId, version: i64, for_ms: u32) -> StoreResult<bool> {
        let claimed = sqlx::query(
            "UPDATE mcp_tokens SET claimed_until = now_ms() + $3
             WHERE server_id = $1 AND version = $2 AND claimed_until <= now_ms()",
        )
        .bind(server.as_str())
        .bind(version)
        .bind(i64::from(for_ms))
        .execute(&self.api)
        .await?;
        Ok(claimed.rows_affected() > 0)
    }

    async fn end_mcp_refresh(&self, server: &McpServerId, version: i64, anew: Option<(&Sealed, Option<i64>)>) -> StoreResult<bool> {
        let ended = match anew {
            None => sqlx::query("UPDATE mcp_tokens SET claimed_until = 0 WHERE server_id = $1 AND version = $2")
                .bind(server.as_str())
                .bind(version)
                .execute(&self.api),
            Some((sealed, fresh_for_ms)) => sqlx::query(
                "UPDATE mcp_tokens SET claimed_until = 0, version = version + 1, key_id = $3, key_data = $4,
                     fresh_until = now_ms() + $5
                 WHERE server_id = $1 AND version = $2",
            )
            .bind(server.as_str())
            .bind(version)
            .bind(&sealed.key_id)
            .bind(&sealed.data)
            .bind(fresh_for_ms)
            .execute(&self.api),
        };
        Ok(ended.await?.rows_affected() > 0)
    }

    async fn forget_mcp_tokens(&self, server: &McpServerId, version: Option<i64>) -> StoreResult<bool> {
        let gone = sqlx::query(
            "WITH logins AS (DELETE FROM mcp_logins WHERE server_id = $1 AND $2::bigint IS NULL)
             DELETE FROM mcp_tokens WHERE server_id = $1 AND version = coalesce($2, version)",
        )
        .bind(server.as_str())
        .bind(version)
        .execute(&self.api)
        .await?;
        Ok(gone.rows_affected() > 0)
    }

    async fn see_mcp_tokens(&self, servers: &[McpServerId]) -> StoreResult<()> {
        let servers: Vec<&str> = servers.iter().map(McpServerId::as_str).collect();
        sqlx::query("UPDATE mcp_tokens SET seen_at = now_ms() WHERE server_id = ANY($1)").bind(servers).execute(&self.api).await?;
        Ok(())
    }

    async fn forget_unseen_mcp_tokens(&self, unseen_ms: i64) -> StoreResult<u64> {
        let gone = sqlx::query(
            "WITH late AS (DELETE FROM mcp_logins WHERE expires_at <= now_ms())
             DELETE FROM mcp_tokens t
             WHERE seen_at <= now_ms() - $1 AND NOT EXISTS (SELECT 1 FROM mcp_servers s WHERE s.id = t.server_id)",
        )
        .bind(unseen_ms)
        .execute(&self.api)
        .await?;
        Ok(gone.rows_affected())
    }
}
