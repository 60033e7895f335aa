//! Classifies errors of requests: what they mean for the request, and for its connection.

use rmcp::model::{ErrorCode, ErrorData};
use rmcp::service::ServiceError;
use rmcp::transport::streamable_http_client::StreamableHttpError;

use crate::tools::mcp::transport::stdio;

/// The error of servers after the official examples for an unknown session, before they read the request. The library hides its HTTP
/// status.
const NO_SESSION: (ErrorCode, &str) = (ErrorCode(-32_000), "Bad Request: No valid session ID provided");
/// Errors of servers made with the official libraries for an unknown session, instead of the status 404.
const LOST_SESSIONS: [&str; 5] = [
    "No valid session ID provided",
    "Mcp-Session-Id header is required",
    "Missing session ID",
    "Invalid or expired session ID",
    "Session not found",
];

/// Whether a server says that it has not read the request because the session is unknown. The error must be exactly this one, because
/// a tool may quote such an error of another server.
pub fn is_of_no_session(error: &ErrorData) -> bool {
    (error.code, error.message.as_ref()) == NO_SESSION && error.data.is_none()
}

/// Whether an error says that the session is lost or that the server cannot be reached. Other errors, such as a rate limit, concern
/// one request only.
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

/// The protocol has 404 for a lost session. Some servers answer 401 without a session, and gateways 503 when its server is gone.
fn is_status_of_no_session(status: u16) -> bool {
    matches!(status, 401 | 404 | 503)
}

/// The effect of a request that ended with a transport error.
pub enum Fate {
    /// The server cannot have acted on it.
    NeverArrived,
    /// The server or a gateway has refused it, or failed and said so.
    Refused,
    /// The server may have acted on it.
    Unknown,
}

impl Fate {
    pub fn of(error: &(dyn std::error::Error + Send + Sync + 'static)) -> Self {
        // A server may act on a message of which only the end of the line is missing.
        if let Some(error) = error.downcast_ref::<std::io::Error>() {
            return if stdio::is_cut_short(error) { Self::Unknown } else { Self::NeverArrived };
        }
        match error.downcast_ref::<StreamableHttpError<reqwest::Error>>() {
            Some(StreamableHttpError::Client(error)) if error.is_connect() => Self::NeverArrived,
            Some(
                StreamableHttpError::SessionExpired
                | StreamableHttpError::ReservedHeaderConflict(_)
                | StreamableHttpError::AuthRequired(_),
            ) => Self::NeverArrived,
            // A 403 with a challenge: a server that checks scopes has read the request.
            Some(StreamableHttpError::InsufficientScope(_)) => Self::Refused,
            Some(StreamableHttpError::HttpStatus(failed)) => Self::by_status(failed.status),
            Some(StreamableHttpError::UnexpectedServerResponse(said)) => status_of(said).map_or(Self::Unknown, Self::by_status),
            Some(_) | None => Self::Unknown,
        }
    }

    fn by_status(status: u16) -> Self {
        match status {
            // Authentication comes before the request. A handler may pass on any other status from a server that it calls itself.
            401 => Self::NeverArrived,
            status if is_of_gateway(status) => Self::Unknown,
            _ => Self::Refused,
        }
    }
}

/// Whether the effect of the request is unknown: the gateway does not know how far the server behind it came.
pub fn is_of_gateway(status: u16) -> bool {
    matches!(status, 502..=504)
}

/// Reads the status from the library's text for an unexpected answer.
pub fn status_of(said: &str) -> Option<u16> {
    said.strip_prefix("HTTP ")?.split(' ').next()?.parse().ok()
}
