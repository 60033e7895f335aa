//! Text cut to a size without breaking a character.

/// The longest prefix of `text` that is at most `max_bytes` long and ends on a character boundary.
#[must_use]
pub fn prefix(text: &str, max_bytes: usize) -> &str {
    &text[..text.floor_char_boundary(max_bytes)]
}

/// The longest prefix of `text` with at most `max_chars` characters.
#[must_use]
pub fn prefix_chars(text: &str, max_chars: usize) -> &str {
    text.char_indices().nth(max_chars).map_or(text, |(at, _)| &text[..at])
}

/// Replaces what no database column can hold: U+0000 becomes U+FFFD. This is the one place where that happens.
#[must_use]
pub fn storable(text: &str) -> std::borrow::Cow<'_, str> {
    if text.contains('\0') { text.replace('\0', "\u{fffd}").into() } else { text.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_on_character_boundaries() {
        assert_eq!(prefix("aé", 2), "a");
        assert_eq!(prefix("aé", 3), "aé");
        assert_eq!(prefix("", 5), "");
        assert_eq!(prefix_chars("äöü", 2), "äö");
        assert_eq!(prefix_chars("äöü", 9), "äöü");
        assert_eq!(storable("a\0b"), "a\u{fffd}b");
    }
}
