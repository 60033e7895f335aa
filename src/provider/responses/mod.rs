//! OpenAI's Responses API, stateless: the provider stores nothing, and reasoning items go back unchanged.
//!
//! Facts: <https://platform.openai.com/docs/api-reference/responses> and
//! <https://platform.openai.com/docs/api-reference/responses-streaming>.

mod calls;
mod decode;
mod items;
mod request;
mod wire;

use std::sync::Arc;

use reqwest::Url;

use self::decode::ResponsesAdapter;
use super::client::{ClientOptions, DialectClient};
use super::compose::for_model;
use super::dialect::Dialect;
use super::endpoint::{Endpoint, endpoint_url};
use super::model_client::{ModelClient, SetupError};
use super::quirks::Quirks;
use super::stream::{AnswerAssembler, AnswerDecoder};
use crate::domain::model::{ModelError, ModelRequest};

/// Returns a client of an endpoint that speaks the Responses API. A base URL without any path gets `/v1`.
pub fn client(options: ClientOptions) -> Result<Arc<dyn ModelClient>, SetupError> {
    let dialect = Responses::at(&options.base_url, Quirks::default())?;
    Ok(Arc::new(DialectClient::new(dialect, endpoint_url(&options.base_url, "/models")?, options)?))
}

pub(super) struct Responses {
    endpoint: Endpoint,
    quirks: Quirks,
}

impl Responses {
    /// Returns the API at a base URL, beside chat completions with these quirks. Their URL for Responses, words for efforts, rules for
    /// schemas, and renamed, omitted and added fields hold here, too.
    pub(super) fn at(base: &str, quirks: Quirks) -> Result<Self, SetupError> {
        Ok(Self { endpoint: Endpoint::new(base, &quirks.responses_url)?, quirks })
    }
}

impl Dialect for Responses {
    type Adapter = ResponsesAdapter;

    fn url(&self, model: &str, _streaming: bool) -> Result<Url, ModelError> {
        self.endpoint.of(model)
    }

    fn body(&self, request: &ModelRequest, streaming: bool) -> Result<Vec<u8>, ModelError> {
        request::body(&for_model(request), &self.quirks, streaming)
    }

    fn decoder(&self, request: &ModelRequest, request_bytes: usize) -> AnswerDecoder<ResponsesAdapter> {
        let answer = AnswerAssembler::new(request.options.max_output_tokens, request_bytes);
        AnswerDecoder::new(ResponsesAdapter::default(), answer)
    }
}

/// Returns a decoder of an answer without a request.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn decoder() -> AnswerDecoder<impl super::stream::StreamAdapter> {
    AnswerDecoder::new(ResponsesAdapter::default(), AnswerAssembler::new(None, 0))
}
