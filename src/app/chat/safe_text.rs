//! Text of models and tools, made safe for a terminal.

use crate::support::text;

/// The most of a tool's arguments or answer that is shown, in characters.
const SHOWN_CHARS: usize = 200;

/// One line without control characters: what a model or tool says must not steer the terminal.
pub(super) fn brief(words: &str) -> String {
    let line = words.split_whitespace().collect::<Vec<_>>().join(" ");
    let safe: String = line.chars().filter(|c| !c.is_control()).collect();
    let cut = text::prefix_chars(&safe, SHOWN_CHARS);
    if cut.len() < safe.len() { format!("{cut}...") } else { safe }
}

/// Text of an answer, safe for a terminal: line ends and tabs stay, other control characters go.
#[must_use]
pub fn printable(words: &str) -> String {
    words.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(printable("a\u{1b}[31mb\n\tc\r"), "a[31mb\n\tc");
    }
}
