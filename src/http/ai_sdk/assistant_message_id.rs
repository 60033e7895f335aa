//! The ids of the assistant's messages.

use std::fmt;

use crate::domain::ids::{MessageId, RunId};

/// The id of an assistant's message: that of its run. If a message of the user joins the run, the answers after it are another
/// message, because the client shows them below the user's message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AssistantMessageId {
    pub run: RunId,
    /// The message of the user after which this message begins.
    pub joined: Option<MessageId>,
}

impl AssistantMessageId {
    pub fn parse(id: &str) -> Option<Self> {
        match id.split_once('.') {
            Some((run, joined)) => Some(Self { run: run.parse().ok()?, joined: Some(joined.parse().ok()?) }),
            None => id.parse().ok().map(|run| Self { run, joined: None }),
        }
    }
}

impl From<RunId> for AssistantMessageId {
    fn from(run: RunId) -> Self {
        Self { run, joined: None }
    }
}

impl fmt::Display for AssistantMessageId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.joined {
            Some(joined) => write!(out, "{}.{joined}", self.run),
            None => write!(out, "{}", self.run),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_id_is_read_as_it_is_written() {
        let (run, message) = (format!("run_{:032x}", 1), format!("msg_{:032x}", 2));
        for id in [run.clone(), format!("{run}.{message}")] {
            assert_eq!(AssistantMessageId::parse(&id).unwrap().to_string(), id);
        }
        for bad in ["", "m1", &message, &format!("{run}."), &format!("{run}.{run}"), &format!("{run}.{message}.{message}")] {
            assert_eq!(AssistantMessageId::parse(bad), None, "{bad}");
        }
    }
}
