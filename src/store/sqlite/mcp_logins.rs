//! Logins at MCP servers.

use async_trait::async_trait;

use super::SqliteStore;
use crate::domain::ids::{McpServerId, UserId};
use crate::store::mcp_logins::{read_mcp_login, read_tokens};
use crate::store::{LoginTaker, McpLoginStore, McpTokens, ProviderLogin, StoreResult};
use crate::support::seal::Sealed;

#[async_trait]
impl McpLoginStore for SqliteStore {
    async fn create_mcp_login(
        &self,
        state_hash: &str,
        server: &McpServerId,
        login: &ProviderLogin,
        lifetime_ms: u32,
    ) -> StoreResult<()> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        sqlx::query(concat!(
            "INSERT INTO mcp_logins (owner_id, server_id, state_hash, browser_hash, key_hash, key_id, key_data, expires_at)
             VALUES (?, ?, ?, ?, ?, ?, ?, ",
            now!(),
            " + ?)
             ON CONFLICT (owner_id, server_id) DO UPDATE SET state_hash = excluded.state_hash,
                 browser_hash = excluded.browser_hash, key_hash = excluded.key_hash, key_id = excluded.key_id,
                 key_data = excluded.key_data, expires_at = excluded.expires_at"
        ))
        .bind(login.owner.as_str())
        .bind(server.as_str())
        .bind(state_hash)
        .bind(&login.browser_hash)
        .bind(&login.key_hash)
        .bind(&login.verifier.key_id)
        .bind(&login.verifier.data)
        .bind(lifetime_ms)
        .execute(&mut *tx)
        .await?;
        Ok(tx.commit().await?)
    }

    async fn take_mcp_login(&self, state_hash: &str, taker: &LoginTaker) -> StoreResult<Option<(McpServerId, ProviderLogin)>> {
        let (owner, browser) = taker.parts();
        // Asked of a reader first, so that guesses do not queue for the writer.
        let exists: bool = sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM mcp_logins WHERE state_hash = ?)")
            .bind(state_hash)
            .fetch_one(self.reader())
            .await?;
        if !exists {
            return Ok(None);
        }
        let (_turn, mut tx) = self.write_in_turn().await?;
        let taken = sqlx::query(concat!(
            "DELETE FROM mcp_logins WHERE state_hash = ? AND (owner_id = ? OR browser_hash = ?)
             RETURNING server_id, owner_id, browser_hash, key_hash, key_id, key_data, expires_at > ",
            now!(),
            " AS is_valid"
        ))
        .bind(state_hash)
        .bind(owner)
        .bind(browser)
        .fetch_optional(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(taken.as_ref().map(read_mcp_login).transpose()?.flatten())
    }

    async fn mcp_tokens(&self, server: &McpServerId) -> StoreResult<Option<McpTokens>> {
        let row = sqlx::query(concat!(
            "SELECT server_id, owner_id, key_id, key_data, fresh_until - ",
            now!(),
            " AS fresh_for, version FROM mcp_tokens WHERE server_id = ?"
        ))
        .bind(server.as_str())
        .fetch_optional(self.reader())
        .await?;
        Ok(row.as_ref().map(read_tokens).transpose()?.flatten())
    }

    async fn put_mcp_tokens(&self, tokens: &McpTokens) -> StoreResult<()> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        sqlx::query(concat!(
            "INSERT INTO mcp_tokens (server_id, owner_id, key_id, key_data, fresh_until, seen_at) VALUES (?, ?, ?, ?, ",
            now!(),
            " + ?, ",
            now!(),
            ")
             ON CONFLICT (server_id) DO UPDATE SET owner_id = excluded.owner_id, key_id = excluded.key_id,
                 key_data = excluded.key_data, fresh_until = excluded.fresh_until, claimed_until = 0, seen_at = excluded.seen_at,
                 version = mcp_tokens.version + 1"
        ))
        .bind(tokens.server.as_str())
        .bind(tokens.owner.as_ref().map(UserId::as_str))
        .bind(&tokens.sealed.key_id)
        .bind(&tokens.sealed.data)
        .bind(tokens.fresh_for_ms)
        .execute(&mut *tx)
        .await?;
        Ok(tx.commit().await?)
    }

    async fn claim_mcp_tokens(&self, server: &McpServerId, version: i64, for_ms: u32) -> StoreResult<bool> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        let claimed = sqlx::query(concat!(
            "UPDATE mcp_tokens SET claimed_until = ",
            now!(),
            " + ? WHERE server_id = ? AND version = ? AND claimed_until <= ",
            now!()
        ))
        .bind(for_ms)
        .bind(server.as_str())
        .bind(version)
        .execute(&mut *tx)
        .await?
        .rows_affected();
        tx.commit().await?;
        Ok(claimed > 0)
    }

    async fn end_mcp_refresh(&self, server: &McpServerId, version: i64, anew: Option<(&Sealed, Option<i64>)>) -> StoreResult<bool> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        let ended = match anew {
            None => sqlx::query("UPDATE mcp_tokens SET claimed_until = 0 WHERE server_id = ? AND version = ?")
                .bind(server.as_str())
                .bind(version)
                .execute(&mut *tx),
            Some((sealed, fresh_for_ms)) => sqlx::query(concat!(
                "UPDATE mcp_tokens SET claimed_until = 0, version = version + 1, key_id = ?3, key_data = ?4, fresh_until = ",
                now!(),
                " + ?5 WHERE server_id = ?1 AND version = ?2"
            ))
            .bind(server.as_str())
            .bind(version)
            .bind(&sealed.key_id)
            .bind(&sealed.data)
            .bind(fresh_for_ms)
            .execute(&mut *tx),
        };
        let ended = ended.await?.rows_affected();
        tx.commit().await?;
        Ok(ended > 0)
    }

    async fn forget_mcp_tokens(&self, server: &McpServerId, version: Option<i64>) -> StoreResult<bool> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        if version.is_none() {
            sqlx::query("DELETE FROM mcp_logins WHERE server_id = ?").bind(server.as_str()).execute(&mut *tx).await?;
        }
        let gone = sqlx::query("DELETE FROM mcp_tokens WHERE server_id = ?1 AND version = coalesce(?2, version)")
            .bind(server.as_str())
            .bind(version)
            .execute(&mut *tx)
            .await?
            .rows_affected();
        tx.commit().await?;
        Ok(gone > 0)
    }

    async fn see_mcp_tokens(&self, servers: &[McpServerId]) -> StoreResult<()> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        for server in servers {
            sqlx::query(concat!("UPDATE mcp_tokens SET seen_at = ", now!(), " WHERE server_id = ?"))
                .bind(server.as_str())
                .execute(&mut *tx)
                .await?;
        }
        Ok(tx.commit().await?)
    }

    async fn forget_unseen_mcp_tokens(&self, unseen_ms: i64) -> StoreResult<u64> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        sqlx::query(concat!("DELETE FROM mcp_logins WHERE expires_at <= ", now!())).execute(&mut *tx).await?;
        let gone = sqlx::query(concat!(
            "DELETE FROM mcp_tokens WHERE seen_at <= ",
            now!(),
            " - ? AND NOT EXISTS (SELECT 1 FROM mcp_servers WHERE mcp_servers.id = mcp_tokens.server_id)"
        ))
        .bind(unseen_ms)
        .execute(&mut *tx)
        .await?
        .rows_affected();
        tx.commit().await?;
        Ok(gone)
    }
}
