//! Converts the events of a stream, or a complete answer, into deltas.

use serde::Deserialize;

use super::blocks::Blocks;
use super::wire::{Event, Message, TokenCounts};
use crate::domain::model::{ModelError, ModelFinish};
use crate::provider::errors::failure;
use crate::provider::stream::lenient::Text;
use crate::provider::stream::{
    AnswerAssembler, StopReason, StreamAdapter, incomplete, read_stop_reason, reported, unknown_stop_reason,
};

#[derive(Debug, Default)]
pub(super) struct MessagesAdapter {
    has_begun: bool,
    blocks: Blocks,
    /// Whether the provider paused a long turn.
    is_paused: bool,
    counts: TokenCounts,
}

impl StreamAdapter for MessagesAdapter {
    fn event(&mut self, name: &str, json: &str, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        let event: Event<'_> = answer.parse(json).map_err(|error| if is_error(json) { reported(json) } else { error })?;
        let kind = if event.kind.0.is_empty() { name } else { &*event.kind.0 };
        if kind == "error" || event.error.is_some() {
            return Err(reported(json));
        }
        match kind {
            "message_start" => {
                if std::mem::replace(&mut self.has_begun, true) {
                    // A second start: the model has restarted its answer.
                    *self = Self { has_begun: true, ..Self::default() };
                    answer.restart();
                }
                self.message(event.message.unwrap_or_default(), answer)?;
            }
            "content_block_start" => {
                if let Some(block) = event.content_block {
                    self.blocks.start(event.index, block, answer)?;
                }
            }
            "content_block_delta" => {
                if let Some(delta) = event.delta {
                    self.blocks.delta(event.index, delta, answer)?;
                }
            }
            "content_block_stop" => self.blocks.stop(event.index, answer),
            "message_delta" => {
                if let Some(delta) = event.delta {
                    self.stop_reason(&delta.stop_reason.0, answer)?;
                }
            }
            "message_stop" => answer.is_ended = true,
            // A complete answer in one event.
            "message" => {
                let message = serde_json::from_str(json).map_err(|error| answer.bad_frame(&error.to_string()))?;
                self.message(message, answer)?;
                answer.is_ended = true;
            }
            // Keep-alives, and events that are newer than this code.
            _ => failure::check_for_unusual_error(json)?,
        }
        if let Some(counts) = event.usage {
            self.counts.update(counts);
        }
        Ok(())
    }

    fn document(&mut self, json: &str, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        let message: Message<'_> = answer.parse(json)?;
        if message.error.is_some() {
            return Err(reported(json));
        }
        if message.content.is_none() {
            failure::check_for_unusual_error(json)?;
        }
        self.message(message, answer)
    }

    fn finish(&mut self, answer: &mut AnswerAssembler) -> Result<ModelFinish, ModelError> {
        let finish = self.finish_of_complete_answer(answer)?;
        self.blocks.finish(answer);
        answer.add_usage(self.counts);
        // After a pause without calls, nothing continues the answer, so it counts as cut.
        let is_partial = self.is_paused && finish == ModelFinish::Stop && !answer.has_calls();
        Ok(if is_partial { ModelFinish::Length } else { finish })
    }
}

impl MessagesAdapter {
    /// Returns the finish reason of a complete answer. The last stop reason decides, because some gateways omit the final event.
    fn finish_of_complete_answer(&self, answer: &AnswerAssembler) -> Result<ModelFinish, ModelError> {
        match answer.finish {
            // The last block of a cut or refused answer has no end. A cut call is never executed.
            Some(finish @ (ModelFinish::Length | ModelFinish::Refused)) => Ok(finish),
            Some(_) if !answer.is_ended && !self.blocks.all_stopped() => Err(incomplete("the answer ended within a content block")),
            Some(_) if !self.blocks.calls_are_complete() => Err(incomplete("the answer ended within a tool call")),
            Some(finish) => Ok(finish),
            None if answer.is_ended && !self.blocks.is_empty() && self.blocks.all_calls_parse() => Ok(ModelFinish::Stop),
            None => Err(incomplete("the answer ended without a stop reason")),
        }
    }

    /// Accepts a message: its start, which is nearly always empty, or the complete message.
    fn message(&mut self, message: Message<'_>, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        if let Some(counts) = message.usage {
            self.counts.update(counts);
        }
        for (index, block) in (0..).zip(message.content.into_iter().flat_map(|content| content.0)) {
            self.blocks.start(Some(index), block, answer)?;
            self.blocks.stop(Some(index), answer);
        }
        self.stop_reason(&message.stop_reason.0, answer)
    }

    fn stop_reason(&mut self, word: &str, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        if word.is_empty() {
            return Ok(());
        }
        let reason = read_stop_reason(word)?;
        self.is_paused = reason == StopReason::Paused;
        answer.stop(match reason {
            StopReason::Finish(finish) => finish,
            StopReason::Paused => ModelFinish::Stop,
            StopReason::Unstated => return Err(unknown_stop_reason(word)),
        });
        Ok(())
    }
}

/// Returns whether an event in another shape reports a failure.
fn is_error(data: &str) -> bool {
    #[derive(Deserialize)]
    struct Kind<'a> {
        #[serde(rename = "type", borrow, default)]
        kind: Text<'a>,
    }
    serde_json::from_str::<Kind<'_>>(data).is_ok_and(|event| event.kind.0 == "error")
}
