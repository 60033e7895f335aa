//! Selects the models: from the settings, the environment or a local server, or else the demonstration model.
//!
//! Owns the configured endpoints and the default model. Must not know stored providers.

mod endpoint;
mod first_model_finder;
mod limitations;
mod missing_key;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use futures_util::future::join_all;

pub use self::endpoint::Endpoint;
use self::endpoint::NoModel;
pub use self::first_model_finder::FirstModelFinder;
use self::first_model_finder::LIST_TIMEOUT;
pub use self::limitations::StoredLimitations;
use self::missing_key::MissingKey;
use super::config::{EmbeddingsConfig, Environment, Loaded};
use crate::domain::ids::UserId;
use crate::provider::catalog;
use crate::provider::demo::DemoClient;
use crate::provider::embeddings::EmbeddingClient;
use crate::provider::{ModelClient, Router};
use crate::store::Store;

const OLLAMA: &str = "ollama";
const OLLAMA_PULL: &str = "get a chat model with `ollama pull`";

/// Servers on this machine that are found without a setting, in this order.
const LOCAL: [&str; 4] = [OLLAMA, "lmstudio", "llamacpp", "vllm"];

const LOCAL_TIMEOUT: Duration = Duration::from_millis(300);

pub struct Models {
    pub router: Arc<Router>,
    pub default_model: DefaultModel,
    pub endpoints: Vec<Endpoint>,
    /// Whether the default model is the demonstration, because no other model was found.
    pub is_demonstration: bool,
    pub warnings: Vec<String>,
    /// To be opened with the database.
    pub limitations: StoredLimitations,
}

/// The default model, for runs that name none.
#[derive(Clone)]
pub enum DefaultModel {
    Known(String),
    /// The first model in the endpoint's list, which may be empty so far.
    FirstListed(Arc<FirstModelFinder>),
}

impl fmt::Display for DefaultModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(model) => f.write_str(model),
            Self::FirstListed(listed) => {
                write!(f, "{}/{}", listed.endpoint.provider, listed.first.as_deref().unwrap_or("(none yet)"))
            }
        }
    }
}

impl DefaultModel {
    /// Returns the model, if it was known at the start.
    pub fn known(&self) -> Option<String> {
        match self {
            Self::FirstListed(listed) if listed.first.is_none() => None,
            Self::FirstListed(_) | Self::Known(_) => Some(self.to_string()),
        }
    }
}

impl Models {
    /// Lets runs with the default model start, and fail with a hint, if the catalogue knows its provider but no key is
    /// configured. A provider record of that name precedes the configuration, so that it serves the model without a restart.
    pub fn explain_missing_key(&mut self) -> anyhow::Result<()> {
        let DefaultModel::Known(model) = &self.default_model else { return Ok(()) };
        let provider = provider_of(model);
        if !self.router.has_provider(model) && catalog::providers()?.contains_key(provider) {
            let client = MissingKey::new(provider, &configuration_hint(provider)?);
            self.router = Arc::new(Router::clone(&self.router).with(provider, Arc::new(client)));
        }
        Ok(())
    }

    /// Returns the embeddings clients of the configured providers, by their names. The provider of the embeddings model may be absent,
    /// because users can store a provider with that name.
    pub fn embedders(&self, config: &EmbeddingsConfig) -> anyhow::Result<HashMap<String, Arc<dyn EmbeddingClient>>> {
        let mut clients = HashMap::new();
        for endpoint in &self.endpoints {
            let client = endpoint.embeddings().with_context(|| format!("provider {} cannot be used", endpoint.provider))?;
            clients.extend(client.map(|client| (endpoint.provider.clone(), client)));
        }
        if let Some(model) = &config.model
            && let provider = provider_of(model)
            && !clients.contains_key(provider)
        {
            match self.endpoints.iter().find(|endpoint| endpoint.provider == provider) {
                Some(endpoint) => bail!(
                    "embeddings.model: the dialect of {provider} is {}, which has no embeddings; set a model of an openai or ollama \
                     provider",
                    endpoint.kind.as_str()
                ),
                None => tracing::warn!(
                    "embeddings.model: no provider of {model} is configured; only users with a stored provider of that name can use it"
                ),
            }
        }
        Ok(clients)
    }
}

/// Selects the models. [`unserved_default`] and [`check_served`] check the configured ones.
pub async fn select(loaded: &Loaded, environment: &Environment) -> anyhow::Result<Models> {
    let requested = loaded.sources.contains_key("agent.model").then(|| loaded.config.agent.model.clone());
    let agent = &loaded.config.agent;
    let planning = agent.plan.planner.iter().chain(&agent.plan.router);
    let optional = agent.fallbacks.iter().chain(&agent.title_model);
    let named: Vec<&str> = requested.iter().chain(optional).chain(planning).map(String::as_str).collect();
    let embedding: Vec<&str> = loaded.config.embeddings.model.iter().map(String::as_str).collect();
    let mut endpoints = endpoints(loaded, environment, &named, &embedding)?;
    let mut warnings = Vec::new();

    let mut found_model = None;
    if requested.is_none() && endpoints.iter().all(|endpoint| endpoint.rank.is_none()) {
        // No provider is configured: look for a local server.
        let known = catalog::providers()?;
        let local = LOCAL.iter().map(|name| Endpoint::of(name, known.get(*name), None, environment, true));
        let local: Vec<Endpoint> = local.collect::<anyhow::Result<Vec<_>>>()?.into_iter().flatten().collect();
        match first_local(local).await {
            Ok((endpoint, model)) => {
                found_model = Some(model);
                endpoints.push(endpoint);
            }
            Err(without_chat) => warnings.extend(without_chat),
        }
    }

    let limitations = StoredLimitations::default();
    endpoints.iter_mut().for_each(|endpoint| endpoint.remember_in(&limitations));
    let mut router = Router::default().with("demo", Arc::new(DemoClient));
    let mut clients = Vec::new();
    for endpoint in &endpoints {
        let client = endpoint.client(loaded.config.breaker.limits())?;
        clients.push(Arc::clone(&client));
        router = router.with(&endpoint.provider, client);
    }

    let ranked = endpoints.iter().zip(clients).filter(|(endpoint, _)| endpoint.rank.is_some());
    let first = ranked.min_by_key(|(endpoint, _)| endpoint.rank);
    let is_demonstration = first.is_none() && requested.is_none();
    let default_model = match (requested, first) {
        (Some(model), _) => DefaultModel::Known(model),
        (None, Some((endpoint, client))) => default_of(endpoint, client, found_model, &mut warnings).await?,
        (None, None) => DefaultModel::Known("demo/demo".to_owned()),
    };
    Ok(Models { router: Arc::new(router), default_model, endpoints, is_demonstration, warnings, limitations })
}

/// Returns the first server that lists a model which answers messages, and that model. Otherwise returns a text about each server that
/// answers. All are asked at the same time.
async fn first_local(endpoints: Vec<Endpoint>) -> Result<(Endpoint, String), Vec<String>> {
    let answers = join_all(endpoints.iter().map(|endpoint| endpoint.first_model(LOCAL_TIMEOUT, None))).await;
    let mut without_chat = Vec::new();
    for (mut endpoint, answer) in endpoints.into_iter().zip(answers) {
        match answer {
            Ok(model) => {
                endpoint.rank = Some(u32::MAX);
                return Ok((endpoint, model));
            }
            // Most machines have none of these servers.
            Err(NoModel::Unlisted(_)) => {}
            Err(reason @ (NoModel::Empty | NoModel::Chatless(_))) => {
                let hint = if endpoint.provider == OLLAMA { OLLAMA_PULL } else { "load a chat model there" };
                without_chat.push(format!("{} at {} {reason}: {hint}", endpoint.provider, endpoint.display_url()));
            }
        }
    }
    Err(without_chat)
}

/// Returns the problem of a default model that no provider serves: neither a configured one, nor a record of the server. A record may
/// follow after the start.
pub async fn unserved_default(models: &Models, store: &dyn Store) -> anyhow::Result<Option<String>> {
    match &models.default_model {
        DefaultModel::Known(model) if !is_served(model, models, store).await? => Ok(Some(format!(
            "{}, store a provider of that name (on the chat page, or POST /api/v1/providers), or set another model with \
             CAPSTAN_MODEL; until then, no run without a model is answered",
            unknown(model, &models.router)?
        ))),
        DefaultModel::Known(_) | DefaultModel::FirstListed(_) => Ok(None),
    }
}

async fn is_served(model: &str, models: &Models, store: &dyn Store) -> anyhow::Result<bool> {
    if models.router.has_provider(model) {
        return Ok(true);
    }
    // Records of users do not count: this one has none.
    let no_user = UserId::from_stored(String::new());
    Ok(store.provider_named(&no_user, provider_of(model)).await.context("the providers in the database cannot be read")?.is_some())
}

/// Refuses fallbacks and title models that no provider serves. Otherwise a fallback would fail during the outage that it is for,
/// and missing titles would never be reported. Configured providers and records of the server count; records of users do not.
pub async fn check_served(setting: &str, requested: &[String], models: &Models, store: &dyn Store) -> anyhow::Result<()> {
    for model in requested {
        if !is_served(model, models, store).await? {
            bail!("{setting}: {}, or remove it", unknown(model, &models.router)?);
        }
    }
    Ok(())
}

/// Returns the endpoints of all configured providers, by name. A provider that needs no key counts as configured if one of its
/// models is `named`.
fn endpoints(loaded: &Loaded, environment: &Environment, named: &[&str], embedding: &[&str]) -> anyhow::Result<Vec<Endpoint>> {
    let configured = &loaded.config.providers;
    let known = catalog::providers()?;
    let mut found = BTreeMap::new();
    for (name, provider) in known.iter().filter(|(_, provider)| provider.shares_endpoint_with.is_none()) {
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
            // A provider that is used for embeddings only does not provide the default model.
            endpoint = Endpoint::of(name, Some(provider), config.as_ref(), environment, true)?;
            endpoint.iter_mut().for_each(|endpoint| endpoint.rank = None);
        }
        if let Some(endpoint) = endpoint {
            found.insert(name.clone(), endpoint);
        }
    }
    for (name, provider) in known {
        if let Some(other) = provider.shares_endpoint_with.as_ref().and_then(|other| found.get(other)) {
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

async fn default_of(
    endpoint: &Endpoint,
    client: Arc<dyn ModelClient>,
    found: Option<String>,
    warnings: &mut Vec<String>,
) -> anyhow::Result<DefaultModel> {
    if let Some(model) = &endpoint.default_model {
        return Ok(DefaultModel::Known(format!("{}/{model}", endpoint.provider)));
    }
    let first = match found {
        Some(model) => Ok(model),
        None => endpoint.first_model(LIST_TIMEOUT, None).await,
    };
    let url = endpoint.display_url();
    let reason = match first {
        Ok(model) => {
            return Ok(DefaultModel::FirstListed(Arc::new(FirstModelFinder::new(endpoint.clone(), client, Some(model)))));
        }
        Err(reason) => reason,
    };
    // It may just be starting, or its first model may be pulled later.
    if endpoint.provider == OLLAMA {
        warnings.push(format!(
            "{url} {reason}; runs without a model are refused until it lists one: {OLLAMA_PULL}, or set CAPSTAN_MODEL"
        ));
        return Ok(DefaultModel::FirstListed(Arc::new(FirstModelFinder::new(endpoint.clone(), client, None))));
    }
    let known = catalog::providers()?.get(&endpoint.provider).and_then(|known| known.default_model.clone());
    let Some(model) = known else {
        bail!("{url} {reason}; set CAPSTAN_MODEL={}/NAME", endpoint.provider);
    };
    warnings.push(format!("{url} {reason}; {model} is used unless CAPSTAN_MODEL is set"));
    Ok(DefaultModel::Known(format!("{}/{model}", endpoint.provider)))
}

/// Returns the provider of a model, the part before the first slash.
fn provider_of(model: &str) -> &str {
    model.split_once('/').map_or(model, |(provider, _)| provider)
}

/// Returns an error text that explains how to configure the provider of a model.
fn unknown(model: &str, router: &Router) -> anyhow::Result<String> {
    Ok(format!(
        "no configured provider and no provider record of the server serves the model {model:?} (configured: {}); {}",
        router.providers().join(", "),
        configuration_hint(provider_of(model))?
    ))
}

/// Returns what configures a provider: its variables, or a section of the settings if the catalogue does not know it.
fn configuration_hint(name: &str) -> anyhow::Result<String> {
    let known = catalog::providers()?;
    let provider = known
        .get(name)
        .and_then(|provider| provider.shares_endpoint_with.as_ref().map_or(Some(provider), |other| known.get(other)));
    Ok(match provider {
        Some(provider) => {
            let variables: Vec<&str> = provider.key_env.iter().take(1).chain(&provider.base_url_env).map(String::as_str).collect();
            format!("set {} for {name}/...", variables.join(" or "))
        }
        None => format!("add a section [providers.{name}] with its kind and base_url"),
    })
}

/// Reads `OLLAMA_HOST` as Ollama does: a host, a port, both, or a URL, perhaps in quotes. The address of all interfaces means this
/// machine.
fn ollama_url(host: &str) -> String {
    const PORT: &str = "11434";
    let host = host.trim().trim_matches(['"', '\'']).trim();
    let (scheme, rest) = host.split_once("://").unwrap_or(("", host));
    let (authority, path) = rest.split_once('/').map_or((rest, String::new()), |(authority, path)| (authority, format!("/{path}")));
    let (user, authority) = authority.rsplit_once('@').map_or(("", authority), |(user, authority)| (user, authority));
    let is_bare_v6 = authority.parse::<std::net::Ipv6Addr>().is_ok();
    let (name, port) = match authority.rsplit_once(':').filter(|_| !is_bare_v6 && !authority.ends_with(']')) {
        Some((name, port)) => (name, port.parse::<u16>().map_or(PORT.to_owned(), |port| port.to_string())),
        None => (
            authority,
            match scheme {
                "http" => "80".to_owned(),
                "https" => "443".to_owned(),
                _ => PORT.to_owned(),
            },
        ),
    };
    let name = match name.trim_matches(['[', ']']) {
        "" | "0.0.0.0" => "127.0.0.1".to_owned(),
        "::" => "[::1]".to_owned(),
        v6 if v6.contains(':') => format!("[{v6}]"),
        name => name.to_owned(),
    };
    let scheme = if scheme.is_empty() { "http" } else { scheme };
    let user = if user.is_empty() { String::new() } else { format!("{user}@") };
    format!("{scheme}://{user}{name}:{port}{}", path.trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::config::ProviderConfig;
    use crate::domain::model::{ModelErrorKind, ModelRequest};
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

    // F04
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
        let (endpoint, model) = first_local(endpoints).await.unwrap();
        assert_eq!((endpoint.provider.as_str(), model.as_str()), ("vllm", "acme-1"));
        let (empty, _third) = local_server(r#"{"models":[]}"#, "{}").await;
        let found = first_local(vec![at("llamacpp", "127.0.0.1:1"), at("vllm", &none), at("ollama", &empty)]).await;
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
}
