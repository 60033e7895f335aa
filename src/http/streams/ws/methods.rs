//! Methods of a WebSocket: the same use cases as over HTTP.

use axum::http::Method;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::identity::{self, Identity};
use super::requests::{Frame, Outcome};
use super::subscriptions::{Target, Targets};
use crate::domain::access::principal::Principal;
use crate::domain::ids::{ConversationId, InputId, RunId};
use crate::domain::problem::ProblemCode;
use crate::domain::run::question::InputAnswer;
use crate::domain::tool::approval::{ApprovalAnswer, ApprovalScope, Decision};
use crate::domain::trace::TraceId;
use crate::http::options::App;
use crate::http::streams::render;
use crate::http::wire::problem::{HttpResult, Problem};
use crate::http::wire::types::{StartRunBody, ToolResultBody, ToolResultsBody};
use crate::http::wire::{extract, idempotency_header};
use crate::service::{Cursor, Error, ListSubscription, Reader, Replay, RequestKey, Scope, StreamItem, StreamStart};

/// The response to a request, and its effect. `Finished`: the requested stream has already ended.
pub(super) enum Reply {
    Done(Outcome),
    Stream { outcome: Outcome, reader: Box<Reader> },
    List { outcome: Outcome, list: ListSubscription },
    Finished { target: Target, outcome: Outcome, line: String },
    Unsubscribe(Target),
}

/// The scope of a subscription that names no resource.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum SubscriptionScope {
    Owner,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SubscribeParams {
    conversation_id: Option<ConversationId>,
    run_id: Option<RunId>,
    scope: Option<SubscriptionScope>,
    after: Option<i64>,
}

impl SubscribeParams {
    fn target(&self) -> HttpResult<Target> {
        match (&self.conversation_id, &self.run_id, &self.scope) {
            (Some(id), None, None) => Ok(Target::Conversation(id.clone())),
            (None, Some(id), None) => Ok(Target::Run(id.clone())),
            (None, None, Some(SubscriptionScope::Owner)) => Ok(Target::Owner),
            _ => Err(Error::field("/params", "must have exactly one of conversation_id, run_id and scope").into()),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CancelParams {
    run_id: RunId,
    idempotency_key: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ResolveParams {
    id: InputId,
    #[serde(default, alias = "action")]
    choice: String,
    text: Option<String>,
    content: Option<Value>,
    idempotency_key: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ApprovalParams {
    id: InputId,
    decision: Decision,
    scope: Option<ApprovalScope>,
    arguments: Option<Value>,
    reason: Option<String>,
    arguments_hash: Option<String>,
    idempotency_key: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AuthParams {
    token: String,
}

pub(super) fn auth_token(frame: &Frame<'_>) -> Option<String> {
    let params = (frame.method == "auth").then(|| extract::parse::<AuthParams>(frame.params.as_bytes()).ok());
    params.flatten().map(|params| params.token)
}

/// Executes a request. `held` contains the subscriptions of the socket.
pub(super) async fn call(
    app: &App,
    principal: &Principal,
    held: &Targets,
    trace: &TraceId,
    frame: &Frame<'_>,
) -> HttpResult<Reply> {
    match frame.method.as_ref() {
        "ping" => Ok(Reply::Done(json!({ "at": app.service.clock().now().to_rfc3339() }).into())),
        "auth" => auth(app, principal, params(frame)?).await,
        "subscribe" => subscribe(app, principal, held, params(frame)?).await,
        "unsubscribe" => Ok(Reply::Unsubscribe(params::<SubscribeParams>(frame)?.target()?)),
        "run.start" => start(app, principal, held, trace, params(frame)?).await,
        "run.cancel" => cancel(app, principal, params(frame)?).await,
        "approval.resolve" => resolve_approval(app, principal, params(frame)?).await,
        "input.resolve" => resolve_input(app, principal, params(frame)?).await,
        "tool.results" => store_tool_results(app, principal, params(frame)?).await,
        other => {
            let excerpt = crate::support::text::prefix(other, 50);
            Err(Error::field("/method", format!("there is no method {excerpt:?}")).into())
        }
    }
}

fn params<T: DeserializeOwned>(frame: &Frame<'_>) -> HttpResult<T> {
    extract::parse(frame.params.as_bytes()).map_err(|Problem(mut problem)| {
        for error in &mut problem.errors {
            error.pointer.insert_str(0, "/params");
        }
        Problem(problem)
    })
}

/// Checks a key on a socket that is already authenticated. Changes nothing.
async fn auth(app: &App, principal: &Principal, params: AuthParams) -> HttpResult<Reply> {
    match identity::check(app, &params.token).await? {
        Identity::Known(known) if known.principal().user_id == principal.user_id => {
            Ok(Reply::Done(json!({ "authenticated": true }).into()))
        }
        Identity::Known(_) => Err(Error::Conflict("this socket belongs to another user; open another one".to_owned()).into()),
        Identity::Refused | Identity::NoKey => {
            Err(Problem::new(ProblemCode::Unauthorized, "the token is wrong or revoked; the socket is unchanged"))
        }
    }
}

/// Keeps an existing subscription unless the client sends a cursor: a restart would lose events that the reader has not sent yet,
/// or repeat some.
async fn subscribe(app: &App, principal: &Principal, held: &Targets, params: SubscribeParams) -> HttpResult<Reply> {
    let after = match params.after {
        Some(after) if after < 0 => return Err(Error::InvalidCursor("a cursor is the seq of an event, from 0".to_owned()).into()),
        after => after.map(Cursor),
    };
    let target = params.target()?;
    let follows = held.follow(&target);
    if !follows {
        held.check_room()?;
    }
    let stays = follows && after.is_none();
    let start = match target {
        // Starts at the beginning, because only the response is needed: without a cursor, this would take an unused snapshot.
        Target::Conversation(id) if stays => app.service.stream_conversation(principal, &id, Some(Cursor(0))).await?,
        Target::Conversation(id) => app.service.stream_conversation(principal, &id, after).await?,
        Target::Run(id) => app.service.stream_run(principal, &id, after).await?,
        Target::Owner if after.is_some() => {
            let reason =
                "is for conversations and runs: the list of an owner has no cursor, so read the list after each subscription";
            return Err(Error::field("/params/after", reason).into());
        }
        Target::Owner => {
            let outcome = json!({ "scope": "owner" }).into();
            return Ok(if stays {
                Reply::Done(outcome)
            } else {
                Reply::List { outcome, list: app.service.follow_list(principal) }
            });
        }
    };
    Ok(match start {
        StreamStart::Stream(reader) => {
            let outcome = subscribed(&reader.scope, reader.head).into();
            if stays { Reply::Done(outcome) } else { Reply::Stream { outcome, reader: Box::new(reader) } }
        }
        StreamStart::Finished { scope, last_seq } => {
            let line = render::line(&StreamItem::End { last_seq }, &scope, app.service.clock().now()).json;
            Reply::Finished { target: Target::of(&scope), outcome: subscribed(&scope, last_seq).into(), line }
        }
    })
}

fn subscribed(scope: &Scope, head: i64) -> Value {
    let mut result = json!({ "conversation_id": scope.conversation_id(), "head": head });
    if let (Some(run_id), Some(result)) = (scope.run_id(), result.as_object_mut()) {
        result.insert("run_id".to_owned(), json!(run_id));
    }
    result
}

/// Like `POST /api/v1/runs`, with the idempotency key among the parameters. The same key over HTTP is the same request.
async fn start(
    app: &App,
    principal: &Principal,
    held: &Targets,
    trace: &TraceId,
    mut params: Map<String, Value>,
) -> HttpResult<Reply> {
    // Checked before anything is stored, so that a refused request starts no run. The run that a message joins is known only later,
    // so there must be room even if the socket already follows that run.
    held.check_room()?;
    let key = take_key(&mut params)?;
    let params = Value::Object(params);
    let key = request_key(key, "/api/v1/runs", &params)?;
    let body: StartRunBody = extract::parse(params.to_string().as_bytes())?;
    let started = app.service.start_run(principal, body.into_request(trace.clone()), key).await?;
    let replayed = started.replay == Replay::Replayed;
    let result = json!({ "message": started.message, "run": started.run, "replayed": replayed });
    let outcome = Outcome::at(started.message_path(), result);
    // The message joined a run that the socket follows: the existing reader sends all its events. A new reader would begin at the
    // message and skip events that the existing one has not sent yet.
    if held.follow(&Target::Run(started.run.id.clone())) {
        return Ok(Reply::Done(outcome));
    }
    Ok(Reply::Stream { outcome, reader: Box::new(app.service.stream_started(principal, started)) })
}

async fn cancel(app: &App, principal: &Principal, params: CancelParams) -> HttpResult<Reply> {
    let CancelParams { run_id, idempotency_key } = params;
    let path = format!("/api/v1/runs/{run_id}/cancel");
    let key = request_key(idempotency_key, &path, &Value::Null)?;
    let (run, _) = app.service.cancel_run(principal, &run_id, key).await?;
    Ok(Reply::Done(Outcome::at(format!("/api/v1/runs/{run_id}"), json!({ "run": run }))))
}

/// Like `POST /api/v1/input-requests/{id}`. The same key over HTTP is the same request.
async fn resolve_input(app: &App, principal: &Principal, params: ResolveParams) -> HttpResult<Reply> {
    let ResolveParams { id, choice, text, content, idempotency_key } = params;
    let answer = InputAnswer { content, ..InputAnswer::new(choice, text) };
    let path = format!("/api/v1/input-requests/{id}");
    let key = request_key(idempotency_key, &path, &answer)?;
    let (record, replay) = app.service.resolve_input(principal, &id, answer, key).await?;
    Ok(Reply::Done(Outcome::at(path, json!({ "input_request": record, "replayed": replay == Replay::Replayed }))))
}

/// Like `POST /api/v1/approvals/{id}`. The same key over HTTP is the same request.
async fn resolve_approval(app: &App, principal: &Principal, params: ApprovalParams) -> HttpResult<Reply> {
    let ApprovalParams { id, decision, scope, arguments, reason, arguments_hash, idempotency_key } = params;
    let answer = ApprovalAnswer { decision, scope, arguments, reason, arguments_hash };
    let path = format!("/api/v1/approvals/{id}");
    let key = request_key(idempotency_key, &path, &answer)?;
    let (approval, replay) = app.service.resolve_approval(principal, &id, answer, key).await?;
    Ok(Reply::Done(Outcome::at(path, json!({ "approval": approval, "replayed": replay == Replay::Replayed }))))
}

/// Like `POST /api/v1/runs/{id}/tool-results`, with `run_id` and the idempotency key among the parameters. The same key over HTTP
/// is the same request.
async fn store_tool_results(app: &App, principal: &Principal, mut params: Map<String, Value>) -> HttpResult<Reply> {
    let key = take_key(&mut params)?;
    let run = params.shift_remove("run_id").and_then(|id| serde_json::from_value::<RunId>(id).ok());
    let run = run.ok_or_else(|| Error::field("/params/run_id", "must be the id of a run"))?;
    let path = format!("/api/v1/runs/{run}/tool-results");
    let body = Value::Object(params);
    let key = request_key(key, &path, &body)?;
    let body: ToolResultsBody = extract::parse(body.to_string().as_bytes())?;
    let results = body.results.into_iter().map(ToolResultBody::into_result).collect();
    let (run, replay) = app.service.store_tool_results(principal, &run, results, key).await?;
    let replayed = replay == Replay::Replayed;
    Ok(Reply::Done(Outcome::at(format!("/api/v1/runs/{}", run.id), json!({ "run": run, "replayed": replayed }))))
}

fn take_key(params: &mut Map<String, Value>) -> HttpResult<Option<String>> {
    match params.shift_remove("idempotency_key") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(key)) => Ok(Some(key)),
        Some(_) => Err(Error::field("/params/idempotency_key", "must be a string").into()),
    }
}

fn request_key(key: Option<String>, path: &str, body: &impl Serialize) -> HttpResult<Option<RequestKey>> {
    let Some(key) = key else { return Ok(None) };
    if !(1..=255).contains(&key.len()) || key.contains(char::is_control) {
        let detail = "must be 1 to 255 bytes long, without control characters";
        return Err(Error::field("/params/idempotency_key", detail).into());
    }
    let body = serde_json::to_value(body).unwrap_or_default();
    Ok(Some(idempotency_header::request_key(key, &Method::POST, path, &body)))
}
