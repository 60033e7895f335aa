//! Converts the events of a stream, or a complete answer, into deltas.

use std::borrow::Cow;

use serde_json::{Value, json};

use super::calls::Calls;
use super::provider_fields::{self, ProviderFields};
use super::signed_reasoning::{self, Details};
use super::wire::{BaseResponse, Choice, Chunk, Delta, Envelope, Fragment, MessageContent, is_meaningful};
use crate::domain::model::{ModelError, ModelFinish};
use crate::provider::errors::facts::vendor_code;
use crate::provider::errors::failure;
use crate::provider::stream::{
    AnswerAssembler, AnswerDecoder, SplitText, StopReason, StopReasonPlacement, StreamAdapter, incomplete, read_stop_reason,
    reported, unknown_stop_reason,
};
use crate::support::failpoint;

#[derive(Debug)]
pub(super) struct ChatCompletionsAdapter {
    calls: Calls,
    /// OpenRouter's reasoning details that were not emitted yet.
    details: Details,
    /// LiteLLM's thinking blocks that were not emitted yet.
    blocks: Details,
    index: ChoiceIndex,
    /// Whether content arrived in deltas, which a complete message then repeats.
    has_deltas: bool,
    /// Fields that go back to the provider with the message.
    own: ProviderFields,
}

/// Returns a decoder of the answer to a request that offers tools of these names.
pub(super) fn decoder(tools: Vec<String>, answer: AnswerAssembler) -> AnswerDecoder<ChatCompletionsAdapter> {
    let adapter = ChatCompletionsAdapter {
        calls: Calls::new(tools),
        details: Details::new(signed_reasoning::OPENROUTER),
        blocks: Details::new(signed_reasoning::LITELLM),
        index: ChoiceIndex::default(),
        has_deltas: false,
        own: ProviderFields::default(),
    };
    AnswerDecoder::new(adapter, answer)
}

/// Tracks the index of the choice with the answer. Requests ask for one choice only.
#[derive(Debug, Default)]
struct ChoiceIndex {
    first: Option<i64>,
    last: Option<i64>,
    /// Whether an index was repeated. If not, a server may count events instead of choices.
    repeats: bool,
}

impl ChoiceIndex {
    /// Returns whether the only choice of an event is the answer.
    fn is_answer(&mut self, index: Option<i64>) -> bool {
        let index = index.unwrap_or(0);
        let first = *self.first.get_or_insert(index);
        let rises = !self.repeats && self.last.is_some_and(|last| last.checked_add(1) == Some(index));
        self.repeats |= self.last.is_some() && !rises;
        self.last = Some(index);
        index == first || index == 0 || rises
    }
}

impl StreamAdapter for ChatCompletionsAdapter {
    const STOP_REASON_PLACEMENT: StopReasonPlacement = StopReasonPlacement::Anywhere;

    fn event(&mut self, _name: &str, json: &str, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        let chunk = answer.parse(json)?;
        self.chunk(chunk, json, answer)
    }

    fn document(&mut self, json: &str, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        self.event("", json, answer)?;
        // The document is complete, so its message is, too, even without a stop reason.
        answer.is_ended = answer.is_message;
        Ok(())
    }

    fn held_bytes(&self) -> usize {
        self.calls.bytes()
    }

    fn finish(&mut self, answer: &mut AnswerAssembler) -> Result<ModelFinish, ModelError> {
        // The held-back text of a cut stream may be half of a tag.
        if answer.finish.is_some() || answer.is_ended {
            let held = answer.tags.finish();
            self.split_text(held, answer);
            let is_over = !matches!(answer.finish, Some(ModelFinish::Length | ModelFinish::Refused));
            if is_over && !answer.has_content() {
                let text = answer.tags.unclosed();
                self.text(text.into(), answer);
            }
        }
        let finish = match answer.finish {
            Some(finish) => finish,
            None => self.finish_without_reason(answer)?,
        };
        self.calls.finish(finish, answer)?;
        self.emit_reasoning_blocks(answer);
        self.own.emit(answer);
        Ok(finish)
    }
}

impl ChatCompletionsAdapter {
    /// Returns the finish of an answer without a stop reason. Only the end mark, which some servers send, distinguishes it from a cut
    /// connection.
    fn finish_without_reason(&self, answer: &AnswerAssembler) -> Result<ModelFinish, ModelError> {
        if answer.is_ended && answer.has_content() && self.calls.all_complete() {
            return Ok(ModelFinish::Stop);
        }
        if answer.is_ended && answer.has_calls() && answer.is_at_limit() {
            return Ok(ModelFinish::Length);
        }
        if failpoint::is_planted("cut-call-run") && answer.has_calls() {
            return Ok(ModelFinish::ToolCalls);
        }
        Err(incomplete("the answer ended without a stop reason"))
    }

    fn chunk(&mut self, chunk: Chunk<'_>, data: &str, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        if chunk.is_error() {
            // The fields beside the message may be more exact.
            return Err(reported(data));
        }
        if let Some(BaseResponse { status_code: Some(status_code @ 1..), status_msg }) = chunk.base_resp.as_deref() {
            return Err(failure::from_event(
                &json!({ "code": vendor_code("minimax", &status_code.to_string()), "message": status_msg.0 }),
            ));
        }
        if chunk.is_empty() {
            failure::check_for_unusual_error(data)?;
            if let Some((result, json)) = Envelope::open(data) {
                return self.chunk(result, json, answer);
            }
        }
        for counts in [chunk.x_groq.as_ref().and_then(|groq| groq.usage), chunk.usage.map(|usage| *usage)].into_iter().flatten() {
            answer.add_usage(counts);
        }
        if let Some(error) = chunk.x_groq.and_then(|groq| groq.error).filter(|error| is_meaningful(error)) {
            return Err(failure::from_event(&error));
        }
        [&chunk.search_results, &chunk.citations].into_iter().flatten().for_each(|sources| answer.add_sources(sources));
        let mut choices = chunk.choices;
        // Copilot splits one answer of Claude into several choices without an index, or all with index 0.
        if let [only] = choices.as_slice() {
            if !self.index.is_answer(only.index) {
                return Ok(());
            }
        } else {
            choices.retain(|choice| choice.index.unwrap_or(0) == 0);
        }
        if choices.is_empty() {
            // Cloudflare's own shape has no stop reason, even in a document.
            answer.is_message |= !chunk.response.0.is_empty() || !chunk.tool_calls.is_empty();
            let content = MessageContent { text: chunk.response.0, ..MessageContent::default() };
            return self.delta(Delta { content, tool_calls: chunk.tool_calls, ..Delta::default() }, answer);
        }
        let repeats = self.has_deltas;
        choices.into_iter().try_for_each(|choice| self.choice(choice, repeats, answer))
    }

    /// Accepts a choice. A complete message counts unless it repeats content.
    fn choice(&mut self, choice: Choice<'_>, repeats: bool, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        if let Some(error) = choice.error.filter(|error| is_meaningful(error)) {
            return Err(failure::from_event(&error));
        }
        if let Some(counts) = choice.usage {
            answer.add_usage(*counts);
        }
        let has_deltas = std::mem::take(&mut self.has_deltas);
        let bare = choice.text.0;
        let older = Some(bare).filter(|text| !text.is_empty() && choice.delta.is_none() && choice.message.is_none());
        let older = older.map(|text| Delta { content: MessageContent { text, ..MessageContent::default() }, ..Delta::default() });
        if let Some(delta) = choice.delta.or(older) {
            self.delta(delta, answer)?;
        }
        // Perplexity repeats the complete message in each event.
        let repeats = repeats || self.has_deltas;
        if let Some(mut message) = choice.message.filter(|_| !repeats) {
            answer.is_message = true;
            // The calls of a complete message are complete, each with its position in the list.
            for (index, call) in (0..).zip(&mut message.tool_calls) {
                call.index = Some(index);
            }
            self.delta(*message, answer)?;
        }
        self.has_deltas |= has_deltas;
        let words = [choice.finish_reason.0, choice.own_finish_reason.0];
        if let Some(word) = words.iter().find(|word| !matches!(&***word, "" | "null")) {
            stop(word, answer)?;
        }
        Ok(())
    }

    fn delta(&mut self, delta: Delta<'_>, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        self.own.take(&delta);
        let is_thought = delta.extra_content.as_deref().is_some_and(provider_fields::is_thought);
        let Delta { content: MessageContent { thought, mut text }, reasoning_content, reasoning, reasoning_text, .. } = delta;
        let (reasoning_details, refusal) = (delta.reasoning_details, delta.refusal);
        let list = |value: Option<Box<Value>>| match value.map(|value| *value) {
            Some(Value::Array(list)) => list,
            Some(_) | None => Vec::new(),
        };
        let (details, blocks) = (list(reasoning_details), list(delta.thinking_blocks));
        // Gateways that know several field names send the same text in all of them.
        let mut thoughts =
            [reasoning_content.0, reasoning.0, reasoning_text.0, thought].into_iter().filter(|thought| !thought.is_empty());
        let thought = thoughts.next().unwrap_or_else(|| {
            let words = signed_reasoning::OPENROUTER.text(&details);
            if words.is_empty() { self.blocks.new_text(&blocks).into() } else { words.into() }
        });
        let named = if is_thought { std::mem::take(&mut text) } else { Cow::default() };
        if !named.is_empty() {
            self.has_deltas = true;
            let split = answer.tags.feed_marked_reasoning(&named);
            self.split_text(split, answer);
        } else if !thought.is_empty() {
            self.has_deltas = true;
            answer.tags.add_separate_reasoning(&thought);
            answer.reasoning(thought);
        }
        if !details.is_empty() || !blocks.is_empty() {
            self.settle(answer);
        }
        self.details.take(details);
        self.blocks.take(blocks);
        answer.is_refused |= !refusal.0.is_empty();
        if answer.tags.is_over() {
            self.text(text, answer);
        } else if !text.is_empty() {
            self.has_deltas = true;
            let split = answer.tags.feed(&text);
            self.split_text(split, answer);
        }
        if !refusal.0.is_empty() {
            self.settle(answer);
        }
        self.text(refusal.0, answer);
        for image in delta.images.as_deref().and_then(Value::as_array).into_iter().flatten() {
            let url = image.pointer("/image_url/url").or_else(|| image.get("url")).and_then(Value::as_str);
            if let Some(url) = url {
                self.settle(answer);
                self.emit_reasoning_blocks(answer);
                self.has_deltas = true;
                answer.picture_at(url);
            }
        }
        delta.annotations.iter().for_each(|sources| answer.add_sources(sources));
        // llama-cpp-python sends each call in both fields.
        let older = delta.function_call.filter(|_| delta.tool_calls.is_empty()).map(|function| Fragment {
            index: Some(0),
            function: Some(function),
            ..Fragment::default()
        });
        for fragment in delta.tool_calls.iter().chain(&older) {
            self.settle(answer);
            self.emit_reasoning_blocks(answer);
            self.has_deltas = true;
            self.calls.push(fragment, answer)?;
        }
        Ok(())
    }

    /// Emits a piece of text, preceded by the reasoning blocks if it belongs to the answer.
    fn split_text(&mut self, split: SplitText, answer: &mut AnswerAssembler) {
        answer.void_text(split.voided_bytes);
        answer.reasoning(split.reasoning.into());
        self.text(split.text.into(), answer);
    }

    /// Emits held-back text, because content other than text follows.
    fn settle(&mut self, answer: &mut AnswerAssembler) {
        let held = answer.tags.settle();
        self.text(held.into(), answer);
    }

    fn text(&mut self, text: Cow<'_, str>, answer: &mut AnswerAssembler) {
        if !text.is_empty() {
            self.has_deltas = true;
            self.emit_reasoning_blocks(answer);
            answer.text(text);
        }
    }

    /// Emits the reasoning blocks, because the reasoning has ended.
    fn emit_reasoning_blocks(&mut self, answer: &mut AnswerAssembler) {
        self.details.emit(answer);
        self.blocks.emit(answer);
    }
}

fn stop(word: &str, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
    match read_stop_reason(word)? {
        StopReason::Finish(finish) => answer.stop(finish),
        // The end of the stream decides.
        StopReason::Unstated => {}
        StopReason::Paused => return Err(unknown_stop_reason(word)),
    }
    Ok(())
}
