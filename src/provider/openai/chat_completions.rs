//! The dialect: URLs, the key and the two ends of a call.

use reqwest::Url;
use reqwest::header::HeaderMap;
use secrecy::SecretString;

use super::decode::{self, ChatCompletionsAdapter};
use super::request;
use crate::domain::model::{ModelError, ModelRequest};
use crate::provider::connection::key_header;
use crate::provider::dialect::Dialect;
use crate::provider::endpoint::{Endpoint, endpoint_url, without_operation};
use crate::provider::frames::Framing;
use crate::provider::model_client::SetupError;
use crate::provider::quirks::Quirks;
use crate::provider::stream::{AnswerAssembler, AnswerDecoder};

/// Chat completions at a place.
pub(super) struct ChatCompletions {
    endpoint: Endpoint,
    models: Url,
    pub(super) quirks: Quirks,
}

impl ChatCompletions {
    /// Chat completions at a base, which may name their operation already.
    ///
    /// # Errors
    /// If the base is no URL of HTTP, or the URL of the quirks stands below no base.
    pub(super) fn at(base: &str, quirks: Quirks) -> Result<Self, SetupError> {
        let models = endpoint_url(&without_operation(base), "/models")?;
        Ok(Self { endpoint: Endpoint::new(base, &quirks.url)?, models, quirks })
    }
}

impl Dialect for ChatCompletions {
    type Adapter = ChatCompletionsAdapter;

    const FRAMING: Framing = Framing::Events;

    fn headers(&self, key: Option<&SecretString>) -> Result<HeaderMap, SetupError> {
        key_header(&self.quirks.key_header, key)
    }

    fn url(&self, model: &str, _streaming: bool) -> Result<Url, ModelError> {
        self.endpoint.of(model)
    }

    fn model_list(&self) -> Url {
        self.models.clone()
    }

    fn body(&self, request: &ModelRequest, streaming: bool) -> Result<Vec<u8>, ModelError> {
        request::body(request, &self.quirks, streaming)
    }

    fn decoder(&self, request: &ModelRequest, request_bytes: usize) -> AnswerDecoder<ChatCompletionsAdapter> {
        let answer = AnswerAssembler::new(request.options.max_output_tokens, request_bytes);
        let tools = request.tools.iter().map(|tool| tool.name.clone()).collect();
        decode::decoder(tools, answer.with_tags(self.quirks.think_tags(&request.model)))
    }
}
