//! Conversations and their messages.

use std::sync::Arc;

use super::idempotency::{Replay, RequestKey, keyed};
use super::runs::publish;
use super::{Error, ExportForm, Result, Service};
use crate::domain::change::StepKind;
use crate::domain::context::ContextSummary;
use crate::domain::conversation::{AgentChoice, Conversation, MAX_TITLE_CHARS};
use crate::domain::ids::{ConversationId, RunId};
use crate::domain::message::Message;
use crate::domain::principal::Principal;
use crate::store::{
    BeforeCursor, Compact, Compacted, ConversationChange, ConversationCursor, ConversationFilter, Created, EarlierPage,
    MessageCursor, NewConversation, PAGE_BYTES, Page, PageRequest,
};
use crate::support::{failpoint, text};

/// Tags of one conversation, and how long each may be.
const MAX_TAGS: usize = 20;
const MAX_TAG_CHARS: usize = 50;
/// Characters of a conversation's own prompt, and of what its user wants.
const MAX_PROMPT_CHARS: usize = 10_000;

/// A conversation to make.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NewConversationRequest {
    /// An id minted by the client.
    pub id: Option<ConversationId>,
    /// A title; empty if absent.
    pub title: Option<String>,
    /// Its own part of the system prompt.
    pub system_prompt: Option<String>,
    /// What its user wants of every answer.
    pub instructions: Option<String>,
    /// The agent and the model of messages that name none.
    pub choice: AgentChoice,
}

impl Service {
    /// Makes a conversation.
    pub async fn create_conversation(
        &self,
        principal: &Principal,
        request: NewConversationRequest,
        key: Option<RequestKey>,
    ) -> Result<(Conversation, Replay)> {
        let title = request.title.as_deref().map(|title| self.title("/title", title)).transpose()?.unwrap_or_default();
        self.check_choice(principal, &request.choice).await?;
        let AgentChoice { agent, model } = request.choice;
        let is_named = |name: &String| !name.is_empty();
        let new = NewConversation {
            id: request.id.unwrap_or_else(|| ConversationId::generate(self.ids.as_ref())),
            owner: principal.user_id.clone(),
            title,
            system_prompt: layer("/system_prompt", request.system_prompt)?.filter(|text| !text.is_empty()),
            instructions: layer("/instructions", request.instructions)?.filter(|text| !text.is_empty()),
            choice: AgentChoice { agent: agent.filter(is_named), model: model.filter(is_named) },
            max_conversations: self.limits.max_conversations,
            now: self.clock.now(),
        };
        let claim = self.claim(&principal.user_id, key);
        match keyed(self.store.create_conversation(new, claim).await?)? {
            (Created::Conversation(conversation), Replay::Fresh) => Ok((*conversation, Replay::Fresh)),
            (Created::Conversation(conversation), Replay::Replayed) => {
                // The record of the earlier request outlives the conversation.
                self.conversation(principal, &conversation.id).await?;
                Ok((*conversation, Replay::Replayed))
            }
            (Created::Exists, _) => Err(Error::Conflict("this conversation id is taken; mint another one".to_owned())),
            (Created::TooMany, _) => Err(Error::TooManyConversations(self.limits.max_conversations)),
        }
    }

    /// One conversation.
    pub async fn conversation(&self, principal: &Principal, id: &ConversationId) -> Result<Conversation> {
        self.store.conversation(&principal.user_id, id).await?.ok_or(Error::NotFound("conversation"))
    }

    /// How far runs of a principal have come, of those that have begun.
    pub async fn reached(&self, principal: &Principal, runs: &[RunId]) -> Result<Vec<(RunId, StepKind)>> {
        if runs.is_empty() {
            return Ok(Vec::new());
        }
        Ok(self.store.reached(&principal.user_id, runs).await?)
    }

    /// A page of conversations, newest first.
    pub async fn conversations(
        &self,
        principal: &Principal,
        mut filter: ConversationFilter,
        page: &PageRequest<ConversationCursor>,
    ) -> Result<Page<Conversation>> {
        let query = filter.query.take();
        filter.query = query.map(|query| text::storable(query.trim()).into_owned()).filter(|query| !query.is_empty());
        Ok(self.store.conversations(&principal.user_id, &filter, page).await?)
    }

    /// Changes what a principal says of a conversation.
    pub async fn change_conversation(
        &self,
        principal: &Principal,
        id: &ConversationId,
        change: ConversationChange,
    ) -> Result<Conversation> {
        if change == ConversationChange::default() {
            return Err(Error::invalid(
                "the body changes nothing: give title, pinned, archived, tags, system_prompt, instructions, agent or model",
            ));
        }
        let ConversationChange { title, pinned, archived, tags, system_prompt, instructions, agent, model } = change;
        let choice = AgentChoice { agent, model };
        // A conversation of another owner looks missing, also to a request that names an unknown agent.
        self.conversation(principal, id).await?;
        self.check_choice(principal, &choice).await?;
        let change = ConversationChange {
            title: title.map(|title| self.title("/title", &title)).transpose()?,
            pinned,
            archived,
            tags: tags.map(|tags| cleaned_tags("/tags", tags)).transpose()?,
            system_prompt: layer("/system_prompt", system_prompt)?,
            instructions: layer("/instructions", instructions)?,
            agent: choice.agent,
            model: choice.model,
        };
        let (store, hub, now) = (Arc::clone(&self.store), Arc::clone(&self.hub), self.clock.now());
        let (owner, id) = (principal.user_id.clone(), id.clone());
        let changed = self.whole(async move {
            let changed = store.change_conversation(&owner, &id, &change, now).await?;
            let (conversation, events) = changed.ok_or(Error::NotFound("conversation"))?;
            publish(&hub, &id, events);
            Ok(conversation)
        });
        changed.await
    }

    /// Leaves the older messages of a conversation out of requests from now on. How many more those are, and what stands for all
    /// that are left out. What is kept is what the server's own agent keeps.
    pub async fn compact_conversation(
        &self,
        principal: &Principal,
        id: &ConversationId,
        key: Option<RequestKey>,
    ) -> Result<((u32, Option<ContextSummary>), Replay)> {
        let (owner, conversation) = (principal.user_id.clone(), id.clone());
        let policy = self.default_profile.context.clone();
        let compact = Compact { owner, conversation, policy, now: self.clock.now() };
        let claim = self.claim(&principal.user_id, key);
        let (store, hub, id) = (Arc::clone(&self.store), Arc::clone(&self.hub), id.clone());
        let done = self.whole(async move {
            let (compacted, replay) = keyed(store.compact(compact, claim).await?)?;
            match compacted {
                Compacted::Done { messages, summary, events } => {
                    publish(&hub, &id, events);
                    Ok(((messages, summary), replay))
                }
                Compacted::Busy => Err(Error::Conflict(
                    "a run is under way, which leaves out by itself what does not fit: wait for its end, or cancel it".to_owned(),
                )),
                Compacted::NoConversation => Err(Error::NotFound("conversation")),
            }
        });
        done.await
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

    /// The beginning of a conversation's document. Its messages come from [`Self::messages`].
    pub async fn export_beginning(&self, principal: &Principal, id: &ConversationId, form: ExportForm) -> Result<String> {
        Ok(form.beginning(&self.conversation(principal, id).await?, self.clock.now()))
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

    /// Returns the messages before `before`, or the newest ones: oldest first, at most `limit`, and cut short at [`PAGE_BYTES`]. The
    /// next page is of the messages before these.
    pub async fn earlier_messages(
        &self,
        principal: &Principal,
        id: &ConversationId,
        before: Option<BeforeCursor>,
        limit: u32,
    ) -> Result<Page<Message>> {
        let page = EarlierPage { before, limit, bytes: PAGE_BYTES };
        let found = self.store.earlier_messages(&principal.user_id, id, page).await?.ok_or(Error::NotFound("conversation"))?;
        Ok(found.into_page())
    }

    pub(super) fn title(&self, pointer: &str, title: &str) -> Result<String> {
        // One line, whoever shows it.
        let title = title.replace(char::is_control, " ");
        let title = title.trim();
        let chars = title.chars().count();
        if chars > MAX_TITLE_CHARS {
            return Err(Error::field(pointer, format!("has {chars} characters; at most {MAX_TITLE_CHARS} are accepted")));
        }
        Ok(text::storable(title).into_owned())
    }
}

/// A part of the system prompt, without space around it.
pub(super) fn layer(pointer: &str, text: Option<String>) -> Result<Option<String>> {
    let Some(text) = text else { return Ok(None) };
    let text = text.trim();
    match text.chars().count() {
        0..=MAX_PROMPT_CHARS => Ok(Some(text::storable(text).into_owned())),
        count => Err(Error::field(pointer, format!("has {count} characters; at most {MAX_PROMPT_CHARS} are accepted"))),
    }
}

/// Each tag once, in the order given, without space around it.
pub(super) fn cleaned_tags(pointer: &str, tags: Vec<String>) -> Result<Vec<String>> {
    let mut clean: Vec<String> = Vec::with_capacity(tags.len().min(MAX_TAGS));
    for (place, tag) in tags.iter().enumerate() {
        let tag = text::storable(tag.trim());
        if !(1..=MAX_TAG_CHARS).contains(&tag.chars().count()) || tag.contains(char::is_control) {
            let rule = format!("must have 1 to {MAX_TAG_CHARS} characters, and no control characters");
            return Err(Error::field(&format!("{pointer}/{place}"), rule));
        }
        if !clean.iter().any(|known| *known == *tag) {
            clean.push(tag.into_owned());
        }
    }
    match clean.len() {
        0..=MAX_TAGS => Ok(clean),
        count => Err(Error::field(pointer, format!("has {count} tags; at most {MAX_TAGS} are accepted"))),
    }
}
