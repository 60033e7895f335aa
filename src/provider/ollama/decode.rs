//! Turns the lines of a stream, or a whole answer, into deltas.

use super::wire::{Call, Line};
use crate::domain::model::{ModelError, ModelErrorKind, ModelFinish};
use crate::provider::failure;
use crate::provider::stream::lenient::storable_text;
use crate::provider::stream::{
    AnswerAssembler, AnswerDecoder, FinishReason, ReasoningTags, StreamAdapter, TokenFigures, finish_reason, incomplete, is_cut,
    reported, unknown_finish_reason,
};

/// The tags around the reasoning of models that are served without a template for it. Any model is asked here, so that no tags are
/// taken for it that a prompt may ask for.
const TAGS: [&str; 2] = ["<think>", "</think>"];

const UNFINISHED: &str = "the answer ended before Ollama said that it is done";

/// Reads the lines of Ollama.
#[derive(Debug)]
pub(super) struct OllamaAdapter;

/// Returns a decoder of one answer.
pub(super) fn decoder(max_output_tokens: Option<u32>, request_bytes: usize) -> AnswerDecoder<OllamaAdapter> {
    // A model whose template says nothing of its reasoning is left to write it into the text.
    let tags = ReasoningTags::looking(&[TAGS.map(str::to_owned)]);
    AnswerDecoder::new(OllamaAdapter, AnswerAssembler::new(max_output_tokens, request_bytes).with_tags(tags))
}

impl StreamAdapter for OllamaAdapter {
    fn event(&mut self, _name: &str, json: &str, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        // The last line of a broken connection has no end, and looks like any other.
        let line: Line<'_> = answer.parse(json).map_err(|error| if is_cut(json) { incomplete(UNFINISHED) } else { error })?;
        if line.error.is_some() {
            // The fields beside the message may say more than it does.
            return Err(reported(json));
        }
        if line.message.is_none()
            && !line.done.0
            && let Some(error) = failure::unannounced(json)
        {
            return Err(error);
        }
        answer.add_figures(TokenFigures { input: line.prompt_eval_count.0, output: line.eval_count.0, ..TokenFigures::default() });
        if let Some(message) = line.message {
            if !message.thinking.0.is_empty() {
                answer.tags.came_elsewhere(&message.thinking.0);
                answer.reasoning(message.thinking.0);
            }
            if answer.tags.is_over() {
                answer.text(message.content.0);
            } else {
                let split = answer.tags.feed(&message.content.0);
                answer.split_text(split);
            }
            for call in message.tool_calls {
                let held = answer.tags.settle();
                answer.text(held.into());
                add_call(call, answer)?;
            }
        }
        if line.done.0 {
            answer.stop(finish(&line.done_reason.0)?);
            answer.ended = true;
        }
        Ok(())
    }

    fn end_mark(&mut self, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        Err(answer.bad_frame("it is no JSON object"))
    }

    fn finish(&mut self, answer: &mut AnswerAssembler) -> Result<ModelFinish, ModelError> {
        let finish = answer.finish.ok_or_else(|| incomplete(UNFINISHED))?;
        let held = answer.tags.finish();
        answer.split_text(held);
        Ok(finish)
    }
}

fn add_call(call: Call<'_>, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
    let Some(function) = call.function.filter(|function| !function.name.0.is_empty()) else {
        return Err(answer.bad_frame("a tool call has no name"));
    };
    let index = answer.open_call()?;
    answer.start_call(index, storable_text(call.id.0), storable_text(function.name.0));
    answer.call_arguments(index, storable_text(function.arguments.0));
    Ok(())
}

/// Reads why the model is done. Older versions give no reason.
fn finish(word: &str) -> Result<ModelFinish, ModelError> {
    if let "load" | "unload" = word {
        let message = format!("Ollama did not answer but {word}ed the model");
        return Err(ModelError::new(ModelErrorKind::EmptyResponse, &message));
    }
    if word.is_empty() {
        return Ok(ModelFinish::Stop);
    }
    match finish_reason(word)? {
        // The calls that are there decide.
        FinishReason::Finish(ModelFinish::ToolCalls) => Ok(ModelFinish::Stop),
        FinishReason::Finish(finish @ (ModelFinish::Stop | ModelFinish::Length | ModelFinish::Refused)) => Ok(finish),
        FinishReason::Paused | FinishReason::Unstated => Err(unknown_finish_reason(word)),
    }
}
