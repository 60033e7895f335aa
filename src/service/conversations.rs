//! Conversations and their messages.

use std::sync::Arc;

use super::input::{Replay, RequestKey, keyed};
use super::runs::publish;
use super::{Error, Result, Service};
use crate::domain::conversation::Conversation;
use crate::domain::ids::ConversationId;
use crate::domain::message::Message;
use crate::domain::principal::Principal;
use crate::store::{ConversationCursor, ConversationFilter, Created, MessageCursor, NewConversation, Page, PageRequest};
use crate::support::{failpoint, text};

/// A conversation to make.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NewConversationRequest {
    /// An id minted by the client.
    pub id: Option<ConversationId>,
    /// A title; empty if absent.
    pub title: Option<String>,
}

impl Service {
    /// Makes a conversation.
    pub async fn create_conversation(
        &self,
        principal: &Principal,
        request: NewConversationRequest,
        key: Option<RequestKey>,
    ) -> Result<(Conversation, Replay)> {
        let title = request.title.as_deref().map(|title| self.title(title)).transpose()?.unwrap_or_default();
        let new = NewConversation {
            id: request.id.unwrap_or_else(|| ConversationId::generate(self.ids.as_ref())),
            owner: principal.user_id.clone(),
            title,
            now: self.clock.now(),
        };
        let claim = self.claim(&principal.user_id, key);
        match keyed(self.store.create_conversation(new, claim).await?)? {
            (Created::Conversation(conversation), Replay::Fresh) => Ok((conversation, Replay::Fresh)),
            (Created::Conversation(conversation), Replay::Replayed) => {
                // The record of the earlier request outlives the conversation.
                self.conversation(principal, &conversation.id).await?;
                Ok((conversation, Replay::Replayed))
            }
            (Created::Exists, _) => Err(Error::Conflict("this conversation id is taken; mint another one".to_owned())),
        }
    }

    /// One conversation.
    pub async fn conversation(&self, principal: &Principal, id: &ConversationId) -> Result<Conversation> {
        self.store.conversation(&principal.user_id, id).await?.ok_or(Error::NotFound("conversation"))
    }

    /// A page of conversations, newest first.
    pub async fn conversations(
        &self,
        principal: &Principal,
        query: Option<String>,
        page: &PageRequest<ConversationCursor>,
    ) -> Result<Page<Conversation>> {
        let query = query.map(|query| text::storable(query.trim()).into_owned()).filter(|query| !query.is_empty());
        Ok(self.store.conversations(&principal.user_id, &ConversationFilter { query }, page).await?)
    }

    /// Gives a conversation a title.
    pub async fn rename_conversation(&self, principal: &Principal, id: &ConversationId, title: &str) -> Result<Conversation> {
        let title = self.title(title)?;
        let (store, hub, now) = (Arc::clone(&self.store), Arc::clone(&self.hub), self.clock.now());
        let (owner, id) = (principal.user_id.clone(), id.clone());
        let renamed = self.whole(async move {
            let renamed = store.rename_conversation(&owner, &id, &title, now).await?;
            let (conversation, events) = renamed.ok_or(Error::NotFound("conversation"))?;
            publish(&hub, &id, events);
            Ok(conversation)
        });
        renamed.await
    }

    /// Deletes a conversation with all that belongs to it. A run in progress is told to stop.
    pub async fn delete_conversation(&self, principal: &Principal, id: &ConversationId) -> Result<()> {
        let (store, hub) = (Arc::clone(&self.store), Arc::clone(&self.hub));
        let (owner, id) = (principal.user_id.clone(), id.clone());
        let deleted = self.whole(async move {
            let deleted = store.delete_conversation(&owner, &id).await?.ok_or(Error::NotFound("conversation"))?;
            failpoint::reached("C27");
            if let Some(run) = &deleted.active_run {
                hub.notify_control(run);
            }
            hub.deleted(&id);
            Ok(())
        });
        deleted.await
    }

    /// A page of messages, oldest first.
    pub async fn messages(
        &self,
        principal: &Principal,
        id: &ConversationId,
        page: &PageRequest<MessageCursor>,
    ) -> Result<Page<Message>> {
        self.store.messages(&principal.user_id, id, page).await?.ok_or(Error::NotFound("conversation"))
    }

    fn title(&self, title: &str) -> Result<String> {
        let title = title.trim();
        let (chars, limit) = (title.chars().count(), self.limits.max_title_chars);
        if chars > limit {
            return Err(Error::field("/title", format!("has {chars} characters; at most {limit} are accepted")));
        }
        Ok(text::storable(title).into_owned())
    }
}
