//! What an error of a request means: for the request, and for the connection that it was made on.

use rmcp::model::{ErrorCode, ErrorData};
use rmcp::service::ServiceError;
use rmcp::transport::streamable_http_client::StreamableHttpError;

use super::stdio;

/// What servers made after the official examples say of a session that they do not know, before they look at the request: the code and the
/// whole message. The library does not tell with which status it came.
const NO_SESSION: (ErrorCode, &str) = (ErrorCode(-32_000), "Bad Request: No valid session ID provided");
/// What servers made with the official libraries say of a session that they do not know, instead of the status 404.
const LOST_SESSIONS: [&str; 5] = [
    "No valid session ID provided",
    "Mcp-Session-Id header is required",
    "Missing session ID",
    "Invalid or expired session ID",
    "Session not found",
];

/// Whether a server says that it has not looked at the request because it does not know the session. A tool may quote others who say so:
/// only the very words count, and nothing beside them.
pub fn is_of_no_session(error: &ErrorData) -> bool {
    (error.code, error.message.as_ref()) == NO_SESSION && error.data.is_none()
}

/// Whether an error says that the session is gone, or that the server cannot be reached as it was. All else concerns one request
/// alone: a server that is asked too often or may not be asked for this has not forgotten the others.
pub fn asks_for_new_session(error: &ServiceError) -> bool {
    match error {
        ServiceError::McpError(error) => LOST_SESSIONS.iter().any(|words| error.message.contains(words)),
        ServiceError::TransportSend(transport) => match transport.error.downcast_ref::<StreamableHttpError<reqwest::Error>>() {
            Some(StreamableHttpError::Client(error)) => error.is_connect() || error.is_request(),
            Some(StreamableHttpError::SessionExpired | StreamableHttpError::AuthRequired(_)) => true,
            Some(StreamableHttpError::HttpStatus(failed)) => is_status_of_no_session(failed.status),
            Some(StreamableHttpError::UnexpectedServerResponse(said)) => {
                status_of(said).is_some_and(is_status_of_no_session) || LOST_SESSIONS.iter().any(|words| said.contains(words))
            }
            Some(_) | None => false,
        },
        _ => false,
    }
}

/// The protocol has 404 for a session that is gone. Some servers say 401 to whoever has none, and gateways say 503 when the server
/// that had it is gone.
fn is_status_of_no_session(status: u16) -> bool {
    matches!(status, 401 | 404 | 503)
}

/// What an error of the transport says about the request.
pub enum Fate {
    /// It cannot have been acted on.
    NeverArrived,
    /// The server, or what stands before it, has refused it or failed over it, and said so.
    Refused,
    /// It may have been acted on.
    Unknown,
}

impl Fate {
    /// That of a request over which this happened.
    pub fn of(error: &(dyn std::error::Error + Send + Sync + 'static)) -> Self {
        // A server that reads its input to the end may act on a message of which only the line end is missing.
        if let Some(error) = error.downcast_ref::<std::io::Error>() {
            return if stdio::is_cut_short(error) { Self::Unknown } else { Self::NeverArrived };
        }
        match error.downcast_ref::<StreamableHttpError<reqwest::Error>>() {
            Some(StreamableHttpError::Client(error)) if error.is_connect() => Self::NeverArrived,
            Some(StreamableHttpError::SessionExpired | StreamableHttpError::ReservedHeaderConflict(_)) => Self::NeverArrived,
            Some(StreamableHttpError::AuthRequired(_)) => Self::NeverArrived,
            // A 403 with any challenge: whoever knows what may be done with which scope has looked at what is asked.
            Some(StreamableHttpError::InsufficientScope(_)) => Self::Refused,
            Some(StreamableHttpError::HttpStatus(failed)) => Self::by_status(failed.status),
            Some(StreamableHttpError::UnexpectedServerResponse(said)) => status_of(said).map_or(Self::Unknown, Self::by_status),
            Some(_) | None => Self::Unknown,
        }
    }

    fn by_status(status: u16) -> Self {
        match status {
            // Who asks is looked at before what is asked. All else a handler may have passed on from somebody whom it asked itself.
            401 => Self::NeverArrived,
            status if is_of_gateway(status) => Self::Unknown,
            _ => Self::Refused,
        }
    }
}

/// Whether nobody knows what became of the request: a gateway does not know how far the server behind it has got, and a server that is
/// overrun may stop anywhere.
pub fn is_of_gateway(status: u16) -> bool {
    matches!(status, 502..=504)
}

/// The status in the words that the library has for an answer that it did not expect.
pub fn status_of(said: &str) -> Option<u16> {
    said.strip_prefix("HTTP ")?.split(' ').next()?.parse().ok()
}
