//! `/api/v1/audit`: the outcomes of all tool calls.

use axum::response::Response;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::domain::access::audit::{AuditOutcome, AuditRecord};
use crate::domain::ids::RunId;
use crate::http::wire::page::{self, ListRequest, PageParams};
use crate::http::wire::problem::HttpResult;
use crate::http::wire::types::ListBody;
use crate::service::{AuditCursor, Error};

/// Limit of a tool name in the query, in bytes. Models write long names.
const MAX_NAME: usize = 256;

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct AuditParams {
    /// Only calls of this run.
    run_id: Option<RunId>,
    /// Only calls of this tool, by its name as models see it.
    #[param(max_length = 256)]
    tool: Option<String>,
    /// Only calls with this outcome.
    outcome: Option<AuditOutcome>,
    /// The id of a user, or `all`. For administrators only. Defaults to the caller.
    #[param(pattern = "^(all|user_[0-9a-fA-F-]{32,36})$")]
    owner: Option<String>,
}

/// Lists the outcomes of tool calls, newest first
///
/// Each tool call that has ended has one audit record. The record is written with the outcome and never changes. It outlives its
/// run and its conversation, for `retention.audit_days`.
#[utoipa::path(
    get, path = "/api/v1/audit", tag = "audit", operation_id = "list_audit", params(AuditParams, PageParams),
    responses((status = 200, description = "A page of the list", body = ListBody<AuditRecord>)),
)]
pub(crate) async fn list(ListRequest { caller, filter, page }: ListRequest<AuditParams, AuditCursor>) -> HttpResult<Response> {
    let AuditParams { run_id, tool, outcome, owner } = filter;
    if tool.as_ref().is_some_and(|tool| tool.len() > MAX_NAME) {
        return Err(Error::invalid(format!("the query parameter tool is longer than {MAX_NAME} bytes")).into());
    }
    let rest = page::query([
        ("run_id", run_id.as_ref().map(RunId::as_str)),
        ("tool", tool.as_deref()),
        ("outcome", outcome.map(AuditOutcome::as_str)),
        ("owner", owner.as_deref()),
    ]);
    let found = caller.app.service.tool_audit(&caller.principal, owner.as_deref(), run_id, tool, outcome, &page).await?;
    Ok(page::answer(found, page.limit, "/api/v1/audit", &rest))
}
