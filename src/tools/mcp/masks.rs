//! Which texts of a server's configuration are secrets, and how they are kept out of what the server says.

use std::cmp::Reverse;
use std::sync::{Arc, Mutex, PoisonError};

use secrecy::{ExposeSecret as _, SecretString};

use super::arguments;
use crate::support::redact::{self, REDACTED, names_secret};

/// Shorter texts are no secrets worth the name, and would be found everywhere.
const SHORTEST: usize = 4;
/// Words up to this length that are not called a secret are shown.
const LONGEST_WORD: usize = 12;

/// Tokens of a login that are remembered; older ones have ended.
const TOKENS: usize = 8;

/// The secrets of one server: of its entry, and the tokens of its login, which come later and to all clones.
#[derive(Clone, Default)]
pub struct Masks(Vec<SecretString>, Arc<Mutex<Vec<SecretString>>>);

impl Masks {
    /// Adds a value, unless it is harmless: too short, or not called a secret and a path, an address, a small number or a plain
    /// word. Masking those would make what the server says unreadable and protect nobody.
    pub fn add(&mut self, name: &str, value: &str) {
        if names_secret(name) || !is_harmless(value) {
            self.insist(value);
        }
        // The server may say the password of an address without the rest.
        for found in arguments::in_address(value) {
            self.insist(&value[found.at]);
        }
    }

    fn insist(&mut self, value: &str) {
        if value.len() < SHORTEST {
            return;
        }
        // `Bearer ...`: the server may say the credential without its scheme.
        for secret in [Some(value), value.split_once(' ').map(|(_, credential)| credential.trim())].into_iter().flatten() {
            if secret.len() >= SHORTEST && !self.0.iter().any(|known| known.expose_secret() == secret) {
                self.0.push(SecretString::from(secret));
            }
        }
        // One may contain another: the longer one first, or its rest stays.
        self.0.sort_by_key(|secret| Reverse(secret.expose_secret().len()));
    }

    /// Adds what [`arguments::secrets`] finds.
    pub fn add_arguments(&mut self, args: &[String]) {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        for (arg, found) in args.iter().zip(arguments::secrets(&args)) {
            for secret in found {
                self.insist(&arg[secret.at]);
            }
        }
    }

    /// Adds a token.
    pub fn add_token(&self, token: &SecretString) {
        let mut tokens = self.1.lock().unwrap_or_else(PoisonError::into_inner);
        if tokens.len() >= TOKENS {
            tokens.remove(0);
        }
        tokens.push(token.clone());
    }

    /// The text without the secrets.
    #[must_use]
    pub fn hide(&self, text: &str) -> String {
        let tokens = self.1.lock().unwrap_or_else(PoisonError::into_inner);
        let all = tokens.iter().chain(&self.0).filter(|secret| !secret.expose_secret().is_empty());
        all.fold(text.to_owned(), |text, secret| text.replace(secret.expose_secret(), REDACTED))
    }

    /// The same for an error that is shown: without what looks like a secret, too, and bounded.
    #[must_use]
    pub fn error_text(&self, text: &str) -> String {
        redact::error_text(&self.hide(text))
    }
}

/// Whether a value that is not called a secret is none: a path, an address, a small number or a plain word.
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
        let mut masks = Masks::default();
        masks.add("authorization", "Bearer abc-def");
        masks.add("DB_PASSWORD", "hunter");
        masks.add("DATABASE_URL", "https://ada:hunter-db@host/x");
        for (name, value) in
            [("PORT", "8080"), ("MODE", "stdio"), ("ROOT", "/srv/docs"), ("URL", "https://a/b"), ("X_TOKEN", "abc")]
        {
            masks.add(name, value);
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
        masks.add_arguments(&args.map(str::to_owned));
        let said = "abc-def hunter 8080 stdio /srv/docs https://a/b abc server SECRETARG t0ken env1 --root p4ss hunter-db";
        let shown = "[redacted] [redacted] 8080 stdio /srv/docs https://a/b abc server [redacted] [redacted] [redacted] --root [redacted] [redacted]";
        assert_eq!(masks.hide(said), shown);
    }

    #[test]
    fn tokens_that_come_later_are_hidden_too() {
        let masks = Masks::default();
        let clone = masks.clone();
        (0..=TOKENS).for_each(|n| masks.add_token(&SecretString::from(format!("tok{n}"))));
        assert_eq!(clone.hide("tok0 tok1 tok8"), "tok0 [redacted] [redacted]");
    }

    #[test]
    fn a_secret_in_a_longer_one_leaves_no_rest() {
        let mut masks = Masks::default();
        masks.add("key", "abcd");
        masks.add("token", "abcdefgh");
        assert_eq!(masks.hide("abcdefgh abcd"), "[redacted] [redacted]");
    }
}
