//! Ollama's own API, one JSON document a line.
//!
//! Facts: <https://docs.ollama.com/api/chat>. It separates reasoning from text, takes a schema for the answer, and sends each tool call
//! whole. Ollama's OpenAI-compatible endpoint does so only in part.

mod decode;
mod request;
mod wire;

use std::sync::Arc;

use reqwest::Url;

use self::decode::OllamaAdapter;
use crate::domain::model::{ModelError, ModelRequest};
use crate::provider::client::{ClientOptions, DialectClient};
use crate::provider::dialect::Dialect;
use crate::provider::http::endpoint::ollama_url;
use crate::provider::http::frames::Framing;
use crate::provider::model_client::{ModelClient, SetupError};
use crate::provider::request::compose::for_model;
use crate::provider::stream::AnswerDecoder;

/// Returns a client of an Ollama. The base URL may end in `/api`, in the `/v1` of its other API, or in neither.
pub fn client(options: ClientOptions) -> Result<Arc<dyn ModelClient>, SetupError> {
    let (url, models) = (ollama_url(&options.base_url, "chat")?, ollama_url(&options.base_url, "tags")?);
    Ok(Arc::new(DialectClient::new(Ollama { url }, models, options)?))
}

struct Ollama {
    url: Url,
}

impl Dialect for Ollama {
    type Adapter = OllamaAdapter;

    const FRAMING: Framing = Framing::Lines;

    fn url(&self, _model: &str, _streaming: bool) -> Result<Url, ModelError> {
        Ok(self.url.clone())
    }

    fn body(&self, request: &ModelRequest, streaming: bool) -> Result<Vec<u8>, ModelError> {
        request::body(&for_model(request), streaming)
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
