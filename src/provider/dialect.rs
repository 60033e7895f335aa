//! The trait of a dialect: where a request goes, how it is written, and which decoder reads the answer.
//!
//! How an answer is read says `StreamAdapter` in `stream/adapter.rs`.

use reqwest::Url;
use reqwest::header::HeaderMap;
use secrecy::SecretString;

use super::frames::Framing;
use super::model_client::SetupError;
use super::stream::{AnswerDecoder, StreamAdapter};
use crate::domain::model::{ModelError, ModelRequest};

/// One wire at one endpoint.
pub(super) trait Dialect: Send + Sync + 'static {
    /// Reads the answers.
    type Adapter: StreamAdapter;

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

    /// Returns a decoder of the answer to a request, whose body has `request_bytes` bytes.
    fn decoder(&self, request: &ModelRequest, request_bytes: usize) -> AnswerDecoder<Self::Adapter>;
}
