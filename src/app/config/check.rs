//! Checks of settings beyond their types: limits, names and combinations.

use secrecy::ExposeSecret as _;
use tracing_subscriber::filter::LevelFilter;

use super::environment::{Environment, check_unquoted};
use super::error::{ConfigError, invalid};
use super::settings::{Config, ConfiguredKey, WorkerConfig};
use crate::domain::agent::{InvalidProfile, is_model};
use crate::domain::run::budget::Budget;
use crate::support::net::origin::check_host;
use crate::support::suggestion::nearest;

/// Refuses quotes around the values of variables that settings name.
pub(super) fn check_named_variables(config: &Config, environment: &Environment) -> Result<(), ConfigError> {
    let of_providers = config.providers.values().flat_map(|provider| provider.key_env.iter().chain(provider.headers_env.values()));
    let of_contexts = config.contexts.providers.values().filter_map(|provider| provider.key_env.as_ref());
    for name in of_providers.chain(of_contexts) {
        check_unquoted(environment, name).map_err(|reason| invalid(name, reason))?;
    }
    Ok(())
}

fn http_url(text: &str) -> Option<reqwest::Url> {
    reqwest::Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
}

fn check_server(config: &Config) -> Result<(), ConfigError> {
    for host in &config.server.allowed_hosts {
        check_host(host).map_err(|reason| invalid("server.allowed_hosts", reason))?;
    }
    let is_site =
        |text: &str| !text.contains('*') && http_url(text).is_some_and(|url| url.query().is_none() && url.fragment().is_none());
    let sites = [
        ("server.public_url", config.server.public_url.as_ref()),
        ("outbound.openrouter_url", Some(&config.outbound.openrouter_url)),
    ];
    for (setting, site) in sites {
        if let Some(site) = site.filter(|site| !is_site(site)) {
            return Err(invalid(setting, format!("{site:?} must be an http or https URL without query and fragment")));
        }
    }
    for directive in config.log.level.split(',').map(str::trim) {
        // Any other word may be the name of a module.
        let is_word = directive.bytes().all(|byte| byte.is_ascii_alphabetic()) && directive.parse::<LevelFilter>().is_err();
        let levels = ["error", "warn", "info", "debug", "trace", "off"];
        if let Some(near) = is_word.then(|| nearest(directive, levels)).flatten() {
            return Err(invalid("log.level", format!("{directive:?} is not a log level; did you mean {near:?}?")));
        }
    }
    Ok(())
}

fn check_worker(worker: &WorkerConfig) -> Result<(), ConfigError> {
    if worker.slots == 0 {
        return Err(invalid("worker.slots", "must be at least 1; use `--role api` for a process without workers"));
    }
    if !(worker.renew_ms > 0 && worker.renew_ms < worker.self_stop_ms && worker.self_stop_ms < worker.lease_ms) {
        return Err(invalid(
            "worker.lease_ms",
            "must satisfy renew_ms < self_stop_ms < lease_ms, or a worker could act on a lost lease",
        ));
    }
    // An orphaned claim is released after a third of its lease. Two renewals must fit into the rest.
    if worker.renew_ms > worker.lease_ms / 3 {
        return Err(invalid(
            "worker.renew_ms",
            "must be at most a third of lease_ms, or one failed renewal lets an orphaned claim expire, which counts as a crash",
        ));
    }
    Ok(())
}

fn check_numbers(config: &Config) -> Result<(), ConfigError> {
    let Config { contexts, database, embeddings, limits, worker, .. } = config;
    let numbers = [
        ("worker.sweep_ms", worker.sweep_ms, 1..=u64::MAX),
        ("worker.poll_ms", worker.poll_ms, 1..=u64::MAX),
        ("database.request_timeout_ms", database.request_timeout_ms, 100..=15_000),
        ("limits.max_message_chars", limits.max_message_chars as u64, 1..=u64::MAX),
        ("limits.max_connections", limits.max_connections as u64, 1..=u64::MAX),
        ("limits.max_websockets_per_owner", limits.max_websockets_per_owner as u64, 1..=u64::MAX),
        ("limits.max_subscriptions_per_websocket", limits.max_subscriptions_per_websocket as u64, 1..=u64::MAX),
        ("limits.body_bytes", limits.body_bytes as u64, 1024..=u64::MAX),
        ("limits.max_share_days", limits.max_share_days.into(), 1..=36_500),
        ("limits.max_shares_per_conversation", limits.max_shares_per_conversation.into(), 1..=1_000),
        ("limits.max_share_bytes", limits.max_share_bytes as u64, 1024..=64 * 1024 * 1024),
        ("embeddings.timeout_ms", embeddings.timeout_ms, 100..=60_000),
        ("embeddings.batch", embeddings.batch as u64, 2..=2_048),
        ("embeddings.cache_mib", embeddings.cache_mib as u64, 1..=4_096),
        ("embeddings.dimensions", embeddings.dimensions.map_or(1, u64::from), 1..=u64::MAX),
        ("contexts.each_ms", contexts.each_ms, 1..=60_000),
        ("contexts.all_ms", contexts.all_ms, 1..=60_000),
        ("contexts.max_chars", contexts.max_chars as u64, 1..=100_000),
    ];
    match numbers.iter().find(|(_, value, bounds)| !bounds.contains(value)) {
        None => Ok(()),
        Some((name, _, bounds)) if *bounds.end() == u64::MAX => Err(invalid(name, format!("must be at least {}", bounds.start()))),
        Some((name, _, bounds)) => Err(invalid(name, format!("must be {} to {}", bounds.start(), bounds.end()))),
    }
}

fn check_contexts(config: &Config) -> Result<(), ConfigError> {
    let providers = &config.contexts.providers;
    if let Some((name, _)) = providers.iter().find(|(_, provider)| http_url(&provider.url).is_none()) {
        return Err(invalid(format!("contexts.providers.{name}.url"), "must be an http or https URL"));
    }
    match config.agent.context_providers.iter().find(|name| !providers.contains_key(*name)) {
        Some(name) => Err(invalid("agent.context_providers", format!("{name} is not in [contexts.providers]"))),
        None => Ok(()),
    }
}

fn check_key(key: &ConfiguredKey) -> Result<(), ConfigError> {
    if key.user.trim().is_empty() {
        return Err(invalid("auth.keys", "a key has no user"));
    }
    let reason = match (&key.key, &key.key_hash) {
        (Some(_), Some(_)) | (None, None) => "must have either key or key_hash",
        (Some(plain), None) if plain.expose_secret().len() < 16 => {
            "the key has fewer than 16 characters; `capstan keys create` generates one"
        }
        (None, Some(hash)) if hash.len() != 64 || !hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) => {
            "key_hash must be SHA-256 as 64 lower-case hexadecimal digits"
        }
        (Some(_), None) | (None, Some(_)) => return Ok(()),
    };
    Err(invalid(format!("auth.keys of user {:?}", key.user), reason))
}

pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    check_server(config)?;
    check_worker(&config.worker)?;
    check_numbers(config)?;
    if config.database.max_connections < 2 {
        return Err(invalid("database.max_connections", "must be at least 2: one for the log writer, one for requests"));
    }
    let day = Budget { day: config.limits.day(), ..Budget::default() };
    if let Err(InvalidProfile { field, reason }) = day.check() {
        let unit = field.trim_start_matches("day/");
        return Err(invalid(format!("limits.max_day_{unit}_per_owner"), reason));
    }
    config.outbound.egress().map_err(|reason| invalid("outbound.allow", reason))?;
    if config.embeddings.model.as_ref().is_some_and(|model| !is_model(model)) {
        return Err(invalid("embeddings.model", "must have the form provider/name, such as openai/text-embedding-3-small"));
    }
    check_contexts(config)?;
    if let Err(InvalidProfile { field, reason }) = config.agent.check() {
        return Err(invalid(format!("agent.{}", field.replace('/', ".")), reason));
    }
    config.auth.keys.iter().try_for_each(check_key)
}
