//! Retention of logs, conversations and tool sets.
//!
//! Owns the statements that find and change old rows. Must not know what counts as old: the ages are parameters.

use std::collections::HashMap;

use crate::domain::conversation::{CompactedDelta, ConversationStatus};
use crate::domain::event::StoredEvent;
use crate::domain::ids::{ConversationId, RunId, UserId};
use crate::store::rows::{encode, read_word};
use crate::store::runs::created_rows;
use crate::store::sql::{Database, IdleAge, Row, Statement, Transaction, Value, statements, text, values};
use crate::store::{EndedRun, ExpiredRowCounts, IdleAction, RecordStore, StoreResult, TOOL_SETS_PIECE};
use crate::support::clock::UnixMillis;

/// The number of the lock that allows one process to compact deltas at a time.
const FOLDING: i64 = 0x0043_4150_464f_4c44;

/// Tests whether conversation `c` has been idle for `$1` milliseconds. A conversation without an owner is being deleted.
macro_rules! is_idle {
    ($dialect:ident) => {
        text!($dialect: "NOT c.pinned AND c.updated_at <= " now " - $1 AND c.owner_id <> ''")
    };
}

macro_rules! is_to_archive {
    ($dialect:ident) => {
        text!($dialect: "c.archived_at IS NULL AND c.status IN ('idle', 'failed') AND " is_idle
            " AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.conversation_id = c.id AND r.finished_at IS NULL)")
    };
}

/// Tests whether idle conversation `c` was archived at least `$1` milliseconds ago.
macro_rules! is_to_delete {
    ($dialect:ident) => {
        text!($dialect: "c.archived_at <= " now " - $1 AND c.status IN ('idle', 'failed') AND " is_idle
            " AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.conversation_id = c.id AND r.finished_at IS NULL)")
    };
}

/// Tests whether conversation `c` has no messages, and no user has named or prepared it.
macro_rules! is_empty {
    ($dialect:ident) => {
        text!($dialect:
            "c.title = '' AND c.tags = '[]' AND c.system_prompt IS NULL AND c.instructions IS NULL AND c.forked_from IS NULL AND "
            is_idle " AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.conversation_id = c.id)
             AND NOT EXISTS (SELECT 1 FROM messages m WHERE m.conversation_id = c.id)")
    };
}

/// Tests whether conversation `c` is hidden and idle. Clients of hidden conversations keep the conversation themselves.
macro_rules! is_hidden {
    ($dialect:ident) => {
        text!($dialect: "c.hidden AND " is_idle
            " AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.conversation_id = c.id AND r.finished_at IS NULL)")
    };
}

statements! {
    TO_FOLD = ["SELECT id, conversation_id, owner_id, first_seq, last_seq, finished_at FROM runs
         WHERE folded_at IS NULL AND finished_at IS NOT NULL AND last_seq IS NOT NULL
           AND finished_at <= ", now, " - $1 AND (finished_at, id) > ($2, $3)
         ORDER BY finished_at, id LIMIT $4"];

    REMOVE_EVENTS = ["DELETE FROM events WHERE conversation_id = $1 AND seq ", {
        postgres: "= ANY(ARRAY(SELECT CAST(value AS bigint) FROM json_array_elements_text(CAST($2 AS json))))",
        sqlite: "IN (SELECT value FROM json_each($2))"
    }];

    REPLACE_EVENTS = ["UPDATE events SET data = fold.data
         FROM (SELECT CAST(e.value ->> 0 AS bigint) AS seq, e.value ->> 1 AS data FROM ", (elements "$2"), ") AS fold
         WHERE conversation_id = $1 AND events.seq = fold.seq"];

    FOLDED = ["UPDATE runs SET folded_at = ", now, " WHERE id = $1"];

    TO_ARCHIVE = ["SELECT owner_id, id FROM conversations c WHERE id > $2 AND ", is_to_archive, " ORDER BY id LIMIT $3"];
    TO_DELETE = ["SELECT owner_id, id FROM conversations c WHERE id > $2 AND ", is_to_delete, " ORDER BY id LIMIT $3"];
    EMPTY = ["SELECT owner_id, id FROM conversations c WHERE id > $2 AND ", is_empty, " ORDER BY id LIMIT $3"];

    HIDDEN = ["SELECT owner_id, id FROM conversations c WHERE id > $2 AND ", is_hidden, " ORDER BY id LIMIT $3"];

    IS_TO_ARCHIVE = ["SELECT EXISTS (SELECT 1 FROM conversations c WHERE id = $2 AND ", is_to_archive, ")"];
    IS_TO_DELETE = ["SELECT EXISTS (SELECT 1 FROM conversations c WHERE id = $2 AND ", is_to_delete, ")"];
    IS_EMPTY = ["SELECT EXISTS (SELECT 1 FROM conversations c WHERE id = $2 AND ", is_empty, ")"];
    IS_HIDDEN = ["SELECT EXISTS (SELECT 1 FROM conversations c WHERE id = $2 AND ", is_hidden, ")"];

    // A transaction that holds a head is about to change its conversation, which is then not idle.
    LOCK_HEADS = ["SELECT conversation_id, last_seq FROM conversation_heads WHERE conversation_id ", (in_list "$1"),
        { postgres: " FOR UPDATE SKIP LOCKED", sqlite: "" }];

    ARCHIVE = ["UPDATE conversations AS c SET archived_at = ", now, " WHERE id ", (in_list "$2"), " AND ", is_to_archive, "
         RETURNING id, title, status, archived_at"];

    UNUSED_TOOL_SETS = ["SELECT s.hash FROM tool_sets s
         WHERE NOT EXISTS (SELECT 1 FROM runs r WHERE r.tools_hash = s.hash) LIMIT $1"];

    DELETE_TOOL_SETS = ["DELETE FROM tool_sets WHERE hash ", (in_list "$1"), "
         AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.tools_hash = tool_sets.hash)"];

    COUNT_EXPIRED = ["SELECT (SELECT count(*) FROM stream_tickets WHERE expires_at <= ", now, ")
             + (SELECT count(*) FROM browser_sessions WHERE expires_at <= ", now, ")
             + (SELECT count(*) FROM conversation_shares WHERE expires_at <= ", now, ") AS tickets,
             (SELECT count(*) FROM idempotency_keys WHERE created_at <= ", now, " - $1) AS records,
             (SELECT count(*) FROM tool_audit WHERE at <= ", now, " - CAST($2 AS bigint)) AS audit,
             (SELECT count(*) FROM spending WHERE day < ", now, " / 86400000 - 1) AS spending,
             (SELECT count(*) FROM tool_sets s WHERE NOT EXISTS (SELECT 1 FROM runs r WHERE r.tools_hash = s.hash)) AS tool_sets,
             (SELECT count(*) FROM model_limitations WHERE expires_at <= ", now, ") AS limitations"];
}

/// Retention of old logs, conversations and tool sets. No fence is needed, because no worker writes to the logs of ended runs.
impl dyn RecordStore + '_ {
    /// Returns runs that ended at least `age_ms` ago by the database's clock and whose deltas are not compacted. Ordered by their
    /// end, after the given run, at most `limit`.
    pub async fn runs_to_compact(&self, age_ms: u64, after: Option<&EndedRun>, limit: u32) -> StoreResult<Vec<EndedRun>> {
        let (finished_at, id) = after.map_or((i64::MIN, ""), |run| (run.finished_at.0, run.id.as_str()));
        self.maintenance_database().read_all(TO_FOLD, values![age_ms, finished_at, id, limit], |row| Ok(read_ended_run(row)?)).await
    }

    /// Replaces deltas by merged ones, and marks the run `through`, if any, as compacted, in one transaction. Returns false and
    /// changes nothing if the events have changed since the merge, or another process compacts now.
    pub async fn compact_deltas(
        &self,
        conversation: &ConversationId,
        folds: &[CompactedDelta],
        through: Option<&RunId>,
    ) -> StoreResult<bool> {
        let id = conversation.as_str();
        let replaced_seqs: Vec<i64> = folds.iter().flat_map(|fold| fold.replaced_seqs.iter().copied()).collect();
        let texts: Vec<(i64, &str)> = folds.iter().map(|fold| (fold.seq, fold.data.as_str())).collect();
        let (count, replaced_seqs, texts) =
            (replaced_seqs.len(), encode("events", "seq", id, &replaced_seqs)?, encode("events", "data", id, &texts)?);
        let fold = async |tx: &mut Transaction| {
            // The commit does not wait for the disk: if a loss of power restores deltas, they are compacted again, and cursors stay
            // valid.
            tx.on_postgres("SET LOCAL synchronous_commit = off").await?;
            if !tx.try_lock("", FOLDING).await? {
                return Ok(false);
            }
            let removed = tx.execute(REMOVE_EVENTS, values![id, &replaced_seqs]).await?;
            let replaced = tx.execute(REPLACE_EVENTS, values![id, &texts]).await?;
            if usize::try_from(removed) != Ok(count) || usize::try_from(replaced) != Ok(folds.len()) {
                return Ok(false);
            }
            if let Some(run) = through {
                tx.execute(FOLDED, values![run.as_str()]).await?;
            }
            Ok(true)
        };
        self.maintenance_database().transaction(fold, |is_folded| *is_folded).await
    }

    /// Returns unpinned conversations to which `tidying` applies and that have been idle for `age_ms` by the database's clock.
    /// Ordered by id, after the given one, at most `limit`.
    pub async fn idle_conversations(
        &self,
        tidying: IdleAction,
        age_ms: u64,
        after: Option<&ConversationId>,
        limit: u32,
    ) -> StoreResult<Vec<(UserId, ConversationId)>> {
        let (list, _) = statements_of(tidying);
        let after = after.map_or("", ConversationId::as_str);
        let read = |row: &Row| Ok((UserId::from_stored(row.get("owner_id")?), ConversationId::from_stored(row.get("id")?)));
        self.maintenance_database().read_all(list, values![age_ms, after, limit], read).await
    }

    /// Archives those of the conversations that are still idle. Returns the `conversation.updated` event of each.
    pub async fn archive_idle(&self, ids: &[ConversationId], age_ms: u64) -> StoreResult<Vec<StoredEvent>> {
        let database = self.maintenance_database();
        database.retry(|| database.transaction(async |tx| archive(tx, ids, age_ms).await, |_| true)).await
    }

    /// Deletes a conversation with all its rows if it is still idle. Returns false otherwise.
    pub async fn delete_idle(&self, owner: &UserId, id: &ConversationId, tidying: IdleAction, age_ms: u64) -> StoreResult<bool> {
        let (_, statement) = statements_of(tidying);
        Ok(self.delete(owner, id, Some(IdleAge { statement, age_ms })).await?.is_some())
    }

    /// Removes tool sets that no run uses, at most [`TOOL_SETS_PIECE`]. Returns their number. If a run starts to use a set at the
    /// same time, the set stays, or that run stores it again.
    pub async fn remove_unused_tool_sets(&self) -> StoreResult<u64> {
        // The search takes no lock, because it rarely finds any.
        let rows = self.maintenance_database().fetch_all(UNUSED_TOOL_SETS, values![TOOL_SETS_PIECE]).await?;
        let unused = rows.iter().map(|row| row.only()).collect::<Result<Vec<&str>, _>>()?;
        if unused.is_empty() {
            return Ok(0);
        }
        let unused = [unused.into_iter().collect::<Value<'_>>()];
        let remove = async |tx: &mut Transaction| {
            // A run starts to use a tool set with an INSERT that keeps an existing row and is invisible until its commit. So this
            // lock waits for all writers of the table. Later writers wait for this transaction, and insert the row again.
            tx.on_postgres("SET LOCAL lock_timeout = '200ms'; LOCK TABLE tool_sets IN SHARE ROW EXCLUSIVE MODE").await?;
            tx.execute(DELETE_TOOL_SETS, &unused).await
        };
        self.maintenance_database().transaction(remove, |_| true).await
    }
}

/// Returns the statement that lists conversations for an action, and the one that tests one of them.
fn statements_of(tidying: IdleAction) -> (Statement, Statement) {
    match tidying {
        IdleAction::Archive => (TO_ARCHIVE, IS_TO_ARCHIVE),
        IdleAction::Delete => (TO_DELETE, IS_TO_DELETE),
        IdleAction::DeleteEmpty => (EMPTY, IS_EMPTY),
        IdleAction::DeleteHidden => (HIDDEN, IS_HIDDEN),
    }
}

/// Counts the rows that the next cleaning would remove.
pub async fn count_expired(database: Database<'_>, keys_ms: u64, audit_ms: Option<u64>) -> StoreResult<ExpiredRowCounts> {
    let row = database.fetch_one(COUNT_EXPIRED, values![keys_ms, audit_ms]).await?;
    Ok(ExpiredRowCounts {
        tickets: row.count("tickets")?,
        records: row.count("records")?,
        audit: row.count("audit")?,
        spending: row.count("spending")?,
        tool_sets: row.count("tool_sets")?,
        limitations: row.count("limitations")?,
    })
}

async fn archive(tx: &mut Transaction, ids: &[ConversationId], age_ms: u64) -> StoreResult<Vec<StoredEvent>> {
    let locked = tx.fetch_all(LOCK_HEADS, &[ids.iter().map(ConversationId::as_str).collect()]).await?;
    let bases = locked.iter().map(|row| Ok((row.get("conversation_id")?, row.get("last_seq")?)));
    let bases = bases.collect::<StoreResult<HashMap<&str, i64>>>()?;
    // A separate statement, so that it sees changes from before the heads were locked.
    let archived = tx.fetch_all(ARCHIVE, &[age_ms.into(), bases.keys().copied().collect()]).await?;
    let mut events = Vec::with_capacity(archived.len());
    for row in &archived {
        let id: String = row.get("id")?;
        let Some(base) = bases.get(id.as_str()).copied() else { continue };
        let status = read_word(row, "conversations", "status", &id, ConversationStatus::from_name)?;
        let event = created_rows::conversation_updated(row.get("title")?, status, UnixMillis(row.get("archived_at")?));
        events.append(&mut tx.append(&ConversationId::from_stored(id), base, vec![event]).await?);
    }
    Ok(events)
}

fn read_ended_run(row: &Row) -> Result<EndedRun, sqlx::Error> {
    Ok(EndedRun {
        id: RunId::from_stored(row.get("id")?),
        conversation_id: ConversationId::from_stored(row.get("conversation_id")?),
        owner: UserId::from_stored(row.get("owner_id")?),
        first_seq: row.get("first_seq")?,
        last_seq: row.get("last_seq")?,
        finished_at: UnixMillis(row.get("finished_at")?),
    })
}
