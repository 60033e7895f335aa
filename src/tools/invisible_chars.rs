//! Removes invisible characters from texts for models, and escapes them for people. People do not see them, but models read them.

use serde_json::Value;

pub fn visible(raw: &str) -> String {
    raw.chars().filter(|c| !is_invisible(*c)).collect()
}

/// Escapes invisible characters, as in `<U+200B>`.
pub fn spell_out_invisible(raw: &str) -> String {
    let mut out = String::with_capacity(raw.len());
    for c in raw.chars() {
        if is_invisible(c) {
            out.push_str(&format!("<U+{:04X}>", u32::from(c)));
        } else {
            out.push(c);
        }
    }
    out
}

/// Escapes invisible characters in all texts and names of a value.
pub fn shown_value(value: &Value) -> Value {
    match value {
        Value::String(text) => Value::String(spell_out_invisible(text)),
        Value::Array(items) => items.iter().map(shown_value).collect(),
        Value::Object(map) => map.iter().map(|(key, value)| (spell_out_invisible(key), shown_value(value))).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

/// Returns the first invisible character of a text in which every character counts, such as a name.
///
/// One joiner and one variation selector after a possible part of an emoji are allowed. More of them could encode a hidden text.
pub fn hidden_in(text: &str) -> Option<char> {
    let (mut may_join, mut may_vary) = (false, false);
    for c in text.chars() {
        match c {
            '\u{200d}' if may_join => (may_join, may_vary) = (false, false),
            '\u{fe0e}' | '\u{fe0f}' if may_vary => may_vary = false,
            // Part of a line end, which a list of delimiters may contain.
            '\r' => {}
            c if is_invisible(c) => return Some(c),
            c => (may_join, may_vary) = (!c.is_ascii(), !c.is_ascii() || matches!(c, '0'..='9' | '#' | '*')),
        }
    }
    None
}

fn is_invisible(c: char) -> bool {
    (c.is_control() && !matches!(c, '\n' | '\t'))
        || matches!(
            c,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180b}'..='\u{180f}'
                | '\u{200b}'..='\u{200f}'
                | '\u{202a}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{fe00}'..='\u{fe0f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// M-21.
    #[test]
    fn plain_text_shows_no_hidden_characters() {
        for fine in
            ["", "a b\tc\r\n", "\u{2764}\u{fe0f}\u{200d}\u{1f525}", "\u{1f469}\u{200d}\u{1f4bb}", "1\u{fe0f}\u{20e3}", "e\u{301}"]
        {
            assert_eq!(hidden_in(fine), None, "{fine:?}");
        }
        for (text, expected) in [
            ("a\u{200b}b", '\u{200b}'),
            ("x\u{e0041}", '\u{e0041}'),
            ("\u{200d}", '\u{200d}'),
            ("a\u{200d}b", '\u{200d}'),
            ("\u{1f469}\u{200d}\u{200d}b", '\u{200d}'),
            ("\u{2764}\u{fe0f}\u{fe0f}", '\u{fe0f}'),
            ("\u{2764}\u{fe00}", '\u{fe00}'),
            ("a\u{fe0f}", '\u{fe0f}'),
            ("a\u{1b}[8m", '\u{1b}'),
        ] {
            assert_eq!(hidden_in(text), Some(expected), "{text:?}");
        }
    }

    /// M-21.
    #[test]
    fn invisible_text_is_shown_to_users_and_hidden_from_models() {
        let raw = "Adds\u{200b} two\n\u{e0041}numbers";
        assert_eq!(visible(raw), "Adds two\nnumbers");
        assert_eq!(spell_out_invisible(raw), "Adds<U+200B> two\n<U+E0041>numbers");
        let value = json!({"a\u{202e}": [1, "x\u{feff}", {"b": null}]});
        assert_eq!(shown_value(&value), json!({"a<U+202E>": [1, "x<U+FEFF>", {"b": null}]}));
    }
}
