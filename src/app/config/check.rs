//! Checks of settings that no type makes: bounds, names and values that would never work.

use tracing_subscriber::filter::LevelFilter;

use super::environment::{Environment, check_unquoted};
use super::error::{ConfigError, invalid};
use super::settings::{Config, LimitsConfig};
use crate::domain::agent::{InvalidProfile, is_model};
use crate::domain::budget::Budget;
use crate::support::nearest::nearest;
use crate::support::origin::check_host;

/// Refuses quotes in the variables that settings name.
pub(super) fn check_named_variables(config: &Config, environment: &Environment) -> Result<(), ConfigError> {
    let of_providers = config.providers.values().flat_map(|provider| provider.key_env.iter().chain(provider.headers_env.values()));
    let of_contexts = config.contexts.providers.values().filter_map(|provider| provider.key_env.as_ref());
    for name in of_providers.chain(of_contexts) {
        check_unquoted(environment, name).map_err(|reason| invalid(name, reason))?;
    }
    Ok(())
}

/// Refuses hosts, URLs and log levels that would never match.
fn check_server(config: &Config) -> Result<(), ConfigError> {
    for host in &config.server.allowed_hosts {
        check_host(host).map_err(|reason| invalid("server.allowed_hosts", reason))?;
    }
    let is_site = |text: &str| {
        let url = reqwest::Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        url.is_some_and(|url| url.query().is_none() && url.fragment().is_none()) && !text.contains('*')
    };
    let sites = [
        ("server.public_url", config.server.public_url.as_ref()),
        ("outbound.openrouter_url", Some(&config.outbound.openrouter_url)),
    ];
    for (setting, site) in sites {
        if let Some(site) = site.filter(|site| !is_site(site)) {
            return Err(invalid(setting, format!("{site:?} is no http or https URL without query and fragment")));
        }
    }
    for directive in config.log.level.split(',').map(str::trim) {
        // Anything else may be the name of a module.
        let is_word = directive.bytes().all(|byte| byte.is_ascii_alphabetic()) && directive.parse::<LevelFilter>().is_err();
        let levels = ["error", "warn", "info", "debug", "trace", "off"];
        if let Some(near) = is_word.then(|| nearest(directive, levels)).flatten() {
            return Err(invalid("log.level", format!("{directive:?} is no level; did you mean {near:?}?")));
        }
    }
    Ok(())
}

fn check_contexts(config: &Config) -> Result<(), ConfigError> {
    let contexts = &config.contexts;
    for (name, value) in [("each_ms", contexts.each_ms), ("all_ms", contexts.all_ms)] {
        if !(1..=60_000).contains(&value) {
            return Err(invalid(format!("contexts.{name}"), "must be 1 to 60000"));
        }
    }
    if !(1..=100_000).contains(&contexts.max_chars) {
        return Err(invalid("contexts.max_chars", "must be 1 to 100000"));
    }
    for (name, provider) in &contexts.providers {
        let url = reqwest::Url::parse(&provider.url).ok();
        if !url.is_some_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host()) {
            return Err(invalid(format!("contexts.providers.{name}.url"), "must be an http or https URL"));
        }
    }
    match config.agent.context_providers.iter().find(|name| !contexts.providers.contains_key(*name)) {
        Some(name) => Err(invalid("agent.context_providers", format!("{name} is none of [contexts.providers]"))),
        None => Ok(()),
    }
}

/// Checks all settings together.
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    check_server(config)?;
    let worker = &config.worker;
    if worker.slots == 0 {
        return Err(invalid("worker.slots", "must be at least 1; use `--role api` for a process without workers"));
    }
    if !(worker.renew_ms > 0 && worker.renew_ms < worker.self_stop_ms && worker.self_stop_ms < worker.lease_ms) {
        return Err(invalid(
            "worker.lease_ms",
            "renew_ms must be below self_stop_ms and that below lease_ms, or a worker acts on a lease that it lost",
        ));
    }
    // An orphaned claim is released when a third of its lease is over. Two renewals have to fit into the rest.
    if worker.renew_ms > worker.lease_ms / 3 {
        return Err(invalid(
            "worker.renew_ms",
            "must be at most a third of lease_ms, or one failed renewal lets a claim with a lost reply expire, which counts as a crash",
        ));
    }
    for (name, value) in [("sweep_ms", worker.sweep_ms), ("poll_ms", worker.poll_ms)] {
        if value == 0 {
            return Err(invalid(format!("worker.{name}"), "must be at least 1"));
        }
    }
    if config.database.max_connections < 2 {
        return Err(invalid("database.max_connections", "must be at least 2: one for the log writer, one for requests"));
    }
    if config.database.request_timeout_ms < 100 || config.database.request_timeout_ms > 15_000 {
        return Err(invalid("database.request_timeout_ms", "must be 100 to 15000"));
    }
    let LimitsConfig { max_connections, max_message_chars, max_websockets_per_owner, max_subscriptions_per_websocket, .. } =
        &config.limits;
    for (name, value) in [
        ("max_message_chars", max_message_chars),
        ("max_connections", max_connections),
        ("max_websockets_per_owner", max_websockets_per_owner),
        ("max_subscriptions_per_websocket", max_subscriptions_per_websocket),
    ] {
        if *value == 0 {
            return Err(invalid(format!("limits.{name}"), "must be at least 1"));
        }
    }
    if config.limits.body_bytes < 1024 {
        return Err(invalid("limits.body_bytes", "must be at least 1024"));
    }
    let day = Budget { day: config.limits.day(), ..Budget::default() };
    if let Err(InvalidProfile { field, reason }) = day.check() {
        let unit = field.trim_start_matches("day/");
        return Err(invalid(format!("limits.max_day_{unit}_per_owner"), reason));
    }
    config.outbound.reach().map_err(|reason| invalid("outbound.allow", reason))?;
    let embeddings = &config.embeddings;
    if embeddings.model.as_ref().is_some_and(|model| !is_model(model)) {
        return Err(invalid("embeddings.model", "a model is written provider/name, such as openai/text-embedding-3-small"));
    }
    if !(100..=60_000).contains(&embeddings.timeout_ms) {
        return Err(invalid("embeddings.timeout_ms", "must be 100 to 60000"));
    }
    if !(2..=2_048).contains(&embeddings.batch) {
        return Err(invalid("embeddings.batch", "must be 2 to 2048"));
    }
    if !(1..=4_096).contains(&embeddings.cache_mib) {
        return Err(invalid("embeddings.cache_mib", "must be 1 to 4096"));
    }
    if embeddings.dimensions == Some(0) {
        return Err(invalid("embeddings.dimensions", "must be at least 1"));
    }
    check_contexts(config)?;
    if let Err(InvalidProfile { field, reason }) = config.agent.check() {
        return Err(invalid(format!("agent.{}", field.replace('/', ".")), reason));
    }
    for key in &config.auth.keys {
        let name = format!("auth.keys of user {:?}", key.user);
        if key.user.trim().is_empty() {
            return Err(invalid("auth.keys", "a key without a user"));
        }
        match (&key.key, &key.key_hash) {
            (Some(_), Some(_)) | (None, None) => return Err(invalid(name, "needs either key or key_hash")),
            (Some(plain), None) => {
                use secrecy::ExposeSecret as _;
                if plain.expose_secret().len() < 16 {
                    return Err(invalid(name, "the key is shorter than 16 characters; `capstan keys create` makes a good one"));
                }
            }
            (None, Some(hash)) => {
                if hash.len() != 64 || !hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
                    return Err(invalid(name, "key_hash must be SHA-256 as 64 lower-case hexadecimal digits"));
                }
            }
        }
    }
    Ok(())
}
