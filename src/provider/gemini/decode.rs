//! Converts the chunks of a stream, or a complete answer, into deltas.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::json;

use super::content::{SignedPart, wire_name};
use super::wire::{Candidate, Chunk, Chunks, Figures, FunctionCall, Part};
use crate::domain::model::{ModelError, ModelErrorKind, ModelEvent, ModelFinish};
use crate::domain::tool::ToolDefinition;
use crate::provider::errors::failure;
use crate::provider::stream::lenient::{json_text, storable_text};
use crate::provider::stream::{
    AnswerAssembler, AnswerDecoder, StopReasonPlacement, StreamAdapter, finish_without_calls, incomplete,
};

/// The failure of an answer whose arguments would need to be assembled:
/// <https://cloud.google.com/vertex-ai/generative-ai/docs/multimodal/function-calling#streaming-fc>.
const ARGUMENTS_IN_PIECES: &str = "the arguments of a tool call arrive in pieces (partialArgs, willContinue), which Capstan does not \
    request: turn streamFunctionCallArguments off at the gateway";

#[derive(Debug)]
pub(super) struct GenerateContentAdapter {
    /// The tools with another name in this dialect: that name, and the original.
    renamed: Vec<(String, String)>,
    figures: Figures,
}

pub(super) fn decoder(tools: &[Arc<ToolDefinition>], request_bytes: usize) -> AnswerDecoder<GenerateContentAdapter> {
    let renamed = tools.iter().filter_map(|tool| match wire_name(&tool.name) {
        Cow::Borrowed(_) => None,
        Cow::Owned(name) => Some((name, tool.name.clone())),
    });
    let adapter = GenerateContentAdapter { renamed: renamed.collect(), figures: Figures::default() };
    AnswerDecoder::new(adapter, AnswerAssembler::new(None, request_bytes))
}

impl StreamAdapter for GenerateContentAdapter {
    const STOP_REASON_PLACEMENT: StopReasonPlacement = StopReasonPlacement::WithEveryEvent;

    fn event(&mut self, _name: &str, json: &str, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        // A gateway that drops `alt=sse` sends a list of all chunks.
        let chunks = serde_json::from_str::<Chunks<'_>>(json).map_err(|error| answer.frame_failure(json, &error.to_string()))?;
        if chunks.0.iter().all(Chunk::is_empty) {
            return failure::check_unannounced(json);
        }
        chunks.0.into_iter().try_for_each(|chunk| self.chunk(chunk, answer))
    }

    /// Ignores the end mark. This dialect has none, and a gateway's mark adds no information to the stop reason.
    fn end_mark(&mut self, _answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        Ok(())
    }

    fn finish(&mut self, answer: &mut AnswerAssembler) -> Result<ModelFinish, ModelError> {
        answer.add_figures(self.figures);
        answer.finish.ok_or_else(|| incomplete("the answer ended without a stop reason"))
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
            // Without counts, the answer may continue and does not count as complete.
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

    fn candidate(&self, candidate: Candidate<'_>, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        for part in candidate.content.into_iter().flat_map(|content| content.parts) {
            self.part(part, answer)?;
        }
        for (metadata, names) in [
            (&candidate.grounding_metadata, ["groundingChunks", "grounding_chunks"]),
            (&candidate.citation_metadata, ["citationSources", "citations"]),
        ] {
            names.iter().filter_map(|name| metadata.get(name)).for_each(|list| answer.add_sources(list));
        }
        if matches!(&*candidate.finish_reason.0, "" | "FINISH_REASON_UNSPECIFIED") {
            return Ok(());
        }
        Self::stop(&candidate.finish_reason.0, &candidate.finish_message.0, answer)
    }

    fn part(&self, part: Part<'_>, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        let signature = part.thought_signature.0;
        if let Some(call) = part.function_call {
            return self.call(call, &signature, answer);
        }
        if let Some(picture) = part.inline_data.filter(|data| data.mime_type.0.starts_with("image/")) {
            // A picture in a thought is a draft.
            if part.thought != Some(true) {
                answer.picture(&picture.data.0);
            }
            return Ok(());
        }
        // Ignores code that ran at the provider, its results, and parts that are newer than this code.
        let Some(text) = part.text else { return Ok(()) };
        let text = storable_text(text.0);
        let signed = SignedPart { is_thought: part.thought == Some(true), bytes: text.len() };
        if signed.is_thought {
            answer.reasoning(text.into());
        } else {
            answer.text(text.into());
        }
        if !signature.is_empty() {
            answer.emit(ModelEvent::ReasoningBlock(signed.sign(&signature)));
        }
        Ok(())
    }

    fn call(&self, call: FunctionCall<'_>, signature: &str, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        // The request is in order, so another model or attempt may answer.
        if call.is_in_pieces() {
            return Err(ModelError::new(ModelErrorKind::BadStream, ARGUMENTS_IN_PIECES));
        }
        if call.name.0.is_empty() {
            return Err(ModelError::new(ModelErrorKind::BadStream, "a tool call has no name"));
        }
        let index = answer.open_call()?;
        let name = match self.renamed.iter().find(|(wire, _)| *wire == call.name.0) {
            Some((_, name)) => name.clone(),
            None => storable_text(call.name.0),
        };
        answer.start_call(index, storable_text(call.id.0), name);
        answer.call_arguments(index, call.args.map(json_text).unwrap_or_default());
        if !signature.is_empty() {
            answer.emit(ModelEvent::ToolCallBlock { index, raw: json!({ "thoughtSignature": signature }) });
        }
        Ok(())
    }

    /// Maps the stop reason: <https://ai.google.dev/api/generate-content#FinishReason>.
    fn stop(word: &str, message: &str, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        let failed = |kind, why| Err(ModelError::new(kind, why));
        let reason = match word.to_ascii_uppercase().as_str() {
            "MISSING_THOUGHT_SIGNATURE" => {
                failed(ModelErrorKind::InvalidRequest, "the provider requires a signature that the history does not have")
            }
            "OTHER" | "MALFORMED_RESPONSE" => failed(ModelErrorKind::BadStream, "the model stopped without a specific reason"),
            _ => finish_without_calls(word),
        };
        answer.stop(reason.map_err(|error| match message {
            "" => error,
            _ => ModelError::new(error.kind, &format!("{}: {message}", error.message)),
        })?);
        Ok(())
    }
}
