//! Converts stored messages into UI messages.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::assistant_message_id::AssistantMessageId;
use super::translator::{client_output, tool_output};
use crate::domain::conversation::message::{FilePart, Message, Part, Role, ToolCallPart, ToolContent, ToolResultPart};
use crate::domain::ids::{CallId, MessageId, RunId};
use crate::domain::tool::ToolCallState;
use crate::http::clients::thread::{OpenQuestions, messages_by_run};

/// Returns the UI messages of a conversation, oldest first. All answers of a run are one message, up to the next message of the
/// user that joined the run. The messages omit the answer of the run `streaming`, because its stream contains it. Clients execute the
/// `client_calls`.
pub(super) fn ui_messages(
    messages: &[Message],
    streaming: Option<&RunId>,
    open: &OpenQuestions,
    client_calls: &BTreeSet<CallId>,
) -> Vec<Value> {
    let results: BTreeMap<&CallId, &ToolResultPart> =
        messages.iter().flat_map(Message::tool_results).map(|result| (&result.call_id, result)).collect();
    let mut shown: Vec<Value> = Vec::new();
    let mut places: BTreeMap<&RunId, usize> = BTreeMap::new();
    let mut joined: BTreeMap<&RunId, &MessageId> = BTreeMap::new();
    let ordered: Vec<&Message> = messages_by_run(messages).into_iter().filter(|message| !message.internal).collect();
    // The stream contains the answer to the newest message of its run.
    let is_of_stream = |message: &&&Message| streaming == Some(&message.run_id) && message.role == Role::User;
    let streamed_from = ordered.iter().rposition(|message| is_of_stream(&message)).unwrap_or(0);
    for (at, message) in ordered.into_iter().enumerate() {
        let is_streamed = at >= streamed_from && streaming == Some(&message.run_id);
        match message.role {
            Role::User => {
                if places.remove(&message.run_id).is_some() {
                    joined.insert(&message.run_id, &message.id);
                }
                let parts: Vec<Value> = message.parts.iter().filter_map(user_part).collect();
                let metadata = json!({ "created_at": message.created_at });
                shown.push(json!({ "id": message.id, "role": "user", "parts": parts, "metadata": metadata }));
            }
            Role::Assistant if !is_streamed => {
                let place = *places.entry(&message.run_id).or_insert_with(|| {
                    let of = json!({ "run_id": message.run_id, "conversation_id": message.conversation_id });
                    let joined = joined.get(&message.run_id).map(|id| (*id).clone());
                    let id = AssistantMessageId { run: message.run_id.clone(), joined }.to_string();
                    shown.push(json!({ "id": id, "role": "assistant", "metadata": of, "parts": [] }));
                    shown.len() - 1
                });
                let parts = shown.get_mut(place).and_then(|shown| shown.get_mut("parts")).and_then(Value::as_array_mut);
                if let Some(parts) = parts {
                    parts.push(json!({ "type": "step-start" }));
                    parts.extend(message.parts.iter().filter_map(|part| assistant_part(part, &results, (open, client_calls))));
                }
            }
            Role::Assistant | Role::Tool => {}
        }
    }
    for question in &open.questions {
        let run = json!(question.run_id);
        let answer = shown.iter_mut().rfind(|message| message["role"] == "assistant" && message["metadata"]["run_id"] == run);
        if let Some(parts) = answer.and_then(|answer| answer.get_mut("parts")?.as_array_mut()) {
            let data = json!({
                "state": question.state, "kind": question.kind, "toolCallId": question.call_id, "question": question.question,
            });
            parts.push(json!({ "type": "data-input-request", "id": question.id, "data": data }));
        }
    }
    shown
}

fn user_part(part: &Part) -> Option<Value> {
    match part {
        Part::Text(part) => Some(json!({ "type": "text", "text": part.text })),
        Part::Image(part) | Part::File(part) => file_part(part),
        Part::Reasoning(_) | Part::ToolCall(_) | Part::ToolResult(_) | Part::Source(_) => None,
    }
}

fn file_part(part: &FilePart) -> Option<Value> {
    let mut shown = json!({ "type": "file", "mediaType": part.media_type, "url": part.url.as_ref()? });
    if let Some(name) = &part.name {
        shown["filename"] = json!(name);
    }
    Some(shown)
}

fn assistant_part(
    part: &Part,
    results: &BTreeMap<&CallId, &ToolResultPart>,
    (open, client_calls): (&OpenQuestions, &BTreeSet<CallId>),
) -> Option<Value> {
    match part {
        Part::Text(part) => Some(json!({ "type": "text", "text": part.text, "state": "done" })),
        Part::Reasoning(part) => Some(json!({ "type": "reasoning", "text": part.text, "state": "done" })),
        Part::ToolCall(call) => Some(tool_part(call, results.get(&call.call_id).copied(), (open, client_calls))),
        Part::Image(part) | Part::File(part) => file_part(part),
        Part::Source(part) => Some(match &part.url {
            Some(url) => {
                let title = part.title.as_ref().unwrap_or(url);
                json!({ "type": "source-url", "sourceId": part.id, "url": url, "title": title })
            }
            None => {
                let title = part.title.as_deref().or(part.text.as_deref()).unwrap_or_default();
                json!({ "type": "source-document", "sourceId": part.id, "mediaType": "text/plain", "title": title })
            }
        }),
        Part::ToolResult(_) => None,
    }
}

fn tool_part(
    call: &ToolCallPart,
    result: Option<&ToolResultPart>,
    (open, client_calls): (&OpenQuestions, &BTreeSet<CallId>),
) -> Value {
    let mut part = match client_calls.contains(&call.call_id) {
        true => json!({ "type": format!("tool-{}", call.name) }),
        false => json!({ "type": "dynamic-tool", "toolName": call.name, "providerExecuted": true }),
    };
    part["toolCallId"] = json!(call.call_id);
    part["input"] = call.arguments.clone();
    let Some(result) = result else {
        let approval = open.approvals.iter().find(|approval| approval.call_id.as_ref() == Some(&call.call_id));
        part["state"] = json!(if approval.is_some() { "approval-requested" } else { "input-available" });
        if let Some(approval) = approval {
            part["approval"] = json!({ "id": approval.id });
        }
        return part;
    };
    if result.state == ToolCallState::Denied {
        part["state"] = json!("output-denied");
        // The part needs an id, but no request refers to a decided approval.
        part["approval"] = json!({ "id": call.call_id, "approved": false });
    } else if result.is_error {
        (part["state"], part["errorText"]) = (json!("output-error"), json!(ToolContent::joined_text(&result.content)));
    } else {
        let output = if client_calls.contains(&call.call_id) { client_output } else { tool_output };
        (part["state"], part["output"]) = (json!("output-available"), output(&result.content));
    }
    part
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::conversation::message::TextPart;
    use crate::domain::ids::{ConversationId, PartId};
    use crate::http::clients::tests::{CONVERSATION, id};

    /// Returns the ids of the UI messages of texts with these roles and runs.
    fn listed(messages: &[(Role, u32)]) -> Vec<String> {
        let message = |(number, (role, run)): (u32, &(Role, u32))| {
            let of = (RunId::parse(&id("run", *run)).unwrap(), ConversationId::parse(CONVERSATION).unwrap());
            let part = Part::Text(TextPart { id: PartId::parse(&id("part", number)).unwrap(), text: "hi".to_owned() });
            Message::new(MessageId::parse(&id("msg", number)).unwrap(), of, *role, vec![part])
        };
        let messages: Vec<Message> = (1..).zip(messages).map(message).collect();
        let shown = ui_messages(&messages, None, &OpenQuestions::default(), &BTreeSet::new());
        shown.iter().map(|message| message["id"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn queued_message_is_listed_after_the_earlier_answer() {
        let listed = listed(&[(Role::User, 1), (Role::User, 2), (Role::Assistant, 1), (Role::Assistant, 2)]);
        assert_eq!(listed, [id("msg", 1), id("run", 1), id("msg", 2), id("run", 2)]);
    }

    #[test]
    fn answer_after_a_message_that_joined_is_another_message() {
        let run = [Role::User, Role::Assistant, Role::User, Role::Assistant, Role::Assistant];
        let listed = listed(&run.map(|role| (role, 1)));
        assert_eq!(listed, [id("msg", 1), id("run", 1), id("msg", 3), format!("{}.{}", id("run", 1), id("msg", 3))]);
    }
}
