//! Finds secrets in the arguments of a command. Encryption at rest and redaction share the result.

use std::ops::Range;

use crate::support::redact::names_secret;
use crate::tools::mcp::config::redaction::is_harmless;

/// Names of arguments whose values are secrets, also as the last word of a longer name. Elsewhere these are ordinary words. Their
/// values may be harmless, as in `--auth none`.
const FLAGS: [&str; 7] = ["auth", "pass", "pwd", "pat", "cookie", "credential", "credentials"];

#[derive(Debug, PartialEq)]
pub struct SecretArgument<'a> {
    pub name: &'a str,
    pub at: Range<usize>,
}

/// Finds the secrets in each argument, from left to right: `--token VALUE`, `--token=VALUE`, `--env=TOKEN=VALUE`, `-e TOKEN=VALUE`,
/// `-H "Authorization: VALUE"`, the password of `scheme://user:VALUE@host`, and `?token=VALUE` in an address.
pub fn secrets<'a>(args: &[&'a str]) -> Vec<Vec<SecretArgument<'a>>> {
    let mut flag: Option<&str> = None;
    let each = args.iter().map(|arg| {
        let follows = flag.take().filter(|name| is_secret(name, arg) && !arg.starts_with('-') && !arg.is_empty());
        flag = arg.starts_with('-').then(|| name_of(arg));
        let found = follows.map(|name| SecretArgument { name, at: 0..arg.len() }).or_else(|| assigned_secret(arg));
        found.map_or_else(|| in_address(arg), |found| vec![found])
    });
    each.collect()
}

/// Returns the value of the first secret name in `A=B=VALUE`.
fn assigned_secret(text: &str) -> Option<SecretArgument<'_>> {
    let mut start = 0;
    while let Some(length) = text[start..].find(['=', ':', '?', '/', '&']) {
        let end = start + length;
        // A URL follows, which has its own rules.
        if !matches!(text.as_bytes()[end], b'=' | b':') || text[end..].starts_with("://") {
            return None;
        }
        let name = name_of(&text[start..end]);
        let value = &text[end + 1..];
        let gap = value.len() - value.trim_start().len();
        if is_secret(name, value.trim()) && !value.trim().is_empty() {
            let from = end + 1 + gap;
            return Some(SecretArgument { name, at: from..from + value.trim().len() });
        }
        start = end + 1;
    }
    None
}

/// Returns the password of a URL, and its parameters with names of secrets.
pub fn in_address(text: &str) -> Vec<SecretArgument<'_>> {
    let Some(scheme) = text.find("://") else { return Vec::new() };
    let rest = scheme + 3;
    let authority = rest..text[rest..].find(['/', '?', '#']).map_or(text.len(), |length| rest + length);
    let mut found = Vec::new();
    if let Some(at) = text[authority.clone()].rfind('@').map(|at| rest + at)
        && let Some(colon) = text[rest..at].find(':').map(|colon| rest + colon)
        && colon + 1 < at
    {
        found.push(SecretArgument { name: "password", at: colon + 1..at });
    }
    let Some(question) = text[authority.end..].find('?').map(|at| authority.end + at) else { return found };
    let mut start = question + 1;
    for pair in text[start..].split('&') {
        if let Some((name, value)) = pair.split_once('=')
            && is_secret(name, value)
            && !value.is_empty()
        {
            let from = start + name.len() + 1;
            found.push(SecretArgument { name, at: from..from + value.len() });
        }
        start += pair.len() + 1;
    }
    found
}

fn is_secret(name: &str, value: &str) -> bool {
    let last = name.rsplit(['-', '_', '.']).next().unwrap_or_default().to_ascii_lowercase();
    names_secret(name) || (FLAGS.contains(&last.as_str()) && !is_harmless(value))
}

fn name_of(text: &str) -> &str {
    text.trim().trim_start_matches('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(args: &[&str]) -> Vec<String> {
        let hide = |(arg, found): (&&str, Vec<SecretArgument<'_>>)| {
            let mut arg = (*arg).to_owned();
            for SecretArgument { name, at } in found.into_iter().rev() {
                arg.replace_range(at, &format!("<{name}>"));
            }
            arg
        };
        args.iter().zip(secrets(args)).map(hide).collect()
    }

    #[test]
    fn secrets_are_found_wherever_they_stand() {
        for (args, expected) in [
            (vec!["--api-key", "K", "--root", "/srv"], vec!["--api-key", "<api-key>", "--root", "/srv"]),
            (vec!["--auth", "K", "--auth"], vec!["--auth", "<auth>", "--auth"]),
            (vec!["--db-pass=K", "MYSQL_PWD=K"], vec!["--db-pass=<db-pass>", "MYSQL_PWD=<MYSQL_PWD>"]),
            (vec!["--token", "--verbose", "x"], vec!["--token", "--verbose", "x"]),
            (
                vec!["--token=K", "--env=API_KEY=K", "-eTOKEN=K"],
                vec!["--token=<token>", "--env=API_KEY=<API_KEY>", "-eTOKEN=<eTOKEN>"],
            ),
            (vec!["-H", "Authorization: Bearer K"], vec!["-H", "Authorization: <Authorization>"]),
            (vec!["--header=Authorization: Bearer K"], vec!["--header=Authorization: <Authorization>"]),
            (vec!["postgresql://ada:K@host/db"], vec!["postgresql://ada:<password>@host/db"]),
            (vec!["--db=redis://:K:@K@host:1"], vec!["--db=redis://:<password>@host:1"]),
            (vec!["https://h/p?x=1&api_key=K&y=2"], vec!["https://h/p?x=1&api_key=<api_key>&y=2"]),
        ] {
            assert_eq!(shown(&args), expected);
        }
    }

    #[test]
    fn plain_argument_is_not_redacted() {
        let plain = [
            "http://localhost:8080/a:b",
            "C:\\tools",
            "--mode=fast",
            "host:8080",
            "-y",
            "",
            "=",
            "ada@host",
            "ssh://ada@host",
            "monkey=1",
        ];
        assert_eq!(shown(&plain), plain);
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read(args in proptest::collection::vec(".{0,20}|[-a-z=:/?@&]{0,16}", 0..4)) {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            for (arg, found) in args.iter().zip(secrets(&args)) {
                proptest::prop_assert!(found.iter().all(|found| arg.get(found.at.clone()).is_some()));
            }
        }
    }
}
