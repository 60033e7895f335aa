//! Sessions of signed-in browsers: stored as hashes of their secrets.
//!
//! Owns the table `browser_sessions`. Must not know how a browser holds the secret.

use crate::domain::ids::UserId;
use crate::store::sql::{Row, statements, values};
use crate::store::{RecordStore, StoreResult};

statements! {
    INSERT = ["INSERT INTO browser_sessions (hash, owner_id, key_hash, expires_at) VALUES ($1, $2, $3, ", now, " + $4)"];

    BY_HASH = ["SELECT owner_id, key_hash FROM browser_sessions WHERE hash = $1 AND expires_at > ", now];

    DELETE = ["DELETE FROM browser_sessions WHERE hash = $1"];

    DELETE_EXPIRED = ["DELETE FROM browser_sessions WHERE expires_at <= ", now];
}

impl dyn RecordStore + '_ {
    /// Stores a session of the key with this hash for `lifetime_ms`, by the database's clock.
    pub async fn create_session(&self, hash: &str, owner: &UserId, key_hash: &str, lifetime_ms: u32) -> StoreResult<()> {
        self.database().execute(INSERT, values![hash, owner.as_str(), key_hash, lifetime_ms]).await?;
        Ok(())
    }

    /// Returns the owner of a session and the hash of its key; `None` if the session is unknown or expired.
    pub async fn session(&self, hash: &str) -> StoreResult<Option<(UserId, String)>> {
        self.database().read_optional(BY_HASH, values![hash], read).await
    }

    /// Ends a session. Does nothing if it is unknown.
    pub async fn delete_session(&self, hash: &str) -> StoreResult<()> {
        self.database().execute(DELETE, values![hash]).await?;
        Ok(())
    }

    /// Removes expired sessions. Returns their number.
    pub async fn remove_expired_sessions(&self) -> StoreResult<u64> {
        self.maintenance_database().execute(DELETE_EXPIRED, &[]).await
    }
}

fn read(row: &Row) -> StoreResult<(UserId, String)> {
    Ok((UserId::from_stored(row.get("owner_id")?), row.get("key_hash")?))
}
