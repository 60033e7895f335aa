//! What users may do, and users who leave.

use async_trait::async_trait;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use super::PostgresStore;
use super::keys::user;
use crate::domain::ids::UserId;
use crate::domain::principal::{User, UserRole};
use crate::domain::provider::Reach;
use crate::store::rows::{decode, encode};
use crate::store::users::{OWNED, REACHING};
use crate::store::{Owned, StoreResult, UserStore};
use crate::support::text::storable;

#[async_trait]
impl UserStore for PostgresStore {
    async fn user_named(&self, name: &str) -> StoreResult<Option<User>> {
        let found = sqlx::query("SELECT id, name, role FROM users WHERE name = $1").bind(storable(name));
        found.fetch_optional(&self.chores).await?.as_ref().map(user).transpose()
    }

    async fn set_role(&self, user: &UserId, role: UserRole) -> StoreResult<()> {
        self.chores.ask(async |connection| set_role(connection, user, role).await).await
    }

    async fn set_groups(&self, user: &UserId, groups: &[String]) -> StoreResult<()> {
        let groups = encode("users", "groups", user.as_str(), &groups)?;
        let set = sqlx::query("UPDATE users SET groups = $2 WHERE id = $1").bind(user.as_str()).bind(groups);
        set.execute(&self.chores).await?;
        Ok(())
    }

    async fn groups_of(&self, user: &UserId) -> StoreResult<Vec<String>> {
        let found = sqlx::query_scalar("SELECT groups FROM users WHERE id = $1").bind(user.as_str());
        let found: Option<String> = found.fetch_optional(&self.api).await?;
        found.map_or_else(|| Ok(Vec::new()), |groups| decode("users", "groups", user.as_str(), &groups))
    }

    async fn owned_by(&self, user: &UserId) -> StoreResult<Owned> {
        let count = async |table: &str| -> StoreResult<u64> {
            let count = sqlx::query_scalar(AssertSqlSafe(format!("SELECT count(*) FROM {table} WHERE owner_id = $1")));
            let count: i64 = count.bind(user.as_str()).fetch_one(&self.chores).await?;
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
        self.chores.ask(async |connection| remove(connection, user).await).await
    }
}

async fn set_role(connection: &mut PgConnection, user: &UserId, role: UserRole) -> StoreResult<()> {
    let mut tx = connection.begin().await?;
    let set = sqlx::query("UPDATE users SET role = $2 WHERE id = $1").bind(user.as_str()).bind(role.as_str());
    set.execute(&mut *tx).await?;
    match role {
        UserRole::Admin => {}
        UserRole::Member => {
            for table in REACHING {
                let statement = format!("UPDATE {table} SET reach = $1, version = version + 1 WHERE owner_id = $2 AND reach = $3");
                sqlx::query(AssertSqlSafe(statement))
                    .bind(Reach::Public.as_str())
                    .bind(user.as_str())
                    .bind(Reach::Anywhere.as_str())
                    .execute(&mut *tx)
                    .await?;
            }
        }
    }
    tx.commit().await?;
    Ok(())
}

async fn remove(connection: &mut PgConnection, user: &UserId) -> StoreResult<bool> {
    let mut tx = connection.begin().await?;
    let has_conversations = sqlx::query_scalar("SELECT EXISTS (SELECT FROM conversations WHERE owner_id = $1)");
    if has_conversations.bind(user.as_str()).fetch_one(&mut *tx).await? {
        return Ok(false);
    }
    sqlx::query("DELETE FROM agent_versions WHERE agent_id IN (SELECT id FROM agents WHERE owner_id = $1)")
        .bind(user.as_str())
        .execute(&mut *tx)
        .await?;
    for table in OWNED {
        let delete = sqlx::query(AssertSqlSafe(format!("DELETE FROM {table} WHERE owner_id = $1")));
        delete.bind(user.as_str()).execute(&mut *tx).await?;
    }
    // Their keys go with them.
    sqlx::query("DELETE FROM users WHERE id = $1").bind(user.as_str()).execute(&mut *tx).await?;
    tx.commit().await?;
    Ok(true)
}
