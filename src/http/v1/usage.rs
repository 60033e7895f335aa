//! `/api/v1/usage`: what runs have used.

use axum::response::Response;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::domain::run::usage::DayUsage;
use crate::http::wire::auth::Caller;
use crate::http::wire::extract::Params;
use crate::http::wire::page::{self, PageParams, Paging};
use crate::http::wire::problem::Answer;
use crate::http::wire::types::ListBody;
use crate::service::{Error, MAX_USAGE_DAYS, UsageCursor};

const DEFAULT_DAYS: u32 = 30;

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct UsageParams {
    /// Those that were accepted on the last days, today among them, in UTC.
    #[param(minimum = 1, maximum = 366, default = 30)]
    days: Option<u32>,
    /// For administrators: those of a user, by their id, or of `all`. The caller's own if absent.
    #[param(pattern = "^(all|user_[0-9a-fA-F-]{32,36})$")]
    owner: Option<String>,
}

/// What runs have used, by day, owner and model, the newest day first
///
/// Tokens, model calls, and what those cost whose prices are known. Runs of conversations that were deleted are not in it.
#[utoipa::path(
    get, path = "/api/v1/usage", tag = "usage", operation_id = "list_usage", params(UsageParams, PageParams),
    responses((status = 200, description = "A page", body = ListBody<DayUsage>, headers(("Link" = String)))),
)]
pub(crate) async fn list(
    caller: Caller,
    Params(filter): Params<UsageParams>,
    Paging(page): Paging<UsageCursor>,
) -> Answer<Response> {
    let days = filter.days.unwrap_or(DEFAULT_DAYS);
    if !(1..=MAX_USAGE_DAYS).contains(&days) {
        return Err(Error::invalid(format!("the query's days is {days}; it must be 1 to {MAX_USAGE_DAYS}")).into());
    }
    let found = caller.app.service.usage(&caller.principal, filter.owner.as_deref(), days, &page).await?;
    let rest = page::query([("days", Some(&*days.to_string())), ("owner", filter.owner.as_deref())]);
    Ok(page::answer(found, page.limit, "/api/v1/usage", &rest))
}
