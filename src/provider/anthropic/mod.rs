//! The dialect Anthropic Messages, which other providers use, too. Must not know connections or runs.
//!
//! Protocol: <https://docs.anthropic.com/en/api/messages> and <https://docs.anthropic.com/en/docs/build-with-claude/streaming>.

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
use crate::domain::model::{ModelError, ModelRequest, ProviderKind};
use crate::provider::client::{ClientOptions, DialectClient};
use crate::provider::dialect::Dialect;
use crate::provider::http::connection::key_header;
use crate::provider::http::endpoint::versioned_url;
use crate::provider::model_client::{ModelClient, SetupError};
use crate::provider::profile::BodyForm;
use crate::provider::request::shared_parts::for_model;
use crate::provider::stream::{AnswerAssembler, AnswerDecoder};

/// The protocol version that is sent: <https://docs.anthropic.com/en/api/versioning>.
const VERSION: HeaderValue = HeaderValue::from_static("2023-06-01");

/// Returns a client of an Anthropic Messages endpoint. A base URL without a version segment at its end gets `/v1`.
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

    const KIND: ProviderKind = ProviderKind::Anthropic;

    const DECLARES_FORMER_TOOLS: bool = true;

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

    fn body(&self, request: &ModelRequest, form: BodyForm) -> Result<Vec<u8>, ModelError> {
        request::body(&for_model(request), form.streaming)
    }

    fn decoder(&self, request: &ModelRequest, request_bytes: usize) -> AnswerDecoder<MessagesAdapter> {
        let answer = AnswerAssembler::new(request.options.max_output_tokens, request_bytes);
        AnswerDecoder::new(MessagesAdapter::default(), answer)
    }
}

/// Returns a decoder of an answer without a request.
#[cfg(any(test, feature = "fuzzing"))]
pub(in crate::provider) fn decoder() -> AnswerDecoder<impl crate::provider::stream::StreamAdapter> {
    AnswerDecoder::new(MessagesAdapter::default(), AnswerAssembler::new(None, 0))
}
