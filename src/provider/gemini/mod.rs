//! The dialect Gemini generateContent. Must not know connections or runs.
//!
//! Protocol: <https://ai.google.dev/api/generate-content> and <https://ai.google.dev/gemini-api/docs/thought-signatures>.

mod content;
mod decode;
mod models;
mod request;
mod wire;

use std::sync::Arc;

use reqwest::Url;
use reqwest::header::HeaderMap;
use secrecy::SecretString;

use self::decode::GenerateContentAdapter;
use crate::domain::model::{ModelError, ModelErrorKind, ModelRequest, ProviderKind};
use crate::provider::client::{ClientOptions, DialectClient};
use crate::provider::dialect::Dialect;
use crate::provider::http::connection::key_header;
use crate::provider::http::endpoint::versioned_url;
use crate::provider::model_client::{ModelClient, SetupError};
use crate::provider::profile::BodyForm;
use crate::provider::stream::AnswerDecoder;

/// Returns a client of a `generateContent` endpoint. `/v1beta` is appended unless the base URL ends in a version or, on Vertex AI, in
/// `publishers/NAME`. The key is in a header, never in the URL.
pub fn client(options: ClientOptions) -> Result<Arc<dyn ModelClient>, SetupError> {
    let mut models = versioned_url(&options.base_url, "v1beta", "/models")?;
    models.query_pairs_mut().append_pair("pageSize", "1000");
    let base = versioned_url(&options.base_url, "v1beta", "")?;
    Ok(Arc::new(DialectClient::new(GenerateContent { base }, models, options)?))
}

struct GenerateContent {
    base: Url,
}

impl Dialect for GenerateContent {
    type Adapter = GenerateContentAdapter;

    const KIND: ProviderKind = ProviderKind::Gemini;

    fn headers(&self, key: Option<&SecretString>) -> Result<HeaderMap, SetupError> {
        key_header("x-goog-api-key", key)
    }

    fn url(&self, model: &str, streaming: bool) -> Result<Url, ModelError> {
        let operation = if streaming { "streamGenerateContent" } else { "generateContent" };
        // A name may begin with `models/`, the usual collection. Tuned models have another collection.
        let name = model.strip_prefix("models/").unwrap_or(model);
        let is_usable = |segment: &str| !segment.is_empty() && segment != "." && segment != "..";
        if !name.split('/').all(is_usable) {
            let message = format!("the model's name {model:?} cannot be part of a URL");
            return Err(ModelError::new(ModelErrorKind::InvalidRequest, &message));
        }
        let mut url = self.base.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            if !name.contains('/') {
                path.push("models");
            }
            path.extend(format!("{name}:{operation}").split('/'));
        }
        if streaming {
            url.query_pairs_mut().append_pair("alt", "sse");
        }
        Ok(url)
    }

    fn body(&self, request: &ModelRequest, _form: BodyForm) -> Result<Vec<u8>, ModelError> {
        request::body(request)
    }

    fn decoder(&self, request: &ModelRequest, request_bytes: usize) -> AnswerDecoder<GenerateContentAdapter> {
        decode::decoder(&request.tools, request_bytes)
    }
}

/// Returns a decoder that knows no request's tools.
#[cfg(any(test, feature = "fuzzing"))]
pub(in crate::provider) fn decoder() -> AnswerDecoder<impl crate::provider::stream::StreamAdapter> {
    decode::decoder(&[], 0)
}
