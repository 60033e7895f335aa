//! OpenAI's chat completions, which most providers and local servers speak with quirks of their own.
//!
//! Facts: <https://platform.openai.com/docs/api-reference/chat>. Requests differ by [`Quirks`]; one decoder reads all answers.

mod calls;
mod decode;
mod details;
mod messages;
mod moving;
mod own;
mod request;
pub(in crate::provider) mod schema;
mod wire;

use std::sync::{Arc, Mutex};

use reqwest::Url;
use reqwest::header::HeaderMap;
use secrecy::SecretString;

use self::decode::ChatCompletionsAdapter;
use self::moving::Moving;
use crate::domain::model::{ModelError, ModelRequest};
use crate::provider::client::{ClientOptions, DialectClient};
use crate::provider::dialect::Dialect;
use crate::provider::http::connection::key_header;
use crate::provider::http::endpoint::{Endpoint, endpoint_url, without_operation};
use crate::provider::model_client::{ModelClient, SetupError};
use crate::provider::request::quirks::Quirks;
use crate::provider::responses::Responses;
use crate::provider::stream::{AnswerAssembler, AnswerDecoder};

/// Returns a client of chat completions, and of Responses for models that need it. A base URL without a path gets `/v1`.
pub fn client(options: ClientOptions, quirks: Quirks) -> Result<Arc<dyn ModelClient>, SetupError> {
    let base = without_operation(&options.base_url);
    let beside = (!quirks.responses_url.is_empty()).then(|| Responses::at(&base, quirks.clone())).transpose()?;
    let dialect = ChatCompletions { endpoint: Endpoint::new(&options.base_url, &quirks.url)?, quirks };
    let chat = DialectClient::new(dialect, endpoint_url(&base, "/models")?, options)?;
    Ok(match beside {
        Some(responses) => Arc::new(Moving { responses: chat.speaking(responses), chat, moved: Mutex::default() }),
        None => Arc::new(chat),
    })
}

struct ChatCompletions {
    endpoint: Endpoint,
    quirks: Quirks,
}

impl Dialect for ChatCompletions {
    type Adapter = ChatCompletionsAdapter;

    fn headers(&self, key: Option<&SecretString>) -> Result<HeaderMap, SetupError> {
        key_header(&self.quirks.key_header, key)
    }

    fn url(&self, model: &str, _streaming: bool) -> Result<Url, ModelError> {
        self.endpoint.of(model)
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

/// Returns a decoder of an answer without a request, to which two tools were offered.
#[cfg(any(test, feature = "fuzzing"))]
pub(in crate::provider) fn decoder() -> AnswerDecoder<impl crate::provider::stream::StreamAdapter> {
    let quirks = Quirks { thoughts_in_text: crate::provider::ThoughtsInText::Always, ..Quirks::default() };
    let answer = AnswerAssembler::new(None, 0).with_tags(quirks.think_tags(""));
    decode::decoder(["get_time", "get_weather"].map(str::to_owned).into(), answer)
}
