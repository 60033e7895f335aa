//! Encoded variants of a secret, which secret redaction also searches for.
//!
//! A tool may answer with `Authorization: Basic ...`, from which the password is easily decoded. The usual encodings of programs are
//! covered: base64, hexadecimal digits, percent-encoding and JSON escapes. Other or repeated encodings cannot be found.

use base64::Engine as _;
use base64::engine::GeneralPurpose;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Longer secrets are searched for in plain text only, because each encoding costs memory for each character.
const LONGEST: usize = 1024;

/// The unreserved characters of a URL component (RFC 3986, 2.3). Browsers also leave marks unencoded, and Python the slash.
const COMPONENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
const MARKS: &AsciiSet = &COMPONENT.remove(b'!').remove(b'\'').remove(b'(').remove(b')').remove(b'*');
const SLASH: &AsciiSet = &COMPONENT.remove(b'/');

/// Returns the distinct encodings, without the secret itself.
pub fn encoded_forms(secret: &str) -> Vec<String> {
    if secret.len() > LONGEST {
        return Vec::new();
    }
    let digits: String = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
    let mut forms = vec![digits.to_uppercase(), digits];
    for left in [COMPONENT, MARKS, SLASH] {
        let percent = utf8_percent_encode(secret, left).to_string();
        forms.extend([lower_digits(&percent), percent.replace("%20", "+"), percent]);
    }
    if let Ok(quoted) = serde_json::to_string(secret) {
        let quoted = &quoted[1..quoted.len() - 1];
        forms.extend([quoted.replace('/', "\\/"), only_ascii(quoted), for_html(quoted), quoted.to_owned()]);
    }
    for engine in [STANDARD_NO_PAD, URL_SAFE_NO_PAD] {
        forms.extend((0..3).map(|before| within_base64(&engine, secret, before)));
    }
    forms.retain(|form| form != secret && !form.is_empty());
    forms.sort_unstable();
    forms.dedup();
    forms
}

/// Returns the base64 characters that depend on the secret alone, if it begins at a byte whose index modulo 3 is `before`. A
/// character has six bits, so the first and the last may contain bits of the surrounding text.
fn within_base64(engine: &GeneralPurpose, secret: &str, before: usize) -> String {
    let bytes: Vec<u8> = std::iter::repeat_n(0, before).chain(secret.bytes()).collect();
    let (start, end) = ((before * 8).div_ceil(6), bytes.len() * 8 / 6);
    engine.encode(&bytes).get(start..end).unwrap_or_default().to_owned()
}

/// Escapes non-ASCII characters in JSON.
fn only_ascii(json: &str) -> String {
    let mut units = [0; 2];
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            _ if c.is_ascii() => out.push(c),
            _ => c.encode_utf16(&mut units).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}"))),
        }
    }
    out
}

/// Escapes JSON for use in HTML.
fn for_html(json: &str) -> String {
    json.replace('&', "\\u0026").replace('<', "\\u003c").replace('>', "\\u003e")
}

/// Returns percent-encoded text with lower-case hexadecimal digits.
fn lower_digits(percent: &str) -> String {
    let mut left = 0;
    let lower = |c: char| {
        let is_digit = left > 0;
        left = if c == '%' { 2 } else { left.max(1) - 1 };
        if is_digit { c.to_ascii_lowercase() } else { c }
    };
    percent.chars().map(lower).collect()
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::{STANDARD, URL_SAFE};

    use super::*;

    fn is_found(secret: &str, text: &str) -> bool {
        encoded_forms(secret).iter().any(|form| text.contains(form.as_str()))
    }

    #[test]
    fn secret_is_found_at_any_offset_in_base64() {
        for secret in ["hunter-22", "p\u{e4}ss>>>?w\u{f6}rd", "\u{ff}\u{ff}\u{ff}~~~~???"] {
            for before in ["", "a", "ad", "ada", "ada:"] {
                for after in ["", "\n", "@h", "@host"] {
                    let text = format!("{before}{secret}{after}");
                    assert!(is_found(secret, &STANDARD.encode(&text)), "{text}");
                    assert!(is_found(secret, &URL_SAFE.encode(&text)), "{text}");
                    assert!(!is_found(secret, &STANDARD.encode(text.to_uppercase())), "{text}");
                }
            }
        }
    }

    #[test]
    fn secret_is_found_in_urls_digits_and_json() {
        let secret = "p\u{e4}ss/wOrd \"1\"";
        for text in [
            "?key=p%C3%A4ss%2FwOrd%20%221%22&x",
            "?key=p%c3%a4ss%2fwOrd%20%221%22&x",
            "key=p%C3%A4ss%2FwOrd+%221%22",
            "70c3a473732f774f7264202231220a",
            "70C3A473732F774F726420223122",
            r#"{"key": "päss/wOrd \"1\""}"#,
            r#"{"key": "p\u00e4ss/wOrd \"1\""}"#,
            r#"{"key": "päss\/wOrd \"1\""}"#,
            "?key=p%C3%A4ss/wOrd%20%221%22",
        ] {
            assert!(is_found(secret, text), "{text}");
        }
        assert!(is_found("p@ss!w<o>&rd", "p%40ss!w%3Co%3E%26rd") && is_found("p@ss!w<o>&rd", r"p@ss!w\u003co\u003e\u0026rd"));
    }

    #[test]
    fn plain_words_have_the_forms_that_differ() {
        let forms = encoded_forms("secret-1");
        assert_eq!(forms, ["7365637265742D31", "7365637265742d31", "NlY3JldC0x", "c2VjcmV0LT", "zZWNyZXQtM"]);
    }

    #[test]
    fn long_ones_have_none() {
        assert!(encoded_forms(&"x".repeat(LONGEST + 1)).is_empty());
    }
}
