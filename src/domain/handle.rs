//! What is kept of a call that its server has not finished, so that whoever takes the call up goes on from there.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ids::InputId;
use super::input::{Elicitation, InputAnswer};

/// How the server of a call is asked to go on with it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Handle {
    /// The server works on it under this name, and is asked what has become of that.
    Task(String),
    /// The server wants to know something first, and is called again with the answers.
    Round(Box<Round>),
}

impl Handle {
    /// The text that is stored: the name of a task as it is, all else as JSON.
    #[must_use]
    pub fn to_stored(&self) -> String {
        match self {
            Self::Task(name) if !name.starts_with('{') => name.clone(),
            // Maps with texts for keys can always be written.
            Self::Task(_) | Self::Round(_) => serde_json::to_string(self).unwrap_or_default(),
        }
    }

    /// Reads what was stored. What is not one of ours is the name of a task.
    #[must_use]
    pub fn from_stored(text: String) -> Self {
        let read = text.starts_with('{').then(|| serde_json::from_str(&text).ok()).flatten();
        read.unwrap_or(Self::Task(text))
    }

    /// The name of its task, if it is one.
    #[must_use]
    pub fn task(&self) -> Option<&str> {
        match self {
            Self::Task(name) => Some(name),
            Self::Round(_) => None,
        }
    }

    /// What its server wants to know, if that is what it waits for.
    #[must_use]
    pub fn round(&self) -> Option<&Round> {
        match self {
            Self::Round(round) => Some(round),
            Self::Task(_) => None,
        }
    }
}

/// A call between two requests to its server (`input_required` of the protocol, SEP-2322): the server has let go of it, and takes
/// it up when it is called again with what it wanted to know.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// What the server wants back unread.
    pub state: Option<String>,
    /// What it was given without asking anybody, by its own keys.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub given: BTreeMap<String, Value>,
    /// The questions to the user, by the keys of the server.
    pub asked: BTreeMap<String, InputId>,
    /// Their answers, by the same keys. From the moment that they are here, the call may have been made with them.
    pub answers: Option<BTreeMap<String, InputAnswer>>,
    /// How much the server has asked the user during the call, with this round.
    pub questions: u32,
    /// How many rounds the call has had, with this one.
    pub number: u32,
}

/// A server that lets go of a call until it knows more.
#[derive(Debug, Clone, PartialEq)]
pub struct Pause {
    /// What it wants back unread.
    pub state: Option<String>,
    /// What it was given at once, by its own keys.
    pub given: BTreeMap<String, Value>,
    /// What it asks the user, by its own keys: in words, and what is to be filled in or visited.
    pub asks: BTreeMap<String, (String, Elicitation)>,
    /// How many rounds the call has had, with this one. Those in which nobody was asked are counted, and not stored.
    pub number: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::ids::SequentialIds;

    #[test]
    fn what_is_stored_is_read_again() {
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
