//! Snippets: an excerpt of a found message with its matches marked.

use crate::domain::conversation::search::{SnippetPart, Term, Terms};

/// Limits of the text before the first match, and of the snippet, in characters.
const BEFORE_CHARS: usize = 60;
const SHOWN_CHARS: usize = 200;

/// Cuts a snippet around the first match; without a match, at the beginning of the text.
pub(in crate::service) fn snippet(text: &str, terms: &Terms) -> Vec<SnippetPart> {
    let chars: Vec<char> = text.chars().collect();
    let hits = find_terms(&chars, terms);
    let first = hits.first().map_or(0, |hit| hit.0);
    let begin = match first.saturating_sub(BEFORE_CHARS) {
        0 => 0,
        // Begins after a space, if there is one nearby, so that no word is cut.
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

/// Finds the matches of the terms: begin and end, in order and without overlap.
fn find_terms(chars: &[char], terms: &Terms) -> Vec<(usize, usize)> {
    let mut hits = Vec::new();
    let mut at = 0;
    while at < chars.len() && hits.len() < SHOWN_CHARS {
        let begins = is_of_word(chars[at]) && (at == 0 || !is_of_word(chars[at - 1]));
        match begins.then(|| terms.iter().filter_map(|term| term_end(chars, at, term)).max()).flatten() {
            Some(end) => {
                hits.push((at, end));
                at = end;
            }
            None => at += 1,
        }
    }
    hits
}

/// Returns the end of a match of the term that begins at `at`.
fn term_end(chars: &[char], at: usize, term: &Term) -> Option<usize> {
    let (words, is_prefix) = term.words();
    let mut end = at;
    for (number, word) in words.iter().enumerate() {
        if number > 0 {
            end += chars[end..].iter().take_while(|c| !is_of_word(**c)).count();
        }
        let mut word_chars = word.chars().flat_map(char::to_lowercase).peekable();
        while word_chars.peek().is_some() {
            let mut small = chars.get(end)?.to_lowercase();
            if !small.all(|c| word_chars.next() == Some(c)) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shown(text: &str, query: &str) -> String {
        let parts = snippet(text, &Terms::read(query).unwrap());
        parts.iter().map(|part| if part.hit { format!("[{}]", part.text) } else { part.text.clone() }).collect()
    }

    #[test]
    fn snippet_marks_the_match() {
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
