//! Users, as administrators see and change them.

use std::collections::BTreeSet;

use serde::Deserialize;
use utoipa::ToSchema;

use crate::domain::access::principal::{Principal, UserRole, check_groups};
use crate::domain::ids::UserId;
use crate::service::access::key_cache::KEY_CACHE_TTL;
use crate::service::{Error, Result, Service};
use crate::store::{Page, PageRequest, RecordStore, StoreResult, StoredUser, UserCursor};

/// Changes of a user. Absent fields stay unchanged.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = UpdateUserBody)]
pub struct UserPatch {
    /// The role of the user, which applies to all their keys.
    role: Option<UserRole>,
    /// All groups of the user. A name has 1 to 64 characters of a-z, 0-9, `_` and `-`.
    #[schema(max_items = 32)]
    groups: Option<BTreeSet<String>>,
}

pub(in crate::service) fn require_administrator(principal: &Principal, refusal: &'static str) -> Result<()> {
    match principal.role {
        UserRole::Admin => Ok(()),
        UserRole::Member => Err(Error::Forbidden(refusal)),
    }
}

impl Service {
    pub async fn users(&self, principal: &Principal, page: &PageRequest<UserCursor>) -> Result<Page<StoredUser>> {
        require_administrator(principal, "only an administrator can see the users")?;
        Ok(self.store.users(page).await?)
    }

    /// Changes the role and the groups of a user. Takes [`KEY_CACHE_TTL`] for an administrator who becomes a member.
    pub async fn update_user(&self, principal: &Principal, id: &UserId, patch: UserPatch) -> Result<StoredUser> {
        require_administrator(principal, "only an administrator can change users")?;
        if let Some(groups) = &patch.groups {
            check_groups(groups).map_err(|error| Error::field("/groups", error.to_string()))?;
        }
        let stored = self.store.user(id).await?.ok_or(Error::NotFound("user"))?;
        if let Some(role) = patch.role {
            self.set_role(principal, &stored, role).await?;
        }
        if let Some(groups) = patch.groups {
            self.store.set_groups(id, &Vec::from_iter(groups)).await?;
        }
        self.store.user(id).await?.ok_or(Error::NotFound("user"))
    }

    async fn set_role(&self, principal: &Principal, stored: &StoredUser, role: UserRole) -> Result<()> {
        let id = &stored.user.id;
        if stored.user.role != role && self.configured_keys.values().any(|configured| configured.user_id == *id) {
            return Err(Error::conflict(
                "the user has a key in the configuration (auth.keys), which sets the role; change it there",
            ));
        }
        let is_demoted = (stored.user.role, role) == (UserRole::Admin, UserRole::Member);
        // This rule keeps at least one administrator.
        if is_demoted && *id == principal.user_id {
            return Err(Error::conflict("another administrator must take your role from you"));
        }
        self.store.set_role(id, role).await?;
        self.keys.forget_user(id);
        tracing::info!(user.id = %id, role = role.as_str(), by = %principal.user_id, "set the role of a user");
        if !is_demoted {
            return Ok(());
        }
        let id = id.clone();
        self.run_to_end(|store, _hub| async move { Ok(repeat_demotion_after_key_cache(store.records(), &id).await?) }).await
    }
}

/// Makes a user a member once more, after [`KEY_CACHE_TTL`]: until then, a process that accepts the old role may store changes with
/// administrator rights.
pub async fn repeat_demotion_after_key_cache(store: &dyn RecordStore, user: &UserId) -> StoreResult<()> {
    tokio::time::sleep(KEY_CACHE_TTL).await;
    store.set_role(user, UserRole::Member).await
}
