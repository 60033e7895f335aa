//! `/api/v1/conversations/{id}/shares`, `/api/v1/shares` and `/api/v1/shared`: read-only copies of conversations for everyone who
//! has a link.

use axum::Json;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, HeaderName, REFERRER_POLICY};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::domain::conversation::shares::{Share, SharedConversation};
use crate::domain::ids::{ConversationId, ShareId};
use crate::http::options::App;
use crate::http::wire::auth::Caller;
use crate::http::wire::extract::{Id, Ids, OptionalInput};
use crate::http::wire::page::{self, PageParams, Paging};
use crate::http::wire::problem::HttpResult;
use crate::http::wire::types::ListBody;
use crate::service::{Page, ShareCursor};

/// The token is in a header, because access logs contain paths.
const SHARE_TOKEN: HeaderName = HeaderName::from_static("share-token");
const X_ROBOTS_TAG: HeaderName = HeaderName::from_static("x-robots-tag");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// The lifetime of a share.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateShareBody {
    /// Days until the share expires, at most `limits.max_share_days`. Defaults to 30, or to the limit if that is less.
    #[schema(minimum = 1)]
    expires_in_days: Option<u32>,
}

/// A share of a conversation.
#[serde_with::skip_serializing_none]
#[derive(Serialize, ToSchema)]
#[schema(as = Share)]
pub(crate) struct ShareBody {
    /// The id.
    id: ShareId,
    /// The shared conversation.
    conversation_id: ConversationId,
    /// The title of the conversation when it was shared.
    title: String,
    /// When the conversation was shared, RFC 3339.
    created_at: String,
    /// When the share expires, RFC 3339.
    expires_at: String,
    /// Number of shared messages.
    message_count: u32,
    /// The secret of the link `/#/share/TOKEN`. Present only in the response to the creation.
    token: Option<String>,
}

impl ShareBody {
    fn of(Share { id, conversation_id, title, message_count, created_at, expires_at }: Share, token: Option<String>) -> Self {
        let (created_at, expires_at) = (created_at.to_rfc3339(), expires_at.to_rfc3339());
        Self { id, conversation_id, title, created_at, expires_at, message_count, token }
    }
}

/// Shares a conversation
///
/// A share is a read-only copy of the conversation's texts as they are now, with the names of called tools. It never changes.
/// Everyone with the token can read it. The response shows the token, which cannot be read again. A request with a used
/// `Idempotency-Key` gets status 409.
#[utoipa::path(
    post, path = "/api/v1/conversations/{id}/shares", tag = "conversations", operation_id = "create_share",
    params(("id" = ConversationId, Path, description = "The id of the conversation")), request_body = Option<CreateShareBody>,
    responses((status = 201, description = "The share with its token, which is shown only once", body = ShareBody)),
)]
pub(crate) async fn create(
    caller: Caller,
    Id(id): Id<ConversationId>,
    OptionalInput { body, key }: OptionalInput<CreateShareBody>,
) -> HttpResult<Response> {
    let (share, token) = caller.app.service.share_conversation(&caller.principal, &id, body.expires_in_days, key).await?;
    Ok((StatusCode::CREATED, [(CACHE_CONTROL, NO_STORE)], Json(ShareBody::of(share, Some(token)))).into_response())
}

/// Lists the shares of a conversation, newest first
#[utoipa::path(
    get, path = "/api/v1/conversations/{id}/shares", tag = "conversations", operation_id = "list_shares",
    params(("id" = ConversationId, Path, description = "The id of the conversation")),
    responses((status = 200, description = "All shares that have not expired", body = ListBody<ShareBody>)),
)]
pub(crate) async fn list(caller: Caller, Id(id): Id<ConversationId>) -> HttpResult<Json<ListBody<ShareBody>>> {
    let shares = caller.app.service.shares(&caller.principal, &id).await?;
    Ok(Json(ListBody::whole(shares.into_iter().map(|share| ShareBody::of(share, None)).collect())))
}

/// Lists the caller's shares of all conversations, newest first
#[utoipa::path(
    get, path = "/api/v1/shares", tag = "conversations", operation_id = "list_all_shares", params(PageParams),
    responses((status = 200, description = "A page of the shares that have not expired", body = ListBody<ShareBody>)),
)]
pub(crate) async fn list_all(caller: Caller, Paging(page): Paging<ShareCursor>) -> HttpResult<Response> {
    let Page { items, next } = caller.app.service.all_shares(&caller.principal, &page).await?;
    let items = items.into_iter().map(|share| ShareBody::of(share, None)).collect();
    Ok(page::answer(Page { items, next }, page.limit, "/api/v1/shares", ""))
}

/// Revokes a share
///
/// The link stops working at once.
#[utoipa::path(
    delete, path = "/api/v1/conversations/{id}/shares/{share_id}", tag = "conversations", operation_id = "revoke_share",
    params(
        ("id" = ConversationId, Path, description = "The id of the conversation"),
        ("share_id" = ShareId, Path, description = "The id of the share"),
    ),
    responses((status = 204, description = "The share is revoked")),
)]
pub(crate) async fn revoke(caller: Caller, Ids(id, share): Ids<ConversationId, ShareId>) -> HttpResult<StatusCode> {
    caller.app.service.revoke_share(&caller.principal, &id, &share).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Returns a shared conversation
///
/// This operation needs no key.
#[utoipa::path(
    get, path = "/api/v1/shared", tag = "conversations", operation_id = "get_shared_conversation", security(()),
    params(("Share-Token" = String, Header, description = "The token of the share")),
    responses(
        (status = 200, description = "The conversation when it was shared", body = SharedConversation),
        (status = 404, description = "The token is missing or wrong, or its share has expired or was revoked"),
    ),
)]
pub(crate) async fn read(State(app): State<App>, headers: HeaderMap) -> Response {
    // A missing token is refused like a wrong one.
    let token = headers.get(SHARE_TOKEN).and_then(|token| token.to_str().ok()).unwrap_or_default();
    let shared: HttpResult<_> = app.service.shared_conversation(token).await.map(Json).map_err(Into::into);
    let unlisted = HeaderValue::from_static("noindex");
    let private = [(CACHE_CONTROL, NO_STORE), (X_ROBOTS_TAG, unlisted), (REFERRER_POLICY, HeaderValue::from_static("no-referrer"))];
    (private, shared).into_response()
}
