//! Converts the events of a stream, or a complete answer, into deltas.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::calls::Calls;
use super::items::{ItemRef, Kind as TextKind, PartKey, Source, Texts};
use super::wire::{Contents, Event, Item, Kind, Response};
use crate::domain::model::{ModelError, ModelErrorKind, ModelEvent, ModelFinish};
use crate::provider::errors::failure;
use crate::provider::stream::{AnswerAssembler, StopReason, StreamAdapter, incomplete, read_stop_reason, reported};

#[derive(Debug, Default)]
pub(in crate::provider) struct ResponsesAdapter {
    texts: Texts,
    calls: Calls,
    /// Whether a reasoning item was emitted.
    has_reasoning_item: bool,
}

fn unfinished() -> ModelError {
    incomplete("the answer ended without a final status")
}

impl StreamAdapter for ResponsesAdapter {
    fn event(&mut self, name: &str, json: &str, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        match answer.parse::<Event<'_>>(json) {
            Ok(event) => self.take(name, &event, json, answer),
            // A new kind of event may have any shape.
            Err(_) if json.starts_with('{') && serde_json::from_str::<Kind<'_>>(json).is_ok_and(|kind| !kind.is_known()) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn document(&mut self, json: &str, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        let response: Response<'_> = answer.parse(json)?;
        if response.object.0 == "error" {
            return Err(reported(json));
        }
        if response.output.is_none() && response.error.is_none() {
            failure::check_for_unusual_error(json)?;
        }
        self.response("", &response, answer)
    }

    fn end_mark(&mut self, _answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        Err(unfinished())
    }

    fn finish(&mut self, answer: &mut AnswerAssembler) -> Result<ModelFinish, ModelError> {
        let finish = answer.finish.ok_or_else(unfinished)?;
        if finish == ModelFinish::Stop && !answer.is_refused && !answer.is_at_limit() {
            self.calls.finish()?;
        }
        Ok(finish)
    }
}

impl ResponsesAdapter {
    fn take(&mut self, name: &str, event: &Event<'_>, json: &str, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        let item_ref = ItemRef { output: event.output_index, id: &event.item_id.0 };
        let text = PartKey { source: Source::Text, index: event.content_index.unwrap_or(0) };
        let summary = PartKey { source: Source::Summary, index: event.summary_index.unwrap_or(0) };
        let kind = if event.kind.0.is_empty() { name } else { &event.kind.0 };
        match kind {
            "response.created" => self.restart(answer),
            "response.output_item.added" => self.item_added(event, answer)?,
            "response.output_item.done" => self.item_done(event, answer)?,
            "response.output_text.delta" | "response.refusal.delta" => {
                answer.is_refused |= kind == "response.refusal.delta";
                self.texts.piece(TextKind::Message, item_ref, text, &event.delta.0, answer);
            }
            "response.output_text.done" => self.texts.whole_part(TextKind::Message, item_ref, text, &event.text.0, answer),
            "response.output_text.annotation.added" => answer.add_sources(&event.annotation),
            "response.refusal.done" => {
                answer.is_refused = true;
                self.texts.whole_part(TextKind::Message, item_ref, text, &event.refusal.0, answer);
            }
            "response.reasoning_summary_text.delta" | "response.reasoning_summary.delta" => {
                self.texts.piece(TextKind::Reasoning, item_ref, summary, &event.delta.0, answer);
            }
            "response.reasoning_summary_text.done" | "response.reasoning_summary.done" => {
                self.texts.whole_part(TextKind::Reasoning, item_ref, summary, &event.text.0, answer);
            }
            "response.reasoning_text.delta" | "response.reasoning.delta" => {
                self.texts.piece(TextKind::Reasoning, item_ref, text, &event.delta.0, answer);
            }
            "response.reasoning_text.done" | "response.reasoning.done" => {
                self.texts.whole_part(TextKind::Reasoning, item_ref, text, &event.text.0, answer);
            }
            "response.content_part.done" | "response.reasoning_summary_part.done" => self.part_done(event, answer),
            "response.function_call_arguments.delta" => self.calls.piece(item_ref, &event.delta.0, answer)?,
            "response.function_call_arguments.done" => self.calls.arguments(item_ref, &event.arguments.0, answer)?,
            "response.completed" | "response.done" | "response.incomplete" | "response.failed" | "response.cancelled" => {
                let json = event.response.map_or("{}", RawValue::get);
                let response = serde_json::from_str(json).map_err(|error| answer.bad_frame(&error.to_string()))?;
                self.response(kind, &response, answer)?;
            }
            "error" | "response.error" => return Err(reported(json)),
            // New kinds of events are ignored, unless they contain an error.
            _ => match &event.error {
                Some(error) => return Err(failure::from_event(error)),
                None if kind.starts_with("response.") => {}
                None => failure::check_for_unusual_error(json)?,
            },
        }
        Ok(())
    }

    /// Voids the answer so far if a second answer begins.
    fn restart(&mut self, answer: &mut AnswerAssembler) {
        if self.texts.is_empty() && !answer.has_calls() {
            return;
        }
        *self = Self::default();
        answer.restart();
    }

    fn item_added(&mut self, event: &Event<'_>, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        let Some(item) = event.item else { return Ok(()) };
        let item = parse_raw::<Item<'_>>(item, answer)?;
        let item_ref = ItemRef { output: event.output_index, id: &item.id.0 };
        match &*item.kind.0 {
            "function_call" => self.calls.begin(item_ref, &item, answer)?,
            "message" => self.texts.begin(TextKind::Message, item_ref),
            "reasoning" => self.texts.begin(TextKind::Reasoning, item_ref),
            _ => {}
        }
        Ok(())
    }

    fn item_done(&mut self, event: &Event<'_>, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        let Some(raw) = event.item else { return Ok(()) };
        let item = parse_raw::<Item<'_>>(raw, answer)?;
        let item_ref = ItemRef { output: event.output_index, id: &item.id.0 };
        match &*item.kind.0 {
            "function_call" => self.calls.item(item_ref, &item, answer)?,
            "message" => self.message(item_ref, &item, answer),
            "reasoning" => self.reasoning(item_ref, &item, raw, answer)?,
            _ => {}
        }
        Ok(())
    }

    fn part_done(&mut self, event: &Event<'_>, answer: &mut AnswerAssembler) {
        let Some(part) = &event.part else { return };
        let item_ref = ItemRef { output: event.output_index, id: &event.item_id.0 };
        let (kind, source, index) = match &*part.kind.0 {
            "output_text" | "text" | "refusal" => (TextKind::Message, Source::Text, event.content_index),
            "reasoning_text" => (TextKind::Reasoning, Source::Text, event.content_index),
            "summary_text" => (TextKind::Reasoning, Source::Summary, event.summary_index),
            _ => return,
        };
        let (received, is_refusal) = part.text_and_refusal();
        answer.is_refused |= is_refusal && kind == TextKind::Message;
        self.texts.whole_part(kind, item_ref, PartKey { source, index: index.unwrap_or(0) }, received, answer);
    }

    fn message(&mut self, item_ref: ItemRef<'_>, item: &Item<'_>, answer: &mut AnswerAssembler) {
        answer.is_refused |= item.content.texts().any(|(_, is_refusal)| is_refusal);
        self.texts.whole_item(TextKind::Message, item_ref, &keyed(&item.content, Source::Text), answer);
        item.content.annotations().for_each(|list| answer.add_sources(list));
    }

    fn reasoning(
        &mut self,
        item_ref: ItemRef<'_>,
        item: &Item<'_>,
        raw: &RawValue,
        answer: &mut AnswerAssembler,
    ) -> Result<(), ModelError> {
        let mut parts = keyed(&item.summary, Source::Summary);
        if parts.iter().all(|(_, text)| text.is_empty()) {
            parts = keyed(&item.content, Source::Text);
        }
        self.texts.whole_item(TextKind::Reasoning, item_ref, &parts, answer);
        self.emit_reasoning_item(raw, answer)
    }

    /// Emits a reasoning item, which goes back unchanged.
    fn emit_reasoning_item(&mut self, raw: &RawValue, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        let item = parse_raw::<Value>(raw, answer)?;
        self.has_reasoning_item = true;
        answer.emit(ModelEvent::ReasoningBlock(item));
        Ok(())
    }

    /// Accepts the complete answer. Its event, else its status, decides how it ended.
    fn response(&mut self, event: &str, response: &Response<'_>, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        if let Some(counts) = response.usage {
            answer.add_usage(counts);
        }
        let status = match (event.trim_start_matches("response."), &*response.status.0) {
            ("failed", _) | (_, "failed") => "failed",
            ("incomplete", _) | (_, "incomplete") => "incomplete",
            ("cancelled", _) | (_, "cancelled") => "cancelled",
            ("completed", _) | (_, "completed") => "completed",
            ("done", "") => "completed",
            // A document without a status, from a server that sends none.
            ("", "") if response.output.is_some() && response.error.is_none() => "completed",
            (_, other) => other,
        };
        let finish = match status {
            "completed" => ModelFinish::Stop,
            "incomplete" => match response.incomplete_details.as_ref().map_or("", |details| &details.reason.0) {
                "" if answer.is_at_limit() => ModelFinish::Length,
                reason => incomplete_reason(reason)?,
            },
            _ if response.error.is_some() => return Err(failure::from_event(response.error.as_ref().unwrap_or(&Value::Null))),
            "failed" => return Err(ModelError::new(ModelErrorKind::Unavailable, "the provider broke off with an error")),
            _ => return Err(unfinished()),
        };
        self.emit_missing_content(response.output.as_deref().unwrap_or_default(), answer)?;
        answer.stop(finish);
        answer.is_ended = true;
        Ok(())
    }

    /// Emits content that no event contained. Items are compared by content, because ids and positions may differ.
    fn emit_missing_content(&mut self, output: &[&RawValue], answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        let (received, thought) = (self.texts.text(TextKind::Message), self.texts.text(TextKind::Reasoning));
        let (mut received, keeps_reasoning) = (Some(received.as_str()), !self.has_reasoning_item);
        let mut calls = 0;
        for (index, raw) in (0..).zip(output) {
            let item = parse_raw::<Item<'_>>(raw, answer)?;
            match &*item.kind.0 {
                "function_call" => {
                    self.calls.of_answer(calls, &item, answer)?;
                    calls += 1;
                }
                "message" => {
                    item.content.annotations().for_each(|list| answer.add_sources(list));
                    for (text, is_refusal) in item.content.texts() {
                        answer.is_refused |= is_refusal;
                        let Some(left) = received else { break };
                        if let Some(rest) = left.strip_prefix(text) {
                            received = Some(rest);
                            continue;
                        }
                        // Emitted text cannot be withdrawn, so it takes precedence if the two differ.
                        received = text.strip_prefix(left).map(|rest| {
                            let key = PartKey { source: Source::Text, index };
                            self.texts.piece(TextKind::Message, ItemRef { output: None, id: "" }, key, rest, answer);
                            ""
                        });
                    }
                }
                "reasoning" if keeps_reasoning && thought.is_empty() => {
                    self.reasoning(ItemRef { output: Some(i64::MIN + index), id: &item.id.0 }, &item, raw, answer)?;
                }
                "reasoning" if keeps_reasoning => self.emit_reasoning_item(raw, answer)?,
                _ => {}
            }
        }
        Ok(())
    }
}

/// Returns the texts of an item, each with its position.
fn keyed<'a>(contents: &'a Contents<'_>, source: Source) -> Vec<(PartKey, &'a str)> {
    (0..).zip(contents.texts()).map(|(index, (text, _))| (PartKey { source, index }, text)).collect()
}

fn parse_raw<'a, T: Deserialize<'a>>(raw: &'a RawValue, answer: &AnswerAssembler) -> Result<T, ModelError> {
    serde_json::from_str(raw.get()).map_err(|error| answer.bad_frame(&error.to_string()))
}

fn incomplete_reason(word: &str) -> Result<ModelFinish, ModelError> {
    if word.is_empty() {
        return Err(unfinished());
    }
    match read_stop_reason(word) {
        Ok(StopReason::Finish(finish @ (ModelFinish::Length | ModelFinish::Refused))) => Ok(finish),
        Ok(StopReason::Finish(ModelFinish::Stop | ModelFinish::ToolCalls) | StopReason::Paused | StopReason::Unstated) | Err(_) => {
            Err(ModelError::new(ModelErrorKind::BadStream, &format!("the answer is incomplete for an unknown reason, {word:?}")))
        }
    }
}
