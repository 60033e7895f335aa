//! The order of tools by meaning: the cosine between vectors of what was said and of what tools say of themselves.
//!
//! A tool's vector is asked for once for each place and definition. What has come of a request that was too late as a whole is
//! kept, so that the next run needs less. A place is what its owner calls so: vectors of one person's endpoint are never used
//! for another's runs.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::EmbeddingSource;
use super::lexical::by_score;
use crate::domain::ids::UserId;
use crate::domain::model::{ModelError, ModelErrorKind};
use crate::domain::tool::ToolDefinition;
use crate::provider::embeddings::Embedder;

/// How long a place is left alone that has given nothing: without this, each run would wait for it anew.
const LEFT_ALONE: Duration = Duration::from_secs(30);

/// The most places whose state is remembered.
const PLACES: usize = 1_000;

type Key = [u8; 32];
type Vector = Arc<[f32]>;

/// See the module documentation.
pub(super) struct Vectors {
    source: EmbeddingSource,
    kept: Mutex<Kept>,
    places: Mutex<HashMap<String, Place>>,
}

#[derive(Default)]
struct Kept {
    vectors: HashMap<Key, (Vector, u64)>,
    bytes: usize,
    /// Counts uses, to tell what was not used for long.
    uses: u64,
}

#[derive(Default, Clone)]
struct Place {
    /// Held by the one run that asks for vectors of tools: others would ask for the same.
    asking: Arc<tokio::sync::Mutex<()>>,
    failed: Option<Instant>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Vectors {
    pub(super) fn new(source: EmbeddingSource) -> Self {
        Self { source, kept: Mutex::default(), places: Mutex::default() }
    }

    /// The names of the tools, the nearest first.
    ///
    /// # Errors
    /// If there is nobody to be asked, or what is missing does not come in time. `not_asked` if the place is left alone.
    pub(super) async fn order(
        &self,
        owner: &UserId,
        query: &str,
        tools: &[Arc<ToolDefinition>],
    ) -> Result<Vec<String>, ModelError> {
        let patience = self.source.patience;
        let late = |_| ModelError::new(ModelErrorKind::Timeout, &format!("vectors took longer than {} ms", patience.as_millis()));
        let began = Instant::now();
        let found = tokio::time::timeout(patience, self.source.embedders.embedder(owner, &self.source.model));
        let embedder = found.await.map_err(late)??;
        if let Some(failed) = self.place(&embedder.place).failed.filter(|failed| failed.elapsed() < LEFT_ALONE) {
            let left = LEFT_ALONE.saturating_sub(failed.elapsed()).as_secs();
            let mut error = ModelError::new(ModelErrorKind::Unavailable, &format!("is left alone for {left} s"));
            error.not_asked = true;
            return Err(error);
        }
        let (sent, came) = (AtomicBool::new(false), AtomicBool::new(false));
        let left = patience.saturating_sub(began.elapsed());
        let scored = tokio::time::timeout(left, self.scored(&embedder, query, tools, (&sent, &came))).await;
        let scored = scored.map_err(late).and_then(|scored| scored);
        // Whoever only stood behind another one knows nothing of the place, and one that refuses a text is well.
        let is_refused = scored.as_ref().is_err_and(|error| error.kind == ModelErrorKind::InvalidRequest);
        if sent.load(Ordering::Relaxed)
            && let Some(place) = lock(&self.places).get_mut(&embedder.place)
        {
            place.failed = (scored.is_err() && !is_refused && !came.load(Ordering::Relaxed)).then(Instant::now);
        }
        Ok(by_score(scored?.into_iter().zip(tools.iter().map(|tool| &tool.name))))
    }

    fn place(&self, name: &str) -> Place {
        let mut places = lock(&self.places);
        if places.len() >= PLACES && !places.contains_key(name) {
            places.retain(|_, place| Arc::strong_count(&place.asking) > 1);
        }
        places.entry(name.to_owned()).or_default().clone()
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
        let asking = self.place(&embedder.place).asking;
        let _asking = if known.len() < texts.len() { Some(asking.lock().await) } else { None };
        // Whoever was first has asked for them.
        if known.len() < texts.len() {
            known = self.known(&keys);
        }
        let missing: Vec<(Key, &String)> = keys.iter().copied().zip(&texts).filter(|(key, _)| !known.contains_key(key)).collect();
        let per_request = self.source.texts_per_request.max(2);
        let (first, rest) = missing.split_at(missing.len().min(per_request - 1));
        let mut asked = None;
        for batch in std::iter::once(first).chain(rest.chunks(per_request)) {
            let with_query = asked.is_none().then(|| query.to_owned());
            let wanted: Vec<String> = with_query.into_iter().chain(batch.iter().map(|(_, text)| (*text).clone())).collect();
            sent.store(true, Ordering::Relaxed);
            let vectors = embedder.client.embed(&embedder.model, &wanted).await?;
            came.store(true, Ordering::Relaxed);
            metrics::counter!("capstan_embedding_tokens_total").increment(vectors.input_tokens);
            let mut vectors = vectors.vectors.into_iter().map(unit);
            let query = match asked.take() {
                Some(query) => query,
                None => vectors.next().ok_or_else(|| bad("no vector came"))?,
            };
            asked = Some(query);
            let new: Vec<(Key, Vector)> = batch.iter().map(|(key, _)| *key).zip(vectors).collect();
            self.keep(&new);
            known.extend(new);
        }
        let asked = asked.ok_or_else(|| bad("no vector came"))?;
        let scores: Option<Vec<f32>> = keys.iter().map(|key| dot(&asked, known.get(key)?)).collect();
        scores.ok_or_else(|| {
            // The model has changed what it gives under one name: what it gave before is of no use any more.
            self.forget(&keys);
            bad("vectors have different numbers of dimensions")
        })
    }

    fn known(&self, keys: &[Key]) -> HashMap<Key, Vector> {
        let mut kept = lock(&self.kept);
        kept.uses += 1;
        let now = kept.uses;
        let mut known = HashMap::with_capacity(keys.len());
        for key in keys {
            if let Some((vector, used)) = kept.vectors.get_mut(key) {
                *used = now;
                known.insert(*key, Arc::clone(vector));
            }
        }
        known
    }

    /// Remembers vectors. Where there is no more room, those go that were not used for longest.
    fn keep(&self, new: &[(Key, Vector)]) {
        let mut kept = lock(&self.kept);
        let now = kept.uses;
        for (key, vector) in new {
            kept.bytes += size(vector);
            if let Some((before, _)) = kept.vectors.insert(*key, (Arc::clone(vector), now)) {
                kept.bytes -= size(&before);
            }
        }
        if kept.bytes > self.source.cache_bytes {
            let mut ages: Vec<(u64, Key)> = kept.vectors.iter().map(|(key, (_, used))| (*used, *key)).collect();
            ages.sort_unstable();
            // A tenth more than needed, or the next run would sort again.
            let room = self.source.cache_bytes - self.source.cache_bytes / 10;
            for (_, key) in ages {
                if kept.bytes <= room {
                    break;
                }
                if let Some((vector, _)) = kept.vectors.remove(&key) {
                    kept.bytes -= size(&vector);
                }
            }
        }
    }

    fn forget(&self, keys: &[Key]) {
        let mut kept = lock(&self.kept);
        for key in keys {
            if let Some((vector, _)) = kept.vectors.remove(key) {
                kept.bytes -= size(&vector);
            }
        }
    }
}

fn bad(why: &str) -> ModelError {
    ModelError::new(ModelErrorKind::BadStream, why)
}

fn key(embedder: &Embedder, text: &str) -> Key {
    let mut hash = Sha256::new();
    for part in [embedder.place.as_str(), &embedder.model, text] {
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

/// What a vector holds, and what it takes to find it again.
fn size(vector: &Vector) -> usize {
    size_of_val(&**vector) + 128
}

/// The vector with the length 1, so that a product of two is their cosine. One without a direction stays.
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
