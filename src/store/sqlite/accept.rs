//! A message comes in: conversation, run, message and first events in one transaction.

use sqlx::Row as _;

use super::SqliteStore;
use super::apply::insert_message;
use super::batch::Batch;
use super::cancel::{Ask, end_unstarted, request};
use super::connection::Tx;
use super::conversations::{has_all_conversations, insert_conversation};
use super::files;
use super::idempotency;
use super::log::append;
use super::runs::{active_run, find_run};
use crate::domain::agent::AgentProfile;
use crate::domain::change::RunCounters;
use crate::domain::conversation::{AgentChoice, ConversationStatus};
use crate::domain::event::StoredEvent;
use crate::domain::ids::{ConversationId, MessageId, RunId, UserId};
use crate::domain::message::Message;
use crate::domain::model::Usage;
use crate::domain::run::OnBusy;
use crate::domain::trace::TraceId;
use crate::store::rows::{RunRow, encode, signed, storable_message, unsigned, word};
use crate::store::{AcceptRun, Accepted, IdempotencyClaim, Keyed, ResumeRun, StoreResult, compose};
use crate::support::clock::UnixMillis;

impl SqliteStore {
    pub(super) async fn accept(&self, accept: &AcceptRun, key: Option<&IdempotencyClaim>) -> StoreResult<Keyed<Accepted>> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        if let Some(earlier) = idempotency::earlier(&mut tx, key).await? {
            return Ok(earlier);
        }
        let accepted = accept_in(&mut tx, accept).await?;
        match &accepted {
            Accepted::Run { .. } | Accepted::Steered { .. } => {
                idempotency::keep(&mut tx, key, &accepted).await?;
                tx.commit().await?;
            }
            // Dropping the transaction rolls it back: nothing is stored.
            Accepted::Busy { .. }
            | Accepted::NoConversation
            | Accepted::TooManyRuns
            | Accepted::TooManyConversations
            | Accepted::NoFile { .. }
            | Accepted::TooManyFiles { .. } => {}
        }
        Ok(Keyed::Fresh(accepted))
    }
}

/// Accepts within a transaction, which is to be rolled back unless a message was stored.
pub(in crate::store) async fn accept_in(tx: &mut Tx, accept: &AcceptRun) -> StoreResult<Accepted> {
    let accepted = store_message(tx, accept).await?;
    match &accepted {
        Accepted::Run { .. } | Accepted::Steered { .. } => Ok(files::refused(tx, accept).await?.unwrap_or(accepted)),
        Accepted::Busy { .. }
        | Accepted::NoConversation
        | Accepted::TooManyRuns
        | Accepted::TooManyConversations
        | Accepted::NoFile { .. }
        | Accepted::TooManyFiles { .. } => Ok(accepted),
    }
}

async fn store_message(tx: &mut Tx, accept: &AcceptRun) -> StoreResult<Accepted> {
    if let Some(refused) = ensure_conversation(tx, accept).await? {
        return Ok(refused);
    }
    let mut events = Vec::new();
    let mut interrupted = Vec::new();
    if let Some(active) = active_run(tx, &accept.owner, &accept.conversation_id).await? {
        match accept.on_busy {
            OnBusy::Queue => {}
            OnBusy::Reject => return Ok(Accepted::Busy { run_id: active.run_id() }),
            // A run that is about to be cancelled answers nobody any more: what would join it waits behind it.
            OnBusy::Steer if active.cancel_requested_by.is_some() => {}
            OnBusy::Steer => return steer(tx, accept, active).await,
            OnBusy::Interrupt => (events, interrupted) = interrupt(tx, accept, active).await?,
        }
    }
    if accept.max_active_runs > 0 && unfinished_runs(tx, &accept.owner).await? >= accept.max_active_runs {
        return Ok(Accepted::TooManyRuns);
    }
    let new = NewRun {
        id: &accept.run_id,
        conversation_id: &accept.conversation_id,
        owner: &accept.owner,
        profile: &accept.profile,
        choice: &accept.choice,
        beginning: Beginning::Message(storable_message(compose::user_message(accept, &accept.run_id))?.0),
        trace: &accept.trace,
        now: accept.now,
    };
    let (row, message, own_events) = store_run(tx, new).await?;
    let Some(message) = message else { return Ok(Accepted::NoConversation) };
    events.extend(own_events);
    Ok(Accepted::Run { first_seq: row.first_seq, run: row.into_run()?, message, events, interrupted, claim: None })
}

/// Makes the conversation if it is missing and the request says so. What to answer if there is none of this owner then.
async fn ensure_conversation(tx: &mut Tx, accept: &AcceptRun) -> StoreResult<Option<Accepted>> {
    let owner: Option<String> = sqlx::query_scalar("SELECT owner_id FROM conversations WHERE id = ?")
        .bind(accept.conversation_id.as_str())
        .fetch_optional(&mut **tx)
        .await?;
    let is_there = match (owner, &accept.create_with_title) {
        (Some(owner), _) => owner == accept.owner.as_str(),
        (None, Some(_)) if has_all_conversations(tx, &accept.owner, accept.max_conversations).await? => {
            return Ok(Some(Accepted::TooManyConversations));
        }
        (None, Some(title)) => insert_conversation(tx, &accept.conversation_id, &accept.owner, title, accept.now).await?,
        (None, None) => false,
    };
    Ok((!is_there).then_some(Accepted::NoConversation))
}

pub(super) async fn unfinished_runs(tx: &mut Tx, owner: &UserId) -> StoreResult<u32> {
    let count = sqlx::query_scalar("SELECT count(*) FROM runs WHERE owner_id = ? AND finished_at IS NULL");
    Ok(unsigned(count.bind(owner.as_str()).fetch_one(&mut **tx).await?))
}

/// The message joins the active run.
async fn steer(tx: &mut Tx, accept: &AcceptRun, active: RunRow) -> StoreResult<Accepted> {
    let (message, _) = storable_message(compose::user_message(accept, &active.run_id()))?;
    let event = compose::message_created(&message, unsigned(active.attempt), accept.now);
    let events = append(tx, &accept.conversation_id, vec![event]).await?;
    let first_seq = events.first().map_or(0, |event| event.seq);
    let mut batch = Batch::default();
    insert_message(&mut batch, &message, first_seq)?;
    batch.run(tx).await?;
    // The run's worker cannot end the run before it has heard of it.
    sqlx::query("UPDATE conversation_heads SET joined = joined + 1 WHERE conversation_id = ?")
        .bind(accept.conversation_id.as_str())
        .execute(&mut **tx)
        .await?;
    sqlx::query(
        "UPDATE conversations SET updated_at = ?, archived_at = NULL, agent = coalesce(?, agent), model = coalesce(?, model)
         WHERE id = ?",
    )
    .bind(accept.now.0)
    .bind(accept.choice.agent.as_deref())
    .bind(accept.choice.model.as_deref())
    .bind(accept.conversation_id.as_str())
    .execute(&mut **tx)
    .await?;
    Ok(Accepted::Steered { run: active.into_run()?, message, first_seq, events })
}

/// Ends what is queued, and asks the active run to end unless it can be ended here and now. The events of runs that are over,
/// and the runs whose worker is to be told.
async fn interrupt(tx: &mut Tx, accept: &AcceptRun, active: RunRow) -> StoreResult<(Vec<StoredEvent>, Vec<RunId>)> {
    let queued: Vec<String> = sqlx::query_scalar(
        "SELECT id FROM runs WHERE conversation_id = ? AND finished_at IS NULL AND active = 0 ORDER BY first_seq",
    )
    .bind(accept.conversation_id.as_str())
    .fetch_all(&mut **tx)
    .await?;
    let mut events = Vec::new();
    for id in queued {
        let Some(queued) = find_run(tx, &accept.owner, &RunId::from_stored(id)).await? else { continue };
        events.extend(end_unstarted(tx, &queued, "interrupt", accept.now).await?);
    }
    let id = active.run_id();
    match request(tx, &active, "interrupt", accept.now).await? {
        Ask::Ended(more) => {
            events.extend(more);
            Ok((events, Vec::new()))
        }
        Ask::Marked => Ok((events, vec![id])),
    }
}

/// What a run begins with.
pub(super) enum Beginning<'a> {
    /// The message that it answers.
    Message(Message),
    /// What is stored; these messages are superseded.
    After(&'a ResumeRun, Vec<MessageId>),
}

/// A run to store.
pub(super) struct NewRun<'a> {
    pub id: &'a RunId,
    pub conversation_id: &'a ConversationId,
    pub owner: &'a UserId,
    pub profile: &'a AgentProfile,
    pub choice: &'a AgentChoice,
    pub beginning: Beginning<'a>,
    pub trace: &'a TraceId,
    pub now: UnixMillis,
}

/// Stores a run behind those that its conversation has already, with its message and its first events.
pub(super) async fn store_run(tx: &mut Tx, new: NewRun<'_>) -> StoreResult<(RunRow, Option<Message>, Vec<StoredEvent>)> {
    let conversation = sqlx::query(
        "SELECT title, status, (SELECT count(*) FROM runs WHERE conversation_id = conversations.id AND finished_at IS NULL) AS runs
         FROM conversations WHERE id = ?",
    )
    .bind(new.conversation_id.as_str())
    .fetch_one(&mut **tx)
    .await?;
    let id = new.conversation_id.as_str();
    let title: String = conversation.try_get("title")?;
    let status = word("conversations", "status", id, conversation.try_get("status")?, ConversationStatus::from_word)?;
    let position = unsigned(conversation.try_get("runs")?);
    let active = position == 0;
    let new_status = if active { ConversationStatus::Queued } else { status };
    let parts = match &new.beginning {
        Beginning::Message(message) => &message.parts[..],
        Beginning::After(..) => &[],
    };
    let new_title = compose::title_or_made(&title, new.profile.title, parts);
    sqlx::query(
        "UPDATE conversations SET title = ?, status = ?, updated_at = ?, archived_at = NULL,
             title_by = CASE title WHEN '' THEN 'words' ELSE title_by END,
             agent = coalesce(?, agent, ?), model = coalesce(?, model)
         WHERE id = ?",
    )
    .bind(&new_title)
    .bind(new_status.as_str())
    .bind(new.now.0)
    .bind(new.choice.agent.as_deref())
    .bind(&new.profile.name)
    .bind(new.choice.model.as_deref())
    .bind(id)
    .execute(&mut **tx)
    .await?;
    let (before, after) = ((title.as_str(), status), (new_title.as_str(), new_status));
    let (message, events) = match new.beginning {
        Beginning::Message(message) => {
            let events = compose::accepted_events(&message, position, before, after, new.now);
            (Some(message), events)
        }
        Beginning::After(resume, superseded) => {
            (None, compose::going_on(resume, superseded, (before != after).then_some(&new_title)))
        }
    };
    let events = append(tx, new.conversation_id, events).await?;
    let first_seq = events.first().map_or(0, |event| event.seq);
    sqlx::query(concat!(
        "INSERT INTO runs (id, conversation_id, owner_id, status, active, claimable_at, claim_cause, profile, agent,
                           agent_version, model, counters, usage, first_seq, created_at, trace_id, max_crashes)
         VALUES (?1, ?2, ?3, 'queued', ?4, CASE WHEN ?4 THEN ",
        now!(),
        " END, 'first', ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)"
    ))
    .bind(new.id.as_str())
    .bind(new.conversation_id.as_str())
    .bind(new.owner.as_str())
    .bind(active)
    .bind(encode("runs", "profile", new.id.as_str(), new.profile)?)
    .bind(&new.profile.name)
    .bind(signed(new.profile.version))
    .bind(&new.profile.model)
    .bind(encode("runs", "counters", new.id.as_str(), &RunCounters::default())?)
    .bind(encode("runs", "usage", new.id.as_str(), &Usage::default())?)
    .bind(first_seq)
    .bind(new.now.0)
    .bind(new.trace.as_str())
    .bind(signed(new.profile.max_crashes))
    .execute(&mut **tx)
    .await?;
    if let Some(message) = &message {
        let mut batch = Batch::default();
        insert_message(&mut batch, message, first_seq)?;
        batch.run(tx).await?;
    }
    let row = find_run(tx, new.owner, new.id).await?;
    let row = row.ok_or_else(|| crate::store::StoreError::Statement(sqlx::Error::RowNotFound))?;
    Ok((row, message, events))
}
