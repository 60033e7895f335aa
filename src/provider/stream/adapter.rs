//! The interface between the answer assembler and a dialect.

use super::assembler::AnswerAssembler;
use crate::domain::model::{ModelError, ModelFinish};

/// When a stop reason of a dialect is final.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::provider) enum StopReasonPlacement {
    /// A stop reason ends the answer.
    Final,
    /// Some models send a reason with every event. An event with content after a reason revokes it.
    WithEveryEvent,
    /// Some gateways send a reason between any two events. After the first revoked one, a reason counts only at the end of the stream.
    Anywhere,
}

/// Converts the JSON documents of one dialect into deltas of an answer.
pub(in crate::provider) trait StreamAdapter: Send + Unpin + 'static {
    const STOP_REASON_PLACEMENT: StopReasonPlacement = StopReasonPlacement::Final;

    /// Accepts one event of a stream. `name` is the type of its frame, or empty. No event follows an error.
    fn event(&mut self, name: &str, json: &str, answer: &mut AnswerAssembler) -> Result<(), ModelError>;

    /// Accepts a complete answer that was not streamed.
    fn document(&mut self, json: &str, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        self.event("", json, answer)
    }

    /// Accepts the end mark `[DONE]`. A dialect whose answers end in another way may ignore the mark, as Gemini does, or fail.
    fn end_mark(&mut self, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        answer.is_ended = true;
        Ok(())
    }

    /// Returns the bytes that have arrived and are not emitted yet. A change shows that an event had content.
    fn held_bytes(&self) -> usize {
        0
    }

    /// Emits the held-back content of an answer that has ended, or fails if the answer is incomplete.
    fn finish(&mut self, answer: &mut AnswerAssembler) -> Result<ModelFinish, ModelError>;
}
