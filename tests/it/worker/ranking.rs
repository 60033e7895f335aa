//! The order of tools: by vectors if they arrive in time, and otherwise by words.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use capstan::domain::ids::UserId;
use capstan::domain::model::embeddings::Embeddings;
use capstan::domain::model::{ModelError, ModelErrorKind};
use capstan::domain::tool::tool_filter::SelectionMethod;
use capstan::domain::tool::{ReplayClass, ToolDefinition};
use capstan::provider::embeddings::{Embedder, Embedders, EmbeddingClient, EmbeddingLimits};
use capstan::worker::{EmbeddingSource, Ranker};
use serde_json::json;

use support::print_figure;
use support::vectors::vector;

fn tool(name: &str, description: &str) -> Arc<ToolDefinition> {
    let properties = json!({"recipient": {"type": "string"}, "subject_line": {"type": "string"}});
    let parameters = json!({"type": "object", "properties": properties});
    let definition = ToolDefinition::new(name, description, parameters, ReplayClass::Read);
    Arc::new(ToolDefinition { server: Some("s".to_owned()), ..definition })
}

fn some() -> Vec<Arc<ToolDefinition>> {
    vec![tool("a", "Prints a document"), tool("b", "Writes a letter"), tool("c", "Tells the forecast")]
}

/// Returns vectors after a pause, for at most this many texts in a request.
#[derive(Default)]
struct Place {
    asked: Mutex<Vec<usize>>,
    pause: Mutex<Duration>,
    dimensions: Mutex<usize>,
    fails: Mutex<bool>,
}

impl Place {
    fn asked(&self) -> Vec<usize> {
        self.asked.lock().unwrap().clone()
    }
}

#[async_trait]
impl EmbeddingClient for Place {
    async fn embed(&self, _model: &str, texts: &[String], _limits: &EmbeddingLimits) -> Result<Embeddings, ModelError> {
        self.asked.lock().unwrap().push(texts.len());
        let pause = *self.pause.lock().unwrap();
        tokio::time::sleep(pause).await;
        if *self.fails.lock().unwrap() {
            return Err(ModelError::new(ModelErrorKind::Unavailable, "as scripted"));
        }
        let more = vec![0.0; *self.dimensions.lock().unwrap()];
        let vectors = texts.iter().map(|text| [vector(text), more.clone()].concat()).collect();
        Ok(Embeddings { vectors, input_tokens: 1 })
    }
}

struct Places(Arc<Place>);

#[async_trait]
impl Embedders for Places {
    async fn embedder(&self, owner: &UserId, model: &str) -> Result<Embedder, ModelError> {
        let client = Arc::clone(&self.0) as _;
        Ok(Embedder { endpoint_id: owner.to_string(), client, model: model.to_owned() })
    }
}

fn ranker(place: &Arc<Place>, cache_bytes: usize) -> Ranker {
    Ranker::new(Some(EmbeddingSource {
        embedders: Arc::new(Places(Arc::clone(place))),
        model: "m/v".to_owned(),
        time_limit: Duration::from_secs(2),
        limits: EmbeddingLimits { texts_per_request: 100, ..EmbeddingLimits::default() },
        cache_bytes,
    }))
}

fn owner(name: &str) -> UserId {
    UserId::from_stored(name.to_owned())
}

#[tokio::test(start_paused = true)]
async fn a_tool_is_asked_about_once_by_each_owner_and_definition() {
    let place = Arc::new(Place::default());
    let ranker = ranker(&place, 1 << 20);
    for (says, first) in [("umbrella?", "c"), ("on paper", "a"), ("nothing of the kind", "a")] {
        let ranked = ranker.rank(&owner("ann"), says, some()).await;
        assert_eq!((ranked.by, ranked.names[0].as_str(), ranked.names.len()), (SelectionMethod::Semantic, first, 3));
    }
    assert_eq!(place.asked(), [4, 1, 1]);
    ranker.rank(&owner("bob"), "umbrella?", some()).await;
    assert_eq!(place.asked(), [4, 1, 1, 4], "vectors of one owner's endpoint are not used for another");
    let mut changed = some();
    Arc::make_mut(&mut changed[0]).description.push('!');
    ranker.rank(&owner("ann"), "umbrella?", changed).await;
    assert_eq!(place.asked()[4], 2);
    assert_eq!(ranker.rank(&owner("ann"), " \n", some()).await.by, SelectionMethod::Lexical, "the message is empty");
}

#[tokio::test(start_paused = true)]
async fn runs_that_begin_together_ask_for_tools_once() {
    let place = Arc::new(Place::default());
    *place.pause.lock().unwrap() = Duration::from_millis(300);
    let (ranker, ann) = (ranker(&place, 1 << 20), owner("ann"));
    let all = futures_util::future::join_all((0..5).map(|_| ranker.rank(&ann, "umbrella?", some()))).await;
    assert!(all.iter().all(|ranked| ranked.by == SelectionMethod::Semantic && ranked.names[0] == "c"));
    assert_eq!(place.asked(), [4, 1, 1, 1, 1]);
}

#[tokio::test(start_paused = true)]
async fn timely_vectors_are_cached_for_the_next_run() {
    let place = Arc::new(Place::default());
    *place.pause.lock().unwrap() = Duration::from_millis(700);
    let (ranker, ann) = (ranker(&place, 1 << 20), owner("ann"));
    let many: Vec<Arc<ToolDefinition>> = (0..450).map(|n| tool(&format!("t{n:03}"), "Filler")).chain(some()).collect();
    // Two of five requests fit into two seconds.
    let began = tokio::time::Instant::now();
    assert_eq!(ranker.rank(&ann, "umbrella?", many.clone()).await.by, SelectionMethod::Lexical);
    assert_eq!(began.elapsed().as_millis(), 2_000);
    assert_eq!(ranker.rank(&ann, "umbrella?", many.clone()).await.by, SelectionMethod::Lexical);
    let ranked = ranker.rank(&ann, "umbrella?", many.clone()).await;
    assert_eq!((ranked.by, ranked.names[0].as_str()), (SelectionMethod::Semantic, "c"));
}

#[tokio::test(start_paused = true)]
async fn a_place_that_gives_nothing_is_left_alone_for_a_while() {
    let place = Arc::new(Place::default());
    *place.fails.lock().unwrap() = true;
    let (ranker, ann) = (ranker(&place, 1 << 20), owner("ann"));
    for _ in 0..3 {
        assert_eq!(ranker.rank(&ann, "a letter", some()).await.names[0], "b");
    }
    assert_eq!(place.asked(), [4]);
    *place.fails.lock().unwrap() = false;
    tokio::time::advance(Duration::from_secs(30)).await;
    assert_eq!(ranker.rank(&ann, "a letter", some()).await.by, SelectionMethod::Semantic);
}

#[tokio::test(start_paused = true)]
async fn vectors_of_another_size_are_requested_again() {
    let place = Arc::new(Place::default());
    let (ranker, ann) = (ranker(&place, 1 << 20), owner("ann"));
    ranker.rank(&ann, "umbrella?", some()).await;
    *place.dimensions.lock().unwrap() = 3;
    assert_eq!(ranker.rank(&ann, "umbrella?", some()).await.by, SelectionMethod::Lexical);
    assert_eq!(ranker.rank(&ann, "umbrella?", some()).await.by, SelectionMethod::Semantic);
    assert_eq!(place.asked(), [4, 1, 4]);
}

#[tokio::test(start_paused = true)]
async fn vector_cache_is_bounded() {
    let place = Arc::new(Place::default());
    // Room for two vectors: 20 bytes each plus their keys.
    let (ranker, ann) = (ranker(&place, 330), owner("ann"));
    for _ in 0..3 {
        let ranked = ranker.rank(&ann, "umbrella?", some()).await;
        assert_eq!((ranked.by, ranked.names[0].as_str()), (SelectionMethod::Semantic, "c"));
    }
    assert!(place.asked().iter().all(|texts| *texts > 1), "{:?}", place.asked());
}

/// Orders a thousand tools by words. The limit for a release build is 20 ms.
#[tokio::test]
async fn a_thousand_tools_are_in_order_in_no_time() {
    let verbs = ["reads", "writes", "deletes", "moves", "lists", "sends", "finds", "counts", "prints", "opens"];
    let things =
        ["files", "letters", "calendar entries", "invoices", "pictures", "tickets", "customers", "notes", "logs", "orders"];
    let tools: Vec<Arc<ToolDefinition>> = (0..1_000)
        .map(|n| {
            let (verb, thing) = (verbs[n % 10], things[n / 10 % 10]);
            let about = format!("{verb} {thing} of the department {} and says what has become of them, with all details", n / 100);
            tool(&format!("s{}__{}_{n}", n / 100, verb), &about)
        })
        .collect();
    let (ranker, ann) = (Ranker::new(None), owner("ann"));
    let began = Instant::now();
    ranker.rank(&ann, "send the invoices of department 7", tools.clone()).await;
    let first = began.elapsed();
    let mut best = Duration::MAX;
    for _ in 0..5 {
        let tools = tools.clone();
        let began = Instant::now();
        let ranked = ranker.rank(&ann, "Please send the invoices of department 7 to the customers that have asked", tools).await;
        best = best.min(began.elapsed());
        assert!(ranked.names[0].starts_with("s7__sends"), "{:?}", &ranked.names[..3]);
    }
    print_figure(&format!("1,000 tools by words: {best:?}, and {first:?} the first time"));
    let limit = if cfg!(debug_assertions) { Duration::from_millis(500) } else { Duration::from_millis(20) };
    assert!(best < limit, "{best:?}");
}
