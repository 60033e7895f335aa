//! Questions to a human, and their answers.
//!
//! Owns the statements of use cases on `input_requests`. Runs ask and close their questions through the log writer. Must not know
//! what an answer means.

use async_trait::async_trait;

use crate::domain::ids::{CallId, ConversationId, GrantId, InputId, RunId, UserId};
use crate::domain::run::{InputKind, InputRecord, InputRequest, InputState};
use crate::domain::tool::ToolGrant;
use crate::store::pages::page_by_time;
use crate::store::rows::{encode_storable, read_json, read_optional_json, read_time, read_word, unsigned_count};
use crate::store::runs::created_rows;
use crate::store::sql::{Backend, Database, Row, Transaction, Value, if_fresh, refuse, statements, values};
use crate::store::{
    IdempotencyKey, IdempotentResult, InputCursor, InputFilter, InputStore, Page, PageRequest, QuestionFilterKind, RecordStore,
    ResolveInput, ResolveOutcome, StoreError, StoreResult, ToolResults, ToolResultsOutcome,
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
           AND (kind = 'approval') = $5 AND kind <> 'client_tool' AND (CAST($7 AS text) IS NULL OR conversation_id = $7)
         ORDER BY created_at DESC, id DESC LIMIT $6"];

    // Selects the questions of a claimed run that it has not applied.
    OPEN = ["SELECT ", columns, ", expires_at - ", now, " AS expires_in FROM input_requests
         WHERE run_id = $1 AND state IN ('pending', 'answered') ORDER BY created_at, id"];

    // Selects the request of a call that the client of the run executes.
    OF_CALL = ["SELECT ", columns, " FROM input_requests
         WHERE run_id = $1 AND owner_id = $2 AND call_id = $3 AND kind = 'client_tool'"];

    // Selects the runs whose open calls of client tools are all among these.
    WAITING_FOR = ["SELECT DISTINCT run_id FROM input_requests q
         WHERE call_id ", (in_list "$1"), " AND owner_id = $2 AND kind = 'client_tool' AND state = 'pending'
           AND NOT EXISTS (SELECT 1 FROM input_requests o WHERE o.run_id = q.run_id AND o.kind = 'client_tool' AND o.state = 'pending'
                           AND NOT (o.call_id ", (in_list "$1"), "))"];

    NEW_RESULTS = ["SELECT EXISTS (SELECT 1 FROM input_requests
         WHERE run_id = $1 AND owner_id = $2 AND kind = 'client_tool' AND state = 'answered')"];

    ASKING = ["SELECT DISTINCT run_id FROM input_requests
         WHERE id ", (in_list "$1"), " AND owner_id = $2 AND kind = 'question' AND state = 'pending'"];

    CONVERSATION = ["SELECT conversation_id FROM runs WHERE id = $1 AND owner_id = $2"];

    ATTEMPT = ["SELECT attempt FROM runs WHERE id = $1 AND owner_id = $2"];

    ANSWER = ["UPDATE input_requests SET state = 'answered', answer = $2, resolved_by = $3, resolved_at = ", now, "
         WHERE id = $1 AND owner_id = $3 AND state = 'pending' AND (expires_at IS NULL OR expires_at > ", now, ")
           AND EXISTS (SELECT 1 FROM runs WHERE runs.id = run_id AND finished_at IS NULL)"];

    // If a worker holds the run, it checks for answers when it releases the run.
    WAKE = ["UPDATE runs SET
             claimable_at = CASE WHEN leased THEN claimable_at ELSE ", least, "(coalesce(claimable_at, ", now, "), ", now, ") END,
             claim_cause = CASE WHEN leased OR claimable_at <= ", now, " THEN claim_cause ELSE 'request' END,
             answered_at = CASE WHEN leased THEN ", now, " ELSE answered_at END
         FROM (SELECT EXISTS (SELECT 1 FROM run_leases WHERE run_id = $1) AS leased) AS lease
         WHERE id = $1 AND finished_at IS NULL"];
}

impl dyn RecordStore + '_ {
    /// Returns the runs that wait for results of client tools, if these calls include all calls that a run waits for.
    pub async fn runs_waiting_for(&self, owner: &UserId, calls: &[CallId]) -> StoreResult<Vec<RunId>> {
        let values: [Value<'_>; 2] = [calls.iter().map(CallId::as_str).collect(), owner.as_str().into()];
        self.database().read_all(WAITING_FOR, &values, |row| Ok(RunId::from_stored(row.only()?))).await
    }

    /// Returns whether the client of a run has sent results that its worker has not applied. No event shows them yet.
    pub async fn has_new_results(&self, owner: &UserId, run: &RunId) -> StoreResult<bool> {
        Ok(self.database().fetch_one(NEW_RESULTS, values![run.as_str(), owner.as_str()]).await?.only()?)
    }

    /// Returns the runs that wait for an answer to one of these questions of a model.
    pub async fn runs_asking(&self, owner: &UserId, questions: &[InputId]) -> StoreResult<Vec<RunId>> {
        let values: [Value<'_>; 2] = [questions.iter().map(InputId::as_str).collect(), owner.as_str().into()];
        self.database().read_all(ASKING, &values, |row| Ok(RunId::from_stored(row.only()?))).await
    }
}

#[async_trait]
impl<B: Backend> InputStore for B {
    async fn input_request(&self, owner: &UserId, id: &InputId) -> StoreResult<Option<InputRecord>> {
        self.database().read_optional(BY_ID, values![id.as_str(), owner.as_str()], read_input).await
    }

    async fn input_requests(&self, filter: InputFilter<'_>, page: &PageRequest<InputCursor>) -> StoreResult<Page<InputRecord>> {
        let limit = page.limit.clamp(1, 100);
        // The first page begins before the largest possible time.
        let (created_at, id) = page.after.as_ref().map_or((i64::MAX, ""), |after| (after.at, after.id.as_str()));
        let InputFilter { owner, kind, state, conversation } = filter;
        let state = state.map(InputState::as_str);
        let conversation = conversation.map(ConversationId::as_str);
        let page = values![owner.as_str(), created_at, id, state, kind == QuestionFilterKind::Approvals, limit + 1, conversation];
        let items = self.database().read_all(PAGE, page, |row| Ok((row.get("created_at")?, read_input(row)?))).await?;
        Ok(page_by_time(items, limit, |last| &last.request.id))
    }

    async fn tool_grants(&self, owner: &UserId, within: Option<&ConversationId>) -> StoreResult<Vec<ToolGrant>> {
        self.database().tool_grants(owner, within).await
    }

    async fn delete_tool_grant(&self, owner: &UserId, id: &GrantId) -> StoreResult<bool> {
        self.database().delete_tool_grant(owner, id).await
    }

    async fn resolve_input(&self, resolve: ResolveInput, key: Option<IdempotencyKey>) -> IdempotentResult<ResolveOutcome> {
        let (database, key) = (self.database(), key.as_ref());
        let is_stored = |resolved: &ResolveOutcome| matches!(resolved, ResolveOutcome::Answered { .. });
        database.once(key, || database.transaction(async |tx| resolve_in(tx, &resolve, key).await, if_fresh(is_stored))).await
    }

    async fn store_tool_results(&self, results: ToolResults, key: Option<IdempotencyKey>) -> IdempotentResult<ToolResultsOutcome> {
        let (database, key) = (self.database(), key.as_ref());
        let is_stored = |stored: &ToolResultsOutcome| matches!(stored, ToolResultsOutcome::Stored);
        database.once(key, || database.transaction(async |tx| store_results_in(tx, &results, key).await, if_fresh(is_stored))).await
    }
}

async fn store_results_in(
    tx: &mut Transaction,
    results: &ToolResults,
    key: Option<&IdempotencyKey>,
) -> IdempotentResult<ToolResultsOutcome> {
    let ToolResults { owner, run_id, results } = results;
    let run = tx.fetch_optional(CONVERSATION, values![run_id.as_str(), owner.as_str()]).await?;
    let conversation = run.map(|row| Ok::<_, StoreError>(ConversationId::from_stored(row.only()?))).transpose()?;
    // The lock orders this after the writes of the run's worker, which may be releasing the run.
    let base = match &conversation {
        Some(conversation) => tx.lock_head(owner, conversation).await?,
        None => None,
    };
    if let Some(recorded) = tx.recorded(key).await? {
        return Ok(recorded);
    }
    if base.is_none() {
        return refuse(ToolResultsOutcome::NoRun);
    }
    for (call, answer) in results {
        let row = tx.fetch_optional(OF_CALL, values![run_id.as_str(), owner.as_str(), call.as_str()]).await?;
        let Some(record) = row.as_ref().map(read_input).transpose()? else {
            return refuse(ToolResultsOutcome::NoCall { call_id: call.clone() });
        };
        let id = record.request.id;
        let answer = encode_storable("input_requests", "answer", id.as_str(), answer)?;
        if tx.execute(ANSWER, values![id.as_str(), answer, owner.as_str()]).await? == 0 {
            let state = record.request.state;
            return refuse(ToolResultsOutcome::Closed { call_id: call.clone(), state });
        }
    }
    tx.execute(WAKE, values![run_id.as_str()]).await?;
    tx.record(key, ToolResultsOutcome::Stored).await
}

async fn resolve_in(
    tx: &mut Transaction,
    resolve: &ResolveInput,
    key: Option<&IdempotencyKey>,
) -> IdempotentResult<ResolveOutcome> {
    let ResolveInput { owner, id, answer, grant, .. } = resolve;
    let found = find(tx, owner, id).await?;
    let base = match &found {
        Some(found) => tx.lock_head(owner, &found.request.conversation_id).await?,
        None => None,
    };
    if let Some(recorded) = tx.recorded(key).await? {
        return Ok(recorded);
    }
    let Some(base) = base else { return refuse(ResolveOutcome::NoRequest) };
    let answer = encode_storable("input_requests", "answer", id.as_str(), answer)?;
    let answered = tx.execute(ANSWER, values![id.as_str(), answer, owner.as_str()]).await?;
    let Some(record) = find(tx, owner, id).await?.map(Box::new) else {
        return refuse(ResolveOutcome::NoRequest);
    };
    if answered == 0 {
        return refuse(ResolveOutcome::Closed { record });
    }
    if let Some(grant) = grant {
        tx.insert_tool_grant(owner, grant).await?;
    }
    let request = &record.request;
    tx.execute(WAKE, values![request.run_id.as_str()]).await?;
    let attempt = tx.fetch_optional(ATTEMPT, values![request.run_id.as_str(), owner.as_str()]).await?;
    let attempt = attempt.map(|row| row.only()).transpose()?.map_or(0, unsigned_count);
    let event = created_rows::input_answered(request, attempt, resolve);
    let events = tx.append(&request.conversation_id, base, vec![event]).await?;
    tx.record(key, ResolveOutcome::Answered { record, events }).await
}

async fn find(tx: &mut Transaction, owner: &UserId, id: &InputId) -> StoreResult<Option<InputRecord>> {
    let row = tx.fetch_optional(BY_ID, values![id.as_str(), owner.as_str()]).await?;
    row.as_ref().map(read_input).transpose()
}

/// Reads the questions of a claimed run that it has not applied.
pub async fn open_questions(database: Database<'_>, run: &RunId) -> StoreResult<Vec<InputRequest>> {
    let read = |row: &Row| {
        let left: Option<i64> = row.get("expires_in")?;
        let expires_in_ms = left.map(|left| u64::try_from(left).unwrap_or(0));
        Ok(InputRequest { expires_in_ms, ..read_input(row)?.request })
    };
    database.read_all(OPEN, values![run.as_str()], read).await
}

fn read_input(row: &Row) -> StoreResult<InputRecord> {
    let (table, id) = ("input_requests", row.get::<String>("id")?);
    let request = InputRequest {
        conversation_id: ConversationId::from_stored(row.get("conversation_id")?),
        run_id: RunId::from_stored(row.get("run_id")?),
        call_id: row.get::<Option<String>>("call_id")?.map(CallId::from_stored),
        kind: read_word(row, table, "kind", &id, InputKind::from_name)?,
        question: read_json(row, table, "question", &id)?,
        state: read_word(row, table, "state", &id, InputState::from_name)?,
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
