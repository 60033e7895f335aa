//! Authentication: bearer keys, tickets for requests of browsers, or the one user of a loopback server.

use axum::extract::{FromRequestParts, Request, State};
use axum::http::header::{AUTHORIZATION, ORIGIN};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, Uri};
use axum::middleware::Next;
use axum::response::Response;
use serde::Deserialize;

use crate::domain::access::principal::Principal;
use crate::domain::access::ticket::TicketTarget;
use crate::domain::problem::ProblemCode;
use crate::http::options::{App, Auth};
use crate::http::wire::extract::{Wants, query};
use crate::http::wire::problem::{Answer, Problem};
use crate::http::wire::request::request_host;
use crate::service::{Access, Redeemed, TicketOrigin};

/// The principal of a request that passed [`require`].
pub(crate) struct Caller {
    pub app: App,
    pub principal: Principal,
}

impl FromRequestParts<App> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Answer<Self> {
        let principal = Access::from_request_parts(parts, app).await?.principal().clone();
        Ok(Self { app: app.clone(), principal })
    }
}

impl FromRequestParts<App> for Access {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _app: &App) -> Answer<Self> {
        // Absent only if a route was registered outside of the layer: then the request is refused.
        parts.extensions.get::<Self>().cloned().ok_or_else(unauthorized)
    }
}

/// Refuses a request without a valid key.
pub(crate) async fn require(State(app): State<App>, request: Request, next: Next) -> Answer<Response> {
    let access = by_header(&app, request.method(), request.uri(), request.headers()).await?;
    serve(access, request, next).await
}

/// Does the same for the routes of event streams, which a ticket in the URL opens, too.
pub(crate) async fn require_or_ticket(State(app): State<App>, request: Request, next: Next) -> Answer<Response> {
    let access = match stream_ticket(&request)? {
        Some((ticket, target)) => by_ticket(&app, &ticket, &target, shown_from(request.headers(), TicketOrigin::Unsaid)).await?,
        None => Some(by_header(&app, request.method(), request.uri(), request.headers()).await?),
    };
    serve(access.ok_or_else(unauthorized)?, request, next).await
}

/// Answers as long as the access is valid: a request can wait for a run longer than its key lives.
async fn serve(access: Access, mut request: Request, next: Next) -> Answer<Response> {
    request.extensions_mut().insert(access.clone());
    tokio::select! {
        biased;
        response = next.run(request) => Ok(response),
        () = access.over() => Err(unauthorized()),
    }
}

pub(crate) async fn by_header(app: &App, method: &Method, uri: &Uri, headers: &HeaderMap) -> Answer<Access> {
    match &app.options.auth {
        Auth::Open(principal) => {
            let reads = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
            if !reads && !is_own_origin(app, uri, headers) {
                return Err(Problem::new(ProblemCode::Forbidden, "requests from pages of another origin are refused"));
            }
            Ok(Access::without_key(principal.clone()))
        }
        Auth::Keys => {
            let key = bearer(headers).ok_or_else(unauthorized)?;
            app.service.authenticate(key).await?.ok_or_else(unauthorized)
        }
    }
}

/// Redeems a ticket; `None` if it is not valid for this target.
pub(crate) async fn by_ticket(app: &App, ticket: &str, target: &TicketTarget, from: TicketOrigin<'_>) -> Answer<Option<Access>> {
    let local = match &app.options.auth {
        Auth::Open(principal) => Some(principal),
        Auth::Keys => None,
    };
    match app.service.redeem_ticket(ticket, target, from, local).await? {
        Redeemed::Access(access) => Ok(Some(access)),
        Redeemed::ForeignOrigin => Err(Problem::new(ProblemCode::Forbidden, "the ticket was made for a page of another origin")),
        Redeemed::Refused => Ok(None),
    }
}

/// Returns the Origin header, or what its absence means.
pub(crate) fn shown_from<'a>(headers: &'a HeaderMap, absent: TicketOrigin<'a>) -> TicketOrigin<'a> {
    // A header that is no text is no origin of any ticket.
    headers.get(ORIGIN).map_or(absent, |origin| TicketOrigin::Origin(origin.to_str().unwrap_or_default()))
}

#[derive(Deserialize)]
struct TicketParams {
    ticket: Option<String>,
}

pub(crate) fn ticket_in(uri: &Uri) -> Answer<Option<String>> {
    Ok(query::<TicketParams>(uri)?.ticket)
}

/// Returns the ticket of a request for an event stream that has no key, and the stream that it asks for.
fn stream_ticket(request: &Request) -> Answer<Option<(String, TicketTarget)>> {
    if request.headers().contains_key(AUTHORIZATION) || Wants::of(request.headers())? == Wants::Json {
        return Ok(None);
    }
    let target = match request.uri().path().split('/').collect::<Vec<_>>()[..] {
        ["", "api", "v1", "runs", id, "events"] => id.parse().ok().map(TicketTarget::Run),
        ["", "api", "v1", "conversations", id, "events"] => id.parse().ok().map(TicketTarget::Conversation),
        _ => None,
    };
    // A path without a valid id is no stream, and is refused like one without a ticket.
    Ok(ticket_in(request.uri())?.zip(target))
}

/// The answer to an unknown caller. It does not say whether a key was missing or wrong.
pub(crate) fn unauthorized() -> Problem {
    Problem::new(ProblemCode::Unauthorized, "send a valid key as Authorization: Bearer <key>, or a new ticket for a stream")
}

pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, key) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| key.trim()).filter(|key| !key.is_empty())
}

/// Returns whether a request comes from no web page, from a page of this server, or from an allowed origin.
pub(crate) fn is_own_origin(app: &App, uri: &Uri, headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(ORIGIN) else { return true };
    let Ok(origin) = origin.to_str() else { return false };
    if app.options.cors_origins.iter().any(|allowed| allowed.eq_ignore_ascii_case(origin)) {
        return true;
    }
    let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    authority.zip(request_host(uri, headers)).is_some_and(|(authority, host)| authority.eq_ignore_ascii_case(host))
}
