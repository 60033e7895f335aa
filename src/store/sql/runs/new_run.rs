//! Inserts new runs, and updates their conversations.
//!
//! Owns the statements that insert a run and a message. Must not know why: accepting and resuming decide that.

use crate::domain::conversation::{AgentChoice, ConversationStatus, Message};
use crate::domain::ids::{ConversationId, UserId};
use crate::domain::model::Usage;
use crate::domain::run::{Run, RunCounters};
use crate::domain::trace::TraceId;
use crate::store::conversations::fork::WrittenMessage;
use crate::store::rows::{encode, encode_storable};
use crate::store::sql::{Transaction, statements, values};
use crate::store::{AcceptRun, StoreResult};
use crate::support::clock::UnixMillis;

/// Number of rows that one statement writes, so that none takes long.
pub const PIECE: usize = 500;

statements! {
    // A model may replace a title that was made from the first words.
    UPDATE_CONVERSATION = ["UPDATE conversations SET title = $2, status = $3, updated_at = $4, archived_at = NULL,
             title_by = CASE title WHEN '' THEN 'words' ELSE title_by END,
             agent = coalesce($5, agent, $6), model = coalesce($7, model), hidden = hidden OR $8
         WHERE id = $1"];

    INSERT_RUN = ["INSERT INTO runs (id, conversation_id, owner_id, status, active, claimable_at, claim_cause, profile, agent,
             agent_version, model, counters, usage, first_seq, created_at, trace_id, max_crashes)
         VALUES ($1, $2, $3, 'queued', $4, CASE WHEN $4 THEN ", now, " END, 'first', $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)"];

    INSERT_MESSAGE = ["INSERT INTO messages (id, conversation_id, owner_id, run_id, position, role, body, created_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8)"];

    INSERT_MESSAGES = ["INSERT INTO messages (id, conversation_id, owner_id, run_id, position, role, body, created_at, rating, comment,
             rated_at)
         SELECT e.value ->> 0, $1, $2, e.value ->> 1, CAST(e.value ->> 2 AS bigint), e.value ->> 3, e.value ->> 4, $3,
             e.value ->> 5, e.value ->> 6, CAST(e.value ->> 7 AS bigint)
         FROM ", (elements "$4")];
}

/// The new title and status of a conversation, and its agent and model.
pub struct ConversationState<'a> {
    pub title: &'a str,
    pub status: ConversationStatus,
    pub choice: &'a AgentChoice,
    pub default_agent: Option<&'a str>,
    /// Whether lists omit the conversation from now on.
    pub hides: bool,
}

pub async fn update_conversation(
    tx: &mut Transaction,
    id: &ConversationId,
    state: ConversationState<'_>,
    now: UnixMillis,
) -> StoreResult<()> {
    let (agent, model) = (state.choice.agent.as_deref(), state.choice.model.as_deref());
    let values = values![id.as_str(), state.title, state.status.as_str(), now, agent, state.default_agent, model, state.hides];
    tx.write(UPDATE_CONVERSATION, values).await
}

pub struct NewRun<'a> {
    pub owner: &'a UserId,
    pub run: &'a Run,
    /// The frozen profile as JSON.
    pub profile: &'a str,
    pub max_crashes: u32,
    /// Whether the run is active, and so can be claimed.
    pub is_active: bool,
    pub first_seq: i64,
    pub now: UnixMillis,
}

pub async fn insert_run(tx: &mut Transaction, new: NewRun<'_>) -> StoreResult<()> {
    let NewRun { owner, run, profile, max_crashes, is_active, first_seq, now } = new;
    let values = values![
        run.id.as_str(),
        run.conversation_id.as_str(),
        owner.as_str(),
        is_active,
        profile,
        &run.agent,
        run.agent_version,
        &run.model,
        fresh_counters()?,
        fresh_usage()?,
        first_seq,
        now,
        run.trace_id.as_ref().map(TraceId::as_str),
        max_crashes,
    ];
    tx.write(INSERT_RUN, values).await
}

/// Inserts a message with `body` at a position in its conversation.
pub async fn insert_message(
    tx: &mut Transaction,
    owner: &UserId,
    message: &Message,
    body: String,
    position: i64,
    now: UnixMillis,
) -> StoreResult<()> {
    let (id, conversation, run) = (message.id.as_str(), message.conversation_id.as_str(), message.run_id.as_str());
    tx.write(INSERT_MESSAGE, values![id, conversation, owner.as_str(), run, position, message.role.as_str(), body, now]).await
}

pub async fn insert_messages(
    tx: &mut Transaction,
    owner: &UserId,
    conversation: &ConversationId,
    messages: &[WrittenMessage],
    now: UnixMillis,
) -> StoreResult<()> {
    let id = conversation.as_str();
    for messages in messages.chunks(PIECE) {
        let rows = messages.iter().map(|message| {
            let rated = message.rated.as_ref();
            let rating = rated.map(|(feedback, _)| feedback.rating.as_str());
            let comment = rated.and_then(|(feedback, _)| feedback.comment.as_deref());
            let (role, at) = (message.role.as_str(), rated.map(|(_, at)| at.0));
            (&message.id, &message.run_id, message.position, role, &message.body, rating, comment, at)
        });
        let rows = encode_storable("messages", "copy", id, &rows.collect::<Vec<_>>())?;
        tx.execute(INSERT_MESSAGES, values![id, owner.as_str(), now, rows]).await?;
    }
    Ok(())
}

pub fn profile_json(accept: &AcceptRun) -> StoreResult<String> {
    encode_storable("runs", "profile", accept.run_id.as_str(), &accept.profile)
}

pub fn fresh_counters() -> StoreResult<String> {
    encode("runs", "counters", "", &RunCounters::default())
}

pub fn fresh_usage() -> StoreResult<String> {
    encode("runs", "usage", "", &Usage::default())
}
