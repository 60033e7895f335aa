//! Providers that people keep.

use async_trait::async_trait;
use sqlx::SqliteConnection;

use super::SqliteStore;
use super::named::Make;
use crate::domain::ids::{ProviderId, UserId};
use crate::domain::provider::ProviderRecord;
use crate::store::providers::{cursor, page_of, provider_columns, read_login, read_provider, read_sealed_row};
use crate::store::{
    IdempotencyClaim, Keyed, LoginTaker, Page, PageRequest, ProviderChanged, ProviderCursor, ProviderLogin, ProviderMade,
    ProviderStore, SealedRow, SecretOf, StoreResult, rows,
};
use crate::support::seal::Sealed;

async fn insert(connection: &mut SqliteConnection, new: &ProviderRecord) -> StoreResult<bool> {
    let sealed = new.key.as_ref().map(|key| &key.sealed);
    let made = sqlx::query(
        "INSERT INTO providers (id, owner_id, name, kind, base_url, reach, key_id, key_data, key_hint, models, limits,
             accent, enabled, created_at, updated_at, version)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
         ON CONFLICT (coalesce(owner_id, ''), name) DO NOTHING",
    )
    .bind(new.id.as_str())
    .bind(new.owner.as_ref().map(UserId::as_str))
    .bind(&new.name)
    .bind(new.kind.as_str())
    .bind(&new.base_url)
    .bind(new.reach.as_str())
    .bind(sealed.map(|sealed| sealed.key_id.as_str()))
    .bind(sealed.map(|sealed| sealed.data.as_str()))
    .bind(new.key.as_ref().and_then(|key| key.hint.as_deref()))
    .bind(rows::encode_storable("providers", "models", new.id.as_str(), &new.models)?)
    .bind(rows::encode_storable("providers", "limits", new.id.as_str(), &new.limits)?)
    .bind(new.accent.as_ref().map(|accent| rows::encode_storable("providers", "accent", new.id.as_str(), accent)).transpose()?)
    .bind(new.enabled)
    .bind(new.created_at.0)
    .bind(new.updated_at.0)
    .bind(new.version)
    .execute(&mut *connection)
    .await?;
    Ok(made.rows_affected() > 0)
}

#[async_trait]
impl ProviderStore for SqliteStore {
    async fn create_provider(
        &self,
        new: &ProviderRecord,
        most: u32,
        idempotency: Option<IdempotencyClaim>,
    ) -> StoreResult<Keyed<ProviderMade>> {
        let (owner, key) = (new.owner.as_ref(), idempotency.as_ref());
        self.make(Make { table: "providers", owner, most, id: &new.id, key }, async |tx| insert(tx, new).await).await
    }

    async fn provider(&self, viewer: &UserId, id: &ProviderId) -> StoreResult<Option<ProviderRecord>> {
        let row = sqlx::query(concat!(
            "SELECT ",
            provider_columns!(),
            " FROM providers WHERE id = ? AND coalesce(owner_id, '') IN (?, '')"
        ))
        .bind(id.as_str())
        .bind(viewer.as_str())
        .fetch_optional(self.reader())
        .await?;
        row.as_ref().map(read_provider).transpose()
    }

    async fn providers(&self, viewer: &UserId, page: &PageRequest<ProviderCursor>) -> StoreResult<Page<ProviderRecord>> {
        let limit = page.limit.clamp(1, 100);
        let found = sqlx::query(concat!(
            "SELECT ",
            provider_columns!(),
            " FROM providers WHERE coalesce(owner_id, '') IN (?, '') AND (name, id) > (?, ?) ORDER BY name, id LIMIT ?"
        ))
        .bind(viewer.as_str())
        .bind(page.after.as_ref().map_or("", |after| after.name.as_str()))
        .bind(page.after.as_ref().map_or("", |after| after.id.as_str()))
        .bind(i64::from(limit) + 1)
        .fetch_all(self.reader())
        .await?;
        Ok(page_of(found.iter().map(read_provider).collect::<StoreResult<_>>()?, limit, cursor))
    }

    async fn provider_named(&self, owner: &UserId, name: &str) -> StoreResult<Option<ProviderRecord>> {
        let row = sqlx::query(concat!(
            "SELECT ",
            provider_columns!(),
            " FROM providers WHERE coalesce(owner_id, '') IN (?, '') AND name = ? AND enabled ORDER BY owner_id IS NULL LIMIT 1"
        ))
        .bind(owner.as_str())
        .bind(name)
        .fetch_optional(self.reader())
        .await?;
        row.as_ref().map(read_provider).transpose()
    }

    async fn change_provider(&self, changed: &ProviderRecord) -> StoreResult<ProviderChanged> {
        let sealed = changed.key.as_ref().map(|key| &key.sealed);
        let (_turn, mut tx) = self.write_in_turn().await?;
        let version: Result<Option<i64>, sqlx::Error> = sqlx::query_scalar(
            "UPDATE providers SET name = ?3, kind = ?4, base_url = ?5, reach = ?6, key_id = ?7, key_data = ?8, key_hint = ?9,
                 models = ?10, limits = ?11, accent = ?12, enabled = ?13, updated_at = ?14, version = version + 1
             WHERE id = ?1 AND version = ?2 RETURNING version",
        )
        .bind(changed.id.as_str())
        .bind(changed.version)
        .bind(&changed.name)
        .bind(changed.kind.as_str())
        .bind(&changed.base_url)
        .bind(changed.reach.as_str())
        .bind(sealed.map(|sealed| sealed.key_id.as_str()))
        .bind(sealed.map(|sealed| sealed.data.as_str()))
        .bind(changed.key.as_ref().and_then(|key| key.hint.as_deref()))
        .bind(rows::encode_storable("providers", "models", changed.id.as_str(), &changed.models)?)
        .bind(rows::encode_storable("providers", "limits", changed.id.as_str(), &changed.limits)?)
        .bind(
            changed
                .accent
                .as_ref()
                .map(|accent| rows::encode_storable("providers", "accent", changed.id.as_str(), accent))
                .transpose()?,
        )
        .bind(changed.enabled)
        .bind(changed.updated_at.0)
        .fetch_optional(&mut *tx)
        .await;
        match version {
            Ok(Some(version)) => {
                tx.commit().await?;
                Ok(ProviderChanged::Changed(version))
            }
            Ok(None) => Ok(ProviderChanged::Stale),
            Err(error) if error.as_database_error().is_some_and(sqlx::error::DatabaseError::is_unique_violation) => {
                Ok(ProviderChanged::NameTaken)
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn delete_provider(&self, owner: Option<&UserId>, id: &ProviderId, version: i64) -> StoreResult<bool> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        let deleted = sqlx::query("DELETE FROM providers WHERE id = ? AND coalesce(owner_id, '') = ? AND version = ?")
            .bind(id.as_str())
            .bind(owner.map_or("", UserId::as_str))
            .bind(version)
            .execute(&mut *tx)
            .await?
            .rows_affected();
        tx.commit().await?;
        Ok(deleted > 0)
    }

    async fn create_login(&self, state_hash: &str, login: &ProviderLogin, lifetime_ms: u32) -> StoreResult<()> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        sqlx::query(concat!(
            "INSERT INTO provider_logins (owner_id, state_hash, browser_hash, key_hash, key_id, key_data, expires_at)
             VALUES (?, ?, ?, ?, ?, ?, ",
            now!(),
            " + ?)
             ON CONFLICT (owner_id) DO UPDATE SET state_hash = excluded.state_hash, browser_hash = excluded.browser_hash,
                 key_hash = excluded.key_hash, key_id = excluded.key_id, key_data = excluded.key_data, expires_at = excluded.expires_at"
        ))
        .bind(login.owner.as_str())
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

    async fn take_login(&self, state_hash: &str, taker: &LoginTaker) -> StoreResult<Option<ProviderLogin>> {
        let (owner, browser) = taker.parts();
        // Asked of a reader first, so that guesses do not queue for the writer.
        let exists: bool = sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM provider_logins WHERE state_hash = ?)")
            .bind(state_hash)
            .fetch_one(self.reader())
            .await?;
        if !exists {
            return Ok(None);
        }
        let (_turn, mut tx) = self.write_in_turn().await?;
        let taken = sqlx::query(concat!(
            "DELETE FROM provider_logins WHERE state_hash = ? AND (owner_id = ? OR browser_hash = ?)
             RETURNING owner_id, browser_hash, key_hash, key_id, key_data, expires_at > ",
            now!(),
            " AS is_valid"
        ))
        .bind(state_hash)
        .bind(owner)
        .bind(browser)
        .fetch_optional(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(taken.as_ref().map(read_login).transpose()?.flatten())
    }

    async fn master_keys_in_use(&self) -> StoreResult<Vec<(String, i64)>> {
        let counts = sqlx::query_as(
            "SELECT key_id, count(*)
             FROM (SELECT key_id FROM providers UNION ALL SELECT key_id FROM mcp_servers UNION ALL SELECT key_id FROM mcp_tokens)
                 AS secrets
             WHERE key_id IS NOT NULL GROUP BY key_id ORDER BY key_id",
        );
        Ok(counts.fetch_all(self.reader()).await?)
    }

    async fn sealed_rows(&self, after: Option<&str>, limit: u32) -> StoreResult<Vec<SealedRow>> {
        let found = sqlx::query(
            "SELECT 'provider' AS kind, id, owner_id, key_id, key_data FROM providers WHERE key_id IS NOT NULL AND id > ?1
             UNION ALL
             SELECT 'mcp_server', id, owner_id, key_id, key_data FROM mcp_servers WHERE key_id IS NOT NULL AND id > ?1
             UNION ALL
             SELECT 'mcp_tokens', server_id || '.tokens', owner_id, key_id, key_data FROM mcp_tokens
             WHERE key_id IS NOT NULL AND server_id || '.tokens' > ?1
             ORDER BY id LIMIT ?2",
        )
        .bind(after.unwrap_or_default())
        .bind(limit)
        .fetch_all(self.reader())
        .await?;
        let found = found.iter().map(read_sealed_row).collect::<StoreResult<Vec<_>>>()?;
        Ok(found.into_iter().flatten().collect())
    }

    async fn reseal(&self, row: &SealedRow, anew: Option<&Sealed>) -> StoreResult<bool> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        // Another version, though it is the same key: a change that was made from the one before would bring the old seal back.
        let statement = match row.of {
            SecretOf::Provider => {
                "UPDATE providers SET key_id = ?4, key_data = ?5, key_hint = iif(?4 IS NULL, NULL, key_hint), version = version + 1
                 WHERE id = ?1 AND key_id = ?2 AND key_data = ?3"
            }
            SecretOf::McpServer => {
                "UPDATE mcp_servers SET key_id = ?4, key_data = ?5, version = version + 1
                 WHERE id = ?1 AND key_id = ?2 AND key_data = ?3"
            }
            SecretOf::McpTokens => {
                // A refresh that is under way must not lose what it gets; it is sealed with the newest key, too.
                "UPDATE mcp_tokens SET key_id = ?4, key_data = ?5
                 WHERE server_id || '.tokens' = ?1 AND key_id = ?2 AND key_data = ?3"
            }
        };
        let changed = sqlx::query(statement)
            .bind(&row.id)
            .bind(&row.sealed.key_id)
            .bind(&row.sealed.data)
            .bind(anew.map(|sealed| sealed.key_id.as_str()))
            .bind(anew.map(|sealed| sealed.data.as_str()))
            .execute(&mut *tx)
            .await?
            .rows_affected();
        tx.commit().await?;
        Ok(changed > 0)
    }
}
