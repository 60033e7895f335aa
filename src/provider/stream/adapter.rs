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

    /// Takes in one event of a stream. `name` is the type of its frame, or empty.
    ///
    /// # Errors
    /// The failure that the event reports or is. Nothing more is read then.
    fn event(&mut self, name: &str, json: &str, answer: &mut AnswerAssembler) -> Result<(), ModelError>;

    /// Takes in a whole answer that was not streamed.
    ///
    /// # Errors
    /// If it is none.
    fn document(&mut self, json: &str, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        self.event("", json, answer)
    }

    /// Takes in the end mark `[DONE]`. A dialect without one may overlook the mark, as Gemini does, or refuse it.
    ///
    /// # Errors
    /// If the dialect refuses the mark, because its answers end in another way.
    fn end_mark(&mut self, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        answer.ended = true;
        Ok(())
    }

    /// Returns the bytes that came and are not shown yet. A change shows that an event had content.
    fn held_bytes(&self) -> usize {
        0
    }

    /// Judges whether the answer is whole, now that nothing more comes, and shows what was held back of it.
    ///
    /// # Errors
    /// If it is not whole.
    fn finish(&mut self, answer: &mut AnswerAssembler) -> Result<ModelFinish, ModelError>;
}
