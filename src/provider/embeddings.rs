//! Texts as vectors: OpenAI's `/embeddings`, which most providers and local servers have, and Ollama's `/api/embed`.
//!
//! Facts about the wires: <https://platform.openai.com/docs/api-reference/embeddings>, <https://docs.ollama.com/api/embed>.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::Url;
use reqwest::header::{ACCEPT, CONTENT_TYPE};
use serde::de::value::SeqAccessDeserializer;
use serde::de::{Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

use super::client::ClientOptions;
use super::connection::{Connection, key_header};
use super::endpoint::{endpoint_url, ollama_url};
use super::failure::{self, RequestNames};
use super::json_body::written;
use super::limits::{Deadline, StreamLimits};
use super::model_client::SetupError;
use super::stream::lenient::Count;
use super::transport::{self, Answer};
use super::vendors::Vendor;
use crate::domain::ids::UserId;
use crate::domain::model::{ModelError, ModelErrorKind};
use crate::domain::provider::ProviderKind;
use crate::support::clock::SharedClock;
use crate::support::text;

/// The most dimensions that a vector may have.
pub const MAX_DIMENSIONS: usize = 65_536;

/// Turns texts into vectors.
#[async_trait]
pub trait EmbeddingClient: Send + Sync {
    /// The vectors of texts, in their order, all with the same number of dimensions. A text that is longer than the limit of the
    /// client is cut.
    ///
    /// # Errors
    /// A typed failure of the first request that fails; none is retried here.
    async fn embed(&self, model: &str, texts: &[String]) -> Result<Embeddings, ModelError>;
}

/// Finds who turns texts into vectors for the runs of an owner.
#[async_trait]
pub trait Embedders: Send + Sync {
    /// Whoever serves `model`, a `provider/name`, to the owner: with their own key if they keep a provider of that name, which
    /// nobody else's runs use.
    ///
    /// # Errors
    /// If nobody does. `not_asked` then, because no provider has failed.
    async fn embedder(&self, owner: &UserId, model: &str) -> Result<Embedder, ModelError>;
}

/// Who turns texts into vectors.
#[derive(Clone)]
pub struct Embedder {
    /// What tells places apart: vectors of one mean nothing at another.
    pub place: String,
    /// The client.
    pub client: Arc<dyn EmbeddingClient>,
    /// The bare name of the model.
    pub model: String,
}

/// Vectors of texts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Embeddings {
    /// One for each text, in order.
    pub vectors: Vec<Vec<f32>>,
    /// Tokens of the texts, as far as the provider counts them.
    pub input_tokens: u64,
}

/// What vectors are asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct EmbeddingLimits {
    /// Dimensions, for models that give a choice. What has others is refused.
    pub dimensions: Option<u32>,
    /// Whether to ask for base64, which is a quarter of the bytes. Servers that do not know it answer with numbers, or refuse.
    pub base64: bool,
    /// Texts of one request. Most providers take 2,048, some 96 or 32.
    pub texts_per_request: usize,
    /// Bytes of all texts of one request. `OpenAI` takes 300,000 tokens.
    pub bytes_per_request: usize,
    /// Bytes of a text. Most models take 8,192 tokens, of at least one byte each in the worst case.
    pub bytes_per_text: usize,
}

impl Default for EmbeddingLimits {
    fn default() -> Self {
        Self { dimensions: None, base64: false, texts_per_request: 96, bytes_per_request: 300_000, bytes_per_text: 24_000 }
    }
}

/// The client of embeddings of a kind of provider; `None` if its wire has none.
///
/// # Errors
/// If the base URL, the key or a header cannot be used.
pub fn client(
    kind: ProviderKind,
    options: ClientOptions,
    limits: EmbeddingLimits,
) -> Result<Option<Arc<dyn EmbeddingClient>>, SetupError> {
    match kind {
        ProviderKind::Openai | ProviderKind::OpenaiResponses => openai(options, limits).map(Some),
        ProviderKind::Ollama => ollama(options, limits).map(Some),
        ProviderKind::Anthropic | ProviderKind::Gemini => Ok(None),
    }
}

/// A client of OpenAI's embeddings. A base URL without any path gets `/v1`. No connection is made yet.
///
/// # Errors
/// If the base URL, the key or a header cannot be used.
pub fn openai(options: ClientOptions, limits: EmbeddingLimits) -> Result<Arc<dyn EmbeddingClient>, SetupError> {
    let url = endpoint_url(&options.base_url, "/embeddings")?;
    Ok(Arc::new(HttpEmbeddings::new(Wire::OpenAi, url, options, limits)?))
}

/// A client of an Ollama, whose base URL may end in `/api`, in `/v1` or in neither. No connection is made yet.
///
/// # Errors
/// If the base URL, the key or a header cannot be used.
pub fn ollama(options: ClientOptions, limits: EmbeddingLimits) -> Result<Arc<dyn EmbeddingClient>, SetupError> {
    let url = ollama_url(&options.base_url, "embed")?;
    Ok(Arc::new(HttpEmbeddings::new(Wire::Ollama, url, options, limits)?))
}

/// The longest wait for vectors.
const WHOLE_ANSWER: Duration = Duration::from_secs(180);

#[derive(Debug, Clone, Copy)]
enum Wire {
    OpenAi,
    Ollama,
}

struct HttpEmbeddings {
    wire: Wire,
    url: Url,
    connection: Connection,
    limits: EmbeddingLimits,
    patience: StreamLimits,
    clock: SharedClock,
    vendor: Vendor,
}

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    input: &'a [&'a str],
    #[serde(skip_serializing_if = "Option::is_none")]
    dimensions: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    encoding_format: Option<&'static str>,
}

impl HttpEmbeddings {
    fn new(wire: Wire, url: Url, options: ClientOptions, limits: EmbeddingLimits) -> Result<Self, SetupError> {
        let connection = options.connect(key_header("authorization", options.key())?)?;
        let ClientOptions { limits: mut patience, clock, vendor, .. } = options;
        // The first byte of an answer comes when all of it is there.
        patience.total = patience.total.min(WHOLE_ANSWER);
        patience.first_byte = patience.total;
        Ok(Self { wire, url, connection, limits, patience, clock, vendor })
    }

    async fn ask(&self, model: &str, texts: &[&str], all: &mut Embeddings) -> Result<(), ModelError> {
        let encoding_format = match self.wire {
            Wire::OpenAi => Some(if self.limits.base64 { "base64" } else { "float" }),
            Wire::Ollama => None,
        };
        let body = written(&Body { model, input: texts, dimensions: self.limits.dimensions, encoding_format })?;
        let post =
            self.connection.http.post(self.url.clone()).header(CONTENT_TYPE, "application/json").header(ACCEPT, "application/json");
        let total = Deadline::after(self.patience.total);
        let names = RequestNames { model, tools: &[] };
        let document = match transport::send(post.body(body), None, &self.patience, total, self.clock.now(), names).await? {
            Answer::Document(document) => document,
            Answer::Events(_) => return Err(bad("the provider sent a stream instead of vectors")),
        };
        let answer: WireAnswer = serde_json::from_slice(&document).map_err(|error| {
            let kind = if error.is_eof() { ModelErrorKind::IncompleteStream } else { ModelErrorKind::BadStream };
            ModelError::new(kind, &format!("bad_frame: the vectors cannot be read: {error}"))
        })?;
        if let Some(error) = &answer.error {
            return Err(failure::from_event(error));
        }
        all.input_tokens += answer.tokens();
        let vectors = answer.vectors(texts.len())?;
        for vector in vectors {
            self.check(&vector, all.vectors.first())?;
            all.vectors.push(vector);
        }
        Ok(())
    }

    fn check(&self, vector: &[f32], first: Option<&Vec<f32>>) -> Result<(), ModelError> {
        let wanted = self.limits.dimensions.map(|wanted| wanted as usize).or(first.map(Vec::len));
        match vector.len() {
            0 => Err(bad("a vector is empty")),
            len if len > MAX_DIMENSIONS => Err(bad(&format!("a vector has {len} dimensions, more than {MAX_DIMENSIONS}"))),
            len if wanted.is_some_and(|wanted| wanted != len) => {
                Err(bad(&format!("a vector has {len} dimensions, not {}", wanted.unwrap_or(0))))
            }
            _ if vector.iter().any(|number| !number.is_finite()) => Err(bad("a vector holds what is no number")),
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl EmbeddingClient for HttpEmbeddings {
    async fn embed(&self, model: &str, texts: &[String]) -> Result<Embeddings, ModelError> {
        // Providers refuse a text without words.
        let said = |text: &'static str, given: &str| if given.trim().is_empty() { Some(text) } else { None };
        let texts: Vec<&str> = texts
            .iter()
            .map(|given| said("-", given).unwrap_or_else(|| text::prefix(given, self.limits.bytes_per_text.max(1))))
            .collect();
        let mut all = Embeddings { vectors: Vec::with_capacity(texts.len()), input_tokens: 0 };
        let mut rest = texts.as_slice();
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = rest.iter().take(self.limits.texts_per_request.max(1)).take_while(|text| {
                bytes += text.len();
                bytes <= self.limits.bytes_per_request
            });
            let (batch, later) = rest.split_at(fits.count().max(1));
            self.ask(model, batch, &mut all).await.map_err(|error| self.connection.secrets.hide(self.vendor.classify(error)))?;
            rest = later;
        }
        Ok(all)
    }
}

fn bad(why: &str) -> ModelError {
    ModelError::new(ModelErrorKind::BadStream, why)
}

/// An answer of either wire.
#[derive(Deserialize)]
struct WireAnswer {
    #[serde(default)]
    data: Option<Vec<WireVector>>,
    #[serde(default)]
    embeddings: Option<Vec<Vec<f32>>>,
    #[serde(default)]
    usage: Option<WireUsage>,
    #[serde(default)]
    prompt_eval_count: Count,
    #[serde(default)]
    error: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct WireVector {
    #[serde(default)]
    index: Option<usize>,
    embedding: Numbers,
}

enum Numbers {
    List(Vec<f32>),
    /// Little-endian floats of 32 bits in base64.
    Base64(String),
}

impl<'de> Deserialize<'de> for Numbers {
    /// Not derived as untagged: serde would buffer the list, and floats that `serde_json` keeps as text are read from no buffer.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Form;
        impl<'de> Visitor<'de> for Form {
            type Value = Numbers;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of numbers, or base64")
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Numbers::Base64(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(list)).map(Numbers::List)
            }
        }
        deserializer.deserialize_any(Form)
    }
}

#[derive(Deserialize)]
struct WireUsage {
    #[serde(default)]
    prompt_tokens: Count,
    #[serde(default)]
    total_tokens: Count,
}

impl WireAnswer {
    fn tokens(&self) -> u64 {
        let said = self.usage.as_ref().and_then(|usage| usage.prompt_tokens.0.or(usage.total_tokens.0));
        said.or(self.prompt_eval_count.0).unwrap_or(0)
    }

    /// The vectors of `count` texts in the order of the texts.
    fn vectors(self, count: usize) -> Result<Vec<Vec<f32>>, ModelError> {
        let mut ordered: Vec<Option<Vec<f32>>> = vec![None; count];
        let given = match (self.data, self.embeddings) {
            (Some(data), _) => data,
            (None, Some(lists)) => {
                lists.into_iter().map(|list| WireVector { index: None, embedding: Numbers::List(list) }).collect()
            }
            (None, None) => return Err(bad("the answer holds no vectors")),
        };
        if given.len() != count {
            return Err(bad(&format!("{} vectors came for {count} texts", given.len())));
        }
        for (at, WireVector { index, embedding }) in given.into_iter().enumerate() {
            let index = index.unwrap_or(at);
            match ordered.get_mut(index) {
                Some(place @ None) => *place = Some(embedding.read()?),
                Some(Some(_)) => return Err(bad(&format!("two vectors have the index {index}"))),
                None => return Err(bad(&format!("a vector has the index {index}, and there are {count} texts"))),
            }
        }
        Ok(ordered.into_iter().flatten().collect())
    }
}

impl Numbers {
    fn read(self) -> Result<Vec<f32>, ModelError> {
        match self {
            Self::List(list) => Ok(list),
            Self::Base64(text) => {
                let bytes = STANDARD.decode(text).map_err(|_| bad("a vector is no base64"))?;
                let (floats, []) = bytes.as_chunks::<4>() else { return Err(bad("a vector ends within a number")) };
                Ok(floats.iter().map(|float| f32::from_le_bytes(*float)).collect())
            }
        }
    }
}
