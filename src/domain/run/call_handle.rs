//! The handle of an unfinished call, from which the next claim continues it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::domain::ids::InputId;
use crate::domain::run::{Elicitation, InputAnswer};

/// The state of an unfinished call at its MCP server. After a takeover, the next worker continues the call from it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Handle {
    /// The server executes the call as a task with this name.
    Task(String),
    /// The server needs input first, and is then called again with the answers.
    Round(Box<Round>),
}

impl Handle {
    /// Returns the stored form: the plain name of a task, JSON for everything else.
    pub fn to_stored(&self) -> String {
        match self {
            Self::Task(name) if !name.starts_with('{') => name.clone(),
            // Serialization of maps with text keys cannot fail.
            Self::Task(_) | Self::Round(_) => serde_json::to_string(self).unwrap_or_default(),
        }
    }

    /// Parses the stored form. Text of another form is the name of a task.
    pub fn from_stored(text: String) -> Self {
        let read = text.starts_with('{').then(|| serde_json::from_str(&text).ok()).flatten();
        read.unwrap_or(Self::Task(text))
    }

    pub fn task(&self) -> Option<&str> {
        match self {
            Self::Task(name) => Some(name),
            Self::Round(_) => None,
        }
    }

    pub fn round(&self) -> Option<&Round> {
        match self {
            Self::Round(round) => Some(round),
            Self::Task(_) => None,
        }
    }
}

/// A call between two requests to its server (`input_required`, SEP-2322). The server has returned, and continues when it is called
/// again with the answers.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// Opaque state, which is sent back to the server.
    pub state: Option<String>,
    /// Answers that needed no user, by the server's keys.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub given: BTreeMap<String, Value>,
    /// Questions to the user, by the server's keys.
    pub asked: BTreeMap<String, InputId>,
    /// The user's answers, by the same keys. Once they are stored, the call may have been sent with them.
    pub answers: Option<BTreeMap<String, InputAnswer>>,
    /// Number of the server's questions during the call, including this round.
    pub questions: u32,
    /// Number of rounds of the call, including this one.
    pub number: u32,
}

/// The server's answer that it needs input first.
#[derive(Debug, Clone, PartialEq)]
pub struct InputRequired {
    /// Opaque state, which is sent back to the server.
    pub state: Option<String>,
    /// Answers that needed no user, by the server's keys.
    pub given: BTreeMap<String, Value>,
    /// Questions to the user, by the server's keys: the text, and the form or URL.
    pub asks: BTreeMap<String, (String, Elicitation)>,
    /// Number of rounds of the call, including this one. Rounds without a question are counted but not stored.
    pub number: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::ids::SequentialIds;

    #[test]
    fn stored_handle_is_read_back() {
        let answers = BTreeMap::from([("b".to_owned(), InputAnswer::new("accept", None))]);
        let round = Round {
            state: Some("{\"opaque\": \u{1F600}".to_owned()),
            given: BTreeMap::from([("a".to_owned(), serde_json::json!({"roots": []}))]),
            asked: BTreeMap::from([("b".to_owned(), InputId::generate(&SequentialIds::default()))]),
            answers: Some(answers),
            questions: 3,
            number: 2,
        };
        for handle in [
            Handle::Task("task-1".to_owned()),
            Handle::Task("{\"task\": 1}".to_owned()),
            Handle::Task("{\"task\":\"x\"}".to_owned()),
            Handle::Round(Box::new(round)),
            Handle::Round(Box::default()),
        ] {
            assert_eq!(Handle::from_stored(handle.to_stored()), handle);
        }
        let names = ["task-1", "{", "{\"other\": 1}"];
        assert!(names.into_iter().all(|name| Handle::from_stored(name.to_owned()) == Handle::Task(name.to_owned())));
    }
}
