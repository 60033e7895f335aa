//! Questions to a human, and their answers.

use async_trait::async_trait;
use sqlx::AssertSqlSafe;

use super::SqliteStore;
use super::batch::Batch;
use super::connection::Tx;
use super::grants;
use super::idempotency;
use super::log::append;
use super::runs::find_run;
use crate::domain::approval::ToolGrant;
use crate::domain::ids::{ConversationId, GrantId, InputId, RunId, UserId};
use crate::domain::input::{InputRecord, InputRequest, InputState};
use crate::store::rows::{INPUT_COLUMNS, encode_storable, input_page, read_input, read_open_input, unsigned};
use crate::store::sql::Backend;
use crate::store::{
    Asked, IdempotencyClaim, InputCursor, InputStore, Keyed, Page, PageRequest, ResolveInput, Resolved, StoreResult, compose,
};

/// The questions of a claimed run that it has not acted on.
pub(super) async fn open_of(tx: &mut Tx, run: &RunId) -> StoreResult<Vec<InputRequest>> {
    let now = now!();
    let statement = format!(
        "SELECT {INPUT_COLUMNS}, expires_at - {now} AS expires_in FROM input_requests
         WHERE run_id = ? AND state IN ('pending', 'answered') ORDER BY created_at, id"
    );
    let found = sqlx::query(AssertSqlSafe(statement)).bind(run.as_str()).fetch_all(&mut **tx).await?;
    found.iter().map(read_open_input).collect()
}

/// Stores a question of a run. The owner is that of the run.
pub(super) fn insert(batch: &mut Batch, request: &InputRequest) -> StoreResult<()> {
    let question = encode_storable("input_requests", "question", request.id.as_str(), &request.question)?;
    batch.add(concat!(
        "INSERT INTO input_requests (id, conversation_id, run_id, owner_id, call_id, kind, question, state, created_at,
             expires_at)
         SELECT ?, conversation_id, id, owner_id, ?, ?, ?, ?, ",
        now!(),
        ", ",
        now!(),
        " + ? FROM runs WHERE id = ?"
    ));
    let call = request.call_id.as_ref().map(crate::domain::ids::CallId::as_str);
    batch.bind(request.id.as_str()).bind(call).bind(request.kind.as_str()).bind(question).bind(request.state.as_str());
    batch.bind(request.expires_in_ms.map(|left| i64::try_from(left).unwrap_or(i64::MAX / 4))).bind(request.run_id.as_str());
    Ok(())
}

/// A question needs no answer any more.
pub(super) fn close(batch: &mut Batch, run: &RunId, id: &InputId, state: InputState) {
    batch.add(concat!(
        "UPDATE input_requests SET state = ?, resolved_at = coalesce(resolved_at, ",
        now!(),
        ") WHERE id = ? AND run_id = ?"
    ));
    batch.bind(state.as_str()).bind(id.as_str()).bind(run.as_str());
}

/// The run is over, and what it has still to ask needs no answer any more. Its worker has closed what it knew of; the server of a
/// call may have asked at the last moment.
pub(super) fn close_all(batch: &mut Batch, run: &RunId) {
    batch.add(concat!(
        "UPDATE input_requests SET state = 'cancelled', resolved_at = ",
        now!(),
        " WHERE run_id = ? AND state = 'pending'"
    ));
    batch.bind(run.as_str());
}

async fn find(tx: &mut Tx, owner: &UserId, id: &InputId) -> StoreResult<Option<InputRecord>> {
    let row = sqlx::query(AssertSqlSafe(format!("SELECT {INPUT_COLUMNS} FROM input_requests WHERE id = ? AND owner_id = ?")))
        .bind(id.as_str())
        .bind(owner.as_str())
        .fetch_optional(&mut **tx)
        .await?;
    row.as_ref().map(read_input).transpose()
}

#[async_trait]
impl InputStore for SqliteStore {
    async fn input_request(&self, owner: &UserId, id: &InputId) -> StoreResult<Option<InputRecord>> {
        find(&mut self.read().await?, owner, id).await
    }

    async fn input_requests(
        &self,
        owner: &UserId,
        asked: Asked,
        state: Option<InputState>,
        page: &PageRequest<InputCursor>,
    ) -> StoreResult<Page<InputRecord>> {
        let after = page.after.as_ref().map_or((i64::MAX, "~"), |after| (after.created_at, after.id.as_str()));
        let statement = format!(
            "SELECT {INPUT_COLUMNS} FROM input_requests
             WHERE owner_id = ?1 AND (created_at, id) < (?2, ?3) AND (?4 IS NULL OR state = ?4)
               AND (kind = 'approval') = ?6
             ORDER BY created_at DESC, id DESC LIMIT ?5"
        );
        let found = sqlx::query(AssertSqlSafe(statement))
            .bind(owner.as_str())
            .bind(after.0)
            .bind(after.1)
            .bind(state.map(InputState::as_str))
            .bind(i64::from(page.limit.clamp(1, 100)) + 1)
            .bind(asked == Asked::Approvals)
            .fetch_all(self.reader())
            .await?;
        input_page(&found, page.limit)
    }

    async fn tool_grants(&self, owner: &UserId, within: Option<&ConversationId>) -> StoreResult<Vec<ToolGrant>> {
        self.database().tool_grants(owner, within).await
    }

    async fn delete_tool_grant(&self, owner: &UserId, id: &GrantId) -> StoreResult<bool> {
        self.database().delete_tool_grant(owner, id).await
    }

    async fn resolve_input(&self, resolve: ResolveInput, idempotency: Option<IdempotencyClaim>) -> StoreResult<Keyed<Resolved>> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        if let Some(earlier) = idempotency::earlier(&mut tx, idempotency.as_ref()).await? {
            return Ok(earlier);
        }
        let resolved = resolve_in(&mut tx, &resolve).await?;
        match &resolved {
            Resolved::Answered { .. } => {
                idempotency::keep(&mut tx, idempotency.as_ref(), &resolved).await?;
                tx.commit().await?;
            }
            Resolved::Closed { .. } | Resolved::NoRequest => {}
        }
        Ok(Keyed::Fresh(resolved))
    }
}

async fn resolve_in(tx: &mut Tx, resolve: &ResolveInput) -> StoreResult<Resolved> {
    let ResolveInput { owner, id, answer, grant, .. } = resolve;
    let answered = sqlx::query(concat!(
        "UPDATE input_requests SET state = 'answered', answer = ?, resolved_by = ?, resolved_at = ",
        now!(),
        " WHERE id = ? AND owner_id = ? AND state = 'pending' AND coalesce(expires_at > ",
        now!(),
        ", 1) AND EXISTS (SELECT 1 FROM runs WHERE runs.id = run_id AND finished_at IS NULL)"
    ))
    .bind(encode_storable("input_requests", "answer", id.as_str(), answer)?)
    .bind(owner.as_str())
    .bind(id.as_str())
    .bind(owner.as_str())
    .execute(&mut **tx)
    .await?;
    let Some(record) = find(tx, owner, id).await?.map(Box::new) else { return Ok(Resolved::NoRequest) };
    if answered.rows_affected() == 0 {
        return Ok(Resolved::Closed { record });
    }
    if let Some(grant) = grant {
        grants::insert(tx, owner, grant).await?;
    }
    let request = &record.request;
    // A worker that has the run looks at it when it lets go.
    sqlx::query(concat!(
        "UPDATE runs SET
           claimable_at = CASE WHEN leased THEN claimable_at ELSE min(coalesce(claimable_at, ",
        now!(),
        "), ",
        now!(),
        ") END,
           claim_cause = CASE WHEN leased OR claimable_at <= ",
        now!(),
        " THEN claim_cause ELSE 'request' END,
           answered_at = CASE WHEN leased THEN ",
        now!(),
        " ELSE answered_at END
         FROM (SELECT EXISTS (SELECT 1 FROM run_leases WHERE run_id = ?1) AS leased)
         WHERE id = ?1 AND finished_at IS NULL"
    ))
    .bind(request.run_id.as_str())
    .execute(&mut **tx)
    .await?;
    let attempt = find_run(tx, owner, &request.run_id).await?.map_or(0, |run| unsigned(run.attempt));
    let events = append(tx, &request.conversation_id, vec![compose::input_answered(request, attempt, resolve)]).await?;
    Ok(Resolved::Answered { record, events })
}
