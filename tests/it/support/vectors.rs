//! A model of vectors at the wire: OpenAI's `/embeddings`, which understands a few words that mean the same.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// Words of one meaning; each row is a dimension.
const MEANINGS: [&[&str]; 4] =
    [&["umbrella", "forecast"], &["correspondence", "letter"], &["paper", "document"], &["chore", "filler"]];

/// The behaviour of the mock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mood {
    /// Answers.
    Well,
    /// Responds with status 500.
    Ill,
    /// Accepts the request and does not respond.
    Deaf,
}

/// One request as the mock saw it.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The key of the request.
    pub key: String,
    /// The bare name of the model.
    pub model: String,
    /// The texts.
    pub texts: Vec<String>,
}

/// The mock and its notes. Stops when dropped.
pub struct VectorsMock {
    /// For the provider's `base_url`.
    pub base_url: String,
    notes: Arc<Notes>,
    _tasks: JoinSet<()>,
}

struct Notes {
    mood: Mutex<Mood>,
    asked: Mutex<Vec<Asked>>,
}

impl VectorsMock {
    /// Listens on a free port of the loopback.
    pub async fn start() -> Self {
        let notes = Arc::new(Notes { mood: Mutex::new(Mood::Well), asked: Mutex::default() });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base_url = format!("http://{}/v1", listener.local_addr().unwrap());
        let app = Router::new().route("/v1/embeddings", post(embed)).with_state(Arc::clone(&notes));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let _ = axum::serve(listener, app).await;
        });
        Self { base_url, notes, _tasks: tasks }
    }

    /// From now on.
    pub fn feel(&self, mood: Mood) {
        *self.notes.mood.lock().unwrap() = mood;
    }

    /// The requests so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.notes.asked.lock().unwrap().clone()
    }
}

async fn embed(State(notes): State<Arc<Notes>>, headers: HeaderMap, body: Bytes) -> Response {
    let request: Value = serde_json::from_slice(&body).unwrap();
    let texts: Vec<String> = request["input"].as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect();
    let key = headers.get("authorization").map_or("", |value| value.to_str().unwrap()).to_owned();
    let vectors: Vec<Value> = texts
        .iter()
        .enumerate()
        .map(|(index, text)| json!({"object": "embedding", "index": index, "embedding": vector(text)}))
        .collect();
    let tokens = texts.iter().map(String::len).sum::<usize>();
    notes.asked.lock().unwrap().push(Asked { key, model: request["model"].as_str().unwrap().to_owned(), texts });
    let mood = *notes.mood.lock().unwrap();
    match mood {
        Mood::Well => axum::Json(json!({"object": "list", "data": vectors, "usage": {"prompt_tokens": tokens}})).into_response(),
        Mood::Ill => (StatusCode::INTERNAL_SERVER_ERROR, axum::Json(json!({"error": {"message": "ill"}}))).into_response(),
        Mood::Deaf => std::future::pending().await,
    }
}

/// How often a text speaks of each meaning. The last dimension keeps one that means nothing from having no direction.
pub fn vector(text: &str) -> Vec<f32> {
    let text = text.to_lowercase();
    let count = |words: &&[&str]| words.iter().map(|word| text.matches(word).count() as f32).sum::<f32>();
    MEANINGS.iter().map(count).chain([0.1]).collect()
}
