//! Error texts from outside, made safe to show: secrets masked, length bounded.

use super::text;

/// The longest error text that is stored or shown, in bytes.
pub const MAX_ERROR_BYTES: usize = 500;

/// Masks what looks like a credential, drops the query and user part of URLs, and cuts the text at [`MAX_ERROR_BYTES`].
#[must_use]
pub fn error_text(raw: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut secret_follows = false;
    for word in raw.split_whitespace() {
        let masked = if secret_follows || looks_like_key(word) { "[redacted]".to_owned() } else { strip_url(word) };
        let lower = word.to_ascii_lowercase();
        secret_follows = lower.ends_with("bearer") || lower.ends_with("api_key:") || lower.ends_with("api-key:");
        words.push(masked);
    }
    let joined = words.join(" ");
    let cut = text::prefix(&joined, MAX_ERROR_BYTES);
    text::storable(cut).into_owned()
}

fn looks_like_key(word: &str) -> bool {
    let core = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    let known_prefix =
        ["sk-", "sk_", "cap_", "key-", "xai-", "gsk_", "AIza", "ghp_", "eyJ"].iter().any(|prefix| core.starts_with(prefix));
    let token_like = core.len() >= 32
        && core.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '+' | '/' | '='))
        && core.chars().any(|c| c.is_ascii_digit())
        && core.chars().any(|c| c.is_ascii_alphabetic());
    (known_prefix && core.len() >= 12) || token_like
}

fn strip_url(word: &str) -> String {
    let Some(scheme_end) = word.find("://") else { return word.to_owned() };
    let (scheme, rest) = word.split_at(scheme_end + 3);
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit('@').next().unwrap_or_default();
    format!("{scheme}{host}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_do_not_survive() {
        let shown = error_text("401 for Bearer abc, key sk-1234567890abcdef at https://me:pw@host/v1?key=zzz#f ok");
        assert_eq!(shown, "401 for Bearer [redacted] key [redacted] at https://host/v1 ok");
        assert_eq!(error_text(&"ä".repeat(400)).len(), 500);
    }
}
