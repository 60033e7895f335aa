//! Runs as their owners see and steer them.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::{AssertSqlSafe, PgConnection, Row as _};

use super::PostgresStore;
use super::answer::ANSWER_LIMIT;
use super::errors::retried;
use super::resume::is_resumable;
use crate::domain::agent::AgentProfile;
use crate::domain::call_record::ToolCallRecord;
use crate::domain::ids::{CallId, ConversationId, MessageId, NodeId, RunId, UserId};
use crate::domain::run::{Run, RunStatus};
use crate::store::call_record::{CALL_COLUMNS, read_call_record};
use crate::store::rows::RunRow;
use crate::store::{
    AcceptRun, Accepted, CallBatch, Cancelled, Edited, Explanation, IdempotencyClaim, Keyed, Page, PageRequest, ResumeRun, Resumed,
    RunCursor, RunFilter, RunStore, RunView, StoreResult, compose, rows,
};
use crate::support::clock::UnixMillis;

/// A run of this owner.
pub(super) async fn read(connection: &mut PgConnection, owner: &UserId, id: &RunId) -> StoreResult<Option<RunRow>> {
    let columns = rows::RUN_COLUMNS;
    let found = sqlx::query(AssertSqlSafe(format!("SELECT {columns} FROM runs WHERE id = $1 AND owner_id = $2")))
        .bind(id.as_str())
        .bind(owner.as_str())
        .fetch_optional(connection)
        .await?;
    Ok(found.as_ref().map(RunRow::read).transpose()?)
}

/// The longest that a message waits for its turn to be accepted.
const ACCEPT_WAIT: Duration = Duration::from_secs(30);

#[async_trait]
impl RunStore for PostgresStore {
    async fn accept_run(&self, accept: AcceptRun, idempotency: Option<IdempotencyClaim>) -> StoreResult<Keyed<Accepted>> {
        // Those who wait for their turn see that the database is silent when those before them do.
        let accepted = self.api.unless_silent(ACCEPT_WAIT + ANSWER_LIMIT, async {
            let turn = tokio::time::timeout(ACCEPT_WAIT, self.accepting.acquire()).await;
            let Ok(Ok(_turn)) = turn else { return Err(sqlx::Error::PoolTimedOut.into()) };
            retried(|| self.accept(&accept, idempotency.as_ref())).await
        });
        accepted.await
    }

    async fn edit_message(
        &self,
        accept: AcceptRun,
        message: &MessageId,
        idempotency: Option<IdempotencyClaim>,
    ) -> StoreResult<Keyed<Edited>> {
        retried(|| self.edit(&accept, message, idempotency.as_ref())).await
    }

    async fn run(&self, owner: &UserId, id: &RunId) -> StoreResult<Option<RunView>> {
        let found = self.api.ask(async |connection| read(connection, owner, id).await).await?;
        found.map(RunRow::into_view).transpose()
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
            .fetch_all(&self.api)
            .await?;
        let found = found.iter().map(RunRow::read).collect::<Result<Vec<_>, _>>()?;
        filter.page(found, limit as usize)
    }

    async fn run_profile(&self, owner: &UserId, id: &RunId) -> StoreResult<Option<AgentProfile>> {
        let found: Option<String> = sqlx::query_scalar("SELECT profile FROM runs WHERE id = $1 AND owner_id = $2")
            .bind(id.as_str())
            .bind(owner.as_str())
            .fetch_optional(&self.api)
            .await?;
        found.map(|profile| rows::decode_profile(id.as_str(), &profile)).transpose()
    }

    async fn active_run(&self, owner: &UserId, conversation: &ConversationId) -> StoreResult<Option<Run>> {
        let columns = rows::RUN_COLUMNS;
        let statement = format!("SELECT {columns} FROM runs WHERE conversation_id = $1 AND owner_id = $2 AND active");
        let found = sqlx::query(AssertSqlSafe(statement))
            .bind(conversation.as_str())
            .bind(owner.as_str())
            .fetch_optional(&self.api)
            .await?;
        found.as_ref().map(RunRow::read).transpose()?.map(RunRow::into_run).transpose()
    }

    async fn cancel_run(
        &self,
        owner: &UserId,
        id: &RunId,
        by: &str,
        now: UnixMillis,
        idempotency: Option<IdempotencyClaim>,
    ) -> StoreResult<Keyed<Cancelled>> {
        retried(|| self.cancel(owner, id, by, now, idempotency.as_ref())).await
    }

    async fn resume_run(&self, resume: ResumeRun, idempotency: Option<IdempotencyClaim>) -> StoreResult<Keyed<Resumed>> {
        retried(|| self.resume(&resume, idempotency.as_ref())).await
    }

    async fn call_batch(&self, owner: &UserId, run: &RunId, call: &CallId) -> StoreResult<Option<CallBatch>> {
        self.api.ask(async |connection| super::resume::call_batch(connection, owner, run, call).await).await
    }

    async fn tool_call(&self, owner: &UserId, run: &RunId, call: &CallId) -> StoreResult<Option<ToolCallRecord>> {
        let statement = format!(
            "SELECT {CALL_COLUMNS},
                 (
                     SELECT (p.value -> 'arguments')::text FROM json_array_elements(m.body::json -> 'parts') AS p (value)
                     WHERE p.value ->> 'call_id' = t.id LIMIT 1
                 ) AS written,
                 (
                     SELECT d.value ->> 'tool' FROM json_array_elements(s.definitions::json) AS d (value)
                     WHERE d.value ->> 'name' = t.name LIMIT 1
                 ) AS tool
             FROM tool_calls t JOIN runs r ON r.id = t.run_id
             LEFT JOIN messages m ON m.id = t.message_id LEFT JOIN tool_sets s ON s.hash = r.tools_hash
             WHERE t.id = $1 AND t.run_id = $2 AND t.owner_id = $3"
        );
        let found = sqlx::query(AssertSqlSafe(statement))
            .bind(call.as_str())
            .bind(run.as_str())
            .bind(owner.as_str())
            .fetch_optional(&self.api)
            .await?;
        found.as_ref().map(read_call_record).transpose()
    }

    async fn explain_run(&self, owner: &UserId, id: &RunId) -> StoreResult<Option<Explanation>> {
        let (columns, resumable) = (rows::RUN_COLUMNS, is_resumable!("runs"));
        let statement = format!(
            "SELECT {columns}, l.node_id, l.lease_until - clock.now AS expires_in, clock.now - l.claimed_at AS lease_age,
                 runs.claimable_at - clock.now AS claimable_in,
                 (SELECT count(*) FROM run_leases o WHERE o.owner_id = runs.owner_id AND o.lease_until > clock.now) AS owner_running,
                 CASE WHEN runs.claimable_at <= clock.now THEN (
                     WITH live AS (
                         SELECT owner_id, count(*) AS leases FROM run_leases GROUP BY owner_id
                     ), line AS (
                         SELECT q.id, q.claimable_at, coalesce(live.leases, 0)
                             + row_number() OVER (PARTITION BY q.owner_id ORDER BY q.claimable_at, q.id) AS rank
                         FROM runs q LEFT JOIN live ON live.owner_id = q.owner_id WHERE q.claimable_at <= clock.now
                     )
                     SELECT count(*) FROM line first JOIN line mine ON mine.id = runs.id
                     WHERE (first.rank, first.claimable_at, first.id) < (mine.rank, mine.claimable_at, mine.id)
                         AND ($3 = 0 OR first.rank <= $3)
                 ) END AS queue_position,
                 a.id AS behind_run,
                 (SELECT count(*) FROM run_leases o WHERE o.lease_until > clock.now) AS live_leases,
                 runs.status = 'failed' AND {resumable} AS resumable,
                 s.step, s.kind AS step_kind, s.status AS step_status, clock.now - coalesce(s.ended_at, s.started_at) AS step_age,
                 ARRAY (
                     SELECT name FROM tool_calls t WHERE t.run_id = runs.id AND t.state = 'started' ORDER BY t.step, t.position
                 ) AS under_way,
                 (
                     SELECT count(DISTINCT q.call_id) FROM input_requests q
                     WHERE q.run_id = runs.id AND q.state = 'pending' AND q.kind = 'elicitation'
                 ) AS calls_asking,
                 (
                     SELECT coalesce(json_agg(json_build_array(q.id, q.kind, q.question::json ->> 'text') ORDER BY q.created_at, q.id), '[]')
                     FROM input_requests q WHERE q.run_id = runs.id AND q.state = 'pending'
                 )::text AS questions
             FROM runs CROSS JOIN (SELECT now_ms() AS now) AS clock
             LEFT JOIN run_leases l ON l.run_id = runs.id
             LEFT JOIN runs a ON a.conversation_id = runs.conversation_id AND a.active
                 AND NOT runs.active AND runs.finished_at IS NULL
             LEFT JOIN LATERAL (SELECT * FROM run_steps WHERE run_id = runs.id ORDER BY step DESC LIMIT 1) s ON true
             WHERE runs.id = $1 AND runs.owner_id = $2"
        );
        let found = sqlx::query(AssertSqlSafe(statement)).bind(id.as_str()).bind(owner.as_str()).bind(i64::from(self.owner_cap));
        let Some(row) = found.fetch_optional(&self.api).await? else { return Ok(None) };
        let run = RunRow::read(&row)?;
        let queue_position: Option<i64> = row.try_get("queue_position")?;
        let lease_node: Option<String> = row.try_get("node_id")?;
        // The claim under way has not ended badly yet.
        let crashes = rows::unsigned(run.crashes).saturating_sub(u32::from(lease_node.is_some()));
        let step: Option<i64> = row.try_get("step")?;
        let step = match step {
            Some(step) => {
                Some((rows::unsigned(step), row.try_get("step_kind")?, row.try_get("step_status")?, row.try_get("step_age")?))
            }
            None => None,
        };
        Ok(Some(Explanation {
            lease_node: lease_node.map(NodeId::from_stored),
            lease_expires_in_ms: row.try_get("expires_in")?,
            lease_age_ms: row.try_get("lease_age")?,
            crashes,
            queue_position,
            owner_cap: compose::full_owner(queue_position, row.try_get("owner_running")?, self.owner_cap),
            claimable_in_ms: row.try_get("claimable_in")?,
            behind_run: row.try_get::<Option<String>, _>("behind_run")?.map(RunId::from_stored),
            live_leases: row.try_get("live_leases")?,
            resumable: row.try_get("resumable")?,
            cancel_requested_by: run.cancel_requested_by.clone(),
            step,
            questions: rows::decode("input_requests", "question", id.as_str(), &row.try_get::<String, _>("questions")?)?,
            tools_under_way: row.try_get("under_way")?,
            calls_asking: row.try_get("calls_asking")?,
            run: run.into_run()?,
        }))
    }

    async fn run_counts(&self) -> StoreResult<Vec<(String, i64)>> {
        Ok(sqlx::query_as("SELECT status, count(*) FROM runs WHERE finished_at IS NULL GROUP BY status ORDER BY status")
            .fetch_all(&self.chores)
            .await?)
    }
}
