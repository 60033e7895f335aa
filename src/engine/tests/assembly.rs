//! The answer assembler: the shown parts equal the stored ones.

use std::collections::HashMap;

use proptest::prelude::*;
use serde_json::json;

use crate::domain::conversation::message::{MessageStatus, Part};
use crate::domain::event::EventBody;
use crate::domain::ids::{ConversationId, PartId, RunId};
use crate::domain::model::{ModelErrorKind, ModelEvent, ModelFinish, Usage};
use crate::engine::tests::world::NOW;
use crate::engine::{Assembler, MAX_ANSWER_BYTES, PartialAnswer, StreamItem};
use crate::support::ids::SequentialIds;

fn assembler(ids: &SequentialIds) -> Assembler {
    Assembler::new(RunId::generate(ids), ConversationId::generate(ids), "demo/demo".to_owned(), 1)
}

fn text(text: &str) -> ModelEvent {
    ModelEvent::Text(text.to_owned())
}

fn begun(index: usize, name: &str) -> ModelEvent {
    ModelEvent::ToolCallStarted { index, provider_call_id: format!("p{index}"), name: name.to_owned() }
}

fn more(index: usize, delta: &str) -> ModelEvent {
    ModelEvent::ToolCallArguments { index, delta: delta.to_owned() }
}

fn words(items: &[StreamItem]) -> Vec<String> {
    items
        .iter()
        .map(|item| match item {
            StreamItem::Event(EventBody::PartStarted { index, kind, .. }) => format!("{kind} {index}"),
            StreamItem::Event(event) => event.kind().to_owned(),
            StreamItem::Delta(_, delta) => format!("+{delta}"),
        })
        .collect()
}

#[test]
fn parts_open_and_close_in_order() {
    let ids = SequentialIds::default();
    let mut assembler = assembler(&ids);
    let mut shown = Vec::new();
    for event in [
        ModelEvent::Reasoning("hm".to_owned()),
        text("a"),
        text(""),
        text("b"),
        begun(7, "read"),
        begun(3, "write"),
        more(7, "{\"x\""),
        more(3, "{}"),
        more(7, ":1}"),
        text("c"),
    ] {
        shown.extend(assembler.push(event, &ids));
    }
    assert_eq!(
        words(&shown),
        [
            "message.started",
            "reasoning 0",
            "+hm",
            "part.completed",
            "text 1",
            "+a",
            "+b",
            "part.completed",
            "tool_call 2",
            "tool_call 3",
            "+{\"x\"",
            "+{}",
            "+:1}",
            "text 4",
            "+c"
        ]
    );
    assembler.push(ModelEvent::Finished(ModelFinish::ToolCalls), &ids);
    assert!(assembler.push(text("late"), &ids).is_empty());
    let (message, turn, closing) = assembler.finish(&ids, NOW).unwrap();
    assert_eq!(closing.len(), 3);
    assert_eq!(message.text(), "abc");
    let calls: Vec<_> = message.tool_calls().map(|call| (call.name.as_str(), call.arguments.clone())).collect();
    assert_eq!(calls, [("read", json!({"x": 1})), ("write", json!({}))]);
    assert_eq!((message.parts.len(), turn.arguments.len()), (5, 2));
    assert!(turn.usage.estimated && turn.usage.output_tokens > 0 && turn.usage.model_calls == 1);
}

#[test]
fn an_index_that_begins_twice_is_another_call() {
    let ids = SequentialIds::default();
    let mut assembler = assembler(&ids);
    for event in [begun(0, "a"), more(0, "{}"), begun(0, "b"), more(0, "{\"n\":1}"), ModelEvent::Finished(ModelFinish::Stop)] {
        assembler.push(event, &ids);
    }
    let (message, ..) = assembler.finish(&ids, NOW).unwrap();
    let calls: Vec<_> = message.tool_calls().map(|call| (call.name.as_str(), call.arguments.clone())).collect();
    assert_eq!(calls, [("a", json!({})), ("b", json!({"n": 1}))]);
}

#[test]
fn a_stream_without_an_end_is_no_answer() {
    let ids = SequentialIds::default();
    let mut cut = assembler(&ids);
    cut.push(text("Half an ans"), &ids);
    cut.push(begun(0, "write"), &ids);
    cut.push(more(0, "{}"), &ids);
    assert_eq!(cut.finish(&ids, NOW).unwrap_err().kind, ModelErrorKind::IncompleteStream);

    let mut stray = assembler(&ids);
    stray.push(more(4, "{}"), &ids);
    assert!(stray.broken().is_some());
    stray.push(ModelEvent::Finished(ModelFinish::Stop), &ids);
    assert_eq!(stray.finish(&ids, NOW).unwrap_err().kind, ModelErrorKind::BadStream);
}

#[test]
fn an_answer_is_bounded() {
    let ids = SequentialIds::default();
    let mut endless = assembler(&ids);
    let piece = "x".repeat(1 << 20);
    for _ in 0..MAX_ANSWER_BYTES >> 20 {
        endless.push(text(&piece), &ids);
    }
    assert!(endless.broken().is_none());
    assert!(endless.push(text("x"), &ids).is_empty());
    assert_eq!(endless.broken().map(|error| error.kind), Some(ModelErrorKind::BadStream));
}

#[test]
fn an_empty_answer_is_an_answer_without_parts() {
    let ids = SequentialIds::default();
    let mut empty = assembler(&ids);
    assert!(empty.push(ModelEvent::Usage(Usage { input_tokens: 4, ..Usage::default() }), &ids).is_empty());
    empty.push(ModelEvent::Finished(ModelFinish::Stop), &ids);
    let (message, turn, closing) = empty.finish(&ids, NOW).unwrap();
    assert!(message.parts.is_empty() && closing.is_empty() && !turn.usage.estimated);
}

#[test]
fn a_partial_answer_is_all_that_was_shown() {
    let ids = SequentialIds::default();
    assert!(assembler(&ids).partial(NOW).is_none());
    let mut partial = assembler(&ids);
    partial.push(text("The fi"), &ids);
    partial.push(begun(0, "read"), &ids);
    let PartialAnswer { message, closing } = partial.partial(NOW).unwrap();
    assert_eq!((message.status, message.parts.len(), message.text().as_str()), (MessageStatus::Partial, 2, "The fi"));
    assert_eq!(closing, [EventBody::PartCompleted { message_id: message.id.clone(), part: message.parts[1].clone() }]);
}

fn any_event() -> impl Strategy<Value = ModelEvent> {
    prop_oneof![
        "[a-zé{}\":]{0,4}".prop_map(ModelEvent::Text),
        "[a-z]{0,3}".prop_map(ModelEvent::Reasoning),
        (0..3_usize).prop_map(|index| begun(index, "read")),
        (0..3_usize, "[{}a\":1]{0,4}").prop_map(|(index, delta)| more(index, &delta)),
        (0..9_u64).prop_map(|output_tokens| ModelEvent::Usage(Usage { output_tokens, ..Usage::default() })),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// For any events: each part starts once, completes once, and holds exactly its deltas.
    #[test]
    fn completed_parts_equal_their_deltas(events in prop::collection::vec(any_event(), 0..40)) {
        let ids = SequentialIds::default();
        let mut assembler = assembler(&ids);
        let mut shown = Vec::new();
        for event in events {
            shown.extend(assembler.push(event, &ids));
        }
        assembler.push(ModelEvent::Finished(ModelFinish::Stop), &ids);
        let Ok((message, turn, closing)) = assembler.finish(&ids, NOW) else { return Ok(()) };
        shown.extend(closing.into_iter().map(StreamItem::Event));
        let mut deltas: HashMap<PartId, String> = HashMap::new();
        let mut completed: HashMap<PartId, Part> = HashMap::new();
        for item in shown {
            match item {
                StreamItem::Event(EventBody::PartStarted { part_id, .. }) => prop_assert!(deltas.insert(part_id, String::new()).is_none()),
                StreamItem::Event(EventBody::PartCompleted { part, .. }) => {
                    prop_assert!(deltas.contains_key(part.id()));
                    prop_assert!(completed.insert(part.id().clone(), part).is_none());
                }
                StreamItem::Event(event) => prop_assert_eq!(event.kind(), "message.started"),
                StreamItem::Delta(part_id, delta) => {
                    prop_assert!(!completed.contains_key(&part_id));
                    deltas.get_mut(&part_id).unwrap().push_str(&delta);
                }
            }
        }
        prop_assert_eq!(message.parts.len(), completed.len());
        let mut arguments = turn.arguments.iter();
        for part in &message.parts {
            prop_assert_eq!(&completed[part.id()], part);
            let said = &deltas[part.id()];
            match part {
                Part::Text(part) => prop_assert_eq!(&part.text, said),
                Part::Reasoning(part) => prop_assert_eq!(&part.text, said),
                Part::ToolCall(part) => {
                    prop_assert!(part.arguments.is_object());
                    prop_assert_eq!(arguments.next(), Some(said));
                }
                other => prop_assert!(false, "{:?}", other),
            }
        }
        prop_assert_eq!(arguments.next(), None);
    }
}
