//! The port to the process that reads files, and the bounds of what it is given. Both those who upload and the worker use it.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use crate::domain::file::{FileFacts, FileLimits};

/// Finds out what a file is, and the text in it.
#[async_trait]
pub trait FileReader: Send + Sync {
    /// Returns what the bytes are, and at most `most_chars` of their text.
    ///
    /// # Errors
    /// If they are not accepted, or the reader cannot tell.
    async fn read(&self, bytes: Bytes, name: &str, most_chars: usize) -> Result<FileFacts, Unreadable>;
}

/// Why nothing is known of a file.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// It is not accepted: why, in words for its sender.
    #[error("{0}")]
    Refused(String),
    /// The server's fault.
    #[error("the process that reads files cannot be started")]
    Failed(#[source] std::io::Error),
}

/// The reader of files and their bounds.
#[derive(Clone)]
pub struct FileDeps {
    /// The reader.
    pub reader: Arc<dyn FileReader>,
    /// Bounds.
    pub limits: FileLimits,
}

/// Accepts no file.
struct NoReader;

#[async_trait]
impl FileReader for NoReader {
    async fn read(&self, _bytes: Bytes, _name: &str, _most_chars: usize) -> Result<FileFacts, Unreadable> {
        Err(Unreadable::Refused("this server accepts no files".to_owned()))
    }
}

impl Default for FileDeps {
    fn default() -> Self {
        Self { reader: Arc::new(NoReader), limits: FileLimits::default() }
    }
}
