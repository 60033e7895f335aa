//! Search terms and search results.

use serde::Serialize;
use utoipa::ToSchema;

use crate::domain::conversation::Role;
use crate::domain::ids::{ConversationId, MessageId, RunId};

pub const MAX_QUERY_CHARS: usize = 200;
pub const MAX_TERMS: usize = 10;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Term {
    /// Matches words that begin with it.
    Word(String),
    /// Matches consecutive complete words.
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

/// The terms of a query. A message must contain all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms(Vec<Term>);

impl Terms {
    /// Parses words, and phrases in double quotes. There is no other syntax.
    pub fn read(query: &str) -> Result<Self, String> {
        let chars = query.chars().count();
        if chars > MAX_QUERY_CHARS {
            return Err(format!("the query has {chars} characters; the limit is {MAX_QUERY_CHARS}"));
        }
        let mut terms = Vec::new();
        // Odd pieces are in quotes. The end of the query closes an open quote.
        for (index, piece) in query.split('"').enumerate() {
            let words = words(piece);
            match (index % 2 == 1, words.len()) {
                (true, 1..) => terms.push(Term::Phrase(words)),
                (true | false, _) => terms.extend(words.into_iter().map(Term::Word)),
            }
        }
        match terms.len() {
            0 => Err("the query contains no word".to_owned()),
            1..=MAX_TERMS => Ok(Self(terms)),
            many => Err(format!("the query has {many} words and phrases; the limit is {MAX_TERMS}")),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Term> {
        self.0.iter()
    }
}

/// Splits a text at spaces and punctuation, as both databases do. The database folds the case, because it also folded the stored
/// text, and the two databases differ for some letters.
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
            assert_eq!(Terms::read(nothing).unwrap_err(), "the query contains no word", "{nothing:?}");
        }
        assert!(Terms::read("a b c d e f g h i j k").unwrap_err().contains("the limit is 10"));
        assert!(Terms::read(&"x".repeat(201)).unwrap_err().contains("the limit is 200"));
    }
}
