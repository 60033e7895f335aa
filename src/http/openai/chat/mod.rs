//! `/v1/chat/completions`: a run over the messages that the client sends.
//!
//! Each request creates a conversation. Without `store: true`, lists omit it and retention deletes it early. A client cannot read
//! the answer later, so Capstan cancels the run of a client that has disconnected.

mod chunks;
mod request;

use axum::Json;
use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};

use crate::http::clients::{body, stream};
use crate::http::openai::chat::chunks::{Completion, CompletionDetails};
use crate::http::openai::chat::request::ChatRequest;
use crate::http::openai::client_disconnect::{DisconnectGuard, GuardedWriter};
use crate::http::openai::error::failure;
use crate::http::openai::events;
use crate::http::openai::target::without_agent;
use crate::http::options::App;
use crate::http::wire::extract::Input;
use crate::http::wire::problem::HttpResult;
use crate::http::wire::request::Trace;
use crate::service::Access;

/// Answers a conversation
///
/// `model` is the name of an agent, whose tools run on the server, or `provider/name`. With `stream`, the answer is a stream of
/// chunks. If the model calls one of the request's `tools`, the answer ends, and the next request contains the result.
#[utoipa::path(
    post, path = "/v1/chat/completions", tag = "chat", operation_id = "openai_create_chat_completion", request_body = ChatRequest,
    responses((status = 200, description = "The answer, or a stream of its chunks",
               content((Object = "application/json"), (String = "text/event-stream")))),
)]
pub(in crate::http) async fn create(
    access: Access,
    Trace(trace): Trace,
    axum::extract::State(app): axum::extract::State<App>,
    request: Request,
) -> HttpResult<Response> {
    // The body holds the whole conversation, like an import.
    let Input { body, key } = body::read::<ChatRequest>(request, &app, &access).await?;
    let (streams, include_usage, model) = (body.stream == Some(true), body.includes_usage(), body.model().to_owned());
    let (run, transcript) = body.into_run(trace)?;
    let started = app.service.start_transcript(access.principal(), run, transcript, key).await;
    let started = started.map_err(|error| without_agent(error.into()))?;
    let facts = CompletionDetails::of(&started.run, model, include_usage);
    let mut guard = DisconnectGuard::new(&app, access.principal(), &started.run.id);
    let principal = access.principal().clone();
    let reader = app.service.stream_started(&principal, started);
    let mut completion = Completion::new(facts);
    if streams {
        let writer = GuardedWriter { translator: completion, guard: Some(guard) };
        return Ok(stream::respond(&app, access, reader, writer));
    }
    let flow = events::complete(&app, reader, &mut completion).await.map_err(failure)?;
    guard.settle(flow);
    completion.answer().map(|answer| Json(answer).into_response()).map_err(|problem| failure(*problem))
}
