//! Shares of conversations: read-only copies for everyone who has a link.

use crate::domain::access::principal::Principal;
use crate::domain::conversation::shares::{Share, SharedConversation};
use crate::domain::ids::{ConversationId, ShareId};
use crate::service::access::keys::{MAX_KEY_BYTES, hash_key, secret};
use crate::service::idempotency_outcome::{Replay, RequestKey, outcome_or_conflict};
use crate::service::{Error, Result, Service, ShareRules};
use crate::store::{NewShare, Page, PageRequest, ShareCursor, ShareOutcome};

/// The lifetime of a share whose request names none, unless the limit is shorter.
const DEFAULT_DAYS: u32 = 30;

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

impl Service {
    /// Shares a conversation as it is now. Returns the share and its token, which is shown only once: a repeated request is
    /// refused.
    pub async fn share_conversation(
        &self,
        principal: &Principal,
        id: &ConversationId,
        days: Option<u32>,
        key: Option<RequestKey>,
    ) -> Result<(Share, String)> {
        let ShareRules { enabled, max_days, limits } = self.limits.shares;
        if !enabled {
            return Err(Error::Forbidden("this server does not share conversations (server.shares)"));
        }
        let days = days.unwrap_or(DEFAULT_DAYS.min(max_days));
        if !(1..=max_days).contains(&days) {
            let rule = format!("must be 1 to {max_days}, the limit of this server (limits.max_share_days)");
            return Err(Error::field("/expires_in_days", rule));
        }
        let token = secret("link_").map_err(Error::NoRandomness)?;
        let new = NewShare {
            id: ShareId::generate(self.ids.as_ref()),
            owner: principal.user_id.clone(),
            conversation_id: id.clone(),
            hash: hash_key(&token),
            lifetime_ms: u64::from(days) * DAY_MS,
            limits,
        };
        let claim = self.claim(&principal.user_id, key);
        match outcome_or_conflict(self.store.create_share(new, claim).await?)? {
            (ShareOutcome::Shared(share), Replay::Fresh) => {
                tracing::info!(share.id = %share.id, conversation.id = %id, days, by = %principal.user_id, "shared a conversation");
                Ok((share, token))
            }
            (ShareOutcome::Shared(share), Replay::Replayed) => Err(Error::Conflict(format!(
                "an earlier request with this Idempotency-Key created the share {}, whose token is shown only once; if it was lost, \
                 revoke the share, and send a new Idempotency-Key",
                share.id
            ))),
            (ShareOutcome::TooMany, _) => Err(Error::Conflict(format!(
                "the conversation has {} shares, which is the limit (limits.max_shares_per_conversation); revoke one",
                limits.per_conversation
            ))),
            (ShareOutcome::TooLarge, _) => Err(Error::Conflict(format!(
                "the conversation exceeds the limit of a share, {} bytes of texts (limits.max_share_bytes) or {} bytes with tool results \
                 (limits.copy_bytes); fork it up to an earlier message, and share the copy",
                limits.bytes, limits.read_bytes
            ))),
            (ShareOutcome::NoConversation, _) => Err(Error::NotFound("conversation")),
        }
    }

    pub async fn shares(&self, principal: &Principal, id: &ConversationId) -> Result<Vec<Share>> {
        self.conversation(principal, id).await?;
        Ok(self.store.shares(&principal.user_id, id).await?)
    }

    /// Returns a page of the principal's shares in all conversations, newest first.
    pub async fn all_shares(&self, principal: &Principal, page: &PageRequest<ShareCursor>) -> Result<Page<Share>> {
        Ok(self.store.shares_page(&principal.user_id, page).await?)
    }

    /// Revokes a share: from now on, every process answers its token like an unknown one.
    pub async fn revoke_share(&self, principal: &Principal, of: &ConversationId, id: &ShareId) -> Result<()> {
        if !self.store.delete_share(&principal.user_id, of, id).await? {
            return Err(Error::NotFound("share of this conversation"));
        }
        tracing::info!(share.id = %id, conversation.id = %of, by = %principal.user_id, "revoked a share");
        Ok(())
    }

    /// Returns the shared conversation of a token. The token is the only permission, and each invalid token gets the same error.
    pub async fn shared_conversation(&self, token: &str) -> Result<SharedConversation> {
        let shared = match self.limits.shares.enabled && token.len() <= MAX_KEY_BYTES {
            true => self.store.shared_conversation(&hash_key(token)).await?,
            false => None,
        };
        shared.ok_or(Error::NotFound("share, or it has expired or was revoked"))
    }
}
