//! Semantic ranking of tools: the cosine between vectors of the user's message and of tools' descriptions.
//!
//! A tool's vector is requested once per endpoint and definition. Vectors that arrived before a timeout stay in the cache for the next run.
//! Endpoints are distinguished by owner: vectors of one user's endpoint are never used for another's runs.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::EmbeddingSource;
use super::lexical::by_score;
use crate::domain::ids::UserId;
use crate::domain::model::{ModelError, ModelErrorKind};
use crate::domain::tool::ToolDefinition;
use crate::provider::embeddings::Embedder;
use crate::support::locks::lock;

/// The cool-down of an endpoint after a failure, because otherwise each run would wait for it again.
const COOL_DOWN: Duration = Duration::from_secs(30);

/// The number of endpoints above which the state of unused endpoints is dropped.
const MAX_ENDPOINTS: usize = 1_000;

type Key = [u8; 32];
type Vector = Arc<[f32]>;

pub(super) struct Vectors {
    source: EmbeddingSource,
    cache: Cache<Key, Vector>,
    endpoints: Mutex<HashMap<String, EndpointState>>,
}

#[derive(Default, Clone)]
struct EndpointState {
    /// Locked by the run that requests vectors of tools, since others would request the same ones.
    asking: Arc<tokio::sync::Mutex<()>>,
    failed: Option<Instant>,
}

impl Vectors {
    pub(super) fn new(source: EmbeddingSource) -> Self {
        let size = |_: &Key, vector: &Vector| u32::try_from(size(vector)).unwrap_or(u32::MAX);
        let capacity = source.cache_bytes as u64;
        let cache = Cache::builder().max_capacity(capacity).weigher(size).eviction_policy(EvictionPolicy::lru()).build();
        Self { source, cache, endpoints: Mutex::default() }
    }

    /// Returns the names of the tools, the nearest first. Fails if vectors are missing after the time limit; with `request_not_sent`, if the
    /// endpoint failed recently.
    pub(super) async fn order(
        &self,
        owner: &UserId,
        query: &str,
        tools: &[Arc<ToolDefinition>],
    ) -> Result<Vec<String>, ModelError> {
        let time_limit = self.source.time_limit;
        let timeout_error =
            |_| ModelError::new(ModelErrorKind::Timeout, &format!("vectors took longer than {} ms", time_limit.as_millis()));
        let began = Instant::now();
        let found = tokio::time::timeout(time_limit, self.source.embedders.embedder(owner, &self.source.model));
        let embedder = found.await.map_err(timeout_error)??;
        if let Some(failed) = self.endpoint_state(&embedder.endpoint_id).failed.filter(|failed| failed.elapsed() < COOL_DOWN) {
            let left = COOL_DOWN.saturating_sub(failed.elapsed()).as_secs();
            let mut error =
                ModelError::new(ModelErrorKind::Unavailable, &format!("failed recently and is not asked for another {left} s"));
            error.request_not_sent = true;
            return Err(error);
        }
        let (sent, came) = (AtomicBool::new(false), AtomicBool::new(false));
        let left = time_limit.saturating_sub(began.elapsed());
        let scored = tokio::time::timeout(left, self.scored(&embedder, query, tools, (&sent, &came))).await;
        let scored = scored.map_err(timeout_error).and_then(|scored| scored);
        // A run that only waited for another run knows nothing about the endpoint. An endpoint that refuses a text is available.
        let is_refused = scored.as_ref().is_err_and(|error| error.kind == ModelErrorKind::InvalidRequest);
        if sent.load(Ordering::Relaxed)
            && let Some(endpoint) = lock(&self.endpoints).get_mut(&embedder.endpoint_id)
        {
            endpoint.failed = (scored.is_err() && !is_refused && !came.load(Ordering::Relaxed)).then(Instant::now);
        }
        Ok(by_score(scored?.into_iter().zip(tools.iter().map(|tool| &tool.name))))
    }

    fn endpoint_state(&self, name: &str) -> EndpointState {
        let mut endpoints = lock(&self.endpoints);
        if endpoints.len() >= MAX_ENDPOINTS && !endpoints.contains_key(name) {
            endpoints.retain(|_, endpoint| Arc::strong_count(&endpoint.asking) > 1);
        }
        endpoints.entry(name.to_owned()).or_default().clone()
    }

    async fn scored(
        &self,
        embedder: &Embedder,
        query: &str,
        tools: &[Arc<ToolDefinition>],
        (sent, came): (&AtomicBool, &AtomicBool),
    ) -> Result<Vec<f32>, ModelError> {
        let texts: Vec<String> = tools.iter().map(|tool| format!("{}: {}", tool.name, tool.description)).collect();
        let keys: Vec<Key> = texts.iter().map(|text| key(embedder, text)).collect();
        let mut known = self.known(&keys);
        let asking = self.endpoint_state(&embedder.endpoint_id).asking;
        let _asking = if known.len() < texts.len() { Some(asking.lock().await) } else { None };
        // Another run may have requested them meanwhile.
        if known.len() < texts.len() {
            known = self.known(&keys);
        }
        let missing: Vec<(Key, &String)> = keys.iter().copied().zip(&texts).filter(|(key, _)| !known.contains_key(key)).collect();
        let per_request = self.source.limits.texts_per_request.max(2);
        let (first, rest) = missing.split_at(missing.len().min(per_request - 1));
        let mut query_vector = None;
        for batch in std::iter::once(first).chain(rest.chunks(per_request)) {
            let with_query = query_vector.is_none().then(|| query.to_owned());
            let batch_texts: Vec<String> = with_query.into_iter().chain(batch.iter().map(|(_, text)| (*text).clone())).collect();
            sent.store(true, Ordering::Relaxed);
            let vectors = embedder.client.embed(&embedder.model, &batch_texts, &self.source.limits).await?;
            came.store(true, Ordering::Relaxed);
            metrics::counter!("capstan_embedding_tokens_total").increment(vectors.input_tokens);
            let mut vectors = vectors.vectors.into_iter().map(unit);
            let query = match query_vector.take() {
                Some(query) => query,
                None => vectors.next().ok_or_else(|| malformed("the answer has too few vectors"))?,
            };
            query_vector = Some(query);
            let new: Vec<(Key, Vector)> = batch.iter().map(|(key, _)| *key).zip(vectors).collect();
            new.iter().for_each(|(key, vector)| self.cache.insert(*key, Arc::clone(vector)));
            self.cache.run_pending_tasks();
            known.extend(new);
        }
        let query_vector = query_vector.ok_or_else(|| malformed("the answer has too few vectors"))?;
        let scores: Option<Vec<f32>> = keys.iter().map(|key| dot(&query_vector, known.get(key)?)).collect();
        scores.ok_or_else(|| {
            // The model behind the name now returns vectors of another dimension, so the cached ones are useless.
            keys.iter().for_each(|key| self.cache.invalidate(key));
            malformed("vectors have different dimensions")
        })
    }

    fn known(&self, keys: &[Key]) -> HashMap<Key, Vector> {
        keys.iter().filter_map(|key| Some((*key, self.cache.get(key)?))).collect()
    }
}

fn malformed(why: &str) -> ModelError {
    ModelError::new(ModelErrorKind::BadStream, why)
}

fn key(embedder: &Embedder, text: &str) -> Key {
    let mut hash = Sha256::new();
    for part in [embedder.endpoint_id.as_str(), &embedder.model, text] {
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

/// Returns the bytes of a cached vector and its key.
fn size(vector: &Vector) -> usize {
    size_of_val(&**vector) + 128
}

/// Normalizes a vector, so that a product of two is their cosine. A zero vector stays.
fn unit(mut vector: Vec<f32>) -> Vector {
    let length = vector.iter().map(|part| f64::from(*part).powi(2)).sum::<f64>().sqrt();
    if length > 0.0 {
        #[expect(clippy::cast_possible_truncation, reason = "a part of a vector of length 1 fits")]
        vector.iter_mut().for_each(|part| *part = (f64::from(*part) / length) as f32);
    }
    vector.into()
}

fn dot(one: &[f32], other: &[f32]) -> Option<f32> {
    (one.len() == other.len()).then(|| one.iter().zip(other).map(|(one, other)| one * other).sum())
}
