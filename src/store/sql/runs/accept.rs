//! Accepts a message in a transaction, with its run and their first events.
//!
//! Owns the effect of a message on a conversation with unfinished runs. Must not know the statement by which Postgres accepts a
//! message into an idle conversation.

use crate::domain::conversation::{AgentChoice, Conversation, ConversationStatus};
use crate::domain::ids::{ConversationId, RunId};
use crate::domain::run::OnBusy;
use crate::store::conversations::fork::WrittenMessage;
use crate::store::rows::{read_word, storable_message, unsigned_count};
use crate::store::runs::created_rows;
use crate::store::sql::conversations::conversation_rows::{has_all, insert_conversation};
use crate::store::sql::runs::cancel::{CancelledRuns, stop_runs};
use crate::store::sql::runs::new_run::{
    ConversationState, NewRun, insert_message, insert_messages, insert_run, profile_json, update_conversation,
};
use crate::store::sql::runs::run_rows::{find_run, has_all_runs};
use crate::store::sql::{Database, Transaction, statements, values};
use crate::store::{AcceptOutcome, AcceptRun, IdempotencyKey, IdempotentOutcome, NewConversation, StoreResult, rows};

statements! {
    FIND = ["SELECT c.title, c.status, a.id AS active_id, a.cancel_requested_at IS NOT NULL AS cancel_requested,
             (SELECT count(*) FROM runs WHERE conversation_id = c.id AND finished_at IS NULL) AS unfinished
         FROM conversations c LEFT JOIN runs a ON a.conversation_id = c.id AND a.active", { postgres: "", sqlite: " = 1" }, "
         WHERE c.id = $1 AND c.owner_id = $2"];

    // Ignores a conversation of this owner, which may have been created since its head was read.
    IS_FOREIGN = ["SELECT EXISTS (SELECT 1 FROM conversations WHERE id = $1 AND owner_id <> $2)"];

    JOIN = ["UPDATE conversation_heads SET joined = joined + 1 WHERE conversation_id = $1"];

    USES_FILE = ["SELECT EXISTS (SELECT 1 FROM file_uses WHERE file_id = $1 AND conversation_id = $2)"];

    COUNT_FILES = [{
        postgres: "SELECT count(DISTINCT f.id) FROM messages m, jsonb_array_elements(m.body::jsonb -> 'parts') AS part
             JOIN files f ON f.id = part ->> 'file_id'
             WHERE strpos(m.body, '\"file_id\":\"file_') > 0",
        sqlite: "SELECT count(DISTINCT f.id) FROM messages m, json_each(m.body, '$.parts') AS part
             JOIN files f ON f.id = part.value ->> '$.file_id'
             WHERE instr(m.body, '\"file_id\":\"file_') > 0"
    }, " AND m.conversation_id = $1 AND m.role = 'user' AND m.superseded_by IS NULL AND f.origin = 'upload'"];
}

/// The state of a conversation at the acceptance.
struct ConversationAtAccept {
    base: i64,
    title: String,
    status: ConversationStatus,
    /// Number of unfinished runs of the conversation.
    unfinished: u32,
}

/// Accepts a message in one transaction. `None` if its conversation is missing and Postgres should create it with the message, or
/// if another request creates it now.
pub async fn accept_once(
    database: Database<'_>,
    accept: &AcceptRun,
    key: Option<&IdempotencyKey>,
) -> StoreResult<Option<IdempotentOutcome<AcceptOutcome>>> {
    let is_stored = |accepted: &Option<IdempotentOutcome<AcceptOutcome>>| {
        matches!(accepted, Some(IdempotentOutcome::Fresh(AcceptOutcome::Run { .. } | AcceptOutcome::Steered { .. })))
    };
    database.transaction(async |tx| accept_in(tx, accept, key).await, is_stored).await
}

/// Accepts a message within a transaction. The caller rolls the transaction back unless a message was stored.
pub async fn accept_in(
    tx: &mut Transaction,
    accept: &AcceptRun,
    key: Option<&IdempotencyKey>,
) -> StoreResult<Option<IdempotentOutcome<AcceptOutcome>>> {
    let head = tx.lock_head(&accept.owner, &accept.conversation_id).await?;
    // A concurrent request with the same key waits for the lock. Without a head to lock, it violates the primary key when it
    // records its outcome.
    if let Some(recorded) = tx.recorded(key).await? {
        return Ok(Some(recorded));
    }
    let accepted = match head {
        Some(base) => store_message(tx, accept, base).await?,
        None => {
            if let Some(refused) = without_conversation(tx, accept).await? {
                return Ok(Some(IdempotentOutcome::Fresh(refused)));
            }
            if matches!(tx, Transaction::Postgres(_)) && accept.transcript.is_none() {
                return Ok(None);
            }
            let new = new_conversation(accept);
            if !insert_conversation(tx, &accept.owner, &new, accept.now).await? {
                return Ok(None);
            }
            let found = ConversationAtAccept { base: 0, title: new.title, status: new.status, unfinished: 0 };
            start(tx, accept, &found, CancelledRuns::default(), 0).await?
        }
    };
    if !matches!(accepted, AcceptOutcome::Run { .. } | AcceptOutcome::Steered { .. }) {
        return Ok(Some(IdempotentOutcome::Fresh(accepted)));
    }
    if let Some(refused) = refused_files(tx, accept).await? {
        return Ok(Some(IdempotentOutcome::Fresh(refused)));
    }
    tx.record(key, accepted).await.map(Some)
}

/// Returns the refusal of a message whose conversation is missing. `None` if the conversation may be created.
async fn without_conversation(tx: &mut Transaction, accept: &AcceptRun) -> StoreResult<Option<AcceptOutcome>> {
    if accept.create_with_title.is_none() {
        return Ok(Some(AcceptOutcome::NoConversation));
    }
    if has_all(tx, &accept.owner, accept.max_conversations).await? {
        return Ok(Some(AcceptOutcome::TooManyConversations));
    }
    if tx.fetch_one(IS_FOREIGN, values![accept.conversation_id.as_str(), accept.owner.as_str()]).await?.only()? {
        return Ok(Some(AcceptOutcome::NoConversation));
    }
    Ok(has_all_runs(tx, &accept.owner, accept.max_active_runs).await?.then_some(AcceptOutcome::TooManyRuns))
}

/// Returns the conversation to create for a message.
fn new_conversation(accept: &AcceptRun) -> Conversation {
    rows::new_conversation(&NewConversation {
        id: accept.conversation_id.clone(),
        owner: accept.owner.clone(),
        title: accept.create_with_title.clone().unwrap_or_default(),
        system_prompt: None,
        instructions: None,
        choice: AgentChoice::default(),
        max_conversations: accept.max_conversations,
        now: accept.now,
    })
}

/// Stores a message in a conversation whose head is locked, with `base` as its newest number.
async fn store_message(tx: &mut Transaction, accept: &AcceptRun, base: i64) -> StoreResult<AcceptOutcome> {
    let (id, owner) = (accept.conversation_id.as_str(), accept.owner.as_str());
    let row = tx.fetch_one(FIND, values![id, owner]).await?;
    let found = ConversationAtAccept {
        base,
        title: row.get("title")?,
        status: read_word(&row, "conversations", "status", id, ConversationStatus::from_name)?,
        unfinished: unsigned_count(row.get("unfinished")?),
    };
    let mut waiting = found.unfinished;
    let mut stopped = CancelledRuns::default();
    if let Some(active) = row.get::<Option<String>>("active_id")?.map(RunId::from_stored) {
        match accept.on_busy {
            OnBusy::Reject => return Ok(AcceptOutcome::Busy { run_id: active }),
            // A run that is about to be cancelled processes no more messages. A message that would join it starts a run behind it.
            OnBusy::Steer if !row.get::<bool>("cancel_requested")? => return steer(tx, accept, &found, &active).await,
            OnBusy::Steer | OnBusy::Queue => {}
            OnBusy::Interrupt => {
                stopped = stop_runs(tx, &accept.conversation_id, None, base, "interrupt", accept.now).await?;
                waiting = u32::try_from(stopped.requested.len()).unwrap_or(u32::MAX);
            }
        }
    }
    if has_all_runs(tx, &accept.owner, accept.max_active_runs).await? {
        return Ok(AcceptOutcome::TooManyRuns);
    }
    start(tx, accept, &found, stopped, waiting).await
}

/// Stores the message with a new run, behind `waiting` others.
async fn start(
    tx: &mut Transaction,
    accept: &AcceptRun,
    found: &ConversationAtAccept,
    stopped: CancelledRuns,
    waiting: u32,
) -> StoreResult<AcceptOutcome> {
    let is_active = waiting == 0;
    let title = created_rows::title_of_accepted(&found.title, accept);
    let status = if is_active { ConversationStatus::Queued } else { found.status };
    let default_agent = Some(accept.profile.name.as_str());
    let hides = accept.transcript.as_ref().is_some_and(|transcript| transcript.hidden);
    let state = ConversationState { title: &title, status, choice: &accept.choice, default_agent, hides };
    update_conversation(tx, &accept.conversation_id, state, accept.now).await?;
    let (message, body) = storable_message(created_rows::accepted_message(accept, &accept.run_id))?;
    let run = created_rows::queued_run(accept);
    let mut events = stopped.events;
    if let Some(transcript) = &accept.transcript {
        let mut earlier = Vec::with_capacity(transcript.earlier.len());
        for message in &transcript.earlier {
            let (message, body) = storable_message(message.clone())?;
            events.push(created_rows::message_created(&message, 0, accept.now));
            let position = found.base + i64::try_from(events.len()).unwrap_or(0);
            earlier.push(WrittenMessage::new(&message, body, position));
        }
        insert_messages(tx, &accept.owner, &accept.conversation_id, &earlier, accept.now).await?;
    }
    let first_seq = found.base + 1 + i64::try_from(events.len()).unwrap_or(0);
    events.extend(created_rows::accepted_events(&message, waiting, (&found.title, found.status), (&title, status), accept.now));
    let events = tx.append(&accept.conversation_id, found.base, events).await?;
    let new = NewRun {
        owner: &accept.owner,
        run: &run,
        profile: &profile_json(accept)?,
        max_crashes: accept.profile.max_crashes,
        is_active,
        first_seq,
        now: accept.now,
    };
    insert_run(tx, new).await?;
    insert_message(tx, &accept.owner, &message, body, first_seq, accept.now).await?;
    Ok(AcceptOutcome::Run { run, message, first_seq, events, interrupted: stopped.requested, claim: None })
}

/// Stores the message as a message of the active run. The worker cannot end the run before it has processed the message.
async fn steer(
    tx: &mut Transaction,
    accept: &AcceptRun,
    found: &ConversationAtAccept,
    active: &RunId,
) -> StoreResult<AcceptOutcome> {
    let run = find_run(tx, &accept.owner, active).await?.ok_or(sqlx::Error::RowNotFound)?;
    let (message, body) = storable_message(created_rows::accepted_message(accept, active))?;
    let event = created_rows::message_created(&message, run.attempt, accept.now);
    let events = tx.append(&accept.conversation_id, found.base, vec![event]).await?;
    let first_seq = found.base + 1;
    tx.execute(JOIN, values![accept.conversation_id.as_str()]).await?;
    let state =
        ConversationState { title: &found.title, status: found.status, choice: &accept.choice, default_agent: None, hides: false };
    update_conversation(tx, &accept.conversation_id, state, accept.now).await?;
    insert_message(tx, &accept.owner, &message, body, first_seq, accept.now).await?;
    Ok(AcceptOutcome::Steered { run, message, first_seq, events })
}

/// Returns the refusal of a message, which is stored already, if a file is missing or the conversation has too many files.
pub async fn refused_files(tx: &mut Transaction, accept: &AcceptRun) -> StoreResult<Option<AcceptOutcome>> {
    let files = accept.files();
    if files.is_empty() {
        return Ok(None);
    }
    let conversation = accept.conversation_id.as_str();
    for file in files {
        if !tx.fetch_one(USES_FILE, values![file, conversation]).await?.only::<bool>()? {
            return Ok(Some(AcceptOutcome::NoFile { file_id: file.to_owned() }));
        }
    }
    let files = count_files(tx, &accept.conversation_id).await?;
    Ok((files > accept.max_files).then_some(AcceptOutcome::TooManyFiles { files }))
}

/// Returns the number of uploaded files in the messages of a conversation.
pub async fn count_files(tx: &mut Transaction, conversation: &ConversationId) -> StoreResult<u32> {
    Ok(unsigned_count(tx.fetch_one(COUNT_FILES, values![conversation.as_str()]).await?.only()?))
}
