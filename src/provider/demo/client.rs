//! Streams the text of [`super::answer`] at the speed of a real model.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt as _, stream};

use super::answer::{self, Reply};
use super::intent::WantedCall;
use crate::domain::conversation::Part;
use crate::domain::model::{ModelError, ModelEvent, ModelFinish, ModelRequest, Usage};
use crate::provider::{ModelClient, ModelStream};

const ARGUMENT_LETTERS: usize = 8;

const PAUSE: Duration = Duration::from_millis(25);

pub struct DemoClient;

#[async_trait]
impl ModelClient for DemoClient {
    async fn stream(&self, request: ModelRequest) -> Result<ModelStream, ModelError> {
        Ok(Box::pin(stream::iter(events(&request)).then(|event| async move {
            tokio::time::sleep(PAUSE).await;
            Ok(event)
        })))
    }
}

fn events(request: &ModelRequest) -> Vec<ModelEvent> {
    let (mut events, finish): (Vec<_>, _) = match answer::reply(request) {
        Reply::Text(text) => (words(&text).map(|word| ModelEvent::Text(word.to_owned())).collect(), ModelFinish::Stop),
        Reply::Calls(calls) => {
            (calls.iter().enumerate().flat_map(|(at, call)| call_events(at, call)).collect(), ModelFinish::ToolCalls)
        }
    };
    let parts = request.messages.iter().flat_map(|message| &message.parts);
    let read = parts.map(|part| if let Part::Text(text) = part { words(&text.text).count() } else { 0 });
    let read = read.sum::<usize>() + words(&request.system).count();
    events.push(ModelEvent::Usage(Usage {
        input_tokens: read as u64,
        output_tokens: events.len() as u64,
        model_calls: 1,
        estimated: true,
        ..Usage::default()
    }));
    events.push(ModelEvent::Finished(finish));
    events
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive(char::is_whitespace)
}

fn call_events(index: usize, call: &WantedCall) -> Vec<ModelEvent> {
    let mut events =
        vec![ModelEvent::ToolCallStarted { index, provider_call_id: format!("demo_{index}"), name: call.name.to_owned() }];
    let letters: Vec<char> = call.arguments.to_string().chars().collect();
    let deltas = letters.chunks(ARGUMENT_LETTERS).map(|piece| piece.iter().collect());
    events.extend(deltas.map(|delta| ModelEvent::ToolCallArguments { index, delta }));
    events
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::conversation::message::{Message, Part, Role, TextPart, ToolCallPart, ToolContent, ToolResultPart};
    use crate::domain::ids::{CallId, ConversationId, MessageId, PartId, RunId};
    use crate::domain::tool::{ReplayClass, ToolCallState, ToolDefinition};
    use crate::support::ids::SequentialIds;
    use serde_json::{Value, json};
    use std::sync::Arc;

    fn message(role: Role, parts: Vec<Part>) -> Message {
        let ids = SequentialIds::default();
        Message {
            created_at: "2026-01-01T00:00:00.000Z".to_owned(),
            ..Message::new(MessageId::generate(&ids), (RunId::generate(&ids), ConversationId::generate(&ids)), role, parts)
        }
    }

    fn user(text: &str) -> Message {
        message(Role::User, vec![Part::Text(TextPart { id: PartId::generate(&SequentialIds::default()), text: text.to_owned() })])
    }

    fn request(messages: Vec<Message>) -> ModelRequest {
        let tools = ["current_time", "calculate", "list_directory", "read_file"]
            .map(|name| Arc::new(ToolDefinition::new(name, "", json!({"type": "object"}), ReplayClass::Read)));
        ModelRequest { model: "demo".to_owned(), messages, tools: tools.to_vec(), ..ModelRequest::default() }
    }

    fn said(events: &[ModelEvent]) -> String {
        events.iter().filter_map(|event| if let ModelEvent::Text(text) = event { Some(text.as_str()) } else { None }).collect()
    }

    fn called(events: &[ModelEvent]) -> Vec<(String, Value)> {
        let mut calls: Vec<(String, String)> = Vec::new();
        for event in events {
            match event {
                ModelEvent::ToolCallStarted { name, .. } => calls.push((name.clone(), String::new())),
                ModelEvent::ToolCallArguments { index, delta } => calls[*index].1.push_str(delta),
                _ => {}
            }
        }
        calls.into_iter().map(|(name, arguments)| (name, serde_json::from_str(&arguments).unwrap())).collect()
    }

    #[test]
    fn asks_two_tools_at_once_and_uses_both_results() {
        let question = user("What time is it, and what is 17*23?");
        let events = events(&request(vec![question.clone()]));
        assert_eq!(events.last(), Some(&ModelEvent::Finished(ModelFinish::ToolCalls)));
        let calls = called(&events);
        assert_eq!(calls, [("current_time".to_owned(), json!({})), ("calculate".to_owned(), json!({"expression": "17*23"}))]);

        let ids = SequentialIds::default();
        let answers = ["2026-01-01T00:00:00+00:00 (Thursday, 1 January 2026, 00:00:00, UTC)", "391"];
        let mut asked = Vec::new();
        let mut results = Vec::new();
        for ((name, arguments), answer) in calls.into_iter().zip(answers) {
            let call_id = CallId::generate(&ids);
            asked.push(Part::ToolCall(ToolCallPart {
                id: PartId::generate(&ids),
                call_id: call_id.clone(),
                name: name.clone(),
                arguments,
                provider_call_id: None,
                raw: None,
                undoes: None,
            }));
            results.push(Part::ToolResult(ToolResultPart {
                id: PartId::generate(&ids),
                call_id,
                name,
                content: vec![ToolContent::text(answer)],
                is_error: false,
                state: ToolCallState::Done,
                undoable: false,
            }));
        }
        let history = vec![question, message(Role::Assistant, asked), message(Role::Tool, results)];
        let events = super::events(&request(history.clone()));
        let text = said(&events);
        assert!(text.contains("It is Thursday, 1 January 2026, 00:00:00, UTC. 17*23 = 391."), "{text}");
        assert!(text.contains("demonstration") && text.contains("OPENAI_API_KEY"), "{text}");
        assert_eq!(events.last(), Some(&ModelEvent::Finished(ModelFinish::Stop)));

        let later = super::events(&request([history, vec![message(Role::Assistant, Vec::new()), user("Thanks!")]].concat()));
        assert!(!said(&later).contains("demonstration"), "{}", said(&later));
    }

    #[test]
    fn long_answers_are_long() {
        let counted = said(&events(&request(vec![user("please count to 1200")])));
        assert!(counted.contains("1 2 3 4 ") && counted.ends_with(" 1199 1200"));
        assert!(words(&said(&events(&request(vec![user("Tell me a long story")])))).count() > 500);
    }

    #[tokio::test(start_paused = true)]
    async fn speaks_at_its_pace() {
        let client = DemoClient;
        let start = tokio::time::Instant::now();
        let mut answer = client.stream(request(vec![user("hello")])).await.unwrap();
        for _ in 0..40 {
            assert!(answer.next().await.unwrap().is_ok());
        }
        assert!((1_000..1_100).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
    }
}
