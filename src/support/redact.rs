//! Redacts secrets in error texts from other systems, and limits their length.

use super::text;

/// The longest error text that is stored or shown, in bytes.
pub const MAX_ERROR_BYTES: usize = 500;

/// The text that replaces a secret.
pub const REDACTED: &str = "[redacted]";

/// Returns the replacement of a secret with a known name.
pub fn redacted_as(name: &str) -> String {
    let clean = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.') { c } else { '_' };
    format!("[redacted:{}]", name.chars().take(64).map(clean).collect::<String>())
}

/// Returns whether a text contains a replaced secret.
pub fn is_redacted(text: &str) -> bool {
    text.contains(REDACTED) || text.contains("[redacted:")
}

/// Names of secrets. They also match as the last word of a longer name: `OPENAI_API_KEY`, `x-auth-token`, `apiKey`.
const SECRET_NAMES: [&str; 6] = ["token", "key", "apikey", "authtoken", "accesstoken", "authorization"];

/// Name endings of secrets. They match after any text, because no other names end like these.
const SECRET_ENDINGS: [&str; 4] = ["secret", "password", "passwd", "passphrase"];

/// Returns whether a field or variable of this name contains a secret.
pub fn names_secret(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    if SECRET_ENDINGS.iter().any(|ending| lower.ends_with(ending)) {
        return true;
    }
    SECRET_NAMES.iter().filter_map(|secret| lower.strip_suffix(secret)).any(|before| {
        // Matches whole words only: `monkey` does not end in the word `key`.
        let (head, tail) = name.split_at(before.len());
        head.is_empty()
            || head.ends_with(['-', '_', '.'])
            || (head.ends_with(|c: char| c.is_ascii_lowercase()) && tail.starts_with(|c: char| c.is_ascii_uppercase()))
    })
}

/// Redacts text that looks like a credential, removes the query and user part of URLs, and cuts the text at [`MAX_ERROR_BYTES`].
pub fn error_text(raw: &str) -> String {
    error_text_with_names(raw, &[])
}

/// The shortest word that can look like a key, in bytes.
const SHORTEST_NAME: usize = 12;

/// Does the same as [`error_text`], but leaves known names unchanged, such as the model in the request.
pub fn error_text_with_names(raw: &str, names: &[&str]) -> String {
    let is_apart = |rest: &str, at_end: bool| {
        let neighbour = if at_end { rest.chars().next_back() } else { rest.chars().next() };
        neighbour.is_none_or(|c| !c.is_ascii_alphanumeric()) && !looks_like_key(rest)
    };
    // A known name inside a longer word of letters and digits may be part of a key.
    let is_known = |word: &str| {
        let long_names = names.iter().filter(|name| name.len() >= SHORTEST_NAME);
        long_names.filter_map(|name| word.split_once(name)).any(|(before, after)| is_apart(before, true) && is_apart(after, false))
    };
    let raw = redact_named_values(&raw.split_whitespace().collect::<Vec<_>>().join(" "));
    let mut words: Vec<String> = Vec::new();
    let mut secret_follows = false;
    for word in raw.split(' ') {
        let masked = if secret_follows || looks_like_key(word) && !is_known(word) { REDACTED.to_owned() } else { strip_url(word) };
        secret_follows = word.to_ascii_lowercase().ends_with("bearer");
        words.push(masked);
    }
    let joined = words.join(" ");
    let cut = text::prefix(&joined, MAX_ERROR_BYTES);
    text::storable(cut).into_owned()
}

/// Redacts the values in `token=...`, `"password": "..."`, `--api-key ...` and similar text.
fn redact_named_values(text: &str) -> String {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let mut masked = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(is_of_name) {
        let (before, from_name) = rest.split_at(start);
        let (name, after) = from_name.split_at(from_name.find(|c| !is_of_name(c)).unwrap_or(from_name.len()));
        masked.push_str(before);
        masked.push_str(name);
        rest = after;
        if let Some((separator, tail)) = split_value(name, after) {
            masked.push_str(separator);
            masked.push_str(REDACTED);
            rest = tail;
        }
    }
    masked.push_str(rest);
    masked
}

/// Splits the text after a secret's name into the separator with the value, and the rest. `None` if no secret follows.
fn split_value<'a>(name: &str, after: &'a str) -> Option<(&'a str, &'a str)> {
    let is_flag = name.starts_with('-');
    if !names_secret(name.trim_start_matches('-')) {
        return None;
    }
    let is_between = |c: char| matches!(c, '"' | '\'' | '`' | '\\' | '=' | ':' | ',' | ' ');
    let (separator, from_value) = after.split_at(after.find(|c| !is_between(c)).unwrap_or(after.len()));
    let assigned = separator.contains(['=', ':']);
    if !(assigned || separator == " " || (is_flag && !separator.is_empty())) {
        return None;
    }
    let end = match separator.chars().last() {
        Some(quote @ ('"' | '\'' | '`')) => from_value.find(quote),
        Some(_) | None => {
            let ends = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '`' | ',' | ';' | ')' | ']' | '}' | '&' | '<' | '>');
            // The scheme of `Authorization: Bearer ...` is no part of the secret.
            let scheme = ["bearer ", "basic "]
                .into_iter()
                .find(|scheme| from_value.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme)));
            let skipped = scheme.map_or(0, str::len);
            from_value.get(skipped..).and_then(|value| value.find(ends)).map(|end| end + skipped)
        }
    };
    let (value, tail) = from_value.split_at(end.unwrap_or(from_value.len()));
    let is_word = value.bytes().all(|b| b.is_ascii_lowercase() || matches!(b, b'_' | b'-'));
    let says_secret = || SECRET_ENDINGS.iter().any(|ending| name.to_ascii_lowercase().ends_with(ending));
    let is_secret = match (assigned, is_flag) {
        (_, _) if value.is_empty() || REDACTED.starts_with(value) => false,
        // `invalid token: signature mismatch` is a sentence, not a name and a value.
        (true, false) if separator == ": " => !is_word || says_secret(),
        (true, _) => true,
        (false, true) => !value.starts_with('-'),
        // Redacts `the key 12ab34cd is unknown`, but not `the key is unknown`.
        (false, false) => {
            value.len() >= 6 && value.bytes().any(|b| b.is_ascii_digit()) && value.bytes().any(|b| b.is_ascii_alphabetic())
        }
    };
    is_secret.then_some((separator, tail))
}

fn looks_like_key(word: &str) -> bool {
    let core = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    let known_prefix =
        ["sk-", "sk_", "cap_", "key-", "xai-", "gsk_", "AIza", "ghp_", "eyJ"].iter().any(|prefix| core.starts_with(prefix));
    let token_like = core.len() >= 32
        && core.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '+' | '/' | '='))
        && core.chars().any(|c| c.is_ascii_digit())
        && core.chars().any(|c| c.is_ascii_alphabetic());
    (known_prefix && core.len() >= 12) || (token_like && !is_name_or_path(core))
}

/// Returns whether a long word consists of readable pieces, like names of models and paths of fields: `llama-3.3-70b-instruct-fp8`,
/// `messages.10.content.0.tool_use`. The pieces of a random key mix cases or digits.
fn is_name_or_path(word: &str) -> bool {
    let mut pieces = word.split(['.', '/', '-', '_']).filter(|piece| !piece.is_empty());
    let has_word = pieces.clone().any(|piece| piece.len() >= 3 && piece.chars().all(|c| c.is_ascii_alphabetic()));
    has_word && pieces.all(is_readable_piece)
}

/// Returns whether a piece is a number, words in camel case, or a short label such as `70b`, `fp8` or `gpt4`.
fn is_readable_piece(piece: &str) -> bool {
    let digits = piece.chars().filter(char::is_ascii_digit).count();
    if digits == piece.len() {
        return digits <= 8;
    }
    if digits > 0 {
        let changes = piece.as_bytes().windows(2).filter(|pair| pair[0].is_ascii_digit() != pair[1].is_ascii_digit()).count();
        return piece.len() <= 4 || (changes == 1 && piece.len() <= 10 && digits <= 4);
    }
    if !piece.chars().all(|c| c.is_ascii_alphabetic()) || piece.len() > 24 {
        return false;
    }
    if piece.chars().all(|c| c.is_ascii_uppercase()) {
        return true;
    }
    // In a camel case name, each capital is followed by a lower-case letter.
    let starts = |at: usize, c: char| at == 0 || c.is_ascii_uppercase();
    let follows = |at: usize| piece[at + 1..].starts_with(|c: char| c.is_ascii_lowercase());
    piece.char_indices().all(|(at, c)| !starts(at, c) || follows(at))
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

    #[test]
    fn value_named_as_secret_is_redacted() {
        for (raw, shown) in [
            ("token=hunter2-secret-value args=['--api-key','SECRETARG123']", "token=[redacted] args=['--api-key','[redacted]']"),
            ("--api-key SECRETARG123 --verbose", "--api-key [redacted] --verbose"),
            ("--token --verbose", "--token --verbose"),
            (r#"{"password": "my own words", "user": "ada"}"#, r#"{"password": "[redacted]", "user": "ada"}"#),
            ("DB_PASSWORD: hunter, next", "DB_PASSWORD: [redacted], next"),
            ("Authorization: Basic YWRhOmFkYQ== sent", "Authorization: [redacted] sent"),
            ("authorization=Bearer abc;", "authorization=[redacted];"),
            ("apiKey:abc xApiToken=d", "apiKey:[redacted] xApiToken=[redacted]"),
            ("the key 12ab34cd is unknown", "the key [redacted] is unknown"),
            ("GET /v1?x=1&key=a&y=2", "GET /v1?x=1&key=[redacted]&y=2"),
        ] {
            assert_eq!(error_text(raw), shown, "{raw}");
        }
        for harmless in [
            "the key is unknown",
            "invalid token: signature mismatch",
            "Unexpected token: }",
            "max_tokens=4096 monkey=banana tokens: 12",
            "wrong key [redacted] or token=[redacted]",
            "API key 401",
        ] {
            assert_eq!(error_text(harmless), harmless);
        }
    }

    #[test]
    fn names_of_a_request_are_shown() {
        let model = "prod-9f86d081884c7d659a2feaa0c55ad015";
        let words = format!("model `{model}` not found for sk-1234567890abcdef");
        assert_eq!(error_text_with_names(&words, &["", model]), format!("model `{model}` not found for [redacted]"));
        // A known name beside or inside a secret does not reveal the secret.
        let joined = format!("{model}/9f86d081884c7d659a2feaa0c55ad0159f86");
        assert_eq!(error_text_with_names(&joined, &[model]), REDACTED);
        let inside = "9f86d081884c7d659a2feaa0o3c55ad0159f86";
        assert_eq!(error_text_with_names(inside, &["o3", "7d659a2feaa0"]), REDACTED);
    }

    #[test]
    fn names_of_models_and_paths_of_fields_are_shown() {
        for shown in [
            "model meta-llama/llama-3.3-70b-instruct-fp8-turbo not found",
            "The model `accounts/fireworks/models/Qwen3-Coder-480B-A35B-Instruct` does not exist",
            "us.anthropic.claude-3-5-sonnet-20241022-v2 is not available in your region",
            "messages.10.content.0.tool_use.input_schema.properties: Field required",
            "generationConfig.responseSchema.properties.0.anyOf.1.additionalProperties is unknown",
            "tools.3.custom.input_schema.properties.issue_number2: invalid",
        ] {
            assert_eq!(error_text(shown), shown);
        }
        for secret in [
            "550e8400-e29b-41d4-a716-446655440000",
            "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY1",
            "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b",
            "prod-9f86d081884c7d659a2feaa0c55ad015",
            "MTIzNDU2Nzg5MGFiY2RlZmdoaWprbG1ub3BxcnN0",
            "a1B2c3D4-e5F6g7H8-i9J0k1L2-m3N4o5P6",
        ] {
            assert_eq!(error_text(&format!("denied for {secret} here")), "denied for [redacted] here", "{secret}");
        }
    }
}
