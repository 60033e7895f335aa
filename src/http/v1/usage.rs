//! `/api/v1/usage`: usage of runs.

use axum::response::Response;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::domain::run::usage::{PeriodUsage, UsageGroup, UsagePeriod};
use crate::http::wire::page::{self, ListRequest, PageParams};
use crate::http::wire::problem::HttpResult;
use crate::http::wire::types::ListBody;
use crate::service::{Error, MAX_USAGE_DAYS, UsageCursor};

const DEFAULT_DAYS: u32 = 30;

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct UsageParams {
    /// The number of days, today included, in UTC. The report covers runs that were accepted on these days.
    #[param(minimum = 1, maximum = 366, default = 30)]
    days: Option<u32>,
    /// The id of a user, or `all`. For administrators only. Defaults to the caller.
    #[param(pattern = "^(all|user_[0-9a-fA-F-]{32,36})$")]
    owner: Option<String>,
    /// The length of the summed periods. Embeddings count in the first hour of their day.
    #[param(inline, default = "day")]
    period: Option<UsagePeriod>,
    /// The group whose usage is summed.
    #[param(inline, default = "model")]
    group: Option<UsageGroup>,
}

/// Lists usage by period, owner and group, newest period first
///
/// Returns tokens, model calls, and the cost of the calls with known prices. Runs of deleted conversations are not included.
#[utoipa::path(
    get, path = "/api/v1/usage", tag = "usage", operation_id = "list_usage", params(UsageParams, PageParams),
    responses((status = 200, description = "A page of the list", body = ListBody<PeriodUsage>)),
)]
pub(crate) async fn list(ListRequest { caller, filter, page }: ListRequest<UsageParams, UsageCursor>) -> HttpResult<Response> {
    let days = filter.days.unwrap_or(DEFAULT_DAYS);
    if !(1..=MAX_USAGE_DAYS).contains(&days) {
        return Err(Error::invalid(format!("the query parameter days is {days}; it must be 1 to {MAX_USAGE_DAYS}")).into());
    }
    let (period, group) = (filter.period.unwrap_or(UsagePeriod::Day), filter.group.unwrap_or(UsageGroup::Model));
    let found = caller.app.service.usage(&caller.principal, filter.owner.as_deref(), days, (period, group), &page).await?;
    let rest = page::query([
        ("days", Some(&*days.to_string())),
        ("owner", filter.owner.as_deref()),
        ("period", filter.period.map(UsagePeriod::as_str)),
        ("group", filter.group.map(UsageGroup::as_str)),
    ]);
    Ok(page::answer(found, page.limit, "/api/v1/usage", &rest))
}
