//! Redacts the secrets of a request in a provider's error messages, by value instead of by pattern.

use reqwest::Url;
use reqwest::header::HeaderMap;

use crate::domain::model::ModelError;
use crate::support::redact::{MAX_ERROR_BYTES, REDACTED, names_secret};

/// The shortest secret, in bytes. A shorter value occurs inside many words.
const SHORTEST: usize = 4;
/// The shortest secret that is redacted inside words. A shorter one, such as the key `test` of a local server, must be a complete
/// word.
const SHORTEST_WITHIN: usize = 8;

/// The secrets of one endpoint. Has no `Debug`, so that no log shows them.
#[derive(Clone, Default)]
pub(in crate::provider) struct Secrets {
    /// Longest first, because one may be a part of another.
    values: Vec<String>,
}

impl Secrets {
    /// Collects the secrets in a URL and in the headers of every request.
    pub(in crate::provider) fn of(url: &str, headers: &HeaderMap) -> Self {
        let mut values = Vec::new();
        for value in headers.values().filter(|value| value.is_sensitive()).filter_map(|value| value.to_str().ok()) {
            // Also collects the value without its scheme.
            values
                .extend([Some(value), value.split_once(' ').map(|(_, rest)| rest.trim())].into_iter().flatten().map(str::to_owned));
        }
        if let Ok(url) = Url::parse(url.trim()) {
            values.extend(url.password().map(str::to_owned));
            values.extend(url.query_pairs().filter(|(name, _)| names_secret(name)).map(|(_, value)| value.into_owned()));
        }
        Self::new(values)
    }

    pub(in crate::provider) fn new(mut values: Vec<String>) -> Self {
        values.retain(|value| value.len() >= SHORTEST);
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        values.dedup();
        Self { values }
    }

    pub(in crate::provider) fn redact(&self, mut error: ModelError) -> ModelError {
        let was_cut = error.message.len() + 4 > MAX_ERROR_BYTES;
        for secret in &self.values {
            if error.message.contains(secret.as_str()) {
                error.message = without(&error.message, secret);
            }
            // A long message was cut, perhaps inside a secret.
            let half = (SHORTEST..secret.len()).rev().find_map(|end| error.message.strip_suffix(secret.get(..end)?));
            if let Some(before) = half.filter(|_| was_cut) {
                error.message = format!("{before}{REDACTED}");
            }
        }
        error
    }
}

fn without(text: &str, secret: &str) -> String {
    if secret.len() >= SHORTEST_WITHIN {
        return text.replace(secret, REDACTED);
    }
    let is_of_word = |c: char| c.is_ascii_alphanumeric();
    let (mut redacted, mut rest) = (String::with_capacity(text.len()), text);
    while let Some((before, after)) = rest.split_once(secret) {
        let is_whole = !before.ends_with(is_of_word) && !after.starts_with(is_of_word);
        redacted.push_str(before);
        redacted.push_str(if is_whole { REDACTED } else { secret });
        rest = after;
    }
    redacted + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::model::ModelErrorKind;
    use reqwest::header::{HeaderName, HeaderValue};

    fn secrets(url: &str, headers: &[(&str, &str)]) -> Secrets {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let mut value = HeaderValue::try_from(*value).unwrap();
            value.set_sensitive(true);
            map.insert(name.parse::<HeaderName>().unwrap(), value);
        }
        Secrets::of(url, &map)
    }

    fn hidden(secrets: &Secrets, words: &str) -> String {
        secrets.redact(ModelError::new(ModelErrorKind::Auth, words)).message
    }

    #[test]
    fn sent_secret_is_not_quoted_in_errors() {
        let known = secrets(
            "https://me:pass-word@host/v1?api_key=in-the-url&api-version=2024-10-21",
            &[("authorization", "Bearer token-abc123"), ("x-team", "acme-prod-secret"), ("x-short", "test"), ("x-flag", "1")],
        );
        for (said, redacted) in [
            ("Received=token-abc123, expected another", "Received=[redacted], expected another"),
            ("Incorrect key provided: acme-prod-secret.", "Incorrect key provided: [redacted]."),
            ("you sent Bearer token-abc123", "you sent Bearer [redacted]"),
            (
                "'test' is no key, and this is the greatest test of 1",
                "'[redacted]' is no key, and this is the greatest [redacted] of 1",
            ),
            ("pass-word in-the-url 2024-10-21", "[redacted] [redacted] 2024-10-21"),
        ] {
            assert_eq!(hidden(&known, said), redacted, "{said}");
        }
    }

    #[test]
    fn half_a_secret_is_not_shown() {
        let known = secrets("https://host", &[("authorization", "Bearer token-abc123")]);
        for length in 480..500 {
            let redacted = hidden(&known, &format!("{}=token-abc123, what", "x ".repeat(length / 2)));
            assert!(!redacted.contains("toke"), "{length}: {redacted}");
        }
        assert_eq!(hidden(&known, "no such token"), "no such token");
    }
}
