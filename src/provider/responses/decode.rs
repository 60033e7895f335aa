//! Turns the events of a stream, or a whole answer, into what the model says.

use std::collections::VecDeque;

use serde_json::Value;
use serde_json::value::RawValue;

use super::calls::Calls;
use super::items::{Kind as TextKind, PartKey, Place, Source, Texts};
use super::wire::{Event, Item, Kind, Response};
use crate::domain::model::{ModelError, ModelErrorKind, ModelEvent, ModelFinish};
use crate::provider::dialect::{Decode, Progress};
use crate::provider::failure;
use crate::provider::json_text::whole_characters;
use crate::provider::tally::Tally;

/// The state of one answer.
#[derive(Debug)]
pub(in crate::provider) struct Decoder {
    max_output_tokens: Option<u32>,
    texts: Texts,
    calls: Calls,
    /// Whether the provider's own form of any reasoning was passed on.
    reasoning_kept: bool,
    refused: bool,
    finish: Option<ModelFinish>,
    tally: Tally,
    frames: u64,
}

impl Decoder {
    pub(super) fn new(max_output_tokens: Option<u32>, request_bytes: usize) -> Self {
        Self {
            max_output_tokens,
            texts: Texts::default(),
            calls: Calls::default(),
            reasoning_kept: false,
            refused: false,
            finish: None,
            tally: Tally::new(request_bytes),
            frames: 0,
        }
    }
}

impl Decode for Decoder {
    fn frame(&mut self, event: Option<&str>, data: &str, out: &mut VecDeque<ModelEvent>) -> Result<Progress, ModelError> {
        self.frames += 1;
        let data = data.trim();
        if data == "[DONE]" {
            return Err(unfinished());
        }
        if !data.is_empty() {
            let data = whole_characters(data);
            match serde_json::from_str::<Event<'_>>(&data) {
                // A list would be read as the fields of an object.
                Ok(_) if !data.starts_with('{') => return Err(self.no_event(&data, "it is no JSON object")),
                Ok(parsed) => self.event(event, &parsed, &data, out)?,
                // Not every gateway writes its errors as JSON.
                Err(_) if event == Some("error") => return Err(failure::from_event(&Value::String(data.into_owned()))),
                // What is new may have any form.
                Err(_) if serde_json::from_str::<Kind<'_>>(&data).is_ok_and(|kind| !kind.is_known()) => {}
                Err(error) => return Err(self.no_event(&data, &error.to_string())),
            }
        }
        Ok(if self.finish.is_some() { Progress::Whole } else { Progress::Open })
    }

    fn document(mut self, document: &[u8], out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        self.frames += 1;
        let text = std::str::from_utf8(document).map_err(|error| self.bad_frame(&error.to_string()))?;
        let text = whole_characters(text.trim_start_matches('\u{feff}').trim_start());
        // A list would be read as the fields of an object.
        if !text.starts_with('{') {
            return Err(self.no_event(&text, "it is no JSON object"));
        }
        let response: Response<'_> = serde_json::from_str(&text)
            .map_err(|error| if error.is_eof() { unfinished() } else { self.no_event(&text, &error.to_string()) })?;
        if response.object.0 == "error" {
            return Err(failure::from_event(&serde_json::from_str(&text).unwrap_or_default()));
        }
        if response.output.is_none()
            && response.error.is_none()
            && let Some(error) = failure::unannounced(&text)
        {
            return Err(error);
        }
        self.response("", &response, out)?;
        self.close(out)
    }

    fn close(&mut self, out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        let Some(said) = self.finish else { return Err(unfinished()) };
        self.tally.said(self.texts.bytes() + self.calls.bytes());
        let (usage, at_limit) = (self.tally.usage(), self.is_at_limit());
        let finish = match said {
            _ if self.refused => ModelFinish::Refused,
            ModelFinish::Length | ModelFinish::Refused => said,
            ModelFinish::Stop | ModelFinish::ToolCalls if self.calls.is_empty() => ModelFinish::Stop,
            // Some servers report an answer that ran into its limit as a whole one. Its last call may be cut.
            ModelFinish::Stop | ModelFinish::ToolCalls if at_limit => ModelFinish::Length,
            ModelFinish::Stop | ModelFinish::ToolCalls => {
                self.calls.finish()?;
                ModelFinish::ToolCalls
            }
        };
        out.push_back(ModelEvent::Usage(usage));
        out.push_back(ModelEvent::Finished(finish));
        Ok(())
    }
}

fn unfinished() -> ModelError {
    ModelError::new(ModelErrorKind::IncompleteStream, "the answer ended before the provider said how it ended")
}

impl Decoder {
    /// Whether the answer has as many tokens as the request allows.
    fn is_at_limit(&self) -> bool {
        let usage = self.tally.usage();
        !usage.estimated && self.max_output_tokens.is_some_and(|limit| usage.output_tokens >= u64::from(limit))
    }

    /// The error that something is which is no event.
    fn no_event(&self, data: &str, why: &str) -> ModelError {
        failure::unannounced(data).unwrap_or_else(|| self.bad_frame(why))
    }

    fn bad_frame(&self, why: &str) -> ModelError {
        ModelError::new(ModelErrorKind::BadStream, &format!("bad_frame: event {} of the answer: {why}", self.frames))
    }

    fn event(
        &mut self,
        named: Option<&str>,
        event: &Event<'_>,
        data: &str,
        out: &mut VecDeque<ModelEvent>,
    ) -> Result<(), ModelError> {
        let place = Place { output: event.output_index, id: &event.item_id.0 };
        let text = PartKey { source: Source::Text, index: event.content_index.unwrap_or(0) };
        let summary = PartKey { source: Source::Summary, index: event.summary_index.unwrap_or(0) };
        let kind = if event.kind.0.is_empty() { named.unwrap_or_default() } else { &event.kind.0 };
        match kind {
            // The event may have a type of its own, such as `server_error`.
            _ if named == Some("error") => return Err(failure::from_event(&serde_json::from_str(data).unwrap_or_default())),
            "response.created" => self.restart(out),
            "response.output_item.added" => self.item_added(event, out)?,
            "response.output_item.done" => self.item_done(event, out)?,
            "response.output_text.delta" => self.texts.piece(TextKind::Message, place, text, &event.delta.0, out),
            "response.output_text.done" => self.texts.whole_part(TextKind::Message, place, text, &event.text.0, out),
            "response.refusal.delta" => {
                self.refused = true;
                self.texts.piece(TextKind::Message, place, text, &event.delta.0, out);
            }
            "response.refusal.done" => {
                self.refused = true;
                self.texts.whole_part(TextKind::Message, place, text, &event.refusal.0, out);
            }
            "response.reasoning_summary_text.delta" | "response.reasoning_summary.delta" => {
                self.texts.piece(TextKind::Reasoning, place, summary, &event.delta.0, out);
            }
            "response.reasoning_summary_text.done" | "response.reasoning_summary.done" => {
                self.texts.whole_part(TextKind::Reasoning, place, summary, &event.text.0, out);
            }
            "response.reasoning_text.delta" | "response.reasoning.delta" => {
                self.texts.piece(TextKind::Reasoning, place, text, &event.delta.0, out);
            }
            "response.reasoning_text.done" | "response.reasoning.done" => {
                self.texts.whole_part(TextKind::Reasoning, place, text, &event.text.0, out);
            }
            "response.content_part.done" | "response.reasoning_summary_part.done" => self.part_done(event, out),
            "response.function_call_arguments.delta" => self.calls.piece(place, &event.delta.0, out)?,
            "response.function_call_arguments.done" => self.calls.arguments(place, &event.arguments.0, out)?,
            "response.completed" | "response.done" | "response.incomplete" | "response.failed" | "response.cancelled" => {
                self.last(kind, event.response, out)?;
            }
            "error" | "response.error" => return Err(failure::from_event(&serde_json::from_str(data).unwrap_or_default())),
            // What is new must be ignorable; an error that no event announces is one.
            _ => {
                if let Some(error) = &event.error {
                    return Err(failure::from_event(error));
                }
                if !kind.starts_with("response.")
                    && let Some(error) = failure::unannounced(data)
                {
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// A second beginning: what came before is void.
    fn restart(&mut self, out: &mut VecDeque<ModelEvent>) {
        if self.texts.is_empty() && self.calls.is_empty() {
            return;
        }
        (self.texts, self.calls) = (Texts::default(), Calls::default());
        (self.reasoning_kept, self.refused) = (false, false);
        out.push_back(ModelEvent::Restarted);
    }

    fn item_added(&mut self, event: &Event<'_>, out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        let Some(item) = event.item else { return Ok(()) };
        let item = self.item(item)?;
        let place = Place { output: event.output_index, id: &item.id.0 };
        match &*item.kind.0 {
            "function_call" => self.calls.begin(place, &item, out)?,
            "message" => self.texts.begin(TextKind::Message, place),
            "reasoning" => self.texts.begin(TextKind::Reasoning, place),
            _ => {}
        }
        Ok(())
    }

    fn item_done(&mut self, event: &Event<'_>, out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        let Some(raw) = event.item else { return Ok(()) };
        let item = self.item(raw)?;
        let place = Place { output: event.output_index, id: &item.id.0 };
        match &*item.kind.0 {
            "function_call" => self.calls.item(place, &item, out)?,
            "message" => self.message(place, &item, out),
            "reasoning" => self.reasoning(place, &item, raw, out)?,
            _ => {}
        }
        Ok(())
    }

    fn part_done(&mut self, event: &Event<'_>, out: &mut VecDeque<ModelEvent>) {
        let Some(part) = &event.part else { return };
        let place = Place { output: event.output_index, id: &event.item_id.0 };
        let key = |source, index: Option<i64>| PartKey { source, index: index.unwrap_or(0) };
        let (said, is_refusal) = part.said();
        match &*part.kind.0 {
            "output_text" | "text" | "refusal" => {
                self.refused |= is_refusal;
                self.texts.whole_part(TextKind::Message, place, key(Source::Text, event.content_index), said, out);
            }
            "reasoning_text" => {
                self.texts.whole_part(TextKind::Reasoning, place, key(Source::Text, event.content_index), said, out);
            }
            "summary_text" => {
                self.texts.whole_part(TextKind::Reasoning, place, key(Source::Summary, event.summary_index), said, out);
            }
            _ => {}
        }
    }

    fn message(&mut self, place: Place<'_>, item: &Item<'_>, out: &mut VecDeque<ModelEvent>) {
        let texts = item.content.as_ref().map(super::wire::Contents::texts).unwrap_or_default();
        self.refused |= texts.iter().any(|(_, is_refusal)| *is_refusal);
        let parts: Vec<(PartKey, &str)> =
            (0..).zip(&texts).map(|(index, (text, _))| (PartKey { source: Source::Text, index }, *text)).collect();
        self.texts.whole_item(TextKind::Message, place, &parts, out);
    }

    fn reasoning(
        &mut self,
        place: Place<'_>,
        item: &Item<'_>,
        raw: &RawValue,
        out: &mut VecDeque<ModelEvent>,
    ) -> Result<(), ModelError> {
        let texts = |parts: &Option<super::wire::Contents<'_>>, source| -> Vec<(PartKey, String)> {
            let texts = parts.as_ref().map(super::wire::Contents::texts).unwrap_or_default();
            (0..).zip(texts).map(|(index, (text, _))| (PartKey { source, index }, text.to_owned())).collect()
        };
        let mut parts = texts(&item.summary, Source::Summary);
        if parts.iter().all(|(_, text)| text.is_empty()) {
            parts = texts(&item.content, Source::Text);
        }
        let parts: Vec<(PartKey, &str)> = parts.iter().map(|(key, text)| (*key, text.as_str())).collect();
        self.texts.whole_item(TextKind::Reasoning, place, &parts, out);
        self.keep(raw, out)
    }

    /// Passes on the provider's own form of reasoning.
    fn keep(&mut self, raw: &RawValue, out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        let item: Value = serde_json::from_str(raw.get()).map_err(|error| self.bad_frame(&error.to_string()))?;
        self.reasoning_kept = true;
        out.push_back(ModelEvent::ReasoningBlock(item));
        Ok(())
    }

    fn item<'a>(&self, raw: &'a RawValue) -> Result<Item<'a>, ModelError> {
        serde_json::from_str(raw.get()).map_err(|error| self.bad_frame(&error.to_string()))
    }

    /// The event that ends the stream.
    fn last(&mut self, kind: &str, response: Option<&RawValue>, out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        let response: Response<'_> =
            serde_json::from_str(response.map_or("{}", RawValue::get)).map_err(|error| self.bad_frame(&error.to_string()))?;
        self.response(kind, &response, out)
    }

    /// The whole answer. The event that brings it, if one does, says how it ended; else its status does.
    fn response(&mut self, event: &str, response: &Response<'_>, out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        if let Some(figures) = response.usage {
            self.tally.given(figures.into());
        }
        let status = match (event.trim_start_matches("response."), &*response.status.0) {
            ("failed", _) | (_, "failed") => "failed",
            ("incomplete", _) | (_, "incomplete") => "incomplete",
            ("cancelled", _) | (_, "cancelled") => "cancelled",
            ("completed", _) | (_, "completed") => "completed",
            ("done", "") => "completed",
            // A document without a status, from a server that knows none.
            ("", "") if response.output.is_some() && response.error.is_none() => "completed",
            (_, other) => other,
        };
        let finish = match status {
            "completed" => ModelFinish::Stop,
            "incomplete" => match response.incomplete_details.as_ref().map_or("", |details| &details.reason.0) {
                "" if self.is_at_limit() => ModelFinish::Length,
                reason => incomplete(reason)?,
            },
            _ if response.error.is_some() => return Err(failure::from_event(response.error.as_ref().unwrap_or(&Value::Null))),
            "failed" => return Err(ModelError::new(ModelErrorKind::Unavailable, "the provider broke off with an error")),
            _ => return Err(unfinished()),
        };
        self.rebuild(response.output.as_deref().unwrap_or_default(), out)?;
        self.finish = Some(finish);
        Ok(())
    }

    /// Shows what no event has brought before. Items are told by what they say, because ids and positions may differ here.
    fn rebuild(&mut self, output: &[&RawValue], out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        let (said, thought) = (self.texts.said(TextKind::Message), self.texts.said(TextKind::Reasoning));
        let (mut said, keeps_reasoning) = (Some(said.as_str()), !self.reasoning_kept);
        let mut calls = 0;
        for (index, raw) in (0..).zip(output) {
            let item = self.item(raw)?;
            match &*item.kind.0 {
                "function_call" => {
                    self.calls.of_answer(calls, &item, out)?;
                    calls += 1;
                }
                "message" => {
                    let texts = item.content.as_ref().map(super::wire::Contents::texts).unwrap_or_default();
                    for (text, is_refusal) in texts {
                        self.refused |= is_refusal;
                        let Some(left) = said else { break };
                        if let Some(rest) = left.strip_prefix(text) {
                            said = Some(rest);
                            continue;
                        }
                        // What was shown cannot be taken back: where the two differ, what was shown stays.
                        said = text.strip_prefix(left).map(|rest| {
                            let key = PartKey { source: Source::Text, index };
                            self.texts.piece(TextKind::Message, Place { output: None, id: "" }, key, rest, out);
                            ""
                        });
                    }
                }
                "reasoning" if keeps_reasoning && thought.is_empty() => {
                    self.reasoning(Place { output: Some(i64::MIN + index), id: &item.id.0 }, &item, raw, out)?;
                }
                "reasoning" if keeps_reasoning => self.keep(raw, out)?,
                _ => {}
            }
        }
        Ok(())
    }
}

/// Why an answer is incomplete, in the API's words.
fn incomplete(reason: &str) -> Result<ModelFinish, ModelError> {
    match reason {
        "max_output_tokens" | "max_tokens" | "length" => Ok(ModelFinish::Length),
        "content_filter" => Ok(ModelFinish::Refused),
        "" => Err(unfinished()),
        _ => {
            Err(ModelError::new(ModelErrorKind::BadStream, &format!("the answer is incomplete for an unknown reason, {reason:?}")))
        }
    }
}
