//! Copies of conversations: forks, and the common part of imports.

use std::sync::Arc;

use crate::domain::access::principal::Principal;
use crate::domain::conversation::Conversation;
use crate::domain::ids::ConversationId;
use crate::service::conversations::one_line;
use crate::service::idempotency_outcome::{Replay, RequestKey, outcome_or_conflict};
use crate::service::{Error, Result, Service};
use crate::store::{CopyConversation, CopyOutcome, CopySource, CopyUntil};

impl Service {
    /// Creates a conversation of the same owner with a copy of another one's messages, up to `until`. Nothing is executed.
    pub async fn fork_conversation(
        &self,
        principal: &Principal,
        id: &ConversationId,
        until: CopyUntil,
        title: Option<String>,
        key: Option<RequestKey>,
    ) -> Result<(Conversation, Replay)> {
        let title = title.as_deref().map(|title| one_line("/title", title)).transpose()?;
        self.copy(principal, title, CopySource::Conversation { id: id.clone(), until }, key).await
    }

    /// Stores the copy. Its log has no subscribers yet, so its events are not published.
    pub(in crate::service) async fn copy(
        &self,
        principal: &Principal,
        title: Option<String>,
        source: CopySource,
        key: Option<RequestKey>,
    ) -> Result<(Conversation, Replay)> {
        let limits = self.limits.copies;
        let copy = CopyConversation {
            id: ConversationId::generate(self.ids.as_ref()),
            owner: principal.user_id.clone(),
            title,
            source,
            limits,
            max_conversations: self.limits.max_conversations,
            ids: Arc::clone(&self.ids),
            now: self.clock.now(),
        };
        let claim = self.claim(&principal.user_id, key);
        let copied = self.run_to_end(|store, hub| async move {
            let copied = outcome_or_conflict(store.copy_conversation(copy, claim).await?)?;
            if let (CopyOutcome::Conversation(made), _) = &copied {
                hub.list_changed(&made.id);
            }
            Ok(copied)
        });
        let (copied, replay) = copied.await?;
        let conversation = match copied {
            CopyOutcome::Conversation(conversation) => *conversation,
            CopyOutcome::Active { run_id } => return Err(Error::RunActive(run_id)),
            CopyOutcome::PartsCalls => {
                return Err(Error::conflict(
                    "this would separate tool calls from their results; end with the last message with results, or before the calls",
                ));
            }
            CopyOutcome::TooLarge => {
                let (messages, bytes) = (limits.messages, limits.bytes);
                return Err(Error::Conflict(format!("a copy is limited to {messages} messages and {bytes} bytes; end earlier")));
            }
            CopyOutcome::TooMany => return Err(Error::TooManyConversations(self.limits.max_conversations)),
            CopyOutcome::NoPoint => return Err(Error::NotFound("message or run in this conversation")),
            CopyOutcome::NoConversation => return Err(Error::NotFound("conversation")),
        };
        self.check_replayed(principal, &conversation.id, replay).await?;
        Ok((conversation, replay))
    }
}
