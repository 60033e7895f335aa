//! `/v1/embeddings`: its forms of input and output, and its errors in the form of OpenAI.

use axum::http::{Method, StatusCode};
use rstest::rstest;
use serde_json::{Value, json};

use super::rig::{Reply, Rig};

async fn post(rig: &Rig, body: Value) -> Reply {
    rig.exchange(Method::POST, "/v1/embeddings", &[], Some(body)).await
}

async fn vectors(rig: &Rig, body: Value) -> Vec<Value> {
    let reply = post(rig, body).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
    let list = reply.json();
    let data = list["data"].as_array().unwrap();
    assert_eq!((&list["object"], &list["model"]), (&json!("list"), &json!("mine/vectors")));
    assert_eq!(list["usage"], json!({"prompt_tokens": data.len(), "total_tokens": data.len()}));
    for (index, entry) in data.iter().enumerate() {
        assert_eq!((&entry["object"], &entry["index"]), (&json!("embedding"), &json!(index)));
    }
    data.iter().map(|entry| entry["embedding"].clone()).collect()
}

#[tokio::test]
async fn embeddings_of_every_form_of_input() {
    let rig = Rig::new().await;
    let request = |input: Value| json!({"model": "mine/vectors", "input": input});
    assert_eq!(vectors(&rig, request(json!("abc"))).await, [json!([3.0, 0.5])]);
    assert_eq!(vectors(&rig, request(json!(["abc", "d"]))).await, [json!([3.0, 0.5]), json!([1.0, 0.5])]);
    // "hello world" in the encoding of OpenAI's embedding models, in which LangChain sends all texts.
    assert_eq!(vectors(&rig, request(json!([15339, 1917]))).await, [json!([11.0, 0.5])]);
    assert_eq!(vectors(&rig, request(json!([[15339, 1917], [15339]]))).await, [json!([11.0, 0.5]), json!([5.0, 0.5])]);
}

#[tokio::test]
async fn embeddings_have_the_requested_encoding_and_dimensions() {
    let rig = Rig::new().await;
    let body = json!({"model": "mine/vectors", "input": "a", "encoding_format": "base64", "dimensions": 2, "user": "ann"});
    // 1.0 and 2.0 as little-endian floats.
    assert_eq!(vectors(&rig, body).await, [json!("AACAPwAAAEA=")]);
}

#[rstest]
#[case::no_text(json!([]), "input")]
#[case::blank(json!(["a", " "]), "input[1]")]
#[case::too_many(json!(vec!["a"; 2_049]), "input")]
#[case::no_token(json!([[4_000_000_000_u32]]), "input[0]")]
#[tokio::test]
async fn embeddings_of_unusable_input_are_refused(#[case] input: Value, #[case] param: &str) {
    let rig = Rig::new().await;
    let reply = post(&rig, json!({"model": "mine/vectors", "input": input})).await;
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (StatusCode::BAD_REQUEST, &json!(param)), "{}", reply.body);
}

#[tokio::test]
async fn embeddings_of_unknown_and_broken_models_fail_as_at_openai() {
    let rig = Rig::new().await;
    let reply = post(&rig, json!({"model": "text-embedding-3-small", "input": "a"})).await;
    let error = &reply.json()["error"];
    assert_eq!((reply.status, &error["code"]), (StatusCode::NOT_FOUND, &json!("model_not_found")), "{}", reply.body);
    assert!(error["message"].as_str().unwrap().contains("provider/name"), "{error}");
    let reply = post(&rig, json!({"model": "mine/broken", "input": "a"})).await;
    assert!(reply.status.is_server_error(), "{}", reply.body);
    let reply = post(&rig, json!({"model": "mine/vectors", "input": {"text": "a"}})).await;
    assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{}", reply.body);
    assert!(reply.body.contains("a list of texts"), "{}", reply.body);
}
