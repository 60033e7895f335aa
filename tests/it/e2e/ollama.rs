//! An Ollama server that starts with the server and gets its first model later.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;

use support::database::Kind;
use support::server::Site;
use support::wait;

#[tokio::test(flavor = "multi_thread")]
async fn model_pulled_after_start_is_found_by_the_next_run() {
    let pulled = Arc::new(AtomicBool::new(false));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let list = {
        let pulled = Arc::clone(&pulled);
        move || async move {
            let models = if pulled.load(Ordering::SeqCst) { json!([{"name": "qwen3:4b", "model": "qwen3:4b"}]) } else { json!([]) };
            axum::Json(json!({ "models": models }))
        }
    };
    let ollama = axum::Router::new().route("/api/tags", axum::routing::get(list));
    let mut serving = tokio::task::JoinSet::new();
    serving.spawn(async move { axum::serve(listener, ollama).await });

    let site = Site::new(Kind::Sqlite).await.env("OLLAMA_HOST", &address);
    let server = site.start().await;
    let (status, problem) = server.post_json("/runs", &json!({"input": "hello"})).await;
    assert_eq!((status.as_u16(), &problem["code"]), (400, &json!("unknown_model")), "{problem}");
    let detail = problem["detail"].as_str().unwrap();
    assert!(!detail.contains(&address) && detail.contains("ollama pull") && detail.contains("CAPSTAN_MODEL"), "{detail}");
    // A model that the request names is served all the same.
    assert_eq!(server.start_run(&json!({"input": "hello", "model": "demo/demo"})).await["model"], "demo/demo");
    pulled.store(true, Ordering::SeqCst);
    // The empty model list is cached for a moment.
    let found = wait::until("the model to be found", Duration::from_secs(30), || async {
        let (status, answer) = server.post_json("/runs", &json!({"input": "hello"})).await;
        (status == 202).then_some(answer)
    });
    assert_eq!(found.await["run"]["model"], "ollama/qwen3:4b");
}
