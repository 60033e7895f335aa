//! Splits text of any language into words for a search.

use std::collections::HashSet;

/// The number of letters in a stem. Words with the same first letters share a stem: `delete`, `deletes` and `deleting`.
const STEM_CHARS: usize = 4;

/// The prefix of a stem in the index, so that no stem equals a word.
const MARK: char = '~';

/// Returns the words of a text in order, in lower case: `readFile`, `read_file` and `Read file` give the same words. Scripts without spaces
/// become overlapping pairs of characters. There are no stop words, because the language is unknown.
pub fn words(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut word = String::new();
    let mut before = Kind::Other;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let kind = Kind::of(c);
        let next = chars.peek().copied().map_or(Kind::Other, Kind::of);
        let ends = match (before, kind) {
            (_, Kind::Other) | (Kind::Lower | Kind::Digit, Kind::Upper) => true,
            // `HTTPServer` has two words: the last capital of a sequence begins the next word.
            (Kind::Upper, Kind::Upper) => next == Kind::Lower,
            (one, other) => (one == Kind::Unspaced) != (other == Kind::Unspaced),
        };
        if ends {
            end(&mut word, before, &mut found);
        }
        if kind != Kind::Other {
            word.extend(c.to_lowercase());
        }
        before = kind;
    }
    end(&mut word, before, &mut found);
    found
}

/// Returns the terms for an index: the words, the stems of spaced words with at least four letters, and the words of [`joined`].
pub fn search_terms(text: &str) -> Vec<String> {
    let mut terms = Vec::new();
    for word in words(text) {
        let is_spaced = word.chars().all(|c| Kind::of(c) != Kind::Unspaced);
        if is_spaced && let Some((start, fourth)) = word.char_indices().nth(STEM_CHARS - 1) {
            terms.push(format!("{MARK}{}", &word[..start + fourth.len_utf8()]));
        }
        terms.push(word);
    }
    // Makes `GitHub` match `github`, and `PDFs` match `pdfs`.
    terms.extend(joined(text));
    terms
}

/// Returns each word that [`words`] splits at a capital, such as `GitHub`, whole and in lower case.
pub fn joined(text: &str) -> Vec<String> {
    let whole = text.split(|c: char| Kind::of(c) == Kind::Other || Kind::of(c) == Kind::Unspaced);
    whole.filter(|word| words(word).len() > 1).map(str::to_lowercase).collect()
}

/// Returns whether the words of `phrase` occur in `words` side by side and in order.
pub fn contains_phrase(words: &[String], phrase: &[String]) -> bool {
    !phrase.is_empty() && words.windows(phrase.len()).any(|some| some == phrase)
}

/// Removes duplicates and preserves the order.
pub fn distinct(terms: Vec<String>) -> Vec<String> {
    let mut seen = HashSet::new();
    terms.into_iter().filter(|term| seen.insert(term.clone())).collect()
}

fn end(word: &mut String, kind: Kind, found: &mut Vec<String>) {
    if word.is_empty() {
        return;
    }
    let whole = std::mem::take(word);
    if kind != Kind::Unspaced {
        return found.push(whole);
    }
    let chars: Vec<char> = whole.chars().collect();
    match chars.as_slice() {
        [_] => found.push(whole),
        _ => found.extend(chars.windows(2).map(|pair| pair.iter().collect::<String>())),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Upper,
    /// A letter without case counts as lower case.
    Lower,
    Digit,
    /// A script that is written without spaces, or that joins particles to words.
    Unspaced,
    Other,
}

impl Kind {
    fn of(c: char) -> Self {
        if is_unspaced(c) {
            Self::Unspaced
        } else if c.is_uppercase() {
            Self::Upper
        } else if c.is_numeric() {
            Self::Digit
        } else if c.is_alphabetic() {
            Self::Lower
        } else {
            Self::Other
        }
    }
}

/// Returns whether a character is Thai, Lao, Burmese, Khmer, kana, Han or hangul.
fn is_unspaced(c: char) -> bool {
    c.is_alphanumeric()
        && matches!(
            c,
            '\u{e00}'..='\u{eff}'
                | '\u{1000}'..='\u{109f}'
                | '\u{1100}'..='\u{11ff}'
                | '\u{1780}'..='\u{17ff}'
                | '\u{3040}'..='\u{30ff}'
                | '\u{3130}'..='\u{318f}'
                | '\u{31f0}'..='\u{31ff}'
                | '\u{3400}'..='\u{9fff}'
                | '\u{ac00}'..='\u{d7ff}'
                | '\u{f900}'..='\u{faff}'
                | '\u{ff66}'..='\u{ff9f}'
                | '\u{20000}'..='\u{3ffff}'
        )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("files__read_file", &["files", "read", "file"])]
    #[case("readFile and HTTPServer2Go", &["read", "file", "and", "http", "server2", "go"])]
    #[case("Größe, ÜBER naïve—x", &["größe", "über", "naïve", "x"])]
    #[case("删除文件", &["删除", "除文", "文件"])]
    #[case("開くfile名", &["開く", "file", "名"])]
    #[case("ลบไฟล์", &["ลบ", "บไ", "ไฟ", "ฟล"])]
    #[case("удалить файл", &["удалить", "файл"])]
    #[case(" --- \u{1F600} ", &[])]
    fn any_script_has_words(#[case] text: &str, #[case] expected: &[&str]) {
        assert_eq!(words(text), expected);
    }

    #[test]
    fn forms_of_a_word_share_a_term() {
        let of = |text: &str| search_terms(text).into_iter().collect::<HashSet<_>>();
        for (one, other) in [("file", "Files"), ("deleting", "delete"), ("суммы", "сумма")] {
            assert!(!of(one).is_disjoint(&of(other)), "{one} {other}");
        }
        assert!(of("mail").is_disjoint(&of("main")));
    }

    #[test]
    fn phrase_is_found_by_neighbouring_words_in_order() {
        let text = words("Look into Google Drive, please");
        let contains = |phrase: &str| contains_phrase(&text, &words(phrase));
        assert!(contains("google-drive") && !contains("drive google") && !contains(""));
    }

    proptest! {
        #[test]
        fn any_text_has_terms_that_are_stable(text in any::<String>()) {
            let terms = search_terms(&text);
            prop_assert_eq!(&terms, &search_terms(&text));
            prop_assert!(terms.iter().all(|term| !term.is_empty()));
            prop_assert!(words(&text).iter().all(|word| word.chars().all(|c| Kind::of(c) != Kind::Other || !c.is_ascii())));
        }
    }
}
