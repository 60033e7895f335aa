//! `/api/v1/approvals`: approvals of tool calls, and `/api/v1/tool-grants`: grants for later calls.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::domain::ids::{ConversationId, GrantId, InputId};
use crate::domain::run::question::InputState;
use crate::domain::tool::approval::{Approval, ApprovalAnswer, ToolGrant};
use crate::http::wire::auth::Caller;
use crate::http::wire::extract::{Id, Input};
use crate::http::wire::idempotency_header::replayed;
use crate::http::wire::page::{self, ListRequest, PageParams};
use crate::http::wire::problem::HttpResult;
use crate::http::wire::types::ListBody;
use crate::service::InputCursor;

/// The states of approvals in a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum UnresolvedState {
    Pending,
    Expired,
    Cancelled,
}

impl UnresolvedState {
    fn state(self) -> InputState {
        match self {
            Self::Pending => InputState::Pending,
            Self::Expired => InputState::Expired,
            Self::Cancelled => InputState::Cancelled,
        }
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ApprovalParams {
    /// Only approvals in this state. `pending` selects approvals that wait for a decision.
    #[param(inline)]
    status: Option<UnresolvedState>,
    /// Only approvals of this conversation.
    conversation_id: Option<ConversationId>,
}

/// A list of grants.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ToolGrantList)]
pub(crate) struct GrantsBody {
    /// The grants, newest first; at most 1,000.
    data: Vec<ToolGrant>,
}

/// Lists approvals, newest first
#[utoipa::path(
    get, path = "/api/v1/approvals", tag = "approvals", operation_id = "list_approvals", params(ApprovalParams, PageParams),
    responses((status = 200, description = "A page of the list", body = ListBody<Approval>)),
)]
pub(crate) async fn list(ListRequest { caller, filter, page }: ListRequest<ApprovalParams, InputCursor>) -> HttpResult<Response> {
    let state = filter.status.map(UnresolvedState::state);
    let found = caller.app.service.approvals(&caller.principal, state, filter.conversation_id.as_ref(), &page).await?;
    let rest = page::query([
        ("status", state.map(InputState::as_str)),
        ("conversation_id", filter.conversation_id.as_ref().map(ConversationId::as_str)),
    ]);
    Ok(page::answer(found, page.limit, "/api/v1/approvals", &rest))
}

/// Returns an approval
#[utoipa::path(
    get, path = "/api/v1/approvals/{id}", tag = "approvals", operation_id = "get_approval",
    params(("id" = InputId, Path, description = "The id of the approval")),
    responses((status = 200, description = "The approval, with its decision if it is decided", body = Approval)),
)]
pub(crate) async fn get(caller: Caller, Id(id): Id<InputId>) -> HttpResult<Json<Approval>> {
    Ok(Json(caller.app.service.approval(&caller.principal, &id).await?))
}

/// Allows or denies a tool call
///
/// A run whose call needs an approval is `waiting` for `approval`, and the event `approval.requested` shows the call. An approval
/// accepts one decision. This request only records the decision, and a worker then makes the call. A refused decision changes
/// nothing, and the run continues to wait.
#[utoipa::path(
    post, path = "/api/v1/approvals/{id}", tag = "approvals", operation_id = "resolve_approval", request_body = ApprovalAnswer,
    params(("id" = InputId, Path, description = "The id of the approval")),
    responses((status = 200, description = "The approval with its decision", body = Approval)),
)]
pub(crate) async fn resolve(
    caller: Caller,
    Id(id): Id<InputId>,
    Input { body, key }: Input<ApprovalAnswer>,
) -> HttpResult<Response> {
    let (approval, replay) = caller.app.service.resolve_approval(&caller.principal, &id, body, key).await?;
    Ok((replayed(replay), Json(approval)).into_response())
}

/// Lists the grants of the caller
#[utoipa::path(
    get, path = "/api/v1/tool-grants", tag = "approvals", operation_id = "list_tool_grants",
    responses((status = 200, description = "All grants of the caller", body = GrantsBody)),
)]
pub(crate) async fn grants(caller: Caller) -> HttpResult<Json<GrantsBody>> {
    Ok(Json(GrantsBody { data: caller.app.service.tool_grants(&caller.principal).await? }))
}

/// Revokes a grant
///
/// Runs that a worker claims after this request ask again. A worker that already holds a run applies the grant until it releases
/// the run.
#[utoipa::path(
    delete, path = "/api/v1/tool-grants/{id}", tag = "approvals", operation_id = "delete_tool_grant",
    params(("id" = GrantId, Path, description = "The id of the grant")),
    responses((status = 204, description = "The grant was revoked")),
)]
pub(crate) async fn revoke(caller: Caller, Id(id): Id<GrantId>) -> HttpResult<StatusCode> {
    caller.app.service.delete_tool_grant(&caller.principal, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}
