//! `/api/v1/tool-pins`: definitions of tools, and whether they have changed since they were reviewed.

use axum::Json;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::domain::ids::PinId;
use crate::domain::tool::pin::{PinStatus, ToolPin};
use crate::http::wire::auth::Caller;
use crate::http::wire::extract::{Id, Params};
use crate::http::wire::problem::Answer;

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct PinParams {
    /// Only those of which that is thought; `changed` for those that want to be looked at.
    #[param(inline)]
    status: Option<PinStatus>,
}

/// Definitions of tools.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PinsBody {
    /// Newest first; at most 1,000.
    data: Vec<ToolPin>,
}

/// Definitions of tools that were seen, newest first
///
/// Of tools of MCP servers that are not marked trusted, from the first run on that they were offered to. A `changed` one is not offered to
/// new runs, and shows the definition `before` it.
#[utoipa::path(
    get, path = "/api/v1/tool-pins", tag = "tools", operation_id = "list_tool_pins", params(PinParams),
    responses((status = 200, description = "Those of the caller's servers and of everybody's", body = PinsBody)),
)]
pub(crate) async fn list(caller: Caller, Params(filter): Params<PinParams>) -> Answer<Json<PinsBody>> {
    Ok(Json(PinsBody { data: caller.app.service.tool_pins(&caller.principal, filter.status).await? }))
}

/// Accepts a changed definition
///
/// Its tool is offered to the runs that begin from now on. Those of everybody's servers are an administrator's to accept. Repeating it
/// changes nothing. A definition that has changed again meanwhile is another one, and this one is gone.
#[utoipa::path(
    post, path = "/api/v1/tool-pins/{id}/accept", tag = "tools", operation_id = "accept_tool_pin",
    params(("id" = PinId, Path, description = "The definition")),
    responses((status = 200, description = "The definition, accepted", body = ToolPin)),
)]
pub(crate) async fn accept(caller: Caller, Id(id): Id<PinId>) -> Answer<Json<ToolPin>> {
    Ok(Json(caller.app.service.accept_tool_pin(&caller.principal, &id).await?))
}
