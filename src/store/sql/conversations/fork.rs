//! Copies: creates a conversation from existing messages, for forks and imports.
//!
//! Owns the statements that read the source and write the copy. Must not know what a copy omits.

use crate::domain::conversation::ForkedFrom;
use crate::domain::ids::{ConversationId, UserId};
use crate::store::conversations::fork::{
    self, CopiedDocument, CopyConversation, CopyOutcome, CopySource, CopyUntil, SourceRow, TurnRows,
};
use crate::store::rows::{decode_profile, encode_storable};
use crate::store::sql::conversations::conversation_rows::{find, has_all, insert_conversation};
use crate::store::sql::runs::new_run::{PIECE, fresh_counters, fresh_usage, insert_messages};
use crate::store::sql::{Transaction, refuse, statements, values};
use crate::store::{IdempotencyKey, IdempotentResult, StoreResult};
use crate::support::clock::UnixMillis;

statements! {
    // One statement, so that the conversation is read in one snapshot.
    SOURCE = ["SELECT m.id, m.position, m.role, r.id AS run_id, r.first_seq, r.finished_at IS NULL AS is_open, r.status, r.agent,
             r.agent_version, r.model, r.finish_reason, r.error,
             CASE WHEN lag(r.id) OVER said IS DISTINCT FROM r.id THEN r.profile END AS profile,
             CASE WHEN sum(octet_length(m.body)) OVER said <= $2 THEN m.body END AS body
         FROM messages m JOIN runs r ON r.id = m.run_id
         WHERE m.conversation_id = $1 AND m.superseded_by IS NULL
         WINDOW said AS (ORDER BY r.first_seq, m.position)
         ORDER BY r.first_seq, m.position LIMIT $3"];

    INSERT_RUNS = ["INSERT INTO runs (id, conversation_id, owner_id, status, active, claim_cause, profile, agent, agent_version, model,
             counters, usage, first_seq, last_seq, finish_reason, error, created_at, finished_at, folded_at, is_copy, max_crashes)
         SELECT e.value ->> 0, $1, $2, e.value ->> 1, false, 'first', e.value ->> 2, e.value ->> 3, CAST(e.value ->> 4 AS bigint),
             e.value ->> 5, $3, $4, CAST(e.value ->> 6 AS bigint), CAST(e.value ->> 7 AS bigint), e.value ->> 8, e.value ->> 9,
             $5, $5, $5, true, CAST(e.value ->> 10 AS bigint)
         FROM ", (elements "$6")];
}

pub async fn copy_in(
    tx: &mut Transaction,
    request: &CopyConversation,
    key: Option<&IdempotencyKey>,
) -> IdempotentResult<CopyOutcome> {
    if let Some(recorded) = tx.recorded(key).await? {
        return Ok(recorded);
    }
    if has_all(tx, &request.owner, request.max_conversations).await? {
        return refuse(CopyOutcome::TooMany);
    }
    let (document, from) = match &request.source {
        CopySource::Document(document) => (document.clone(), None),
        CopySource::Conversation { id, until } => match read(tx, request, id, until).await? {
            Ok((document, from)) => (document, Some(from)),
            Err(outcome) => return refuse(outcome),
        },
    };
    let (conversation, turns) = fork::write(request, document, from)?;
    if !insert_conversation(tx, &request.owner, &conversation, request.now).await? {
        return Err(sqlx::Error::RowNotFound.into());
    }
    insert_turns(tx, &request.owner, &request.id, &turns, request.now).await?;
    let mut base = 0;
    for events in turns.events.chunks(PIECE) {
        tx.append(&request.id, base, events.to_vec()).await?;
        base += i64::try_from(events.len()).unwrap_or(0);
    }
    tx.record(key, CopyOutcome::Conversation(Box::new(conversation))).await
}

async fn read(
    tx: &mut Transaction,
    request: &CopyConversation,
    id: &ConversationId,
    until: &CopyUntil,
) -> StoreResult<Result<(CopiedDocument, ForkedFrom), CopyOutcome>> {
    let Some(source) = find(tx, &request.owner, id).await? else { return Ok(Err(CopyOutcome::NoConversation)) };
    let bytes = request.limits.bytes;
    let rows = tx.fetch_all(SOURCE, values![id.as_str(), bytes, i64::from(request.limits.messages) + 1]).await?;
    let found = rows.iter().map(SourceRow::read).collect::<Result<Vec<_>, _>>()?;
    fork::select(source, &found, until, request.limits)
}

/// Inserts the runs and messages of turns. The caller appends their events.
pub async fn insert_turns(
    tx: &mut Transaction,
    owner: &UserId,
    conversation: &ConversationId,
    written: &TurnRows,
    now: UnixMillis,
) -> StoreResult<()> {
    let id = conversation.as_str();
    let (counters, usage) = (fresh_counters()?, fresh_usage()?);
    for runs in written.runs.chunks(PIECE) {
        let rows = runs.iter().map(|run| {
            let (turn, reason) = (&run.turn, run.finish_reason.map(|reason| reason.as_str()));
            let by = (&turn.profile, &turn.agent, turn.agent_version, &turn.model);
            let bounds = (run.first_seq, run.last_seq);
            let max_crashes = decode_profile(run.id.as_str(), by.0).map_or(0, |profile| profile.max_crashes);
            (&run.id, run.status.as_str(), by.0, by.1, by.2, by.3, bounds.0, bounds.1, reason, &run.error, max_crashes)
        });
        let rows = encode_storable("runs", "copy", id, &rows.collect::<Vec<_>>())?;
        tx.execute(INSERT_RUNS, values![id, owner.as_str(), &counters, &usage, now, rows]).await?;
    }
    insert_messages(tx, owner, conversation, &written.messages, now).await
}
