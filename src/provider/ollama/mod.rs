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
use super::client::{ClientOptions, DialectClient, bearer};
use super::compose::for_model;
use super::dialect::Dialect;
use super::frames::Framing;
use super::stream::AnswerDecoder;
use super::transport::endpoint_url;
use super::{ModelClient, SetupError};
use crate::domain::model::{ModelError, ModelRequest};

/// A client of an Ollama. The base URL may end in `/api`, in the `/v1` of its other API, or in neither. No connection is made yet.
///
/// # Errors
/// If the base URL, the key or a header cannot be used.
pub fn client(options: ClientOptions) -> Result<Arc<dyn ModelClient>, SetupError> {
    let dialect = Ollama { url: operation_url(&options.base_url, "chat")? };
    Ok(Arc::new(DialectClient::new(dialect, options)?))
}

/// The URL of an operation of an Ollama.
///
/// # Errors
/// If the base is no URL of HTTP.
pub(super) fn operation_url(base: &str, operation: &str) -> Result<Url, SetupError> {
    // OLLAMA_HOST may be a host and a port.
    let base = base.trim();
    let mut url = if base.contains("://") { endpoint_url(base, "")? } else { endpoint_url(&format!("http://{base}"), "")? };
    let whole = format!("/api/{operation}");
    let root = url.path().trim_end_matches('/').to_owned();
    let root = [whole.as_str(), "/api", "/v1"].iter().find_map(|end| root.strip_suffix(end)).unwrap_or(&root).to_owned();
    url.set_path(&format!("{root}{whole}"));
    Ok(url)
}

struct Ollama {
    url: Url,
}

impl Dialect for Ollama {
    type Adapter = OllamaAdapter;

    const FRAMING: Framing = Framing::Lines;

    /// A local Ollama knows no key; the one that others host takes a bearer token.
    fn headers(&self, key: Option<&SecretString>) -> Result<HeaderMap, SetupError> {
        bearer(key)
    }

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
pub(super) fn decoder() -> AnswerDecoder<impl super::stream::StreamAdapter> {
    decode::decoder(None, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_sorts_of_base_urls() {
        for (base, url) in [
            ("http://127.0.0.1:11434", "http://127.0.0.1:11434/api/chat"),
            ("http://127.0.0.1:11434/", "http://127.0.0.1:11434/api/chat"),
            ("http://127.0.0.1:11434/api", "http://127.0.0.1:11434/api/chat"),
            ("http://127.0.0.1:11434/v1/", "http://127.0.0.1:11434/api/chat"),
            ("http://127.0.0.1:11434/api/chat", "http://127.0.0.1:11434/api/chat"),
            ("https://gate/ollama", "https://gate/ollama/api/chat"),
            ("https://gate/ollama/v1", "https://gate/ollama/api/chat"),
            ("localhost:11434", "http://localhost:11434/api/chat"),
        ] {
            assert_eq!(operation_url(base, "chat").unwrap().as_str(), url, "{base}");
        }
        for base in ["", "ftp://host"] {
            assert!(operation_url(base, "chat").is_err(), "{base}");
        }
    }
}
