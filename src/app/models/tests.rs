use std::sync::Arc;

use super::first_model_finder::FirstModelFinder;
use super::local_servers::{LOCAL, first_with_model};
use super::ollama_host::ollama_url;
use super::{Endpoint, Models, select_models, unserved_default};
use crate::app::config::{self, Environment, ProviderConfig};
use crate::domain::model::{ModelErrorKind, ModelRequest};
use crate::provider::ModelClient as _;
use crate::provider::catalog;
use crate::provider::demo::DemoClient;
use crate::service::FindModel as _;

fn environment(pairs: &[(&str, &str)]) -> Environment {
    pairs.iter().copied().collect()
}

async fn selected(pairs: &[(&str, &str)]) -> anyhow::Result<Models> {
    let environment = environment(pairs);
    let loaded = config::load(None, &environment, &[])?;
    select_models(&loaded, &environment).await
}

#[tokio::test]
async fn a_key_alone_means_openai() {
    let models = selected(&[("OPENAI_API_KEY", "sk-x"), ("ANTHROPIC_API_KEY", "y")]).await.unwrap();
    assert_eq!(models.default_model.to_string(), "openai/gpt-5-mini");
    assert_eq!(models.router.providers(), ["anthropic", "demo", "openai", "openai-responses"]);
    assert!(!models.is_demonstration);
}

#[tokio::test]
async fn the_first_in_rank_answers_runs_that_name_no_model() {
    for (pairs, model) in [
        (&[("GEMINI_API_KEY", "x"), ("ANTHROPIC_API_KEY", "y")][..], "anthropic/claude-sonnet-4-5"),
        (&[("GOOGLE_API_KEY", "x"), ("GROQ_API_KEY", "y")][..], "gemini/gemini-2.5-flash"),
        (&[("OPENROUTER_API_KEY", "x")][..], "openrouter/openrouter/auto"),
        (&[("CAPSTAN_MODEL", "groq/llama"), ("GROQ_API_KEY", "x")][..], "groq/llama"),
        (&[("CAPSTAN_MODEL", "lmstudio/any")][..], "lmstudio/any"),
    ] {
        assert_eq!(selected(pairs).await.unwrap().default_model.to_string(), model);
    }
}

#[tokio::test]
async fn a_compatible_provider_needs_data_only() {
    let environment = environment(&[("ACME_KEY", "sk"), ("ACME_TEAM", "blue"), ("CAPSTAN_MODEL", "acme/large")]);
    let load = |text: &str| config::load(Some(("capstan.toml".into(), text.to_owned())), &environment, &[]).unwrap();
    let text = "[providers.acme]\nkind = 'openai'\nbase_url = 'https://acme.example/v2'\nkey_env = 'ACME_KEY'\n\
                headers_env = { x-team = 'ACME_TEAM' }\naccent = { stream_usage = false }";
    let models = select_models(&load(text), &environment).await.unwrap();
    assert_eq!(models.default_model.to_string(), "acme/large");
    for (wrong, words) in [
        (text.replace("kind = 'openai'\n", ""), ["providers.acme", "kind"]),
        (text.replace("base_url = 'https://acme.example/v2'\n", ""), ["providers.acme", "base_url"]),
        (text.replace("ACME_TEAM", "NOBODY"), ["headers_env.x-team", "NOBODY"]),
        (text.replace("stream_usage", "stream_useage"), ["providers.acme.accent", "stream_useage"]),
        ("[providers.azure]\nkind = 'openai'".to_owned(), ["providers.azure", "AZURE_OPENAI_BASE_URL"]),
    ] {
        let error = format!("{:#}", select_models(&load(&wrong), &environment).await.err().unwrap());
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
}

#[tokio::test]
async fn default_model_without_its_provider_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("test.db").display());
    let store = crate::store::open(&url, &crate::store::StoreOptions::default()).await.unwrap();
    let models = selected(&[("CAPSTAN_MODEL", "anthropic/claude")]).await.unwrap();
    let error = unserved_default(&models, store.as_ref()).await.unwrap().unwrap();
    for words in ["anthropic/claude", "demo", "set ANTHROPIC_API_KEY", "on the chat page", "CAPSTAN_MODEL"] {
        assert!(error.contains(words), "{words} in {error}");
    }
    let models = selected(&[("CAPSTAN_MODEL", "ollama/llama"), ("OLLAMA_HOST", "gpu:99")]).await.unwrap();
    assert_eq!(models.default_model.to_string(), "ollama/llama");
    assert_eq!(models.endpoints[0].base_url, "http://gpu:99");
}

#[tokio::test]
async fn key_of_a_provider_without_url_does_not_stop_the_start() {
    let models = selected(&[("AZURE_OPENAI_API_KEY", "key"), ("OPENAI_API_KEY", "key")]).await.unwrap();
    let names: Vec<&str> = models.endpoints.iter().map(|endpoint| endpoint.provider.as_str()).collect();
    assert!(names.contains(&"openai") && !names.contains(&"azure"), "{names:?}");
}

#[tokio::test]
async fn known_provider_without_key_fails_runs_with_a_hint() {
    let call = async |model: &str| {
        let mut models = selected(&[("CAPSTAN_MODEL", model)]).await.unwrap();
        models.explain_missing_key().unwrap();
        let request = ModelRequest { model: model.to_owned(), ..ModelRequest::default() };
        (models.router.has_provider(model), models.router.stream(request).await.err().unwrap())
    };
    for (model, variable) in [
        ("anthropic/claude", "ANTHROPIC_API_KEY"),
        ("openai-responses/gpt-5", "OPENAI_API_KEY"),
        ("azure/mine", "AZURE_OPENAI_BASE_URL"),
    ] {
        let (is_served, error) = call(model).await;
        assert!(is_served && error.kind == ModelErrorKind::Auth, "{error:?}");
        assert!(error.message.contains(variable) && error.message.contains("chat page"), "{error}");
    }
    let (is_served, error) = call("acme/large").await;
    assert!(!is_served && error.kind == ModelErrorKind::InvalidRequest, "{error:?}");
}

#[tokio::test]
async fn the_first_model_that_a_server_lists_is_the_default() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let list = || async { r#"{"object":"list","data":[{"id":"qwen3:4b"},{"id":"llama"}]}"# };
    let tags = || async { r#"{"models":[{"name":"qwen3:4b"},{"name":"llama"}]}"# };
    let app = axum::Router::new().route("/v1/models", axum::routing::get(list)).route("/api/tags", axum::routing::get(tags));
    let mut server = tokio::task::JoinSet::new();
    server.spawn(async move { axum::serve(listener, app).await });

    let models = selected(&[("OLLAMA_HOST", &address.to_string())]).await.unwrap();
    assert_eq!(models.default_model.to_string(), "ollama/qwen3:4b");
    let models = selected(&[("OPENAI_BASE_URL", &format!("http://{address}/v1/"))]).await.unwrap();
    assert_eq!(models.default_model.to_string(), "openai/qwen3:4b");
    assert!(!models.is_demonstration && models.warnings.is_empty());
    // The same forms are accepted for model calls.
    for base in ["", "/", "/v1?api-version=1"] {
        let models = selected(&[("OPENAI_BASE_URL", &format!("http://{address}{base}"))]).await.unwrap();
        assert_eq!(models.default_model.to_string(), "openai/qwen3:4b", "{base}");
    }
}

/// Serves these answers to requests of lists and descriptions.
async fn local_server(list: &'static str, show: &'static str) -> (String, tokio::task::JoinSet<std::io::Result<()>>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let list = move || async move { list };
    let show = move |body: String| async move { if body.contains("nomic") { show } else { "{}" } };
    let app = axum::Router::new()
        .route("/v1/models", axum::routing::get(list))
        .route("/api/tags", axum::routing::get(list))
        .route("/api/show", axum::routing::post(show));
    let mut server = tokio::task::JoinSet::new();
    server.spawn(async move { axum::serve(listener, app).await });
    (address.to_string(), server)
}

#[tokio::test]
async fn embedding_models_are_never_the_default() {
    let list = r#"{"models":[{"name":"nomic-text:latest"},{"name":"bge-m3"},{"name":"qwen3:4b"}]}"#;
    let (address, _server) = local_server(list, r#"{"capabilities":["embedding"]}"#).await;
    let models = selected(&[("OLLAMA_HOST", &address)]).await.unwrap();
    assert_eq!(models.default_model.to_string(), "ollama/qwen3:4b");
    let list = r#"{"data":[{"id":"text-embedding-nomic-embed-text-v1.5"},{"id":"acme-1"}]}"#;
    let (address, _server) = local_server(list, "{}").await;
    let models = selected(&[("OPENAI_BASE_URL", &format!("http://{address}/v1"))]).await.unwrap();
    assert_eq!(models.default_model.to_string(), "openai/acme-1");
}

#[tokio::test]
async fn first_local_server_with_a_chat_model_is_found() {
    let (none, _one) = local_server(r#"{"data":[{"id":"bge-m3"}]}"#, "{}").await;
    let (some, _other) = local_server(r#"{"data":[{"id":"bge-m3"},{"id":"acme-1"}]}"#, "{}").await;
    let known = catalog::providers().unwrap();
    let at = |name: &str, address: &str| {
        let config = ProviderConfig { base_url: Some(format!("http://{address}/v1").into()), ..ProviderConfig::default() };
        Endpoint::of(name, known.get(name), Some(&config), &Environment::default(), true).unwrap().unwrap()
    };
    let endpoints = vec![at("lmstudio", &none), at("llamacpp", "127.0.0.1:1"), at("vllm", &some)];
    let (endpoint, model) = first_with_model(endpoints).await.unwrap();
    assert_eq!((endpoint.provider.as_str(), model.as_str()), ("vllm", "acme-1"));
    let (empty, _third) = local_server(r#"{"models":[]}"#, "{}").await;
    let found = first_with_model(vec![at("llamacpp", "127.0.0.1:1"), at("vllm", &none), at("ollama", &empty)]).await;
    let told = found.err().unwrap();
    assert!(told[0].starts_with("vllm at http://") && told[0].contains("lists no model that can chat (1 in all)"), "{told:?}");
    assert!(told[1].contains("lists no models") && told[1].contains("ollama pull") && told.len() == 2, "{told:?}");
    assert!(LOCAL.iter().all(|name| known[*name].keyless && known[*name].base_url.is_some()));
}

#[tokio::test]
async fn concurrent_model_lookups_share_one_request() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let list = move || {
        count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        async { r#"{"models":null}"# }
    };
    let app = axum::Router::new().route("/api/tags", axum::routing::get(list));
    let mut server = tokio::task::JoinSet::new();
    server.spawn(async move { axum::serve(listener, app).await });
    let base_url = format!("http://me:canary@{address}/?key=canary");
    let models = selected(&[("OLLAMA_HOST", &base_url)]).await.unwrap();
    assert_eq!(asked.swap(0, std::sync::atomic::Ordering::SeqCst), 1);
    let endpoint = models.endpoints[0].clone();
    let first = FirstModelFinder::new(endpoint, Arc::new(DemoClient), None);
    let answers = futures_util::future::join_all((0..20).map(|_| first.find())).await;
    for answer in answers {
        let words = answer.unwrap_err();
        assert!(!words.contains("http") && words.contains("CAPSTAN_MODEL"), "{words}");
    }
    assert_eq!(asked.load(std::sync::atomic::Ordering::SeqCst), 1);
}

#[tokio::test]
async fn operators_see_urls_without_secrets() {
    let models = selected(&[("OLLAMA_HOST", "http://me:canary@127.0.0.1:1")]).await.unwrap();
    assert_eq!(models.endpoints[0].display_url(), "http://127.0.0.1:1");
    assert!(models.warnings[0].starts_with("http://127.0.0.1:1 "), "{:?}", models.warnings);
    let models = selected(&[("OPENAI_BASE_URL", "http://127.0.0.1:1/v1?key=canary")]).await.unwrap();
    assert!(models.warnings[0].starts_with("http://127.0.0.1:1/v1 "), "{:?}", models.warnings);
}

#[test]
fn ollama_host_is_read_in_every_form() {
    let cases = [
        ("", "http://127.0.0.1:11434"),
        (":11434", "http://127.0.0.1:11434"),
        (":8080", "http://127.0.0.1:8080"),
        ("0.0.0.0", "http://127.0.0.1:11434"),
        ("0.0.0.0:1", "http://127.0.0.1:1"),
        ("gpu", "http://gpu:11434"),
        ("gpu:1", "http://gpu:1"),
        ("gpu:0", "http://gpu:0"),
        ("gpu:nonsense", "http://gpu:11434"),
        ("\"gpu:1\"", "http://gpu:1"),
        (" gpu ", "http://gpu:11434"),
        ("http://gpu", "http://gpu:80"),
        ("https://gpu.example/", "https://gpu.example:443"),
        ("https://gpu.example/ollama/", "https://gpu.example:443/ollama"),
        ("::1", "http://[::1]:11434"),
        ("[::]", "http://[::1]:11434"),
        ("[::1]:7", "http://[::1]:7"),
        ("http://[::1]", "http://[::1]:80"),
        ("http://[::1]:7", "http://[::1]:7"),
        ("http://me:secret@gpu:1/?key=x", "http://me:secret@gpu:1/?key=x"),
    ];
    for (host, url) in cases {
        assert_eq!(ollama_url(host), url, "{host:?}");
    }
}
