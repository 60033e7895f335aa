//! Makes text of models and tools safe for a terminal.

use crate::support::text;

/// Limit of displayed arguments and results of tools, in characters.
const SHOWN_CHARS: usize = 200;

/// Returns one short line without control characters, with which models and tools could control the terminal.
pub(super) fn brief(words: &str) -> String {
    let line = words.split_whitespace().collect::<Vec<_>>().join(" ");
    let safe: String = line.chars().filter(|c| !c.is_control()).collect();
    let cut = text::prefix_chars(&safe, SHOWN_CHARS);
    if cut.len() < safe.len() { format!("{cut}...") } else { safe }
}

/// Removes control characters except line ends and tabs.
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
