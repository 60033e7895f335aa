//! Standard output, where commands print their results.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Context as _;

/// Writes a text to standard output, and flushes it. A reader that has closed the pipe, such as `head`, is not an error.
pub fn print(text: &str) -> anyhow::Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error).context("standard output cannot be written"),
        Ok(()) | Err(_) => Ok(ExitCode::SUCCESS),
    }
}
