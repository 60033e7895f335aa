//! Cuts text at character boundaries, and replaces the character that no database column can store.

/// Returns the longest prefix with at most `max_bytes` bytes that ends on a character boundary.
pub fn prefix(text: &str, max_bytes: usize) -> &str {
    &text[..text.floor_char_boundary(max_bytes)]
}

/// Splits `text` into pieces of at most `max_bytes`, which end on character boundaries; an empty text is one piece.
pub fn pieces(text: &str, max_bytes: usize) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let whole = rest?;
        // A character that is larger than `max_bytes` is a piece of its own.
        let first = whole.chars().next().map_or(0, char::len_utf8);
        let piece = prefix(whole, max_bytes.max(first));
        rest = Some(&whole[piece.len()..]).filter(|rest| !rest.is_empty());
        Some(piece)
    })
}

/// Returns the longest prefix with at most `max_chars` characters.
pub fn prefix_chars(text: &str, max_chars: usize) -> &str {
    text.char_indices().nth(max_chars).map_or(text, |(at, _)| &text[..at])
}

/// Replaces U+0000, which no database column can store, by U+FFFD.
pub fn storable(text: &str) -> std::borrow::Cow<'_, str> {
    if text.contains('\0') { text.replace('\0', "\u{fffd}").into() } else { text.into() }
}

/// Replaces U+0000 in JSON text by U+FFFD, so that clients see the stored text.
pub fn storable_json(json: String) -> String {
    if !json.contains("\\u0000") {
        return json;
    }
    // After an even number of backslashes, `\u0000` is an escape; after an odd number it is literal text.
    let mut out = String::with_capacity(json.len());
    let mut rest = json.as_str();
    while let Some(at) = rest.find("\\u0000") {
        let backslashes = rest[..at].bytes().rev().take_while(|byte| *byte == b'\\').count();
        out.push_str(&rest[..at]);
        out.push_str(if backslashes % 2 == 0 { "\\ufffd" } else { "\\u0000" });
        rest = &rest[at + 6..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Slicing in the middle of a character would panic.
        #[test]
        fn any_text_is_cut_to_any_limit(text in any::<String>(), limit in prop_oneof![0..80_usize, any::<usize>()]) {
            let (bytes, chars) = (prefix(&text, limit), prefix_chars(&text, limit));
            prop_assert!(text.starts_with(bytes) && text.starts_with(chars));
            prop_assert!(bytes.len() <= limit && chars.chars().count() == text.chars().count().min(limit));
            // One more character would exceed the limit.
            let next = text[bytes.len()..].chars().next();
            prop_assert!(next.is_none_or(|next| bytes.len() + next.len_utf8() > limit));
        }

        #[test]
        fn pieces_are_the_whole_text(text in any::<String>(), limit in 4..80_usize) {
            let pieces: Vec<&str> = pieces(&text, limit).collect();
            prop_assert_eq!(pieces.concat(), text.as_str());
            prop_assert!(pieces.iter().all(|piece| piece.len() <= limit));
        }
    }

    #[test]
    fn cuts_on_character_boundaries() {
        assert_eq!(prefix("aé", 2), "a");
        assert_eq!(prefix("aé", 3), "aé");
        assert_eq!(prefix("", 5), "");
        assert_eq!(prefix_chars("äöü", 2), "äö");
        assert_eq!(prefix_chars("äöü", 9), "äöü");
        assert_eq!(storable("a\0b"), "a\u{fffd}b");
        assert_eq!(storable_json(r#"["\u0000","\\u0000"]"#.to_owned()), r#"["\ufffd","\\u0000"]"#);
    }
}
