//! Embeddings: OpenAI's `/embeddings`, which most providers and local servers have, and Ollama's `/api/embed`.
//!
//! Protocols: <https://platform.openai.com/docs/api-reference/embeddings>, <https://docs.ollama.com/api/embed>.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::Url;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::domain::ids::UserId;
use crate::domain::model::{Embeddings, ModelError, ModelErrorKind, ProviderKind};
use crate::provider::client::ClientOptions;
use crate::provider::errors::failure::{self, RequestNames};
use crate::provider::http::connection::{Connection, key_header};
use crate::provider::http::endpoint::{endpoint_url, ollama_url};
use crate::provider::http::json_body::written;
use crate::provider::http::timeouts::Deadline;
use crate::provider::http::transport::{self, Answer};
use crate::provider::model_client::SetupError;
use crate::provider::stream::lenient::Count;
use crate::support::text;

pub const MAX_DIMENSIONS: usize = 65_536;

#[async_trait]
pub trait EmbeddingClient: Send + Sync {
    /// Returns the vectors of texts in the same order, all with the same dimensions. No request is retried.
    async fn embed(&self, model: &str, texts: &[String], limits: &EmbeddingLimits) -> Result<Embeddings, ModelError>;
}

/// Finds the embedder of an owner.
#[async_trait]
pub trait Embedders: Send + Sync {
    /// Returns the embedder of `model`, a `provider/name`. A provider of the owner, with the owner's key, takes precedence over a
    /// configured one of that name. The error is `request_not_sent`, because no provider has failed.
    async fn embedder(&self, owner: &UserId, model: &str) -> Result<Embedder, ModelError>;
}

/// A model that converts texts to vectors.
#[derive(Clone)]
pub struct Embedder {
    /// Identifies the endpoint: vectors of different endpoints cannot be compared.
    pub endpoint_id: String,
    pub client: Arc<dyn EmbeddingClient>,
    pub model: String,
}

#[derive(Debug, Clone, PartialEq)]
pub struct EmbeddingLimits {
    /// The dimensions to request, for models that offer several. Vectors with other dimensions are refused.
    pub dimensions: Option<u32>,
    /// Whether to request base64, which has a quarter of the bytes. Servers without base64 answer with numbers, or refuse the
    /// request.
    pub base64: bool,
    /// The most texts of one request. Most providers accept 2,048, some only 96 or 32.
    pub texts_per_request: usize,
    /// The most bytes of all texts in one request. OpenAI accepts 300,000 tokens.
    pub bytes_per_request: usize,
    /// The bytes after which a text is cut. Most models accept 8,192 tokens, each of at least one byte.
    pub bytes_per_text: usize,
}

impl Default for EmbeddingLimits {
    fn default() -> Self {
        Self { dimensions: None, base64: false, texts_per_request: 96, bytes_per_request: 300_000, bytes_per_text: 24_000 }
    }
}

/// Returns the embeddings client at the base URL of a provider, or `None` if its dialect has no embeddings.
pub fn client(kind: ProviderKind, mut options: ClientOptions) -> Result<Option<Arc<dyn EmbeddingClient>>, SetupError> {
    let url = match kind {
        ProviderKind::Openai | ProviderKind::OpenaiResponses => endpoint_url(&options.base_url, "/embeddings")?,
        ProviderKind::Ollama => ollama_url(&options.base_url, "embed")?,
        ProviderKind::Anthropic | ProviderKind::Gemini => return Ok(None),
    };
    let headers = key_header("authorization", options.api_key.as_ref())?;
    // The first byte arrives when the answer is complete.
    options.limits.total = options.limits.total.min(WHOLE_ANSWER);
    options.limits.first_byte = options.limits.total;
    Ok(Some(Arc::new(HttpEmbeddings { kind, url, headers, options, connection: OnceLock::new() })))
}

const WHOLE_ANSWER: Duration = Duration::from_secs(180);

struct HttpEmbeddings {
    kind: ProviderKind,
    url: Url,
    headers: HeaderMap,
    options: ClientOptions,
    /// Prepared for the first request, because most providers are never asked for vectors.
    connection: OnceLock<Connection>,
}

#[serde_with::skip_serializing_none]
#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    input: &'a [&'a str],
    dimensions: Option<u32>,
    encoding_format: Option<&'static str>,
}

impl HttpEmbeddings {
    fn connection(&self) -> Result<&Connection, ModelError> {
        if let Some(connection) = self.connection.get() {
            return Ok(connection);
        }
        let connection = self.options.connect(self.headers.clone());
        let connection = connection.map_err(|error| ModelError::new(ModelErrorKind::InvalidRequest, &error.to_string()))?;
        Ok(self.connection.get_or_init(|| connection))
    }

    async fn ask(
        &self,
        connection: &Connection,
        (model, texts): (&str, &[&str]),
        limits: &EmbeddingLimits,
        all: &mut Embeddings,
    ) -> Result<(), ModelError> {
        let format = if limits.base64 { "base64" } else { "float" };
        let encoding_format = Some(format).filter(|_| self.kind != ProviderKind::Ollama);
        let body = written(&Body { model, input: texts, dimensions: limits.dimensions, encoding_format })?;
        let post =
            connection.http.post(self.url.clone()).header(CONTENT_TYPE, "application/json").header(ACCEPT, "application/json");
        let ClientOptions { limits: time_limit, clock, .. } = &self.options;
        let total = Deadline::after(time_limit.total);
        let names = RequestNames { model, tools: &[] };
        let document = match transport::send(post.body(body), || None, None, time_limit, total, clock.now(), names).await? {
            Answer::Document(document) => document,
            Answer::Events(_) => return Err(malformed("the provider sent a stream instead of vectors")),
        };
        let answer: WireAnswer<'_> = serde_json::from_slice(&document).map_err(|error| unreadable(&error))?;
        if let Some(error) = &answer.error {
            return Err(failure::from_event(error));
        }
        all.input_tokens += answer.tokens();
        let vectors = answer.vectors(texts.len())?;
        for vector in vectors {
            check(&vector, limits.dimensions, all.vectors.first())?;
            all.vectors.push(vector);
        }
        Ok(())
    }
}

fn check(vector: &[f32], dimensions: Option<u32>, first: Option<&Vec<f32>>) -> Result<(), ModelError> {
    let expected_len = dimensions.map(|expected_len| expected_len as usize).or(first.map(Vec::len));
    match vector.len() {
        0 => Err(malformed("a vector is empty")),
        len if len > MAX_DIMENSIONS => Err(malformed(&format!("a vector has {len} dimensions, more than {MAX_DIMENSIONS}"))),
        len if expected_len.is_some_and(|expected_len| expected_len != len) => {
            Err(malformed(&format!("a vector has {len} dimensions, not {}", expected_len.unwrap_or(0))))
        }
        _ if vector.iter().any(|number| !number.is_finite()) => {
            Err(malformed("a vector contains a value that is no finite number"))
        }
        _ => Ok(()),
    }
}

#[async_trait]
impl EmbeddingClient for HttpEmbeddings {
    async fn embed(&self, model: &str, texts: &[String], limits: &EmbeddingLimits) -> Result<Embeddings, ModelError> {
        let connection = self.connection()?;
        // Providers refuse a blank text.
        let sendable = texts.iter().map(|input| match input.trim() {
            "" => "-",
            _ => text::prefix(input, limits.bytes_per_text.max(1)),
        });
        let texts: Vec<&str> = sendable.collect();
        let mut all = Embeddings { vectors: Vec::with_capacity(texts.len()), input_tokens: 0 };
        let mut rest = texts.as_slice();
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = rest.iter().take(limits.texts_per_request.max(1)).take_while(|text| {
                bytes += text.len();
                bytes <= limits.bytes_per_request
            });
            let (batch, later) = rest.split_at(fits.count().max(1));
            self.ask(connection, (model, batch), limits, &mut all)
                .await
                .map_err(|error| connection.secrets.redact(self.options.vendor.classify(error)))?;
            rest = later;
        }
        Ok(all)
    }
}

fn malformed(why: &str) -> ModelError {
    ModelError::new(ModelErrorKind::BadStream, why)
}

fn unreadable(error: &serde_json::Error) -> ModelError {
    let kind = if error.is_eof() { ModelErrorKind::IncompleteStream } else { ModelErrorKind::BadStream };
    ModelError::new(kind, &format!("bad_frame: the vectors cannot be read: {error}"))
}

#[derive(Deserialize)]
struct WireAnswer<'a> {
    #[serde(borrow)]
    data: Option<Vec<WireVector<'a>>>,
    #[serde(borrow)]
    embeddings: Option<Vec<&'a RawValue>>,
    usage: Option<WireUsage>,
    #[serde(default)]
    prompt_eval_count: Count,
    error: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct WireVector<'a> {
    index: Option<usize>,
    #[serde(borrow)]
    embedding: &'a RawValue,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireUsage {
    prompt_tokens: Count,
    total_tokens: Count,
}

impl WireAnswer<'_> {
    fn tokens(&self) -> u64 {
        let reported = self.usage.as_ref().and_then(|usage| usage.prompt_tokens.0.or(usage.total_tokens.0));
        reported.or(self.prompt_eval_count.0).unwrap_or(0)
    }

    /// Decodes the vectors of `count` texts in the order of the texts.
    fn vectors(self, count: usize) -> Result<Vec<Vec<f32>>, ModelError> {
        let mut ordered: Vec<Option<Vec<f32>>> = vec![None; count];
        let vectors = match (self.data, self.embeddings) {
            (Some(data), _) => data,
            (None, Some(lists)) => lists.into_iter().map(|embedding| WireVector { index: None, embedding }).collect(),
            (None, None) => return Err(malformed("the answer contains no vectors")),
        };
        if vectors.len() != count {
            return Err(malformed(&format!("the answer has {} vectors for {count} texts", vectors.len())));
        }
        for (at, WireVector { index, embedding }) in vectors.into_iter().enumerate() {
            let index = index.unwrap_or(at);
            match ordered.get_mut(index) {
                Some(endpoint_id @ None) => *endpoint_id = Some(read(embedding)?),
                Some(Some(_)) => return Err(malformed(&format!("two vectors have the index {index}"))),
                None => return Err(malformed(&format!("a vector has the index {index}, but the request has {count} texts"))),
            }
        }
        Ok(ordered.into_iter().flatten().collect())
    }
}

/// Decodes a vector: a list of numbers, or little-endian floats of 32 bits in base64.
fn read(vector: &RawValue) -> Result<Vec<f32>, ModelError> {
    if !vector.get().starts_with('"') {
        return serde_json::from_str(vector.get()).map_err(|error| unreadable(&error));
    }
    let text: String = serde_json::from_str(vector.get()).map_err(|error| unreadable(&error))?;
    let bytes = STANDARD.decode(text).map_err(|_| malformed("a vector is not valid base64"))?;
    let (floats, []) = bytes.as_chunks::<4>() else { return Err(malformed("a vector ends within a number")) };
    Ok(floats.iter().map(|float| f32::from_le_bytes(*float)).collect())
}
