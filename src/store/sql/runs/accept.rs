//! A message is accepted in a transaction: with its run and their first events.
//!
//! Owns what a message does to a conversation in which runs are under way. Must not know the statement by which Postgres accepts one
//! where nothing happens.

use crate::domain::conversation::{AgentChoice, Conversation, ConversationStatus};
use crate::domain::ids::RunId;
use crate::domain::run::OnBusy;
use crate::store::rows::{read_word, storable_message, unsigned};
use crate::store::runs::compose;
use crate::store::sql::conversations::conversation_rows::{has_all, insert_conversation};
use crate::store::sql::database::Database;
use crate::store::sql::runs::cancel::{Stopped, stop_runs};
use crate::store::sql::runs::new_run::{ConversationState, NewRun, insert_message, insert_run, profile_json, update_conversation};
use crate::store::sql::runs::run_rows::{find_run, has_all_runs};
use crate::store::sql::statement::statements;
use crate::store::sql::transaction::Transaction;
use crate::store::sql::value::values;
use crate::store::{AcceptRun, Accepted, IdempotencyClaim, Keyed, NewConversation, StoreResult, rows};

statements! {
    FIND = ["SELECT c.title, c.status, a.id AS active_id, a.cancel_requested_at IS NOT NULL AS cancel_requested,
             (SELECT count(*) FROM runs WHERE conversation_id = c.id AND finished_at IS NULL) AS unfinished
         FROM conversations c LEFT JOIN runs a ON a.conversation_id = c.id AND a.active", { postgres: "", sqlite: " = 1" }, "
         WHERE c.id = $1 AND c.owner_id = $2"];

    // A conversation of this owner may have been made since its head was looked for.
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

/// A conversation as a message finds it.
struct Found {
    base: i64,
    title: String,
    status: ConversationStatus,
    /// Runs of the conversation that have not ended.
    unfinished: u32,
}

/// Accepts a message in one transaction. `None` if its conversation is missing, and Postgres makes it with the message.
pub(in crate::store) async fn accept_once(
    database: Database<'_>,
    accept: &AcceptRun,
    key: Option<&IdempotencyClaim>,
) -> StoreResult<Option<Keyed<Accepted>>> {
    let mut tx = database.begin().await?;
    let accepted = accept_in(&mut tx, accept, key).await?;
    match &accepted {
        Some(Keyed::Fresh(Accepted::Run { .. } | Accepted::Steered { .. })) => tx.commit().await?,
        Some(_) | None => tx.rollback().await?,
    }
    Ok(accepted)
}

/// Accepts a message within a transaction, which the caller rolls back unless a message was stored.
pub(in crate::store::sql) async fn accept_in(
    tx: &mut Transaction,
    accept: &AcceptRun,
    key: Option<&IdempotencyClaim>,
) -> StoreResult<Option<Keyed<Accepted>>> {
    let head = tx.lock_head(&accept.owner, &accept.conversation_id).await?;
    // A request with the same key waited for the lock, or is found by its primary key when this one is recorded.
    if let Some(recorded) = tx.recorded(key).await? {
        return Ok(Some(recorded));
    }
    let base = match head {
        Some(base) => base,
        None => {
            if let Some(refused) = without_conversation(tx, accept).await? {
                return Ok(Some(Keyed::Fresh(refused)));
            }
            match tx {
                Transaction::Postgres(_) => return Ok(None),
                Transaction::Sqlite(..) => {
                    insert_conversation(tx, &accept.owner, &new_conversation(accept), accept.now).await?;
                    0
                }
            }
        }
    };
    let accepted = store_message(tx, accept, base).await?;
    if let Accepted::Run { .. } | Accepted::Steered { .. } = &accepted {
        if let Some(refused) = refused_files(tx, accept).await? {
            return Ok(Some(Keyed::Fresh(refused)));
        }
        tx.record(key, &accepted).await?;
    }
    Ok(Some(Keyed::Fresh(accepted)))
}

/// Returns why a conversation is not made for a message whose owner has none of its id.
async fn without_conversation(tx: &mut Transaction, accept: &AcceptRun) -> StoreResult<Option<Accepted>> {
    if accept.create_with_title.is_none() {
        return Ok(Some(Accepted::NoConversation));
    }
    if has_all(tx, &accept.owner, accept.max_conversations).await? {
        return Ok(Some(Accepted::TooManyConversations));
    }
    if tx.fetch_one(IS_FOREIGN, values![accept.conversation_id.as_str(), accept.owner.as_str()]).await?.only()? {
        return Ok(Some(Accepted::NoConversation));
    }
    Ok(has_all_runs(tx, &accept.owner, accept.max_active_runs).await?.then_some(Accepted::TooManyRuns))
}

/// Returns the conversation that is made for a message.
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

/// Stores a message in a conversation whose head is locked and stands at `base`.
async fn store_message(tx: &mut Transaction, accept: &AcceptRun, base: i64) -> StoreResult<Accepted> {
    let (id, owner) = (accept.conversation_id.as_str(), accept.owner.as_str());
    let row = tx.fetch_one(FIND, values![id, owner]).await?;
    let found = Found {
        base,
        title: row.get("title")?,
        status: read_word(&row, "conversations", "status", id, ConversationStatus::from_word)?,
        unfinished: unsigned(row.get("unfinished")?),
    };
    let mut waiting = found.unfinished;
    let mut stopped = Stopped::default();
    if let Some(active) = row.get::<Option<String>>("active_id")?.map(RunId::from_stored) {
        match accept.on_busy {
            OnBusy::Reject => return Ok(Accepted::Busy { run_id: active }),
            // A run that is about to be cancelled processes no more messages: one that would join it waits behind it.
            OnBusy::Steer if !row.get::<bool>("cancel_requested")? => return steer(tx, accept, &found, &active).await,
            OnBusy::Steer | OnBusy::Queue => {}
            OnBusy::Interrupt => {
                stopped = stop_runs(tx, &accept.conversation_id, None, base, "interrupt", accept.now).await?;
                waiting = u32::try_from(stopped.requested.len()).unwrap_or(u32::MAX);
            }
        }
    }
    if has_all_runs(tx, &accept.owner, accept.max_active_runs).await? {
        return Ok(Accepted::TooManyRuns);
    }
    start(tx, accept, &found, stopped, waiting).await
}

/// Stores the message with a run of its own, behind `waiting` others.
async fn start(tx: &mut Transaction, accept: &AcceptRun, found: &Found, stopped: Stopped, waiting: u32) -> StoreResult<Accepted> {
    let is_active = waiting == 0;
    let title = compose::title_or_made(&found.title, accept.profile.title, &accept.parts);
    let status = if is_active { ConversationStatus::Queued } else { found.status };
    let state = ConversationState { title: &title, status, choice: &accept.choice, default_agent: Some(&accept.profile.name) };
    update_conversation(tx, &accept.conversation_id, state, accept.now).await?;
    let (message, body) = storable_message(compose::user_message(accept, &accept.run_id))?;
    let run = compose::queued_run(accept);
    let mut events = stopped.events;
    let first_seq = found.base + 1 + i64::try_from(events.len()).unwrap_or(0);
    events.extend(compose::accepted_events(&message, waiting, (&found.title, found.status), (&title, status), accept.now));
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
    Ok(Accepted::Run { run, message, first_seq, events, interrupted: stopped.requested, claim: None })
}

/// Stores the message as one of the active run, whose worker cannot end the run before it has processed the message.
async fn steer(tx: &mut Transaction, accept: &AcceptRun, found: &Found, active: &RunId) -> StoreResult<Accepted> {
    let run = find_run(tx, &accept.owner, active).await?.ok_or(sqlx::Error::RowNotFound)?;
    let (message, body) = storable_message(compose::user_message(accept, active))?;
    let event = compose::message_created(&message, run.attempt, accept.now);
    let events = tx.append(&accept.conversation_id, found.base, vec![event]).await?;
    let first_seq = found.base + 1;
    tx.execute(JOIN, values![accept.conversation_id.as_str()]).await?;
    let state = ConversationState { title: &found.title, status: found.status, choice: &accept.choice, default_agent: None };
    update_conversation(tx, &accept.conversation_id, state, accept.now).await?;
    insert_message(tx, &accept.owner, &message, body, first_seq, accept.now).await?;
    Ok(Accepted::Steered { run, message, first_seq, events })
}

/// Returns why a message that has just been stored is refused because of its files.
pub(in crate::store) async fn refused_files(tx: &mut Transaction, accept: &AcceptRun) -> StoreResult<Option<Accepted>> {
    let files = accept.files();
    if files.is_empty() {
        return Ok(None);
    }
    let conversation = accept.conversation_id.as_str();
    for file in files {
        if !tx.fetch_one(USES_FILE, values![file, conversation]).await?.only::<bool>()? {
            return Ok(Some(Accepted::NoFile { file_id: file.to_owned() }));
        }
    }
    let files = unsigned(tx.fetch_one(COUNT_FILES, values![conversation]).await?.only()?);
    Ok((files > accept.max_files).then_some(Accepted::TooManyFiles { files }))
}
