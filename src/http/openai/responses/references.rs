//! The stored items to which a request refers by `item_reference`.
//!
//! Owns the lookup of a stored item by its id. Must not know how an item is used. Calls are found by their rows in `tool_calls`. Calls
//! of copied conversations, and calls that a client has sent itself, have none.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::Value;

use crate::domain::access::principal::Principal;
use crate::domain::conversation::message::{Message, ToolCallPart, ToolResultPart};
use crate::domain::event::EventBody;
use crate::domain::ids::{CallId, InputId, MessageId, RunId};
use crate::domain::problem::ProblemCode;
use crate::http::openai::content::question_text;
use crate::http::openai::responses::items;
use crate::http::openai::responses::request::{KnownItems, Reference};
use crate::http::wire::problem::{Answer, Problem};
use crate::service::{Error, Service};

/// The stored object that an item shows.
#[derive(Debug, PartialEq, Eq)]
enum StoredObject {
    /// A part of a message of the model.
    Part(MessageId),
    /// A message of the user, or a question of a run. The ids of both have the same form.
    Message(MessageId, Option<InputId>),
    Call(CallId),
    /// The item only describes an answer, such as reasoning or an approval, or is a text of the role `system`, which applies anyway.
    Description,
}

impl StoredObject {
    fn of(item: &str) -> Option<Self> {
        if items::is_system(item) {
            return Some(Self::Description);
        }
        let (prefix, digits) = item.split_once('_')?;
        match (prefix, digits.split_once('_')) {
            ("msg", Some((message, _))) => Some(Self::Part(MessageId::parse(&format!("msg_{message}")).ok()?)),
            ("msg", None) => Some(Self::Message(MessageId::parse(item).ok()?, InputId::parse(&format!("input_{digits}")).ok())),
            ("fc" | "fco" | "mcp", _) => Some(Self::Call(CallId::parse(&format!("call_{digits}")).ok()?)),
            ("rs" | "mcpr" | "mcpa" | "mcpl", _) => Some(Self::Description),
            _ => None,
        }
    }
}

/// Returns the items to which a request refers, without those that have no effect. Fails if the principal has no such message,
/// question or call.
pub(super) async fn known_items(service: &Service, principal: &Principal, references: Vec<Reference<'_>>) -> Answer<KnownItems> {
    let Some(first) = references.first().map(|first| first.pointer.clone()) else { return Ok(KnownItems::new()) };
    let (mut messages, mut calls, mut objects) = (BTreeSet::new(), BTreeSet::new(), BTreeMap::new());
    for Reference { pointer, id } in references {
        let object = StoredObject::of(id).ok_or_else(|| missing(&pointer, id))?;
        match &object {
            StoredObject::Part(message) | StoredObject::Message(message, _) => {
                messages.insert(message.clone());
            }
            StoredObject::Call(call) => {
                calls.insert(call.clone());
            }
            StoredObject::Description => continue,
        }
        objects.insert(id, (pointer, object));
    }
    let ids: (Vec<MessageId>, Vec<CallId>) = (messages.into_iter().collect(), calls.into_iter().collect());
    let messages = service.referenced_messages(principal, (&ids.0, &ids.1), &first).await?;
    let items = messages.iter().flat_map(items::of_message).chain(server_calls(&messages));
    let mut stored: BTreeMap<String, Value> = items.filter_map(|item| Some((item["id"].as_str()?.to_owned(), item))).collect();
    let mut parts = objects.iter().filter(|(_, (_, object))| matches!(object, StoredObject::Part(_)));
    let begun = if parts.any(|(id, _)| !stored.contains_key(*id)) {
        begun_messages(service, principal, &messages).await?
    } else {
        BTreeSet::new()
    };
    let mut known = KnownItems::new();
    for (id, (pointer, object)) in objects {
        let item = match (stored.remove(id), object) {
            (Some(item), _) => Some(item),
            (None, StoredObject::Part(message)) if begun.contains(&message) => continue,
            (None, StoredObject::Message(_, Some(question))) => question_item(service, principal, &question).await?,
            (None, _) => None,
        };
        let item = item.ok_or_else(|| missing(&pointer, id))?;
        let item = serde_json::from_value(item).map_err(|error| Error::field(&pointer, format!("cannot be read: {error}")))?;
        known.insert(id.to_owned(), item);
    }
    Ok(known)
}

/// Returns the ids of all messages that the runs of these messages have begun. A stream shows the text of a step that is reset, and
/// clients refer to it, but its message is never stored.
async fn begun_messages(service: &Service, principal: &Principal, messages: &[Message]) -> Answer<BTreeSet<MessageId>> {
    let runs: BTreeSet<&RunId> = messages.iter().map(|message| &message.run_id).collect();
    let mut begun = BTreeSet::new();
    for run in runs {
        let log = service.run_events_of_kinds(principal, run, &["message.started"]).await?;
        begun.extend(log.events.iter().filter_map(|event| match event.body() {
            Some(EventBody::MessageStarted { message_id, .. }) => Some(message_id),
            _ => None,
        }));
    }
    Ok(begun)
}

/// Returns the items that show the calls of these messages as calls of server tools.
fn server_calls(messages: &[Message]) -> Vec<Value> {
    let results = messages.iter().flat_map(Message::tool_results);
    let results: HashMap<&CallId, &ToolResultPart> = results.map(|result| (&result.call_id, result)).collect();
    let item = |call: &ToolCallPart| {
        let mut item = items::server_call(&call.call_id, &call.name, None);
        item["arguments"] = call.arguments.to_string().into();
        let result = results.get(&call.call_id);
        let text = result.map_or_else(|| "the call has no result".to_owned(), |result| items::tool_text(&result.content));
        let is_error = result.is_none_or(|result| result.is_error);
        items::with_result(item, text, is_error, if is_error { "failed" } else { "completed" })
    };
    messages.iter().flat_map(Message::tool_calls).map(item).collect()
}

async fn question_item(service: &Service, principal: &Principal, id: &InputId) -> Answer<Option<Value>> {
    match service.input_request(principal, id).await {
        Ok(found) => {
            let text = question_text(&found.request.question);
            Ok(Some(items::text(items::TextKind::Answer, &items::question_id(id), Some(&text), "completed")))
        }
        Err(Error::NotFound(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns the problem of an item that does not exist. Its text begins as that of OpenAI's own service.
fn missing(pointer: &str, id: &str) -> Problem {
    let detail = format!("Item with id {id:?} not found. Send the item itself, or leave it out.");
    ProblemCode::NotFound.body_about(pointer, detail).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::conversation::message::{Part, Role, ToolContent};
    use crate::domain::ids::{ConversationId, PartId};
    use crate::domain::tool::ToolCallState;
    use serde_json::json;

    #[test]
    fn item_id_names_its_stored_object() {
        let digits = "01980000000070008000000000000001";
        let id = |prefix: &str| format!("{prefix}_{digits}");
        let message = MessageId::from_stored(id("msg"));
        let question = InputId::from_stored(id("input"));
        assert_eq!(StoredObject::of(&format!("{}_2", id("msg"))), Some(StoredObject::Part(message.clone())));
        assert_eq!(StoredObject::of(&id("msg")), Some(StoredObject::Message(message, Some(question))));
        for prefix in ["fc", "fco", "mcp"] {
            assert_eq!(StoredObject::of(&id(prefix)), Some(StoredObject::Call(CallId::from_stored(id("call")))));
        }
        for description in [format!("{}_0", id("msg_system")), format!("{}_0", id("rs")), id("mcpr"), id("mcpa"), id("mcpl")] {
            assert_eq!(StoredObject::of(&description), Some(StoredObject::Description), "{description}");
        }
        for unknown in ["", "msg", "msg_1", "msg_1_0", "fc_x", "ws_1"] {
            assert_eq!(StoredObject::of(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn call_of_a_server_has_its_result_or_an_error() {
        let call = |number: u32| CallId::from_stored(format!("call_{number}"));
        let part = || PartId::from_stored("part_1".to_owned());
        let message = |role, parts| {
            let of = (RunId::from_stored("run_1".to_owned()), ConversationId::from_stored("conv_1".to_owned()));
            Message::new(MessageId::from_stored("msg_1".to_owned()), of, role, parts)
        };
        let called = (1..=3).map(|number| {
            Part::ToolCall(ToolCallPart::new(part(), call(number), "files__read".to_owned(), json!({ "n": number })))
        });
        let result = |number, is_error| {
            let content = vec![ToolContent::text("the result")];
            let (call_id, name) = (call(number), "files__read".to_owned());
            Part::ToolResult(ToolResultPart {
                id: part(),
                call_id,
                name,
                content,
                is_error,
                state: ToolCallState::Done,
                undoable: false,
            })
        };
        let messages = [message(Role::Assistant, called.collect()), message(Role::Tool, vec![result(1, false), result(2, true)])];
        let items = server_calls(&messages);
        let shown: Vec<_> = items.iter().map(|item| (&item["id"], &item["status"], &item["output"])).collect();
        let (completed, failed) = (json!("completed"), json!("failed"));
        assert_eq!(shown[0], (&json!("mcp_1"), &completed, &json!("the result")));
        assert_eq!(shown[1..], [(&json!("mcp_2"), &failed, &Value::Null), (&json!("mcp_3"), &failed, &Value::Null)]);
        let reasons: Vec<&Value> = items.iter().map(|item| &item["error"]["content"][0]["text"]).collect();
        assert_eq!(reasons, [&Value::Null, &json!("the result"), &json!("the call has no result")]);
        assert_eq!(
            (&items[0]["server_label"], &items[0]["name"], &items[0]["arguments"]),
            (&json!("files"), &json!("read"), &json!("{\"n\":1}"))
        );
    }
}
