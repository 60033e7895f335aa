//! Taking a conversation back to an earlier message.

use sqlx::{Connection as _, PgConnection};

use super::PostgresStore;
use super::accept::{accept_locked, record};
use super::cancel::store_key;
use super::conversations::{append, find, lock_head, recorded_key};
use super::errors::is_unique_violation;
use crate::domain::ids::{MessageId, RunId};
use crate::store::rewind::{TakenOut, before_edit, is_the_users, keyed_edit, taken_for_edit, taken_out};
use crate::store::{AcceptRun, Accepted, Edited, IdempotencyClaim, Keyed, Rewind, Rewound, StoreError, StoreResult, compose};

impl PostgresStore {
    pub(super) async fn rewind(&self, rewind: &Rewind, key: Option<&IdempotencyClaim>) -> StoreResult<Keyed<Rewound>> {
        let rewound = self.api.ask(async |connection| {
            let mut tx = connection.begin().await?;
            let rewound = rewind_locked(&mut tx, rewind, key).await?;
            match &rewound {
                Keyed::Fresh(Rewound::Conversation { .. }) => tx.commit().await?,
                Keyed::Fresh(_) | Keyed::Replayed(_) | Keyed::Mismatch => tx.rollback().await?,
            }
            Ok(rewound)
        });
        self.or_recorded(rewound.await, key).await
    }
}

impl PostgresStore {
    pub(super) async fn edit(
        &self,
        accept: &AcceptRun,
        message: &MessageId,
        key: Option<&IdempotencyClaim>,
    ) -> StoreResult<Keyed<Edited>> {
        let edited = self.api.ask(async |connection| {
            let mut tx = connection.begin().await?;
            let edited = edit_locked(&mut tx, accept, message, key).await?;
            match &edited {
                Keyed::Fresh(edited) if edited.stored().is_some() => tx.commit().await?,
                Keyed::Fresh(_) | Keyed::Replayed(_) | Keyed::Mismatch => tx.rollback().await?,
            }
            Ok(edited)
        });
        match edited.await {
            Err(StoreError::Statement(error)) if is_unique_violation(&error) => match self.recorded(key).await? {
                Some(recorded) => Ok(keyed_edit(recorded)),
                None => Err(StoreError::Statement(error)),
            },
            edited => edited,
        }
    }
}

async fn edit_locked(
    tx: &mut PgConnection,
    accept: &AcceptRun,
    message: &MessageId,
    key: Option<&IdempotencyClaim>,
) -> StoreResult<Keyed<Edited>> {
    // A request with the same key waits here for the one that came first.
    lock_head(tx, &accept.owner, &accept.conversation_id).await?;
    if let Some(key) = key
        && let Some(recorded) = recorded_key(tx, key).await?
    {
        return Ok(keyed_edit(recorded));
    }
    let Keyed::Fresh(rewound) = rewind_locked(tx, &before_edit(accept, message), None).await? else { return Ok(Keyed::Mismatch) };
    let events = match taken_for_edit(rewound) {
        Ok(events) => events,
        Err(refused) => return Ok(Keyed::Fresh(refused)),
    };
    let body: String =
        sqlx::query_scalar("SELECT body FROM messages WHERE id = $1").bind(message.as_str()).fetch_one(&mut *tx).await?;
    if !is_the_users(message, &body)? {
        return Ok(Keyed::Fresh(Edited::NotTheUsers));
    }
    let accepted = accept_locked(tx, accept, key).await?.unwrap_or(Keyed::Fresh(Accepted::NoConversation));
    Ok(match keyed_edit(accepted) {
        Keyed::Fresh(edited) => Keyed::Fresh(edited.after(events)),
        Keyed::Replayed(_) | Keyed::Mismatch => Keyed::Mismatch,
    })
}

async fn rewind_locked(tx: &mut PgConnection, rewind: &Rewind, key: Option<&IdempotencyClaim>) -> StoreResult<Keyed<Rewound>> {
    let Rewind { owner, conversation_id: id, from, now } = rewind;
    let base = lock_head(tx, owner, id).await?;
    if let Some(key) = key
        && let Some(recorded) = recorded_key(tx, key).await?
    {
        return Ok(recorded);
    }
    let Some(base) = base else { return Ok(Keyed::Fresh(Rewound::NoConversation)) };
    let open = "SELECT id FROM runs WHERE conversation_id = $1 AND finished_at IS NULL ORDER BY first_seq LIMIT 1";
    let open: Option<String> = sqlx::query_scalar(open).bind(id.as_str()).fetch_optional(&mut *tx).await?;
    if let Some(run) = open {
        return Ok(Keyed::Fresh(Rewound::Active { run_id: RunId::from_stored(run) }));
    }
    let mark: Option<(i64, i64)> = sqlx::query_as(
        "SELECT r.first_seq, m.position FROM messages m JOIN runs r ON r.id = m.run_id
         WHERE m.id = $1 AND m.conversation_id = $2 AND m.superseded_by IS NULL",
    )
    .bind(from.message().as_str())
    .bind(id.as_str())
    .fetch_optional(&mut *tx)
    .await?;
    let Some((first_seq, position)) = mark else { return Ok(Keyed::Fresh(Rewound::NoMessage)) };
    let messages: Vec<(i64, i64, String, String)> = sqlx::query_as(
        "UPDATE messages m SET superseded_by = $1 FROM runs r
         WHERE r.id = m.run_id AND m.conversation_id = $2 AND m.superseded_by IS NULL
             AND ((r.first_seq, m.position) > ($3, $4) OR ($5 AND m.id = $1))
         RETURNING r.first_seq, m.position, m.id, m.role",
    )
    .bind(from.message().as_str())
    .bind(id.as_str())
    .bind(first_seq)
    .bind(position)
    .bind(from.takes_it())
    .fetch_all(&mut *tx)
    .await?;
    let Some(superseded) = taken_out(messages.into_iter().map(TakenOut::from).collect(), first_seq) else {
        return Ok(Keyed::Fresh(Rewound::PartsCalls));
    };
    if !superseded.is_empty() {
        sqlx::query("UPDATE conversations SET status = 'idle', updated_at = $2 WHERE id = $1")
            .bind(id.as_str())
            .bind(now.0)
            .execute(&mut *tx)
            .await?;
    }
    let Some(conversation) = find(&mut *tx, owner, id).await? else { return Ok(Keyed::Fresh(Rewound::NoConversation)) };
    let mut conversation = Box::new(conversation);
    let events = compose::numbered(id, base, {
        let events = compose::rewound(&conversation.title, &superseded, *now);
        append(tx, id, base, &events, &[]).await?;
        events
    });
    conversation.last_seq = events.last().map_or(base, |event| event.seq);
    let rewound = Rewound::Conversation { conversation, superseded, events };
    store_key(tx, record(key, &rewound)?).await?;
    Ok(Keyed::Fresh(rewound))
}
