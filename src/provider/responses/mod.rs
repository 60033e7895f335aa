//! The dialect OpenAI Responses, stateless: the provider stores no items, and reasoning items go back unchanged. Must not know connections
//! or runs.
//!
//! Protocol: <https://platform.openai.com/docs/api-reference/responses> and
//! <https://platform.openai.com/docs/api-reference/responses-streaming>.

mod calls;
mod decode;
mod items;
mod request;
mod wire;

use std::sync::Arc;

use reqwest::Url;

use self::decode::ResponsesAdapter;
use crate::domain::model::{ModelError, ModelRequest, ProviderKind};
use crate::provider::client::{ClientOptions, DialectClient};
use crate::provider::dialect::Dialect;
use crate::provider::http::endpoint::{Endpoint, endpoint_url};
use crate::provider::model_client::{ModelClient, SetupError};
use crate::provider::profile::BodyForm;
use crate::provider::request::quirks::Quirks;
use crate::provider::request::shared_parts::for_model;
use crate::provider::stream::{AnswerAssembler, AnswerDecoder};

/// Returns a client of a Responses endpoint. A base URL without any path gets `/v1`.
pub fn client(options: ClientOptions) -> Result<Arc<dyn ModelClient>, SetupError> {
    let dialect = Responses::at(&options.base_url, Quirks::default())?;
    Ok(Arc::new(DialectClient::new(dialect, endpoint_url(&options.base_url, "/models")?, options)?))
}

pub(in crate::provider) struct Responses {
    endpoint: Endpoint,
    quirks: Quirks,
}

impl Responses {
    /// Returns the dialect at a base URL, for a chat completions provider with these quirks. Their Responses URL, effort values, schema
    /// rules, and renamed, omitted and added fields apply here, too.
    pub(in crate::provider) fn at(base: &str, quirks: Quirks) -> Result<Self, SetupError> {
        Ok(Self { endpoint: Endpoint::new(base, &quirks.responses_url)?, quirks })
    }
}

impl Dialect for Responses {
    type Adapter = ResponsesAdapter;

    const KIND: ProviderKind = ProviderKind::OpenaiResponses;

    fn url(&self, model: &str, _streaming: bool) -> Result<Url, ModelError> {
        self.endpoint.of(model)
    }

    fn body(&self, request: &ModelRequest, form: BodyForm) -> Result<Vec<u8>, ModelError> {
        request::body(&for_model(request), &self.quirks, form.streaming)
    }

    fn decoder(&self, request: &ModelRequest, request_bytes: usize) -> AnswerDecoder<ResponsesAdapter> {
        let answer = AnswerAssembler::new(request.options.max_output_tokens, request_bytes);
        AnswerDecoder::new(ResponsesAdapter::default(), answer)
    }
}

/// Returns a decoder of an answer without a request.
#[cfg(any(test, feature = "fuzzing"))]
pub(in crate::provider) fn decoder() -> AnswerDecoder<impl crate::provider::stream::StreamAdapter> {
    AnswerDecoder::new(ResponsesAdapter::default(), AnswerAssembler::new(None, 0))
}
