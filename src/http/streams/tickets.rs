//! `/api/v1/stream-tickets`: tickets for browsers, which cannot set the `Authorization` header of a stream.
use axum::Json;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, ORIGIN};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use utoipa::ToSchema;

use crate::domain::access::ticket::TicketTarget;
use crate::domain::ids::{ConversationId, RunId};
use crate::domain::problem::ProblemCode;
use crate::http::options::App;
use crate::http::wire::extract::Input;
use crate::http::wire::problem::{HttpResult, Problem};
use crate::service::{Access, Error, NewTicket};

/// The target of a ticket. Exactly one field must be set.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StreamTicketBody {
    /// The run whose event stream the ticket opens.
    run_id: Option<RunId>,
    /// The conversation whose event stream the ticket opens.
    conversation_id: Option<ConversationId>,
    /// `true` for a ticket that opens a WebSocket. The WebSocket has all rights of the key.
    socket: Option<bool>,
}

impl StreamTicketBody {
    /// Returns the target. Refuses a body that names no target, or several.
    fn target(self) -> HttpResult<TicketTarget> {
        let Self { run_id, conversation_id, socket } = self;
        match (run_id, conversation_id, socket.unwrap_or(false)) {
            (Some(id), None, false) => Ok(TicketTarget::Run(id)),
            (None, Some(id), false) => Ok(TicketTarget::Conversation(id)),
            (None, None, true) => Ok(TicketTarget::Socket),
            (Some(_), Some(_), _) | (Some(_), _, true) | (_, Some(_), true) | (None, None, false) => {
                Err(Error::field("", "must have exactly one of run_id, conversation_id and \"socket\": true").into())
            }
        }
    }
}

/// Creates a ticket for a stream
///
/// Tickets are for browsers, which cannot set the `Authorization` header of an `EventSource` or a WebSocket. Open the stream with
/// `?ticket=` within 60 seconds. A ticket opens its target once, and only for pages of the origin that requested it. Each request
/// creates a new ticket, regardless of its `Idempotency-Key`.
#[utoipa::path(
    post, path = "/api/v1/stream-tickets", tag = "streams", operation_id = "create_stream_ticket", request_body = StreamTicketBody,
    responses((status = 201, description = "The ticket, which is shown only once", body = NewTicket)),
)]
pub(crate) async fn create(
    State(app): State<App>,
    access: Access,
    headers: HeaderMap,
    // Ignores the idempotency key: the store has only the hash of a ticket, so no response can repeat it. Another ticket is
    // harmless.
    Input { body, key: _ }: Input<StreamTicketBody>,
) -> HttpResult<Response> {
    let ticket = app.service.make_ticket(&access, body.target()?, origin(&headers)?).await?;
    let no_store = [(CACHE_CONTROL, HeaderValue::from_static("no-store"))];
    Ok((StatusCode::CREATED, no_store, Json(ticket)).into_response())
}

/// Returns the origin of the requesting page; `None` for a client without `Origin` header. Refuses a page without an origin.
fn origin(headers: &HeaderMap) -> HttpResult<Option<String>> {
    let Some(origin) = headers.get(ORIGIN) else { return Ok(None) };
    match origin.to_str() {
        Ok(origin) if origin != "null" => Ok(Some(origin.to_owned())),
        // A sandboxed page sends `null`, which names no origin to which the ticket could be bound.
        Ok(_) | Err(_) => {
            let detail = "a ticket is bound to the origin of the requesting page, and this page has none";
            Err(Problem::new(ProblemCode::Forbidden, detail))
        }
    }
}
