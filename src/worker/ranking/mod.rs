//! Ranks tools for a user's message: by vectors if an embedding model answers in time, else lexically.
//!
//! Owns the caches of vectors and indexes. Must not fail a run, or know what its tools do.

mod lexical;
mod vectors;

use std::sync::Arc;
use std::time::Duration;

use crate::domain::ids::UserId;
use crate::domain::tool::{RankedTools, SelectionMethod, ToolDefinition};
use crate::provider::embeddings::{Embedders, EmbeddingLimits};

use lexical::Lexical;
use vectors::Vectors;

/// The maximum number of tools that are ranked, which limits the cost of one run. Further tools follow unranked. Five MCP servers
/// with the maximum number of tools offer as many.
const MAX_RANKED: usize = 5_000;

#[derive(Clone)]
pub struct EmbeddingSource {
    pub embedders: Arc<dyn Embedders>,
    /// As `provider/name`.
    pub model: String,
    /// The time limit for all vectors of a run.
    pub time_limit: Duration,
    pub limits: EmbeddingLimits,
    /// The size of the cache of vectors.
    pub cache_bytes: usize,
}

pub struct Ranker {
    lexical: Lexical,
    vectors: Option<Vectors>,
}

impl Ranker {
    pub fn new(source: Option<EmbeddingSource>) -> Self {
        Self { lexical: Lexical::default(), vectors: source.map(Vectors::new) }
    }

    /// Returns the names of the tools, the best match for `query` first.
    pub async fn rank(&self, owner: &UserId, query: &str, mut tools: Vec<Arc<ToolDefinition>>) -> RankedTools {
        tools.truncate(MAX_RANKED);
        let ranked = match self.by_meaning(owner, query, &tools).await {
            Some(names) => RankedTools { by: SelectionMethod::Semantic, names },
            None => RankedTools { by: SelectionMethod::Lexical, names: self.lexical.order(query, &tools) },
        };
        metrics::counter!("capstan_tool_rankings_total", "by" => ranked.by.as_str()).increment(1);
        tracing::debug!(by = ranked.by.as_str(), tools = tools.len(), "tools ranked");
        ranked
    }

    async fn by_meaning(&self, owner: &UserId, query: &str, tools: &[Arc<ToolDefinition>]) -> Option<Vec<String>> {
        // An empty query has no meaning.
        let vectors = self.vectors.as_ref().filter(|_| !query.trim().is_empty())?;
        match vectors.order(owner, query, tools).await {
            Ok(names) => Some(names),
            Err(error) => {
                metrics::counter!("capstan_embedding_failures_total", "code" => error.kind.code()).increment(1);
                if !error.request_not_sent {
                    let (code, error) = (error.kind.code(), error.message);
                    tracing::warn!(code, error, "tools are ranked lexically, because no vectors are available");
                }
                None
            }
        }
    }
}
