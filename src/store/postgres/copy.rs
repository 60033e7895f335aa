//! A conversation that is made of what was said before.

use sqlx::{Connection as _, PgConnection};

use super::PostgresStore;
use super::accept::{fresh_counters, fresh_usage};
use super::cancel::store_key;
use super::conversations::{append, find, has_all_conversations, recorded_key};
use crate::domain::conversation::ForkedFrom;
use crate::domain::ids::ConversationId;
use crate::store::copy::{self, Copied, CopiedDocument, CopyConversation, CopySource, CopyUntil, SourceRow, Written};
use crate::store::{IdempotencyClaim, Keyed, StoreResult, rows};

/// Rows that are written at a time, so that no statement takes long.
const PIECE: usize = 500;

impl PostgresStore {
    pub(super) async fn copy(&self, request: &CopyConversation, key: Option<&IdempotencyClaim>) -> StoreResult<Keyed<Copied>> {
        let copied = self.api.ask(async |connection| {
            let mut tx = connection.begin().await?;
            let copied = copy_in(&mut tx, request, key).await?;
            match &copied {
                Keyed::Fresh(copied) if copied.is_made() => tx.commit().await?,
                Keyed::Fresh(_) | Keyed::Replayed(_) | Keyed::Mismatch => tx.rollback().await?,
            }
            Ok(copied)
        });
        self.or_recorded(copied.await, key).await
    }
}

async fn copy_in(tx: &mut PgConnection, request: &CopyConversation, key: Option<&IdempotencyClaim>) -> StoreResult<Keyed<Copied>> {
    if let Some(key) = key
        && let Some(recorded) = recorded_key(tx, key).await?
    {
        return Ok(recorded);
    }
    if has_all_conversations(tx, &request.owner, request.max_conversations).await? {
        return Ok(Keyed::Fresh(Copied::TooMany));
    }
    let (document, from) = match &request.source {
        CopySource::Document(document) => (document.clone(), None),
        CopySource::Conversation { id, until } => match read(tx, request, id, until).await? {
            Ok((document, from)) => (document, Some(from)),
            Err(refused) => return Ok(Keyed::Fresh(refused)),
        },
    };
    let written = copy::write(request, document, from)?;
    insert(tx, request, &written).await?;
    let copied = Copied::Conversation(Box::new(written.conversation));
    if let Some(key) = key {
        store_key(tx, Some((key, copy::outcome(key, &copied)?))).await?;
    }
    Ok(Keyed::Fresh(copied))
}

/// What was said in a conversation, in one statement: it is as it was at one moment.
async fn read(
    tx: &mut PgConnection,
    request: &CopyConversation,
    id: &ConversationId,
    until: &CopyUntil,
) -> StoreResult<Result<(CopiedDocument, ForkedFrom), Copied>> {
    let Some(source) = find(tx, &request.owner, id).await? else { return Ok(Err(Copied::NoConversation)) };
    let found = sqlx::query(
        "SELECT m.id, m.position, m.role, r.id AS run_id, r.first_seq, r.finished_at IS NULL AS is_open, r.status, r.agent,
             r.agent_version, r.model, r.finish_reason, r.error,
             CASE WHEN lag(r.id) OVER said IS DISTINCT FROM r.id THEN r.profile END AS profile,
             CASE WHEN sum(octet_length(m.body)) OVER said <= $2 THEN m.body END AS body
         FROM messages m JOIN runs r ON r.id = m.run_id
         WHERE m.conversation_id = $1 AND m.superseded_by IS NULL
         WINDOW said AS (ORDER BY r.first_seq, m.position)
         ORDER BY r.first_seq, m.position LIMIT $3",
    )
    .bind(id.as_str())
    .bind(i64::try_from(request.limits.bytes).unwrap_or(i64::MAX))
    .bind(i64::from(request.limits.messages) + 1)
    .fetch_all(&mut *tx)
    .await?;
    let found = found.iter().map(SourceRow::read).collect::<Result<Vec<_>, _>>()?;
    copy::select(source, &found, until, request.limits)
}

async fn insert(tx: &mut PgConnection, request: &CopyConversation, written: &Written) -> StoreResult<()> {
    let made = &written.conversation;
    let id = made.id.as_str();
    sqlx::query(
        "WITH made AS (
             INSERT INTO conversations
                 (id, owner_id, title, status, created_at, updated_at, tags, system_prompt, instructions, forked_from, agent, model)
             VALUES ($1, $2, $3, $4, $5, $5, $6, $7, $8, $9, $10, $11)
         )
         INSERT INTO conversation_heads (conversation_id, owner_id) VALUES ($1, $2)",
    )
    .bind(id)
    .bind(request.owner.as_str())
    .bind(&made.title)
    .bind(made.status.as_str())
    .bind(request.now.0)
    .bind(rows::encode_storable("conversations", "tags", id, &made.tags)?)
    .bind(made.system_prompt.as_deref())
    .bind(made.instructions.as_deref())
    .bind(made.forked_from.as_ref().map(|from| rows::encode("conversations", "forked_from", id, from)).transpose()?)
    .bind(made.agent.as_deref())
    .bind(made.model.as_deref())
    .execute(&mut *tx)
    .await?;
    let (counters, usage) = (fresh_counters()?, fresh_usage()?);
    for runs in written.runs.chunks(PIECE) {
        sqlx::query(
            "INSERT INTO runs (id, conversation_id, owner_id, status, active, claim_cause, profile, agent, agent_version, model,
                 counters, usage, first_seq, last_seq, finish_reason, error, created_at, finished_at, folded_at, is_copy,
                 max_crashes)
             SELECT r.id, $1, $2, r.status, false, 'first', r.profile, r.agent, r.agent_version, r.model, $3, $4, r.first_seq,
                 r.last_seq, r.finish_reason, r.error, $5, $5, $5, true, 0
             FROM unnest($6::text[], $7::text[], $8::text[], $9::text[], $10::bigint[], $11::text[], $12::bigint[], $13::bigint[],
                 $14::text[], $15::text[])
                 AS r (id, status, profile, agent, agent_version, model, first_seq, last_seq, finish_reason, error)",
        )
        .bind(id)
        .bind(request.owner.as_str())
        .bind(&counters)
        .bind(&usage)
        .bind(request.now.0)
        .bind(runs.iter().map(|run| run.id.as_str()).collect::<Vec<_>>())
        .bind(runs.iter().map(|run| run.status.as_str()).collect::<Vec<_>>())
        .bind(runs.iter().map(|run| run.turn.profile.as_str()).collect::<Vec<_>>())
        .bind(runs.iter().map(|run| run.turn.agent.as_str()).collect::<Vec<_>>())
        .bind(runs.iter().map(|run| rows::signed(run.turn.agent_version)).collect::<Vec<_>>())
        .bind(runs.iter().map(|run| run.turn.model.as_str()).collect::<Vec<_>>())
        .bind(runs.iter().map(|run| run.first_seq).collect::<Vec<_>>())
        .bind(runs.iter().map(|run| run.last_seq).collect::<Vec<_>>())
        .bind(runs.iter().map(|run| run.finish_reason.map(|reason| reason.as_str())).collect::<Vec<_>>())
        .bind(runs.iter().map(|run| run.error.as_deref()).collect::<Vec<_>>())
        .execute(&mut *tx)
        .await?;
    }
    for messages in written.messages.chunks(PIECE) {
        sqlx::query(
            "INSERT INTO messages (id, conversation_id, owner_id, run_id, position, role, body, created_at, rating, comment, rated_at)
             SELECT m.id, $1, $2, m.run_id, m.position, m.role, m.body, $3, m.rating, m.comment, m.rated_at
             FROM unnest($4::text[], $5::text[], $6::bigint[], $7::text[], $8::text[], $9::text[], $10::text[], $11::bigint[])
                 AS m (id, run_id, position, role, body, rating, comment, rated_at)",
        )
        .bind(id)
        .bind(request.owner.as_str())
        .bind(request.now.0)
        .bind(messages.iter().map(|message| message.id.as_str()).collect::<Vec<_>>())
        .bind(messages.iter().map(|message| message.run_id.as_str()).collect::<Vec<_>>())
        .bind(messages.iter().map(|message| message.position).collect::<Vec<_>>())
        .bind(messages.iter().map(|message| message.role.as_str()).collect::<Vec<_>>())
        .bind(messages.iter().map(|message| message.body.as_str()).collect::<Vec<_>>())
        .bind(messages.iter().map(|message| Some(message.rated.as_ref()?.rating.as_str())).collect::<Vec<_>>())
        .bind(messages.iter().map(|message| message.rated.as_ref()?.comment.as_deref()).collect::<Vec<_>>())
        .bind(messages.iter().map(|message| Some(message.rated.as_ref()?.at)).collect::<Vec<_>>())
        .execute(&mut *tx)
        .await?;
    }
    let mut base = 0;
    for events in written.events.chunks(PIECE) {
        append(tx, &made.id, base, events, &[]).await?;
        base += i64::try_from(events.len()).unwrap_or(0);
    }
    Ok(())
}
