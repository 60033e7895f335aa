//! `/api/v1/stream-tickets`: tickets for browsers, which cannot send a key with a stream.
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
use crate::http::wire::problem::{Answer, Problem};
use crate::service::{Access, Error, NewTicket};

/// What the ticket shall open: exactly one of these.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StreamTicketBody {
    /// The event stream of this run.
    run_id: Option<RunId>,
    /// The event stream of this conversation.
    conversation_id: Option<ConversationId>,
    /// `true`: a WebSocket, on which everything can be done that the key can do.
    socket: Option<bool>,
}

impl StreamTicketBody {
    fn target(self) -> Answer<TicketTarget> {
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

/// Makes a ticket for a stream
///
/// For `EventSource` and the WebSocket of browsers, which cannot send a key: open the stream with `?ticket=` within 60 s. A ticket
/// opens what it was made for once, for pages of the origin that asked for it. Every request makes a new one, whatever its
/// `Idempotency-Key`.
#[utoipa::path(
    post, path = "/api/v1/stream-tickets", tag = "streams", operation_id = "create_stream_ticket", request_body = StreamTicketBody,
    responses((status = 201, description = "The ticket, shown this once", body = NewTicket)),
)]
pub(crate) async fn create(
    State(app): State<App>,
    access: Access,
    headers: HeaderMap,
    // A ticket is not stored in a form in which it could be given again, and one more does no harm.
    Input { body, key: _ }: Input<StreamTicketBody>,
) -> Answer<Response> {
    let ticket = app.service.make_ticket(&access, body.target()?, origin(&headers)?).await?;
    let no_store = [(CACHE_CONTROL, HeaderValue::from_static("no-store"))];
    Ok((StatusCode::CREATED, no_store, Json(ticket)).into_response())
}

/// Returns the origin of the page that asks, if a page does.
fn origin(headers: &HeaderMap) -> Answer<Option<String>> {
    let Some(origin) = headers.get(ORIGIN) else { return Ok(None) };
    match origin.to_str() {
        Ok(origin) if origin != "null" => Ok(Some(origin.to_owned())),
        // A sandboxed page says "null": there is no origin to bind the ticket to.
        Ok(_) | Err(_) => {
            let detail = "a ticket is bound to the origin of the page that asks for it, and this page has none";
            Err(Problem::new(ProblemCode::Forbidden, detail))
        }
    }
}
