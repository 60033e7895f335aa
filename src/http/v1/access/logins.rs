//! `/api/v1/providers/openrouter`: logins that create a provider, and the common part of all logins.

use axum::Json;
use axum::extract::{FromRequestParts, State};
use axum::http::header::{ACCEPT, AUTHORIZATION, CACHE_CONTROL, REFERRER_POLICY, SET_COOKIE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, Uri};
use axum::response::{Html, IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::domain::access::principal::{Principal, UserRole};
use crate::http::options::{App, Auth};
use crate::http::v1::providers::Provider;
use crate::http::wire::auth;
use crate::http::wire::extract::{OptionalInput, Params};
use crate::http::wire::problem::{HttpResult, Problem};
use crate::http::wire::request::{host_name, request_host};
use crate::http::wire::types::EmptyBody;
use crate::service::{Access, Error, LoginParty, StartedLogin};

const CALLBACK: &str = "/api/v1/providers/openrouter/callback";

/// The cookie that binds a login to the browser that began it.
const LOGIN_COOKIE: &str = "capstan_login";

/// A login that has started.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LoginBody {
    /// The URL to open in a browser, at which the user agrees to the login.
    pub(in crate::http) url: String,
    /// The lifetime of the login in seconds.
    pub(in crate::http) expires_in: u32,
}

/// Begins a login at OpenRouter
///
/// Open `url` in a browser within 10 minutes. After the user agrees, the browser returns to the callback, which creates the
/// provider `openrouter`. The same browser must finish the login: it holds a cookie. A caller with a key of the same user may
/// finish it instead. A new login replaces an earlier one. Each request begins a login, regardless of its `Idempotency-Key`.
#[utoipa::path(
    post, path = "/api/v1/providers/openrouter/login", tag = "providers", operation_id = "begin_openrouter_login",
    responses((status = 200, description = "The URL at which the user agrees", body = LoginBody, headers(("Set-Cookie" = String)))),
)]
pub(crate) async fn begin(
    State(app): State<App>,
    access: Access,
    uri: Uri,
    headers: HeaderMap,
    _: OptionalInput<EmptyBody>,
) -> HttpResult<Response> {
    let site = site_by_name(&app, &uri, &headers)?;
    let login = app.service.begin_login(&access, &format!("{site}{CALLBACK}")).await?;
    Ok(login_response(login, &site, LOGIN_COOKIE, CALLBACK))
}

/// Responds with a login that has begun, and binds it to the browser with a cookie.
pub(in crate::http) fn login_response(login: StartedLogin, site: &str, cookie: &str, callback: &str) -> Response {
    let secure = if site.starts_with("https://") { "; Secure" } else { "" };
    let age = login.lifetime_seconds;
    // `SameSite=Lax`, because the callback request comes from another site.
    let cookie = format!("{cookie}={}; Path={callback}; Max-Age={age}; HttpOnly; SameSite=Lax{secure}", login.browser);
    answer(Json(LoginBody { url: login.url, expires_in: age }), &cookie)
}

/// Responds with the outcome of a login: a page with the text `done` for a browser, or `body` for a program.
pub(in crate::http) fn login_page_response(
    headers: &HeaderMap,
    done: &str,
    body: impl Serialize,
    cookie: &str,
    callback: &str,
) -> Response {
    let cookie = format!("{cookie}=; Path={callback}; Max-Age=0; HttpOnly; SameSite=Lax");
    let is_page = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).is_some_and(|accept| accept.contains("text/html"));
    if is_page {
        let page = format!("<!doctype html><title>Capstan</title><p>{done} You may close this window.");
        return answer(Html(page), &cookie);
    }
    answer(Json(body), &cookie)
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct CallbackParams {
    /// The code that the server exchanges for a key.
    code: Option<String>,
    /// The state of the login, which identifies it.
    state: Option<String>,
}

/// Returns the party that returns from a login: the caller with a key, or else the owner of the browser's cookie.
pub(in crate::http) fn returning_party<'a>(caller: Option<&'a Principal>, browser: Option<&'a str>) -> HttpResult<LoginParty<'a>> {
    caller.map(LoginParty::Caller).or(browser.map(LoginParty::Browser)).ok_or_else(auth::unauthorized)
}

/// Finishes a login at OpenRouter
///
/// OpenRouter redirects the browser to this URL. A login can be finished once.
#[utoipa::path(
    get, path = "/api/v1/providers/openrouter/callback", tag = "providers", operation_id = "finish_openrouter_login",
    params(CallbackParams),
    responses((status = 200, description = "The provider, or an HTML page for people",
        content((Provider = "application/json"), (String = "text/html")))),
)]
pub(crate) async fn finish(Params(params): Params<CallbackParams>, back: LoginReturn) -> HttpResult<Response> {
    let LoginReturn { app, headers, caller } = back;
    let browser = auth::cookie(&headers, LOGIN_COOKIE);
    let party = returning_party(caller.as_ref(), browser.as_deref())?;
    let (Some(code), Some(state)) = (params.code, params.state) else {
        return Err(
            Error::invalid("the query needs code and state: the login was refused, or this request is not a callback").into()
        );
    };
    let record = app.service.finish_login(party, &state, &code).await?;
    let viewer = caller.or_else(|| Some(Principal { user_id: record.owner.clone()?, role: UserRole::Member }));
    let viewer = viewer.ok_or(Error::NotFound("provider"))?;
    Ok(login_page_response(&headers, "OpenRouter is connected.", Provider::of(record, &viewer), LOGIN_COOKIE, CALLBACK))
}

/// The callback request of a login. `caller` is present if the request has a key, or if the server needs none.
pub(crate) struct LoginReturn {
    pub(in crate::http) app: App,
    pub(in crate::http) headers: HeaderMap,
    pub(in crate::http) caller: Option<Principal>,
}

impl FromRequestParts<App> for LoginReturn {
    type Rejection = Problem;

    async fn from_request_parts(Parts { uri, headers, .. }: &mut Parts, app: &App) -> HttpResult<Self> {
        let caller = match app.options.auth {
            Auth::Keys if !headers.contains_key(AUTHORIZATION) => None,
            Auth::Keys | Auth::Open(_) => Some(auth::by_header(app, &Method::GET, uri, headers).await?.principal().clone()),
        };
        Ok(Self { app: app.clone(), headers: headers.clone(), caller })
    }
}

/// Responds without caching and without a referrer for linked pages, because the URL contains the code.
fn answer(body: impl IntoResponse, cookie: &str) -> Response {
    let mut answer = body.into_response();
    let headers = answer.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    if let Ok(cookie) = HeaderValue::from_str(cookie) {
        headers.insert(SET_COOKIE, cookie);
    }
    answer
}

/// Returns the URL of this server for browsers: the configured one, or from the host of the request.
pub(in crate::http) fn site(app: &App, uri: &Uri, headers: &HeaderMap) -> HttpResult<String> {
    if let Some(url) = &app.options.public_url {
        return Ok(url.trim_end_matches('/').to_owned());
    }
    let host = request_host(uri, headers).filter(|host| !host.is_empty());
    let host = host
        .ok_or_else(|| Error::invalid("the request has no Host header, so the callback URL is unknown; set server.public_url"))?;
    Ok(format!("http://{host}"))
}

/// Returns the URL of this server for OpenRouter, which accepts a loopback address only as `localhost`.
fn site_by_name(app: &App, uri: &Uri, headers: &HeaderMap) -> HttpResult<String> {
    let site = site(app, uri, headers)?;
    let Some(host) = site.strip_prefix("http://").filter(|_| app.options.public_url.is_none()) else { return Ok(site) };
    let is_loopback = host_name(host).parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    let port = host.rsplit(']').next().and_then(|rest| rest.rsplit_once(':')).map_or("", |(_, port)| port);
    match (is_loopback, port) {
        (true, "") => Ok("http://localhost".to_owned()),
        (true, port) => Ok(format!("http://localhost:{port}")),
        (false, _) => Ok(site),
    }
}
