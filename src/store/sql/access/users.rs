//! Roles and groups of users, and the removal of users.
//!
//! Owns the table `users`, and the list of tables that hold a user's rows. Must not know how a user logs in.

use crate::domain::access::principal::{User, UserRole};
use crate::domain::ids::UserId;
use crate::domain::model::EgressScope;
use crate::store::pages::page_of;
use crate::store::rows::{decode, encode};
use crate::store::sql::access::keys::read_user;
use crate::store::sql::{Row, Transaction, statements, values};
use crate::store::{Account, IdCursor, OwnedCounts, Page, PageRequest, RecordStore, StoreResult, StoredUser, UserCursor};
use crate::support::clock::UnixMillis;

statements! {
    BY_NAME = ["SELECT id, name, role FROM users WHERE name = $1"];

    BY_ID = ["SELECT id, name, role, groups, created_at FROM users WHERE id = $1"];

    PAGE = ["SELECT id, name, role, groups, created_at FROM users WHERE name > $1 ORDER BY name LIMIT $2"];

    SET_ROLE = ["UPDATE users SET role = $2 WHERE id = $1"];

    LIMIT_MCP_SERVERS = ["UPDATE mcp_servers SET reach = $2, version = version + 1 WHERE owner_id = $1 AND reach = $3"];

    LIMIT_PROVIDERS = ["UPDATE providers SET reach = $2, version = version + 1 WHERE owner_id = $1 AND reach = $3"];

    SET_GROUPS = ["UPDATE users SET groups = $2 WHERE id = $1"];

    GROUPS = ["SELECT groups FROM users WHERE id = $1"];

    ACCOUNT = ["SELECT name, groups, default_model FROM users WHERE id = $1"];

    SET_DEFAULT_MODEL = ["UPDATE users SET default_model = $2 WHERE id = $1"];

    // Counts the rows in the tables of `owned`.
    COUNT_OWNED = ["SELECT (SELECT count(*) FROM conversations WHERE owner_id = $1) AS conversations,
         (SELECT count(*) FROM stream_tickets WHERE owner_id = $1) + (SELECT count(*) FROM browser_sessions WHERE owner_id = $1)
         + (SELECT count(*) FROM idempotency_keys WHERE owner_id = $1)
         + (SELECT count(*) FROM tool_grants WHERE owner_id = $1) + (SELECT count(*) FROM tool_pins WHERE owner_id = $1)
         + (SELECT count(*) FROM tool_audit WHERE owner_id = $1) + (SELECT count(*) FROM mcp_logins WHERE owner_id = $1)
         + (SELECT count(*) FROM mcp_tokens WHERE owner_id = $1) + (SELECT count(*) FROM mcp_servers WHERE owner_id = $1)
         + (SELECT count(*) FROM provider_logins WHERE owner_id = $1) + (SELECT count(*) FROM providers WHERE owner_id = $1)
         + (SELECT count(*) FROM agents WHERE owner_id = $1) + (SELECT count(*) FROM files WHERE owner_id = $1)
         + (SELECT count(*) FROM spending WHERE owner_id = $1) + (SELECT count(*) FROM embedding_usage WHERE owner_id = $1) AS records"];

    HAS_CONVERSATIONS = ["SELECT EXISTS (SELECT 1 FROM conversations WHERE owner_id = $1)"];
}

/// Removes a user with all rows, in this order. File chunks are removed with their files.
pub(in crate::store::sql) mod owned {
    use super::statements;

    statements! {
        DELETE_AGENT_VERSIONS = ["DELETE FROM agent_versions WHERE agent_id IN (SELECT id FROM agents WHERE owner_id = $1)"];
        DELETE_TICKETS = ["DELETE FROM stream_tickets WHERE owner_id = $1"];
        DELETE_SESSIONS = ["DELETE FROM browser_sessions WHERE owner_id = $1"];
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
        DELETE_EMBEDDING_USAGE = ["DELETE FROM embedding_usage WHERE owner_id = $1"];
        // Removes the user's keys by cascade.
        DELETE_USER = ["DELETE FROM users WHERE id = $1"];
    }
}

impl dyn RecordStore + '_ {
    pub async fn user_named(&self, name: &str) -> StoreResult<Option<User>> {
        self.maintenance_database().read_optional(BY_NAME, values![name], read_user).await
    }

    pub async fn user(&self, id: &UserId) -> StoreResult<Option<StoredUser>> {
        self.database().read_optional(BY_ID, values![id.as_str()], read_stored_user).await
    }

    /// Returns a page of users, ordered by name.
    pub async fn users(&self, page: &PageRequest<UserCursor>) -> StoreResult<Page<StoredUser>> {
        let limit = page.limit.clamp(1, 100);
        let name = page.after.as_ref().map_or("", |after| after.0.as_str());
        let users = self.database().read_all(PAGE, values![name, limit + 1], read_stored_user).await?;
        Ok(page_of(users, limit, |last| IdCursor(&last.user.name).to_string()))
    }

    /// Sets the role of a user and their keys. If the user becomes a member, their providers and MCP servers are limited to public
    /// addresses. These get a new version, by which running processes notice the change.
    pub async fn set_role(&self, user: &UserId, role: UserRole) -> StoreResult<()> {
        let user = user.as_str();
        let set = async |tx: &mut Transaction| {
            tx.execute(SET_ROLE, values![user, role.as_str()]).await?;
            if role == UserRole::Member {
                for limit in [LIMIT_MCP_SERVERS, LIMIT_PROVIDERS] {
                    tx.execute(limit, values![user, EgressScope::Public.as_str(), EgressScope::Anywhere.as_str()]).await?;
                }
            }
            Ok(())
        };
        self.maintenance_database().transaction(set, |()| true).await
    }

    /// Sets the groups of a user, and removes the user from all others. The caller has checked the names of the groups.
    pub async fn set_groups(&self, user: &UserId, groups: &[String]) -> StoreResult<()> {
        let groups = encode("users", "groups", user.as_str(), &groups)?;
        self.maintenance_database().execute(SET_GROUPS, values![user.as_str(), groups]).await?;
        Ok(())
    }

    /// Returns the groups of a user. An unknown user has none.
    pub async fn groups_of(&self, user: &UserId) -> StoreResult<Vec<String>> {
        let row = self.database().fetch_optional(GROUPS, values![user.as_str()]).await?;
        row.map_or_else(|| Ok(Vec::new()), |row| decode("users", "groups", user.as_str(), row.only()?))
    }

    pub async fn account(&self, user: &UserId) -> StoreResult<Option<Account>> {
        let Some(row) = self.database().fetch_optional(ACCOUNT, values![user.as_str()]).await? else { return Ok(None) };
        let groups = decode("users", "groups", user.as_str(), row.get("groups")?)?;
        Ok(Some(Account { name: row.get("name")?, groups, default_model: row.get("default_model")? }))
    }

    /// Sets or removes the default model of a user. The caller has checked it.
    pub async fn set_default_model(&self, user: &UserId, model: Option<&str>) -> StoreResult<()> {
        self.maintenance_database().execute(SET_DEFAULT_MODEL, values![user.as_str(), model]).await?;
        Ok(())
    }

    pub async fn owned_by(&self, user: &UserId) -> StoreResult<OwnedCounts> {
        let row = self.maintenance_database().fetch_one(COUNT_OWNED, values![user.as_str()]).await?;
        Ok(OwnedCounts { conversations: row.count("conversations")?, records: row.count("records")? })
    }

    /// Removes a user with their keys and everything that they own, in one transaction. Returns false, and removes nothing, while
    /// the user has conversations: the caller deletes those one by one first.
    pub async fn remove_user(&self, user: &UserId) -> StoreResult<bool> {
        let remove = async |tx: &mut Transaction| {
            if tx.fetch_one(HAS_CONVERSATIONS, values![user.as_str()]).await?.only()? {
                return Ok(false);
            }
            for delete in owned::STATEMENTS {
                tx.execute(*delete, values![user.as_str()]).await?;
            }
            Ok(true)
        };
        self.maintenance_database().transaction(remove, |is_removed| *is_removed).await
    }
}

fn read_stored_user(row: &Row) -> StoreResult<StoredUser> {
    let user = read_user(row)?;
    let groups = decode("users", "groups", user.id.as_str(), row.get("groups")?)?;
    Ok(StoredUser { user, groups, created_at: UnixMillis(row.get("created_at")?) })
}
