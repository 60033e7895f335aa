//! Turns a model's events into parts with ids.

use crate::domain::event::EventBody;
use crate::domain::ids::{ConversationId, PartId, RunId};
use crate::domain::message::Message;
use crate::domain::model::{ModelError, ModelErrorKind, ModelEvent, ModelTurn};
use crate::support::clock::UnixMillis;
use crate::support::ids::IdSource;

/// Something to show.
#[derive(Debug, Clone, PartialEq)]
pub enum StreamItem {
    /// An event other than a delta.
    Event(EventBody),
    /// More of a part. Kept apart from events, because deltas of one part are merged before they are written.
    Delta(PartId, String),
}

/// Assembles one answer.
pub struct Assembler {}

impl Assembler {
    /// An empty answer. The first thing that is shown is `message.started`.
    #[must_use]
    pub fn new(_run_id: RunId, _conversation_id: ConversationId, _model: String) -> Self {
        Self {}
    }

    /// Takes in an event and says what to show for it.
    pub fn push(&mut self, _event: ModelEvent, _ids: &dyn IdSource) -> Vec<StreamItem> {
        Vec::new()
    }

    /// The whole answer: its message, the raw turn, and the events that close what was shown.
    pub fn finish(self, _ids: &dyn IdSource, _now: UnixMillis) -> Result<(Message, ModelTurn, Vec<EventBody>), ModelError> {
        Err(ModelError::new(ModelErrorKind::EmptyResponse, "not built yet"))
    }

    /// What was shown so far of an answer that is given up, for storing as a partial message: text and reasoning only.
    /// `None` if nothing was shown.
    #[must_use]
    pub fn partial(self, _now: UnixMillis) -> Option<Message> {
        None
    }
}
