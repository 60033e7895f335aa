//! `/v1/conversations`: native conversations, and their messages as items.

use std::collections::BTreeSet;

use axum::Json;
use axum::extract::Path;
use serde_json::{Map, Value, json};

use crate::domain::conversation::message::Message;
use crate::domain::ids::{CallId, ConversationId};
use crate::domain::problem::ProblemCode;
use crate::http::clients::thread::client_calls;
use crate::http::openai::ids::{Order, list, missing_conversation, parse_conversation, seconds};
use crate::http::openai::responses::input_items::ItemParams;
use crate::http::openai::responses::references::known_items;
use crate::http::openai::responses::request::{ConversationRequest, check_metadata};
use crate::http::openai::responses::{items, unfinished};
use crate::http::wire::auth::Caller;
use crate::http::wire::extract::{Input, OptionalInput, Params};
use crate::http::wire::problem::{HttpResult, Problem};
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
) -> HttpResult<Json<Value>> {
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
pub(in crate::http) async fn get(caller: Caller, Path(id): Path<String>) -> HttpResult<Json<Value>> {
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
) -> HttpResult<Json<Value>> {
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
pub(in crate::http) async fn delete(caller: Caller, Path(id): Path<String>) -> HttpResult<Json<Value>> {
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
) -> HttpResult<Json<Value>> {
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
) -> HttpResult<Json<Value>> {
    let own = parse_conversation(&id)?;
    let known = known_items(&caller.app.service, &caller.principal, body.references()).await?;
    let added = caller.app.service.append_messages(&caller.principal, &own, body.into_added(&known)?, key).await;
    let messages = match added {
        Ok((messages, _)) => messages,
        Err(active @ Error::RunActive(_)) => return Err(unfinished(&caller.app, &caller.principal, active).await),
        Err(other) => return Err(named(&id, other)),
    };
    Ok(Json(list(items::of_messages(&messages, |_| false), false)))
}

/// Returns an item of a conversation
#[utoipa::path(
    get, path = "/v1/conversations/{id}/items/{item}", tag = "conversations", operation_id = "openai_get_conversation_item",
    params(("id" = String, Path, description = "The id of the conversation"), ("item" = String, Path, description = "The id of the item")),
    responses((status = 200, description = "The item", body = Object)),
)]
pub(in crate::http) async fn get_item(caller: Caller, Path((id, item)): Path<(String, String)>) -> HttpResult<Json<Value>> {
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
pub(in crate::http) async fn delete_item(caller: Caller, path: Path<(String, String)>) -> HttpResult<Json<Value>> {
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
    /// Messages whose items need messages of the next page.
    held: Vec<Message>,
    is_over: bool,
}

impl<'a> ItemReader<'a> {
    fn new(caller: &'a Caller, id: &'a str, is_ascending: bool) -> HttpResult<Self> {
        Ok(Self { caller, id, own: parse_conversation(id)?, is_ascending, cursor: None, held: Vec::new(), is_over: false })
    }

    /// Returns the items of the next messages; `None` after the last ones.
    async fn next(&mut self) -> HttpResult<Option<Vec<Value>>> {
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
        self.is_over = page.next.is_none();
        self.cursor = page.next;
        let page: Vec<Message> = page.items.into_iter().filter(|message| !message.internal).collect();
        let (mut messages, held) = split_open(std::mem::take(&mut self.held), page, self.is_ascending);
        match (self.is_over, self.is_ascending) {
            (false, _) => self.held = held,
            (true, true) => messages.extend(held),
            (true, false) => _ = messages.splice(0..0, held),
        }
        let of_client = client_calls(&app.service, principal, &messages).await?;
        let mut items = items::of_messages(&messages, |call| of_client.contains(call));
        if !self.is_ascending {
            items.reverse();
        }
        Ok(Some(items))
    }
}

/// Joins a page of messages with those held before. Returns the joined messages, and those of the page that need the next page: an
/// item shows a call together with its result.
fn split_open(held: Vec<Message>, page: Vec<Message>, is_ascending: bool) -> (Vec<Message>, Vec<Message>) {
    let (earlier, later) = if is_ascending { (&held, &page) } else { (&page, &held) };
    let all = || earlier.iter().chain(later);
    let called: BTreeSet<&CallId> = all().flat_map(Message::tool_calls).map(|call| &call.call_id).collect();
    let answered: BTreeSet<&CallId> = all().flat_map(Message::tool_results).map(|result| &result.call_id).collect();
    let is_open = |message: &Message| match is_ascending {
        true => message.tool_calls().any(|call| !answered.contains(&call.call_id)),
        false => message.tool_results().any(|result| !called.contains(&result.call_id)),
    };
    if is_ascending {
        let at = page.iter().position(is_open).unwrap_or(page.len());
        let mut page = page;
        let open = page.split_off(at);
        return (held.into_iter().chain(page).collect(), open);
    }
    let at = page.iter().rposition(is_open).map_or(0, |at| at + 1);
    let mut open = page;
    let whole = open.split_off(at);
    (whole.into_iter().chain(held).collect(), open)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::conversation::message::{Part, Role, ToolCallPart, ToolContent, ToolResultPart};
    use crate::domain::ids::{MessageId, PartId, RunId};
    use crate::domain::tool::ToolCallState;

    fn message(id: &str, role: Role, call: u32) -> Message {
        let part = PartId::from_stored("part_1".to_owned());
        let call_id = CallId::from_stored(format!("call_{call}"));
        let part = match role {
            Role::Tool => Part::ToolResult(ToolResultPart {
                id: part,
                call_id,
                name: "look".to_owned(),
                content: vec![ToolContent::text("a door")],
                is_error: false,
                state: ToolCallState::Done,
                undoable: false,
            }),
            Role::User | Role::Assistant => Part::ToolCall(ToolCallPart::new(part, call_id, "look".to_owned(), json!({}))),
        };
        let of = (RunId::from_stored("run_1".to_owned()), ConversationId::from_stored("conv_1".to_owned()));
        Message::new(MessageId::from_stored(id.to_owned()), of, role, vec![part])
    }

    #[test]
    fn call_waits_for_the_page_with_its_result() {
        let ids = |messages: &[Message]| messages.iter().map(|message| message.id.to_string()).collect::<String>();
        let (call, result) = (|| message("c", Role::Assistant, 1), || message("r", Role::Tool, 1));
        let (first, other) = (|| message("C", Role::Assistant, 2), || message("R", Role::Tool, 2));
        for (is_ascending, pages, expected) in [
            (true, [vec![first(), other(), call()], vec![result()]], ["CR", "cr"]),
            (false, [vec![result(), first(), other()], vec![call()]], ["CR", "cr"]),
        ] {
            let [one, two] = pages;
            let (whole, held) = split_open(Vec::new(), one, is_ascending);
            assert_eq!((ids(&whole).as_str(), held.len()), (expected[0], 1));
            let (whole, held) = split_open(held, two, is_ascending);
            assert_eq!((ids(&whole).as_str(), held.len()), (expected[1], 0));
        }
        // A call that has no result waits for one page only.
        let (_, held) = split_open(Vec::new(), vec![call()], true);
        assert_eq!(split_open(held, vec![first(), other()], true).0.len(), 3);
    }
}
