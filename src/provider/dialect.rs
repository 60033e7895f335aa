//! The trait of a dialect: the URL and the body of a request, and the decoder of its answer.
//!
//! `StreamAdapter` in `stream/adapter.rs` says how an answer is read.

use reqwest::Url;
use reqwest::header::HeaderMap;
use secrecy::SecretString;

use crate::domain::model::{ModelError, ModelRequest};
use crate::provider::http::connection::key_header;
use crate::provider::http::frames::Framing;
use crate::provider::model_client::SetupError;
use crate::provider::stream::{AnswerDecoder, StreamAdapter};

/// One dialect at one endpoint.
pub(in crate::provider) trait Dialect: Send + Sync + 'static {
    type Adapter: StreamAdapter;

    /// How a streamed answer is cut into frames.
    const FRAMING: Framing = Framing::Events;

    /// Returns the headers of every request, with the key. The caller marks their values as secret.
    fn headers(&self, key: Option<&SecretString>) -> Result<HeaderMap, SetupError> {
        key_header("authorization", key)
    }

    /// Returns more headers of one request, which are no secrets. The caller puts configured values before them.
    fn request_headers(&self, _request: &ModelRequest) -> HeaderMap {
        HeaderMap::new()
    }

    /// Returns the URL of a request to a model. It never holds a key.
    ///
    /// # Errors
    /// `InvalidRequest` if the model's name cannot be part of a URL.
    fn url(&self, model: &str, streaming: bool) -> Result<Url, ModelError>;

    /// Writes the body of a request.
    ///
    /// # Errors
    /// `InvalidRequest` if the request holds something that this dialect cannot carry and that must not be left out.
    fn body(&self, request: &ModelRequest, streaming: bool) -> Result<Vec<u8>, ModelError>;

    /// Returns a decoder of the answer to a request, whose body has `request_bytes` bytes.
    fn decoder(&self, request: &ModelRequest, request_bytes: usize) -> AnswerDecoder<Self::Adapter>;
}
