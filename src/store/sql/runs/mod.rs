//! Runs as their owners see and control them.
//!
//! Owns the statements of use cases that read runs. Must not know how a message is accepted, or what a worker writes.

pub(super) mod accept;
pub(super) mod calls;
pub(super) mod cancel;
pub(super) mod load;
pub(super) mod new_run;
pub(super) mod reserve_budget;
pub(super) mod responses;
pub(super) mod resume;
pub(super) mod run_rows;
pub(super) mod step_requests;
pub(super) mod usage;

use async_trait::async_trait;
use sqlx::AssertSqlSafe;

use crate::domain::agent::AgentProfile;
use crate::domain::conversation::Message;
use crate::domain::ids::{CallId, ConversationId, MessageId, NodeId, RunId, UserId};
use crate::domain::run::{Run, RunOutput, RunStatus};
use crate::domain::tool::ToolCallRecord;
use crate::store::pages::page_of;
use crate::store::rows::{decode_profile, read_json};
use crate::store::sql::conversations::rewind::edit_in;
use crate::store::sql::runs::cancel::cancel_in;
use crate::store::sql::runs::resume::{is_internal, is_resumable, messages_of, only_undid, resume_in, turn_taken_out};
use crate::store::sql::runs::run_rows::{BY_ID, RunRow, run_columns};
use crate::store::sql::{Backend, Row, if_fresh, statements, text, values};
use crate::store::{
    AcceptOutcome, AcceptRun, CallBatch, CancelOutcome, CancelRun, EditOutcome, Explanation, IdempotencyKey, IdempotentResult,
    Page, PageRequest, ResumeOutcome, ResumeRun, RunCursor, RunFilter, RunStore, RunView, StoreError, StoreResult,
};

statements! {
    PROFILE = ["SELECT profile FROM runs WHERE id = $1 AND owner_id = $2"];

    OUTPUT = ["SELECT r.profile, m.id, m.body
         FROM runs r JOIN messages m ON m.conversation_id = r.conversation_id AND m.run_id = r.id
         WHERE r.id = $1 AND r.owner_id = $2 ORDER BY m.position DESC LIMIT 1"];

    ACTIVE = ["SELECT ", run_columns, " FROM runs
         WHERE conversation_id = $1 AND owner_id = $2 AND active", { postgres: "", sqlite: " = 1" }];

    EXPLAIN = ["SELECT ", run_columns, ", l.node_id, l.lease_until - clock.now AS expires_in, clock.now - l.claimed_at AS lease_age,
             runs.claimable_at - clock.now AS claimable_in,
             (SELECT count(*) FROM run_leases o WHERE o.owner_id = runs.owner_id AND o.lease_until > clock.now) AS owner_running,
             CASE WHEN runs.claimable_at <= clock.now THEN (
                 WITH live AS (
                     SELECT owner_id, count(*) AS leases FROM run_leases GROUP BY owner_id
                 ), line AS (
                     SELECT q.id, q.claimable_at, coalesce(live.leases, 0)
                         + row_number() OVER (PARTITION BY q.owner_id ORDER BY q.claimable_at, q.id) AS rank
                     FROM runs q LEFT JOIN live ON live.owner_id = q.owner_id WHERE q.claimable_at <= ", now, "
                 )
                 SELECT count(*) FROM line AS first JOIN line AS mine ON mine.id = runs.id
                 WHERE (first.rank, first.claimable_at, first.id) < (mine.rank, mine.claimable_at, mine.id)
                     AND ($3 = 0 OR first.rank <= $3)
             ) END AS queue_position,
             a.id AS behind_run,
             (SELECT count(*) FROM run_leases o WHERE o.lease_until > clock.now) AS live_leases,
             runs.status = 'failed' AND ", is_resumable, " AS resumable,
             CAST(s.step AS bigint) AS step, s.kind AS step_kind, s.status AS step_status,
             clock.now - coalesce(s.ended_at, s.started_at) AS step_age,
             (
                 SELECT ", {
        postgres: "coalesce(json_agg(t.name ORDER BY t.step, t.position), '[]')::text",
        sqlite: "json_group_array(t.name ORDER BY t.step, t.position)"
    }, " FROM tool_calls t WHERE t.run_id = runs.id AND t.state = 'started'
             ) AS under_way,
             (
                 SELECT count(DISTINCT q.call_id) FROM input_requests q
                 WHERE q.run_id = runs.id AND q.state = 'pending' AND q.kind = 'elicitation'
             ) AS calls_asking,
             (
                 SELECT ", {
        postgres: "coalesce(json_agg(json_build_array(q.id, q.kind, q.question::json ->> 'text') ORDER BY q.created_at, q.id), '[]')::text",
        sqlite: "json_group_array(json_array(q.id, q.kind, q.question ->> 'text') ORDER BY q.created_at, q.id)"
    }, " FROM input_requests q WHERE q.run_id = runs.id AND q.state = 'pending'
             ) AS questions
         FROM runs CROSS JOIN (SELECT ", now, " AS now) AS clock
         LEFT JOIN run_leases l ON l.run_id = runs.id
         LEFT JOIN runs a ON a.conversation_id = runs.conversation_id AND a.active", { postgres: "", sqlite: " = 1" }, "
             AND NOT runs.active AND runs.finished_at IS NULL
         LEFT JOIN run_steps s ON s.run_id = runs.id AND s.step = (SELECT max(o.step) FROM run_steps o WHERE o.run_id = runs.id)
         WHERE runs.id = $1 AND runs.owner_id = $2"];

    // The condition on the conversation makes the index of unfinished runs usable.
    COUNTS = ["SELECT status, count(*) AS runs FROM runs WHERE finished_at IS NULL",
        { postgres: " AND conversation_id >= ''", sqlite: "" }, " GROUP BY status ORDER BY status"];
}

#[async_trait]
impl<B: Backend> RunStore for B {
    async fn accept_run(&self, accept: AcceptRun, key: Option<IdempotencyKey>) -> IdempotentResult<AcceptOutcome> {
        self.accept(&accept, key.as_ref()).await
    }

    async fn edit_message(
        &self,
        accept: AcceptRun,
        message: &MessageId,
        key: Option<IdempotencyKey>,
    ) -> IdempotentResult<EditOutcome> {
        let (database, key) = (self.database(), key.as_ref());
        let is_stored = |edited: &EditOutcome| edited.stored().is_some();
        database.once(key, || database.transaction(async |tx| edit_in(tx, &accept, message, key).await, if_fresh(is_stored))).await
    }

    async fn run(&self, owner: &UserId, id: &RunId) -> StoreResult<Option<RunView>> {
        let row = self.database().fetch_optional(BY_ID, values![id.as_str(), owner.as_str()]).await?;
        let view = |RunRow { run, first_seq, last_seq, .. }| RunView { run, first_seq, last_seq };
        Ok(row.as_ref().map(RunRow::read).transpose()?.map(view))
    }

    async fn runs(&self, owner: &UserId, filter: &RunFilter, page: &PageRequest<RunCursor>) -> StoreResult<Page<Run>> {
        let limit = page.limit.clamp(1, 100);
        let after = page.after.as_ref();
        let values = values![
            owner.as_str(),
            limit + 1,
            filter.conversation.as_ref().map(ConversationId::as_str),
            after.map(|after| after.at),
            after.map(|after| after.id.as_str()),
            filter.status.map(RunStatus::as_str),
            filter.agent.as_deref(),
            filter.created_from.map(|from| from.0),
            filter.created_before.map(|before| before.0),
        ];
        let rows = self.database().fetch_list(AssertSqlSafe(list_statement(filter, after)), values).await?;
        let found = rows.iter().map(RunRow::read).collect::<StoreResult<Vec<_>>>()?;
        let cursor = |last: &RunRow| {
            let at = if filter.conversation.is_some() { last.first_seq } else { last.created_at };
            RunCursor { at, id: last.run.id.clone() }.to_string()
        };
        let Page { items, next } = page_of(found, limit, cursor);
        Ok(Page { items: items.into_iter().map(|row| row.run).collect(), next })
    }

    async fn run_profile(&self, owner: &UserId, id: &RunId) -> StoreResult<Option<AgentProfile>> {
        let row = self.database().fetch_optional(PROFILE, values![id.as_str(), owner.as_str()]).await?;
        row.map(|row| decode_profile(id.as_str(), row.only()?)).transpose()
    }

    async fn run_output(&self, owner: &UserId, id: &RunId) -> StoreResult<Option<RunOutput>> {
        let Some(row) = self.database().fetch_optional(OUTPUT, values![id.as_str(), owner.as_str()]).await? else {
            return Ok(None);
        };
        let profile = decode_profile(id.as_str(), row.get("profile")?)?;
        match read_json::<Message>(&row, "messages", "body", row.get("id")?) {
            Ok(last) => Ok(RunOutput::of(&last, profile.options.output_schema.is_some())),
            // The run is shown without its output, because its status and error can still be read.
            Err(error @ StoreError::Corrupt { .. }) => {
                tracing::warn!(run.id = %id, error = &error as &dyn std::error::Error, "the output of the run cannot be read");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    async fn active_run(&self, owner: &UserId, conversation: &ConversationId) -> StoreResult<Option<Run>> {
        let row = self.database().fetch_optional(ACTIVE, values![conversation.as_str(), owner.as_str()]).await?;
        Ok(row.as_ref().map(RunRow::read).transpose()?.map(|row| row.run))
    }

    async fn cancel_run(&self, cancel: CancelRun<'_>, key: Option<IdempotencyKey>) -> IdempotentResult<CancelOutcome> {
        let (database, key) = (self.database(), key.as_ref());
        database.once(key, || database.transaction(async |tx| cancel_in(tx, cancel, key).await, if_fresh(|_| true))).await
    }

    async fn resume_run(&self, resume: ResumeRun, key: Option<IdempotencyKey>) -> IdempotentResult<ResumeOutcome> {
        let (database, key) = (self.database(), key.as_ref());
        let is_stored = |resumed: &ResumeOutcome| matches!(resumed, ResumeOutcome::Run { .. });
        database.once(key, || database.transaction(async |tx| resume_in(tx, &resume, key).await, if_fresh(is_stored))).await
    }

    async fn call_batch(&self, owner: &UserId, run: &RunId, call: &CallId) -> StoreResult<Option<CallBatch>> {
        calls::call_batch(self.database(), owner, run, call).await
    }

    async fn tool_call(&self, owner: &UserId, run: &RunId, call: &CallId) -> StoreResult<Option<ToolCallRecord>> {
        let values = values![call.as_str(), run.as_str(), owner.as_str()];
        self.database().read_optional(calls::RECORD, values, calls::read_call_record).await
    }

    async fn explain_run(&self, owner: &UserId, id: &RunId) -> StoreResult<Option<Explanation>> {
        self.database()
            .read_optional(EXPLAIN, values![id.as_str(), owner.as_str(), self.owner_cap()], |row| {
                read_explanation(row, id, self.owner_cap())
            })
            .await
    }

    async fn run_counts(&self) -> StoreResult<Vec<(String, i64)>> {
        self.maintenance_database().read_all(COUNTS, &[], |row| Ok((row.get("status")?, row.get("runs")?))).await
    }
}

/// Returns the statement for a page of runs. Its parameters are the owner, the limit, the conversation, the cursor's time and id,
/// the status, the agent, and the times.
///
/// It contains only the conditions that the filter uses, because a condition that is always true misleads the planner.
fn list_statement(filter: &RunFilter, after: Option<&RunCursor>) -> String {
    let order = if filter.conversation.is_some() { "first_seq" } else { "created_at" };
    let conditions = [
        Some(match filter.conversation {
            Some(_) => " AND conversation_id = $3".to_owned(),
            // Omits the runs of hidden conversations, whose clients keep the conversation themselves.
            None => " AND NOT EXISTS (SELECT 1 FROM conversations c WHERE c.id = conversation_id AND c.hidden)".to_owned(),
        }),
        after.map(|_| format!(" AND ({order}, id) < ($4, $5)")),
        filter.status.map(|_| " AND status = $6".to_owned()),
        filter.agent.as_ref().map(|_| " AND agent = $7".to_owned()),
        filter.created_from.map(|_| " AND created_at >= $8".to_owned()),
        filter.created_before.map(|_| " AND created_at < $9".to_owned()),
    ];
    let (columns, conditions) = (run_columns!(postgres), conditions.into_iter().flatten().collect::<String>());
    format!("SELECT {columns} FROM runs WHERE owner_id = $1{conditions} ORDER BY {order} DESC, id DESC LIMIT $2")
}

/// Reads the row of [`EXPLAIN`].
fn read_explanation(row: &Row, id: &RunId, owner_cap: u32) -> StoreResult<Explanation> {
    let RunRow { run, crashes, cancel_requested_by, .. } = RunRow::read(row)?;
    let queue_position: Option<i64> = row.get("queue_position")?;
    let lease_node: Option<String> = row.get("node_id")?;
    let running: i64 = row.get("owner_running")?;
    let is_capped = queue_position.is_some() && owner_cap > 0 && running >= i64::from(owner_cap);
    let step = match row.get::<Option<i64>>("step")? {
        Some(step) => {
            let step = u32::try_from(step).unwrap_or(u32::MAX);
            Some((step, row.get("step_kind")?, row.get("step_status")?, row.get("step_age")?))
        }
        None => None,
    };
    Ok(Explanation {
        // The current claim is counted, but has not crashed.
        crashes: crashes.saturating_sub(u32::from(lease_node.is_some())),
        lease_node: lease_node.map(NodeId::from_stored),
        lease_expires_in_ms: row.get("expires_in")?,
        lease_age_ms: row.get("lease_age")?,
        queue_position,
        owner_cap: is_capped.then_some((running, owner_cap)),
        claimable_in_ms: row.get("claimable_in")?,
        behind_run: row.get::<Option<String>>("behind_run")?.map(RunId::from_stored),
        live_leases: row.get("live_leases")?,
        resumable: row.get("resumable")?,
        cancel_requested_by,
        step,
        questions: read_json(row, "input_requests", "questions", id.as_str())?,
        tools_under_way: read_json(row, "tool_calls", "under_way", id.as_str())?,
        calls_asking: row.get("calls_asking")?,
        run,
    })
}
