//! `/api/v1/conversations/{id}/export`: a conversation as a document.

use std::sync::Arc;

use axum::body::Body;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse as _, Response};
use futures_util::{StreamExt as _, stream};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::domain::ids::ConversationId;
use crate::http::wire::auth::Caller;
use crate::http::wire::extract::{Id, Params};
use crate::http::wire::problem::{HttpResult, Problem};
use crate::service::{Error, ExportForm, MessageCursor, PageRequest};

/// Number of messages in one read.
const PAGE: u32 = 100;

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ExportParams {
    /// The format of the document. `json` contains all fields of the list of messages; `markdown` is for people.
    #[param(inline, default = "json")]
    format: Option<ExportForm>,
}

/// Exports a conversation as a document
///
/// The document contains all messages of the conversation. If the conversation changes during the export, the document may mix both
/// states. A truncated document lacks its closing bracket.
#[utoipa::path(
    get, path = "/api/v1/conversations/{id}/export", tag = "conversations", operation_id = "export_conversation",
    params(("id" = ConversationId, Path, description = "The id of the conversation"), ExportParams),
    responses((status = 200, description = "The document", headers(("Content-Disposition" = String)),
        content((serde_json::Value = "application/json"), (String = "text/markdown")))),
)]
pub(crate) async fn export(
    Caller { app, principal }: Caller,
    Id(id): Id<ConversationId>,
    Params(params): Params<ExportParams>,
) -> HttpResult<Response> {
    let form = params.format.unwrap_or_default();
    let media_type = match form {
        ExportForm::Json => "application/json",
        ExportForm::Markdown => "text/markdown; charset=utf-8",
    };
    let service = Arc::clone(&app.service);
    let beginning = form.beginning(&service.conversation(&principal, &id).await?, service.clock().now());
    let disposition = format!("attachment; filename=\"{id}.{}\"", form.extension());
    // The state is the cursor of the next messages; `None` after the last ones.
    let pages = stream::try_unfold(Some(None::<MessageCursor>), move |cursor| {
        let (service, principal, id) = (Arc::clone(&service), principal.clone(), id.clone());
        async move {
            let Some(after) = cursor else { return Ok(None) };
            let first = after.is_none();
            let page = service.messages(&principal, &id, &PageRequest { limit: PAGE, after }).await.map_err(cut_off)?;
            let text = form.messages(&page.items, first);
            Ok(Some(match page.next.as_deref().and_then(|next| next.parse().ok()) {
                Some(next) => (text, Some(Some(next))),
                None => (text + form.end(), None),
            }))
        }
    });
    let document = Body::from_stream(stream::once(async { Ok::<_, std::io::Error>(beginning) }).chain(pages));
    Ok(([(CONTENT_TYPE, media_type.to_owned()), (CONTENT_DISPOSITION, disposition)], document).into_response())
}

/// Aborts the response, because it has already begun. The cause is logged like that of every problem.
fn cut_off(error: Error) -> std::io::Error {
    std::io::Error::other(Problem::from(error).0.detail)
}
