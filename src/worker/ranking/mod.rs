//! Puts tools in order, the fittest for what a user says first: by meaning, if there is a model that turns texts into vectors and
//! it answers in time, and else by words.
//!
//! Owns what this process remembers for that: vectors of tools and indexes of their words. A run never fails because of it.

mod lexical;
mod vectors;

use std::sync::Arc;
use std::time::Duration;

use crate::domain::ids::UserId;
use crate::domain::tool::ToolDefinition;
use crate::domain::tool_filter::{ChosenBy, RankedTools};
use crate::provider::embeddings::Embedders;

use lexical::Lexical;
use vectors::Vectors;

/// The most tools that are put in order; more come behind them. It bounds what one run can cost its process, and is what five
/// servers of the largest kind offer.
const MAX_RANKED: usize = 5_000;

/// Where vectors come from.
#[derive(Clone)]
pub struct EmbeddingSource {
    /// Whom to ask.
    pub embedders: Arc<dyn Embedders>,
    /// The model, as `provider/name`.
    pub model: String,
    /// How long a run waits for all that it needs.
    pub patience: Duration,
    /// Texts of one request.
    pub texts_per_request: usize,
    /// How many bytes of vectors are remembered.
    pub cache_bytes: usize,
}

/// See the module documentation.
pub struct Ranker {
    lexical: Lexical,
    vectors: Option<Vectors>,
}

impl Ranker {
    /// One that remembers nothing yet.
    pub fn new(source: Option<EmbeddingSource>) -> Self {
        Self { lexical: Lexical::default(), vectors: source.map(Vectors::new) }
    }

    /// The names of the tools, the fittest for `query` first.
    pub async fn rank(&self, owner: &UserId, query: &str, mut tools: Vec<Arc<ToolDefinition>>) -> RankedTools {
        tools.truncate(MAX_RANKED);
        let ranked = match self.by_meaning(owner, query, &tools).await {
            Some(names) => RankedTools { by: ChosenBy::Semantic, names },
            None => RankedTools { by: ChosenBy::Lexical, names: self.lexical.order(query, &tools) },
        };
        metrics::counter!("capstan_tool_rankings_total", "by" => ranked.by.as_str()).increment(1);
        tracing::debug!(by = ranked.by.as_str(), tools = tools.len(), "tools were put in order");
        ranked
    }

    async fn by_meaning(&self, owner: &UserId, query: &str, tools: &[Arc<ToolDefinition>]) -> Option<Vec<String>> {
        // What says nothing means nothing.
        let vectors = self.vectors.as_ref().filter(|_| !query.trim().is_empty())?;
        match vectors.order(owner, query, tools).await {
            Ok(names) => Some(names),
            Err(error) => {
                metrics::counter!("capstan_embedding_failures_total", "code" => error.kind.code()).increment(1);
                if !error.not_asked {
                    let (code, error) = (error.kind.code(), error.message);
                    tracing::warn!(code, error, "tools are ranked by words: there are no vectors");
                }
                None
            }
        }
    }
}
