//! Ollama's own API, one JSON document a line.
//!
//! Facts about the wire: <https://docs.ollama.com/api/chat>. It tells thinking from speaking, takes a schema for the answer, and
//! gives each tool call whole; Ollama's OpenAI-compatible endpoint does so only in part.

mod decode;
mod request;
mod wire;

use std::sync::Arc;

use reqwest::Url;
use reqwest::header::HeaderMap;
use secrecy::SecretString;

use self::decode::OllamaAdapter;
use super::client::{ClientOptions, DialectClient};
use super::compose::for_model;
use super::connection::key_header;
use super::dialect::Dialect;
use super::endpoint::ollama_url;
use super::frames::Framing;
use super::model_client::{ModelClient, SetupError};
use super::stream::AnswerDecoder;
use crate::domain::model::{ModelError, ModelRequest};

/// A client of an Ollama. The base URL may end in `/api`, in the `/v1` of its other API, or in neither. No connection is made yet.
///
/// # Errors
/// If the base URL, the key or a header cannot be used.
pub fn client(options: ClientOptions) -> Result<Arc<dyn ModelClient>, SetupError> {
    let dialect = Ollama { url: ollama_url(&options.base_url, "chat")?, models: ollama_url(&options.base_url, "tags")? };
    Ok(Arc::new(DialectClient::new(dialect, options)?))
}

struct Ollama {
    url: Url,
    models: Url,
}

impl Dialect for Ollama {
    type Adapter = OllamaAdapter;

    const FRAMING: Framing = Framing::Lines;

    /// A local Ollama knows no key; the one that others host takes a bearer token.
    fn headers(&self, key: Option<&SecretString>) -> Result<HeaderMap, SetupError> {
        key_header("authorization", key)
    }

    fn url(&self, _model: &str, _streaming: bool) -> Result<Url, ModelError> {
        Ok(self.url.clone())
    }

    fn model_list(&self) -> Url {
        self.models.clone()
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
pub(super) fn decoder() -> AnswerDecoder<impl super::stream::StreamAdapter> {
    decode::decoder(None, 0)
}
