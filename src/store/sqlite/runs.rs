//! Runs as their owners see and steer them.

use async_trait::async_trait;
use sqlx::AssertSqlSafe;
use sqlx::sqlite::SqliteRow;

use super::SqliteStore;
use super::connection::Tx;
use super::idempotency;
use super::resume::is_resumable;
use crate::domain::agent::AgentProfile;
use crate::domain::call_record::ToolCallRecord;
use crate::domain::ids::{CallId, ConversationId, InputId, MessageId, NodeId, RunId, UserId};
use crate::domain::input::InputKind;
use crate::domain::run::{Run, RunStatus};
use crate::store::call_record::{CALL_COLUMNS, read_call_record};
use crate::store::rows::{RUN_COLUMNS, RunRow, decode_profile, unsigned, word};
use crate::store::{
    AcceptRun, Accepted, CallBatch, Cancelled, Edited, Explanation, IdempotencyClaim, Keyed, Page, PageRequest, ResumeRun, Resumed,
    RunCursor, RunFilter, RunStore, RunView, StoreResult, compose,
};
use crate::support::clock::UnixMillis;

#[async_trait]
impl RunStore for SqliteStore {
    async fn accept_run(&self, accept: AcceptRun, idempotency: Option<IdempotencyClaim>) -> StoreResult<Keyed<Accepted>> {
        self.accept(accept, idempotency).await
    }

    async fn edit_message(
        &self,
        accept: AcceptRun,
        message: &MessageId,
        idempotency: Option<IdempotencyClaim>,
    ) -> StoreResult<Keyed<Edited>> {
        self.edit(accept, message, idempotency.as_ref()).await
    }

    async fn run(&self, owner: &UserId, id: &RunId) -> StoreResult<Option<RunView>> {
        let row = sqlx::query(select_run("runs.id = ? AND runs.owner_id = ?"))
            .bind(id.as_str())
            .bind(owner.as_str())
            .fetch_optional(self.reader())
            .await?;
        row.map(|row| RunRow::read(&row)?.into_view()).transpose()
    }

    async fn runs(&self, owner: &UserId, filter: &RunFilter, page: &PageRequest<RunCursor>) -> StoreResult<Page<Run>> {
        let limit = page.limit.clamp(1, 100);
        let after = page.after.as_ref();
        let found = sqlx::query(AssertSqlSafe(filter.statement(after)))
            .bind(owner.as_str())
            .bind(i64::from(limit) + 1)
            .bind(filter.conversation.as_ref().map(ConversationId::as_str))
            .bind(after.map(|after| after.place))
            .bind(after.map(|after| after.id.as_str()))
            .bind(filter.status.map(RunStatus::as_str))
            .bind(filter.agent.as_deref())
            .bind(filter.created_from.map(|from| from.0))
            .bind(filter.created_before.map(|before| before.0))
            .fetch_all(self.reader())
            .await?;
        let found = found.iter().map(RunRow::read).collect::<Result<Vec<_>, _>>()?;
        filter.page(found, limit as usize)
    }

    async fn run_profile(&self, owner: &UserId, id: &RunId) -> StoreResult<Option<AgentProfile>> {
        let found: Option<String> = sqlx::query_scalar("SELECT profile FROM runs WHERE id = ? AND owner_id = ?")
            .bind(id.as_str())
            .bind(owner.as_str())
            .fetch_optional(self.reader())
            .await?;
        found.map(|profile| decode_profile(id.as_str(), &profile)).transpose()
    }

    async fn active_run(&self, owner: &UserId, conversation: &ConversationId) -> StoreResult<Option<Run>> {
        let mut tx = self.read().await?;
        active_run(&mut tx, owner, conversation).await?.map(RunRow::into_run).transpose()
    }

    async fn cancel_run(
        &self,
        owner: &UserId,
        id: &RunId,
        by: &str,
        now: UnixMillis,
        idempotency: Option<IdempotencyClaim>,
    ) -> StoreResult<Keyed<Cancelled>> {
        self.cancel(owner, id, by, now, idempotency).await
    }

    async fn resume_run(&self, resume: ResumeRun, idempotency: Option<IdempotencyClaim>) -> StoreResult<Keyed<Resumed>> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        if let Some(earlier) = idempotency::earlier(&mut tx, idempotency.as_ref()).await? {
            return Ok(earlier);
        }
        let resumed = super::resume::resume_in(&mut tx, &resume).await?;
        match &resumed {
            Resumed::Run { .. } => {
                idempotency::keep(&mut tx, idempotency.as_ref(), &resumed).await?;
                tx.commit().await?;
            }
            Resumed::NotResumable { .. } | Resumed::TakenBack | Resumed::TooManyRuns | Resumed::NoRun => {}
        }
        Ok(Keyed::Fresh(resumed))
    }

    async fn call_batch(&self, owner: &UserId, run: &RunId, call: &CallId) -> StoreResult<Option<CallBatch>> {
        super::resume::call_batch(&mut self.read().await?, owner, run, call).await
    }

    async fn tool_call(&self, owner: &UserId, run: &RunId, call: &CallId) -> StoreResult<Option<ToolCallRecord>> {
        let statement = format!(
            "SELECT {CALL_COLUMNS},
                 (SELECT value -> 'arguments' FROM json_each(m.body, '$.parts') WHERE value ->> 'call_id' = t.id LIMIT 1) AS written,
                 (SELECT value ->> 'tool' FROM json_each(s.definitions) WHERE value ->> 'name' = t.name LIMIT 1) AS tool
             FROM tool_calls t JOIN runs r ON r.id = t.run_id
             LEFT JOIN messages m ON m.id = t.message_id LEFT JOIN tool_sets s ON s.hash = r.tools_hash
             WHERE t.id = ? AND t.run_id = ? AND t.owner_id = ?"
        );
        let found = sqlx::query(AssertSqlSafe(statement))
            .bind(call.as_str())
            .bind(run.as_str())
            .bind(owner.as_str())
            .fetch_optional(self.reader())
            .await?;
        found.as_ref().map(read_call_record).transpose()
    }

    async fn explain_run(&self, owner: &UserId, id: &RunId) -> StoreResult<Option<Explanation>> {
        let mut tx = self.read().await?;
        let Some(row) = find_run(&mut tx, owner, id).await? else { return Ok(None) };
        let now: i64 = sqlx::query_scalar(concat!("SELECT ", now!())).fetch_one(&mut *tx).await?;
        let lease: Option<(String, i64, i64)> =
            sqlx::query_as("SELECT node_id, claimed_at, lease_until FROM run_leases WHERE run_id = ?")
                .bind(id.as_str())
                .fetch_optional(&mut *tx)
                .await?;
        let queue_position: Option<i64> = match row.claimable_at {
            Some(claimable_at) if claimable_at <= now => {
                let earlier = sqlx::query_scalar(
                    "WITH live AS (
                       SELECT owner_id, count(*) AS leases FROM run_leases GROUP BY owner_id
                     ), line AS (
                       SELECT q.id, q.claimable_at, coalesce(live.leases, 0)
                         + row_number() OVER (PARTITION BY q.owner_id ORDER BY q.claimable_at, q.id) AS rank
                       FROM runs q LEFT JOIN live ON live.owner_id = q.owner_id WHERE q.claimable_at <= ?2
                     )
                     SELECT count(*) FROM line AS first JOIN line AS mine ON mine.id = ?1
                     WHERE (first.rank, first.claimable_at, first.id) < (mine.rank, mine.claimable_at, mine.id)
                       AND (?3 = 0 OR first.rank <= ?3)",
                );
                Some(earlier.bind(id.as_str()).bind(now).bind(self.owner_cap).fetch_one(&mut *tx).await?)
            }
            Some(_) | None => None,
        };
        let behind_run: Option<String> = if row.active || row.finished_at.is_some() {
            None
        } else {
            sqlx::query_scalar("SELECT id FROM runs WHERE conversation_id = ? AND active = 1")
                .bind(&row.conversation_id)
                .fetch_optional(&mut *tx)
                .await?
        };
        let (live_leases, resumable, calls_asking): (i64, bool, i64) = sqlx::query_as(concat!(
            "SELECT (SELECT count(*) FROM run_leases WHERE lease_until > ?1), r.status = 'failed' AND ",
            is_resumable!("r"),
            ", (SELECT count(DISTINCT q.call_id) FROM input_requests q
                WHERE q.run_id = r.id AND q.state = 'pending' AND q.kind = 'elicitation')
             FROM runs r WHERE r.id = ?2"
        ))
        .bind(now)
        .bind(id.as_str())
        .fetch_one(&mut *tx)
        .await?;
        let step: Option<(i64, String, String, i64)> = sqlx::query_as(
            "SELECT step, kind, status, coalesce(ended_at, started_at) FROM run_steps WHERE run_id = ? ORDER BY step DESC LIMIT 1",
        )
        .bind(id.as_str())
        .fetch_optional(&mut *tx)
        .await?;
        let tools_under_way =
            sqlx::query_scalar("SELECT name FROM tool_calls WHERE run_id = ? AND state = 'started' ORDER BY step, position")
                .bind(id.as_str())
                .fetch_all(&mut *tx)
                .await?;
        let questions = sqlx::query_as(
            "SELECT id, kind, question ->> 'text' FROM input_requests WHERE run_id = ? AND state = 'pending' ORDER BY created_at, id",
        );
        let questions: Vec<(String, String, String)> = questions.bind(id.as_str()).fetch_all(&mut *tx).await?;
        let question = |(id, kind, text): (String, String, String)| {
            let kind = word("input_requests", "kind", &id, &kind, InputKind::from_word)?;
            Ok((InputId::from_stored(id), kind, text))
        };
        let questions = questions.into_iter().map(question).collect::<StoreResult<Vec<_>>>()?;
        let running = sqlx::query_scalar("SELECT count(*) FROM run_leases WHERE owner_id = ? AND lease_until > ?");
        let running: i64 = running.bind(owner.as_str()).bind(now).fetch_one(&mut *tx).await?;
        let leased = lease.is_some();
        Ok(Some(Explanation {
            lease_expires_in_ms: lease.as_ref().map(|(_, _, until)| until - now),
            lease_age_ms: lease.as_ref().map(|(_, since, _)| now - since),
            lease_node: lease.map(|(node, _, _)| NodeId::from_stored(node)),
            // The claim under way has been counted already, but has not ended badly.
            crashes: unsigned(row.crashes).saturating_sub(u32::from(leased)),
            queue_position,
            owner_cap: compose::full_owner(queue_position, running, self.owner_cap),
            claimable_in_ms: row.claimable_at.map(|at| at - now),
            behind_run: behind_run.map(RunId::from_stored),
            live_leases,
            resumable,
            cancel_requested_by: row.cancel_requested_by.clone(),
            step: step.map(|(step, kind, status, at)| (unsigned(step), kind, status, now - at)),
            questions,
            tools_under_way,
            calls_asking,
            run: row.into_run()?,
        }))
    }

    async fn run_counts(&self) -> StoreResult<Vec<(String, i64)>> {
        let counts = sqlx::query_as("SELECT status, count(*) FROM runs WHERE finished_at IS NULL GROUP BY status ORDER BY status");
        Ok(counts.fetch_all(self.reader()).await?)
    }
}

/// A query for [`RunRow`]s. The condition is a literal of ours.
pub(super) fn select_run(condition: &'static str) -> AssertSqlSafe<String> {
    AssertSqlSafe(format!("SELECT {RUN_COLUMNS} FROM runs WHERE {condition}"))
}

/// The run inside a transaction, unless it is missing or somebody else's.
pub(super) async fn find_run(tx: &mut Tx, owner: &UserId, id: &RunId) -> StoreResult<Option<RunRow>> {
    let row = sqlx::query(select_run("runs.id = ? AND runs.owner_id = ?"))
        .bind(id.as_str())
        .bind(owner.as_str())
        .fetch_optional(&mut **tx)
        .await?;
    read_run(row)
}

/// The conversation's active run inside a transaction.
pub(super) async fn active_run(tx: &mut Tx, owner: &UserId, conversation: &ConversationId) -> StoreResult<Option<RunRow>> {
    let row = sqlx::query(select_run("runs.conversation_id = ? AND runs.active = 1 AND runs.owner_id = ?"))
        .bind(conversation.as_str())
        .bind(owner.as_str())
        .fetch_optional(&mut **tx)
        .await?;
    read_run(row)
}

fn read_run(row: Option<SqliteRow>) -> StoreResult<Option<RunRow>> {
    Ok(row.as_ref().map(RunRow::read).transpose()?)
}
