//! Which models there are: read off the environment, or found on this machine, or the demonstration.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use async_trait::async_trait;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::config::{Environment, Loaded, ModelLimits, OpenAiConfig};
use crate::provider::demo::{DemoClient, DemoPace};
use crate::provider::openai::{OpenAiClient, OpenAiOptions};
use crate::provider::{Router, StreamLimits, endpoint_url};
use crate::service::FindModel;
use crate::support::http;
use crate::support::redact::error_text;

/// The API of OpenAI itself.
const OPENAI_URL: &str = "https://api.openai.com/v1";

/// The model of OpenAI itself, unless one is named.
const OPENAI_MODEL: &str = "openai/gpt-5-mini";

/// Where a local Ollama listens, unless `OLLAMA_HOST` says otherwise.
const OLLAMA_HOST: &str = "127.0.0.1:11434";

/// How long a local Ollama is looked for.
const OLLAMA_PATIENCE: Duration = Duration::from_millis(300);

/// How long a list of models is waited for.
const LIST_PATIENCE: Duration = Duration::from_secs(2);

/// How long an endpoint that listed no models is not asked again: requests that come together share one look.
const FAILURE_HOLDS: Duration = Duration::from_secs(1);

/// Variables of dialects that come later, and what speaks them today.
const NOT_BUILT: &[(&str, &str)] = &[("ANTHROPIC", "anthropic"), ("GEMINI", "gemini"), ("OPENROUTER", "openrouter")];

/// The configured models.
pub struct Models {
    /// Sends each request to its provider.
    pub router: Arc<Router>,
    /// The model of runs that name none.
    pub default_model: DefaultModel,
    /// Endpoints that can be asked whether they are there, by provider.
    pub endpoints: Vec<Endpoint>,
    /// Whether the default model is the demonstration because nothing else was found.
    pub demonstration: bool,
    /// What the operator should know.
    pub warnings: Vec<String>,
}

/// The model of runs that name none.
#[derive(Clone)]
pub enum DefaultModel {
    /// This one.
    Known(String),
    /// The first that an endpoint will list, which listed none when it was asked.
    FirstListed(Arc<FirstListed>),
}

impl fmt::Display for DefaultModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(model) => f.write_str(model),
            Self::FirstListed(later) => write!(f, "{}/(none yet)", later.endpoint.provider),
        }
    }
}

/// Asks an endpoint for its first model until it has one.
pub struct FirstListed {
    endpoint: Endpoint,
    looked: Mutex<Looked>,
}

/// What came of looking.
#[derive(Default)]
struct Looked {
    found: Option<String>,
    failed_at: Option<Instant>,
}

impl FirstListed {
    fn new(endpoint: Endpoint) -> Self {
        Self { endpoint, looked: Mutex::default() }
    }
}

#[async_trait]
impl FindModel for FirstListed {
    async fn find(&self) -> Result<String, String> {
        let provider = self.endpoint.provider;
        // Whoever comes while somebody looks waits here, and takes what that one found.
        let mut looked = self.looked.lock().await;
        if let Some(model) = &looked.found {
            return Ok(model.clone());
        }
        // Runs are told this: where the endpoint is, and with which credentials, is the operator's own.
        let failed =
            || Err(format!("{provider} lists no models; `ollama pull` one there, name one in the request, or set CAPSTAN_MODEL"));
        if looked.failed_at.is_some_and(|at| at.elapsed() < FAILURE_HOLDS) {
            return failed();
        }
        let Some(model) = first_model(&self.endpoint, LIST_PATIENCE).await else {
            looked.failed_at = Some(Instant::now());
            return failed();
        };
        let model = format!("{provider}/{model}");
        tracing::info!(model, "the model of runs that name none was found");
        looked.found = Some(model.clone());
        Ok(model)
    }
}

/// An OpenAI-compatible endpoint.
#[derive(Clone)]
pub struct Endpoint {
    /// The provider's name.
    pub provider: &'static str,
    /// The base URL; one without a path means `/v1`.
    pub base_url: String,
    /// The key, if there is one.
    pub key: Option<SecretString>,
}

impl Endpoint {
    /// The base URL as operators may see it: people put keys into its user part and its query.
    #[must_use]
    pub fn shown(&self) -> String {
        error_text(&self.base_url)
    }
}

/// Finds out which models there are.
///
/// # Errors
/// If the configured model belongs to no configured provider.
pub async fn select(loaded: &Loaded, environment: &Environment) -> anyhow::Result<Models> {
    let openai = &loaded.config.providers.openai;
    let wanted = loaded.is_set("agent.model").then(|| loaded.config.agent.model.clone());
    let mut endpoints = Vec::new();
    let mut warnings = unbuilt(environment);

    let key = environment.get(&openai.key_env).map(SecretString::from);
    if key.is_some() || openai.base_url.is_some() {
        let base_url = openai.base_url.as_ref().map_or(OPENAI_URL, |url| url.expose_secret());
        endpoints.push(Endpoint { provider: "openai", base_url: trimmed(base_url), key });
    }
    let mut ollama_model = None;
    let wants_ollama = wanted.as_deref().is_some_and(|model| model.starts_with("ollama/"));
    let ollama = Endpoint { provider: "ollama", base_url: ollama_url(environment), key: None };
    if wants_ollama || environment.get("OLLAMA_HOST").is_some() {
        endpoints.push(ollama);
    } else if endpoints.is_empty() && wanted.is_none() {
        ollama_model = first_model(&ollama, OLLAMA_PATIENCE).await;
        if ollama_model.is_some() {
            endpoints.push(ollama);
        }
    }

    let mut router = Router::new().with("demo", Arc::new(DemoClient::new(DemoPace::default())));
    for endpoint in &endpoints {
        router = router.with(endpoint.provider, Arc::new(OpenAiClient::new(options(endpoint, openai))?));
    }

    let default_model = match (wanted, endpoints.first()) {
        (Some(model), _) => DefaultModel::Known(model),
        (None, Some(endpoint)) if endpoint.provider == "openai" && openai.base_url.is_none() => {
            DefaultModel::Known(OPENAI_MODEL.to_owned())
        }
        (None, Some(endpoint)) => {
            let first = match ollama_model {
                Some(model) => Some(model),
                None => first_model(endpoint, LIST_PATIENCE).await,
            };
            match first {
                Some(model) => DefaultModel::Known(format!("{}/{model}", endpoint.provider)),
                // It may be starting beside us, or its first model is pulled later.
                None if endpoint.provider == "ollama" => {
                    warnings.push(format!(
                        "{} does not answer or has no models yet; runs that name no model are refused until it lists one: \
                         `ollama pull` one, or set CAPSTAN_MODEL",
                        endpoint.shown()
                    ));
                    DefaultModel::FirstListed(Arc::new(FirstListed::new(endpoint.clone())))
                }
                None => {
                    warnings
                        .push(format!("{} lists no models; set CAPSTAN_MODEL, or {OPENAI_MODEL} is asked for", endpoint.shown()));
                    DefaultModel::Known(OPENAI_MODEL.to_owned())
                }
            }
        }
        (None, None) => DefaultModel::Known("demo/demo".to_owned()),
    };
    if let DefaultModel::Known(model) = &default_model
        && !router.knows(model)
    {
        bail!(
            "the model {model:?} belongs to no configured provider (configured: {}); set OPENAI_API_KEY or OPENAI_BASE_URL \
             for openai/..., OLLAMA_HOST for ollama/..., or choose another model with CAPSTAN_MODEL",
            router.providers().join(", ")
        );
    }
    let demonstration = endpoints.is_empty() && !loaded.is_set("agent.model");
    Ok(Models { router: Arc::new(router), default_model, endpoints, demonstration, warnings })
}

fn unbuilt(environment: &Environment) -> Vec<String> {
    let is_set = |prefix: &str| ["_API_KEY", "_BASE_URL"].iter().any(|end| environment.get(&format!("{prefix}{end}")).is_some());
    NOT_BUILT
        .iter()
        .filter(|(prefix, _)| is_set(prefix))
        .map(|(prefix, provider)| {
            format!(
                "{prefix}_* is set, but this version does not speak {provider}/... yet; if the provider has an OpenAI-compatible \
                 endpoint, set OPENAI_BASE_URL and OPENAI_API_KEY to it and use openai/..."
            )
        })
        .collect()
}

fn trimmed(url: &str) -> String {
    url.trim_end_matches('/').to_owned()
}

/// `OLLAMA_HOST` may be a host, a host and port, or a URL; a server's own setting of 0.0.0.0 means this machine.
fn ollama_url(environment: &Environment) -> String {
    let host = environment.get("OLLAMA_HOST").unwrap_or(OLLAMA_HOST);
    let (scheme, rest) = host.split_once("://").unwrap_or(("http", host));
    let rest = rest.trim_end_matches('/').replace("0.0.0.0", "127.0.0.1");
    let port = if rest.rsplit(']').next().unwrap_or_default().contains(':') || scheme == "https" { "" } else { ":11434" };
    format!("{scheme}://{rest}{port}/v1")
}

fn options(endpoint: &Endpoint, config: &OpenAiConfig) -> OpenAiOptions {
    let mut options = OpenAiOptions::new(endpoint.base_url.clone());
    options.api_key.clone_from(&endpoint.key);
    let limits = |own: &ModelLimits| StreamLimits {
        first_byte: Duration::from_millis(own.first_byte_ms.unwrap_or(config.first_byte_ms)),
        idle: Duration::from_millis(own.idle_ms.unwrap_or(config.idle_ms)),
        progress: Duration::from_millis(own.progress_ms.unwrap_or(config.progress_ms)),
        total: Duration::from_millis(own.total_ms.unwrap_or(config.total_ms)),
        ..StreamLimits::default()
    };
    options.limits = limits(&ModelLimits::default());
    options.model_limits = config.model_limits.iter().map(|own| (own.model.clone(), limits(own))).collect();
    options
}

/// The first model that an endpoint lists.
async fn first_model(endpoint: &Endpoint, patience: Duration) -> Option<String> {
    let list = list_models(endpoint, patience).await.ok()?;
    list.into_iter().next()
}

/// The models that an endpoint lists.
///
/// # Errors
/// In words, without the URL's secrets.
pub async fn list_models(endpoint: &Endpoint, patience: Duration) -> Result<Vec<String>, String> {
    let url = endpoint_url(&endpoint.base_url, "/models").map_err(|error| error.to_string())?;
    let client = http::client_for(url.as_str()).timeout(patience).build().map_err(words)?;
    let mut request = client.get(url);
    if let Some(key) = &endpoint.key {
        request = request.bearer_auth(key.expose_secret());
    }
    let answer = request.send().await.map_err(words)?;
    let status = answer.status();
    if !status.is_success() {
        return Err(format!("it answered {status}"));
    }
    let body: Value = answer.json().await.map_err(words)?;
    let list = body["data"].as_array().ok_or("its list of models has no data")?;
    Ok(list.iter().filter_map(|model| model["id"].as_str().map(str::to_owned)).collect())
}

fn words(error: reqwest::Error) -> String {
    let error = error.without_url();
    let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
    error_text(&format!("{error}{cause}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> Environment {
        pairs.iter().copied().collect()
    }

    async fn selected(pairs: &[(&str, &str)]) -> anyhow::Result<Models> {
        let environment = environment(pairs);
        let loaded = super::super::config::load(None, &environment, &[])?;
        select(&loaded, &environment).await
    }

    #[tokio::test]
    async fn a_key_alone_means_openai() {
        let models = selected(&[("OPENAI_API_KEY", "sk-x"), ("ANTHROPIC_API_KEY", "y")]).await.unwrap();
        assert_eq!(models.default_model.to_string(), "openai/gpt-5-mini");
        assert_eq!(models.endpoints[0].base_url, OPENAI_URL);
        assert!(!models.demonstration);
        assert!(models.warnings[0].starts_with("ANTHROPIC_*"), "{:?}", models.warnings);
    }

    #[tokio::test]
    async fn a_model_without_its_provider_is_refused() {
        let error = selected(&[("CAPSTAN_MODEL", "anthropic/claude")]).await.err().unwrap().to_string();
        assert!(error.contains("anthropic/claude") && error.contains("demo"), "{error}");
        let models = selected(&[("CAPSTAN_MODEL", "ollama/llama"), ("OLLAMA_HOST", "gpu:99")]).await.unwrap();
        assert_eq!(models.default_model.to_string(), "ollama/llama");
        assert_eq!(models.endpoints[0].base_url, "http://gpu:99/v1");
    }

    #[tokio::test]
    async fn the_first_model_that_a_server_lists_is_the_default() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let list = || async { r#"{"object":"list","data":[{"id":"qwen3:4b"},{"id":"llama"}]}"# };
        let app = axum::Router::new().route("/v1/models", axum::routing::get(list));
        let mut server = tokio::task::JoinSet::new();
        server.spawn(async move { axum::serve(listener, app).await });

        let models = selected(&[("OLLAMA_HOST", &address.to_string())]).await.unwrap();
        assert_eq!(models.default_model.to_string(), "ollama/qwen3:4b");
        let models = selected(&[("OPENAI_BASE_URL", &format!("http://{address}/v1/"))]).await.unwrap();
        assert_eq!(models.default_model.to_string(), "openai/qwen3:4b");
        assert!(!models.demonstration && models.warnings.is_empty());
        // As they are accepted for the model calls themselves.
        for base in ["", "/", "/v1?api-version=1"] {
            let models = selected(&[("OPENAI_BASE_URL", &format!("http://{address}{base}"))]).await.unwrap();
            assert_eq!(models.default_model.to_string(), "openai/qwen3:4b", "{base}");
        }
    }

    #[tokio::test]
    async fn who_asks_together_waits_for_one_look_and_is_not_told_where() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let list = move || {
            count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            async { r#"{"object":"list","data":null}"# }
        };
        let app = axum::Router::new().route("/v1/models", axum::routing::get(list));
        let mut server = tokio::task::JoinSet::new();
        server.spawn(async move { axum::serve(listener, app).await });
        let base_url = format!("http://me:canary@{address}/v1?key=canary");
        let first = FirstListed::new(Endpoint { provider: "ollama", base_url, key: None });
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
        assert_eq!(models.endpoints[0].shown(), "http://127.0.0.1:1/v1");
        assert!(models.warnings[0].starts_with("http://127.0.0.1:1/v1 "), "{:?}", models.warnings);
        let models = selected(&[("OPENAI_BASE_URL", "http://127.0.0.1:1/v1?key=canary")]).await.unwrap();
        assert!(models.warnings[0].starts_with("http://127.0.0.1:1/v1 "), "{:?}", models.warnings);
    }

    #[test]
    fn single_models_may_take_longer() {
        let environment = environment(&[
            ("CAPSTAN_PROVIDERS__OPENAI__MODEL_LIMITS", r#"[{ model = "slow.1:4b", first_byte_ms = 600000, total_ms = 900000 }]"#),
            ("CAPSTAN_PROVIDERS__OPENAI__IDLE_MS", "7000"),
        ]);
        let loaded = super::super::config::load(None, &environment, &[]).unwrap();
        let endpoint = Endpoint { provider: "openai", base_url: OPENAI_URL.to_owned(), key: None };
        let options = options(&endpoint, &loaded.config.providers.openai);
        let own = options.model_limits["slow.1:4b"];
        assert_eq!((own.first_byte.as_secs(), own.idle.as_secs(), own.total.as_secs()), (600, 7, 900));
        assert_eq!(options.limits, StreamLimits { idle: Duration::from_secs(7), ..StreamLimits::default() });
        // What is shown can be read again.
        let shown = super::super::config::show(&loaded);
        assert!(
            super::super::config::load(Some(("x.toml".into(), shown.clone())), &Environment::default(), &[]).is_ok(),
            "{shown}"
        );
    }

    #[test]
    fn ollama_hosts_have_many_forms() {
        let cases = [
            ("", "http://127.0.0.1:11434/v1"),
            ("0.0.0.0", "http://127.0.0.1:11434/v1"),
            ("gpu:1", "http://gpu:1/v1"),
            ("https://gpu.example/", "https://gpu.example/v1"),
            ("http://[::1]", "http://[::1]:11434/v1"),
            ("http://[::1]:7", "http://[::1]:7/v1"),
        ];
        for (host, url) in cases {
            assert_eq!(ollama_url(&environment(&[("OLLAMA_HOST", host)])), url, "{host:?}");
        }
    }
}
