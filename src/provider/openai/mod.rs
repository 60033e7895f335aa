//! The dialect chat completions, which most providers and local servers use with quirks of their own. Must not know connections or runs.
//!
//! Protocol: <https://platform.openai.com/docs/api-reference/chat>. Requests differ by [`Quirks`]; one decoder reads all answers.

mod calls;
mod decode;
mod messages;
mod provider_fields;
mod request;
mod responses_migration;
pub(in crate::provider) mod schema;
mod signed_reasoning;
mod wire;

use std::sync::{Arc, Mutex};

use reqwest::Url;
use reqwest::header::HeaderMap;
use secrecy::SecretString;

use self::decode::ChatCompletionsAdapter;
use self::responses_migration::ResponsesMigration;
use crate::domain::model::{ModelError, ModelRequest, ProviderKind};
use crate::provider::client::{ClientOptions, DialectClient};
use crate::provider::dialect::Dialect;
use crate::provider::http::connection::key_header;
use crate::provider::http::endpoint::{Endpoint, endpoint_url, without_operation};
use crate::provider::model_client::{ModelClient, SetupError};
use crate::provider::profile::BodyForm;
use crate::provider::request::quirks::Quirks;
use crate::provider::responses::Responses;
use crate::provider::stream::{AnswerAssembler, AnswerDecoder};

/// Returns a client of chat completions, and of Responses for models that need it. A base URL without a path gets `/v1`.
pub fn client(options: ClientOptions, quirks: Quirks) -> Result<Arc<dyn ModelClient>, SetupError> {
    let base = without_operation(&options.base_url);
    let responses_dialect = (!quirks.responses_url.is_empty()).then(|| Responses::at(&base, quirks.clone())).transpose()?;
    let dialect = ChatCompletions { endpoint: Endpoint::new(&options.base_url, &quirks.url)?, quirks };
    let chat = DialectClient::new(dialect, endpoint_url(&base, "/models")?, options)?;
    Ok(match responses_dialect {
        Some(responses) => Arc::new(ResponsesMigration { responses: chat.with_dialect(responses), chat, moved: Mutex::default() }),
        None => Arc::new(chat),
    })
}

struct ChatCompletions {
    endpoint: Endpoint,
    quirks: Quirks,
}

impl Dialect for ChatCompletions {
    type Adapter = ChatCompletionsAdapter;

    const KIND: ProviderKind = ProviderKind::Openai;

    fn headers(&self, key: Option<&SecretString>) -> Result<HeaderMap, SetupError> {
        key_header(&self.quirks.key_header, key)
    }

    fn url(&self, model: &str, _streaming: bool) -> Result<Url, ModelError> {
        self.endpoint.of(model)
    }

    fn body(&self, request: &ModelRequest, form: BodyForm) -> Result<Vec<u8>, ModelError> {
        let quirks = self.quirks.adapted(form.returns_reasoning, form.null_content);
        request::body(request, &quirks, form.streaming)
    }

    fn decoder(&self, request: &ModelRequest, request_bytes: usize) -> AnswerDecoder<ChatCompletionsAdapter> {
        let answer = AnswerAssembler::new(request.options.max_output_tokens, request_bytes);
        let tools = request.tools.iter().map(|tool| tool.name.clone()).collect();
        decode::decoder(tools, answer.with_tags(self.quirks.think_tags(&request.model)))
    }
}

/// Returns a decoder for tests and fuzzing. It belongs to no request and knows two tools.
#[cfg(any(test, feature = "fuzzing"))]
pub(in crate::provider) fn decoder() -> AnswerDecoder<impl crate::provider::stream::StreamAdapter> {
    let quirks = Quirks { thoughts_in_text: crate::provider::InlineReasoning::Always, ..Quirks::default() };
    let answer = AnswerAssembler::new(None, 0).with_tags(quirks.think_tags(""));
    decode::decoder(["get_time", "get_weather"].map(str::to_owned).into(), answer)
}
