//! Turns the events of a stream, or a whole answer, into what the model says.

use std::collections::VecDeque;

use serde_json::Value;

use super::calls::Calls;
use super::wire::{Choice, Chunk, Delta, Figures};
use crate::domain::model::{ModelError, ModelErrorKind, ModelEvent, ModelFinish, ModelRequest, Usage};
use crate::provider::failure;
use crate::support::{json, text};

/// Bytes that a token has on average, for estimates.
const BYTES_PER_TOKEN: usize = 4;

/// What the request says about its answer.
#[derive(Debug)]
pub(super) struct Expectation {
    tools: Vec<String>,
    max_output_tokens: Option<u32>,
    request_bytes: usize,
}

impl Expectation {
    pub(super) fn of(request: &ModelRequest, request_bytes: usize) -> Self {
        Self {
            tools: request.tools.iter().map(|tool| tool.name.clone()).collect(),
            max_output_tokens: request.options.max_output_tokens,
            request_bytes,
        }
    }
}

/// How far an answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// The model speaks.
    Open,
    /// The model has said why it stopped.
    Closing,
    /// The end mark came.
    Whole,
}

/// The state of one answer.
#[derive(Debug)]
pub(super) struct Decoder {
    max_output_tokens: Option<u32>,
    request_bytes: usize,
    calls: Calls,
    finish: Option<ModelFinish>,
    refused: bool,
    marked_whole: bool,
    text_bytes: usize,
    reasoning_bytes: usize,
    figures: Option<Figures>,
    frames: u64,
}

impl Decoder {
    pub(super) fn new(expectation: Expectation) -> Self {
        let Expectation { tools, max_output_tokens, request_bytes } = expectation;
        Self {
            max_output_tokens,
            request_bytes,
            calls: Calls::new(tools),
            finish: None,
            refused: false,
            marked_whole: false,
            text_bytes: 0,
            reasoning_bytes: 0,
            figures: None,
            frames: 0,
        }
    }

    /// Takes in one event of the stream.
    pub(super) fn frame(
        &mut self,
        event: Option<&str>,
        data: &str,
        out: &mut VecDeque<ModelEvent>,
    ) -> Result<Progress, ModelError> {
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
            let error = serde_json::from_str(data).unwrap_or_else(|_| Value::String(data.to_owned()));
            return Err(failure::from_event(&error));
        }
        self.json(data, out)?;
        Ok(self.progress())
    }

    /// Takes in a whole answer that was not streamed.
    pub(super) fn document(mut self, document: &[u8], out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        self.frames += 1;
        let text = std::str::from_utf8(document).map_err(|error| self.bad_frame(&error.to_string()))?;
        let text = text.trim_start_matches('\u{feff}');
        if serde_json::from_str::<serde::de::IgnoredAny>(text).is_err_and(|error| error.is_eof()) {
            return Err(ModelError::new(ModelErrorKind::IncompleteStream, "the answer was cut"));
        }
        self.json(text, out)?;
        self.close(out)
    }

    /// No more comes: judges whether that was a whole answer.
    pub(super) fn close(&mut self, out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        let mut finish = match self.finish {
            Some(finish) => finish,
            None => self.unsaid_finish()?,
        };
        if self.refused {
            finish = ModelFinish::Refused;
        }
        self.calls.finish(out)?;
        let usage = self.usage();
        if let ModelFinish::Stop | ModelFinish::ToolCalls = finish {
            finish = self.judge(finish, &usage);
        }
        out.push_back(ModelEvent::Usage(usage));
        out.push_back(ModelEvent::Finished(finish));
        Ok(())
    }

    fn progress(&self) -> Progress {
        if self.finish.is_some() { Progress::Closing } else { Progress::Open }
    }

    /// Servers that mark the end but give no reason exist; a cut connection looks the same but for the mark.
    fn unsaid_finish(&self) -> Result<ModelFinish, ModelError> {
        let whole = self.marked_whole && (self.text_bytes > 0 || !self.calls.is_empty()) && self.calls.all_complete();
        if whole {
            return Ok(if self.calls.is_empty() { ModelFinish::Stop } else { ModelFinish::ToolCalls });
        }
        Err(ModelError::new(ModelErrorKind::IncompleteStream, "the answer ended before the model said why it stopped"))
    }

    /// What an answer that the provider calls finished really is: the calls that are there decide, not the word. Where nothing is
    /// at all, the loop judges.
    fn judge(&self, finish: ModelFinish, usage: &Usage) -> ModelFinish {
        if self.calls.is_empty() {
            return finish;
        }
        // Some servers report an answer that ran into its limit as one that wants tools. Its last call may be cut.
        let at_limit = !usage.estimated && self.max_output_tokens.is_some_and(|limit| usage.output_tokens >= u64::from(limit));
        if at_limit { ModelFinish::Length } else { ModelFinish::ToolCalls }
    }

    fn json(&mut self, data: &str, out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        let error = match serde_json::from_str::<Chunk<'_>>(data) {
            Ok(chunk) => return self.chunk(chunk, data, out),
            Err(error) => error,
        };
        // Half a surrogate pair is no character, and no reason to lose an answer.
        let Some(mended) = json::mend_surrogates(data) else { return Err(self.bad_frame(&error.to_string())) };
        match serde_json::from_str::<Chunk<'_>>(&mended) {
            Ok(chunk) => self.chunk(chunk, &mended, out),
            Err(error) => Err(self.bad_frame(&error.to_string())),
        }
    }

    fn bad_frame(&self, why: &str) -> ModelError {
        ModelError::new(ModelErrorKind::BadStream, &format!("bad_frame: event {} of the answer: {why}", self.frames))
    }

    fn chunk(&mut self, chunk: Chunk<'_>, data: &str, out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        if let Some(error) = chunk.error {
            return Err(failure::from_event(&error));
        }
        if chunk.object.0 == "error" {
            return Err(failure::from_event(&serde_json::from_str(data).unwrap_or_default()));
        }
        if let Some(figures) = chunk.usage {
            self.figures = Some(figures);
        }
        let Some(choice) = chunk.choices.0 else { return Ok(()) };
        self.choice(choice, out)
    }

    fn choice(&mut self, choice: Choice<'_>, out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        if let Some(error) = choice.error {
            return Err(failure::from_event(&error));
        }
        if let Some(figures) = choice.usage {
            self.figures = Some(figures);
        }
        if let Some(delta) = choice.delta {
            self.delta(delta, out)?;
        }
        if let Some(mut message) = choice.message {
            // The calls of a whole message are whole themselves, each with its place in the list.
            for (place, call) in (0..).zip(message.tool_calls.iter_mut().flatten()) {
                call.index = Some(place);
            }
            self.delta(message, out)?;
        }
        if !choice.finish_reason.0.is_empty() {
            self.finish_word(&choice.finish_reason.0)?;
        }
        Ok(())
    }

    fn delta(&mut self, delta: Delta<'_>, out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        // Gateways that know both names send the same text under both.
        let thought = if delta.reasoning_content.0.is_empty() { delta.reasoning.0 } else { delta.reasoning_content.0 };
        if !thought.is_empty() {
            self.reasoning_bytes += thought.len();
            out.push_back(ModelEvent::Reasoning(owned(thought)));
        }
        self.refused |= !delta.refusal.0.is_empty();
        for said in [delta.content.0, delta.refusal.0] {
            if !said.is_empty() {
                self.text_bytes += said.len();
                out.push_back(ModelEvent::Text(owned(said)));
            }
        }
        for fragment in delta.tool_calls.iter().flatten() {
            self.calls.push(fragment, out)?;
        }
        Ok(())
    }

    /// The words for why a model stopped, of this dialect and of those that gateways translate it from.
    fn finish_word(&mut self, word: &str) -> Result<(), ModelError> {
        let finish = match word.to_ascii_lowercase().as_str() {
            "stop" | "end_turn" | "eos" | "eos_token" | "stop_sequence" | "completed" => ModelFinish::Stop,
            "tool_calls" | "tool_call" | "tool_use" | "function_call" => ModelFinish::ToolCalls,
            "length" | "max_tokens" | "max_output_tokens" | "model_length" => ModelFinish::Length,
            "content_filter" | "refusal" | "safety" | "sensitive" | "recitation" | "prohibited_content" | "blocklist" | "spii" => {
                ModelFinish::Refused
            }
            "insufficient_system_resource" => {
                return Err(ModelError::new(ModelErrorKind::Overloaded, "the provider ran out of capacity within the answer"));
            }
            "error" => return Err(ModelError::new(ModelErrorKind::Unavailable, "the provider broke off with an error")),
            "abort" | "cancelled" | "canceled" => {
                return Err(ModelError::new(ModelErrorKind::IncompleteStream, "the provider broke off"));
            }
            "malformed_function_call" | "unexpected_tool_call" => {
                return Err(ModelError::new(
                    ModelErrorKind::BadStream,
                    "the model wrote a tool call that its provider cannot read",
                ));
            }
            _ => {
                let message = format!("the model stopped for an unknown reason, {word:?}");
                return Err(ModelError::new(ModelErrorKind::BadStream, &message));
            }
        };
        // A cut or refused answer does not become whole by a second word.
        self.finish = match self.finish {
            Some(ModelFinish::Length | ModelFinish::Refused) => self.finish,
            Some(ModelFinish::Stop | ModelFinish::ToolCalls) | None => Some(finish),
        };
        Ok(())
    }

    /// The provider's figures, or an estimate in place of those that it does not give.
    fn usage(&self) -> Usage {
        let estimate = |bytes: usize| bytes.div_ceil(BYTES_PER_TOKEN) as u64;
        let figures = self.figures.unwrap_or_default();
        let (input, output) = (figures.prompt_tokens.0, figures.completion_tokens.0);
        let cached = figures.prompt_tokens_details.and_then(|details| details.cached_tokens.0);
        Usage {
            input_tokens: input.unwrap_or_else(|| estimate(self.request_bytes)),
            output_tokens: output.unwrap_or_else(|| estimate(self.text_bytes + self.reasoning_bytes + self.calls.bytes())),
            cached_input_tokens: cached.or(figures.prompt_cache_hit_tokens.0).unwrap_or(0),
            reasoning_tokens: figures.completion_tokens_details.and_then(|details| details.reasoning_tokens.0).unwrap_or(0),
            model_calls: 1,
            estimated: input.is_none() || output.is_none(),
        }
    }
}

fn owned(said: std::borrow::Cow<'_, str>) -> String {
    match text::storable(&said) {
        std::borrow::Cow::Borrowed(_) => said.into_owned(),
        std::borrow::Cow::Owned(changed) => changed,
    }
}
