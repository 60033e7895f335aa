//! A guard on the standard output of a child: keeps noise and endless lines from doing harm.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

/// The longest line that is read, in bytes: one message.
pub const MAX_LINE: usize = 32 * 1024 * 1024;
/// The most lines that are no messages before the server counts as broken.
const MAX_NOISE_LINES: usize = 1_000;
/// How many of them are logged.
const LOGGED_NOISE_LINES: usize = 20;

/// Passes bytes through, and fails once the stream cannot be that of a sane server any more. Lines that do not begin like a
/// message are passed through, too: the transport skips them.
pub struct GuardedLines<R> {
    inner: R,
    server: String,
    line_length: usize,
    noise_lines: usize,
}

impl<R> GuardedLines<R> {
    /// Guards `inner`, the output of `server`.
    pub fn new(inner: R, server: &str) -> Self {
        Self { inner, server: server.to_owned(), line_length: 0, noise_lines: 0 }
    }

    fn inspect(&mut self, bytes: &[u8]) -> io::Result<()> {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            if self.line_length == 0 && !matches!(piece[0], b'{' | b'[' | b'\n' | b'\r' | 0xEF) {
                self.noise()?;
            }
            self.line_length += piece.len();
            if self.line_length > MAX_LINE {
                return Err(io::Error::other(format!("the server sent a line of more than {MAX_LINE} bytes")));
            }
            if piece.ends_with(b"\n") {
                self.line_length = 0;
            }
        }
        Ok(())
    }

    fn noise(&mut self) -> io::Result<()> {
        self.noise_lines += 1;
        if self.noise_lines <= LOGGED_NOISE_LINES {
            tracing::warn!(mcp.server = self.server, count = self.noise_lines, "MCP server wrote a line that is no message");
        }
        if self.noise_lines > MAX_NOISE_LINES {
            return Err(io::Error::other(format!("the server wrote more than {MAX_NOISE_LINES} lines that are no messages")));
        }
        Ok(())
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for GuardedLines<R> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(context, buffer))?;
        let inspected = self.inspect(&buffer.filled()[before..]);
        if inspected.is_err() {
            // With an error nothing may have been read.
            buffer.set_filled(before);
        }
        Poll::Ready(inspected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt as _;

    async fn read(input: &[u8]) -> io::Result<usize> {
        let mut out = Vec::new();
        GuardedLines::new(input, "test").read_to_end(&mut out).await
    }

    #[tokio::test]
    async fn noise_is_borne_and_counted() {
        let some = b"Starting...\n\n\x1b[32mok\x1b[0m\n{\"jsonrpc\":\"2.0\"}\n".repeat(400);
        assert_eq!(read(&some).await.unwrap(), some.len());
        let much = b"debug\n".repeat(1_001);
        assert!(read(&much).await.unwrap_err().to_string().contains("no messages"));
    }

    #[tokio::test]
    async fn an_endless_line_ends_the_stream() {
        let fits = vec![b'['; MAX_LINE];
        assert_eq!(read(&fits).await.unwrap(), MAX_LINE);
        let endless = vec![b'['; MAX_LINE + 1];
        assert!(read(&endless).await.unwrap_err().to_string().contains("more than"));
    }
}
