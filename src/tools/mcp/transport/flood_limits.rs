//! Limits against servers that flood this process: lines that are not messages, and unrequested messages.

use std::ops::ControlFlow;
use std::time::Duration;

use rmcp::RoleClient;
use rmcp::model::{ErrorData, JsonRpcMessage, RequestId};
use rmcp::service::RxJsonRpcMessage;
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::time::Instant;

use crate::support::{redact, text};
use crate::tools::mcp::config::redaction::{CUT_MARGIN, SecretRedactor};
use crate::tools::mcp::transport::ending::Ending;

/// The most lines without a message before the connection ends.
const MAX_UNPARSED_LINES: usize = 1_000;
const MAX_UNPARSED_BYTES: usize = 1024 * 1024;
const LOGGED_NOISE_LINES: usize = 20;
/// How much of a line is logged, in characters.
const LOGGED_CHARS: usize = 200;
/// How much of a line is searched for secrets before it is cut for the log, in bytes.
const SEARCHED_BYTES: usize = 4 * CUT_MARGIN;
/// The capacity of the token bucket for notifications and requests of the server.
const BURST: f64 = 2_000.0;
const MESSAGES_PER_SECOND: f64 = 1_000.0;

enum Line {
    /// A message, or the error that replaces an unreadable answer.
    Message(Box<RxJsonRpcMessage<RoleClient>>),
    /// A blank line, or a request or notification that cannot be parsed.
    Nothing,
    Noise,
}

/// The readable part of a malformed message.
#[derive(Deserialize)]
struct Envelope {
    id: Option<RequestId>,
    method: Option<IgnoredAny>,
}

fn read(line: &[u8]) -> Line {
    let line = line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(line).trim_ascii();
    if line.is_empty() {
        return Line::Nothing;
    }
    // Other JSON values are no messages, but the library would accept some of them.
    if !line.starts_with(b"{") {
        return Line::Noise;
    }
    let error = match serde_json::from_slice(line) {
        Ok(message) => return Line::Message(Box::new(message)),
        Err(error) => error,
    };
    match serde_json::from_slice(line) {
        Ok(Envelope { id: Some(id), method: None }) => {
            let reason = format!("its answer cannot be read: {error}");
            Line::Message(Box::new(JsonRpcMessage::error(ErrorData::internal_error(reason, None), Some(id))))
        }
        Ok(Envelope { method: Some(IgnoredAny), .. }) => Line::Nothing,
        Ok(Envelope { id: None, method: None }) | Err(_) => Line::Noise,
    }
}

/// Counts lines without a message.
pub struct UnparsedOutput {
    server: String,
    redactor: SecretRedactor,
    lines: usize,
    bytes: usize,
}

impl UnparsedOutput {
    pub fn new(server: &str, redactor: &SecretRedactor) -> Self {
        Self { server: server.to_owned(), redactor: redactor.clone(), lines: 0, bytes: 0 }
    }

    /// Breaks with a message, or with `None` if too many lines have no message, which ends the connection.
    pub fn inspect_line(&mut self, line: &[u8], ending: &Ending) -> ControlFlow<Option<RxJsonRpcMessage<RoleClient>>> {
        match read(line) {
            Line::Message(message) => ControlFlow::Break(Some(*message)),
            Line::Nothing => ControlFlow::Continue(()),
            Line::Noise => match self.add(line) {
                Ok(()) => ControlFlow::Continue(()),
                Err(reason) => {
                    ending.end(reason);
                    ControlFlow::Break(None)
                }
            },
        }
    }

    /// Counts a line. The error is the reason why the connection must end.
    fn add(&mut self, line: &[u8]) -> Result<(), String> {
        self.lines += 1;
        self.bytes += line.len();
        if self.lines <= LOGGED_NOISE_LINES {
            let (line_start, count) = (beginning(line, &self.redactor), self.lines);
            tracing::warn!(mcp.server = self.server, count, line = line_start, "MCP server wrote a line that is not a message");
        }
        if self.lines > MAX_UNPARSED_LINES || self.bytes > MAX_UNPARSED_BYTES {
            return Err(format!(
                "the server wrote {} lines and {} bytes to its standard output that are not messages",
                self.lines, self.bytes
            ));
        }
        Ok(())
    }
}

/// Returns the beginning of a line for the log. Secrets are redacted before the cut, because a part of one would not be found.
fn beginning(line: &[u8], redactor: &SecretRedactor) -> String {
    let searched = line.get(..SEARCHED_BYTES).unwrap_or(line);
    let redacted_output = redactor.redact(&String::from_utf8_lossy(searched));
    let sure = if searched.len() == line.len() { redacted_output.len() } else { redacted_output.len().saturating_sub(CUT_MARGIN) };
    text::prefix_chars(&redact::error_text(text::prefix(&redacted_output, sure)), LOGGED_CHARS).to_owned()
}

/// A token bucket.
pub struct TokenBucket {
    left: f64,
    at: Instant,
}

impl TokenBucket {
    pub fn new() -> Self {
        Self { left: BURST, at: Instant::now() }
    }

    pub fn refill(&mut self, now: Instant) {
        let gained = now.duration_since(self.at).as_secs_f64() * MESSAGES_PER_SECOND;
        (self.left, self.at) = (BURST.min(self.left + gained), now);
    }

    pub fn spend(&mut self, now: Instant) {
        self.refill(now);
        self.left -= 1.0;
    }

    /// Returns when to continue if the bucket is empty. It fills for 100 ms, so that a flood does not wake a task for each message.
    pub fn exhausted_until(&self) -> Option<Instant> {
        (self.left < 1.0).then(|| self.at + Duration::from_millis(100))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_across_the_end_of_what_is_logged_is_masked() {
        let mut redactor = SecretRedactor::default();
        redactor.add("API_TOKEN", "token-canary");
        for before in LOGGED_CHARS - 12..=LOGGED_CHARS {
            let line_start = beginning(format!("{}token-canary and more", ".".repeat(before)).as_bytes(), &redactor);
            assert!(line_start.chars().count() <= LOGGED_CHARS && !line_start.contains("tok"), "{line_start}");
        }
        // White space is not logged, so late content of a line may come first.
        for before in SEARCHED_BYTES - 12..=SEARCHED_BYTES {
            let line_start = beginning(format!("{}token-canary{}", " ".repeat(before), "x".repeat(20)).as_bytes(), &redactor);
            assert!(!line_start.contains("tok"), "{line_start}");
        }
        let long = format!("It begins {}", "so ".repeat(SEARCHED_BYTES));
        assert!(beginning(long.as_bytes(), &redactor).starts_with("It begins so so"));
        assert_eq!(beginning(b"token-canary\xff", &redactor), "[redacted]\u{fffd}");
    }

    /// M-29.
    #[test]
    fn unreadable_line_is_noise_or_ends_its_call() {
        let deep = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        let answer = |result: &str| format!("{{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{result}}}");
        for (line, noise) in [
            ("[{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}]".to_owned(), true),
            ("{\"broken\": ".to_owned(), true),
            ("{\"any\": \"object\"}".to_owned(), true),
            ("5".to_owned(), true),
            ("null".to_owned(), true),
            ("\0\0".to_owned(), true),
            ("{\"method\":\"textDocument/didOpen\",\"params\":[]}".to_owned(), false),
            ("  \r".to_owned(), false),
        ] {
            match read(line.as_bytes()) {
                Line::Message(message) => assert!(!noise, "{line} is {message:?}"),
                Line::Nothing => assert!(!noise, "{line} is nothing"),
                Line::Noise => assert!(noise, "{line} is noise"),
            }
        }
        let deep = answer(&format!("{{\"content\":{}}}", deep(200)));
        let twice = "{\"jsonrpc\":\"2.0\",\"id\":7,\"id\":8,\"result\":{}}".to_owned();
        for (line, ends_call) in [(deep, true), (twice, false)] {
            match read(line.as_bytes()) {
                Line::Message(message) => {
                    assert!(
                        matches!(&*message, JsonRpcMessage::Error(error) if error.id == Some(RequestId::Number(7))),
                        "{message:?}"
                    );
                    assert!(ends_call);
                }
                Line::Nothing | Line::Noise => assert!(!ends_call),
            }
        }
        // More digits than fit into any float.
        assert!(matches!(read(answer(&format!("{{\"n\":{}}}", "9".repeat(300))).as_bytes()), Line::Message(_)));
    }

    /// `serde_json` keeps numbers as texts (`arbitrary_precision`), but fields of the library are floats.
    #[test]
    fn float_of_any_spelling_is_read_from_a_frame() {
        for (written, value) in [("0.5", 0.5), ("0.50", 0.5), ("5E-1", 0.5), ("1e0", 1.0), ("7", 7.0)] {
            let params = format!(r#"{{"progressToken":1,"progress":{written},"total":{written}}}"#);
            let line = format!(r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{params}}}"#);
            let Line::Message(message) = read(line.as_bytes()) else { panic!("{line}") };
            let JsonRpcMessage::Notification(news) = *message else { panic!("{line}") };
            let rmcp::model::ServerNotification::ProgressNotification(progress) = news.notification else { panic!("{line}") };
            assert_eq!((progress.params.progress, progress.params.total), (value, Some(value)), "{line}");

            let block = format!(r#"{{"type":"text","text":"x","annotations":{{"priority":{written}}}}}"#);
            let kept = r#"{"z":20000000000000000001,"a":1.10}"#;
            let result = format!(r#"{{"content":[{block}],"structuredContent":{kept}}}"#);
            let line = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#);
            let Line::Message(message) = read(line.as_bytes()) else { panic!("{line}") };
            let JsonRpcMessage::Response(response) = *message else { panic!("{line}") };
            let rmcp::model::ServerResult::CallToolResult(result) = response.result else { panic!("{line}") };
            assert_eq!(result.structured_content.unwrap().to_string(), kept);
            assert!(serde_json::to_value(&result.content).unwrap()[0]["annotations"]["priority"].as_f64() == Some(value), "{line}");
        }
    }

    /// M-28.
    #[tokio::test(start_paused = true)]
    async fn messages_are_read_at_a_limited_rate() {
        let mut messages = TokenBucket::new();
        let began = Instant::now();
        for _ in 0..12_000 {
            if let Some(until) = messages.exhausted_until() {
                tokio::time::sleep_until(until).await;
                messages.refill(Instant::now());
            }
            messages.spend(Instant::now());
        }
        let took = began.elapsed().as_secs_f64();
        assert!((9.5..10.5).contains(&took), "{took}");
    }
}
