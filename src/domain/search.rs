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
/// The characters of a text that are shown before what was found, and in all.
const BEFORE_CHARS: usize = 60;
const SHOWN_CHARS: usize = 200;

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

/// What is shown of a text for what was looked for. If nothing of it can be made out, the text's beginning.
#[must_use]
pub fn snippet(text: &str, terms: &Terms) -> Vec<SnippetPart> {
    let chars: Vec<char> = text.chars().collect();
    let hits = hits(&chars, terms);
    let first = hits.first().map_or(0, |hit| hit.0);
    let begin = match first.saturating_sub(BEFORE_CHARS) {
        0 => 0,
        // Not in the middle of a word, if one ends near.
        far => (far..first).find(|at| chars[*at].is_whitespace()).map_or(far, |at| at + 1),
    };
    let end = chars.len().min(begin + SHOWN_CHARS);
    let mut parts: Vec<SnippetPart> = Vec::new();
    let mut push = |from: usize, to: usize, hit: bool| {
        if from < to {
            parts.push(SnippetPart { text: chars[from..to].iter().collect(), hit });
        }
    };
    let mut at = begin;
    for (from, to) in hits.into_iter().filter(|hit| hit.0 >= begin && hit.1 <= end) {
        push(at, from, false);
        push(from, to, true);
        at = to;
    }
    push(at, end, false);
    if let Some(part) = parts.first_mut().filter(|_| begin > 0) {
        part.text.insert_str(0, "...");
    }
    if let Some(part) = parts.last_mut().filter(|_| end < chars.len()) {
        part.text.push_str("...");
    }
    parts
}

/// Where the terms are, from and to, in order and apart from each other.
fn hits(chars: &[char], terms: &Terms) -> Vec<(usize, usize)> {
    let mut hits = Vec::new();
    let mut at = 0;
    while at < chars.len() && hits.len() < SHOWN_CHARS {
        let begins = is_of_word(chars[at]) && (at == 0 || !is_of_word(chars[at - 1]));
        match begins.then(|| terms.iter().filter_map(|term| ends(chars, at, term)).max()).flatten() {
            Some(end) => {
                hits.push((at, end));
                at = end;
            }
            None => at += 1,
        }
    }
    hits
}

/// Where a term ends that begins at `at`, if it does.
fn ends(chars: &[char], at: usize, term: &Term) -> Option<usize> {
    let (words, is_prefix) = term.words();
    let mut end = at;
    for (number, word) in words.iter().enumerate() {
        if number > 0 {
            end += chars[end..].iter().take_while(|c| !is_of_word(**c)).count();
        }
        let mut wanted = word.chars().flat_map(char::to_lowercase).peekable();
        while wanted.peek().is_some() {
            let mut small = chars.get(end)?.to_lowercase();
            if !small.all(|c| wanted.next() == Some(c)) {
                return None;
            }
            end += 1;
        }
        if !is_prefix && chars.get(end).is_some_and(|next| is_of_word(*next)) {
            return None;
        }
    }
    Some(end)
}

fn is_of_word(c: char) -> bool {
    !(c.is_whitespace() || c.is_control() || c.is_ascii_punctuation())
}

/// The query without what no database stores.
#[must_use]
pub fn storable_query(query: &str) -> String {
    text::storable(query).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shown(text: &str, query: &str) -> String {
        let parts = snippet(text, &Terms::read(query).unwrap());
        parts.iter().map(|part| if part.hit { format!("[{}]", part.text) } else { part.text.clone() }).collect()
    }

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

    #[test]
    fn what_was_found_is_marked() {
        assert_eq!(
            shown("The rent, they said: RENTAL of rents. Parent.", "rent"),
            "The [rent], they said: [RENT]AL of [rent]s. Parent."
        );
        assert_eq!(shown("on the, third of May; the third off", "\"the third of\""), "on [the, third of] May; the third off");
        assert_eq!(shown("Größe GRÖSSE größer", "größ"), "[Größ]e GRÖSSE [größ]er");
        assert_eq!(shown("İstanbul, istanbul", "İSTANBUL"), "[İstanbul], istanbul");
        assert_eq!(shown("nothing of it", "else"), "nothing of it");
        let long = format!("{} needle {}", "word ".repeat(100), "tail ".repeat(100));
        let shown = shown(&long, "needle");
        assert!(shown.starts_with("...word ") && shown.contains(" [needle] tail") && shown.ends_with("..."), "{shown}");
    }

    proptest! {
        #[test]
        fn a_snippet_is_of_the_text(text in "\\PC{0,400}", query in "[a-zA-ZäÖß\" ]{1,20}") {
            let Ok(terms) = Terms::read(&query) else { return Ok(()) };
            let whole: String = snippet(&text, &terms).into_iter().map(|part| part.text).collect();
            let shown = whole.strip_prefix("...").filter(|_| !text.starts_with("...")).unwrap_or(&whole);
            let shown = shown.strip_suffix("...").filter(|shown| text.contains(*shown)).unwrap_or(shown);
            prop_assert!(text.contains(shown), "{whole:?} of {text:?}");
        }
    }
}
