//! The handshake of a WebSocket: its identity and its origin.

use axum::extract::State;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::http::header::SEC_WEBSOCKET_PROTOCOL;
use axum::http::{HeaderMap, Uri};
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tracing::{Instrument as _, Span};

use super::identity::{self, Identity};
use super::session;
use crate::domain::access::ticket::TicketTarget;
use crate::domain::problem::ProblemCode;
use crate::http::options::{App, Auth};
use crate::http::wire::auth::{self, bearer, by_ticket, is_own_origin, shown_from, ticket_in};
use crate::http::wire::problem::{Answer, Problem};
use crate::http::wire::request::Trace;
use crate::service::{Access, TicketOrigin};

/// The subprotocol that the server offers.
const PROTOCOL: &str = "capstan.v1";
/// A subprotocol that carries a key, for browsers, which cannot set headers here.
const BEARER: &str = "bearer.";
/// Read and write buffers: a thousand idle sockets must not cost a thousand large ones.
const BUFFER_BYTES: usize = 4 * 1024;

/// Opens a WebSocket
///
/// The subprotocol is `capstan.v1`. Send `{"id":1,"method":"subscribe","params":{"run_id":"...","after":0}}`. The server answers
/// with the same id and then pushes event envelopes. The methods are `subscribe`, `unsubscribe`, `run.start`, `run.cancel`,
/// `approval.resolve`, `input.resolve`, `ping` and `auth`. A client sends its key in the `Authorization` header, in a subprotocol
/// `bearer.<base64url>`, or in a first frame with method `auth`. A ticket goes into the URL.
#[utoipa::path(
    get, path = "/api/v1/ws", tag = "streams", operation_id = "websocket",
    params(("ticket" = Option<String>, Query, description = "A ticket for a WebSocket, instead of a key")),
    responses((status = 101, description = "The WebSocket is open")),
)]
pub(crate) async fn connect(
    State(app): State<App>,
    Trace(trace): Trace,
    uri: Uri,
    headers: HeaderMap,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Answer<Response> {
    let identity = identify(&app, &uri, &headers).await?;
    let Ok(upgrade) = upgrade else {
        return Err(match identity {
            Identity::Known(_) => Problem::new(ProblemCode::InvalidRequest, "open this path as a WebSocket"),
            Identity::Refused | Identity::Unsaid => auth::unauthorized(),
        });
    };
    // A little above the limit, so that a message that is just too large is refused with its own close code.
    let most = session::MAX_MESSAGE_BYTES + BUFFER_BYTES;
    let upgrade = upgrade
        .protocols([PROTOCOL])
        .max_message_size(most)
        .max_frame_size(most)
        .read_buffer_size(BUFFER_BYTES)
        .write_buffer_size(BUFFER_BYTES);
    let connections = app.options.connections.clone();
    // The socket outlives the request; its log lines belong to it all the same.
    let span = Span::current();
    Ok(upgrade.on_upgrade(move |socket| connections.track_future(session::run(app, socket, identity, trace).instrument(span))))
}

async fn identify(app: &App, uri: &Uri, headers: &HeaderMap) -> Answer<Identity> {
    let ticket = ticket_in(uri)?;
    let key = match bearer(headers) {
        Some(key) => Some(key.to_owned()),
        None => key_in_subprotocol(headers),
    };
    // A server without keys accepts any key, so only the origin keeps foreign pages out.
    let local = match &app.options.auth {
        Auth::Open(_) if !is_own_origin(app, uri, headers) => {
            return Err(Problem::new(ProblemCode::Forbidden, "pages of another origin are refused"));
        }
        Auth::Open(principal) => Some(principal),
        Auth::Keys => None,
    };
    match (key, ticket, local) {
        (Some(key), _, _) => identity::check(app, &key).await,
        (None, Some(ticket), _) => {
            let from = shown_from(headers, TicketOrigin::Nowhere);
            Ok(by_ticket(app, &ticket, &TicketTarget::Socket, from).await?.map_or(Identity::Refused, Identity::Known))
        }
        (None, None, Some(principal)) => Ok(Identity::Known(Access::without_key(principal.clone()))),
        // Any page may connect: its first frame must hold a key, which browsers never add on their own.
        (None, None, None) => Ok(Identity::Unsaid),
    }
}

fn key_in_subprotocol(headers: &HeaderMap) -> Option<String> {
    let offered = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
    let encoded = offered.flat_map(|value| value.split(',')).find_map(|protocol| protocol.trim().strip_prefix(BEARER))?;
    // A text that is no base64url is a wrong key, not a missing one.
    Some(URL_SAFE_NO_PAD.decode(encoded).ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_else(|| "?".to_owned()))
}
