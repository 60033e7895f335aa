//! Turns the chunks of a stream, or a whole answer, into deltas.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::json;

use super::content::{Place, wire_name};
use super::partial::{self, Partial};
use super::wire::{Candidate, Chunk, Chunks, Figures, FunctionCall, Part};
use crate::domain::model::{ModelError, ModelErrorKind, ModelEvent, ModelFinish};
use crate::domain::tool::ToolDefinition;
use crate::provider::failure;
use crate::provider::stream::lenient::{json_text, storable_text};
use crate::provider::stream::{
    AnswerAssembler, AnswerDecoder, FinishReason, StopReasons, StreamAdapter, finish_reason, incomplete, unknown_finish_reason,
};

/// Reads the chunks of `generateContent`.
#[derive(Debug)]
pub(super) struct GenerateContentAdapter {
    /// The tools that have another name on the wire, by it.
    renamed: Vec<(String, String)>,
    /// The last call, if its arguments come in pieces and are not whole.
    open: Option<Partial>,
    figures: Figures,
}

/// Returns a decoder of one answer.
pub(super) fn decoder(tools: &[Arc<ToolDefinition>], request_bytes: usize) -> AnswerDecoder<GenerateContentAdapter> {
    let renamed = tools.iter().filter_map(|tool| match wire_name(&tool.name) {
        Cow::Borrowed(_) => None,
        Cow::Owned(name) => Some((name, tool.name.clone())),
    });
    let adapter = GenerateContentAdapter { renamed: renamed.collect(), open: None, figures: Figures::default() };
    AnswerDecoder::new(adapter, AnswerAssembler::new(None, request_bytes))
}

impl StreamAdapter for GenerateContentAdapter {
    const STOP_REASONS: StopReasons = StopReasons::WithEveryEvent;

    fn event(&mut self, _name: &str, json: &str, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        // A gateway that drops `alt=sse` sends the list of all chunks.
        let chunks = serde_json::from_str::<Chunks<'_>>(json).map_err(|error| answer.no_event(json, &error.to_string()))?;
        if chunks.0.iter().all(Chunk::says_nothing) {
            return failure::unannounced(json).map_or(Ok(()), Err);
        }
        chunks.0.into_iter().try_for_each(|chunk| self.chunk(chunk, answer))
    }

    /// Ignores the mark: this dialect has none, and those of gateways add nothing to the reason to stop.
    fn end_mark(&mut self, _answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        Ok(())
    }

    fn finish(&mut self, answer: &mut AnswerAssembler) -> Result<ModelFinish, ModelError> {
        answer.add_figures(self.figures);
        let finish = answer.finish.ok_or_else(|| incomplete("the answer ended before the model said why it stopped"))?;
        // Of a cut answer no call is made.
        if self.open.is_some() && finish == ModelFinish::Stop {
            return Err(partial::bad("the answer ended before the last one"));
        }
        Ok(finish)
    }
}

impl GenerateContentAdapter {
    fn chunk(&mut self, chunk: Chunk<'_>, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        if let Some(error) = chunk.error {
            return Err(failure::from_event(&error));
        }
        if let Some(response) = chunk.response {
            self.chunk(*response, answer)?;
        }
        if let Some(figures) = chunk.usage_metadata {
            self.figures.update(figures);
            // Until then an answer that may go on is not taken for whole.
            if self.figures.are_given() {
                answer.add_figures(self.figures);
            }
        }
        let blocked = |reason: &str| !matches!(reason, "" | "BLOCK_REASON_UNSPECIFIED");
        if chunk.prompt_feedback.is_some_and(|feedback| blocked(&feedback.block_reason.0)) {
            answer.finish = Some(ModelFinish::Refused);
        }
        let first = |candidate: &Candidate<'_>| candidate.index.unwrap_or(0) == 0;
        match chunk.candidates.into_iter().flatten().find(first) {
            Some(candidate) => self.candidate(candidate, answer),
            None => Ok(()),
        }
    }

    fn candidate(&mut self, candidate: Candidate<'_>, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        for part in candidate.content.into_iter().flat_map(|content| content.parts) {
            self.part(part, answer)?;
        }
        // A reason that is not given, in the other way to say so.
        if matches!(&*candidate.finish_reason.0, "" | "FINISH_REASON_UNSPECIFIED") {
            return Ok(());
        }
        Self::stop(&candidate.finish_reason.0, &candidate.finish_message.0, answer)
    }

    fn part(&mut self, part: Part<'_>, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        let signature = part.thought_signature.0;
        if let Some(call) = part.function_call {
            return self.call(call, &signature, answer);
        }
        // Pictures, code that ran at the provider and its results, and what is newer than this code.
        let Some(text) = part.text else { return Ok(()) };
        let text = storable_text(text.0);
        let place = match part.thought {
            Some(true) => Place::Thought { bytes: text.len() },
            Some(false) | None => Place::Text { bytes: text.len() },
        };
        if !text.is_empty() {
            answer.emit(match place {
                Place::Thought { .. } => ModelEvent::Reasoning(text),
                Place::Text { .. } => ModelEvent::Text(text),
            });
        }
        if !signature.is_empty() {
            answer.reasoning_block(place.sign(&signature));
        }
        Ok(())
    }

    fn call(&mut self, call: FunctionCall<'_>, signature: &str, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        match (self.open.take(), call.name.0.is_empty()) {
            (Some(open), true) => {
                self.pieces(open, &call, answer)?;
                Self::sign_call(signature, answer);
                return Ok(());
            }
            (Some(_), false) => return Err(partial::bad("another call began before the last one")),
            // The end of arguments that came in pieces.
            (None, true) if answer.has_calls() && call.says_nothing() => return Ok(()),
            (None, true) => return Err(ModelError::new(ModelErrorKind::BadStream, "a tool call has no name")),
            (None, false) => {}
        }
        let index = answer.open_call()?;
        let name = match self.renamed.iter().find(|(wire, _)| *wire == call.name.0) {
            Some((_, name)) => name.clone(),
            None => storable_text(call.name.0.clone()),
        };
        answer.start_call(index, storable_text(call.id.0.clone()), name);
        let arguments = call.args.map(json_text).unwrap_or_default();
        if call.partial_args.is_some() || call.continues() {
            self.pieces(Partial::new(&arguments)?, &call, answer)?;
        } else {
            Self::arguments(arguments, answer);
        }
        Self::sign_call(signature, answer);
        Ok(())
    }

    /// Keeps a signature with the last call.
    fn sign_call(signature: &str, answer: &mut AnswerAssembler) {
        if let (false, Some(index)) = (signature.is_empty(), answer.last_call()) {
            answer.call_block(index, json!({ "thoughtSignature": signature }));
        }
    }

    /// Pieces of the arguments of the last call, which are shown when they are whole.
    fn pieces(&mut self, mut open: Partial, call: &FunctionCall<'_>, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        call.partial_args.iter().flatten().try_for_each(|piece| open.take(piece))?;
        if call.continues() {
            self.open = Some(open);
        } else {
            Self::arguments(open.text(), answer);
        }
        Ok(())
    }

    /// Takes in all arguments of the last call.
    fn arguments(arguments: String, answer: &mut AnswerAssembler) {
        if let Some(index) = answer.last_call() {
            answer.call_arguments(index, arguments);
        }
    }

    /// Takes in why a model stopped: <https://ai.google.dev/api/generate-content#FinishReason>.
    fn stop(word: &str, message: &str, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        let failed = |kind, why| Err(ModelError::new(kind, why));
        let reason = match word.to_ascii_uppercase().as_str() {
            "MISSING_THOUGHT_SIGNATURE" => failed(ModelErrorKind::InvalidRequest, "the provider misses a signature in the history"),
            "OTHER" | "MALFORMED_RESPONSE" => {
                failed(ModelErrorKind::BadStream, "the model stopped for a reason that its provider does not name")
            }
            _ => finish_reason(word),
        };
        let explained = |error: ModelError| match message {
            "" => error,
            _ => ModelError::new(error.kind, &format!("{}: {message}", error.message)),
        };
        answer.stop(match reason.map_err(explained)? {
            // The calls that are there decide.
            FinishReason::Finish(ModelFinish::ToolCalls) => ModelFinish::Stop,
            FinishReason::Finish(finish @ (ModelFinish::Stop | ModelFinish::Length | ModelFinish::Refused)) => finish,
            FinishReason::Paused | FinishReason::Unstated => return Err(explained(unknown_finish_reason(word))),
        });
        Ok(())
    }
}
