//! The handshake of a WebSocket: authentication and origin check.

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
use super::native::NativeProtocol;
use super::socket::{self, SocketProtocol};
use crate::domain::access::ticket::TicketTarget;
use crate::domain::problem::ProblemCode;
use crate::http::options::{App, Auth};
use crate::http::wire::auth::{self, bearer, by_ticket, is_own_origin, is_same_origin, request_origin, ticket_in};
use crate::http::wire::problem::{HttpResult, Problem};
use crate::http::wire::request::Trace;
use crate::service::{Access, TicketOrigin};

const PROTOCOL: &str = "capstan.v1";
/// A subprotocol that contains a key, for browsers, which cannot set headers of a WebSocket.
const BEARER: &str = "bearer.";
/// Size of the read and write buffers. A thousand idle sockets must not need a thousand large buffers.
const BUFFER_BYTES: usize = 4 * 1024;

/// Opens a WebSocket
///
/// The subprotocol is `capstan.v1`. Send `{"id":1,"method":"subscribe","params":{"run_id":"...","after":0}}`. The server answers
/// with the same id and then pushes event envelopes. The methods are `subscribe`, `unsubscribe`, `run.start`, `run.cancel`,
/// `approval.resolve`, `input.resolve`, `tool.results`, `ping` and `auth`. The parameters `{"scope":"owner"}` subscribe to changes
/// of the caller's list of conversations (`OwnerEvent`). A client sends its key in the `Authorization` header, in a subprotocol
/// `bearer.<base64url>`, or in a first frame with method `auth`. A ticket goes into the URL. A page of this server needs none of
/// them while its browser is signed in.
#[utoipa::path(
    get, path = "/api/v1/ws", tag = "streams", operation_id = "websocket",
    params(("ticket" = Option<String>, Query, description = "A ticket for a WebSocket, instead of a key")),
    responses((status = 101, description = "The WebSocket is open")),
)]
pub(crate) async fn connect(handshake: Handshake) -> HttpResult<Response> {
    open::<NativeProtocol>(handshake).await
}

/// A request that opens a WebSocket, as the handler of its route receives it.
pub(in crate::http) type Handshake = (State<App>, Trace, Uri, HeaderMap, Result<WebSocketUpgrade, WebSocketUpgradeRejection>);

/// Opens a WebSocket with the frames of a protocol. This is the handler of its route.
pub(in crate::http) async fn open<P: SocketProtocol>(handshake: Handshake) -> HttpResult<Response> {
    let (State(app), Trace(trace), uri, headers, upgrade) = handshake;
    let identity = identify(&app, &uri, &headers).await?;
    let upgrade = match (&identity, upgrade) {
        (Identity::Known(_), Err(_)) => return Err(Problem::new(ProblemCode::InvalidRequest, "open this path as a WebSocket")),
        (Identity::Refused | Identity::NoKey, Err(_)) => return Err(auth::unauthorized()),
        (Identity::Refused | Identity::NoKey, Ok(_)) if P::FIRST_FRAME_KEY.is_none() => return Err(auth::unauthorized()),
        (Identity::Known(_) | Identity::Refused | Identity::NoKey, Ok(upgrade)) => upgrade,
    };
    // A little above the limit, so that a slightly too large message is refused with its own close code.
    let most = P::MAX_MESSAGE_BYTES + BUFFER_BYTES;
    let upgrade = upgrade
        .protocols([PROTOCOL])
        .max_message_size(most)
        .max_frame_size(most)
        .read_buffer_size(BUFFER_BYTES)
        .write_buffer_size(BUFFER_BYTES);
    let connections = app.options.connections.clone();
    // The socket outlives the request, and its log lines belong to the same request.
    let span = Span::current();
    Ok(upgrade.on_upgrade(move |socket| connections.track_future(socket::run::<P>(app, socket, identity, trace).instrument(span))))
}

async fn identify(app: &App, uri: &Uri, headers: &HeaderMap) -> HttpResult<Identity> {
    let ticket = ticket_in(uri)?;
    let key = match bearer(headers) {
        Some(key) => Some(key.to_owned()),
        None => key_in_subprotocol(headers),
    };
    // A server without keys accepts any key, so only the origin check refuses foreign pages.
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
            let from = request_origin(headers, TicketOrigin::MissingFromSocket);
            Ok(by_ticket(app, &ticket, &TicketTarget::Socket, from).await?.map_or(Identity::Refused, Identity::Known))
        }
        (None, None, Some(principal)) => Ok(Identity::Known(Access::without_key(principal.clone()))),
        // Browsers also send the session cookie with requests from pages of other origins.
        (None, None, None) => match auth::session(app, headers).filter(|_| is_same_origin(uri, headers)) {
            Some(session) => Ok(app.service.session_access(&session).await?.map_or(Identity::Refused, Identity::Known)),
            // Any page may connect: its first frame must contain a key, which browsers never add by themselves.
            None => Ok(Identity::NoKey),
        },
    }
}

fn key_in_subprotocol(headers: &HeaderMap) -> Option<String> {
    let offered = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
    let encoded = offered.flat_map(|value| value.split(',')).find_map(|protocol| protocol.trim().strip_prefix(BEARER))?;
    // Text that is not base64url counts as a wrong key, not as a missing one.
    Some(URL_SAFE_NO_PAD.decode(encoded).ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_else(|| "?".to_owned()))
}
