//! The seam between the answer assembler and a dialect.

use super::assembler::AnswerAssembler;
use crate::domain::model::{ModelError, ModelFinish};

/// When a dialect's reason to stop is believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::provider) enum StopReasons {
    /// A reason to stop ends the answer.
    Final,
    /// Some models give a reason with every event. An event with content that follows one revokes it.
    WithEveryEvent,
    /// Some gateways give a reason between any two events. After the first revoked one, none is believed before the stream ends.
    Anywhere,
}

/// Turns the JSON documents of one dialect into deltas of an answer.
pub(in crate::provider) trait StreamAdapter: Send + Unpin + 'static {
    const STOP_REASONS: StopReasons = StopReasons::Final;

    /// Takes in one event of a stream. `name` is the type of its frame, or empty. After an error nothing more is read.
    fn event(&mut self, name: &str, json: &str, answer: &mut AnswerAssembler) -> Result<(), ModelError>;

    /// Takes in a whole answer that was not streamed.
    fn document(&mut self, json: &str, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        self.event("", json, answer)
    }

    /// Takes in the end mark `[DONE]`. A dialect whose answers end in another way may ignore the mark, as Gemini does, or fail.
    fn end_mark(&mut self, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        answer.ended = true;
        Ok(())
    }

    /// Returns the bytes that came and are not shown yet. A change shows that an event had content.
    fn held_bytes(&self) -> usize {
        0
    }

    /// Emits the content that was held back of an answer that has ended, or fails if the answer is not whole.
    fn finish(&mut self, answer: &mut AnswerAssembler) -> Result<ModelFinish, ModelError>;
}
