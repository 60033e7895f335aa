//! Questions to a human, and their answers.
//!
//! Owns the statements of use cases on `input_requests`; runs ask and close their questions through the log. Must not know what
//! an answer means.

use async_trait::async_trait;

use crate::domain::ids::{CallId, ConversationId, GrantId, InputId, RunId, UserId};
use crate::domain::run::input::{InputKind, InputRecord, InputRequest, InputState};
use crate::domain::tool::approval::ToolGrant;
use crate::store::pages::page_by_time;
use crate::store::rows::{encode_storable, read_json, read_optional_json, read_time, read_word, unsigned};
use crate::store::runs::compose;
use crate::store::sql::backend::Backend;
use crate::store::sql::database::Database;
use crate::store::sql::row::Row;
use crate::store::sql::statement::statements;
use crate::store::sql::transaction::Transaction;
use crate::store::sql::value::values;
use crate::store::{
    Asked, IdempotencyClaim, InputCursor, InputFilter, InputStore, Keyed, Page, PageRequest, ResolveInput, Resolved, StoreResult,
};
use crate::support::clock::UnixMillis;

macro_rules! columns {
    ($dialect:ident) => {
        "id, conversation_id, run_id, call_id, kind, question, state, answer, resolved_by, created_at, resolved_at, expires_at"
    };
}

statements! {
    BY_ID = ["SELECT ", columns, " FROM input_requests WHERE id = $1 AND owner_id = $2"];

    PAGE = ["SELECT ", columns, " FROM input_requests
         WHERE owner_id = $1 AND (created_at, id) < ($2, $3) AND (CAST($4 AS text) IS NULL OR state = $4)
           AND (kind = 'approval') = $5
         ORDER BY created_at DESC, id DESC LIMIT $6"];

    // The questions of a claimed run on which it has not acted.
    OPEN = ["SELECT ", columns, ", expires_at - ", now, " AS expires_in FROM input_requests
         WHERE run_id = $1 AND state IN ('pending', 'answered') ORDER BY created_at, id"];

    ATTEMPT = ["SELECT attempt FROM runs WHERE id = $1 AND owner_id = $2"];

    ANSWER = ["UPDATE input_requests SET state = 'answered', answer = $2, resolved_by = $3, resolved_at = ", now, "
         WHERE id = $1 AND owner_id = $3 AND state = 'pending' AND (expires_at IS NULL OR expires_at > ", now, ")
           AND EXISTS (SELECT 1 FROM runs WHERE runs.id = run_id AND finished_at IS NULL)"];

    // A worker that holds the run looks at it when it releases the run.
    WAKE = ["UPDATE runs SET
             claimable_at = CASE WHEN leased THEN claimable_at ELSE ", least, "(coalesce(claimable_at, ", now, "), ", now, ") END,
             claim_cause = CASE WHEN leased OR claimable_at <= ", now, " THEN claim_cause ELSE 'request' END,
             answered_at = CASE WHEN leased THEN ", now, " ELSE answered_at END
         FROM (SELECT EXISTS (SELECT 1 FROM run_leases WHERE run_id = $1) AS leased) AS lease
         WHERE id = $1 AND finished_at IS NULL"];
}

#[async_trait]
impl<B: Backend> InputStore for B {
    async fn input_request(&self, owner: &UserId, id: &InputId) -> StoreResult<Option<InputRecord>> {
        let row = self.database().fetch_optional(BY_ID, values![id.as_str(), owner.as_str()]).await?;
        row.as_ref().map(read_input).transpose()
    }

    async fn input_requests(&self, filter: InputFilter<'_>, page: &PageRequest<InputCursor>) -> StoreResult<Page<InputRecord>> {
        let limit = page.limit.clamp(1, 100);
        // The first page begins before the latest possible time.
        let (created_at, id) = page.after.as_ref().map_or((i64::MAX, ""), |after| (after.at, after.id.as_str()));
        let InputFilter { owner, asked, state } = filter;
        let state = state.map(InputState::as_str);
        let page = values![owner.as_str(), created_at, id, state, asked == Asked::Approvals, limit + 1];
        let rows = self.database().fetch_all(PAGE, page).await?;
        let items = rows.iter().map(|row| Ok((row.get("created_at")?, read_input(row)?))).collect::<StoreResult<Vec<_>>>()?;
        Ok(page_by_time(items, limit, |last| &last.request.id))
    }

    async fn tool_grants(&self, owner: &UserId, within: Option<&ConversationId>) -> StoreResult<Vec<ToolGrant>> {
        self.database().tool_grants(owner, within).await
    }

    async fn delete_tool_grant(&self, owner: &UserId, id: &GrantId) -> StoreResult<bool> {
        self.database().delete_tool_grant(owner, id).await
    }

    async fn resolve_input(&self, resolve: ResolveInput, idempotency: Option<IdempotencyClaim>) -> StoreResult<Keyed<Resolved>> {
        let (database, key) = (self.database(), idempotency.as_ref());
        database
            .once(key, || async {
                let mut tx = database.begin().await?;
                let resolved = resolve_in(&mut tx, &resolve, key).await?;
                tx.finish(resolved, |resolved| matches!(resolved, Resolved::Answered { .. })).await
            })
            .await
    }
}

async fn resolve_in(tx: &mut Transaction, resolve: &ResolveInput, key: Option<&IdempotencyClaim>) -> StoreResult<Keyed<Resolved>> {
    let ResolveInput { owner, id, answer, grant, .. } = resolve;
    let found = find(tx, owner, id).await?;
    let base = match &found {
        Some(found) => tx.lock_head(owner, &found.request.conversation_id).await?,
        None => None,
    };
    if let Some(recorded) = tx.recorded(key).await? {
        return Ok(recorded);
    }
    let Some(base) = base else { return Ok(Keyed::Fresh(Resolved::NoRequest)) };
    let answer = encode_storable("input_requests", "answer", id.as_str(), answer)?;
    let answered = tx.execute(ANSWER, values![id.as_str(), answer, owner.as_str()]).await?;
    let Some(record) = find(tx, owner, id).await?.map(Box::new) else { return Ok(Keyed::Fresh(Resolved::NoRequest)) };
    if answered == 0 {
        return Ok(Keyed::Fresh(Resolved::Closed { record }));
    }
    if let Some(grant) = grant {
        tx.insert_tool_grant(owner, grant).await?;
    }
    let request = &record.request;
    tx.execute(WAKE, values![request.run_id.as_str()]).await?;
    let attempt = tx.fetch_optional(ATTEMPT, values![request.run_id.as_str(), owner.as_str()]).await?;
    let attempt = attempt.map(|row| row.only()).transpose()?.map_or(0, unsigned);
    let event = compose::input_answered(request, attempt, resolve);
    let events = tx.append(&request.conversation_id, base, vec![event]).await?;
    let resolved = Resolved::Answered { record, events };
    tx.record(key, &resolved).await?;
    Ok(Keyed::Fresh(resolved))
}

async fn find(tx: &mut Transaction, owner: &UserId, id: &InputId) -> StoreResult<Option<InputRecord>> {
    let row = tx.fetch_optional(BY_ID, values![id.as_str(), owner.as_str()]).await?;
    row.as_ref().map(read_input).transpose()
}

/// Reads the questions of a claimed run on which it has not acted.
pub(in crate::store::sql) async fn open_questions(database: Database<'_>, run: &RunId) -> StoreResult<Vec<InputRequest>> {
    let rows = database.fetch_all(OPEN, values![run.as_str()]).await?;
    let questions = rows.iter().map(|row| {
        let left: Option<i64> = row.get("expires_in")?;
        let expires_in_ms = left.map(|left| u64::try_from(left).unwrap_or(0));
        Ok(InputRequest { expires_in_ms, ..read_input(row)?.request })
    });
    questions.collect()
}

fn read_input(row: &Row) -> StoreResult<InputRecord> {
    let (table, id) = ("input_requests", row.get::<String>("id")?);
    let request = InputRequest {
        conversation_id: ConversationId::from_stored(row.get("conversation_id")?),
        run_id: RunId::from_stored(row.get("run_id")?),
        call_id: row.get::<Option<String>>("call_id")?.map(CallId::from_stored),
        kind: read_word(row, table, "kind", &id, InputKind::from_word)?,
        question: read_json(row, table, "question", &id)?,
        state: read_word(row, table, "state", &id, InputState::from_word)?,
        answer: read_optional_json(row, table, "answer", &id)?,
        expires_in_ms: None,
        id: InputId::from_stored(id),
    };
    Ok(InputRecord {
        request,
        resolved_by: row.get("resolved_by")?,
        created_at: UnixMillis(row.get("created_at")?).to_rfc3339(),
        resolved_at: read_time(row, "resolved_at")?,
        expires_at: read_time(row, "expires_at")?,
    })
}
