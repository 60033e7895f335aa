//! Classifies errors of requests: the effect of the request, and the state of its connection.

use rmcp::model::{ErrorCode, ErrorData};
use rmcp::service::ServiceError;
use rmcp::transport::streamable_http_client::StreamableHttpError;

use crate::tools::mcp::transport::stdio;

/// The error for an unknown session from servers that follow the official examples. They report it before they read the request.
/// The MCP library hides the HTTP status of this error.
const NO_SESSION: (ErrorCode, &str) = (ErrorCode(-32_000), "Bad Request: No valid session ID provided");
/// Errors for an unknown session from servers with the official libraries, instead of the status 404.
const LOST_SESSIONS: [&str; 5] = [
    "No valid session ID provided",
    "Mcp-Session-Id header is required",
    "Missing session ID",
    "Invalid or expired session ID",
    "Session not found",
];

/// Returns whether a server reports an unknown session before it reads a request. The error must match exactly, because a tool may quote
/// such an error of another server.
pub fn is_unknown_session(error: &ErrorData) -> bool {
    (error.code, error.message.as_ref()) == NO_SESSION && error.data.is_none()
}

/// Returns whether an error means that the session is lost or the server unreachable. Other errors, such as a rate limit, concern one
/// request only.
pub fn asks_for_new_session(error: &ServiceError) -> bool {
    match error {
        ServiceError::McpError(error) => LOST_SESSIONS.iter().any(|words| error.message.contains(words)),
        ServiceError::TransportSend(transport) => match transport.error.downcast_ref::<StreamableHttpError<reqwest::Error>>() {
            Some(StreamableHttpError::Client(error)) => error.is_connect() || error.is_request(),
            Some(StreamableHttpError::SessionExpired | StreamableHttpError::AuthRequired(_)) => true,
            Some(StreamableHttpError::HttpStatus(failed)) => is_session_status(failed.status),
            Some(StreamableHttpError::UnexpectedServerResponse(message)) => {
                status_of(message).is_some_and(is_session_status) || LOST_SESSIONS.iter().any(|words| message.contains(words))
            }
            Some(_) | None => false,
        },
        _ => false,
    }
}

/// The protocol uses 404 for a lost session. Some servers answer 401 without a session, and gateways answer 503 when their server
/// has ended.
fn is_session_status(status: u16) -> bool {
    matches!(status, 401 | 404 | 503)
}

/// The effect of a request that ended with a transport error.
pub enum RequestEffect {
    /// The server cannot have acted on the request.
    NotProcessed,
    /// The server or a gateway has refused the request, or reported its own failure.
    Refused,
    /// The server may have acted on the request.
    Unknown,
}

impl RequestEffect {
    pub fn of(error: &(dyn std::error::Error + Send + Sync + 'static)) -> Self {
        // A server may act on a message that lacks only its line end.
        if let Some(error) = error.downcast_ref::<std::io::Error>() {
            return if stdio::is_cut_short(error) { Self::Unknown } else { Self::NotProcessed };
        }
        match error.downcast_ref::<StreamableHttpError<reqwest::Error>>() {
            Some(StreamableHttpError::Client(error)) if error.is_connect() || error.is_redirect() => Self::NotProcessed,
            Some(
                StreamableHttpError::SessionExpired
                | StreamableHttpError::ReservedHeaderConflict(_)
                | StreamableHttpError::AuthRequired(_),
            ) => Self::NotProcessed,
            // A server that sends a 403 with a challenge has read the request to check its scopes.
            Some(StreamableHttpError::InsufficientScope(_)) => Self::Refused,
            Some(StreamableHttpError::HttpStatus(failed)) => Self::by_status(failed.status),
            Some(StreamableHttpError::UnexpectedServerResponse(message)) => {
                status_of(message).map_or(Self::Unknown, Self::by_status)
            }
            Some(_) | None => Self::Unknown,
        }
    }

    fn by_status(status: u16) -> Self {
        match status {
            // Servers authenticate before they read a request. A handler may pass on any other status from a server that it calls.
            401 => Self::NotProcessed,
            status if is_gateway_status(status) => Self::Unknown,
            _ => Self::Refused,
        }
    }
}

/// Returns whether a status leaves the effect unknown: a gateway does not know how far its server processed the request.
pub fn is_gateway_status(status: u16) -> bool {
    matches!(status, 502..=504)
}

/// Parses the status in the library's text for an unexpected answer.
pub fn status_of(message: &str) -> Option<u16> {
    message.strip_prefix("HTTP ")?.split(' ').next()?.parse().ok()
}
