//! URL and key of the model list request in each dialect.

use std::time::Duration;

use capstan::domain::model::provider::{ModelEntry, ProviderKind};
use capstan::provider::{ClientOptions, Quirks, client};
use rstest::rstest;

use super::drive::options;
use support::wire::{Answer, Wire};

#[rstest]
#[case(ProviderKind::Openai, "", "/v1/models", "authorization: Bearer sk-canary")]
#[case(ProviderKind::Openai, "/api/v1/", "/api/v1/models", "authorization: Bearer sk-canary")]
#[case(ProviderKind::Openai, "/v1/chat/completions", "/v1/models", "authorization: Bearer sk-canary")]
#[case(ProviderKind::OpenaiResponses, "/v1", "/v1/models", "authorization: Bearer sk-canary")]
#[case(ProviderKind::Anthropic, "", "/v1/models?limit=1000", "x-api-key: sk-canary")]
#[case(ProviderKind::Anthropic, "/x/v1/", "/x/v1/models?limit=1000", "x-api-key: sk-canary")]
#[case(ProviderKind::Gemini, "", "/v1beta/models?pageSize=1000", "x-goog-api-key: sk-canary")]
#[case(ProviderKind::Gemini, "/v1beta", "/v1beta/models?pageSize=1000", "x-goog-api-key: sk-canary")]
#[case(ProviderKind::Ollama, "", "/api/tags", "authorization: Bearer sk-canary")]
#[case(ProviderKind::Ollama, "/v1", "/api/tags", "authorization: Bearer sk-canary")]
#[case(ProviderKind::Ollama, "/api", "/api/tags", "authorization: Bearer sk-canary")]
#[tokio::test]
async fn model_list_is_asked_for_in_each_dialect(
    #[case] kind: ProviderKind,
    #[case] path: &str,
    #[case] asked: &str,
    #[case] header: &str,
) {
    let wire = Wire::play(vec![Answer::json(200, r#"{"data": [{"id": "one"}]}"#)]).await;
    let base_url = format!("{}{path}", wire.base_url.trim_end_matches("/v1"));
    let client = client(kind, ClientOptions { base_url, ..options(&wire) }, Quirks::default()).unwrap();
    assert_eq!(client.list_models(Duration::from_secs(10)).await.unwrap(), [ModelEntry::named("one")]);
    let head = wire.asked().remove(0).head;
    assert!(head.starts_with(&format!("GET {asked} HTTP/1.1")) && head.contains(header), "{head}");
}
