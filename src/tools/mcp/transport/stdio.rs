//! Messages over the standard streams of a child process, one per line.
//!
//! The library's transport silently skips everything that it cannot read. Servers print banners and logs between messages, cut their
//! answers, or send endless lines. Here such noise is counted, and too much of it ends the connection with a reason. An unreadable
//! answer with a readable id ends its call.

use std::io;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use rmcp::RoleClient;
use rmcp::model::{ErrorData, JsonRpcMessage, RequestId};
use rmcp::service::{
    ClientInitializeError, ClientLifecycleMode, RunningService, RxJsonRpcMessage, TxJsonRpcMessage,
    serve_client_with_lifecycle_and_ct,
};
use rmcp::transport::Transport;
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio_util::codec::{AnyDelimiterCodec, AnyDelimiterCodecError, FramedRead};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::support::{redact, text};
use crate::tools::mcp::config::masks::{LONGEST_PIECE, Masks};
use crate::tools::mcp::transport::attentive::Attentive;
use crate::tools::mcp::transport::handler::Handler;

/// The longest line, in bytes.
const MAX_LINE: usize = 32 * 1024 * 1024;
/// The most lines of noise before the connection ends.
const MAX_NOISE_LINES: usize = 1_000;
const MAX_NOISE_BYTES: usize = 1024 * 1024;
const LOGGED_NOISE_LINES: usize = 20;
/// How much of a line is logged, in characters.
const LOGGED_CHARS: usize = 200;
/// How much of a line is searched for secrets before that, in bytes.
const LOOKED_THROUGH: usize = 4 * LONGEST_PIECE;
/// How long a server may take to read one message.
const WRITE_LIMIT: Duration = Duration::from_secs(10);
/// How long the transport may take to notice by itself that its process has exited.
pub const NOTICE_LIMIT: Duration = Duration::from_millis(300);

/// Why this side has ended a connection.
#[derive(Clone, Default)]
pub struct Ending {
    reason: Arc<Mutex<Option<String>>>,
    over: CancellationToken,
}

impl Ending {
    pub fn reason(&self) -> Option<String> {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends the connection. The first reason counts.
    pub fn end(&self, reason: String) {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(reason);
        self.over.cancel();
    }
}

/// A message that was written in part, or perhaps completely.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct CutShort(io::Error);

/// Whether the server may have read a message despite the write error.
pub fn is_cut_short(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<CutShort>())
}

pub struct StdioTransport<R, W> {
    lines: FramedRead<R, AnyDelimiterCodec>,
    writer: Arc<tokio::sync::Mutex<Option<W>>>,
    noise: Noise,
    pub ending: Ending,
}

impl<R: AsyncRead, W> StdioTransport<R, W> {
    pub fn new(output: R, input: W, server: &str, masks: &Masks) -> Self {
        let codec = AnyDelimiterCodec::new_with_max_length(b"\n".to_vec(), b"\n".to_vec(), MAX_LINE);
        Self {
            lines: FramedRead::new(output, codec),
            writer: Arc::new(tokio::sync::Mutex::new(Some(input))),
            noise: Noise::new(server, masks),
            ending: Ending::default(),
        }
    }
}

impl<R, W> StdioTransport<R, W>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    /// Greets the server. The connection ends after `exit`: a child of the process may hold its output open, so that the stream does not
    /// end by itself.
    pub async fn greet(
        self,
        handler: Handler,
        lifecycle: ClientLifecycleMode,
        exit: CancellationToken,
        tasks: &TaskTracker,
    ) -> Result<RunningService<RoleClient, Handler>, Box<ClientInitializeError>> {
        let token = CancellationToken::new();
        let transport = Attentive::new(self, &handler.server, handler.heard.clone());
        let greeted = serve_client_with_lifecycle_and_ct(handler, transport, lifecycle, token.clone());
        let greeted = tokio::select! {
            greeted = greeted => greeted,
            () = after_exit(exit.clone()) => Err(ClientInitializeError::ConnectionClosed("its process has exited".to_owned())),
        };
        let service = greeted.map_err(Box::new)?;
        tasks.spawn(async move {
            after_exit(exit).await;
            token.cancel();
        });
        Ok(service)
    }
}

async fn after_exit(exit: CancellationToken) {
    exit.cancelled().await;
    tokio::time::sleep(NOTICE_LIMIT).await;
}

impl<R, W> Transport<RoleClient> for StdioTransport<R, W>
where
    R: AsyncRead + Send + Unpin,
    W: AsyncWrite + Send + Unpin + 'static,
{
    type Error = io::Error;

    fn send(&mut self, message: TxJsonRpcMessage<RoleClient>) -> impl Future<Output = Result<(), io::Error>> + Send + 'static {
        let (writer, ending) = (self.writer.clone(), self.ending.clone());
        async move {
            let mut line = serde_json::to_vec(&message)?;
            line.push(b'\n');
            let mut slot = writer.lock().await;
            let Some(input) = slot.as_mut() else {
                return Err(io::Error::new(io::ErrorKind::NotConnected, "the connection is closed"));
            };
            let mut begun = 0;
            let written = tokio::time::timeout(WRITE_LIMIT, async {
                while begun < line.len() {
                    match input.write(&line[begun..]).await? {
                        0 => return Err(io::ErrorKind::WriteZero.into()),
                        some => begun += some,
                    }
                }
                input.flush().await
            });
            let written = match written.await {
                Ok(written) => written,
                Err(_) => {
                    let reason = format!("the server has not read its input for {WRITE_LIMIT:?}");
                    ending.end(reason.clone());
                    Err(io::Error::new(io::ErrorKind::TimedOut, reason))
                }
            };
            written.map_err(|error| {
                // A part of the line may be written, and the next message would be read as its rest.
                slot.take();
                if begun == 0 { error } else { io::Error::new(error.kind(), CutShort(error)) }
            })
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        let over = self.ending.over.clone();
        loop {
            let line = tokio::select! {
                biased;
                () = over.cancelled() => return None,
                line = self.lines.next() => line?,
            };
            let line = match line {
                Ok(line) => line,
                Err(AnyDelimiterCodecError::MaxChunkLengthExceeded) => {
                    self.ending.end(format!("the server sent a line of more than {MAX_LINE} bytes"));
                    return None;
                }
                Err(AnyDelimiterCodecError::Io(_)) => return None,
            };
            if let ControlFlow::Break(message) = self.noise.sift(&line, &self.ending) {
                return message;
            }
        }
    }

    async fn close(&mut self) -> Result<(), io::Error> {
        drop(self.writer.lock().await.take());
        Ok(())
    }
}

enum Line {
    /// A message, or the error that replaces an unreadable answer.
    Message(Box<RxJsonRpcMessage<RoleClient>>),
    /// A blank line, or a notification of an unknown kind.
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

/// Counts lines that are no messages.
pub struct Noise {
    server: String,
    masks: Masks,
    lines: usize,
    bytes: usize,
}

impl Noise {
    pub fn new(server: &str, masks: &Masks) -> Self {
        Self { server: server.to_owned(), masks: masks.clone(), lines: 0, bytes: 0 }
    }

    /// Breaks with a message, or with `None` after too much noise, which ends the connection.
    pub fn sift(&mut self, line: &[u8], ending: &Ending) -> ControlFlow<Option<RxJsonRpcMessage<RoleClient>>> {
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

    /// Counts a line. The error says why the connection must end.
    fn add(&mut self, line: &[u8]) -> Result<(), String> {
        self.lines += 1;
        self.bytes += line.len();
        if self.lines <= LOGGED_NOISE_LINES {
            let (shown, count) = (beginning(line, &self.masks), self.lines);
            tracing::warn!(mcp.server = self.server, count, line = shown, "MCP server wrote a line that is no message");
        }
        if self.lines > MAX_NOISE_LINES || self.bytes > MAX_NOISE_BYTES {
            return Err(format!(
                "the server wrote {} lines and {} bytes that are no messages where only messages belong",
                self.lines, self.bytes
            ));
        }
        Ok(())
    }
}

/// Returns the beginning of a line for the log. Secrets are redacted before the cut, because a part of one would not be found.
fn beginning(line: &[u8], masks: &Masks) -> String {
    let begun = line.get(..LOOKED_THROUGH).unwrap_or(line);
    let masked = masks.hide(&String::from_utf8_lossy(begun));
    let sure = if begun.len() == line.len() { masked.len() } else { masked.len().saturating_sub(LONGEST_PIECE) };
    text::prefix_chars(&redact::error_text(text::prefix(&masked, sure)), LOGGED_CHARS).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn received(input: &[u8]) -> (usize, Option<String>) {
        let mut transport = StdioTransport::new(input, tokio::io::sink(), "test", &Masks::default());
        let mut messages = 0;
        while transport.receive().await.is_some() {
            messages += 1;
        }
        (messages, transport.ending.reason())
    }

    const PONG: &str = "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n";

    /// M-01.
    #[tokio::test]
    async fn noise_is_borne_and_counted() {
        let some = format!("Starting...\n\n\u{1b}[32mok\u{1b}[0m\n\u{feff}{PONG}").repeat(400);
        assert_eq!(received(some.as_bytes()).await, (400, None));
        let (messages, reason) = received(format!("{}{PONG}", "debug\n".repeat(1_001)).as_bytes()).await;
        assert!(messages == 0 && reason.unwrap().contains("1001 lines"));
        let (messages, reason) = received(format!("{PONG}{}\n{PONG}", "x".repeat(1024 * 1024 + 1)).as_bytes()).await;
        assert!(messages == 1 && reason.unwrap().contains("1 lines and 1048577 bytes"));
    }

    #[test]
    fn a_secret_across_the_end_of_what_is_logged_is_masked() {
        let mut masks = Masks::default();
        masks.add("API_TOKEN", "token-canary");
        for before in LOGGED_CHARS - 12..=LOGGED_CHARS {
            let shown = beginning(format!("{}token-canary and more", ".".repeat(before)).as_bytes(), &masks);
            assert!(shown.chars().count() <= LOGGED_CHARS && !shown.contains("tok"), "{shown}");
        }
        // White space is not shown, and so what comes late in a line may be what is shown first.
        for before in LOOKED_THROUGH - 12..=LOOKED_THROUGH {
            let shown = beginning(format!("{}token-canary{}", " ".repeat(before), "x".repeat(20)).as_bytes(), &masks);
            assert!(!shown.contains("tok"), "{shown}");
        }
        let long = format!("It begins {}", "so ".repeat(LOOKED_THROUGH));
        assert!(beginning(long.as_bytes(), &masks).starts_with("It begins so so"));
        assert_eq!(beginning(b"token-canary\xff", &masks), "[redacted]\u{fffd}");
    }

    /// M-08.
    #[tokio::test]
    async fn an_endless_line_ends_the_connection() {
        let (messages, reason) = received(&vec![b'{'; MAX_LINE + 1]).await;
        assert!(messages == 0 && reason.unwrap().contains("more than 33554432 bytes"));
    }

    /// M-29.
    #[test]
    fn what_cannot_be_read_is_noise_or_ends_its_call() {
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

    /// Floats are text in JSON that keeps them as written; fields of the library are floats nevertheless.
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

    /// M-07.
    #[tokio::test(start_paused = true)]
    async fn a_server_that_does_not_read_is_given_up_while_it_is_still_heard() {
        let (mut theirs, ours) = tokio::io::duplex(64);
        let (output, input) = tokio::io::split(ours);
        let mut transport = StdioTransport::new(output, input, "test", &Masks::default());
        let big: TxJsonRpcMessage<RoleClient> =
            JsonRpcMessage::error(ErrorData::internal_error("x".repeat(1_000), None), Some(RequestId::Number(1)));
        let write = transport.send(big.clone());
        theirs.write_all(PONG.as_bytes()).await.unwrap();
        let (sent, heard) = tokio::join!(write, transport.receive());
        assert!(heard.is_some());
        let cut = sent.unwrap_err();
        assert!(cut.kind() == io::ErrorKind::TimedOut && is_cut_short(&cut), "the first 64 bytes were written: {cut:?}");
        let unsent = transport.send(big).await.unwrap_err();
        assert!(unsent.kind() == io::ErrorKind::NotConnected && !is_cut_short(&unsent), "{unsent:?}");
        assert!(transport.receive().await.is_none());
        assert!(transport.ending.reason().unwrap().contains("has not read its input"));
    }
}
