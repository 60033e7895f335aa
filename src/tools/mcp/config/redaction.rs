//! Secret redaction: the secrets of one server, and their replacement in its texts.

use std::cmp::Reverse;
use std::sync::{Arc, Mutex, OnceLock};

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Map, Value};

use crate::support::locks::lock;
use crate::support::redact::{self, REDACTED, names_secret, redacted_as};
use crate::tools::mcp::config::{arguments, encoded_secrets};

/// The shortest secret that is redacted, in bytes; shorter texts are too frequent.
const SHORTEST: usize = 4;
/// The shortest secret in tool results, which contain arbitrary text.
const SHORTEST_IN_ANSWERS: usize = 8;
/// The number of bytes to drop next to a cut, because they may contain a part of a secret. Redaction finds complete secrets only. A
/// part of a longer secret may remain.
pub const CUT_MARGIN: usize = 16 * 1024;
/// The longest plain word that is not redacted, unless its name is that of a secret.
const LONGEST_WORD: usize = 12;
/// The most bytes of all encodings for one entry.
const MAX_FORMS: usize = 256 * 1024;
/// The most login tokens that are kept; older ones have usually expired.
const TOKENS: usize = 8;
/// Schemes before a credential in a header.
const SCHEMES: [&str; 6] = ["bearer", "basic", "token", "apikey", "api-key", "digest"];

/// The secrets of one server: those of its entry, and its login tokens, which are added later and shared by all clones.
#[derive(Clone, Default)]
pub struct SecretRedactor {
    /// Longest first.
    known: Vec<Secret>,
    /// Finds all secrets in results in one pass. Built for the first result.
    finder: Arc<OnceLock<Option<Finder>>>,
    tokens: Arc<Mutex<Tokens>>,
}

#[derive(Default)]
struct Tokens {
    known: Vec<Secret>,
    finder: Option<Arc<Finder>>,
}

#[derive(Clone)]
struct Secret {
    value: SecretString,
    /// Its replacement in results; `None` if it is not redacted there.
    replacement: Option<Arc<str>>,
}

impl Secret {
    fn new(name: &str, value: &str, is_whole: bool) -> Self {
        let replacement = (is_whole && value.len() >= SHORTEST_IN_ANSWERS).then(|| Arc::from(redacted_as(name)));
        Self { value: SecretString::from(value), replacement }
    }

    fn value(&self) -> &str {
        self.value.expose_secret()
    }
}

/// Finds secrets in plain text and in encodings.
struct Finder {
    automaton: AhoCorasick,
    /// The replacement of each pattern.
    replacements: Vec<Arc<str>>,
}

impl Finder {
    /// Returns a finder for secrets in results; `None` if there are none.
    fn of(secrets: &[Secret]) -> Option<Self> {
        let (mut patterns, mut replacements, mut remaining_bytes) = (Vec::new(), Vec::new(), MAX_FORMS);
        // Shortest first, because the encodings of one long secret use the space of many short ones.
        for secret in secrets.iter().rev() {
            let Some(replacement) = &secret.replacement else { continue };
            let forms = encoded_secrets::encoded_forms(secret.value());
            let bytes = forms.iter().map(String::len).sum::<usize>();
            let forms = if bytes <= remaining_bytes { forms } else { Vec::new() };
            remaining_bytes -= forms.iter().map(String::len).sum::<usize>();
            for form in forms.into_iter().map(SecretString::from).chain([secret.value.clone()]) {
                patterns.push(form);
                replacements.push(Arc::clone(replacement));
            }
        }
        if replacements.is_empty() {
            return None;
        }
        // Fails only for more patterns than an entry can have.
        let patterns = patterns.iter().map(|pattern| pattern.expose_secret());
        let mut builder = AhoCorasick::builder();
        // The default for few patterns, a DFA, needs hundreds of bytes for each byte of a pattern.
        let builder = builder.match_kind(MatchKind::LeftmostLongest).kind(Some(AhoCorasickKind::ContiguousNFA));
        let automaton = builder.build(patterns).ok()?;
        Some(Self { automaton, replacements })
    }

    /// Redacts a text; `None` if it contains no secret.
    fn redacted_text(&self, text: &str) -> Option<String> {
        if !self.automaton.is_match(text) {
            return None;
        }
        let mut redacted = String::with_capacity(text.len());
        self.automaton.replace_all_with(text, &mut redacted, |found, _, redacted| {
            redacted.push_str(self.replacements.get(found.pattern().as_usize()).map_or(REDACTED, |redacted| redacted.as_ref()));
            true
        });
        Some(redacted)
    }
}

impl SecretRedactor {
    /// Adds a value, unless it is too short or harmless: a path, a URL, a small number or a plain word without the name of a secret.
    /// Redacting those would make texts unreadable without protecting a secret.
    pub fn add(&mut self, name: &str, value: &str) {
        if names_secret(name) || !is_harmless(value) {
            self.add_secret(name, value);
        }
        // The server may print the password of a URL alone.
        for found in arguments::in_address(value) {
            self.add_secret(name, &value[found.at]);
        }
    }

    fn add_secret(&mut self, name: &str, value: &str) {
        if value.len() < SHORTEST {
            return;
        }
        self.put(Secret::new(name, value, true));
        // The server may print the credential of `Bearer ...` without its scheme. Other values with a space are sentences.
        if let Some((scheme, credential)) = value.split_once(' ') {
            let is_credential = SCHEMES.iter().any(|known| known.eq_ignore_ascii_case(scheme));
            self.put(Secret::new(name, credential.trim(), is_credential));
        }
        // Longest first: after the replacement of a shorter secret inside a longer one, the rest of the longer one would stay.
        self.known.sort_by_key(|secret| Reverse(secret.value().len()));
        self.finder = Arc::default();
    }

    fn put(&mut self, secret: Secret) {
        if secret.value().len() >= SHORTEST && !self.known.iter().any(|known| known.value() == secret.value()) {
            self.known.push(secret);
        }
    }

    /// Adds the secrets in arguments, found by [`arguments::secrets`].
    pub fn add_arguments(&mut self, args: &[String]) {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        for (arg, found) in args.iter().zip(arguments::secrets(&args)) {
            for secret in found {
                self.add_secret(secret.name, &arg[secret.at]);
            }
        }
    }

    pub fn add_token(&self, name: &str, token: &SecretString) {
        let mut tokens = lock(&self.tokens);
        if tokens.known.iter().any(|known| known.value() == token.expose_secret()) {
            return;
        }
        let excess = (tokens.known.len() + 1).saturating_sub(TOKENS);
        tokens.known.drain(..excess);
        tokens.known.push(Secret::new(name, token.expose_secret(), true));
        tokens.finder = Finder::of(&tokens.known).map(Arc::new);
    }

    /// Redacts a text for logs and errors.
    pub fn redact(&self, text: &str) -> String {
        let plain = {
            let tokens = lock(&self.tokens);
            let all = tokens.known.iter().chain(&self.known).filter(|secret| !secret.value().is_empty());
            all.fold(text.to_owned(), |text, secret| text.replace(secret.value(), REDACTED))
        };
        self.redact_text(plain)
    }

    /// Redacts the result of a tool in linear time, and names the secrets.
    pub fn redact_value(&self, answer: &mut Value) {
        match answer {
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
            Value::String(text) => {
                if let Some(redacted) = self.found_in(text) {
                    *text = redacted;
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.redact_value(item)),
            Value::Object(fields) => {
                fields.values_mut().for_each(|field| self.redact_value(field));
                if fields.keys().any(|key| self.found_in(key).is_some()) {
                    let all = std::mem::take(fields).into_iter();
                    *fields = all.map(|(key, field)| (self.found_in(&key).unwrap_or(key), field)).collect::<Map<_, _>>();
                }
            }
        }
    }

    pub fn redact_text(&self, text: String) -> String {
        self.found_in(&text).unwrap_or(text)
    }

    /// Returns whether a text contains a secret that is redacted in results.
    pub fn finds_secret(&self, text: &str) -> bool {
        self.found_in(text).is_some()
    }

    /// Redacts a text of a result; `None` if it contains no secret.
    fn found_in(&self, text: &str) -> Option<String> {
        let redacted = self.finder.get_or_init(|| Finder::of(&self.known)).as_ref().and_then(|finder| finder.redacted_text(text));
        let of_tokens = lock(&self.tokens).finder.clone();
        let again = of_tokens.and_then(|finder| finder.redacted_text(redacted.as_deref().unwrap_or(text)));
        again.or(redacted)
    }

    /// Redacts and cuts an error. Also redacts texts that look like a secret.
    pub fn error_text(&self, text: &str) -> String {
        redact::error_text(&self.redact(text))
    }
}

/// Returns whether a value is a path, a URL, a small number or a plain word.
pub fn is_harmless(value: &str) -> bool {
    let is_path = ["/", "./", "../", "~"].iter().any(|start| value.starts_with(start)) || value.get(1..3) == Some(":\\");
    let is_address = ["http://", "https://"].iter().any(|scheme| value.starts_with(scheme)) && !value.contains(['@', '?']);
    let is_number = value.len() <= 5 && value.bytes().all(|b| b.is_ascii_digit());
    let is_word = value.len() <= LONGEST_WORD && value.bytes().all(|b| b.is_ascii_lowercase() || matches!(b, b'-' | b'_'));
    is_path || is_address || is_number || is_word
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_hidden_and_plain_words_are_not() {
        let mut redactor = SecretRedactor::default();
        redactor.add("authorization", "Bearer abc-def");
        redactor.add("DB_PASSWORD", "hunter");
        redactor.add("DATABASE_URL", "https://ada:hunter-db@host/x");
        for (name, value) in
            [("PORT", "8080"), ("MODE", "stdio"), ("ROOT", "/srv/docs"), ("URL", "https://a/b"), ("X_TOKEN", "abc")]
        {
            redactor.add(name, value);
        }
        let args = [
            "-y",
            "server",
            "--api-key",
            "SECRETARG",
            "--token=t0ken",
            "-e",
            "A_KEY=env1",
            "--key",
            "--root",
            "/srv",
            "pg://a:p4ss@h",
        ];
        redactor.add_arguments(&args.map(str::to_owned));
        let said = "abc-def hunter 8080 stdio /srv/docs https://a/b abc server SECRETARG t0ken env1 --root p4ss hunter-db";
        let redacted = "[redacted] [redacted] 8080 stdio /srv/docs https://a/b abc server [redacted] [redacted] [redacted] --root [redacted] [redacted]";
        assert_eq!(redactor.redact(said), redacted);
    }

    #[test]
    fn tokens_that_come_later_are_hidden_too() {
        let redactor = SecretRedactor::default();
        let clone = redactor.clone();
        (0..=TOKENS).for_each(|n| redactor.add_token("access_token", &SecretString::from(format!("tok{n}"))));
        assert_eq!(clone.redact("tok0 tok1 tok8"), "tok0 [redacted] [redacted]");
    }

    #[test]
    fn answers_say_which_secret_stood_there() {
        let mut redactor = SecretRedactor::default();
        redactor.add("Authorization", "Bearer abcdefgh-1");
        redactor.add("API KEY=x", "abcdefgh-123");
        redactor.add("SHORT_TOKEN", "abcdefg");
        redactor.add("AUTHOR", "Ada Lovelace");
        redactor.add("ROOT", "/srv/documents");
        let clone = redactor.clone();
        redactor.add_token("refresh_token", &SecretString::from("later-token"));
        let mut answer = serde_json::json!({
            "content": [{"type": "text", "text": "Bearer abcdefgh-1, abcdefgh-123 and abcdefgh-1 of Lovelace"}],
            "abcdefgh-123": {"n": 1, "deep": ["later-token", "abcdefg", "/srv/documents", null, "Ada Lovelace"]},
        });
        clone.redact_value(&mut answer);
        let redacted = serde_json::json!({
            "content": [{"type": "text", "text": "[redacted:Authorization], [redacted:API_KEY_x] and [redacted:Authorization] of Lovelace"}],
            "[redacted:API_KEY_x]": {"n": 1, "deep": ["[redacted:refresh_token]", "abcdefg", "/srv/documents", null, "[redacted:AUTHOR]"]},
        });
        assert_eq!(answer, redacted);
    }

    #[test]
    fn the_time_that_an_answer_takes_does_not_grow_with_the_secrets() {
        let mut redactor = SecretRedactor::default();
        (0..2_000).for_each(|n| redactor.known.push(Secret::new("KEY", &format!("aaaaaaaaaaaaaaa{n}"), true)));
        let text = "a".repeat(4 << 20);
        let mut answer = serde_json::json!([text, text]);
        let began = std::time::Instant::now();
        redactor.redact_value(&mut answer);
        // A pass for each secret would take minutes.
        assert!(began.elapsed() < std::time::Duration::from_secs(20), "{:?}", began.elapsed());
        assert_eq!(answer[0], text);
    }

    #[test]
    fn encoded_secrets_are_hidden_too() {
        let mut redactor = SecretRedactor::default();
        redactor.add("PASSWORD", "hunter-22");
        redactor.add_token("access_token", &SecretString::from("later/token"));
        // `ada:hunter-22`, as in a header; the characters around it contain bits of it and of its neighbours.
        assert_eq!(redactor.redact_text("Basic YWRhOmh1bnRlci0yMg==".to_owned()), "Basic YWRhOm[redacted:PASSWORD]g==");
        assert_eq!(redactor.redact_text("/?t=later%2Ftoken&a".to_owned()), "/?t=[redacted:access_token]&a");
        assert_eq!(redactor.redact("68756e7465722d3232 hunter-22"), "[redacted:PASSWORD] [redacted]");
    }

    /// A member may configure a server with dozens of headers of thousands of characters.
    #[test]
    fn many_long_secrets_take_little_memory() {
        let mut redactor = SecretRedactor::default();
        let long = |n: usize| format!("{n}{}", "aB3/x+".repeat(160));
        (0..60).for_each(|n| redactor.add(&format!("TOKEN_{n}"), &long(n)));
        redactor.add("PASSWORD", "hunter-22");
        assert_eq!(redactor.redact_text(format!("{} 68756e7465722d3232", long(7))), "[redacted:TOKEN_7] [redacted:PASSWORD]");
        let bytes = redactor.finder.get().unwrap().as_ref().unwrap().automaton.memory_usage();
        assert!(bytes < 16 * 1024 * 1024, "{bytes} bytes");
        for n in 0..20 {
            redactor.add_token("access_token", &SecretString::from(long(100 + n)));
        }
        let bytes = lock(&redactor.tokens).finder.as_ref().unwrap().automaton.memory_usage();
        assert!(bytes < 4 * 1024 * 1024, "{bytes} bytes");
        assert_eq!(lock(&redactor.tokens).known.len(), TOKENS);
    }

    #[test]
    fn a_secret_in_a_longer_one_leaves_no_rest() {
        let mut redactor = SecretRedactor::default();
        redactor.add("key", "abcd");
        redactor.add("token", "abcdefgh");
        assert_eq!(redactor.redact("abcdefgh abcd"), "[redacted] [redacted]");
    }
}
