//! Rewinds a conversation to an earlier message, and replaces a message by an edited one.
//!
//! Owns the statements that supersede messages for a rewind. Must not know how a message is accepted.

use crate::domain::conversation::Role;
use crate::domain::ids::MessageId;
use crate::store::conversations::messages::has_visible_role;
use crate::store::conversations::rewind::{RemovedMessage, before_edit, removed_messages, taken_for_edit};
use crate::store::runs::created_rows;
use crate::store::sql::conversations::conversation_rows::find;
use crate::store::sql::runs::accept::accept_in;
use crate::store::sql::runs::run_rows::unfinished_run;
use crate::store::sql::{Transaction, refuse, statements, values};
use crate::store::{
    AcceptOutcome, AcceptRun, EditOutcome, IdempotencyKey, IdempotentOutcome, IdempotentResult, Rewind, RewindOutcome, StoreResult,
};

statements! {
    PLACE = ["SELECT r.first_seq, m.position FROM messages m JOIN runs r ON r.id = m.run_id
         WHERE m.id = $1 AND m.conversation_id = $2 AND m.superseded_by IS NULL"];

    LATER = ["SELECT r.first_seq, m.position, m.id, m.role FROM messages m JOIN runs r ON r.id = m.run_id
         WHERE m.conversation_id = $1 AND m.superseded_by IS NULL
             AND ((r.first_seq, m.position) > ($2, $3) OR ($4 AND m.id = $5))"];

    SUPERSEDE = ["UPDATE messages SET superseded_by = $1 WHERE id ", (in_list "$2")];

    SET_IDLE = ["UPDATE conversations SET status = 'idle', updated_at = $2 WHERE id = $1"];

    BODY = ["SELECT body FROM messages WHERE id = $1"];
}

/// Replaces a message: supersedes it and all later ones, and accepts the new message.
pub async fn edit_in(
    tx: &mut Transaction,
    accept: &AcceptRun,
    message: &MessageId,
    key: Option<&IdempotencyKey>,
) -> IdempotentResult<EditOutcome> {
    // A request with the same key waits here for the first one.
    tx.lock_head(&accept.owner, &accept.conversation_id).await?;
    if let Some(recorded) = tx.recorded(key).await? {
        return Ok(recorded);
    }
    let IdempotentOutcome::Fresh(rewound) = rewind_in(tx, &before_edit(accept, message), None).await? else {
        return Ok(IdempotentOutcome::Mismatch);
    };
    let events = match taken_for_edit(rewound) {
        Ok(events) => events,
        Err(outcome) => return refuse(outcome),
    };
    if !has_visible_role(Role::User, message, tx.fetch_one(BODY, values![message.as_str()]).await?.only()?)? {
        return refuse(EditOutcome::NotTheUsers);
    }
    Ok(match accept_in(tx, accept, key).await? {
        Some(IdempotentOutcome::Fresh(accepted)) => IdempotentOutcome::Fresh(EditOutcome::from(accepted).after(events)),
        None => IdempotentOutcome::Fresh(AcceptOutcome::NoConversation.into()),
        Some(IdempotentOutcome::Replayed(_) | IdempotentOutcome::Mismatch) => IdempotentOutcome::Mismatch,
    })
}

pub async fn rewind_in(tx: &mut Transaction, rewind: &Rewind, key: Option<&IdempotencyKey>) -> IdempotentResult<RewindOutcome> {
    let Rewind { owner, conversation_id: id, from, now } = rewind;
    let base = tx.lock_head(owner, id).await?;
    if let Some(recorded) = tx.recorded(key).await? {
        return Ok(recorded);
    }
    let Some(base) = base else { return refuse(RewindOutcome::NoConversation) };
    if let Some(run_id) = unfinished_run(tx, id).await? {
        return refuse(RewindOutcome::Active { run_id });
    }
    let message = from.message().as_str();
    let Some(place) = tx.fetch_optional(PLACE, values![message, id.as_str()]).await? else {
        return refuse(RewindOutcome::NoMessage);
    };
    let (first_seq, position): (i64, i64) = (place.get("first_seq")?, place.get("position")?);
    let later = tx.fetch_all(LATER, values![id.as_str(), first_seq, position, from.takes_it(), message]).await?;
    let later = later.iter().map(|row| -> StoreResult<RemovedMessage> {
        let (first_seq, position) = (row.get("first_seq")?, row.get("position")?);
        Ok(RemovedMessage { first_seq, position, id: row.get("id")?, role: row.get("role")? })
    });
    let later = later.collect::<StoreResult<_>>()?;
    let Some(superseded) = removed_messages(later, first_seq) else {
        return refuse(RewindOutcome::PartsCalls);
    };
    if !superseded.is_empty() {
        tx.execute(SUPERSEDE, &[message.into(), superseded.iter().map(MessageId::as_str).collect()]).await?;
        tx.execute(SET_IDLE, values![id.as_str(), *now]).await?;
    }
    let Some(conversation) = find(tx, owner, id).await? else { return refuse(RewindOutcome::NoConversation) };
    let mut conversation = Box::new(conversation);
    let events = tx.append(id, base, created_rows::rewind_events(&conversation.title, &superseded, *now)).await?;
    conversation.last_seq = events.last().map_or(base, |event| event.seq);
    tx.record(key, RewindOutcome::Conversation { conversation, superseded, events }).await
}
