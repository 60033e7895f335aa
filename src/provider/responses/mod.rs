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
use super::client::{ClientOptions, DialectClient};
use super::compose::for_model;
use super::connection::key_header;
use super::dialect::Dialect;
use super::endpoint::{Endpoint, endpoint_url};
use super::frames::Framing;
use super::model_client::{ModelClient, SetupError};
use super::quirks::Quirks;
use super::stream::AnswerDecoder;
use crate::domain::model::{ModelError, ModelRequest};

/// A client of an endpoint that speaks the Responses API. A base URL without any path gets `/v1`. No connection is made yet.
///
/// # Errors
/// If the base URL, the key or a header cannot be used.
pub fn client(options: ClientOptions) -> Result<Arc<dyn ModelClient>, SetupError> {
    let dialect = Responses::at(&options.base_url, Quirks::default())?;
    Ok(Arc::new(DialectClient::new(dialect, options)?))
}

/// The Responses API at a place.
pub(super) struct Responses {
    endpoint: Endpoint,
    models: Url,
    quirks: Quirks,
}

impl Responses {
    /// The API at a base, beside chat completions with these quirks. The URL for Responses, the words for efforts, the rules for
    /// schemas and the renamed, left out and added fields hold here, too.
    ///
    /// # Errors
    /// If the base is no URL of HTTP, or the URL for Responses stands below no base.
    pub(super) fn at(base: &str, quirks: Quirks) -> Result<Self, SetupError> {
        let models = endpoint_url(base, "/models")?;
        Ok(Self { endpoint: Endpoint::new(base, &quirks.responses_url)?, models, quirks })
    }
}

impl Dialect for Responses {
    type Adapter = ResponsesAdapter;

    const FRAMING: Framing = Framing::Events;

    fn headers(&self, key: Option<&SecretString>) -> Result<HeaderMap, SetupError> {
        key_header("authorization", key)
    }

    fn url(&self, model: &str, _streaming: bool) -> Result<Url, ModelError> {
        self.endpoint.of(model)
    }

    fn model_list(&self) -> Url {
        self.models.clone()
    }

    fn body(&self, request: &ModelRequest, streaming: bool) -> Result<Vec<u8>, ModelError> {
        request::body(&for_model(request), &self.quirks, streaming)
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
