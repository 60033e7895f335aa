//! `/api/v1/tool-pins`: tool reviews, which say whether a tool has changed since it was accepted.

use axum::Json;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::domain::ids::ToolReviewId;
use crate::domain::tool::tool_review::{ToolReview, ToolReviewStatus};
use crate::http::wire::auth::Caller;
use crate::http::wire::extract::{Id, Params};
use crate::http::wire::problem::HttpResult;

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ToolReviewParams {
    /// Only reviews with this status. `changed` selects definitions that wait for a review.
    status: Option<ToolReviewStatus>,
}

/// A list of tool reviews.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ToolReviewList)]
pub(crate) struct ToolReviewsBody {
    /// The reviews, newest first; at most 1,000.
    data: Vec<ToolReview>,
}

/// Lists tool reviews, newest first
///
/// The list contains tools of untrusted MCP servers, from the first run that was offered them. A `changed` tool is not offered to
/// new runs, and its review shows the earlier definition as `before`.
#[utoipa::path(
    get, path = "/api/v1/tool-pins", tag = "tools", operation_id = "list_tool_pins", params(ToolReviewParams),
    responses((status = 200, description = "The reviews for the caller's servers and for servers of all users", body = ToolReviewsBody)),
)]
pub(crate) async fn list(caller: Caller, Params(filter): Params<ToolReviewParams>) -> HttpResult<Json<ToolReviewsBody>> {
    Ok(Json(ToolReviewsBody { data: caller.app.service.tool_reviews(&caller.principal, filter.status).await? }))
}

/// Accepts a changed tool definition
///
/// New runs are offered the tool again. Only an administrator may accept tools of a server for all users. Repeating the request
/// changes nothing. If the definition changes again before the request, it has a new review, and this one no longer exists.
#[utoipa::path(
    post, path = "/api/v1/tool-pins/{id}/accept", tag = "tools", operation_id = "accept_tool_pin",
    params(("id" = ToolReviewId, Path, description = "The id of the review")),
    responses((status = 200, description = "The accepted definition", body = ToolReview)),
)]
pub(crate) async fn accept(caller: Caller, Id(id): Id<ToolReviewId>) -> HttpResult<Json<ToolReview>> {
    Ok(Json(caller.app.service.accept_tool_review(&caller.principal, &id).await?))
}
