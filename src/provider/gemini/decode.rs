//! Decodes answers of Gemini `generateContent`: the chunks of a stream, or one complete answer.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::json;

use super::content::{SignatureScope, wire_name};
use super::wire::{Candidate, Chunk, Chunks, FunctionCall, Part, TokenCounts};
use crate::domain::model::{ModelError, ModelErrorKind, ModelEvent, ModelFinish};
use crate::domain::tool::ToolDefinition;
use crate::provider::errors::failure;
use crate::provider::stream::lenient::{json_text, storable_text};
use crate::provider::stream::{
    AnswerAssembler, AnswerDecoder, StopReasonPlacement, StreamAdapter, finish_of_stop_reason, incomplete,
};

/// The error about tool-call arguments in several pieces, which this decoder does not assemble:
/// <https://cloud.google.com/vertex-ai/generative-ai/docs/multimodal/function-calling#streaming-fc>.
const ARGUMENTS_IN_PIECES: &str = "the arguments of a tool call arrive in pieces (partialArgs, willContinue), which Capstan does not \
    request: turn streamFunctionCallArguments off at the gateway";

#[derive(Debug)]
pub(super) struct GenerateContentAdapter {
    /// The tools that have another name in this dialect. Each pair is that name and the original name.
    renamed: Vec<(String, String)>,
    /// The token counts so far.
    counts: TokenCounts,
}

pub(super) fn decoder(tools: &[Arc<ToolDefinition>], request_bytes: usize) -> AnswerDecoder<GenerateContentAdapter> {
    let renamed = tools.iter().filter_map(|tool| match wire_name(&tool.name) {
        Cow::Borrowed(_) => None,
        Cow::Owned(name) => Some((name, tool.name.clone())),
    });
    let adapter = GenerateContentAdapter { renamed: renamed.collect(), counts: TokenCounts::default() };
    AnswerDecoder::new(adapter, AnswerAssembler::new(None, request_bytes))
}

impl StreamAdapter for GenerateContentAdapter {
    const STOP_REASON_PLACEMENT: StopReasonPlacement = StopReasonPlacement::WithEveryEvent;

    fn event(&mut self, _name: &str, json: &str, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        // A gateway that drops the parameter `alt=sse` sends one list of all chunks.
        let chunks = serde_json::from_str::<Chunks<'_>>(json).map_err(|error| answer.frame_failure(json, &error.to_string()))?;
        if chunks.0.iter().all(Chunk::is_empty) {
            return failure::check_for_unusual_error(json);
        }
        chunks.0.into_iter().try_for_each(|chunk| self.add_chunk(chunk, answer))
    }

    /// Ignores an end mark such as `[DONE]`: only gateways send one, and the stop reason already ends the answer.
    fn end_mark(&mut self, _answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        Ok(())
    }

    fn finish(&mut self, answer: &mut AnswerAssembler) -> Result<ModelFinish, ModelError> {
        answer.add_usage(self.counts);
        answer.finish.ok_or_else(|| incomplete("the answer ended without a stop reason"))
    }
}

impl GenerateContentAdapter {
    fn add_chunk(&mut self, chunk: Chunk<'_>, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        if let Some(error) = chunk.error {
            return Err(failure::from_event(&error));
        }
        if let Some(response) = chunk.response {
            self.add_chunk(*response, answer)?;
        }
        if let Some(counts) = chunk.usage_metadata {
            self.counts.update(counts);
            // A total count may arrive early. The usage is complete with the counts of request and answer.
            if self.counts.are_complete() {
                answer.add_usage(self.counts);
            }
        }
        let is_blocked = |reason: &str| !matches!(reason, "" | "BLOCK_REASON_UNSPECIFIED");
        if chunk.prompt_feedback.is_some_and(|feedback| is_blocked(&feedback.block_reason.0)) {
            answer.finish = Some(ModelFinish::Refused);
        }
        let is_first = |candidate: &Candidate<'_>| candidate.index.unwrap_or(0) == 0;
        match chunk.candidates.into_iter().flatten().find(is_first) {
            Some(candidate) => self.add_candidate(candidate, answer),
            None => Ok(()),
        }
    }

    fn add_candidate(&self, candidate: Candidate<'_>, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        for part in candidate.content.into_iter().flat_map(|content| content.parts) {
            self.add_part(part, answer)?;
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
        Self::store_stop_reason(&candidate.finish_reason.0, &candidate.finish_message.0, answer)
    }

    fn add_part(&self, part: Part<'_>, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        let signature = part.thought_signature.0;
        if let Some(call) = part.function_call {
            return self.add_call(call, &signature, answer);
        }
        if let Some(picture) = part.inline_data.filter(|data| data.mime_type.0.starts_with("image/")) {
            // A picture in a reasoning part is a draft, and no part of the answer.
            if part.thought != Some(true) {
                answer.picture(&picture.data.0);
            }
            return Ok(());
        }
        // Ignores parts without text: code that the provider executed, the results of that code, and unknown types of parts.
        let Some(text) = part.text else { return Ok(()) };
        let text = storable_text(text.0);
        let scope = SignatureScope { is_thought: part.thought == Some(true), bytes: text.len() };
        if scope.is_thought {
            answer.reasoning(text.into());
        } else {
            answer.text(text.into());
        }
        if !signature.is_empty() {
            answer.emit(ModelEvent::ReasoningBlock(scope.with_signature(&signature)));
        }
        Ok(())
    }

    fn add_call(&self, call: FunctionCall<'_>, signature: &str, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        // The error is that of a bad stream: the request is valid, so a retry or another model may succeed.
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

    /// Stores the stop reason `word`, or returns the error that it means:
    /// <https://ai.google.dev/api/generate-content#FinishReason>.
    fn store_stop_reason(word: &str, message: &str, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        let failed = |kind, why| Err(ModelError::new(kind, why));
        let reason = match word.to_ascii_uppercase().as_str() {
            "MISSING_THOUGHT_SIGNATURE" => {
                failed(ModelErrorKind::InvalidRequest, "the provider requires a signature that the history does not have")
            }
            "OTHER" | "MALFORMED_RESPONSE" => failed(ModelErrorKind::BadStream, "the model stopped without a specific reason"),
            _ => finish_of_stop_reason(word),
        };
        answer.stop(reason.map_err(|error| match message {
            "" => error,
            _ => ModelError::new(error.kind, &format!("{}: {message}", error.message)),
        })?);
        Ok(())
    }
}
