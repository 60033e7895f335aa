//! Activates the next run of a conversation when its active run ends, and sets the conversation's status, in the log writer's
//! transaction.

use sqlx::{PgConnection, Row as _};

use crate::domain::conversation::ConversationStatus;
use crate::domain::ids::{ConversationId, RunId};
use crate::store::{StoreResult, rows};
use crate::support::clock::UnixMillis;

/// A `conversation.updated` event that is written once the conversation's title and status are known.
pub(super) struct PendingUpdate<'a> {
    pub(super) conversation: &'a ConversationId,
    pub(super) seq: i64,
    pub(super) at: UnixMillis,
    /// Its data without the title. `None` for the event that contains the new status.
    pub(super) data: Option<&'a str>,
}

/// A conversation's active run that has ended.
pub(super) struct EndedActiveRun<'a> {
    pub(super) conversation: &'a ConversationId,
    pub(super) run: &'a RunId,
    /// The conversation's status if no run follows.
    pub(super) status: ConversationStatus,
}

/// A conversation whose active run has ended, after the change.
pub(super) struct UpdatedConversation {
    pub(super) conversation: ConversationId,
    /// The title as JSON, as in the events.
    pub(super) title_json: String,
    pub(super) status: ConversationStatus,
}

/// Activates the next run of each conversation, and sets the conversation's status: `queued` if a run follows, and otherwise the
/// status for the ended run.
///
/// An earlier statement has locked the heads and deactivated the ended runs. This one also closes the pending questions of the
/// ended runs: a worker closes those it knows, but an MCP server may have asked another one at the last moment.
pub(super) async fn activate_next_runs(
    connection: &mut PgConnection,
    ended: &[EndedActiveRun<'_>],
    updates: &[PendingUpdate<'_>],
) -> StoreResult<Vec<UpdatedConversation>> {
    let updated = sqlx::query(
        "WITH ended AS (
             SELECT * FROM unnest($1::text[], $2::text[], $7::text[]) AS e (conversation_id, status, run_id)
         ), next AS (
             UPDATE runs r SET active = true, claimable_at = now_ms(), claim_cause = 'first'
             FROM ended e CROSS JOIN LATERAL (
                 SELECT id FROM runs WHERE conversation_id = e.conversation_id AND finished_at IS NULL ORDER BY first_seq LIMIT 1
             ) n
             WHERE r.id = ANY(ARRAY[n.id]) AND NOT r.active RETURNING r.conversation_id
         ), updated AS (
             UPDATE conversations c SET status = s.status, updated_at = CASE WHEN c.status = s.status THEN c.updated_at ELSE now_ms() END
             FROM (
                 SELECT e.conversation_id, CASE WHEN n.conversation_id IS NULL THEN e.status ELSE 'queued' END AS status
                 FROM ended e LEFT JOIN next n ON n.conversation_id = e.conversation_id
             ) s
             WHERE c.id = ANY(ARRAY[s.conversation_id])
             RETURNING c.id, c.owner_id, c.status, to_json(c.title)::text AS title_json
         ), closed AS (
             UPDATE input_requests q SET state = 'cancelled', resolved_at = now_ms()
             FROM ended e WHERE q.run_id = ANY(ARRAY[e.run_id]) AND q.state = 'pending'
         ), event AS (
             INSERT INTO events (conversation_id, owner_id, seq, attempt, kind, at, data)
             SELECT s.id, s.owner_id, t.seq, 0, 'conversation.updated', t.at,
                 '{\"title\":' || s.title_json || ',' || coalesce(substr(t.data, 2), '\"status\":\"' || s.status || '\"}')
             FROM unnest($3::text[], $4::bigint[], $5::bigint[], $6::text[]) AS t (conversation_id, seq, at, data)
             JOIN updated s ON s.id = t.conversation_id
         )
         SELECT id, status, title_json FROM updated",
    )
    .bind(ended.iter().map(|ended| ended.conversation.as_str()).collect::<Vec<_>>())
    .bind(ended.iter().map(|ended| ended.status.as_str()).collect::<Vec<_>>())
    .bind(updates.iter().map(|update| update.conversation.as_str()).collect::<Vec<_>>())
    .bind(updates.iter().map(|update| update.seq).collect::<Vec<_>>())
    .bind(updates.iter().map(|update| update.at.0).collect::<Vec<_>>())
    .bind(updates.iter().map(|update| update.data).collect::<Vec<_>>())
    .bind(ended.iter().map(|ended| ended.run.as_str()).collect::<Vec<_>>())
    .fetch_all(connection)
    .await?;
    updated
        .iter()
        .map(|row| {
            let id: String = row.try_get("id")?;
            let status: String = row.try_get("status")?;
            let status = rows::parse_word("conversations", "status", &id, &status, ConversationStatus::from_name)?;
            Ok(UpdatedConversation {
                conversation: ConversationId::from_stored(id),
                title_json: row.try_get("title_json")?,
                status,
            })
        })
        .collect()
}
