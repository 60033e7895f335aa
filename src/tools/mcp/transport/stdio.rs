//! Messages over the standard streams of a child process, one per line.
//!
//! The library's transport silently skips unreadable lines. Servers print banners and logs between messages, cut their answers, or send
//! endless lines. `flood_limits` counts such lines, and too many of them end the connection with a reason. An unreadable answer with a
//! readable id ends its call.

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use rmcp::RoleClient;
use rmcp::service::{
    ClientInitializeError, ClientLifecycleMode, RunningService, RxJsonRpcMessage, TxJsonRpcMessage,
    serve_client_with_lifecycle_and_ct,
};
use rmcp::transport::Transport;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio_util::codec::{AnyDelimiterCodec, AnyDelimiterCodecError, FramedRead};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::tools::mcp::config::redaction::SecretRedactor;
use crate::tools::mcp::transport::controlled_transport::ControlledTransport;
use crate::tools::mcp::transport::ending::Ending;
use crate::tools::mcp::transport::flood_limits::UnparsedOutput;
use crate::tools::mcp::transport::handler::Handler;

/// The longest line, in bytes.
const MAX_LINE: usize = 32 * 1024 * 1024;
/// How long a server may take to read one message.
const WRITE_LIMIT: Duration = Duration::from_secs(10);
/// How long the transport may take to notice by itself that its process has exited.
pub const NOTICE_LIMIT: Duration = Duration::from_millis(300);

/// A message that was written in part, or perhaps completely.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct PartialLineError(io::Error);

/// Returns whether the server may have read a message despite the write error.
pub fn is_cut_short(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<PartialLineError>())
}

pub struct StdioTransport<R, W> {
    lines: FramedRead<R, AnyDelimiterCodec>,
    writer: Arc<tokio::sync::Mutex<Option<W>>>,
    noise: UnparsedOutput,
    pub ending: Ending,
}

impl<R: AsyncRead, W> StdioTransport<R, W> {
    pub fn new(output: R, input: W, server: &str, redactor: &SecretRedactor) -> Self {
        let codec = AnyDelimiterCodec::new_with_max_length(b"\n".to_vec(), b"\n".to_vec(), MAX_LINE);
        Self {
            lines: FramedRead::new(output, codec),
            writer: Arc::new(tokio::sync::Mutex::new(Some(input))),
            noise: UnparsedOutput::new(server, redactor),
            ending: Ending::default(),
        }
    }
}

impl<R, W> StdioTransport<R, W>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    /// Performs the handshake. The connection ends after `exit`: a child of the process may keep its output open, so that the stream does
    /// not end by itself.
    pub async fn initialize(
        self,
        handler: Handler,
        lifecycle: ClientLifecycleMode,
        exit: CancellationToken,
        tasks: &TaskTracker,
    ) -> Result<RunningService<RoleClient, Handler>, Box<ClientInitializeError>> {
        let token = CancellationToken::new();
        let transport = ControlledTransport::new(self, &handler.server, handler.subscriptions.clone());
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
                    let reason = format!("the server did not read its input for {WRITE_LIMIT:?}");
                    ending.end(reason.clone());
                    Err(io::Error::new(io::ErrorKind::TimedOut, reason))
                }
            };
            written.map_err(|error| {
                // A part of the line may be written, and the server would read the next message as its rest.
                slot.take();
                if begun == 0 { error } else { io::Error::new(error.kind(), PartialLineError(error)) }
            })
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        let ended = self.ending.token();
        loop {
            let line = tokio::select! {
                biased;
                () = ended.cancelled() => return None,
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
            if let ControlFlow::Break(message) = self.noise.inspect_line(&line, &self.ending) {
                return message;
            }
        }
    }

    async fn close(&mut self) -> Result<(), io::Error> {
        drop(self.writer.lock().await.take());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rmcp::model::{ErrorData, JsonRpcMessage, RequestId};

    use super::*;

    async fn received(input: &[u8]) -> (usize, Option<String>) {
        let mut transport = StdioTransport::new(input, tokio::io::sink(), "test", &SecretRedactor::default());
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

    /// M-08.
    #[tokio::test]
    async fn an_endless_line_ends_the_connection() {
        let (messages, reason) = received(&vec![b'{'; MAX_LINE + 1]).await;
        assert!(messages == 0 && reason.unwrap().contains("more than 33554432 bytes"));
    }

    /// M-07.
    #[tokio::test(start_paused = true)]
    async fn server_that_does_not_read_is_closed_despite_its_output() {
        let (mut theirs, ours) = tokio::io::duplex(64);
        let (output, input) = tokio::io::split(ours);
        let mut transport = StdioTransport::new(output, input, "test", &SecretRedactor::default());
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
        assert!(transport.ending.reason().unwrap().contains("did not read its input"));
    }
}
