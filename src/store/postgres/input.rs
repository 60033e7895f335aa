//! Questions to a human, and their answers.

use async_trait::async_trait;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use super::PostgresStore;
use super::accept::record;
use super::cancel::store_key;
use super::conversations::{append, lock_head, recorded_key};
use super::errors::retried;
use super::grants;
use super::runs;
use crate::domain::approval::ToolGrant;
use crate::domain::ids::{ConversationId, GrantId, InputId, UserId};
use crate::domain::input::{InputRecord, InputRequest, InputState};
use crate::store::sql::Backend;
use crate::store::{
    Asked, IdempotencyClaim, InputCursor, InputStore, Keyed, Page, PageRequest, ResolveInput, Resolved, StoreResult, compose, rows,
};

/// The questions of a claimed run that it has not acted on.
pub(super) async fn open_of(connection: &mut PgConnection, run: &str) -> StoreResult<Vec<InputRequest>> {
    let columns = rows::INPUT_COLUMNS;
    let statement = format!(
        "SELECT {columns}, expires_at - now_ms() AS expires_in FROM input_requests
         WHERE run_id = $1 AND state IN ('pending', 'answered') ORDER BY created_at, id"
    );
    let found = sqlx::query(AssertSqlSafe(statement)).bind(run).fetch_all(connection).await?;
    found.iter().map(rows::read_open_input).collect()
}

async fn read(connection: &mut PgConnection, owner: &UserId, id: &InputId) -> StoreResult<Option<InputRecord>> {
    let columns = rows::INPUT_COLUMNS;
    let found = sqlx::query(AssertSqlSafe(format!("SELECT {columns} FROM input_requests WHERE id = $1 AND owner_id = $2")))
        .bind(id.as_str())
        .bind(owner.as_str())
        .fetch_optional(connection)
        .await?;
    found.as_ref().map(rows::read_input).transpose()
}

#[async_trait]
impl InputStore for PostgresStore {
    async fn input_request(&self, owner: &UserId, id: &InputId) -> StoreResult<Option<InputRecord>> {
        self.api.ask(async |connection| read(connection, owner, id).await).await
    }

    async fn input_requests(
        &self,
        owner: &UserId,
        asked: Asked,
        state: Option<InputState>,
        page: &PageRequest<InputCursor>,
    ) -> StoreResult<Page<InputRecord>> {
        // Later than any: the first page.
        let after = page.after.as_ref().map_or((i64::MAX, ""), |after| (after.created_at, after.id.as_str()));
        let columns = rows::INPUT_COLUMNS;
        let statement = format!(
            "SELECT {columns} FROM input_requests
             WHERE owner_id = $1 AND (created_at, id) < ($2, $3) AND ($4::text IS NULL OR state = $4)
               AND (kind = 'approval') = $6
             ORDER BY created_at DESC, id DESC LIMIT $5"
        );
        let found = sqlx::query(AssertSqlSafe(statement))
            .bind(owner.as_str())
            .bind(after.0)
            .bind(after.1)
            .bind(state.map(InputState::as_str))
            .bind(i64::from(page.limit.clamp(1, 100)) + 1)
            .bind(asked == Asked::Approvals)
            .fetch_all(&self.api)
            .await?;
        rows::input_page(&found, page.limit)
    }

    async fn tool_grants(&self, owner: &UserId, within: Option<&ConversationId>) -> StoreResult<Vec<ToolGrant>> {
        self.database().tool_grants(owner, within).await
    }

    async fn delete_tool_grant(&self, owner: &UserId, id: &GrantId) -> StoreResult<bool> {
        self.database().delete_tool_grant(owner, id).await
    }

    async fn resolve_input(&self, resolve: ResolveInput, idempotency: Option<IdempotencyClaim>) -> StoreResult<Keyed<Resolved>> {
        let key = idempotency.as_ref();
        let resolved = retried(|| {
            self.api.ask(async |connection| {
                let mut tx = connection.begin().await?;
                let outcome = resolve_locked(&mut tx, &resolve, key).await?;
                // Also if nothing was written: a transaction that is dropped would hold its lock a little longer than the call.
                tx.commit().await?;
                Ok(outcome)
            })
        });
        self.or_recorded(resolved.await, key).await
    }
}

async fn resolve_locked(
    tx: &mut PgConnection,
    resolve: &ResolveInput,
    key: Option<&IdempotencyClaim>,
) -> StoreResult<Keyed<Resolved>> {
    let ResolveInput { owner, id, answer, grant, .. } = resolve;
    let found = read(tx, owner, id).await?;
    let base = match &found {
        Some(found) => lock_head(tx, owner, &found.request.conversation_id).await?,
        None => None,
    };
    if let Some(key) = key
        && let Some(recorded) = recorded_key(tx, key).await?
    {
        return Ok(recorded);
    }
    let Some(base) = base else { return Ok(Keyed::Fresh(Resolved::NoRequest)) };
    let answered = sqlx::query(
        "UPDATE input_requests SET state = 'answered', answer = $2, resolved_by = $3, resolved_at = now_ms()
         WHERE id = $1 AND state = 'pending' AND coalesce(expires_at > now_ms(), true)
           AND EXISTS (SELECT FROM runs WHERE id = run_id AND finished_at IS NULL)",
    )
    .bind(id.as_str())
    .bind(rows::encode_storable("input_requests", "answer", id.as_str(), answer)?)
    .bind(owner.as_str())
    .execute(&mut *tx)
    .await?;
    let Some(record_now) = read(tx, owner, id).await?.map(Box::new) else { return Ok(Keyed::Fresh(Resolved::NoRequest)) };
    if answered.rows_affected() == 0 {
        return Ok(Keyed::Fresh(Resolved::Closed { record: record_now }));
    }
    if let Some(grant) = grant {
        grants::insert(tx, owner, grant).await?;
    }
    let request = &record_now.request;
    // A worker that has the run looks at it when it lets go.
    sqlx::query(
        "UPDATE runs r SET
             claimable_at = CASE WHEN w.leased THEN r.claimable_at ELSE least(r.claimable_at, now_ms()) END,
             claim_cause = CASE WHEN w.leased OR r.claimable_at <= now_ms() THEN r.claim_cause ELSE 'request' END,
             answered_at = CASE WHEN w.leased THEN now_ms() ELSE r.answered_at END
         FROM (SELECT EXISTS (SELECT FROM run_leases WHERE run_id = $1) AS leased) w
         WHERE r.id = $1 AND r.finished_at IS NULL",
    )
    .bind(request.run_id.as_str())
    .execute(&mut *tx)
    .await?;
    let attempt = runs::read(tx, owner, &request.run_id).await?.map_or(0, |run| rows::unsigned(run.attempt));
    let events = vec![compose::input_answered(request, attempt, resolve)];
    append(tx, &request.conversation_id, base, &events, &[]).await?;
    let events = compose::numbered(&request.conversation_id, base, events);
    let resolved = Resolved::Answered { record: record_now, events };
    store_key(tx, record(key, &resolved)?).await?;
    Ok(Keyed::Fresh(resolved))
}
