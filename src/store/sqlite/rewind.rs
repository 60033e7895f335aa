//! Taking a conversation back to an earlier message.

use super::accept::accept_in;
use super::connection::Tx;
use super::conversations::find;
use super::log::append;
use super::{SqliteStore, idempotency};
use crate::domain::ids::{MessageId, RunId};
use crate::store::rewind::{TakenOut, accepted, before_edit, is_the_users, keyed_edit, taken_for_edit, taken_out};
use crate::store::{AcceptRun, Edited, IdempotencyClaim, Keyed, Rewind, Rewound, StoreResult, compose};

impl SqliteStore {
    pub(super) async fn rewind(&self, rewind: &Rewind, key: Option<&IdempotencyClaim>) -> StoreResult<Keyed<Rewound>> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        if let Some(earlier) = idempotency::earlier(&mut tx, key).await? {
            return Ok(earlier);
        }
        let rewound = rewind_in(&mut tx, rewind).await?;
        match &rewound {
            Rewound::Conversation { .. } => {
                idempotency::keep(&mut tx, key, &rewound).await?;
                tx.commit().await?;
            }
            // Dropping the transaction rolls it back.
            Rewound::Active { .. } | Rewound::PartsCalls | Rewound::NoMessage | Rewound::NoConversation => {}
        }
        Ok(Keyed::Fresh(rewound))
    }
}

impl SqliteStore {
    pub(super) async fn edit(
        &self,
        accept: AcceptRun,
        message: &MessageId,
        key: Option<&IdempotencyClaim>,
    ) -> StoreResult<Keyed<Edited>> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        if let Some(earlier) = idempotency::earlier(&mut tx, key).await? {
            return Ok(keyed_edit(earlier));
        }
        let edited = edit_in(&mut tx, accept, message).await?;
        if let Some(accepted) = edited.stored() {
            idempotency::keep(&mut tx, key, accepted).await?;
            tx.commit().await?;
        }
        Ok(Keyed::Fresh(edited))
    }
}

async fn edit_in(tx: &mut Tx, accept: AcceptRun, message: &MessageId) -> StoreResult<Edited> {
    let events = match taken_for_edit(rewind_in(tx, &before_edit(&accept, message)).await?) {
        Ok(events) => events,
        Err(refused) => return Ok(refused),
    };
    let body: String =
        sqlx::query_scalar("SELECT body FROM messages WHERE id = ?").bind(message.as_str()).fetch_one(&mut **tx).await?;
    if !is_the_users(message, &body)? {
        return Ok(Edited::NotTheUsers);
    }
    Ok(accepted(accept_in(tx, &accept).await?).after(events))
}

async fn rewind_in(tx: &mut Tx, rewind: &Rewind) -> StoreResult<Rewound> {
    let Rewind { owner, conversation_id: id, from, now } = rewind;
    let Some(before) = find(tx, owner, id).await? else { return Ok(Rewound::NoConversation) };
    let open = "SELECT id FROM runs WHERE conversation_id = ? AND finished_at IS NULL ORDER BY first_seq LIMIT 1";
    let open: Option<String> = sqlx::query_scalar(open).bind(id.as_str()).fetch_optional(&mut **tx).await?;
    if let Some(run) = open {
        return Ok(Rewound::Active { run_id: RunId::from_stored(run) });
    }
    let mark: Option<(i64, i64)> = sqlx::query_as(
        "SELECT r.first_seq, m.position FROM messages m JOIN runs r ON r.id = m.run_id
         WHERE m.id = ? AND m.conversation_id = ? AND m.superseded_by IS NULL",
    )
    .bind(from.message().as_str())
    .bind(id.as_str())
    .fetch_optional(&mut **tx)
    .await?;
    let Some((first_seq, position)) = mark else { return Ok(Rewound::NoMessage) };
    let messages: Vec<(i64, i64, String, String)> = sqlx::query_as(
        "SELECT r.first_seq, m.position, m.id, m.role FROM messages m JOIN runs r ON r.id = m.run_id
         WHERE m.conversation_id = ?1 AND m.superseded_by IS NULL
             AND ((r.first_seq, m.position) > (?2, ?3) OR (?4 AND m.id = ?5))",
    )
    .bind(id.as_str())
    .bind(first_seq)
    .bind(position)
    .bind(from.takes_it())
    .bind(from.message().as_str())
    .fetch_all(&mut **tx)
    .await?;
    let Some(superseded) = taken_out(messages.into_iter().map(TakenOut::from).collect(), first_seq) else {
        return Ok(Rewound::PartsCalls);
    };
    if superseded.is_empty() {
        return Ok(Rewound::Conversation { conversation: Box::new(before), superseded, events: Vec::new() });
    }
    for message in &superseded {
        sqlx::query("UPDATE messages SET superseded_by = ? WHERE id = ?")
            .bind(from.message().as_str())
            .bind(message.as_str())
            .execute(&mut **tx)
            .await?;
    }
    sqlx::query("UPDATE conversations SET status = 'idle', updated_at = ? WHERE id = ?")
        .bind(now.0)
        .bind(id.as_str())
        .execute(&mut **tx)
        .await?;
    let events = append(tx, id, compose::rewound(&before.title, &superseded, *now)).await?;
    let Some(after) = find(tx, owner, id).await? else { return Ok(Rewound::NoConversation) };
    Ok(Rewound::Conversation { conversation: Box::new(after), superseded, events })
}
