//! Selects the models: from the settings, the environment or a local Ollama, or else the demonstration.

mod endpoint;
mod first_listed;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};

pub use self::endpoint::Endpoint;
pub use self::first_listed::FirstListed;
use self::first_listed::LIST_TIMEOUT;
use super::config::{EmbeddingsConfig, Environment, Loaded};
use crate::domain::ids::UserId;
use crate::provider::Router;
use crate::provider::catalog;
use crate::provider::demo::DemoClient;
use crate::provider::embeddings::EmbeddingClient;
use crate::store::Store;

const OLLAMA: &str = "ollama";

const OLLAMA_TIMEOUT: Duration = Duration::from_millis(300);

pub struct Models {
    pub router: Arc<Router>,
    pub default_model: DefaultModel,
    pub endpoints: Vec<Endpoint>,
    /// Whether the default model is the demonstration because nothing else was found.
    pub demonstration: bool,
    pub warnings: Vec<String>,
}

/// The model of runs that name none.
#[derive(Clone)]
pub enum DefaultModel {
    Known(String),
    /// The first that the endpoint will list, which listed none so far.
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

impl Models {
    /// Returns the embeddings client of the configured provider of the embeddings model, by its name. There may be none: users can
    /// have a record of that provider.
    pub fn embedders(&self, config: &EmbeddingsConfig) -> anyhow::Result<HashMap<String, Arc<dyn EmbeddingClient>>> {
        let provider = config.model.as_deref().and_then(|model| model.split_once('/')).map(|(provider, _)| provider);
        let Some(endpoint) = self.endpoints.iter().find(|endpoint| Some(endpoint.provider.as_str()) == provider) else {
            if let Some(model) = &config.model {
                tracing::warn!("embeddings.model: no provider of {model} is configured; only those who keep one use it");
            }
            return Ok(HashMap::new());
        };
        let client =
            endpoint.embeddings(config.limits()).with_context(|| format!("provider {} cannot be used", endpoint.provider))?;
        let Some(client) = client else {
            bail!(
                "embeddings.model: {} speaks {}, which has no embeddings; name a model of an openai or ollama provider",
                endpoint.provider,
                endpoint.kind.as_str()
            );
        };
        Ok(HashMap::from([(endpoint.provider.clone(), client)]))
    }
}

/// Selects the models. Fails if the configured model belongs to no configured provider.
pub async fn select(loaded: &Loaded, environment: &Environment) -> anyhow::Result<Models> {
    let wanted = loaded.sources.contains_key("agent.model").then(|| loaded.config.agent.model.clone());
    let agent = &loaded.config.agent;
    let planning = agent.plan.planner.iter().chain(&agent.plan.router);
    let beside = agent.fallbacks.iter().chain(&agent.title_model);
    let named: Vec<&str> = wanted.iter().chain(beside).chain(planning).map(String::as_str).collect();
    let embedding: Vec<&str> = loaded.config.embeddings.model.iter().map(String::as_str).collect();
    let mut endpoints = endpoints(loaded, environment, &named, &embedding)?;
    let mut warnings = Vec::new();

    let mut found_model = None;
    if wanted.is_none() && endpoints.iter().all(|endpoint| endpoint.rank.is_none()) {
        // Nothing is configured: look for a local Ollama.
        let known = catalog::providers()?.get(OLLAMA);
        if let Some(ollama) = Endpoint::of(OLLAMA, known, None, environment, true)? {
            found_model = ollama.first_model(OLLAMA_TIMEOUT).await;
            if found_model.is_some() {
                endpoints.push(ollama);
            }
        }
    }

    let mut router = Router::default().with("demo", Arc::new(DemoClient));
    for endpoint in &endpoints {
        router = router.with(&endpoint.provider, endpoint.client(loaded.config.breaker.limits())?);
    }

    let first = endpoints.iter().filter(|endpoint| endpoint.rank.is_some()).min_by_key(|endpoint| endpoint.rank);
    let demonstration = first.is_none() && wanted.is_none();
    let default_model = match (wanted, first) {
        (Some(model), _) => DefaultModel::Known(model),
        (None, Some(endpoint)) => default_of(endpoint, found_model, &mut warnings).await?,
        (None, None) => DefaultModel::Known("demo/demo".to_owned()),
    };
    if let DefaultModel::Known(model) = &default_model
        && !router.knows(model)
    {
        bail!("{}, or choose another model with CAPSTAN_MODEL", unknown(model, &router)?);
    }
    Ok(Models { router: Arc::new(router), default_model, endpoints, demonstration, warnings })
}

/// Refuses fallbacks and title models that no provider serves. Otherwise a fallback would fail during the outage that it is for, and
/// missing titles would be reported nowhere. Configured providers and records of the server count, records of users do not.
pub async fn check_served(setting: &str, wanted: &[String], models: &Models, store: &dyn Store) -> anyhow::Result<()> {
    let nobody = UserId::from_stored(String::new());
    for model in wanted.iter().filter(|model| !models.router.knows(model)) {
        let provider = model.split_once('/').map_or(model.as_str(), |(provider, _)| provider);
        if store.provider_named(&nobody, provider).await.context("the providers in the database cannot be read")?.is_none() {
            bail!("{setting}: {}, or take it out", unknown(model, &models.router)?);
        }
    }
    Ok(())
}

/// Returns the endpoints of all configured providers, by name. A provider that needs no key is configured if one of its models is
/// `named`.
fn endpoints(loaded: &Loaded, environment: &Environment, named: &[&str], embedding: &[&str]) -> anyhow::Result<Vec<Endpoint>> {
    let configured = &loaded.config.providers;
    let known = catalog::providers()?;
    let mut found = BTreeMap::new();
    for (name, provider) in known.iter().filter(|(_, provider)| provider.shares.is_none()) {
        let mut config = configured.get(name).cloned();
        if name == OLLAMA
            && config.as_ref().is_none_or(|config| config.base_url.is_none())
            && let Some(host) = environment.get("OLLAMA_HOST")
        {
            config.get_or_insert_default().base_url = Some(ollama_url(host).into());
        }
        let is_named =
            |models: &[&str]| models.iter().filter_map(|model| model.split_once('/')).any(|(provider, _)| provider == name);
        let (is_wanted, is_embedder) = (is_named(named), is_named(embedding));
        let mut endpoint = Endpoint::of(name, Some(provider), config.as_ref(), environment, is_wanted)?;
        if endpoint.is_none() && is_embedder {
            // Used for embeddings only, it has no rank for runs that name no model.
            endpoint = Endpoint::of(name, Some(provider), config.as_ref(), environment, true)?;
            endpoint.iter_mut().for_each(|endpoint| endpoint.rank = None);
        }
        if let Some(endpoint) = endpoint {
            found.insert(name.clone(), endpoint);
        }
    }
    for (name, provider) in known {
        if let Some(other) = provider.shares.as_ref().and_then(|other| found.get(other)) {
            let shared = other.shared_as(name, provider);
            found.insert(name.clone(), shared);
        }
    }
    for (name, config) in configured.iter().filter(|(name, _)| !known.contains_key(*name)) {
        if let Some(endpoint) = Endpoint::of(name, None, Some(config), environment, true)? {
            found.insert(name.clone(), endpoint);
        }
    }
    Ok(found.into_values().collect())
}

async fn default_of(endpoint: &Endpoint, found: Option<String>, warnings: &mut Vec<String>) -> anyhow::Result<DefaultModel> {
    if let Some(model) = &endpoint.default_model {
        return Ok(DefaultModel::Known(format!("{}/{model}", endpoint.provider)));
    }
    let first = match found {
        Some(model) => Some(model),
        None => endpoint.first_model(LIST_TIMEOUT).await,
    };
    if let Some(model) = first {
        return Ok(DefaultModel::Known(format!("{}/{model}", endpoint.provider)));
    }
    // It may be starting at this moment, or its first model is pulled later.
    if endpoint.provider == OLLAMA {
        warnings.push(format!(
            "{} does not answer or has no models yet; runs that name no model are refused until it lists one: `ollama pull` one, \
             or set CAPSTAN_MODEL",
            endpoint.shown()
        ));
        return Ok(DefaultModel::FirstListed(Arc::new(FirstListed::new(endpoint.clone()))));
    }
    let known = catalog::providers()?.get(&endpoint.provider).and_then(|known| known.default_model.clone());
    let Some(model) = known else {
        bail!("{} lists no models; say with CAPSTAN_MODEL={}/NAME which one is meant", endpoint.shown(), endpoint.provider);
    };
    warnings.push(format!("{} lists no models; set CAPSTAN_MODEL, or {model} is asked for", endpoint.shown()));
    Ok(DefaultModel::Known(format!("{}/{model}", endpoint.provider)))
}

/// Returns an error text that says how to configure the provider of a model.
fn unknown(model: &str, router: &Router) -> anyhow::Result<String> {
    let name = model.split_once('/').map_or(model, |(provider, _)| provider);
    let known = catalog::providers()?;
    let provider = known.get(name).and_then(|provider| provider.shares.as_ref().map_or(Some(provider), |other| known.get(other)));
    let way_out = match provider {
        Some(provider) => {
            let variables: Vec<&str> = provider.key_env.iter().take(1).chain(&provider.base_url_env).map(String::as_str).collect();
            format!("set {} for {name}/...", variables.join(" or "))
        }
        None => format!("add a section [providers.{name}] with its kind and base_url"),
    };
    Ok(format!("the model {model:?} belongs to no configured provider (configured: {}); {way_out}", router.providers().join(", ")))
}

/// `OLLAMA_HOST` may be a host, a host and port, or a URL; a server's own setting of 0.0.0.0 means this machine.
fn ollama_url(host: &str) -> String {
    let (scheme, rest) = host.split_once("://").unwrap_or(("http", host));
    let rest = rest.trim_end_matches('/').replace("0.0.0.0", "127.0.0.1");
    let port = if rest.rsplit(']').next().unwrap_or_default().contains(':') || scheme == "https" { "" } else { ":11434" };
    format!("{scheme}://{rest}{port}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::FindModel as _;

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
        assert_eq!(models.router.providers(), ["anthropic", "demo", "openai", "openai-responses"]);
        assert!(!models.demonstration);
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
        let load =
            |text: &str| super::super::config::load(Some(("capstan.toml".into(), text.to_owned())), &environment, &[]).unwrap();
        let text = "[providers.acme]\nkind = 'openai'\nbase_url = 'https://acme.example/v2'\nkey_env = 'ACME_KEY'\n\
                    headers_env = { x-team = 'ACME_TEAM' }\naccent = { stream_usage = false }";
        let models = select(&load(text), &environment).await.unwrap();
        assert_eq!(models.default_model.to_string(), "acme/large");
        for (wrong, words) in [
            (text.replace("kind = 'openai'\n", ""), ["providers.acme", "kind"]),
            (text.replace("base_url = 'https://acme.example/v2'\n", ""), ["providers.acme", "base_url"]),
            (text.replace("ACME_TEAM", "NOBODY"), ["headers_env.x-team", "NOBODY"]),
            (text.replace("stream_usage", "stream_useage"), ["providers.acme.accent", "stream_useage"]),
            ("[providers.azure]\nkind = 'openai'".to_owned(), ["providers.azure", "AZURE_OPENAI_BASE_URL"]),
        ] {
            let error = format!("{:#}", select(&load(&wrong), &environment).await.err().unwrap());
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        }
    }

    #[tokio::test]
    async fn a_model_without_its_provider_is_refused() {
        let error = selected(&[("CAPSTAN_MODEL", "anthropic/claude")]).await.err().unwrap().to_string();
        assert!(error.contains("anthropic/claude") && error.contains("demo"), "{error}");
        let models = selected(&[("CAPSTAN_MODEL", "ollama/llama"), ("OLLAMA_HOST", "gpu:99")]).await.unwrap();
        assert_eq!(models.default_model.to_string(), "ollama/llama");
        assert_eq!(models.endpoints[0].base_url, "http://gpu:99");
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
            async { r#"{"models":null}"# }
        };
        let app = axum::Router::new().route("/api/tags", axum::routing::get(list));
        let mut server = tokio::task::JoinSet::new();
        server.spawn(async move { axum::serve(listener, app).await });
        let base_url = format!("http://me:canary@{address}/?key=canary");
        let models = selected(&[("OLLAMA_HOST", &base_url)]).await.unwrap();
        assert_eq!(asked.swap(0, std::sync::atomic::Ordering::SeqCst), 1);
        let first = FirstListed::new(models.endpoints[0].clone());
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
        assert_eq!(models.endpoints[0].shown(), "http://127.0.0.1:1");
        assert!(models.warnings[0].starts_with("http://127.0.0.1:1 "), "{:?}", models.warnings);
        let models = selected(&[("OPENAI_BASE_URL", "http://127.0.0.1:1/v1?key=canary")]).await.unwrap();
        assert!(models.warnings[0].starts_with("http://127.0.0.1:1/v1 "), "{:?}", models.warnings);
    }

    #[test]
    fn ollama_hosts_have_many_forms() {
        let cases = [
            ("0.0.0.0", "http://127.0.0.1:11434"),
            ("gpu:1", "http://gpu:1"),
            ("https://gpu.example/", "https://gpu.example"),
            ("http://[::1]", "http://[::1]:11434"),
            ("http://[::1]:7", "http://[::1]:7"),
        ];
        for (host, url) in cases {
            assert_eq!(ollama_url(host), url, "{host:?}");
        }
    }
}
