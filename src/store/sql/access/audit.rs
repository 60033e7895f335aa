//! Reads and removes audit records of tool calls. The log writer adds them together with the outcomes.
//!
//! Owns the statements that read and clean `tool_audit`. Must not know how a call ends.

use crate::domain::access::audit::{AuditOutcome, AuditRecord};
use crate::domain::ids::{CallId, ConversationId, GrantId, RunId, UserId};
use crate::store::pages::page_by_time;
use crate::store::rows::parse_word;
use crate::store::sql::{Row, statements, values};
use crate::store::{AuditCursor, AuditFilter, Page, PageRequest, RecordStore, StoreResult};
use crate::support::clock::UnixMillis;

/// Limit of audit records removed in one call.
pub const AUDIT_PIECE: i64 = 5_000;

statements! {
    PAGE = ["SELECT call_id, owner_id, conversation_id, run_id, agent, name, server, arguments_hash, outcome, decided_by, grant_id,
             duration_ms, at
         FROM tool_audit
         WHERE (CAST($1 AS text) IS NULL OR owner_id = $1) AND (at, call_id) < ($2, $3) AND (CAST($4 AS text) IS NULL OR run_id = $4)
             AND (CAST($5 AS text) IS NULL OR name = $5) AND (CAST($6 AS text) IS NULL OR outcome = $6)
         ORDER BY at DESC, call_id DESC LIMIT $7"];

    DELETE_OLD = ["DELETE FROM tool_audit WHERE call_id IN (
             SELECT call_id FROM tool_audit WHERE at <= ", now, " - $1 ORDER BY at, call_id LIMIT $2
         )"];
}

/// The audit records of ended tool calls. They outlive their conversations.
impl dyn RecordStore + '_ {
    /// Returns a page of ended calls, newest first.
    pub async fn tool_audit(&self, filter: &AuditFilter, page: &PageRequest<AuditCursor>) -> StoreResult<Page<AuditRecord>> {
        let limit = page.limit.clamp(1, 100);
        let (at, call) = page.after.as_ref().map_or((i64::MAX, "~"), |after| (after.at, after.id.as_str()));
        let values = values![
            filter.owner.as_ref().map(UserId::as_str),
            at,
            call,
            filter.run.as_ref().map(RunId::as_str),
            filter.tool.as_deref(),
            filter.outcome.map(AuditOutcome::as_str),
            limit + 1,
        ];
        Ok(page_by_time(self.database().read_all(PAGE, values, read_call).await?, limit, |call| &call.call_id))
    }

    /// Removes records that are at least `age_ms` old by the database's clock, at most [`AUDIT_PIECE`]. Returns their number.
    pub async fn remove_old_audit(&self, age_ms: u64) -> StoreResult<u64> {
        self.maintenance_database().execute(DELETE_OLD, values![age_ms, AUDIT_PIECE]).await
    }
}

/// Reads a call with the time that orders pages.
fn read_call(row: &Row) -> StoreResult<(i64, AuditRecord)> {
    let (call, at): (String, i64) = (row.get("call_id")?, row.get("at")?);
    let record = AuditRecord {
        owner_id: UserId::from_stored(row.get("owner_id")?),
        run_id: RunId::from_stored(row.get("run_id")?),
        conversation_id: ConversationId::from_stored(row.get("conversation_id")?),
        agent: row.get("agent")?,
        name: row.get("name")?,
        server: row.get("server")?,
        arguments_hash: row.get("arguments_hash")?,
        outcome: parse_word("tool_audit", "outcome", &call, row.get("outcome")?, AuditOutcome::from_name)?,
        decided_by: row.get::<Option<String>>("decided_by")?.map(UserId::from_stored),
        grant_id: row.get::<Option<String>>("grant_id")?.map(GrantId::from_stored),
        duration_ms: row.count("duration_ms")?,
        at: UnixMillis(at).to_rfc3339(),
        call_id: CallId::from_stored(call),
    };
    Ok((at, record))
}
