//! The traits of a dialect: where a request goes, how it is written, and how the answer is read.

use std::collections::VecDeque;

use reqwest::Url;
use reqwest::header::HeaderMap;
use secrecy::SecretString;

use super::frames::Framing;
use super::model_client::SetupError;
use crate::domain::model::{ModelError, ModelEvent, ModelRequest};

/// One wire at one endpoint.
pub(super) trait Dialect: Send + Sync + 'static {
    /// Reads the answers.
    type Decoder: Decode;

    /// How a streamed answer is cut into frames.
    const FRAMING: Framing;

    /// The headers of every request, with the key in its place. Their values are marked as secret by the caller.
    ///
    /// # Errors
    /// If the key holds a character that no header can carry.
    fn headers(&self, key: Option<&SecretString>) -> Result<HeaderMap, SetupError>;

    /// More headers of one request, which are no secrets. Values that are configured stand before them.
    fn request_headers(&self, _request: &ModelRequest) -> HeaderMap {
        HeaderMap::new()
    }

    /// Where a request for a model goes. Never holds a key.
    ///
    /// # Errors
    /// `InvalidRequest` if the model's name cannot be part of a URL.
    fn url(&self, model: &str, streaming: bool) -> Result<Url, ModelError>;

    /// Returns where the provider lists its models, all on one page. Never holds a key.
    fn model_list(&self) -> Url;

    /// The body of a request.
    ///
    /// # Errors
    /// `InvalidRequest` if the request holds something that this wire cannot carry and that must not be left out.
    fn body(&self, request: &ModelRequest, streaming: bool) -> Result<Vec<u8>, ModelError>;

    /// Reads the answer to a request, whose body has `request_bytes` bytes.
    fn decoder(&self, request: &ModelRequest, request_bytes: usize) -> Self::Decoder;
}

/// How far an answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// The model speaks.
    Open,
    /// The model has said why it stopped, in its first words and with figures; some servers do so with all words.
    MayGoOn,
    /// The model has said why it stopped; figures and an end mark may follow.
    Closing,
    /// The end mark came.
    Whole,
}

/// The state of one answer.
pub(super) trait Decode: Send + Unpin + 'static {
    /// Takes in one frame of a streamed answer.
    ///
    /// # Errors
    /// The failure that the frame reports or is. Nothing more is read then.
    fn frame(&mut self, event: Option<&str>, data: &str, out: &mut VecDeque<ModelEvent>) -> Result<Progress, ModelError>;

    /// Takes in a whole answer that was not streamed, and judges it.
    ///
    /// # Errors
    /// If it is no whole answer.
    fn document(self, document: &[u8], out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError>;

    /// No more comes: judges whether that was a whole answer, and ends it with its usage and [`ModelEvent::Finished`].
    ///
    /// # Errors
    /// If it was none.
    fn close(&mut self, out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError>;
}
