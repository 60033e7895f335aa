//! `/api/v1/conversations/import`: conversations from exported documents.

use axum::extract::Request;
use axum::response::Response;

use crate::domain::conversation::Conversation;
use crate::http::wire::auth::Caller;
use crate::http::wire::extract::Input;
use crate::http::wire::problem::HttpResult;
use crate::http::wire::responses::created;
use crate::service::Document;

/// Imports a conversation
///
/// Creates a conversation of the caller from a JSON document that an export has written. All ids are new. Nothing is executed or
/// charged. Tool calls without a result in the document are not made.
#[utoipa::path(
    post, path = "/api/v1/conversations/import", tag = "conversations", operation_id = "import_conversation", request_body = Document,
    responses(
        (status = 201, description = "The conversation", body = Conversation, headers(("Location" = String))),
        (status = 429, description = "Too many concurrent imports and uploads"),
    ),
)]
pub(crate) async fn import(Caller { app, principal }: Caller, request: Request) -> HttpResult<Response> {
    // Only a few large bodies may be in memory at a time, as for uploads.
    let _permit = app.service.begin_upload(&principal.user_id).await?;
    let most = usize::try_from(app.service.copy_limits().bytes).unwrap_or(usize::MAX);
    let Input { body, key } = Input::<Document>::read(request, &app, most, None).await?;
    let (conversation, replay) = app.service.import_conversation(&principal, body, key).await?;
    Ok(created(replay, None, &format!("/api/v1/conversations/{}", conversation.id), conversation))
}
