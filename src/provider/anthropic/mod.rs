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
use super::model_client::{ModelClient, SetupError};
use super::stream::{AnswerAssembler, AnswerDecoder};
use crate::domain::model::{ModelError, ModelRequest};

/// The version of the wire that is spoken: <https://docs.anthropic.com/en/api/versioning>.
const VERSION: HeaderValue = HeaderValue::from_static("2023-06-01");

/// Returns a client of an endpoint that speaks Messages. A base URL that does not end in a version segment gets `/v1`.
pub fn client(options: ClientOptions) -> Result<Arc<dyn ModelClient>, SetupError> {
    let url = versioned_url(&options.base_url, "v1", "/messages")?;
    let mut models = versioned_url(&options.base_url, "v1", "/models")?;
    models.query_pairs_mut().append_pair("limit", "1000");
    Ok(Arc::new(DialectClient::new(Messages { url }, models, options)?))
}

struct Messages {
    url: Url,
}

impl Dialect for Messages {
    type Adapter = MessagesAdapter;

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

    fn body(&self, request: &ModelRequest, streaming: bool) -> Result<Vec<u8>, ModelError> {
        request::body(&for_model(request), streaming)
    }

    fn decoder(&self, request: &ModelRequest, request_bytes: usize) -> AnswerDecoder<MessagesAdapter> {
        let answer = AnswerAssembler::new(request.options.max_output_tokens, request_bytes);
        AnswerDecoder::new(MessagesAdapter::default(), answer)
    }
}

/// Returns a decoder of an answer without a request.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn decoder() -> AnswerDecoder<impl super::stream::StreamAdapter> {
    AnswerDecoder::new(MessagesAdapter::default(), AnswerAssembler::new(None, 0))
}
