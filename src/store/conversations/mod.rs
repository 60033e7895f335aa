//! Conversations: the trait.

pub(super) mod copy;
pub(super) mod feedback;
pub(super) mod files;
pub(super) mod input;
pub(super) mod log;
pub(super) mod messages;
pub(super) mod retention;
pub(super) mod rewind;
pub(super) mod search;
pub(super) mod titles;

use async_trait::async_trait;

use crate::domain::conversation::Conversation;
use crate::domain::conversation::message::Message;
use crate::domain::event::StoredEvent;
use crate::domain::ids::{ConversationId, RunId, UserId};
use crate::domain::run::change::StepKind;
use crate::store::{
    Compact, Compacted, ConversationChange, ConversationCursor, ConversationFilter, Copied, CopyConversation, Created,
    DeletedConversation, EarlierMessages, EarlierPage, IdempotencyClaim, Keyed, MessageCursor, NewConversation, Page, PageRequest,
    Rewind, Rewound, StoreResult,
};
use crate::support::clock::UnixMillis;

/// Conversations and their messages, always of one owner.
#[async_trait]
pub trait ConversationStore: Send + Sync {
    /// Makes a conversation. Idempotent by `idempotency`; an id that exists already is [`Created::Exists`].
    async fn create_conversation(&self, new: NewConversation, idempotency: Option<IdempotencyClaim>)
    -> StoreResult<Keyed<Created>>;

    /// Returns the conversation, unless it is missing, deleted or another owner's.
    async fn conversation(&self, owner: &UserId, id: &ConversationId) -> StoreResult<Option<Conversation>>;

    /// A page of conversations, newest first (by creation). `query` matches titles, case-insensitively.
    async fn conversations(
        &self,
        owner: &UserId,
        filter: &ConversationFilter,
        page: &PageRequest<ConversationCursor>,
    ) -> StoreResult<Page<Conversation>>;

    /// Returns the furthest step of these runs of an owner: [`StepKind::Tools`] after a tool step, else [`StepKind::Model`]. Runs without a
    /// step are left out.
    async fn reached(&self, owner: &UserId, runs: &[RunId]) -> StoreResult<Vec<(RunId, StepKind)>>;

    /// Changes a conversation, and appends `conversation.updated`. `None` if it is missing.
    async fn change_conversation(
        &self,
        owner: &UserId,
        id: &ConversationId,
        change: &ConversationChange,
        now: UnixMillis,
    ) -> StoreResult<Option<(Conversation, Vec<StoredEvent>)>>;

    /// Compacts a conversation in which no run is under way.
    async fn compact(&self, compact: Compact, idempotency: Option<IdempotencyClaim>) -> StoreResult<Keyed<Compacted>>;

    /// Takes messages out of a conversation in which no run is under way, and appends `conversation.updated` that names them.
    async fn rewind_conversation(&self, rewind: Rewind, idempotency: Option<IdempotencyClaim>) -> StoreResult<Keyed<Rewound>>;

    /// Makes a conversation of what was said before. Nothing is executed.
    async fn copy_conversation(&self, copy: CopyConversation, idempotency: Option<IdempotencyClaim>) -> StoreResult<Keyed<Copied>>;

    /// Deletes the conversation with all its rows. Its active run is fenced off first, so that no late writer recreates
    /// anything. Returns the run that was active, for the caller to tell its worker; `None` if there is no such conversation.
    async fn delete_conversation(&self, owner: &UserId, id: &ConversationId) -> StoreResult<Option<DeletedConversation>>;

    /// A page of messages, oldest first. It ends early when it holds [`PAGE_BYTES`](crate::store::PAGE_BYTES).
    async fn messages(
        &self,
        owner: &UserId,
        id: &ConversationId,
        page: &PageRequest<MessageCursor>,
    ) -> StoreResult<Option<Page<Message>>>;

    /// Returns the messages before `page.before`, or the newest ones. `None` if there is no such conversation.
    async fn earlier_messages(
        &self,
        owner: &UserId,
        id: &ConversationId,
        page: EarlierPage,
    ) -> StoreResult<Option<EarlierMessages>>;
}
