//! Detects in a question which built-in tools can answer it.

use serde_json::{Value, json};

#[derive(Debug, Clone, PartialEq)]
pub(super) struct WantedCall {
    pub(super) name: &'static str,
    pub(super) arguments: Value,
}

/// Returns the tool calls for a question, each tool at most once.
pub(super) fn wanted_calls(question: &str) -> Vec<WantedCall> {
    let lower = question.to_lowercase();
    [time(question, &lower), calculation(question, &lower), file(question, &lower), directory(question, &lower)]
        .into_iter()
        .flatten()
        .collect()
}

pub(super) fn count_to(question: &str) -> Option<u32> {
    let lower = question.to_lowercase();
    let (_, target) = lower.split_once("count to ").or_else(|| lower.split_once("count up to "))?;
    let digits: String = target.chars().filter(|c| *c != ',').take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

pub(super) fn wants_story(question: &str) -> bool {
    has_any(&question.to_lowercase(), &["story", "essay", "long answer", "long text"])
}

fn has_any(text: &str, phrases: &[&str]) -> bool {
    phrases.iter().any(|phrase| text.contains(phrase))
}

fn has_word(text: &str, words: &[&str]) -> bool {
    text.split(|c: char| !c.is_alphanumeric()).any(|word| words.contains(&word))
}

fn time(question: &str, lower: &str) -> Option<WantedCall> {
    const ASKS: [&str; 8] =
        ["what time", "time is it", "current time", "the time", "what date", "today's date", "what day is", "the date"];
    if !has_any(lower, &ASKS) {
        return None;
    }
    let zone = tokens(question).find(|token| is_zone(token));
    let arguments = zone.map_or_else(|| json!({}), |zone| json!({ "timezone": zone }));
    Some(WantedCall { name: "current_time", arguments })
}

/// Returns whether a token is an IANA name such as `Europe/Berlin`, or `UTC`.
fn is_zone(token: &str) -> bool {
    let capital = |part: &str| part.starts_with(|c: char| c.is_ascii_uppercase());
    token == "UTC"
        || token.split_once('/').is_some_and(|(area, city)| {
            capital(area) && capital(city) && token.chars().all(|c| c.is_ascii_alphabetic() || matches!(c, '/' | '_' | '-'))
        })
}

fn calculation(question: &str, lower: &str) -> Option<WantedCall> {
    let asks = has_word(lower, &["what", "calculate", "compute", "evaluate", "solve", "much", "is"]);
    // The question, with line breaks instead of all characters that no expression contains.
    let mut candidates = String::with_capacity(question.len());
    let letters: Vec<char> = question.chars().collect();
    for (at, letter) in letters.iter().enumerate() {
        let digit_at = |at: Option<usize>| at.and_then(|at| letters.get(at)).is_some_and(char::is_ascii_digit);
        candidates.push(match letter {
            '0'..='9' | '.' | '+' | '-' | '*' | '/' | '^' | '%' | '(' | ')' | ' ' => *letter,
            '×' => '*',
            '÷' => '/',
            'x' if digit_at(at.checked_sub(1)) && digit_at(at.checked_add(1)) => '*',
            _ => '\n',
        });
    }
    let expression = candidates
        .lines()
        .map(|line| line.trim_matches([' ', '.', '/', '*', '+', '%', '^']).trim_end_matches(['-', ' ']))
        .filter(|line| is_expression(line) && (asks || line.contains(['+', '*', '^', '('])))
        .max_by_key(|line| line.len())?;
    Some(WantedCall { name: "calculate", arguments: json!({ "expression": expression }) })
}

fn is_expression(text: &str) -> bool {
    let operators = text.char_indices().filter(|(at, c)| *at > 0 && matches!(c, '+' | '-' | '*' | '/' | '^' | '%')).count();
    let numbers = text.split(|c: char| !c.is_ascii_digit() && c != '.').filter(|number| !number.is_empty()).count();
    let balanced = text.matches('(').count() == text.matches(')').count();
    // 2026-01-31 is a date, not a subtraction.
    let date = text.len() == 10 && text.bytes().enumerate().all(|(at, byte)| (byte == b'-') == matches!(at, 4 | 7));
    operators > 0 && numbers > 1 && balanced && !date
}

fn file(question: &str, lower: &str) -> Option<WantedCall> {
    if !has_word(lower, &["read", "open", "show", "print", "cat", "contents", "content", "summarize", "summarise"]) {
        return None;
    }
    let path = tokens(question).find(|token| is_file(token))?;
    Some(WantedCall { name: "read_file", arguments: json!({ "path": path }) })
}

fn directory(question: &str, lower: &str) -> Option<WantedCall> {
    let asks = has_word(lower, &["list", "show", "what", "which", "see"]);
    let names = has_word(lower, &["directory", "folder", "files", "directories", "folders"]);
    let wants_listing = has_word(lower, &["ls"]) || (asks && names);
    if !wants_listing {
        return None;
    }
    let folder = tokens(question)
        .find(|token| token.contains('/') && token.contains(char::is_alphabetic) && !is_file(token) && !is_zone(token));
    let named = || {
        let words: Vec<&str> = tokens(question).collect();
        let of_name =
            |word: &str| !matches!(word.to_lowercase().as_str(), "the" | "this" | "a" | "my" | "your" | "which" | "current");
        words.windows(2).find_map(|pair| {
            let is_folder = matches!(pair[1].to_lowercase().as_str(), "folder" | "directory");
            (is_folder && of_name(pair[0]) && question.contains(&format!("the {}", pair[0]))).then_some(pair[0])
        })
    };
    let path = folder.or_else(named);
    Some(WantedCall { name: "list_directory", arguments: path.map_or_else(|| json!({}), |path| json!({ "path": path })) })
}

/// Returns the words without quotes and punctuation around them.
fn tokens(question: &str) -> impl Iterator<Item = &str> {
    question
        .split_whitespace()
        .map(|word| {
            word.trim_matches(|c: char| matches!(c, '"' | '\'' | '`' | ',' | ';' | ':' | '?' | '!' | '(' | ')' | '“' | '”'))
        })
        .map(|word| word.strip_suffix('.').unwrap_or(word))
        .filter(|word| !word.is_empty())
}

/// Returns whether a token is a file name with an extension, such as `docs/notes.txt`.
fn is_file(token: &str) -> bool {
    let Some((stem, extension)) = token.rsplit_once('.') else { return false };
    !stem.is_empty()
        && !token.contains("://")
        && (1..=5).contains(&extension.len())
        && extension.chars().all(|c| c.is_ascii_alphanumeric())
        && extension.chars().any(|c| c.is_ascii_alphabetic())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wants_listing(question: &str) -> Vec<String> {
        wanted_calls(question).into_iter().map(|call| format!("{} {}", call.name, call.arguments)).collect()
    }

    #[test]
    fn questions_for_tools() {
        assert_eq!(wants_listing("what's the time in Europe/Berlin?"), [r#"current_time {"timezone":"Europe/Berlin"}"#]);
        assert_eq!(wants_listing("Calculate (2 + 3) * 4."), [r#"calculate {"expression":"(2 + 3) * 4"}"#]);
        assert_eq!(wants_listing("how much is 12x12"), [r#"calculate {"expression":"12*12"}"#]);
        assert_eq!(wants_listing("read notes.txt"), [r#"read_file {"path":"notes.txt"}"#]);
        assert_eq!(wants_listing("Which files are in the docs folder?"), [r#"list_directory {"path":"docs"}"#]);
        assert_eq!(
            wants_listing("List the files and read `docs/a.md`, then tell me what time it is and what 1/3 is."),
            [
                r#"current_time {}"#,
                r#"calculate {"expression":"1/3"}"#,
                r#"read_file {"path":"docs/a.md"}"#,
                r#"list_directory {}"#
            ]
        );
    }

    #[test]
    fn questions_for_no_tool() {
        for question in ["hello", "I was born on 2026-01-31", "I have 3 apples", "tell me a story", "open 24/7", ""] {
            assert_eq!(wants_listing(question), Vec::<String>::new(), "{question}");
        }
        assert_eq!(count_to("Count to 1,000 please"), Some(1_000));
        assert_eq!(count_to("count"), None);
    }
}
