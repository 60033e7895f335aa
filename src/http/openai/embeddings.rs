//! `/v1/embeddings`: vectors of texts, by a model of a provider.

use axum::Json;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::http::openai::target::without_agent;
use crate::http::wire::auth::Caller;
use crate::http::wire::extract::Input;
use crate::http::wire::problem::HttpResult;
use crate::service::Error;
use crate::support::tokens::Tokenizer;

/// Limit of texts of one request, as at OpenAI.
const MAX_TEXTS: usize = 2_048;

#[derive(Deserialize, ToSchema)]
pub(super) struct EmbeddingsRequest {
    model: String,
    input: Inputs,
    encoding_format: Option<EncodingFormat>,
    dimensions: Option<u32>,
}

#[derive(Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a text, a list of texts, a list of tokens, or a list of lists of tokens")]
enum Inputs {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<u32>),
    TokenLists(Vec<Vec<u32>>),
}

#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum EncodingFormat {
    Float,
    Base64,
}

impl Inputs {
    /// Returns the texts. Decodes tokens with `cl100k_base`, the encoding of OpenAI's embedding models, because clients use it.
    fn texts(self) -> Result<Vec<String>, Error> {
        let texts = match self {
            Self::Text(text) => vec![text],
            Self::Texts(texts) => texts,
            Self::Tokens(tokens) => vec![text_of(&tokens, "/input")?],
            Self::TokenLists(lists) => {
                let decoded = lists.iter().enumerate().map(|(index, tokens)| text_of(tokens, &format!("/input/{index}")));
                decoded.collect::<Result<_, _>>()?
            }
        };
        match texts.len() {
            0 => return Err(Error::field("/input", "must contain at least one text")),
            1..=MAX_TEXTS => {}
            count => return Err(Error::field("/input", format!("has {count} texts, more than the limit of {MAX_TEXTS}"))),
        }
        match texts.iter().position(|text| text.trim().is_empty()) {
            Some(index) => Err(Error::field(&format!("/input/{index}"), "is blank, and has no meaning")),
            None => Ok(texts),
        }
    }
}

fn text_of(tokens: &[u32], pointer: &str) -> Result<String, Error> {
    let unknown = || Error::field(pointer, "contains a number that is no token of cl100k_base; send texts instead");
    Tokenizer::Cl100kBase.text_of(tokens).ok_or_else(unknown)
}

#[derive(Serialize)]
pub(super) struct EmbeddingList {
    object: &'static str,
    data: Vec<Embedding>,
    model: String,
    usage: Usage,
}

#[derive(Serialize)]
struct Embedding {
    object: &'static str,
    index: usize,
    embedding: Vector,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Vector {
    Floats(Vec<f32>),
    /// Little-endian floats of 32 bits.
    Base64(String),
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: u64,
    total_tokens: u64,
}

/// Returns the vectors of texts
///
/// `model` is `provider/name`, of a provider that supports the embeddings API of OpenAI or Ollama.
#[utoipa::path(
    post, path = "/v1/embeddings", tag = "embeddings", operation_id = "openai_create_embeddings", request_body = EmbeddingsRequest,
    responses((status = 200, description = "The vectors in the order of the texts", body = Object)),
)]
pub(super) async fn create(caller: Caller, Input { body, .. }: Input<EmbeddingsRequest>) -> HttpResult<Json<EmbeddingList>> {
    let EmbeddingsRequest { model, input, encoding_format, dimensions } = body;
    if dimensions == Some(0) {
        return Err(Error::field("/dimensions", "must be at least 1").into());
    }
    let texts = input.texts()?;
    let embeddings = caller.app.service.embeddings(&caller.principal, &model, &texts, dimensions).await;
    let embeddings = embeddings.map_err(|error| without_agent(error.into()))?;
    let vector = |floats: Vec<f32>| match encoding_format {
        None | Some(EncodingFormat::Float) => Vector::Floats(floats),
        Some(EncodingFormat::Base64) => {
            Vector::Base64(STANDARD.encode(floats.iter().flat_map(|float| float.to_le_bytes()).collect::<Vec<_>>()))
        }
    };
    let data = embeddings.vectors.into_iter().enumerate();
    let data = data.map(|(index, floats)| Embedding { object: "embedding", index, embedding: vector(floats) }).collect();
    let usage = Usage { prompt_tokens: embeddings.input_tokens, total_tokens: embeddings.input_tokens };
    Ok(Json(EmbeddingList { object: "list", data, model, usage }))
}
