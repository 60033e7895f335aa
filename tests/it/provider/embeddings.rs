//! Embeddings requests and answers.

use std::sync::Arc;

use capstan::domain::model::ModelErrorKind;
use capstan::domain::model::embeddings::Embeddings;
use capstan::domain::model::provider::ProviderKind;
use capstan::provider::embeddings::{self, EmbeddingClient, EmbeddingLimits};
use rstest::rstest;
use serde_json::{Value, json};

use super::drive::options;
use support::wire::{Answer, Wire};

fn client(kind: ProviderKind, wire: &Wire) -> Arc<dyn EmbeddingClient> {
    embeddings::client(kind, options(wire)).unwrap().unwrap()
}

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

fn list(vectors: &[(usize, Value)]) -> Answer {
    let data: Vec<Value> =
        vectors.iter().map(|(index, vector)| json!({"object": "embedding", "index": index, "embedding": vector})).collect();
    Answer::json(200, &json!({"object": "list", "data": data, "usage": {"prompt_tokens": 5, "total_tokens": 5}}).to_string())
}

#[tokio::test]
async fn vectors_are_in_text_order_in_every_encoding() {
    // 1.0 and -2.0 as little-endian floats.
    let wire = Wire::play(vec![list(&[(1, json!("AACAPwAAAMA=")), (0, json!([0.5, 1]))]), list(&[(0, json!([3, 4]))])]).await;
    let limits = EmbeddingLimits { texts_per_request: 2, dimensions: Some(2), base64: true, ..EmbeddingLimits::default() };
    let client = client(ProviderKind::Openai, &wire);
    let embedded = client.embed("m", &texts(&["a", " ", "c"]), &limits).await.unwrap();
    assert_eq!(embedded, Embeddings { vectors: vec![vec![0.5, 1.0], vec![1.0, -2.0], vec![3.0, 4.0]], input_tokens: 10 });
    let asked = wire.asked();
    assert!(asked[0].head.starts_with("POST /v1/embeddings HTTP/1.1\r\n"), "{}", asked[0].head);
    assert!(asked[0].head.contains("authorization: Bearer sk-canary-0123456789\r\n"));
    let body = json!({"model": "m", "input": ["a", "-"], "dimensions": 2, "encoding_format": "base64"});
    assert_eq!((asked[0].json(), &asked[1].json()["input"]), (body, &json!(["c"])));
    assert_eq!(client.embed("m", &[], &limits).await.unwrap(), Embeddings::default());
    assert_eq!(wire.asked().len(), 2);
}

#[tokio::test]
async fn ollama_has_its_own_words() {
    let answer = Answer::json(200, r#"{"model":"m","embeddings":[[0.5,1],[2,3]],"prompt_eval_count":7}"#);
    let wire = Wire::play(vec![answer]).await;
    let client = client(ProviderKind::Ollama, &wire);
    let embedded = client.embed("m", &texts(&["a", "b"]), &EmbeddingLimits::default()).await.unwrap();
    assert_eq!(embedded, Embeddings { vectors: vec![vec![0.5, 1.0], vec![2.0, 3.0]], input_tokens: 7 });
    let asked = &wire.asked()[0];
    assert!(asked.head.starts_with("POST /api/embed HTTP/1.1\r\n"), "{}", asked.head);
    assert_eq!(asked.json(), json!({"model": "m", "input": ["a", "b"]}));
}

#[tokio::test]
async fn requests_have_limits() {
    let one = || list(&[(0, json!([1]))]);
    let wire = Wire::play(vec![one()]).await;
    let limits = EmbeddingLimits { bytes_per_request: 5, bytes_per_text: 4, ..EmbeddingLimits::default() };
    let client = client(ProviderKind::Openai, &wire);
    client.embed("m", &texts(&["abcdef", "gh"]), &limits).await.unwrap();
    let inputs: Vec<Value> = wire.asked().iter().map(|asked| asked.json()["input"].clone()).collect();
    assert_eq!(inputs, [json!(["abcd"]), json!(["gh"])]);
}

#[rstest]
#[case::too_few(list(&[(0, json!([1]))]))]
#[case::too_many(list(&[(0, json!([1])), (1, json!([1])), (2, json!([1]))]))]
#[case::twice_the_same(list(&[(0, json!([1])), (0, json!([1]))]))]
#[case::index_out_of_range(list(&[(0, json!([1])), (9, json!([1]))]))]
#[case::other_dimensions(list(&[(0, json!([1])), (1, json!([1, 2]))]))]
#[case::no_dimensions(list(&[(0, json!([])), (1, json!([]))]))]
#[case::no_base64(list(&[(0, json!("??")), (1, json!("??"))]))]
#[case::half_a_number(list(&[(0, json!("AAAA")), (1, json!("AAAA"))]))]
// A quiet NaN.
#[case::no_number(list(&[(0, json!("AADAfw==")), (1, json!("AADAfw=="))]))]
#[case::no_vectors(Answer::json(200, "{}"))]
#[case::words(Answer::json(200, r#"{"data":[{"embedding":["a"]},{"embedding":["b"]}]}"#))]
#[tokio::test]
async fn invalid_vectors_fail(#[case] answer: Answer) {
    let wire = Wire::play(vec![answer]).await;
    let client = client(ProviderKind::Openai, &wire);
    let error = client.embed("m", &texts(&["a", "b"]), &EmbeddingLimits::default()).await.unwrap_err();
    assert_eq!(error.kind, ModelErrorKind::BadStream, "{error}");
}

#[rstest]
#[case(429, r#"{"error":{"code":"rate_limit_exceeded","message":"x"}}"#, ModelErrorKind::RateLimit)]
#[case(401, r#"{"error":{"message":"Incorrect API key provided: sk-canary-0123456789"}}"#, ModelErrorKind::Auth)]
#[case(200, r#"{"error":{"code":"insufficient_quota","message":"x"}}"#, ModelErrorKind::Quota)]
#[case(200, r#"{"data":[{"#, ModelErrorKind::IncompleteStream)]
#[tokio::test]
async fn failures_are_typed(#[case] status: u16, #[case] body: &str, #[case] kind: ModelErrorKind) {
    let wire = Wire::play(vec![Answer::json(status, body)]).await;
    let client = client(ProviderKind::Openai, &wire);
    let error = client.embed("m", &texts(&["a"]), &EmbeddingLimits::default()).await.unwrap_err();
    assert_eq!(error.kind, kind);
    assert!(!error.message.contains("canary"), "{error}");
}
