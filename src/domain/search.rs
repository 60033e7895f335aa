//! What is looked for in messages, and what of a message is shown for it.

use serde::Serialize;
use utoipa::ToSchema;

use super::ids::{ConversationId, MessageId, RunId};
use super::message::Role;
use crate::support::text;

/// The most characters of a query.
pub const MAX_QUERY_CHARS: usize = 200;
/// The most words and phrases of one.
pub const MAX_TERMS: usize = 10;

/// One thing that must be in a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Term {
    /// A word, or the beginning of one.
    Word(String),
    /// Words that follow each other, whole.
    Phrase(Vec<String>),
}

impl Term {
    /// Its words, the last of which may be a beginning if `is_prefix`.
    #[must_use]
    pub fn words(&self) -> (&[String], bool) {
        match self {
            Self::Word(word) => (std::slice::from_ref(word), true),
            Self::Phrase(words) => (words, false),
        }
    }
}

/// What is looked for: all of it must be in one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms(Vec<Term>);

impl Terms {
    /// Reads a query: words, and phrases in double quotes. Nothing else of it means anything.
    ///
    /// # Errors
    /// What is wrong with the query.
    pub fn read(query: &str) -> Result<Self, String> {
        let chars = query.chars().count();
        if chars > MAX_QUERY_CHARS {
            return Err(format!("the query has {chars} characters; at most {MAX_QUERY_CHARS} are looked for"));
        }
        let mut terms = Vec::new();
        // What stands at odd places is in quotes. A quote that is not closed ends with the query.
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

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &Term> {
        self.0.iter()
    }
}

/// The words of a text, as both databases see them: what stands between spaces and signs. Which letters are the same, small or large,
/// is for the database to say, as it did when it took the text in: not all agree about each of them.
fn words(text: &str) -> Vec<String> {
    let parts = text.split(|c: char| c.is_whitespace() || c.is_control() || c.is_ascii_punctuation());
    parts.filter(|word| word.chars().any(char::is_alphanumeric)).map(str::to_owned).collect()
}

/// A piece of what is shown of a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct SnippetPart {
    /// Text, as it is.
    pub text: String,
    /// Whether it was looked for.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub hit: bool,
}

/// A message that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct FoundMessage {
    /// The message.
    pub message_id: MessageId,
    /// Its conversation.
    pub conversation_id: ConversationId,
    /// The conversation's title.
    pub title: String,
    /// The run that it belongs to.
    pub run_id: RunId,
    /// Who says it.
    pub role: Role,
    /// When it was stored, RFC 3339.
    pub created_at: String,
    /// Some of its text, around the first of what was found: at most 200 characters.
    pub snippet: Vec<SnippetPart>,
}

/// The query without what no database stores.
#[must_use]
pub fn storable_query(query: &str) -> String {
    text::storable(query).into_owned()
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
