//! `/api/v1/search`: search in messages.

use axum::response::Response;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::domain::conversation::search::FoundMessage;
use crate::http::v1::conversations::Archived;
use crate::http::wire::page::{self, ListRequest, PageParams};
use crate::http::wire::problem::HttpResult;
use crate::http::wire::types::ListBody;
use crate::service::SearchCursor;

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct SearchParams {
    /// The search terms: words, beginnings of words, and phrases in double quotes. A message must match all of them.
    #[param(min_length = 1, max_length = 200)]
    q: String,
    /// Archived conversations (`true`), the others (`false`), or both (`any`).
    #[param(inline, default = "any")]
    archived: Option<Archived>,
}

/// Searches messages
///
/// Searches the texts of people and models in the caller's conversations, newest first. Each result has an excerpt with marked
/// matches. `GET /api/v1/conversations?q=` searches titles.
#[utoipa::path(
    get, path = "/api/v1/search", tag = "conversations", operation_id = "search_messages", params(SearchParams, PageParams),
    responses((status = 200, description = "A page of messages", body = ListBody<FoundMessage>)),
)]
pub(crate) async fn messages(
    ListRequest { caller, filter, page }: ListRequest<SearchParams, SearchCursor>,
) -> HttpResult<Response> {
    let archived = filter.archived.unwrap_or(Archived::Any);
    let found = caller.app.service.search(&caller.principal, &filter.q, archived.filter(), &page).await?;
    let rest = page::query([("q", Some(&*filter.q)), ("archived", Some(archived.word()))]);
    Ok(page::answer(found, page.limit, "/api/v1/search", &rest))
}
