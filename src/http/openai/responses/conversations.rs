//! `/v1/conversations`: native conversations, and their messages as items.

use axum::Json;
use axum::extract::Path;
use serde_json::{Map, Value, json};

use crate::domain::ids::ConversationId;
use crate::domain::problem::ProblemCode;
use crate::http::openai::ids::{Order, list, missing_conversation, parse_conversation, seconds};
use crate::http::openai::responses::input_items::ItemParams;
use crate::http::openai::responses::references::known_items;
use crate::http::openai::responses::request::{ConversationRequest, check_metadata};
use crate::http::openai::responses::{items, unfinished};
use crate::http::wire::auth::Caller;
use crate::http::wire::extract::{Input, OptionalInput, Params};
use crate::http::wire::problem::{Answer, Problem};
use crate::service::{ConversationPatch, Error, PageRequest};

/// Number of messages in one read.
const MESSAGES: u32 = 50;

/// Names the conversation in a not-found error.
fn named(id: &str, error: Error) -> Problem {
    match error {
        Error::NotFound(_) => missing_conversation(id),
        other => other.into(),
    }
}

fn conversation_object(id: &ConversationId, created_at: &str, metadata: &Map<String, Value>) -> Json<Value> {
    Json(json!({ "id": id, "object": "conversation", "created_at": seconds(created_at), "metadata": metadata }))
}

/// Creates a conversation
///
/// Its `items` may be messages, function calls with their outputs, and MCP calls. Nothing is executed.
#[utoipa::path(
    post, path = "/v1/conversations", tag = "conversations", operation_id = "openai_create_conversation", request_body = Option<ConversationRequest>,
    responses((status = 200, description = "The conversation", body = Object)),
)]
pub(in crate::http) async fn create(
    caller: Caller,
    OptionalInput { body, key }: OptionalInput<ConversationRequest>,
) -> Answer<Json<Value>> {
    let known = known_items(&caller.app.service, &caller.principal, body.references()).await?;
    let sent = body.into_conversation(&known)?;
    let metadata = sent.metadata.clone();
    let (created, _) = caller.app.service.create_from_messages(&caller.principal, sent, key).await?;
    Ok(conversation_object(&created.id, &created.created_at, &metadata))
}

/// Returns a conversation
#[utoipa::path(
    get, path = "/v1/conversations/{id}", tag = "conversations", operation_id = "openai_get_conversation",
    params(("id" = String, Path, description = "The id of the conversation")),
    responses((status = 200, description = "The conversation", body = Object)),
)]
pub(in crate::http) async fn get(caller: Caller, Path(id): Path<String>) -> Answer<Json<Value>> {
    let own = parse_conversation(&id)?;
    let found = caller.app.service.conversation(&caller.principal, &own).await.map_err(|error| named(&id, error))?;
    Ok(conversation_object(&found.id, &found.created_at, &found.metadata))
}

/// Replaces the metadata of a conversation
#[utoipa::path(
    post, path = "/v1/conversations/{id}", tag = "conversations", operation_id = "openai_update_conversation", request_body = Object,
    params(("id" = String, Path, description = "The id of the conversation")),
    responses((status = 200, description = "The conversation", body = Object)),
)]
pub(in crate::http) async fn update(
    caller: Caller,
    Path(id): Path<String>,
    Input { body, .. }: Input<Value>,
) -> Answer<Json<Value>> {
    let own = parse_conversation(&id)?;
    let metadata = match body.get("metadata") {
        Some(Value::Object(metadata)) => metadata.clone(),
        Some(Value::Null) => Map::new(),
        Some(_) | None => return Err(Error::field("/metadata", "must be an object, or null for none").into()),
    };
    check_metadata(&metadata)?;
    let patch = ConversationPatch { metadata: Some(metadata), ..ConversationPatch::default() };
    let changed = caller.app.service.change_conversation(&caller.principal, &own, patch).await;
    let changed = changed.map_err(|error| named(&id, error))?;
    Ok(conversation_object(&changed.id, &changed.created_at, &changed.metadata))
}

/// Deletes a conversation
#[utoipa::path(
    delete, path = "/v1/conversations/{id}", tag = "conversations", operation_id = "openai_delete_conversation",
    params(("id" = String, Path, description = "The id of the conversation")),
    responses((status = 200, description = "The conversation is deleted", body = Object)),
)]
pub(in crate::http) async fn delete(caller: Caller, Path(id): Path<String>) -> Answer<Json<Value>> {
    let own = parse_conversation(&id)?;
    caller.app.service.delete_conversation(&caller.principal, &own).await.map_err(|error| named(&id, error))?;
    Ok(Json(json!({ "id": id, "object": "conversation.deleted", "deleted": true })))
}

/// Lists the items of a conversation
#[utoipa::path(
    get, path = "/v1/conversations/{id}/items", tag = "conversations", operation_id = "openai_list_conversation_items",
    params(("id" = String, Path, description = "The id of the conversation"), ItemParams),
    responses((status = 200, description = "A page of items", body = Object)),
)]
pub(in crate::http) async fn list_items(
    caller: Caller,
    Path(id): Path<String>,
    Params(params): Params<ItemParams>,
) -> Answer<Json<Value>> {
    let mut reader = ItemReader::new(&caller, &id, params.order == Order::Asc)?;
    let (limit, mut after, mut found) = (params.limit(), params.after.as_deref(), Vec::new());
    while found.len() <= limit {
        let Some(mut items) = reader.next().await? else { break };
        if let Some(last) = after {
            let Some(at) = items.iter().position(|item| item["id"] == *last) else { continue };
            items.drain(..=at);
            after = None;
        }
        found.extend(items);
    }
    if after.is_some() {
        return Err(Error::field("/after", "is not the id of an item of this conversation").into());
    }
    let has_more = found.len() > limit;
    found.truncate(limit);
    Ok(Json(list(found, has_more)))
}

/// Adds items to a conversation
///
/// Accepts 1 to 20 messages, function calls with their outputs, and MCP calls. Nothing is executed. Texts of the roles `system` and
/// `developer` extend the system prompt, and are not items.
#[utoipa::path(
    post, path = "/v1/conversations/{id}/items", tag = "conversations", operation_id = "openai_create_conversation_items",
    params(("id" = String, Path, description = "The id of the conversation")), request_body = ConversationRequest,
    responses((status = 200, description = "The added items", body = Object)),
)]
pub(in crate::http) async fn create_items(
    caller: Caller,
    Path(id): Path<String>,
    Input { body, key }: Input<ConversationRequest>,
) -> Answer<Json<Value>> {
    let own = parse_conversation(&id)?;
    let known = known_items(&caller.app.service, &caller.principal, body.references()).await?;
    let added = caller.app.service.append_messages(&caller.principal, &own, body.into_added(&known)?, key).await;
    let messages = match added {
        Ok((messages, _)) => messages,
        Err(active @ Error::RunActive(_)) => return Err(unfinished(&caller.app, &caller.principal, active).await),
        Err(other) => return Err(named(&id, other)),
    };
    Ok(Json(list(messages.iter().flat_map(items::of_message).collect(), false)))
}

/// Returns an item of a conversation
#[utoipa::path(
    get, path = "/v1/conversations/{id}/items/{item}", tag = "conversations", operation_id = "openai_get_conversation_item",
    params(("id" = String, Path, description = "The id of the conversation"), ("item" = String, Path, description = "The id of the item")),
    responses((status = 200, description = "The item", body = Object)),
)]
pub(in crate::http) async fn get_item(caller: Caller, Path((id, item)): Path<(String, String)>) -> Answer<Json<Value>> {
    let mut reader = ItemReader::new(&caller, &id, false)?;
    while let Some(items) = reader.next().await? {
        if let Some(found) = items.into_iter().find(|known| known["id"] == *item) {
            return Ok(Json(found));
        }
    }
    Err(Problem::new(ProblemCode::NotFound, format!("Item with id {item:?} not found in conversation {id:?}.")))
}

/// Refuses to delete an item
///
/// Messages stay until their conversation is deleted.
#[utoipa::path(
    delete, path = "/v1/conversations/{id}/items/{item}", tag = "conversations", operation_id = "openai_delete_conversation_item",
    params(("id" = String, Path, description = "The id of the conversation"), ("item" = String, Path, description = "The id of the item")),
    responses((status = 400, description = "A single item cannot be deleted", body = Object)),
)]
pub(in crate::http) async fn delete_item(caller: Caller, path: Path<(String, String)>) -> Answer<Json<Value>> {
    get_item(caller, path).await.map(drop)?;
    Err(Error::invalid("a single item cannot be deleted; delete the conversation").into())
}

/// Reads the items of a conversation in one direction, a page of messages at a time.
struct ItemReader<'a> {
    caller: &'a Caller,
    id: &'a str,
    own: ConversationId,
    is_ascending: bool,
    cursor: Option<String>,
    is_over: bool,
}

impl<'a> ItemReader<'a> {
    fn new(caller: &'a Caller, id: &'a str, is_ascending: bool) -> Answer<Self> {
        Ok(Self { caller, id, own: parse_conversation(id)?, is_ascending, cursor: None, is_over: false })
    }

    /// Returns the items of the next messages; `None` after the last ones.
    async fn next(&mut self) -> Answer<Option<Vec<Value>>> {
        if self.is_over {
            return Ok(None);
        }
        let Caller { app, principal } = self.caller;
        let cursor = self.cursor.take();
        let page = if self.is_ascending {
            let after = cursor.and_then(|cursor| cursor.parse().ok());
            app.service.messages(principal, &self.own, &PageRequest { limit: MESSAGES, after }).await
        } else {
            let before = cursor.and_then(|cursor| cursor.parse().ok());
            app.service.earlier_messages(principal, &self.own, before, MESSAGES).await
        };
        let page = page.map_err(|error| named(self.id, error))?;
        let mut items: Vec<Value> = page.items.iter().filter(|message| !message.internal).flat_map(items::of_message).collect();
        if !self.is_ascending {
            items.reverse();
        }
        self.is_over = page.next.is_none();
        self.cursor = page.next;
        Ok(Some(items))
    }
}
