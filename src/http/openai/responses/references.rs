//! The stored items to which a request refers by `item_reference`.
//!
//! Owns the lookup of a stored item by its id. Must not know how an item is used. Calls are found by their rows in `tool_calls`. Calls
//! of copied conversations, and calls that a client has sent itself, have none.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::domain::access::principal::Principal;
use crate::domain::conversation::message::Message;
use crate::domain::event::EventBody;
use crate::domain::ids::{CallId, InputId, MessageId, RunId};
use crate::domain::problem::ProblemCode;
use crate::domain::run::question::InputRequest;
use crate::http::openai::content::question_text;
use crate::http::openai::responses::items;
use crate::http::openai::responses::request::{KnownItems, Reference};
use crate::http::wire::problem::{HttpResult, Problem, found};
use crate::service::{Error, Service};

/// The stored object that an item shows.
#[derive(Debug, PartialEq, Eq)]
enum StoredObject {
    /// A part of a message of the model.
    Part(MessageId),
    /// A message of the user, or a question of a run. The ids of both have the same form.
    Message(MessageId, Option<InputId>),
    Call(CallId),
    /// The answer to a question of a run.
    Answer(InputId),
    /// The item only describes an answer, such as reasoning or an approval, or is a text of the role `system`, which applies anyway.
    Description,
}

impl StoredObject {
    fn of(item: &str) -> Option<Self> {
        if items::is_system(item) {
            return Some(Self::Description);
        }
        if let Some(digits) = item.strip_prefix(items::ANSWER_ID_PREFIX) {
            return Some(Self::Answer(InputId::parse(&format!("input_{digits}")).ok()?));
        }
        let (prefix, digits) = item.split_once('_')?;
        match (prefix, digits.split_once('_')) {
            ("msg", Some((message, _))) => Some(Self::Part(MessageId::parse(&format!("msg_{message}")).ok()?)),
            ("msg", None) => Some(Self::Message(MessageId::parse(item).ok()?, InputId::parse(&format!("input_{digits}")).ok())),
            // A call that the client has sent.
            ("fc" | "mcp", Some((_, message))) => Some(Self::Part(MessageId::parse(&format!("msg_{message}")).ok()?)),
            ("fc" | "fco" | "mcp", _) => Some(Self::Call(CallId::parse(&format!("call_{digits}")).ok()?)),
            ("rs" | "mcpr" | "mcpa" | "mcpl", _) => Some(Self::Description),
            _ => None,
        }
    }
}

/// Returns the items to which a request refers, without those that have no effect. Fails if the principal has no such message,
/// question or call.
pub(super) async fn known_items(
    service: &Service,
    principal: &Principal,
    references: Vec<Reference<'_>>,
) -> HttpResult<KnownItems> {
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
            StoredObject::Answer(_) => {}
            StoredObject::Description => continue,
        }
        objects.insert(id, (pointer, object));
    }
    let ids: (Vec<MessageId>, Vec<CallId>) = (messages.into_iter().collect(), calls.into_iter().collect());
    let messages = service.referenced_messages(principal, (&ids.0, &ids.1), &first).await?;
    // The id of a call tells whether it is shown as a call of the client or of the server.
    let items = [true, false].into_iter().flat_map(|is_of_client| items::of_messages(&messages, |_| is_of_client));
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
            (None, StoredObject::Message(_, Some(question))) => {
                question_item(service, principal, &question, item_of_question).await?
            }
            (None, StoredObject::Answer(question)) => question_item(service, principal, &question, item_of_answer).await?,
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
async fn begun_messages(service: &Service, principal: &Principal, messages: &[Message]) -> HttpResult<BTreeSet<MessageId>> {
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

/// Returns the item `of` a question; `None` if the principal has no such question.
async fn question_item(
    service: &Service,
    principal: &Principal,
    id: &InputId,
    of: impl Fn(InputRequest) -> Option<Value>,
) -> HttpResult<Option<Value>> {
    Ok(found(service.input_request(principal, id).await)?.and_then(|record| of(record.request)))
}

fn item_of_question(InputRequest { id, question, .. }: InputRequest) -> Option<Value> {
    Some(items::text(items::TextKind::Answer, &items::question_id(&id), Some(&question_text(&question)), "completed"))
}

fn item_of_answer(InputRequest { id, answer, .. }: InputRequest) -> Option<Value> {
    answer.map(|answer| items::question_answer(&id, answer))
}

/// Returns the problem of an item that does not exist. Its text begins as that of OpenAI's own service.
fn missing(pointer: &str, id: &str) -> Problem {
    let detail = format!("Item with id {id:?} not found. Send the item itself, or leave it out.");
    ProblemCode::NotFound.body_about(pointer, detail).into()
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(
            StoredObject::of(&format!("msg_answer_{digits}")),
            Some(StoredObject::Answer(InputId::from_stored(id("input"))))
        );
        let sent = format!("{}_{digits}", id("fc"));
        assert_eq!(StoredObject::of(&sent), Some(StoredObject::Part(MessageId::from_stored(id("msg")))));
        for description in [format!("{}_0", id("msg_system")), format!("{}_0", id("rs")), id("mcpr"), id("mcpa"), id("mcpl")] {
            assert_eq!(StoredObject::of(&description), Some(StoredObject::Description), "{description}");
        }
        for unknown in ["", "msg", "msg_1", "msg_1_0", "fc_x", "ws_1"] {
            assert_eq!(StoredObject::of(unknown), None, "{unknown}");
        }
    }
}
