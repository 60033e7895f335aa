//! Search terms, and the messages found.

use serde::Serialize;
use utoipa::ToSchema;

use crate::domain::conversation::message::Role;
use crate::domain::ids::{ConversationId, MessageId, RunId};

pub const MAX_QUERY_CHARS: usize = 200;
pub const MAX_TERMS: usize = 10;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Term {
    /// Matches words that begin with it.
    Word(String),
    /// Matches whole words that follow each other.
    Phrase(Vec<String>),
}

impl Term {
    /// Returns the words, and whether the last one is a prefix.
    pub fn words(&self) -> (&[String], bool) {
        match self {
            Self::Word(word) => (std::slice::from_ref(word), true),
            Self::Phrase(words) => (words, false),
        }
    }
}

/// The terms of a query, all of which must be in one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms(Vec<Term>);

impl Terms {
    /// Reads words, and phrases in double quotes. There is no other syntax.
    pub fn read(query: &str) -> Result<Self, String> {
        let chars = query.chars().count();
        if chars > MAX_QUERY_CHARS {
            return Err(format!("the query has {chars} characters; at most {MAX_QUERY_CHARS} are looked for"));
        }
        let mut terms = Vec::new();
        // Odd pieces are in quotes. An unclosed quote ends with the query.
        for (place, piece) in query.split('"').enumerate() {
            let words = words(piece);
            match (place % 2 == 1, words.len()) {
                (true, 1..) => terms.push(Term::Phrase(words)),
                (true | false, _) => terms.extend(words.into_iter().map(Term::Word)),
            }
        }
        match terms.len() {
            0 => Err("the query has no word to look for".to_owned()),
            1..=MAX_TERMS => Ok(Self(terms)),
            many => Err(format!("the query has {many} words and phrases; at most {MAX_TERMS} are looked for")),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Term> {
        self.0.iter()
    }
}

/// Splits a text at spaces and punctuation, as both databases do. Case folding is left to the database, which also folded the
/// stored text: the databases differ about some letters.
fn words(text: &str) -> Vec<String> {
    let parts = text.split(|c: char| c.is_whitespace() || c.is_control() || c.is_ascii_punctuation());
    parts.filter(|word| word.chars().any(char::is_alphanumeric)).map(str::to_owned).collect()
}

/// A piece of a snippet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct SnippetPart {
    /// The text, unchanged.
    pub text: String,
    /// Whether the text matches the query.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub hit: bool,
}

/// A message that matches a search query.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct FoundMessage {
    /// The id of the message.
    pub message_id: MessageId,
    /// The conversation of the message.
    pub conversation_id: ConversationId,
    /// The title of the conversation.
    pub title: String,
    /// The run of the message.
    pub run_id: RunId,
    /// The author of the message.
    pub role: Role,
    /// When the message was stored, RFC 3339.
    pub created_at: String,
    /// An excerpt of at most 200 characters around the first match.
    pub snippet: Vec<SnippetPart>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_words_and_phrases() {
        let terms = Terms::read("Rent due-date \"the Third of\" -x:* OR").unwrap();
        let word = |word: &str| Term::Word(word.to_owned());
        let phrase = Term::Phrase(["the", "Third", "of"].map(str::to_owned).to_vec());
        assert_eq!(terms.0, [word("Rent"), word("due"), word("date"), phrase, word("x"), word("OR")]);
        assert_eq!(Terms::read("\"open end").unwrap().0, [Term::Phrase(vec!["open".to_owned(), "end".to_owned()])]);
        for nothing in ["", "  ", "\"\"", "-:*()", "\u{1f389}"] {
            assert_eq!(Terms::read(nothing).unwrap_err(), "the query has no word to look for", "{nothing:?}");
        }
        assert!(Terms::read("a b c d e f g h i j k").unwrap_err().contains("at most 10"));
        assert!(Terms::read(&"x".repeat(201)).unwrap_err().contains("at most 200"));
    }
}
