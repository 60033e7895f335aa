//! `/api/v1/session`: signs a browser in with a key. The browser then holds a session in a cookie that scripts cannot read.

use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, SET_COOKIE};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use utoipa::ToSchema;

use crate::domain::problem::ProblemCode;
use crate::http::options::{App, Auth};
use crate::http::wire::auth::{self, is_same_origin};
use crate::http::wire::extract::Input;
use crate::http::wire::problem::{HttpResult, Problem};
use crate::service::SESSION_SECONDS;

/// The key to sign in with.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SessionBody {
    /// The key.
    #[schema(value_type = String)]
    key: SecretString,
}

/// Signs a browser in
///
/// Sets a cookie that only this server receives and that scripts cannot read. It is valid for 30 days, but only while its key is
/// valid. Requests with the cookie that change anything must come from a page of this server. Each request signs in, regardless of
/// its `Idempotency-Key`.
#[utoipa::path(
    post, path = "/api/v1/session", tag = "users", operation_id = "sign_in", request_body = SessionBody,
    responses((status = 204, description = "The browser is signed in", headers(("Set-Cookie" = String)))),
)]
pub(crate) async fn begin(
    State(app): State<App>,
    uri: Uri,
    headers: HeaderMap,
    Input { body, .. }: Input<SessionBody>,
) -> HttpResult<Response> {
    refuse_foreign(&uri, &headers)?;
    match &app.options.auth {
        Auth::Open(_) => Ok(StatusCode::NO_CONTENT.into_response()),
        Auth::Keys => {
            let session = app.service.begin_session(body.key.expose_secret()).await?.ok_or_else(auth::unauthorized)?;
            Ok(with_cookie(&app, &session, SESSION_SECONDS))
        }
    }
}

/// Signs a browser out
#[utoipa::path(
    delete, path = "/api/v1/session", tag = "users", operation_id = "sign_out",
    responses((status = 204, description = "The cookie is removed", headers(("Set-Cookie" = String)))),
)]
pub(crate) async fn end(State(app): State<App>, uri: Uri, headers: HeaderMap) -> HttpResult<Response> {
    refuse_foreign(&uri, &headers)?;
    if let Some(session) = auth::session(&app, &headers) {
        app.service.end_session(&session).await?;
    }
    Ok(with_cookie(&app, "", 0))
}

/// Refuses pages of other origins: they could sign a user in as another one.
fn refuse_foreign(uri: &Uri, headers: &HeaderMap) -> HttpResult<()> {
    if is_same_origin(uri, headers) {
        return Ok(());
    }
    Err(Problem::new(ProblemCode::Forbidden, "only pages of this server sign in and out"))
}

fn with_cookie(app: &App, value: &str, age: u32) -> Response {
    let secure = if auth::is_secure(app) { "; Secure" } else { "" };
    let (name, path) = (auth::session_cookie(app), app.options.path_prefix());
    let path = if path.is_empty() { "/" } else { path };
    let cookie = format!("{name}={value}; Path={path}; Max-Age={age}; HttpOnly; SameSite=Strict{secure}");
    let mut answer = StatusCode::NO_CONTENT.into_response();
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        answer.headers_mut().insert(SET_COOKIE, cookie);
    }
    answer
}
