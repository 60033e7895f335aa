//! `/api/v1/keys`: the API keys of users.

use axum::Json;
use axum::http::header::CACHE_CONTROL;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::domain::ids::{KeyId, UserId};
use crate::http::options::Auth;
use crate::http::wire::auth::Caller;
use crate::http::wire::extract::{Id, Input};
use crate::http::wire::page::{self, ListRequest, PageParams};
use crate::http::wire::problem::HttpResult;
use crate::http::wire::types::ListBody;
use crate::service::{Error, KeyCursor, NewApiKey, Page, StoredKey};
use crate::support::clock::UnixMillis;

/// A key of a user.
#[serde_with::skip_serializing_none]
#[derive(Serialize, ToSchema)]
pub(crate) struct ApiKey {
    /// The id.
    id: KeyId,
    /// A text by which people recognize the key, or its first characters.
    label: String,
    /// The id of the user.
    user_id: UserId,
    /// The name of the user.
    user: String,
    /// When the key was created, RFC 3339.
    created_at: String,
    /// When the key was revoked, RFC 3339.
    revoked_at: Option<String>,
    /// The key itself. Present only in the response to its creation.
    key: Option<String>,
}

impl ApiKey {
    fn of(StoredKey { id, hash: _, label, user, created_at, revoked_at }: StoredKey, key: Option<String>) -> Self {
        let (created_at, revoked_at) = (created_at.to_rfc3339(), revoked_at.map(UnixMillis::to_rfc3339));
        Self { id, label, user_id: user.id, user: user.name, created_at, revoked_at, key }
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct KeyParams {
    /// Only keys of this user. Members see only their own keys.
    user_id: Option<UserId>,
}

/// Lists keys, newest first
///
/// Revoked keys remain in the list. Keys of the configuration are not listed.
#[utoipa::path(
    get, path = "/api/v1/keys", tag = "users", operation_id = "list_api_keys", params(KeyParams, PageParams),
    responses((status = 200, description = "A page of the list", body = ListBody<ApiKey>)),
)]
pub(crate) async fn list(ListRequest { caller, filter, page }: ListRequest<KeyParams, KeyCursor>) -> HttpResult<Response> {
    let rest = page::query([("user_id", filter.user_id.as_ref().map(UserId::as_str))]);
    let Page { items, next } = caller.app.service.api_keys(&caller.principal, filter.user_id, &page).await?;
    let items = items.into_iter().map(|key| ApiKey::of(key, None)).collect();
    Ok(page::answer(Page { items, next }, page.limit, "/api/v1/keys", &rest))
}

/// Creates a key
///
/// The response shows the key, which cannot be read again. A request with a used `Idempotency-Key` gets 409, and creates nothing.
/// On a server without keys, `capstan keys create` makes the first key.
#[utoipa::path(
    post, path = "/api/v1/keys", tag = "users", operation_id = "create_api_key", request_body = NewApiKey,
    responses((status = 201, description = "The key, which is shown only once", body = ApiKey)),
)]
pub(crate) async fn create(caller: Caller, Input { body, key }: Input<NewApiKey>) -> HttpResult<Response> {
    match caller.app.options.auth {
        Auth::Keys => {}
        // After a restart, all callers would need the key.
        Auth::Open(_) => {
            let detail =
                "this server needs no keys, and would need one after a restart; make the first key with `capstan keys create`";
            return Err(Error::conflict(detail).into());
        }
    }
    let (stored, key) = caller.app.service.create_api_key(&caller.principal, body, key).await?;
    let no_store = [(CACHE_CONTROL, HeaderValue::from_static("no-store"))];
    Ok((StatusCode::CREATED, no_store, Json(ApiKey::of(stored, Some(key)))).into_response())
}

/// Revokes a key
///
/// This process refuses the key at once, and others within 5 seconds. Open streams of the key end. The last key of a server cannot
/// be revoked.
#[utoipa::path(
    delete, path = "/api/v1/keys/{id}", tag = "users", operation_id = "revoke_api_key",
    params(("id" = KeyId, Path, description = "The id of the key")),
    responses(
        (status = 204, description = "The key is revoked"),
        (status = 409, description = "It is the last key, or also in the configuration"),
    ),
)]
pub(crate) async fn revoke(caller: Caller, Id(id): Id<KeyId>) -> HttpResult<StatusCode> {
    caller.app.service.revoke_api_key(&caller.principal, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}
