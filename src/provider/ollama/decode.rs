//! Turns the lines of a stream, or a whole answer, into what the model says.

use std::borrow::Cow;
use std::collections::VecDeque;

use super::wire::{Call, Line};
use crate::domain::model::{ModelError, ModelErrorKind, ModelEvent, ModelFinish};
use crate::provider::dialect::{Decode, Progress};
use crate::provider::failure;
use crate::provider::json_text::whole_characters;
use crate::provider::tally::{Figures, Tally, storable};
use crate::provider::think::{ThinkTags, Told};

/// What models think between that are served without a template for it. Any model is asked here, so that no marks are taken for
/// it that a prompt may ask for.
const MARKS: [&str; 2] = ["<think>", "</think>"];

/// More calls than any answer has: what comes with more is a flood.
const MAX_CALLS: usize = 1_000;

/// The state of one answer.
#[derive(Debug)]
pub(super) struct Decoder {
    max_output_tokens: Option<u32>,
    calls: usize,
    finish: Option<ModelFinish>,
    /// Takes thoughts out of the text: a model whose template says nothing of them is left to write them there.
    tags: ThinkTags,
    tally: Tally,
    frames: u64,
}

impl Decoder {
    pub(super) fn new(max_output_tokens: Option<u32>, request_bytes: usize) -> Self {
        let (tags, tally) = (ThinkTags::looking(&[MARKS.map(str::to_owned)]), Tally::new(request_bytes));
        Self { max_output_tokens, calls: 0, finish: None, tags, tally, frames: 0 }
    }
}

impl Decode for Decoder {
    fn frame(&mut self, _event: Option<&str>, data: &str, out: &mut VecDeque<ModelEvent>) -> Result<Progress, ModelError> {
        self.frames += 1;
        self.line(data, out)?;
        Ok(if self.finish.is_some() { Progress::Whole } else { Progress::Open })
    }

    fn document(mut self, document: &[u8], out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        self.frames += 1;
        let text = std::str::from_utf8(document).map_err(|error| self.bad_frame(&error.to_string()))?;
        self.line(text, out)?;
        self.close(out)
    }

    fn close(&mut self, out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        let Some(said) = self.finish else { return Err(unfinished()) };
        let held = self.tags.finish();
        self.tell(held, out);
        let usage = self.tally.usage();
        let at_limit = !usage.estimated && self.max_output_tokens.is_some_and(|limit| usage.output_tokens >= u64::from(limit));
        let finish = match said {
            ModelFinish::Stop | ModelFinish::ToolCalls if self.calls == 0 => ModelFinish::Stop,
            // What the model wrote before its limit may have been taken for a whole call.
            ModelFinish::Stop | ModelFinish::ToolCalls if at_limit => ModelFinish::Length,
            ModelFinish::Stop | ModelFinish::ToolCalls => ModelFinish::ToolCalls,
            ModelFinish::Length | ModelFinish::Refused => said,
        };
        out.push_back(ModelEvent::Usage(usage));
        out.push_back(ModelEvent::Finished(finish));
        Ok(())
    }
}

fn unfinished() -> ModelError {
    ModelError::new(ModelErrorKind::IncompleteStream, "the answer ended before Ollama said that it is done")
}

impl Decoder {
    fn bad_frame(&self, why: &str) -> ModelError {
        ModelError::new(ModelErrorKind::BadStream, &format!("bad_frame: event {} of the answer: {why}", self.frames))
    }

    fn line(&mut self, data: &str, out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        let data = data.trim_start_matches('\u{feff}').trim();
        if data.is_empty() {
            return Ok(());
        }
        // A list would be read as the fields of an object.
        let other = |data: &str, why: &str| failure::unannounced(data).unwrap_or_else(|| self.bad_frame(why));
        if !data.starts_with('{') {
            return Err(other(data, "it is no JSON object"));
        }
        let data = whole_characters(data);
        // The last line of a broken connection has no end, and looks like any other.
        let line = serde_json::from_str::<Line<'_>>(&data)
            .map_err(|error| if error.is_eof() { unfinished() } else { other(&data, &error.to_string()) })?;
        if line.error.is_some() {
            // What stands beside the words may say more than they do.
            return Err(failure::from_event(&serde_json::from_str(&data).unwrap_or_default()));
        }
        if line.message.is_none()
            && !line.done.0
            && let Some(error) = failure::unannounced(&data)
        {
            return Err(error);
        }
        self.tally.given(Figures { input: line.prompt_eval_count.0, output: line.eval_count.0, ..Figures::default() });
        if let Some(message) = line.message {
            if !message.thinking.0.is_empty() {
                self.tags.came_elsewhere(&message.thinking.0);
                self.think(message.thinking.0, out);
            }
            if self.tags.is_over() {
                self.say(message.content.0, out);
            } else {
                let told = self.tags.feed(&message.content.0);
                self.tell(told, out);
            }
            for call in message.tool_calls {
                let held = self.tags.settle();
                self.say(held.into(), out);
                self.call(call, out)?;
            }
        }
        if line.done.0 {
            self.finish = Some(finish(&line.done_reason.0)?);
        }
        Ok(())
    }

    /// Says what a piece of text was. What was shown as the answer and is a thought is shown anew.
    fn tell(&mut self, told: Told, out: &mut VecDeque<ModelEvent>) {
        if told.taken_back > 0 {
            out.push_back(ModelEvent::Restarted);
            self.tally.unsaid(told.taken_back);
        }
        self.think(told.thought.into(), out);
        self.say(told.text.into(), out);
    }

    fn think(&mut self, thought: Cow<'_, str>, out: &mut VecDeque<ModelEvent>) {
        if !thought.is_empty() {
            self.tally.said(thought.len());
            out.push_back(ModelEvent::Reasoning(storable(thought)));
        }
    }

    fn say(&mut self, text: Cow<'_, str>, out: &mut VecDeque<ModelEvent>) {
        if !text.is_empty() {
            self.tally.said(text.len());
            out.push_back(ModelEvent::Text(storable(text)));
        }
    }

    fn call(&mut self, call: Call<'_>, out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        let Some(function) = call.function.filter(|function| !function.name.0.is_empty()) else {
            return Err(self.bad_frame("a tool call has no name"));
        };
        if self.calls == MAX_CALLS {
            let message = format!("the answer has more than {MAX_CALLS} tool calls");
            return Err(ModelError::new(ModelErrorKind::BadStream, &message));
        }
        let index = self.calls;
        self.calls += 1;
        self.tally.said(function.name.0.len() + function.arguments.0.len());
        let (provider_call_id, name) = (storable(call.id.0), storable(function.name.0));
        out.push_back(ModelEvent::ToolCallStarted { index, provider_call_id, name });
        if !function.arguments.0.is_empty() {
            out.push_back(ModelEvent::ToolCallArguments { index, delta: storable(function.arguments.0) });
        }
        Ok(())
    }
}

/// Why the model is done, in Ollama's words. Older versions say nothing.
fn finish(reason: &str) -> Result<ModelFinish, ModelError> {
    match reason {
        "" | "stop" => Ok(ModelFinish::Stop),
        "tool_calls" => Ok(ModelFinish::ToolCalls),
        "length" => Ok(ModelFinish::Length),
        "load" | "unload" => {
            let message = format!("Ollama did not answer but {reason}ed the model");
            Err(ModelError::new(ModelErrorKind::EmptyResponse, &message))
        }
        _ => Err(ModelError::new(ModelErrorKind::BadStream, &format!("the model stopped for an unknown reason, {reason:?}"))),
    }
}
