//! Turns the events of a stream, or a whole answer, into what the model says.

use std::collections::VecDeque;

use serde::Deserialize;
use serde_json::Value;

use super::blocks::Blocks;
use super::wire::{Event, Figures, Message};
use crate::domain::model::{ModelError, ModelErrorKind, ModelEvent, ModelFinish, Usage};
use crate::provider::dialect::{Decode, Progress};
use crate::provider::failure;
use crate::provider::tally::Tally;
use crate::provider::words::Text;
use crate::support::json;

/// The state of one answer.
#[derive(Debug)]
pub(super) struct Decoder {
    max_output_tokens: Option<u32>,
    request_bytes: usize,
    begun: bool,
    blocks: Blocks,
    finish: Option<Stop>,
    /// Whether `message_stop`, or another mark of the end, came.
    marked_whole: bool,
    figures: Figures,
    tally: Tally,
    frames: u64,
}

/// Why the model stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    Finish(ModelFinish),
    /// The provider paused a long turn. What is there is whole; with calls it goes on by itself.
    Paused,
}

impl Decoder {
    pub(super) fn new(max_output_tokens: Option<u32>, request_bytes: usize) -> Self {
        Self {
            max_output_tokens,
            request_bytes,
            begun: false,
            blocks: Blocks::default(),
            finish: None,
            marked_whole: false,
            figures: Figures::default(),
            tally: Tally::new(request_bytes),
            frames: 0,
        }
    }
}

impl Decode for Decoder {
    fn frame(&mut self, event: Option<&str>, data: &str, out: &mut VecDeque<ModelEvent>) -> Result<Progress, ModelError> {
        self.frames += 1;
        let data = data.trim();
        if data.is_empty() {
            return Ok(self.progress());
        }
        if data == "[DONE]" {
            self.marked_whole = true;
            return Ok(Progress::Whole);
        }
        if event == Some("error") {
            return Err(reported(data));
        }
        self.json(event.unwrap_or_default(), data, out)?;
        Ok(self.progress())
    }

    fn document(mut self, document: &[u8], out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        self.frames += 1;
        let text = std::str::from_utf8(document).map_err(|error| self.bad_frame(&error.to_string()))?;
        let text = text.trim_start_matches('\u{feff}').trim_start();
        // A list would be read as the fields of an object.
        if !text.starts_with('{') {
            return Err(self.no_event(text, "it is no JSON object"));
        }
        let mended;
        let message = match serde_json::from_str::<Message<'_>>(text) {
            Ok(message) => message,
            Err(error) if error.is_eof() => return Err(ModelError::new(ModelErrorKind::IncompleteStream, "the answer was cut")),
            Err(error) => {
                let bad = |error: serde_json::Error| self.no_event(text, &error.to_string());
                mended = json::mend_surrogates(text).ok_or_else(|| bad(error))?;
                serde_json::from_str::<Message<'_>>(&mended).map_err(bad)?
            }
        };
        if message.error.is_some() {
            return Err(reported(text));
        }
        if message.content.is_none()
            && let Some(error) = failure::unannounced(text)
        {
            return Err(error);
        }
        self.message(message, out)?;
        self.close(out)
    }

    fn close(&mut self, out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        let stop = self.judge_end()?;
        self.blocks.finish(&mut self.tally, out);
        self.tally.given(self.figures.into());
        let usage = self.tally.usage();
        out.push_back(ModelEvent::Usage(usage));
        out.push_back(ModelEvent::Finished(self.judge_finish(stop, &usage)));
        Ok(())
    }
}

impl Decoder {
    fn progress(&self) -> Progress {
        match (self.marked_whole, self.finish) {
            (true, _) => Progress::Whole,
            (false, Some(_)) => Progress::Closing,
            (false, None) => Progress::Open,
        }
    }

    /// Whether the answer is whole. The reason to stop is the terminal statement, as it comes after the last block; the mark
    /// of the end adds nothing to it, and gateways leave it out.
    fn judge_end(&self) -> Result<Stop, ModelError> {
        let cut = |why: &str| Err(ModelError::new(ModelErrorKind::IncompleteStream, why));
        match self.finish {
            // A cut or refused answer has no end of its last block to wait for. Of a cut call nothing is carried out.
            Some(Stop::Finish(finish @ (ModelFinish::Length | ModelFinish::Refused))) => Ok(Stop::Finish(finish)),
            Some(_) if !self.marked_whole && !self.blocks.all_stopped() => cut("the answer ended within a content block"),
            Some(_) if !self.blocks.no_call_is_cut() => cut("the answer ended within a tool call"),
            Some(stop) => Ok(stop),
            None if self.marked_whole && !self.blocks.is_empty() && self.blocks.all_calls_parse() => {
                Ok(Stop::Finish(ModelFinish::Stop))
            }
            None => cut("the answer ended before the model said why it stopped"),
        }
    }

    /// What an answer that the provider calls finished really is: the calls that are there decide, not the word. Where nothing
    /// is at all, the loop judges.
    fn judge_finish(&self, stop: Stop, usage: &Usage) -> ModelFinish {
        match stop {
            // Without calls nobody would go on with it: that it is not all is what can be said.
            Stop::Paused if !self.blocks.has_calls() => ModelFinish::Length,
            Stop::Paused | Stop::Finish(ModelFinish::Stop | ModelFinish::ToolCalls) if self.blocks.has_calls() => {
                // Some gateways report an answer that ran into its limit as one that wants tools. Its last call may be cut.
                let limit = self.max_output_tokens.map(u64::from);
                let at_limit = !usage.estimated && limit.is_some_and(|limit| usage.output_tokens >= limit);
                if at_limit { ModelFinish::Length } else { ModelFinish::ToolCalls }
            }
            Stop::Paused => ModelFinish::ToolCalls,
            Stop::Finish(finish) => finish,
        }
    }

    fn json(&mut self, name: &str, data: &str, out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        // A list would be read as the fields of an object.
        if !data.starts_with('{') {
            return Err(self.no_event(data, "it is no JSON object"));
        }
        let error = match serde_json::from_str::<Event<'_>>(data) {
            Ok(event) => return self.event(name, event, data, out),
            Err(error) => error,
        };
        if is_error(data) {
            return Err(reported(data));
        }
        // Half a surrogate pair is no character, and no reason to lose an answer.
        let Some(mended) = json::mend_surrogates(data) else { return Err(self.no_event(data, &error.to_string())) };
        match serde_json::from_str::<Event<'_>>(&mended) {
            Ok(event) => self.event(name, event, &mended, out),
            Err(error) => Err(self.no_event(&mended, &error.to_string())),
        }
    }

    /// The error that something is which is no event.
    fn no_event(&self, data: &str, why: &str) -> ModelError {
        failure::unannounced(data).unwrap_or_else(|| self.bad_frame(why))
    }

    fn bad_frame(&self, why: &str) -> ModelError {
        ModelError::new(ModelErrorKind::BadStream, &format!("bad_frame: event {} of the answer: {why}", self.frames))
    }

    fn event(&mut self, name: &str, event: Event<'_>, data: &str, out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        let kind = if event.kind.0.is_empty() { name } else { &*event.kind.0 };
        if kind == "error" || event.error.is_some() {
            return Err(reported(data));
        }
        match kind {
            "message_start" => {
                if std::mem::replace(&mut self.begun, true) {
                    self.restart(out);
                }
                self.message(event.message.unwrap_or_default(), out)?;
            }
            "content_block_start" => {
                if let Some(block) = event.content_block {
                    self.blocks.start(event.index, block, &mut self.tally, out)?;
                }
            }
            "content_block_delta" => {
                if let Some(delta) = event.delta {
                    self.blocks.delta(event.index, delta, &mut self.tally, out)?;
                }
            }
            "content_block_stop" => self.blocks.stop(event.index, &mut self.tally, out),
            "message_delta" => {
                if let Some(delta) = event.delta {
                    self.stop_reason(&delta.stop_reason.0)?;
                }
            }
            "message_stop" => self.marked_whole = true,
            // A whole answer in one event.
            "message" => {
                let message = serde_json::from_str(data).map_err(|error| self.bad_frame(&error.to_string()))?;
                self.message(message, out)?;
                self.marked_whole = true;
            }
            // Signs of life, and what is newer than this code.
            _ => {
                if let Some(error) = failure::unannounced(data) {
                    return Err(error);
                }
            }
        }
        if let Some(figures) = event.usage {
            self.figures.update(figures);
        }
        Ok(())
    }

    /// A message as it begins, which is nearly always empty, or whole.
    fn message(&mut self, message: Message<'_>, out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        if let Some(figures) = message.usage {
            self.figures.update(figures);
        }
        for (index, block) in (0..).zip(message.content.into_iter().flat_map(|content| content.0)) {
            self.blocks.start(Some(index), block, &mut self.tally, out)?;
            self.blocks.stop(Some(index), &mut self.tally, out);
        }
        self.stop_reason(&message.stop_reason.0)
    }

    /// The model begins anew: what it has said is void.
    fn restart(&mut self, out: &mut VecDeque<ModelEvent>) {
        let frames = self.frames;
        *self = Self { begun: true, frames, ..Self::new(self.max_output_tokens, self.request_bytes) };
        out.push_back(ModelEvent::Restarted);
    }

    /// The words for why a model stopped, of this dialect and of those that gateways translate it from.
    fn stop_reason(&mut self, word: &str) -> Result<(), ModelError> {
        if word.is_empty() {
            return Ok(());
        }
        let stop = match word.to_ascii_lowercase().as_str() {
            "end_turn" | "stop_sequence" | "stop" | "complete" | "completed" => Stop::Finish(ModelFinish::Stop),
            "tool_use" | "tool_calls" | "tool_call" | "function_call" => Stop::Finish(ModelFinish::ToolCalls),
            "max_tokens" | "max_output_tokens" | "length" | "model_context_window_exceeded" => Stop::Finish(ModelFinish::Length),
            "refusal" | "content_filter" | "safety" | "content_filtered" | "guardrail_intervened" | "sensitive" => {
                Stop::Finish(ModelFinish::Refused)
            }
            "pause_turn" => Stop::Paused,
            "error" => return Err(ModelError::new(ModelErrorKind::Unavailable, "the provider broke off with an error")),
            _ => {
                let message = format!("the model stopped for an unknown reason, {word:?}");
                return Err(ModelError::new(ModelErrorKind::BadStream, &message));
            }
        };
        // A cut or refused answer does not become whole by a second word.
        match self.finish {
            Some(Stop::Finish(ModelFinish::Length | ModelFinish::Refused)) => {}
            Some(Stop::Finish(ModelFinish::Stop | ModelFinish::ToolCalls) | Stop::Paused) | None => self.finish = Some(stop),
        }
        Ok(())
    }
}

/// The failure that an event or a document reports.
fn reported(data: &str) -> ModelError {
    let error = serde_json::from_str(data).unwrap_or_else(|_| Value::String(data.to_owned()));
    failure::from_event(&error)
}

/// Whether an event that does not have the usual form reports a failure.
fn is_error(data: &str) -> bool {
    #[derive(Deserialize)]
    struct Kind<'a> {
        #[serde(rename = "type", borrow, default)]
        kind: Text<'a>,
    }
    serde_json::from_str::<Kind<'_>>(data).is_ok_and(|event| event.kind.0 == "error")
}
