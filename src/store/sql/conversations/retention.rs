//! Old logs, conversations and sets of tools.
//!
//! Owns the statements that find and change them. Must not know when they are old: the ages are parameters.

use std::collections::HashMap;

use async_trait::async_trait;

use crate::domain::conversation::ConversationStatus;
use crate::domain::conversation::fold::FoldedDelta;
use crate::domain::event::StoredEvent;
use crate::domain::ids::{ConversationId, RunId, UserId};
use crate::store::rows::{encode, read_word};
use crate::store::runs::compose;
use crate::store::sql::database::Database;
use crate::store::sql::per_backend::{IdleFor, PerBackend};
use crate::store::sql::row::Row;
use crate::store::sql::statement::{piece, statements};
use crate::store::sql::value::{Value, values};
use crate::store::{EndedRun, Expired, RetentionStore, StoreResult, TOOL_SETS_PIECE, Tidying};
use crate::support::clock::UnixMillis;

/// The number of the lock under which one process folds at a time.
const FOLDING: i64 = 0x0043_4150_464f_4c44;

/// Holds for conversations `c` in which nothing has happened for `$1` milliseconds. A conversation without an owner is being deleted.
macro_rules! is_idle {
    ($dialect:ident) => {
        concat!("NOT c.pinned AND c.updated_at <= ", piece!($dialect now), " - $1 AND c.owner_id <> ''")
    };
}

macro_rules! is_to_archive {
    ($dialect:ident) => {
        concat!(
            "c.archived_at IS NULL AND c.status IN ('idle', 'failed') AND ",
            is_idle!($dialect),
            " AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.conversation_id = c.id AND r.finished_at IS NULL)"
        )
    };
}

/// Holds for conversations that were archived that long ago.
macro_rules! is_to_delete {
    ($dialect:ident) => {
        concat!(
            "c.archived_at <= ",
            piece!($dialect now),
            " - $1 AND c.status IN ('idle', 'failed') AND ",
            is_idle!($dialect),
            " AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.conversation_id = c.id AND r.finished_at IS NULL)"
        )
    };
}

/// Holds for conversations without messages that no user has named or prepared.
macro_rules! is_empty {
    ($dialect:ident) => {
        concat!(
            "c.title = '' AND c.tags = '[]' AND c.system_prompt IS NULL AND c.instructions IS NULL AND c.forked_from IS NULL AND ",
            is_idle!($dialect),
            " AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.conversation_id = c.id)
             AND NOT EXISTS (SELECT 1 FROM messages m WHERE m.conversation_id = c.id)"
        )
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

    IS_TO_ARCHIVE = ["SELECT EXISTS (SELECT 1 FROM conversations c WHERE id = $2 AND ", is_to_archive, ")"];
    IS_TO_DELETE = ["SELECT EXISTS (SELECT 1 FROM conversations c WHERE id = $2 AND ", is_to_delete, ")"];
    IS_EMPTY = ["SELECT EXISTS (SELECT 1 FROM conversations c WHERE id = $2 AND ", is_empty, ")"];

    // A transaction that holds a head is about to change its conversation, which is not idle then.
    LOCK_HEADS = ["SELECT conversation_id, last_seq FROM conversation_heads WHERE conversation_id ", (in_list "$1"),
        { postgres: " FOR UPDATE SKIP LOCKED", sqlite: "" }];

    ARCHIVE = ["UPDATE conversations AS c SET archived_at = ", now, " WHERE id ", (in_list "$2"), " AND ", is_to_archive, "
         RETURNING id, title, status, archived_at"];

    UNUSED_TOOL_SETS = ["SELECT s.hash FROM tool_sets s
         WHERE NOT EXISTS (SELECT 1 FROM runs r WHERE r.tools_hash = s.hash) LIMIT $1"];

    DELETE_TOOL_SETS = ["DELETE FROM tool_sets WHERE hash ", (in_list "$1"), "
         AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.tools_hash = tool_sets.hash)"];

    COUNT_EXPIRED = ["SELECT (SELECT count(*) FROM stream_tickets WHERE expires_at <= ", now, ") AS tickets,
             (SELECT count(*) FROM idempotency_keys WHERE created_at <= ", now, " - $1) AS records,
             (SELECT count(*) FROM tool_audit WHERE at <= ", now, " - CAST($2 AS bigint)) AS audit,
             (SELECT count(*) FROM spending WHERE day < ", now, " / 86400000 - 1) AS spending,
             (SELECT count(*) FROM tool_sets s WHERE NOT EXISTS (SELECT 1 FROM runs r WHERE r.tools_hash = s.hash)) AS tool_sets"];
}

#[async_trait]
impl<B: PerBackend> RetentionStore for B {
    async fn runs_to_fold(&self, age_ms: u64, after: Option<&EndedRun>, limit: u32) -> StoreResult<Vec<EndedRun>> {
        let (finished_at, id) = after.map_or((i64::MIN, ""), |run| (run.finished_at.0, run.id.as_str()));
        let rows = self.chores().fetch_all(TO_FOLD, values![age_ms, finished_at, id, limit]).await?;
        rows.iter().map(|row| Ok(read_ended_run(row)?)).collect()
    }

    async fn fold_deltas(
        &self,
        conversation: &ConversationId,
        folds: &[FoldedDelta],
        through: Option<&RunId>,
    ) -> StoreResult<bool> {
        let id = conversation.as_str();
        let gone: Vec<i64> = folds.iter().flat_map(|fold| fold.gone.iter().copied()).collect();
        let texts: Vec<(i64, &str)> = folds.iter().map(|fold| (fold.seq, fold.data.as_str())).collect();
        let (count, gone, texts) = (gone.len(), encode("events", "seq", id, &gone)?, encode("events", "data", id, &texts)?);
        let mut tx = self.chores().begin().await?;
        // The commit does not wait for the disk: deltas that a loss of power brings back are folded again, and cursors stay valid.
        tx.on_postgres("SET LOCAL synchronous_commit = off").await?;
        if !tx.try_lock("", FOLDING).await? {
            tx.rollback().await?;
            return Ok(false);
        }
        let removed = tx.execute(REMOVE_EVENTS, values![id, gone]).await?;
        let replaced = tx.execute(REPLACE_EVENTS, values![id, texts]).await?;
        if usize::try_from(removed) != Ok(count) || usize::try_from(replaced) != Ok(folds.len()) {
            tx.rollback().await?;
            return Ok(false);
        }
        if let Some(run) = through {
            tx.execute(FOLDED, values![run.as_str()]).await?;
        }
        tx.commit().await?;
        Ok(true)
    }

    async fn idle_conversations(
        &self,
        tidying: Tidying,
        age_ms: u64,
        after: Option<&ConversationId>,
        limit: u32,
    ) -> StoreResult<Vec<(UserId, ConversationId)>> {
        let list = match tidying {
            Tidying::Archive => TO_ARCHIVE,
            Tidying::Delete => TO_DELETE,
            Tidying::DeleteEmpty => EMPTY,
        };
        let after = after.map_or("", ConversationId::as_str);
        let rows = self.chores().fetch_all(list, values![age_ms, after, limit]).await?;
        let read = |row: &Row| Ok((UserId::from_stored(row.get("owner_id")?), ConversationId::from_stored(row.get("id")?)));
        rows.iter().map(read).collect()
    }

    async fn archive_idle(&self, ids: &[ConversationId], age_ms: u64) -> StoreResult<Vec<StoredEvent>> {
        let database = self.chores();
        database.retry(|| archive(database, ids, age_ms)).await
    }

    async fn delete_idle(&self, owner: &UserId, id: &ConversationId, tidying: Tidying, age_ms: u64) -> StoreResult<bool> {
        let statement = match tidying {
            Tidying::Archive => IS_TO_ARCHIVE,
            Tidying::Delete => IS_TO_DELETE,
            Tidying::DeleteEmpty => IS_EMPTY,
        };
        Ok(self.delete(owner, id, Some(IdleFor { statement, age_ms })).await?.is_some())
    }

    async fn remove_unused_tool_sets(&self) -> StoreResult<u64> {
        // Looked for without a lock, because there are hardly ever any.
        let rows = self.chores().fetch_all(UNUSED_TOOL_SETS, values![TOOL_SETS_PIECE]).await?;
        let unused = rows.iter().map(|row| row.only()).collect::<Result<Vec<&str>, _>>()?;
        if unused.is_empty() {
            return Ok(0);
        }
        let mut tx = self.chores().begin().await?;
        // A run takes a set by an INSERT that leaves an existing row alone, which is not visible before the run is committed. So this
        // waits for all writers of the table. Later writers wait for this, and find the row gone, so the lock is not waited for long.
        tx.on_postgres("SET LOCAL lock_timeout = '200ms'; LOCK TABLE tool_sets IN SHARE ROW EXCLUSIVE MODE").await?;
        let removed = tx.execute(DELETE_TOOL_SETS, &[unused.into_iter().collect::<Value<'_>>()]).await?;
        tx.commit().await?;
        Ok(removed)
    }
}

/// Counts the rows that the next cleaning removes.
pub(in crate::store) async fn count_expired(database: Database<'_>, keys_ms: u64, audit_ms: Option<u64>) -> StoreResult<Expired> {
    let row = database.fetch_one(COUNT_EXPIRED, values![keys_ms, audit_ms]).await?;
    Ok(Expired {
        tickets: row.count("tickets")?,
        records: row.count("records")?,
        audit: row.count("audit")?,
        spending: row.count("spending")?,
        tool_sets: row.count("tool_sets")?,
    })
}

async fn archive(database: Database<'_>, ids: &[ConversationId], age_ms: u64) -> StoreResult<Vec<StoredEvent>> {
    let mut tx = database.begin().await?;
    let locked = tx.fetch_all(LOCK_HEADS, &[ids.iter().map(ConversationId::as_str).collect()]).await?;
    let bases = locked.iter().map(|row| Ok((row.get("conversation_id")?, row.get("last_seq")?)));
    let bases = bases.collect::<StoreResult<HashMap<&str, i64>>>()?;
    // A statement of its own: it sees what was changed before the heads were locked.
    let archived = tx.fetch_all(ARCHIVE, &[age_ms.into(), bases.keys().copied().collect()]).await?;
    let mut events = Vec::with_capacity(archived.len());
    for row in &archived {
        let id: String = row.get("id")?;
        let Some(base) = bases.get(id.as_str()).copied() else { continue };
        let status = read_word(row, "conversations", "status", &id, ConversationStatus::from_word)?;
        let event = compose::conversation_updated(row.get("title")?, status, UnixMillis(row.get("archived_at")?));
        events.append(&mut tx.append(&ConversationId::from_stored(id), base, vec![event]).await?);
    }
    tx.commit().await?;
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
