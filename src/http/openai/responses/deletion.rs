//! Deletes responses. A chain is a conversation that requests without the field `conversation` created and continued. It is deleted
//! with the last of its responses.

use axum::Json;
use axum::extract::Path;
use serde_json::{Value, json};

use crate::domain::access::principal::Principal;
use crate::domain::problem::ProblemCode;
use crate::domain::run::Run;
use crate::http::clients::pauses::RunPauses;
use crate::http::openai::responses::find;
use crate::http::openai::responses::object::{is_of_chain, previous_response};
use crate::http::options::App;
use crate::http::wire::auth::Caller;
use crate::http::wire::problem::{HttpResult, Problem};
use crate::service::{PageRequest, RunFilter};

/// Number of runs in one read.
const RUNS: u32 = 100;

/// Deletes a response
///
/// Later responses stay, and their conversation keeps the messages of this one. The conversation is deleted with the last of its
/// responses, unless the client has created it. A run that waits for an answer to this response is cancelled.
#[utoipa::path(
    delete, path = "/v1/responses/{id}", tag = "responses", operation_id = "openai_delete_response",
    params(("id" = String, Path, description = "The id of the response")),
    responses((status = 200, description = "The response is deleted", body = Object)),
)]
pub(in crate::http) async fn delete(caller: Caller, Path(id): Path<String>) -> HttpResult<Json<Value>> {
    let Caller { app, principal } = &caller;
    let (run, facts) = find(app, principal, &id).await?;
    let response = (&run, facts.segment);
    if is_last(app, principal, response).await? {
        delete_conversation(app, principal, &run).await?;
    } else {
        let pauses = RunPauses::read_with_results(&app.service, principal, &run.id).await?;
        if facts.segment == pauses.newest_response() && !run.status.is_terminal() {
            if !pauses.is_paused() {
                return Err(Problem::new(ProblemCode::Conflict, "the response is unfinished; cancel it first"));
            }
            // The run must not wait for an answer that no client can give. Its cancellation is the next response, which goes as well.
            app.service.cancel_run(principal, &run.id, None).await?;
            app.service.delete_response(principal, &run.id, facts.segment + 1).await?;
        }
        app.service.delete_response(principal, &run.id, facts.segment).await?;
        // Another request may have deleted the other remaining response after the first check.
        match is_last(app, principal, response).await {
            Ok(true) => delete_conversation(app, principal, &run).await?,
            Ok(false) => {}
            Err(problem) if is_missing(&problem) => {}
            Err(problem) => return Err(problem),
        }
    }
    Ok(Json(json!({ "id": id, "object": "response", "deleted": true })))
}

/// Deletes the conversation of a run, unless another request has deleted it meanwhile.
async fn delete_conversation(app: &App, principal: &Principal, run: &Run) -> HttpResult<()> {
    let deleted = app.service.delete_conversation(principal, &run.conversation_id).await.map_err(Problem::from);
    deleted.or_else(|problem| if is_missing(&problem) { Ok(()) } else { Err(problem) })
}

fn is_missing(Problem(problem): &Problem) -> bool {
    problem.code == ProblemCode::NotFound.as_str()
}

/// Returns whether the conversation is a chain, and all its other responses are deleted.
///
/// A response that continues after an older one begins in a copy of the conversation. The client does not know the copied runs, so
/// they do not count. A copy that the user has made stays: its first response continues after a run of the copy.
async fn is_last(app: &App, principal: &Principal, (run, segment): (&Run, u32)) -> HttpResult<bool> {
    if app.service.has_other_whole_run(principal, run).await? {
        return Ok(false);
    }
    let filter = RunFilter { conversation: Some(run.conversation_id.clone()), ..RunFilter::default() };
    let copies = app.service.copied_runs(principal, &run.conversation_id).await?;
    let mut first = run.id.clone();
    let mut page = PageRequest { limit: RUNS, after: None };
    loop {
        let runs = app.service.runs(principal, &filter, &page).await?;
        for other in runs.items.iter().filter(|other| !copies.contains(&other.id)) {
            first = other.id.clone();
            let own = (other.id == run.id).then_some(segment);
            if !is_deleted(app, principal, other, own).await? {
                return Ok(false);
            }
        }
        match runs.next.and_then(|next| next.parse().ok()) {
            Some(next) => page.after = Some(next),
            None => break,
        }
    }
    if copies.is_empty() {
        return Ok(true);
    }
    let previous = previous_response(&app.service.run_profile(principal, &first).await?);
    Ok(previous.is_some_and(|previous| !copies.contains(&previous.run)))
}

/// Returns whether a run belongs to a chain, and all its responses, except the one with the number `except`, are deleted.
async fn is_deleted(app: &App, principal: &Principal, run: &Run, except: Option<u32>) -> HttpResult<bool> {
    if !is_of_chain(&app.service.run_profile(principal, &run.id).await?) {
        return Ok(false);
    }
    let newest = RunPauses::read_with_results(&app.service, principal, &run.id).await?.newest_response();
    let deleted = app.service.deleted_responses(principal, &run.id).await?;
    Ok((0..=newest).all(|number| deleted.contains(&number) || Some(number) == except))
}
