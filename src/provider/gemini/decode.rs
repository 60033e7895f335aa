//! Turns the chunks of a stream, or a whole answer, into what the model says.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

use serde_json::{Value, json};

use super::content::{Place, wire_name};
use super::partial::{self, Partial};
use super::wire::{Candidate, Chunk, Chunks, Figures, FunctionCall, Part};
use crate::domain::model::{ModelError, ModelErrorKind, ModelEvent, ModelFinish};
use crate::domain::tool::ToolDefinition;
use crate::provider::dialect::{Decode, Progress};
use crate::provider::failure;
use crate::provider::tally::{Tally, storable};
use crate::provider::words::json_text;
use crate::support::json;

/// More calls than any answer has: what comes with more is a flood.
const MAX_CALLS: usize = 1_000;

/// The state of one answer.
#[derive(Debug)]
pub(super) struct Decoder {
    /// The tools that have another name on the wire, by it.
    renamed: Vec<(String, String)>,
    calls: usize,
    /// The last call, if its arguments come in pieces and are not whole.
    open: Option<Partial>,
    /// Whether a chunk said something without a reason to stop.
    goes_on_unasked: bool,
    finish: Option<ModelFinish>,
    figures: Figures,
    tally: Tally,
    frames: u64,
}

impl Decoder {
    pub(super) fn new(tools: &[Arc<ToolDefinition>], request_bytes: usize) -> Self {
        let renamed = tools.iter().filter_map(|tool| match wire_name(&tool.name) {
            Cow::Borrowed(_) => None,
            Cow::Owned(name) => Some((name, tool.name.clone())),
        });
        Self {
            renamed: renamed.collect(),
            calls: 0,
            open: None,
            goes_on_unasked: false,
            finish: None,
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
        // This wire has no mark of the end; gateways that add that of another one add nothing to the reason to stop.
        if data.is_empty() || data == "[DONE]" {
            return Ok(self.progress());
        }
        if event == Some("error") {
            let error = serde_json::from_str(data).unwrap_or_else(|_| Value::String(data.to_owned()));
            return Err(failure::from_event(&error));
        }
        let finished = self.finish.is_some();
        let before = out.len();
        self.json(data, out)?;
        let said = out.len() > before;
        self.goes_on_unasked |= said && self.finish.is_none();
        // Old models say why they stopped with every chunk, from the first one on: an answer that goes on has not stopped, and of
        // the first chunk it is not known yet.
        let may_go_on = said && (finished || !self.goes_on_unasked);
        Ok(match may_go_on {
            true if self.finish.is_some() && !finished && self.figures.are_given() => Progress::MayGoOn,
            true => Progress::Open,
            false => self.progress(),
        })
    }

    fn document(mut self, document: &[u8], out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        self.frames += 1;
        let text = std::str::from_utf8(document).map_err(|error| self.bad_frame(&error.to_string()))?;
        let text = text.trim_start_matches('\u{feff}');
        if serde_json::from_str::<serde::de::IgnoredAny>(text).is_err_and(|error| error.is_eof()) {
            return Err(ModelError::new(ModelErrorKind::IncompleteStream, "the answer was cut"));
        }
        self.json(text, out)?;
        self.close(out)
    }

    fn close(&mut self, out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        let Some(finish) = self.finish else {
            return Err(ModelError::new(ModelErrorKind::IncompleteStream, "the answer ended before the model said why it stopped"));
        };
        // Of a cut answer no call is made.
        if self.open.is_some() && finish == ModelFinish::Stop {
            return Err(partial::bad("the answer ended before the last one"));
        }
        self.tally.given(self.figures.into());
        out.push_back(ModelEvent::Usage(self.tally.usage()));
        // The calls that are there decide, not the word.
        let wants_tools = finish == ModelFinish::Stop && self.calls > 0;
        out.push_back(ModelEvent::Finished(if wants_tools { ModelFinish::ToolCalls } else { finish }));
        Ok(())
    }
}

impl Decoder {
    fn progress(&self) -> Progress {
        if self.finish.is_some() { Progress::Closing } else { Progress::Open }
    }

    fn json(&mut self, data: &str, out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        let error = match serde_json::from_str::<Chunks<'_>>(data) {
            Ok(chunks) if chunks.0.iter().all(Chunk::says_nothing) => return failure::unannounced(data).map_or(Ok(()), Err),
            Ok(chunks) => return self.chunks(chunks, out),
            Err(error) => error,
        };
        // Half a surrogate pair is no character, and no reason to lose an answer.
        let Some(mended) = json::mend_surrogates(data) else { return Err(self.no_event(data, &error.to_string())) };
        match serde_json::from_str::<Chunks<'_>>(&mended) {
            Ok(chunks) => self.chunks(chunks, out),
            Err(error) => Err(self.no_event(&mended, &error.to_string())),
        }
    }

    /// The error that something is which is no event.
    fn no_event(&self, data: &str, why: &str) -> ModelError {
        failure::unannounced(data).unwrap_or_else(|| self.bad_frame(why))
    }

    fn chunks(&mut self, chunks: Chunks<'_>, out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        chunks.0.into_iter().try_for_each(|chunk| self.chunk(chunk, out))
    }

    fn bad_frame(&self, why: &str) -> ModelError {
        ModelError::new(ModelErrorKind::BadStream, &format!("bad_frame: event {} of the answer: {why}", self.frames))
    }

    fn chunk(&mut self, chunk: Chunk<'_>, out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        if let Some(error) = chunk.error {
            return Err(failure::from_event(&error));
        }
        if let Some(response) = chunk.response {
            self.chunk(*response, out)?;
        }
        if let Some(figures) = chunk.usage_metadata {
            self.figures.update(figures);
        }
        let blocked = |reason: &str| !matches!(reason, "" | "BLOCK_REASON_UNSPECIFIED");
        if chunk.prompt_feedback.is_some_and(|feedback| blocked(&feedback.block_reason.0)) {
            self.finish = Some(ModelFinish::Refused);
        }
        let first = |candidate: &Candidate<'_>| candidate.index.unwrap_or(0) == 0;
        match chunk.candidates.into_iter().flatten().find(first) {
            Some(candidate) => self.candidate(candidate, out),
            None => Ok(()),
        }
    }

    fn candidate(&mut self, candidate: Candidate<'_>, out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        for part in candidate.content.into_iter().flat_map(|content| content.parts) {
            self.part(part, out)?;
        }
        // A reason that is not given, in the other way to say so.
        if matches!(&*candidate.finish_reason.0, "" | "FINISH_REASON_UNSPECIFIED") {
            return Ok(());
        }
        self.finish_word(&candidate.finish_reason.0, &candidate.finish_message.0)
    }

    fn part(&mut self, part: Part<'_>, out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        let signature = part.thought_signature.0;
        if let Some(call) = part.function_call {
            return self.call(call, &signature, out);
        }
        // Pictures, code that ran at the provider and its results, and what is newer than this code.
        let Some(text) = part.text else { return Ok(()) };
        let text = storable(text.0);
        self.tally.said(text.len());
        let place = match part.thought {
            Some(true) => Place::Thought { bytes: text.len() },
            Some(false) | None => Place::Text { bytes: text.len() },
        };
        if !text.is_empty() {
            out.push_back(match place {
                Place::Thought { .. } => ModelEvent::Reasoning(text),
                Place::Text { .. } => ModelEvent::Text(text),
            });
        }
        if !signature.is_empty() {
            out.push_back(ModelEvent::ReasoningBlock(place.sign(&signature)));
        }
        Ok(())
    }

    fn call(&mut self, call: FunctionCall<'_>, signature: &str, out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        match (self.open.take(), call.name.0.is_empty()) {
            (Some(open), true) => {
                self.pieces(open, &call, out)?;
                self.sign_call(signature, out);
                return Ok(());
            }
            (Some(_), false) => return Err(partial::bad("another call began before the last one")),
            // The end of arguments that came in pieces.
            (None, true) if self.calls > 0 && call.says_nothing() => return Ok(()),
            (None, true) => return Err(ModelError::new(ModelErrorKind::BadStream, "a tool call has no name")),
            (None, false) => {}
        }
        if self.calls == MAX_CALLS {
            let message = format!("the answer has more than {MAX_CALLS} tool calls");
            return Err(ModelError::new(ModelErrorKind::BadStream, &message));
        }
        let index = self.calls;
        self.calls += 1;
        let name = match self.renamed.iter().find(|(wire, _)| *wire == call.name.0) {
            Some((_, name)) => name.clone(),
            None => storable(call.name.0.clone()),
        };
        self.tally.said(call.name.0.len());
        out.push_back(ModelEvent::ToolCallStarted { index, provider_call_id: storable(call.id.0.clone()), name });
        let arguments = call.args.map(json_text).unwrap_or_default();
        if call.partial_args.is_some() || call.continues() {
            self.pieces(Partial::new(&arguments)?, &call, out)?;
        } else {
            self.arguments(arguments, out);
        }
        self.sign_call(signature, out);
        Ok(())
    }

    /// Keeps a signature with the last call.
    fn sign_call(&self, signature: &str, out: &mut VecDeque<ModelEvent>) {
        if let (false, Some(index)) = (signature.is_empty(), self.calls.checked_sub(1)) {
            out.push_back(ModelEvent::ToolCallBlock { index, raw: json!({ "thoughtSignature": signature }) });
        }
    }

    /// Pieces of the arguments of the last call, which are shown when they are whole.
    fn pieces(&mut self, mut open: Partial, call: &FunctionCall<'_>, out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        call.partial_args.iter().flatten().try_for_each(|piece| open.take(piece))?;
        if call.continues() {
            self.open = Some(open);
        } else {
            self.arguments(open.text(), out);
        }
        Ok(())
    }

    /// All arguments of the last call.
    fn arguments(&mut self, arguments: String, out: &mut VecDeque<ModelEvent>) {
        self.tally.said(arguments.len());
        if let (false, Some(index)) = (arguments.is_empty(), self.calls.checked_sub(1)) {
            out.push_back(ModelEvent::ToolCallArguments { index, delta: arguments });
        }
    }

    /// The words for why a model stopped: <https://ai.google.dev/api/generate-content#FinishReason>.
    fn finish_word(&mut self, word: &str, message: &str) -> Result<(), ModelError> {
        let failed = |kind: ModelErrorKind, words: &str| {
            let words = if message.is_empty() { words.to_owned() } else { format!("{words}: {message}") };
            Err(ModelError::new(kind, &words))
        };
        let finish = match word.to_ascii_uppercase().as_str() {
            // The others are words of wires that gateways translate from.
            "STOP" | "END_TURN" | "TOOL_CALLS" | "TOOL_USE" => ModelFinish::Stop,
            "MAX_TOKENS" | "LENGTH" => ModelFinish::Length,
            "SAFETY"
            | "RECITATION"
            | "LANGUAGE"
            | "BLOCKLIST"
            | "PROHIBITED_CONTENT"
            | "SPII"
            | "IMAGE_SAFETY"
            | "IMAGE_PROHIBITED_CONTENT"
            | "IMAGE_RECITATION"
            | "MODEL_ARMOR"
            | "CONTENT_FILTER" => ModelFinish::Refused,
            "MALFORMED_FUNCTION_CALL" | "UNEXPECTED_TOOL_CALL" | "TOO_MANY_TOOL_CALLS" => {
                return failed(ModelErrorKind::BadStream, "the model wrote a tool call that its provider cannot take");
            }
            "MISSING_THOUGHT_SIGNATURE" => {
                return failed(ModelErrorKind::InvalidRequest, "the provider misses a signature in the history");
            }
            "OTHER" | "MALFORMED_RESPONSE" => {
                return failed(ModelErrorKind::BadStream, "the model stopped for a reason that its provider does not name");
            }
            _ => return failed(ModelErrorKind::BadStream, &format!("the model stopped for an unknown reason, {word:?}")),
        };
        // A cut or refused answer does not become whole by a second word.
        self.finish = match self.finish {
            Some(ModelFinish::Length | ModelFinish::Refused) => self.finish,
            Some(ModelFinish::Stop | ModelFinish::ToolCalls) | None => Some(finish),
        };
        Ok(())
    }
}
