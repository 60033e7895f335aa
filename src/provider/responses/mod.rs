//! OpenAI's Responses API, stateless: nothing is stored there, and reasoning goes back as the items that came.
//!
//! Facts about the wire: <https://platform.openai.com/docs/api-reference/responses> and
//! <https://platform.openai.com/docs/api-reference/responses-streaming>.

mod calls;
mod decode;
mod items;
mod request;
mod wire;

use std::sync::Arc;

use reqwest::Url;
use reqwest::header::HeaderMap;
use secrecy::SecretString;

use self::decode::ResponsesAdapter;
use super::client::{ClientOptions, DialectClient, bearer};
use super::compose::for_model;
use super::dialect::Dialect;
use super::endpoint::Endpoint;
use super::frames::Framing;
use super::openai::Accent;
use super::stream::AnswerDecoder;
use super::{ModelClient, SetupError};
use crate::domain::model::{ModelError, ModelRequest};

/// A client of an endpoint that speaks the Responses API. A base URL without any path gets `/v1`. No connection is made yet.
///
/// # Errors
/// If the base URL, the key or a header cannot be used.
pub fn client(options: ClientOptions) -> Result<Arc<dyn ModelClient>, SetupError> {
    let dialect = Responses::at(&options.base_url, Accent::default())?;
    Ok(Arc::new(DialectClient::new(dialect, options)?))
}

/// The Responses API at a place.
pub(super) struct Responses {
    endpoint: Endpoint,
    accent: Accent,
}

impl Responses {
    /// The API at a base, beside chat completions in an accent. Of that its URL for Responses holds here, its words for efforts,
    /// what it says of schemas, and the fields that it names, leaves out and adds.
    ///
    /// # Errors
    /// If the base is no URL of HTTP, or the URL of the accent stands below no base.
    pub(super) fn at(base: &str, accent: Accent) -> Result<Self, SetupError> {
        Ok(Self { endpoint: Endpoint::new(base, &accent.responses_url)?, accent })
    }
}

impl Dialect for Responses {
    type Adapter = ResponsesAdapter;

    const FRAMING: Framing = Framing::Events;

    fn headers(&self, key: Option<&SecretString>) -> Result<HeaderMap, SetupError> {
        bearer(key)
    }

    fn url(&self, model: &str, _streaming: bool) -> Result<Url, ModelError> {
        self.endpoint.of(model)
    }

    fn body(&self, request: &ModelRequest, streaming: bool) -> Result<Vec<u8>, ModelError> {
        request::body(&for_model(request), &self.accent, streaming)
    }

    fn decoder(&self, request: &ModelRequest, request_bytes: usize) -> AnswerDecoder<ResponsesAdapter> {
        decode::decoder(request.options.max_output_tokens, request_bytes)
    }
}

/// Returns a decoder of an answer without a request.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn decoder() -> AnswerDecoder<impl super::stream::StreamAdapter> {
    decode::decoder(None, 0)
}
