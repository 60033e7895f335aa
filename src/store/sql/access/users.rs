//! Roles and groups of users, and users who leave.
//!
//! Owns the table `users`, and the list of tables that hold a user's rows. Must not know how a user logs in.

use async_trait::async_trait;

use crate::domain::access::principal::{User, UserRole};
use crate::domain::ids::UserId;
use crate::domain::model::provider::Reach;
use crate::store::rows::{decode, encode};
use crate::store::sql::access::keys::read_user;
use crate::store::sql::backend::Backend;
use crate::store::sql::statement::statements;
use crate::store::sql::value::values;
use crate::store::{Owned, StoreResult, UserStore};

statements! {
    BY_NAME = ["SELECT id, name, role FROM users WHERE name = $1"];

    SET_ROLE = ["UPDATE users SET role = $2 WHERE id = $1"];

    LIMIT_MCP_SERVERS = ["UPDATE mcp_servers SET reach = $2, version = version + 1 WHERE owner_id = $1 AND reach = $3"];

    LIMIT_PROVIDERS = ["UPDATE providers SET reach = $2, version = version + 1 WHERE owner_id = $1 AND reach = $3"];

    SET_GROUPS = ["UPDATE users SET groups = $2 WHERE id = $1"];

    GROUPS = ["SELECT groups FROM users WHERE id = $1"];

    // Everything in the tables of `owned`.
    COUNT_OWNED = ["SELECT (SELECT count(*) FROM conversations WHERE owner_id = $1) AS conversations,
         (SELECT count(*) FROM stream_tickets WHERE owner_id = $1) + (SELECT count(*) FROM idempotency_keys WHERE owner_id = $1)
         + (SELECT count(*) FROM tool_grants WHERE owner_id = $1) + (SELECT count(*) FROM tool_pins WHERE owner_id = $1)
         + (SELECT count(*) FROM tool_audit WHERE owner_id = $1) + (SELECT count(*) FROM mcp_logins WHERE owner_id = $1)
         + (SELECT count(*) FROM mcp_tokens WHERE owner_id = $1) + (SELECT count(*) FROM mcp_servers WHERE owner_id = $1)
         + (SELECT count(*) FROM provider_logins WHERE owner_id = $1) + (SELECT count(*) FROM providers WHERE owner_id = $1)
         + (SELECT count(*) FROM agents WHERE owner_id = $1) + (SELECT count(*) FROM files WHERE owner_id = $1)
         + (SELECT count(*) FROM spending WHERE owner_id = $1) AS records"];

    HAS_CONVERSATIONS = ["SELECT EXISTS (SELECT 1 FROM conversations WHERE owner_id = $1)"];
}

/// Removes a user with all rows, in this order. Pieces of files go with their files.
pub(in crate::store::sql) mod owned {
    use super::statements;

    statements! {
        DELETE_AGENT_VERSIONS = ["DELETE FROM agent_versions WHERE agent_id IN (SELECT id FROM agents WHERE owner_id = $1)"];
        DELETE_TICKETS = ["DELETE FROM stream_tickets WHERE owner_id = $1"];
        DELETE_IDEMPOTENCY_KEYS = ["DELETE FROM idempotency_keys WHERE owner_id = $1"];
        DELETE_GRANTS = ["DELETE FROM tool_grants WHERE owner_id = $1"];
        DELETE_TOOL_REVIEWS = ["DELETE FROM tool_pins WHERE owner_id = $1"];
        DELETE_AUDIT = ["DELETE FROM tool_audit WHERE owner_id = $1"];
        DELETE_MCP_LOGINS = ["DELETE FROM mcp_logins WHERE owner_id = $1"];
        DELETE_MCP_TOKENS = ["DELETE FROM mcp_tokens WHERE owner_id = $1"];
        DELETE_MCP_SERVERS = ["DELETE FROM mcp_servers WHERE owner_id = $1"];
        DELETE_PROVIDER_LOGINS = ["DELETE FROM provider_logins WHERE owner_id = $1"];
        DELETE_PROVIDERS = ["DELETE FROM providers WHERE owner_id = $1"];
        DELETE_AGENTS = ["DELETE FROM agents WHERE owner_id = $1"];
        DELETE_FILES = ["DELETE FROM files WHERE owner_id = $1"];
        DELETE_SPENDING = ["DELETE FROM spending WHERE owner_id = $1"];
        // Their keys go with them.
        DELETE_USER = ["DELETE FROM users WHERE id = $1"];
    }
}

#[async_trait]
impl<B: Backend> UserStore for B {
    async fn user_named(&self, name: &str) -> StoreResult<Option<User>> {
        let row = self.chores().fetch_optional(BY_NAME, values![name]).await?;
        row.as_ref().map(read_user).transpose()
    }

    async fn set_role(&self, user: &UserId, role: UserRole) -> StoreResult<()> {
        let user = user.as_str();
        let mut tx = self.chores().begin().await?;
        tx.execute(SET_ROLE, values![user, role.as_str()]).await?;
        match role {
            UserRole::Admin => {}
            UserRole::Member => {
                for limit in [LIMIT_MCP_SERVERS, LIMIT_PROVIDERS] {
                    tx.execute(limit, values![user, Reach::Public.as_str(), Reach::Anywhere.as_str()]).await?;
                }
            }
        }
        tx.commit().await
    }

    async fn set_groups(&self, user: &UserId, groups: &[String]) -> StoreResult<()> {
        let groups = encode("users", "groups", user.as_str(), &groups)?;
        self.chores().execute(SET_GROUPS, values![user.as_str(), groups]).await?;
        Ok(())
    }

    async fn groups_of(&self, user: &UserId) -> StoreResult<Vec<String>> {
        let row = self.database().fetch_optional(GROUPS, values![user.as_str()]).await?;
        row.map_or_else(|| Ok(Vec::new()), |row| decode("users", "groups", user.as_str(), row.only()?))
    }

    async fn owned_by(&self, user: &UserId) -> StoreResult<Owned> {
        let row = self.chores().fetch_one(COUNT_OWNED, values![user.as_str()]).await?;
        Ok(Owned { conversations: row.count("conversations")?, records: row.count("records")? })
    }

    async fn remove_user(&self, user: &UserId) -> StoreResult<bool> {
        let mut tx = self.chores().begin().await?;
        if tx.fetch_one(HAS_CONVERSATIONS, values![user.as_str()]).await?.only()? {
            tx.rollback().await?;
            return Ok(false);
        }
        for delete in owned::STATEMENTS {
            tx.execute(*delete, values![user.as_str()]).await?;
        }
        tx.commit().await?;
        Ok(true)
    }
}
