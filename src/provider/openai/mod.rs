//! OpenAI's chat completions, which most providers and local servers speak in their own accents.
//!
//! Facts about the wire: <https://platform.openai.com/docs/api-reference/chat>. What is sent differs by an [`Accent`], which is
//! data; what comes is read by one reader, which understands all accents.

mod accent;
mod calls;
mod decode;
mod details;
mod messages;
mod moving;
mod own;
mod request;
pub(super) mod schema;
mod wire;

use std::sync::{Arc, Mutex};

use reqwest::Url;
use reqwest::header::{HeaderMap, HeaderName};
use secrecy::{ExposeSecret as _, SecretString};

pub use self::accent::{
    Accent, CallIdRule, EffortForm, EffortWords, FileForm, FillerSpan, OutputLimit, ReasoningForm, ReasoningSpan, SchemaForm,
    SchemaRules, SystemPlace, ThoughtsInText, ToolChoices, ToolImages,
};
use self::decode::ChatCompletionsAdapter;
use self::moving::Moving;
use super::client::{ClientOptions, DialectClient, bearer, header};
use super::dialect::Dialect;
use super::endpoint::{Endpoint, without_operation};
use super::frames::Framing;
use super::responses::Responses;
use super::stream::{AnswerAssembler, AnswerDecoder};
use super::{ModelClient, SetupError};
use crate::domain::model::{ModelError, ModelRequest};

/// A client of an endpoint that speaks chat completions with an accent, and perhaps Responses beside them for some of its models.
/// A base URL without any path gets `/v1`. No connection is made yet.
///
/// # Errors
/// If the base URL, the accent's URLs, the key or a header cannot be used.
pub fn client(options: ClientOptions, accent: Accent) -> Result<Arc<dyn ModelClient>, SetupError> {
    let endpoint = Endpoint::new(&options.base_url, &accent.url)?;
    let base = without_operation(&options.base_url);
    let beside = (!accent.responses_url.is_empty()).then(|| Responses::at(&base, accent.clone())).transpose()?;
    let chat = DialectClient::new(ChatCompletions { endpoint, accent }, options)?;
    Ok(match beside {
        Some(responses) => Arc::new(Moving { responses: chat.speaking(responses), chat, moved: Mutex::default() }),
        None => Arc::new(chat),
    })
}

struct ChatCompletions {
    endpoint: Endpoint,
    accent: Accent,
}

impl Dialect for ChatCompletions {
    type Adapter = ChatCompletionsAdapter;

    const FRAMING: Framing = Framing::Events;

    fn headers(&self, key: Option<&SecretString>) -> Result<HeaderMap, SetupError> {
        let name = self.accent.key_header.as_str();
        if name.eq_ignore_ascii_case("authorization") {
            return bearer(key);
        }
        let mut headers = HeaderMap::new();
        if let Some(key) = key {
            let parsed = HeaderName::try_from(name).map_err(|_| SetupError::Header { name: name.to_owned() })?;
            headers.insert(parsed, header(name, key.expose_secret().trim())?);
        }
        Ok(headers)
    }

    fn url(&self, model: &str, _streaming: bool) -> Result<Url, ModelError> {
        self.endpoint.of(model)
    }

    fn body(&self, request: &ModelRequest, streaming: bool) -> Result<Vec<u8>, ModelError> {
        request::body(request, &self.accent, streaming)
    }

    fn decoder(&self, request: &ModelRequest, request_bytes: usize) -> AnswerDecoder<ChatCompletionsAdapter> {
        let answer = AnswerAssembler::new(request.options.max_output_tokens, request_bytes);
        let tools = request.tools.iter().map(|tool| tool.name.clone()).collect();
        decode::decoder(tools, answer.with_tags(self.accent.think_tags(&request.model)))
    }
}

/// Returns a decoder of an answer without a request, to which two tools were offered.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn decoder() -> AnswerDecoder<impl super::stream::StreamAdapter> {
    let accent = Accent { thoughts_in_text: ThoughtsInText::Always, ..Accent::default() };
    let answer = AnswerAssembler::new(None, 0).with_tags(accent.think_tags(""));
    decode::decoder(["get_time", "get_weather"].map(str::to_owned).into(), answer)
}
