//! The dialect Ollama chat, with one JSON document per line. Must not know connections or runs.
//!
//! Protocol: <https://docs.ollama.com/api/chat>. It separates reasoning from text, accepts a schema for the answer, and sends complete tool
//! calls. Ollama's OpenAI-compatible endpoint does so only in part.

mod decode;
mod request;

use std::sync::Arc;

use reqwest::Url;

use self::decode::OllamaAdapter;
use crate::domain::model::{ModelError, ModelRequest, ProviderKind};
use crate::provider::client::{ClientOptions, DialectClient};
use crate::provider::dialect::Dialect;
use crate::provider::http::endpoint::ollama_url;
use crate::provider::http::sse::Framing;
use crate::provider::model_client::{ModelClient, SetupError};
use crate::provider::profile::BodyForm;
use crate::provider::request::shared_parts::for_model;
use crate::provider::stream::AnswerDecoder;

/// Returns a client of an Ollama server. The base URL may end in `/api`, in the `/v1` of its other API, or in neither.
pub fn client(options: ClientOptions) -> Result<Arc<dyn ModelClient>, SetupError> {
    let (url, models) = (ollama_url(&options.base_url, "chat")?, ollama_url(&options.base_url, "tags")?);
    let descriptions = ollama_url(&options.base_url, "show")?;
    Ok(Arc::new(DialectClient::new(Ollama { url, descriptions }, models, options)?))
}

struct Ollama {
    url: Url,
    descriptions: Url,
}

impl Dialect for Ollama {
    type Adapter = OllamaAdapter;

    const KIND: ProviderKind = ProviderKind::Ollama;

    const FRAMING: Framing = Framing::Lines;

    fn url(&self, _model: &str, _streaming: bool) -> Result<Url, ModelError> {
        Ok(self.url.clone())
    }

    fn description_url(&self) -> Option<Url> {
        Some(self.descriptions.clone())
    }

    fn body(&self, request: &ModelRequest, form: BodyForm) -> Result<Vec<u8>, ModelError> {
        request::body(&for_model(request), form.streaming)
    }

    fn decoder(&self, request: &ModelRequest, request_bytes: usize) -> AnswerDecoder<OllamaAdapter> {
        decode::decoder(request.options.max_output_tokens, request_bytes)
    }
}

/// Returns a decoder of an answer without a request.
#[cfg(any(test, feature = "fuzzing"))]
pub(in crate::provider) fn decoder() -> AnswerDecoder<impl crate::provider::stream::StreamAdapter> {
    decode::decoder(None, 0)
}
