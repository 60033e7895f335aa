//! The UI message stream of the Vercel AI SDK: `useChat` with `DefaultChatTransport` or `WebSocketChatTransport`, without adapters.
//!
//! A run is one assistant message with the id of the run. After a message of the user that joins the run, the assistant has another
//! message, `run_X.msg_Y`. A response ends where the run waits for an answer. The client sends the answer in the same message, and the
//! next response continues that message.

mod assistant_message_id;
mod regenerate;
mod request;
mod routes;
mod socket;
#[cfg(test)]
mod tests;
mod translator;
mod ui_messages;

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue};

use crate::domain::problem::ProblemBody;
use crate::http::options::Protocol;

pub(super) use routes::routes;
pub(super) use socket::socket_routes;

pub(super) const PROTOCOL: Protocol = Protocol { prefix: "/api/chat", error: sentence };

/// Renders an error as one sentence: clients show the body as it is.
fn sentence(problem: &ProblemBody) -> (HeaderMap, String) {
    let content_type = (CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    (HeaderMap::from_iter([content_type]), problem.detail.clone())
}
