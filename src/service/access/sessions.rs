//! Sessions: a browser signs in with a key, and then holds another secret, which ends with the key or at the sign-out.

use crate::service::access::keys::{MAX_KEY_BYTES, hash_key, secret};
use crate::service::{Access, Error, Result, Service};

pub const SESSION_SECONDS: u32 = 30 * 24 * 60 * 60;

impl Service {
    /// Signs a browser in with a key. Returns the secret of the new session; `None` if the key is unknown.
    pub async fn begin_session(&self, key: &str) -> Result<Option<String>> {
        let Some(access) = self.authenticate(key).await? else { return Ok(None) };
        let token = secret("session_").map_err(Error::NoRandomness)?;
        let owner = &access.principal().user_id;
        self.store.create_session(&hash_key(&token), owner, &hash_key(key), SESSION_SECONDS * 1000).await?;
        Ok(Some(token))
    }

    /// Returns the access of a session's key; `None` if the session is unknown or over, or its key is no longer valid.
    pub async fn session_access(&self, token: &str) -> Result<Option<Access>> {
        if token.len() > MAX_KEY_BYTES {
            return Ok(None);
        }
        self.access_by_session(hash_key(token)).await
    }

    /// Returns the access of the session with this hash, as [`Service::session_access`] does.
    pub(in crate::service) async fn access_by_session(&self, hash: String) -> Result<Option<Access>> {
        let Some((owner, key_hash)) = self.store.session(&hash).await? else { return Ok(None) };
        // A configured key may belong to another user since a restart.
        let access = self.access_by_hash(key_hash).await?.filter(|access| access.principal().user_id == owner);
        Ok(access.map(|access| access.within_session(self.credentials_in_use.enter(hash))))
    }

    /// Ends a session, and closes what it has opened. Its key and the other sessions of the key stay valid.
    pub async fn end_session(&self, token: &str) -> Result<()> {
        if token.len() > MAX_KEY_BYTES {
            return Ok(());
        }
        let hash = hash_key(token);
        self.store.delete_session(&hash).await?;
        self.credentials_in_use.end(&hash);
        Ok(())
    }
}
