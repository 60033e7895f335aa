//! Who calls: bearer keys, or the one user of a loopback server.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::{FromRequestParts, Request, State};
use axum::http::header::{AUTHORIZATION, ORIGIN};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method};
use axum::middleware::Next;
use axum::response::Response;

use super::options::{App, Auth};
use super::problem::{Answer, Problem};
use super::request::request_host;
use crate::domain::ids::UserId;
use crate::domain::principal::Principal;
use crate::domain::problem::ProblemCode;

/// The principal of a request that passed [`require`].
pub(crate) struct Caller(pub Principal);

impl FromRequestParts<App> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _app: &App) -> Answer<Self> {
        // Absent only if a route was registered outside of the layer: then nobody gets in.
        parts.extensions.get::<Principal>().cloned().map(Self).ok_or_else(unauthorized)
    }
}

/// Lets a request through that says who it is from.
pub(crate) async fn require(State(app): State<App>, mut request: Request, next: Next) -> Answer<Response> {
    let principal = match &app.options.auth {
        Auth::Open(principal) => {
            let reads = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
            if !reads && !is_own_origin(&app, request.headers()) {
                return Err(Problem::new(ProblemCode::Forbidden, "requests from pages of another origin are refused"));
            }
            principal.clone()
        }
        Auth::Keys => {
            let key = bearer(request.headers()).ok_or_else(unauthorized)?;
            app.service.authenticate(key).await?.ok_or_else(unauthorized)?
        }
    };
    request.extensions_mut().insert(principal);
    Ok(next.run(request).await)
}

/// The answer to an unknown caller. It does not say whether a key was missing or wrong.
pub(crate) fn unauthorized() -> Problem {
    Problem::new(ProblemCode::Unauthorized, "send a valid key as Authorization: Bearer <key>")
}

/// The key of an Authorization header.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, key) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| key.trim()).filter(|key| !key.is_empty())
}

/// Whether a request comes from no web page, from a page of this server, or from one of an allowed origin.
pub(crate) fn is_own_origin(app: &App, headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(ORIGIN) else { return true };
    let Ok(origin) = origin.to_str() else { return false };
    if app.options.cors_origins.iter().any(|allowed| allowed.eq_ignore_ascii_case(origin)) {
        return true;
    }
    let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    authority.zip(request_host(headers)).is_some_and(|(authority, host)| authority.eq_ignore_ascii_case(host))
}

/// How many WebSockets each principal has open.
#[derive(Default)]
pub(crate) struct Sockets(Mutex<HashMap<UserId, usize>>);

/// One open WebSocket of a principal, for as long as it lives.
pub(crate) struct SocketSeat {
    sockets: Arc<Sockets>,
    user: UserId,
}

impl Sockets {
    /// A seat for one more socket, unless the principal has `most` already.
    pub(crate) fn seat(self: &Arc<Self>, user: &UserId, most: usize) -> Option<SocketSeat> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(user.clone()).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(SocketSeat { sockets: Arc::clone(self), user: user.clone() })
    }
}

impl Drop for SocketSeat {
    fn drop(&mut self) {
        let mut open = self.sockets.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.user) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.user);
            }
        }
    }
}
