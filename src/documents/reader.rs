//! The interface to the process that reads uploaded files, and the limits for such files. The service and the worker use it.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use crate::domain::conversation::{FileFacts, FileLimits};

#[async_trait]
pub trait FileReader: Send + Sync {
    /// Returns the type of a file and at most `most_chars` of its text.
    async fn read(&self, bytes: Bytes, name: &str, most_chars: usize) -> Result<FileFacts, ReadFileError>;
}

#[derive(Debug, thiserror::Error)]
pub enum ReadFileError {
    /// The reason why the file is not accepted, as shown to its sender.
    #[error("{0}")]
    Refused(String),
    #[error("the process that reads files cannot be started")]
    Failed(#[source] std::io::Error),
}

#[derive(Clone)]
pub struct FileDeps {
    pub reader: Arc<dyn FileReader>,
    pub limits: FileLimits,
}

struct NoReader;

#[async_trait]
impl FileReader for NoReader {
    async fn read(&self, _bytes: Bytes, _name: &str, _most_chars: usize) -> Result<FileFacts, ReadFileError> {
        Err(ReadFileError::Refused("this server accepts no files".to_owned()))
    }
}

impl Default for FileDeps {
    fn default() -> Self {
        Self { reader: Arc::new(NoReader), limits: FileLimits::default() }
    }
}
