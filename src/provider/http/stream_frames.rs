//! The frames of a streamed answer, before a dialect decodes them.

use std::pin::Pin;

use bytes::Bytes;
use futures_util::Stream;

use crate::domain::model::ModelError;

/// The bytes of an answer. Every failure is a typed [`ModelError`].
pub(in crate::provider) type ByteStream = Pin<Box<dyn Stream<Item = Result<Bytes, ModelError>> + Send>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::provider) enum Framing {
    /// Server-sent events.
    Events,
    /// One JSON document per line.
    Lines,
}

/// One frame of a streamed answer.
pub(in crate::provider) struct Frame {
    /// The type of a server-sent event, if it has one.
    pub(in crate::provider) event: Option<String>,
    pub(in crate::provider) data: String,
}

pub(in crate::provider) type Frames = Pin<Box<dyn Stream<Item = Result<Frame, ModelError>> + Send>>;
