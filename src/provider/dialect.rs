//! The trait of a dialect: the URL and the body of a request, and the decoder of its answer.
//!
//! [`StreamAdapter`](crate::provider::stream::StreamAdapter) is the trait that reads an answer.

use reqwest::Url;
use reqwest::header::HeaderMap;
use secrecy::SecretString;

use crate::domain::model::{ModelError, ModelRequest, ProviderKind};
use crate::provider::http::connection::key_header;
use crate::provider::http::sse::Framing;
use crate::provider::model_client::SetupError;
use crate::provider::profile::BodyForm;
use crate::provider::stream::{AnswerDecoder, StreamAdapter};

/// One dialect at one endpoint.
pub(in crate::provider) trait Dialect: Send + Sync + 'static {
    type Adapter: StreamAdapter;

    const KIND: ProviderKind;

    /// Whether a request without tools still declares the tools that its messages call. Other dialects do so once a provider asks
    /// for it.
    const DECLARES_FORMER_TOOLS: bool = false;

    /// How a streamed answer is split into frames.
    const FRAMING: Framing = Framing::Events;

    /// Returns the headers of every request, with the key. The caller marks their values as secret.
    fn headers(&self, key: Option<&SecretString>) -> Result<HeaderMap, SetupError> {
        key_header("authorization", key)
    }

    /// Returns more headers of one request, none of them secret. They are appended to configured values of the same header.
    fn request_headers(&self, _request: &ModelRequest) -> HeaderMap {
        HeaderMap::new()
    }

    /// Returns the URL of a request to a model. It never contains a key.
    ///
    /// # Errors
    /// `InvalidRequest` if the model's name cannot be part of a URL.
    fn url(&self, model: &str, streaming: bool) -> Result<Url, ModelError>;

    /// Returns the URL at which the endpoint describes a model, if its list of models does not.
    fn description_url(&self) -> Option<Url> {
        None
    }

    /// Writes the body of a request.
    ///
    /// # Errors
    /// `InvalidRequest` if the dialect cannot express a part of the request that must not be omitted.
    fn body(&self, request: &ModelRequest, form: BodyForm) -> Result<Vec<u8>, ModelError>;

    /// Returns a decoder of the answer to a request, whose body has `request_bytes` bytes.
    fn decoder(&self, request: &ModelRequest, request_bytes: usize) -> AnswerDecoder<Self::Adapter>;
}
