//! A conversation that is made of what was said before.

use serde_json::json;

use super::connection::Tx;
use super::conversations::{find, has_all_conversations};
use super::log::append;
use super::{SqliteStore, idempotency};
use crate::domain::change::RunCounters;
use crate::domain::conversation::ForkedFrom;
use crate::domain::ids::ConversationId;
use crate::domain::model::Usage;
use crate::store::copy::{self, Copied, CopiedDocument, CopyConversation, CopySource, CopyUntil, SourceRow, Written};
use crate::store::rows::{encode, encode_storable};
use crate::store::{IdempotencyClaim, Keyed, StoreResult};

impl SqliteStore {
    pub(super) async fn copy(&self, request: &CopyConversation, key: Option<&IdempotencyClaim>) -> StoreResult<Keyed<Copied>> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        if let Some(earlier) = idempotency::earlier(&mut tx, key).await? {
            return Ok(earlier);
        }
        if has_all_conversations(&mut tx, &request.owner, request.max_conversations).await? {
            return Ok(Keyed::Fresh(Copied::TooMany));
        }
        let (document, from) = match &request.source {
            CopySource::Document(document) => (document.clone(), None),
            CopySource::Conversation { id, until } => match read(&mut tx, request, id, until).await? {
                Ok((document, from)) => (document, Some(from)),
                Err(refused) => return Ok(Keyed::Fresh(refused)),
            },
        };
        let written = copy::write(request, document, from)?;
        insert(&mut tx, request, &written).await?;
        append(&mut tx, &request.id, written.events).await?;
        let copied = Copied::Conversation(Box::new(written.conversation));
        idempotency::keep(&mut tx, key, &copied).await?;
        tx.commit().await?;
        Ok(Keyed::Fresh(copied))
    }
}

async fn read(
    tx: &mut Tx,
    request: &CopyConversation,
    id: &ConversationId,
    until: &CopyUntil,
) -> StoreResult<Result<(CopiedDocument, ForkedFrom), Copied>> {
    let Some(source) = find(tx, &request.owner, id).await? else { return Ok(Err(Copied::NoConversation)) };
    let found = sqlx::query(
        "SELECT m.id, m.position, m.role, r.id AS run_id, r.first_seq, r.finished_at IS NULL AS is_open, r.status, r.agent,
             r.agent_version, r.model, r.finish_reason, r.error,
             CASE WHEN lag(r.id) OVER said IS NOT r.id THEN r.profile END AS profile,
             CASE WHEN sum(octet_length(m.body)) OVER said <= ?2 THEN m.body END AS body
         FROM messages m JOIN runs r ON r.id = m.run_id
         WHERE m.conversation_id = ?1 AND m.superseded_by IS NULL
         WINDOW said AS (ORDER BY r.first_seq, m.position)
         ORDER BY r.first_seq, m.position LIMIT ?3",
    )
    .bind(id.as_str())
    .bind(i64::try_from(request.limits.bytes).unwrap_or(i64::MAX))
    .bind(i64::from(request.limits.messages) + 1)
    .fetch_all(&mut **tx)
    .await?;
    let found = found.iter().map(SourceRow::read).collect::<Result<Vec<_>, _>>()?;
    copy::select(source, &found, until, request.limits)
}

async fn insert(tx: &mut Tx, request: &CopyConversation, written: &Written) -> StoreResult<()> {
    let (made, owner, now) = (&written.conversation, request.owner.as_str(), request.now.0);
    let id = made.id.as_str();
    sqlx::query(
        "INSERT INTO conversations
             (id, owner_id, title, status, created_at, updated_at, tags, system_prompt, instructions, forked_from, agent, model)
         VALUES (?1, ?2, ?3, ?4, ?5, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
    )
    .bind(id)
    .bind(owner)
    .bind(&made.title)
    .bind(made.status.as_str())
    .bind(now)
    .bind(encode_storable("conversations", "tags", id, &made.tags)?)
    .bind(made.system_prompt.as_deref())
    .bind(made.instructions.as_deref())
    .bind(made.forked_from.as_ref().map(|from| encode("conversations", "forked_from", id, from)).transpose()?)
    .bind(made.agent.as_deref())
    .bind(made.model.as_deref())
    .execute(&mut **tx)
    .await?;
    sqlx::query("INSERT INTO conversation_heads (conversation_id, owner_id) VALUES (?, ?)")
        .bind(id)
        .bind(owner)
        .execute(&mut **tx)
        .await?;
    let runs = written.runs.iter().map(|run| {
        let (turn, reason) = (&run.turn, run.finish_reason.map(|reason| reason.as_str()));
        let (status, error) = (run.status.as_str(), run.error.as_deref());
        json!([
            run.id,
            status,
            turn.profile,
            turn.agent,
            turn.agent_version,
            turn.model,
            run.first_seq,
            run.last_seq,
            reason,
            error
        ])
    });
    let runs: Vec<_> = runs.collect();
    sqlx::query(
        "INSERT INTO runs (id, conversation_id, owner_id, status, active, claim_cause, profile, agent, agent_version, model,
             counters, usage, first_seq, last_seq, finish_reason, error, created_at, finished_at, folded_at, is_copy, max_crashes)
         SELECT value ->> 0, ?1, ?2, value ->> 1, 0, 'first', value ->> 2, value ->> 3, value ->> 4, value ->> 5, ?3, ?4,
             value ->> 6, value ->> 7, value ->> 8, value ->> 9, ?5, ?5, ?5, 1, 0
         FROM json_each(?6)",
    )
    .bind(id)
    .bind(owner)
    .bind(encode("runs", "counters", "", &RunCounters::default())?)
    .bind(encode("runs", "usage", "", &Usage::default())?)
    .bind(now)
    .bind(encode("runs", "copy", id, &runs)?)
    .execute(&mut **tx)
    .await?;
    let messages: Vec<_> = written
        .messages
        .iter()
        .map(|message| {
            let rated = message.rated.as_ref().map(|rated| (rated.rating, &rated.comment, rated.at));
            (&message.id, &message.run_id, message.position, message.role, &message.body, rated)
        })
        .collect();
    sqlx::query(
        "INSERT INTO messages (id, conversation_id, owner_id, run_id, position, role, body, created_at, rating, comment, rated_at)
         SELECT value ->> 0, ?1, ?2, value ->> 1, value ->> 2, value ->> 3, value ->> 4, ?3, value ->> '$[5][0]',
             value ->> '$[5][1]', value ->> '$[5][2]'
         FROM json_each(?4)",
    )
    .bind(id)
    .bind(owner)
    .bind(now)
    .bind(encode("messages", "copy", id, &messages)?)
    .execute(&mut **tx)
    .await?;
    Ok(())
}
