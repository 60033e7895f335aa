//! Authentication: API keys, sessions of signed-in browsers, tickets, or the only user of a loopback server.

use axum::extract::{FromRequestParts, Request, State};
use axum::http::header::{AUTHORIZATION, COOKIE, HeaderName, ORIGIN};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, Uri};
use axum::middleware::Next;
use axum::response::Response;
use serde::Deserialize;

use crate::domain::access::principal::Principal;
use crate::domain::access::ticket::TicketTarget;
use crate::domain::problem::ProblemCode;
use crate::http::options::{App, Auth};
use crate::http::wire::extract::{ResponseFormat, query};
use crate::http::wire::problem::{HttpResult, Problem};
use crate::http::wire::request::request_host;
use crate::service::{Access, TicketOrigin, TicketOutcome};

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The principal of a request that passed [`require`].
pub(crate) struct Caller {
    pub app: App,
    pub principal: Principal,
}

impl FromRequestParts<App> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> HttpResult<Self> {
        let principal = Access::from_request_parts(parts, app).await?.principal().clone();
        Ok(Self { app: app.clone(), principal })
    }
}

impl FromRequestParts<App> for Access {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _app: &App) -> HttpResult<Self> {
        // The access is absent only if a route was registered without the authentication layer. Then the request is refused.
        parts.extensions.get::<Self>().cloned().ok_or_else(unauthorized)
    }
}

/// Refuses a request without a valid key.
pub(crate) async fn require(State(app): State<App>, request: Request, next: Next) -> HttpResult<Response> {
    let access = by_header(&app, request.method(), request.uri(), request.headers()).await?;
    serve(access, request, next).await
}

/// Refuses a request without a valid key or ticket, for the routes of event streams.
pub(crate) async fn require_or_ticket(State(app): State<App>, request: Request, next: Next) -> HttpResult<Response> {
    let access = match stream_ticket(&request)? {
        Some((ticket, target)) => {
            by_ticket(&app, &ticket, &target, request_origin(request.headers(), TicketOrigin::MissingFromStream)).await?
        }
        None => Some(by_header(&app, request.method(), request.uri(), request.headers()).await?),
    };
    serve(access.ok_or_else(unauthorized)?, request, next).await
}

/// Serves the request while the access is valid: a request can wait for a run longer than its key is valid.
async fn serve(access: Access, mut request: Request, next: Next) -> HttpResult<Response> {
    request.extensions_mut().insert(access.clone());
    tokio::select! {
        biased;
        response = next.run(request) => Ok(response),
        () = access.wait_until_over() => Err(unauthorized()),
    }
}

pub(crate) async fn by_header(app: &App, method: &Method, uri: &Uri, headers: &HeaderMap) -> HttpResult<Access> {
    let reads = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
    match &app.options.auth {
        Auth::Open(principal) => {
            if !reads && !is_own_origin(app, uri, headers) {
                return Err(Problem::new(ProblemCode::Forbidden, "requests from pages of another origin are refused"));
            }
            Ok(Access::without_key(principal.clone()))
        }
        Auth::Keys => {
            if let Some(key) = bearer(headers) {
                return app.service.authenticate(key).await?.ok_or_else(unauthorized);
            }
            let session = session(app, headers).ok_or_else(unauthorized)?;
            let access = app.service.session_access(&session).await?.ok_or_else(unauthorized)?;
            if !reads && !is_same_origin(uri, headers) {
                return Err(Problem::new(ProblemCode::Forbidden, "requests with a session come from pages of this server only"));
            }
            Ok(access)
        }
    }
}

/// Redeems a ticket; `None` if it is not valid for this target.
pub(crate) async fn by_ticket(
    app: &App,
    ticket: &str,
    target: &TicketTarget,
    from: TicketOrigin<'_>,
) -> HttpResult<Option<Access>> {
    let local = match &app.options.auth {
        Auth::Open(principal) => Some(principal),
        Auth::Keys => None,
    };
    match app.service.redeem_ticket(ticket, target, from, local).await? {
        TicketOutcome::Access(access) => Ok(Some(access)),
        TicketOutcome::ForeignOrigin => {
            Err(Problem::new(ProblemCode::Forbidden, "the ticket was created for a page of another origin"))
        }
        TicketOutcome::Refused => Ok(None),
    }
}

pub(crate) fn request_origin<'a>(headers: &'a HeaderMap, absent: TicketOrigin<'a>) -> TicketOrigin<'a> {
    // A header that is not text matches no ticket's origin.
    headers.get(ORIGIN).map_or(absent, |origin| TicketOrigin::Origin(origin.to_str().unwrap_or_default()))
}

#[derive(Deserialize)]
struct TicketParams {
    ticket: Option<String>,
}

pub(crate) fn ticket_in(uri: &Uri) -> HttpResult<Option<String>> {
    Ok(query::<TicketParams>(uri)?.ticket)
}

/// Returns the ticket of a stream request without a key, and the requested stream.
fn stream_ticket(request: &Request) -> HttpResult<Option<(String, TicketTarget)>> {
    if request.headers().contains_key(AUTHORIZATION) || ResponseFormat::of(request.headers())? == ResponseFormat::Json {
        return Ok(None);
    }
    let target = match request.uri().path().split('/').collect::<Vec<_>>()[..] {
        ["", "api", "v1", "runs", id, "events"] => id.parse().ok().map(TicketTarget::Run),
        ["", "api", "v1", "conversations", id, "events"] => id.parse().ok().map(TicketTarget::Conversation),
        _ => None,
    };
    // A path without a valid id is not a stream, and is refused like one without a ticket.
    Ok(ticket_in(request.uri())?.zip(target))
}

/// Returns the response to an unknown caller. It does not reveal whether a key was missing or wrong.
pub(crate) fn unauthorized() -> Problem {
    Problem::new(ProblemCode::Unauthorized, "send a valid key as Authorization: Bearer <key>, or a new ticket for a stream")
}

pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    bearer_key(headers.get(AUTHORIZATION)?.to_str().ok()?)
}

/// Returns the key in the value of an `Authorization` header.
pub(crate) fn bearer_key(authorization: &str) -> Option<&str> {
    let (scheme, key) = authorization.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| key.trim()).filter(|key| !key.is_empty())
}

/// Returns whether browsers reach the server over TLS.
pub(crate) fn is_secure(app: &App) -> bool {
    app.options.public_url.as_deref().is_some_and(|url| url.starts_with("https://"))
}

/// Returns the name of the cookie that holds the session of a signed-in browser. Browsers accept the prefixes over TLS only, and
/// `__Host-` from this host and for all its paths only.
pub(crate) fn session_cookie(app: &App) -> &'static str {
    match (is_secure(app), app.options.path_prefix().is_empty()) {
        (true, true) => "__Host-capstan_session",
        (true, false) => "__Secure-capstan_session",
        (false, _) => "capstan_session",
    }
}

pub(crate) fn session(app: &App, headers: &HeaderMap) -> Option<String> {
    cookie(headers, session_cookie(app)).filter(|secret| !secret.is_empty())
}

pub(crate) fn cookie(headers: &HeaderMap, cookie_name: &str) -> Option<String> {
    let all = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(';'));
    let mut named = all.filter_map(|pair| pair.trim().split_once('='));
    named.find(|(name, _)| *name == cookie_name).map(|(_, value)| value.to_owned())
}

/// Returns whether a request comes from a page of this server, or from no browser. Pages of allowed origins do not count.
pub(crate) fn is_same_origin(uri: &Uri, headers: &HeaderMap) -> bool {
    let site = headers.get(SEC_FETCH_SITE).map(HeaderValue::as_bytes);
    if site.is_some_and(|site| site != b"same-origin" && site != b"none") {
        return false;
    }
    let Some(origin) = headers.get(ORIGIN) else { return true };
    origin.to_str().is_ok_and(|origin| is_of_host(origin, uri, headers))
}

fn is_of_host(origin: &str, uri: &Uri, headers: &HeaderMap) -> bool {
    let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    authority.zip(request_host(uri, headers)).is_some_and(|(authority, host)| authority.eq_ignore_ascii_case(host))
}

/// Returns whether a request comes from no web page, a page of this server, or an allowed origin.
pub(crate) fn is_own_origin(app: &App, uri: &Uri, headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(ORIGIN) else { return true };
    let Ok(text) = origin.to_str() else { return false };
    app.options.cors_origins.iter().any(|allowed| allowed.eq_ignore_ascii_case(text)) || is_of_host(text, uri, headers)
}
