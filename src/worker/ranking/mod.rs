//! Ranks tools by what a user says: by vectors, if an embedding model answers in time, and else by words.
//!
//! Owns the caches of vectors and indexes. A run never fails because of ranking.

mod lexical;
mod vectors;

use std::sync::Arc;
use std::time::Duration;

use crate::domain::ids::UserId;
use crate::domain::tool::ToolDefinition;
use crate::domain::tool::tool_filter::{ChosenBy, RankedTools};
use crate::provider::embeddings::Embedders;

use lexical::Lexical;
use vectors::Vectors;

/// The most tools that are ranked, which bounds the cost of one run; further ones follow unranked. Five servers of the largest kind
/// offer as many.
const MAX_RANKED: usize = 5_000;

#[derive(Clone)]
pub struct EmbeddingSource {
    pub embedders: Arc<dyn Embedders>,
    /// As `provider/name`.
    pub model: String,
    /// The time limit for all vectors of a run.
    pub patience: Duration,
    pub texts_per_request: usize,
    /// The size of the cache of vectors.
    pub cache_bytes: usize,
}

/// See the module documentation.
pub struct Ranker {
    lexical: Lexical,
    vectors: Option<Vectors>,
}

impl Ranker {
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
        // An empty query has no meaning.
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
