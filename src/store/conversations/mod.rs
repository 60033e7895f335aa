//! Conversations, their logs, messages, files and questions: traits and values.
//!
//! Owns the traits and values of these aggregates. Must not know any statement.

pub(super) mod append;
pub(super) mod feedback;
pub(super) mod files;
pub(super) mod fork;
pub(super) mod log;
pub(super) mod messages;
pub(super) mod questions;
pub(super) mod retention;
pub(super) mod rewind;
pub(super) mod shares;
pub(super) mod titles;

use async_trait::async_trait;

use crate::domain::conversation::{Conversation, Message};
use crate::domain::event::StoredEvent;
use crate::domain::ids::{ConversationId, RunId, UserId};
use crate::domain::run::StepKind;
use crate::store::{
    AppendMessages, AppendOutcome, Compact, CompactOutcome, ConversationChange, ConversationCursor, ConversationFilter,
    CopyConversation, CopyOutcome, CreateOutcome, DeletedConversation, EarlierMessages, EarlierPage, IdempotencyKey,
    IdempotentResult, MessageCursor, NewConversation, Page, PageRequest, Rewind, RewindOutcome, StoreResult,
};
use crate::support::clock::UnixMillis;

/// Conversations and their messages, always of one owner.
#[async_trait]
#[warn(missing_docs)]
pub trait ConversationStore: Send + Sync {
    /// Creates a conversation. Idempotent by `key`. Returns [`CreateOutcome::Exists`] if the id exists already.
    async fn create_conversation(&self, new: NewConversation, key: Option<IdempotencyKey>) -> IdempotentResult<CreateOutcome>;

    /// Returns the conversation, unless it is missing, deleted, or belongs to another owner.
    async fn conversation(&self, owner: &UserId, id: &ConversationId) -> StoreResult<Option<Conversation>>;

    /// Returns a page of conversations, newest first (by creation). Omits hidden conversations.
    async fn conversations(
        &self,
        owner: &UserId,
        filter: &ConversationFilter,
        page: &PageRequest<ConversationCursor>,
    ) -> StoreResult<Page<Conversation>>;

    /// Returns the most advanced step of each run: [`StepKind::Tools`] after a tool step, else [`StepKind::Model`]. Omits runs
    /// without a step.
    async fn run_progress(&self, owner: &UserId, runs: &[RunId]) -> StoreResult<Vec<(RunId, StepKind)>>;

    /// Changes a conversation, and appends `conversation.updated`. `None` if it is missing.
    async fn change_conversation(
        &self,
        owner: &UserId,
        id: &ConversationId,
        change: &ConversationChange,
        now: UnixMillis,
    ) -> StoreResult<Option<(Conversation, Vec<StoredEvent>)>>;

    /// Compacts a conversation without an unfinished run.
    async fn compact(&self, compact: Compact, key: Option<IdempotencyKey>) -> IdempotentResult<CompactOutcome>;

    /// Removes messages from a conversation without an unfinished run, and appends `conversation.updated` with their ids.
    async fn rewind_conversation(&self, rewind: Rewind, key: Option<IdempotencyKey>) -> IdempotentResult<RewindOutcome>;

    /// Appends existing messages to a conversation without an unfinished run, all of them or none. Nothing is executed.
    async fn append_messages(&self, append: AppendMessages, key: Option<IdempotencyKey>) -> IdempotentResult<AppendOutcome>;

    /// Creates a conversation from existing messages. Nothing is executed.
    async fn copy_conversation(&self, copy: CopyConversation, key: Option<IdempotencyKey>) -> IdempotentResult<CopyOutcome>;

    /// Deletes the conversation with all its rows. Its active run is fenced first, so that no late write creates rows again.
    /// Returns the active run, so that the caller can notify its worker; `None` if there is no such conversation.
    async fn delete_conversation(&self, owner: &UserId, id: &ConversationId) -> StoreResult<Option<DeletedConversation>>;

    /// Returns a page of messages, oldest first. The page ends early when it contains [`PAGE_BYTES`](crate::store::PAGE_BYTES).
    async fn messages(
        &self,
        owner: &UserId,
        id: &ConversationId,
        page: &PageRequest<MessageCursor>,
    ) -> StoreResult<Option<Page<Message>>>;

    /// Returns the messages before `page.before`, or the newest messages. `None` if there is no such conversation.
    async fn earlier_messages(
        &self,
        owner: &UserId,
        id: &ConversationId,
        page: EarlierPage,
    ) -> StoreResult<Option<EarlierMessages>>;
}
