//! The caller's own account, and the default model that belongs to it.

use crate::domain::access::principal::Principal;
use crate::service::runs::agent_and_model::storable_model;
use crate::service::{Error, Result, Service};
use crate::store::Account;

/// An account, with the rules of the server for its user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnAccount {
    pub account: Account,
    /// The model of runs whose message, conversation and agent name none. `None` if no model is known yet.
    pub model: Option<String>,
    /// Limit of the lifetime of a new share, in days. `None` if the server does not share conversations.
    pub max_share_days: Option<u32>,
}

impl Service {
    pub async fn own_account(&self, principal: &Principal) -> Result<OwnAccount> {
        let account = self.store.account(&principal.user_id).await?.ok_or(Error::NotFound("user"))?;
        let model = match self.usable_default_model(principal).await? {
            Some(model) => Some(model),
            None => match &self.find_model {
                Some(find_model) => find_model.find().await.ok(),
                None => Some(self.default_profile.model.clone()),
            },
        };
        let shares = self.limits.shares;
        Ok(OwnAccount { account, model, max_share_days: shares.enabled.then_some(shares.max_days) })
    }

    /// Sets the caller's default model; `None` or empty text removes it. A model that no provider serves is refused.
    pub async fn set_default_model(&self, principal: &Principal, model: Option<&str>) -> Result<OwnAccount> {
        let model = match model.filter(|model| !model.is_empty()) {
            Some(model) => Some(storable_model(model).map_err(|_| Error::field("/default_model", "is not the name of a model"))?),
            None => None,
        };
        if let Some(model) = &model {
            self.require_served(principal, model).await?;
        }
        self.store.set_default_model(&principal.user_id, model.as_deref()).await?;
        self.default_models.invalidate(&principal.user_id);
        self.own_account(principal).await
    }

    /// Returns the caller's default model while a provider serves it. A server without stored providers has no accounts either.
    pub(in crate::service) async fn usable_default_model(&self, principal: &Principal) -> Result<Option<String>> {
        if self.providers.is_none() {
            return Ok(None);
        }
        let user = &principal.user_id;
        let model = match self.default_models.get(user) {
            Some(known) => known,
            None => {
                let model = self.store.account(user).await?.and_then(|account| account.default_model);
                self.default_models.insert(user.clone(), model.clone());
                model
            }
        };
        match model {
            Some(model) if self.serves(user, &model).await? => Ok(Some(model)),
            Some(_) | None => Ok(None),
        }
    }
}
