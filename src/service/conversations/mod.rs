//! Conversations and their messages: creation, changes, appended messages, fork, import, export, rewind and search.
//!
//! Owns their rules for users. Must not know how a run works.

pub(super) mod append;
pub(super) mod export;
pub(super) mod fork;
pub(super) mod import;
pub(super) mod inline_files;
pub(super) mod rewind;
pub(super) mod search;
pub(super) mod shares;
pub(super) mod snippet;

use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::domain::access::principal::Principal;
use crate::domain::conversation::message::Message;
use crate::domain::conversation::{AgentChoice, Conversation, MAX_TITLE_CHARS};
use crate::domain::ids::{ConversationId, RunId};
use crate::domain::run::change::StepKind;
use crate::domain::run::context::ContextSummary;
use crate::service::idempotency_outcome::{Replay, RequestKey, outcome_or_conflict};
use crate::service::records::named::nullable;
use crate::service::runs::agent_and_model::is_short;
use crate::service::runs::message_content::storable_text;
use crate::service::runs::publish;
use crate::service::{Error, Result, Service};
use crate::store::{
    BeforeCursor, Compact, CompactOutcome, ConversationChange, ConversationCursor, ConversationFilter, CreateOutcome, EarlierPage,
    MessageCursor, NewConversation, PAGE_BYTES, Page, PageRequest,
};
use crate::support::{failpoint, text};

const MAX_TAGS: usize = 20;
const MAX_TAG_CHARS: usize = 50;
const MAX_PROMPT_CHARS: usize = 10_000;

/// A conversation to create.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CreateConversationBody)]
pub struct NewConversationRequest {
    /// An id that the client generated: `conv_` and a UUID.
    id: Option<ConversationId>,
    /// The title, at most 255 characters.
    title: Option<String>,
    /// The conversation's part of the system prompt, at most 10,000 characters.
    system_prompt: Option<String>,
    /// The user's wishes for every answer, at most 10,000 characters.
    instructions: Option<String>,
    /// The agent for messages that name none: a name or id, or `name@3` for version 3. Defaults to the server's default agent.
    agent: Option<String>,
    /// The model for messages that name none, as `provider/name`. Defaults to the agent's model.
    #[schema(max_length = 200)]
    model: Option<String>,
}

/// The changes to a conversation. Absent fields stay unchanged.
#[derive(Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = UpdateConversationBody)]
pub struct ConversationPatch {
    /// The new title, at most 255 characters.
    pub title: Option<String>,
    /// Whether the conversation is pinned. A pinned conversation is not archived automatically.
    pub pinned: Option<bool>,
    /// Whether the conversation is archived.
    pub archived: Option<bool>,
    /// The complete list of tags.
    #[schema(max_items = 20)]
    pub tags: Option<Vec<String>>,
    /// The conversation's part of the system prompt, at most 10,000 characters. Empty to remove it. Runs that begin later use it.
    pub system_prompt: Option<String>,
    /// The user's wishes for every answer, at most 10,000 characters. Empty to remove them. Runs that begin later use them.
    pub instructions: Option<String>,
    /// The agent for later messages that name none: a name or id, or `name@3` for version 3. Empty or `null` for the server's
    /// default agent.
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<String>)]
    pub agent: Option<Option<String>>,
    /// The model for later messages that name none, as `provider/name`. Empty or `null` for the agent's model.
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<String>, max_length = 200)]
    pub model: Option<Option<String>>,
    /// All keys and values of the client.
    #[serde(skip)]
    pub metadata: Option<Map<String, Value>>,
}

impl Service {
    pub async fn create_conversation(
        &self,
        principal: &Principal,
        request: NewConversationRequest,
        key: Option<RequestKey>,
    ) -> Result<(Conversation, Replay)> {
        let NewConversationRequest { id, title, system_prompt, instructions, agent, model } = request;
        let title = title.as_deref().map(|title| one_line("/title", title)).transpose()?.unwrap_or_default();
        let choice = AgentChoice { agent: agent.filter(|name| !name.is_empty()), model: model.filter(|name| !name.is_empty()) };
        self.check_choice(principal, &choice).await?;
        let new = NewConversation {
            id: id.unwrap_or_else(|| ConversationId::generate(self.ids.as_ref())),
            owner: principal.user_id.clone(),
            title,
            system_prompt: layer("/system_prompt", system_prompt)?.filter(|text| !text.is_empty()),
            instructions: layer("/instructions", instructions)?.filter(|text| !text.is_empty()),
            choice,
            max_conversations: self.limits.max_conversations,
            now: self.clock.now(),
        };
        let claim = self.claim(&principal.user_id, key);
        let created = self.run_to_end(|store, hub| async move {
            let created = outcome_or_conflict(store.create_conversation(new, claim).await?)?;
            if let (CreateOutcome::Conversation(made), _) = &created {
                hub.list_changed(&made.id);
            }
            Ok(created)
        });
        match created.await? {
            (CreateOutcome::Conversation(conversation), replay) => {
                self.check_replayed(principal, &conversation.id, replay).await?;
                Ok((*conversation, replay))
            }
            (CreateOutcome::Exists, _) => Err(Error::conflict("a conversation with this id exists; generate another id")),
            (CreateOutcome::TooMany, _) => Err(Error::TooManyConversations(self.limits.max_conversations)),
        }
    }

    pub async fn conversation(&self, principal: &Principal, id: &ConversationId) -> Result<Conversation> {
        self.store.conversation(&principal.user_id, id).await?.ok_or(Error::NotFound("conversation"))
    }

    /// Fails if a replayed response refers to a deleted conversation: the idempotency record outlives it.
    pub(in crate::service) async fn check_replayed(
        &self,
        principal: &Principal,
        id: &ConversationId,
        replay: Replay,
    ) -> Result<()> {
        match replay {
            Replay::Fresh => Ok(()),
            Replay::Replayed => self.conversation(principal, id).await.map(drop),
        }
    }

    /// Returns the most advanced kind of step of each of these runs that has begun.
    pub async fn run_progress(&self, principal: &Principal, runs: &[RunId]) -> Result<Vec<(RunId, StepKind)>> {
        if runs.is_empty() {
            return Ok(Vec::new());
        }
        Ok(self.store.run_progress(&principal.user_id, runs).await?)
    }

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

    pub async fn change_conversation(
        &self,
        principal: &Principal,
        id: &ConversationId,
        patch: ConversationPatch,
    ) -> Result<Conversation> {
        if patch == ConversationPatch::default() {
            return Err(Error::invalid(
                "the body changes nothing: give title, pinned, archived, tags, system_prompt, instructions, agent or model",
            ));
        }
        let ConversationPatch { title, pinned, archived, tags, system_prompt, instructions, agent, model, metadata } = patch;
        let choice = AgentChoice { agent: agent.map(Option::unwrap_or_default), model: model.map(Option::unwrap_or_default) };
        // A conversation of another owner is reported as missing, even if the request names an unknown agent.
        self.conversation(principal, id).await?;
        self.check_choice(principal, &choice).await?;
        let change = ConversationChange {
            title: title.map(|title| one_line("/title", &title)).transpose()?,
            pinned,
            archived,
            tags: tags.map(|tags| cleaned_tags("/tags", tags)).transpose()?,
            system_prompt: layer("/system_prompt", system_prompt)?,
            instructions: layer("/instructions", instructions)?,
            agent: choice.agent,
            model: choice.model,
            metadata,
        };
        let (owner, id, now) = (principal.user_id.clone(), id.clone(), self.clock.now());
        self.run_to_end(|store, hub| async move {
            let changed = store.change_conversation(&owner, &id, &change, now).await?;
            let (conversation, events) = changed.ok_or(Error::NotFound("conversation"))?;
            publish(&hub, &id, events);
            Ok(conversation)
        })
        .await
    }

    /// Omits the older messages of a conversation from requests from now on. Returns how many more messages are omitted, and the
    /// summary of all omitted ones. Uses the context policy of the server's default agent.
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
        let id = id.clone();
        self.run_to_end(|store, hub| async move {
            let (compacted, replay) = outcome_or_conflict(store.compact(compact, claim).await?)?;
            match compacted {
                CompactOutcome::Done { messages, summary, events } => {
                    publish(&hub, &id, events);
                    Ok(((messages, summary), replay))
                }
                CompactOutcome::Busy => {
                    Err(Error::conflict("a run is active and compacts its own requests: wait for its end, or cancel it"))
                }
                CompactOutcome::NoConversation => Err(Error::NotFound("conversation")),
            }
        })
        .await
    }

    /// Deletes a conversation with everything in it. The worker of an active run is notified.
    pub async fn delete_conversation(&self, principal: &Principal, id: &ConversationId) -> Result<()> {
        let (owner, id) = (principal.user_id.clone(), id.clone());
        self.run_to_end(|store, hub| async move {
            let deleted = store.delete_conversation(&owner, &id).await?.ok_or(Error::NotFound("conversation"))?;
            failpoint::hit("C27");
            if deleted.active_run.is_some() {
                hub.notify_control();
            }
            hub.deleted(&owner, &id);
            Ok(())
        })
        .await
    }

    pub async fn messages(
        &self,
        principal: &Principal,
        id: &ConversationId,
        page: &PageRequest<MessageCursor>,
    ) -> Result<Page<Message>> {
        self.store.messages(&principal.user_id, id, page).await?.ok_or(Error::NotFound("conversation"))
    }

    /// Returns the messages before `before`, or the newest ones: oldest first, at most `limit`, and limited to [`PAGE_BYTES`]. The
    /// next page contains the messages before these.
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
}

pub(in crate::service) fn one_line(pointer: &str, title: &str) -> Result<String> {
    storable_text(pointer, title.replace(char::is_control, " ").trim(), MAX_TITLE_CHARS)
}

/// Returns a layer of the system prompt, trimmed.
pub(in crate::service) fn layer(pointer: &str, text: Option<String>) -> Result<Option<String>> {
    text.map(|text| storable_text(pointer, text.trim(), MAX_PROMPT_CHARS)).transpose()
}

/// Returns each tag once, in the given order, trimmed.
pub(in crate::service) fn cleaned_tags(pointer: &str, tags: Vec<String>) -> Result<Vec<String>> {
    let mut clean: Vec<String> = Vec::with_capacity(tags.len().min(MAX_TAGS));
    for (index, tag) in tags.iter().enumerate() {
        let tag = text::storable(tag.trim());
        if !is_short(&tag, MAX_TAG_CHARS) {
            let rule = format!("must have 1 to {MAX_TAG_CHARS} characters, and no control characters");
            return Err(Error::field(&format!("{pointer}/{index}"), rule));
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
