//! What users may do, and users who leave.

use async_trait::async_trait;
use sqlx::AssertSqlSafe;

use super::SqliteStore;
use super::keys::read_user;
use crate::domain::ids::UserId;
use crate::domain::principal::{User, UserRole};
use crate::domain::provider::Reach;
use crate::store::rows::{decode, encode};
use crate::store::users::{OWNED, REACHING};
use crate::store::{Owned, StoreResult, UserStore};

#[async_trait]
impl UserStore for SqliteStore {
    async fn user_named(&self, name: &str) -> StoreResult<Option<User>> {
        let row = sqlx::query("SELECT id, name, role FROM users WHERE name = ?").bind(name).fetch_optional(self.reader()).await?;
        row.as_ref().map(read_user).transpose()
    }

    async fn set_role(&self, user: &UserId, role: UserRole) -> StoreResult<()> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        let set = sqlx::query("UPDATE users SET role = ? WHERE id = ?").bind(role.as_str()).bind(user.as_str());
        set.execute(&mut *tx).await?;
        match role {
            UserRole::Admin => {}
            UserRole::Member => {
                for table in REACHING {
                    let statement = format!("UPDATE {table} SET reach = ?, version = version + 1 WHERE owner_id = ? AND reach = ?");
                    sqlx::query(AssertSqlSafe(statement))
                        .bind(Reach::Public.as_str())
                        .bind(user.as_str())
                        .bind(Reach::Anywhere.as_str())
                        .execute(&mut *tx)
                        .await?;
                }
            }
        }
        Ok(tx.commit().await?)
    }

    async fn set_groups(&self, user: &UserId, groups: &[String]) -> StoreResult<()> {
        let groups = encode("users", "groups", user.as_str(), &groups)?;
        let (_turn, mut tx) = self.write_in_turn().await?;
        let set = sqlx::query("UPDATE users SET groups = ? WHERE id = ?").bind(groups).bind(user.as_str());
        set.execute(&mut *tx).await?;
        Ok(tx.commit().await?)
    }

    async fn groups_of(&self, user: &UserId) -> StoreResult<Vec<String>> {
        let found = sqlx::query_scalar("SELECT groups FROM users WHERE id = ?").bind(user.as_str());
        let found: Option<String> = found.fetch_optional(self.reader()).await?;
        found.map_or_else(|| Ok(Vec::new()), |groups| decode("users", "groups", user.as_str(), &groups))
    }

    async fn owned_by(&self, user: &UserId) -> StoreResult<Owned> {
        let count = async |table: &str| -> StoreResult<u64> {
            let count = sqlx::query_scalar(AssertSqlSafe(format!("SELECT count(*) FROM {table} WHERE owner_id = ?")));
            let count: i64 = count.bind(user.as_str()).fetch_one(self.reader()).await?;
            Ok(u64::try_from(count).unwrap_or(0))
        };
        let conversations = count("conversations").await?;
        let mut records = 0;
        for table in OWNED {
            records += count(table).await?;
        }
        Ok(Owned { conversations, records })
    }

    async fn remove_user(&self, user: &UserId) -> StoreResult<bool> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        let has_conversations = sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM conversations WHERE owner_id = ?)");
        if has_conversations.bind(user.as_str()).fetch_one(&mut *tx).await? {
            return Ok(false);
        }
        sqlx::query("DELETE FROM agent_versions WHERE agent_id IN (SELECT id FROM agents WHERE owner_id = ?)")
            .bind(user.as_str())
            .execute(&mut *tx)
            .await?;
        for table in OWNED {
            let delete = sqlx::query(AssertSqlSafe(format!("DELETE FROM {table} WHERE owner_id = ?")));
            delete.bind(user.as_str()).execute(&mut *tx).await?;
        }
        // Their keys go with them.
        sqlx::query("DELETE FROM users WHERE id = ?").bind(user.as_str()).execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(true)
    }
}
