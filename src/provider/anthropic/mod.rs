//! Anthropic's Messages API, and those who speak it too.
//!
//! Facts about the wire: <https://docs.anthropic.com/en/api/messages> and
//! <https://docs.anthropic.com/en/docs/build-with-claude/streaming>.

mod blocks;
mod content;
mod decode;
mod models;
mod request;
mod wire;

use std::sync::Arc;

use reqwest::Url;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use secrecy::SecretString;

use self::decode::MessagesAdapter;
use super::client::{ClientOptions, DialectClient};
use super::compose::for_model;
use super::connection::key_header;
use super::dialect::Dialect;
use super::endpoint::versioned_url;
use super::frames::Framing;
use super::model_client::{ModelClient, SetupError};
use super::stream::AnswerDecoder;
use crate::domain::model::{ModelError, ModelErrorKind, ModelRequest};

/// The version of the wire that is spoken: <https://docs.anthropic.com/en/api/versioning>.
const VERSION: HeaderValue = HeaderValue::from_static("2023-06-01");

/// A client of an endpoint that speaks Messages. A base URL that does not end in a version segment gets `/v1`. No connection
/// is made yet.
///
/// # Errors
/// If the base URL, the key or a header cannot be used.
pub fn client(options: ClientOptions) -> Result<Arc<dyn ModelClient>, SetupError> {
    let url = versioned_url(&options.base_url, "v1", "/messages")?;
    let mut models = versioned_url(&options.base_url, "v1", "/models")?;
    models.query_pairs_mut().append_pair("limit", "1000");
    let dialect = Messages { url, models };
    Ok(Arc::new(DialectClient::new(dialect, options)?))
}

struct Messages {
    url: Url,
    models: Url,
}

impl Dialect for Messages {
    type Adapter = MessagesAdapter;

    const FRAMING: Framing = Framing::Events;

    fn headers(&self, key: Option<&SecretString>) -> Result<HeaderMap, SetupError> {
        let mut headers = key_header("x-api-key", key)?;
        headers.insert(HeaderName::from_static("anthropic-version"), VERSION);
        Ok(headers)
    }

    fn request_headers(&self, request: &ModelRequest) -> HeaderMap {
        let beta = request::beta(request).map(HeaderValue::from_static);
        beta.map(|beta| (HeaderName::from_static("anthropic-beta"), beta)).into_iter().collect()
    }

    fn url(&self, _model: &str, _streaming: bool) -> Result<Url, ModelError> {
        Ok(self.url.clone())
    }

    fn model_list(&self) -> Url {
        self.models.clone()
    }

    fn body(&self, request: &ModelRequest, streaming: bool) -> Result<Vec<u8>, ModelError> {
        request::body(&for_model(request), streaming)
            .map_err(|error| ModelError::new(ModelErrorKind::InvalidRequest, &format!("the request cannot be written: {error}")))
    }

    fn decoder(&self, request: &ModelRequest, request_bytes: usize) -> AnswerDecoder<MessagesAdapter> {
        decode::decoder(request.options.max_output_tokens, request_bytes)
    }
}

/// Returns a decoder of an answer without a request.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn decoder() -> AnswerDecoder<impl super::stream::StreamAdapter> {
    decode::decoder(None, 0)
}
