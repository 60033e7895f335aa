//! Converts the lines of a stream, or a complete answer, into deltas.

use serde::Deserialize;
use serde_json::Value;

use crate::domain::model::{ModelError, ModelErrorKind, ModelFinish};
use crate::provider::errors::failure;
use crate::provider::stream::lenient::{Count, Flag, Function, Text, many, object, storable_text};
use crate::provider::stream::{
    AnswerAssembler, AnswerDecoder, ReasoningTags, ReportedUsage, StreamAdapter, finish_of_stop_reason, incomplete, is_cut,
    reported,
};

/// The tags of models whose template does not separate reasoning. Other tags stay in the text, because a prompt may ask for them.
const TAGS: [&str; 2] = ["<think>", "</think>"];

const UNFINISHED: &str = "the answer ended without Ollama's `done`";

#[derive(Debug)]
pub(super) struct OllamaAdapter;

pub(super) fn decoder(max_output_tokens: Option<u32>, request_bytes: usize) -> AnswerDecoder<OllamaAdapter> {
    let tags = ReasoningTags::detecting(&[TAGS.map(str::to_owned)]);
    AnswerDecoder::new(OllamaAdapter, AnswerAssembler::new(max_output_tokens, request_bytes).with_tags(tags))
}

impl StreamAdapter for OllamaAdapter {
    fn event(&mut self, _name: &str, json: &str, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        // The last line of a broken connection may be cut.
        let line: Line<'_> = answer.parse(json).map_err(|error| if is_cut(json) { incomplete(UNFINISHED) } else { error })?;
        if line.error.is_some() {
            // The fields beside the message may be more exact.
            return Err(reported(json));
        }
        if line.message.is_none() && !line.done.0 {
            failure::check_for_unusual_error(json)?;
        }
        answer.add_usage(ReportedUsage { input: line.prompt_eval_count.0, output: line.eval_count.0, ..ReportedUsage::default() });
        if let Some(message) = line.message {
            if !message.thinking.0.is_empty() {
                answer.tags.add_separate_reasoning(&message.thinking.0);
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
                let Some(function) = call.function.filter(|function| !function.name.0.is_empty()) else {
                    return Err(answer.bad_frame("a tool call has no name"));
                };
                let index = answer.open_call()?;
                answer.start_call(index, storable_text(call.id.0), storable_text(function.name.0));
                answer.call_arguments(index, storable_text(function.arguments.0));
            }
        }
        if line.done.0 {
            answer.stop(finish(&line.done_reason.0)?);
            answer.is_ended = true;
        }
        Ok(())
    }

    fn end_mark(&mut self, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        Err(answer.bad_frame("it is not a JSON object"))
    }

    fn finish(&mut self, answer: &mut AnswerAssembler) -> Result<ModelFinish, ModelError> {
        let finish = answer.finish.ok_or_else(|| incomplete(UNFINISHED))?;
        let held = answer.tags.finish();
        answer.split_text(held);
        Ok(finish)
    }
}

/// Maps the `done_reason`. Older versions send none.
fn finish(word: &str) -> Result<ModelFinish, ModelError> {
    if let "load" | "unload" = word {
        let message = format!("Ollama did not answer but {word}ed the model");
        return Err(ModelError::new(ModelErrorKind::EmptyResponse, &message));
    }
    if word.is_empty() { Ok(ModelFinish::Stop) } else { finish_of_stop_reason(word) }
}

/// One line of a stream, or a complete answer.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Line<'a> {
    #[serde(borrow)]
    pub(super) message: Option<Message<'a>>,
    pub(super) done: Flag,
    pub(super) done_reason: Text<'a>,
    pub(super) error: Option<Value>,
    pub(super) prompt_eval_count: Count,
    pub(super) eval_count: Count,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Message<'a> {
    #[serde(borrow)]
    pub(super) content: Text<'a>,
    pub(super) thinking: Text<'a>,
    /// Proxies send a single call without a list.
    #[serde(deserialize_with = "many")]
    pub(super) tool_calls: Vec<Call<'a>>,
}

/// A complete tool call. Its index is not read: several calls share one.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Call<'a> {
    #[serde(borrow)]
    pub(super) id: Text<'a>,
    #[serde(deserialize_with = "object")]
    pub(super) function: Option<Function<'a>>,
}
