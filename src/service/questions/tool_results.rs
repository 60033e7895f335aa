//! Results of client tools: the client of a run executes calls, and sends each result once.

use crate::domain::access::principal::Principal;
use crate::domain::conversation::content::{BinaryContent, ToolContent};
use crate::domain::conversation::message::{FilePart, Part};
use crate::domain::ids::{CallId, RunId};
use crate::domain::run::Run;
use crate::domain::run::question::{InputAnswer, InputState};
use crate::domain::tool::client_tool::client_answer;
use crate::service::idempotency_outcome::{Replay, RequestKey, outcome_or_conflict};
use crate::service::{Content, Error, Result, Service};
use crate::store::{ToolResults, ToolResultsOutcome};
use crate::support::failpoint;

/// The most results in one request. A model answer has far fewer calls.
const MAX_RESULTS: usize = 1_000;

#[derive(Debug, Clone, PartialEq)]
pub struct NewToolResult {
    pub call_id: CallId,
    pub content: Content,
    pub is_error: bool,
}

impl Service {
    /// Stores results of calls of one run: all of them, or none. When this returns, they are durable and the run will continue.
    pub async fn store_tool_results(
        &self,
        principal: &Principal,
        run: &RunId,
        results: Vec<NewToolResult>,
        key: Option<RequestKey>,
    ) -> Result<(Run, Replay)> {
        if results.is_empty() {
            return Err(Error::field("/results", "must have at least one result"));
        }
        if results.len() > MAX_RESULTS {
            return Err(Error::field("/results", format!("has {} results; at most {MAX_RESULTS} are accepted", results.len())));
        }
        let mut stored = Vec::with_capacity(results.len());
        for (at, result) in results.into_iter().enumerate() {
            let call_id = result.call_id.clone();
            if stored.iter().any(|(known, _)| *known == call_id) {
                return Err(Error::field(&format!("/results/{at}/call_id"), "names the call of an earlier result in this request"));
            }
            stored.push((call_id, self.checked_result(principal, result, &format!("results/{at}/content")).await?));
        }
        let claim = self.claim(&principal.user_id, key);
        let results = ToolResults { owner: principal.user_id.clone(), run_id: run.clone(), results: stored };
        let replay = self.run_to_end(|store, hub| async move {
            let run = results.run_id.clone();
            let (outcome, replay) = outcome_or_conflict(store.store_tool_results(results, claim).await?)?;
            failpoint::hit("C18-answered");
            match outcome {
                ToolResultsOutcome::Stored => {
                    tracing::info!(run.id = %run, "results of client tools were stored");
                    hub.notify_queue();
                    Ok(replay)
                }
                ToolResultsOutcome::Closed { call_id, state } => Err(closed(call_id, state)),
                ToolResultsOutcome::NoCall { .. } => Err(Error::NotFound("call of a client tool in this run")),
                ToolResultsOutcome::NoRun => Err(Error::NotFound("run")),
            }
        });
        let replay = replay.await?;
        Ok((self.run(principal, run).await?, replay))
    }

    /// Returns whether the client has sent results that the run has not applied. No event shows them yet.
    pub async fn has_new_results(&self, principal: &Principal, run: &RunId) -> Result<bool> {
        Ok(self.store.has_new_results(&principal.user_id, run).await?)
    }

    async fn checked_result(&self, principal: &Principal, result: NewToolResult, field: &str) -> Result<InputAnswer> {
        let content = self.result_content(principal, &result.content, field).await?;
        let answer = client_answer(&content, result.is_error);
        let bytes = answer.content.as_ref().map_or(0, |content| content.to_string().len());
        let most = self.limits.client_result_bytes;
        if bytes > most {
            let reason = format!("has {bytes} bytes; at most {most} are accepted (limits.client_result_bytes)");
            return Err(Error::field(&format!("/{field}"), reason));
        }
        Ok(answer)
    }
}

fn closed(call: CallId, state: InputState) -> Error {
    match state {
        InputState::Answered | InputState::Applied => Error::AlreadyAnswered(call),
        InputState::Pending | InputState::Expired | InputState::Cancelled => {
            Error::Conflict(format!("the call {call} takes no result any more: it has expired, or its run has ended"))
        }
    }
}

pub(in crate::service) fn tool_content(part: Part) -> Option<ToolContent> {
    let stored = |part: FilePart| BinaryContent {
        media_type: part.media_type,
        file_id: part.file_id,
        size: part.size,
        url: part.url,
        name: part.name,
        data: None,
    };
    match part {
        Part::Text(part) => Some(ToolContent::text(part.text)),
        Part::Image(part) => Some(ToolContent::Image(stored(part))),
        Part::File(part) => Some(ToolContent::File(stored(part))),
        // A request has no parts of these kinds.
        Part::Reasoning(_) | Part::ToolCall(_) | Part::ToolResult(_) | Part::Source(_) => None,
    }
}
