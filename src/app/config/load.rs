//! Merges file, environment and flags into the settings.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize as _;
use toml::{Table, Value};

use super::check::{check, check_named_variables};
use super::check_values::{check_value, error_without_values, insert_dotted, parse_value};
use super::environment::{Environment, check_unquoted};
use super::error::{ConfigError, invalid};
use super::file_variables;
use super::settings::Config;
use crate::provider::catalog;
use crate::support::net::origin::parse_origin;
use crate::support::suggestion::nearest;

/// Variables with a short name, each with its setting.
const SHORT_NAMES: &[(&str, &str)] = &[
    ("DATABASE_URL", "database.url"),
    ("CAPSTAN_LISTEN", "server.listen"),
    ("CAPSTAN_DATA_DIR", "server.data_dir"),
    ("CAPSTAN_MODEL", "agent.model"),
    ("CAPSTAN_SECRET_KEY", "auth.secret_key"),
    ("CAPSTAN_SECRET_KEY_PREVIOUS", "auth.secret_key_previous"),
    ("CAPSTAN_MCP_CONFIG", "tools.mcp_config"),
];

/// Variables that other parts of the program read.
const OTHER_NAMES: &[&str] =
    &["CAPSTAN_CONFIG", "CAPSTAN_FAILPOINTS", "CAPSTAN_PLANTED", "CAPSTAN_URL", "CAPSTAN_KEY", COMPOSE_KEY];

/// The variable of `docker/compose.yaml`, which may be set in a shell that runs commands.
const COMPOSE_KEY: &str = "CAPSTAN_ADMIN_KEY";

/// Prefixes of variables that are not settings: those of tests, and those that Kubernetes sets for a service named `capstan`.
const OTHER_PREFIXES: &[&str] = &["CAPSTAN_TEST_", "CAPSTAN_SERVICE_", "CAPSTAN_PORT_"];

/// Variables that libraries and the search for Ollama read.
const LIBRARY_NAMES: &[&str] = &[
    "OLLAMA_HOST",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
];

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    File(PathBuf),
    Environment(String),
    Flag(&'static str),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Environment(name) => f.write_str(name),
            Self::Flag(name) => f.write_str(name),
        }
    }
}

/// The source of each setting that differs from its default, by dotted path.
pub type Sources = BTreeMap<String, Source>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flag {
    pub name: &'static str,
    /// The setting that the flag sets, as a dotted path.
    pub key: &'static str,
    pub value: String,
}

#[derive(Debug, Clone)]
pub struct Loaded {
    pub config: Config,
    pub sources: Sources,
}

/// Reads the configuration file: the `named` one, which must exist, or `capstan.toml` in the working folder, which may be missing.
pub fn read_file(named: Option<&Path>) -> Result<Option<(PathBuf, String)>, ConfigError> {
    let path = named.unwrap_or(Path::new("capstan.toml"));
    match std::fs::read_to_string(path) {
        // Editors on Windows begin a file with a byte order mark.
        Ok(text) => Ok(Some((path.to_owned(), text.trim_start_matches('\u{feff}').to_owned()))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && named.is_none() => Ok(None),
        Err(error) => Err(invalid(format!("cannot read the configuration file {}", path.display()), error.to_string())),
    }
}

pub fn load(file: Option<(PathBuf, String)>, environment: &Environment, flags: &[Flag]) -> Result<Loaded, ConfigError> {
    let mut table = Table::new();
    let mut sources = Sources::new();
    if let Some((path, text)) = file {
        table = parse_file(&path, &text, environment)?;
        sources.extend(leaf_paths(&table).into_iter().map(|key| (key, Source::File(path.clone()))));
    }
    // Short names come first, so that long names have priority.
    for (name, key) in SHORT_NAMES {
        if let Some(value) = environment.get(name) {
            set(&mut table, &mut sources, key, value, Source::Environment((*name).to_owned()))?;
        }
    }
    for (variable, key) in provider_url_variables() {
        if let Some(value) = environment.get(variable) {
            set(&mut table, &mut sources, &key, value, Source::Environment(variable.to_owned()))?;
        }
    }
    for (name, value) in environment.iter() {
        let Some(setting) = name.strip_prefix("CAPSTAN_") else { continue };
        // Kubernetes sets CAPSTAN_PORT to a URL, such as `tcp://10.0.0.1:8080`.
        if SHORT_NAMES.iter().any(|(short, _)| *short == name)
            || OTHER_NAMES.contains(&name)
            || OTHER_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
            || (name == "CAPSTAN_PORT" && value.contains("://"))
        {
            continue;
        }
        if !setting.contains("__") {
            let near = nearest(name, SHORT_NAMES.iter().map(|(short, _)| *short));
            let hint = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
            return Err(invalid(name, format!("this setting does not exist; the form is CAPSTAN_SECTION__KEY{hint}")));
        }
        let key = setting.split("__").map(str::to_ascii_lowercase).collect::<Vec<_>>().join(".");
        set(&mut table, &mut sources, &key, value, Source::Environment(name.to_owned()))?;
    }
    for flag in flags {
        set(&mut table, &mut sources, flag.key, &flag.value, Source::Flag(flag.name))?;
    }
    let mut config = Config::deserialize(table).map_err(|error| invalid("the settings together", error_without_values(&error)))?;
    for origin in &mut config.server.allowed_origins {
        *origin = parse_origin(origin).map_err(|reason| invalid("server.allowed_origins", reason))?;
    }
    check(&config)?;
    check_named_variables(&config, environment)?;
    Ok(Loaded { config, sources })
}

/// Refuses quotes around the values of all variables that the program reads by a fixed name.
pub fn check_variables(environment: &Environment) -> Result<(), ConfigError> {
    let known = catalog::providers().ok().into_iter().flatten();
    let of_providers = known.flat_map(|(_, provider)| provider.key_env.iter().chain(&provider.base_url_env)).map(String::as_str);
    let is_ours = |name: &&str| name.starts_with("CAPSTAN_") && OTHER_PREFIXES.iter().all(|prefix| !name.starts_with(prefix));
    let ours = environment.iter().map(|(name, _)| name).filter(is_ours);
    let short = SHORT_NAMES.iter().map(|(name, _)| *name);
    for name in short.chain(ours).chain(of_providers).chain(LIBRARY_NAMES.iter().copied()) {
        check_unquoted(environment, name).map_err(|reason| invalid(name, reason))?;
    }
    Ok(())
}

/// Returns the variables for URLs of providers, each with its setting. Tests prove that the catalog is readable.
fn provider_url_variables() -> impl Iterator<Item = (&'static str, String)> {
    let known = catalog::providers().ok().into_iter().flatten();
    known.filter_map(|(name, provider)| Some((provider.base_url_env.as_deref()?, format!("providers.{name}.base_url"))))
}

fn parse_file(path: &Path, text: &str, environment: &Environment) -> Result<Table, ConfigError> {
    let at = |error: &toml::de::Error| {
        let line = error.span().map(|span| text[..span.start].matches('\n').count() + 1);
        line.map_or_else(|| path.display().to_string(), |line| format!("{}:{line}", path.display()))
    };
    let mut table: Table = toml::from_str(text).map_err(|error| invalid(at(&error), error_without_values(&error)))?;
    if file_variables::expand(&mut table, environment).map_err(|reason| invalid(path.display(), reason))? {
        Config::deserialize(table.clone()).map_err(|error| invalid(path.display(), error_without_values(&error)))?;
    } else {
        // Deserialized directly from the text, so that errors contain the line.
        toml::from_str::<Config>(text).map_err(|error| invalid(at(&error), error_without_values(&error)))?;
    }
    Ok(table)
}

/// Sets one key: as text if the key accepts text, or else as the TOML value in the text.
fn set(table: &mut Table, sources: &mut Sources, key: &str, text: &str, source: Source) -> Result<(), ConfigError> {
    let as_text = Value::String(text.to_owned());
    let value = match check_value(key, as_text.clone()) {
        Ok(()) => as_text,
        Err(as_text_error) => {
            let Some(value) = parse_value(text) else { return Err(invalid(&source, as_text_error)) };
            check_value(key, value.clone()).map_err(|reason| invalid(&source, reason))?;
            value
        }
    };
    insert_dotted(table, key, value).map_err(|()| invalid(&source, format!("`{key}` is not a section")))?;
    sources.retain(|other, _| other != key && !other.starts_with(&format!("{key}.")));
    sources.insert(key.to_owned(), source);
    Ok(())
}

/// Returns the dotted paths of all values that are not tables.
fn leaf_paths(table: &Table) -> Vec<String> {
    let mut paths = Vec::new();
    for (key, value) in table {
        match value {
            Value::Table(inner) => paths.extend(leaf_paths(inner).into_iter().map(|path| format!("{key}.{path}"))),
            _ => paths.push(key.clone()),
        }
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::config::{Role, show};
    use secrecy::ExposeSecret as _;

    fn file(text: &str) -> Option<(PathBuf, String)> {
        Some((PathBuf::from("capstan.toml"), text.to_owned()))
    }

    fn environment(pairs: &[(&str, &str)]) -> Environment {
        pairs.iter().copied().collect()
    }

    fn error(file_text: &str, pairs: &[(&str, &str)]) -> String {
        load(file(file_text), &environment(pairs), &[]).unwrap_err().to_string()
    }

    #[test]
    fn flags_win_over_environment_over_file_over_defaults() {
        let text = "[server]\nlisten = '127.0.0.1:1'\nrole = 'api'\n[worker]\nslots = 7\n[agent]\nmodel = 'a/file'";
        let pairs =
            [("CAPSTAN_LISTEN", "127.0.0.1:2"), ("CAPSTAN_WORKER__SLOTS", "8"), ("CAPSTAN_MODEL", "a/env"), ("PATH", "/bin")];
        let flags = [Flag { name: "--listen", key: "server.listen", value: "127.0.0.1:3".to_owned() }];
        let loaded = load(file(text), &environment(&pairs), &flags).unwrap();
        assert_eq!(loaded.config.server.listen.port(), 3);
        assert_eq!(loaded.config.server.role, Role::Api);
        assert_eq!(loaded.config.worker.slots, 8);
        assert_eq!(loaded.config.agent.model, "a/env");
        assert_eq!(loaded.config.worker.lease_ms, 10_000);
        assert_eq!(loaded.sources["server.listen"], Source::Flag("--listen"));
        assert_eq!(loaded.sources["worker.slots"], Source::Environment("CAPSTAN_WORKER__SLOTS".to_owned()));
        assert_eq!(loaded.sources["server.role"], Source::File("capstan.toml".into()));
        assert!(!loaded.sources.contains_key("worker.lease_ms"));
    }

    #[test]
    fn long_names_reach_every_type_of_key() {
        let pairs = [
            ("CAPSTAN_AGENT__OPTIONS__TEMPERATURE", "0.5"),
            ("CAPSTAN_AGENT__SYSTEM_PROMPT", "12"),
            ("CAPSTAN_AGENT__LLM_RETRY__DELAYS_MS", "[1, 2]"),
            ("CAPSTAN_AUTH__KEYS", "[{user = 'ada', key = 'cap_0123456789abcdef', role = 'admin'}]"),
            ("CAPSTAN_SERVER__LISTEN", "0.0.0.0:80"),
            ("CAPSTAN_LISTEN", "127.0.0.1:2"),
            ("CAPSTAN_DATA_DIR", ""),
        ];
        let config = load(None, &environment(&pairs), &[]).unwrap().config;
        assert_eq!(config.agent.options.temperature, Some(0.5));
        assert_eq!(config.agent.system_prompt, "12");
        assert_eq!(config.agent.llm_retry.delays_ms, [1, 2]);
        assert_eq!(config.auth.keys[0].user, "ada");
        assert_eq!(config.server.listen.to_string(), "0.0.0.0:80");
        assert_eq!(config.database_url().expose_secret(), "sqlite:./data/capstan.db");
    }

    #[test]
    fn errors_name_the_key_and_its_source() {
        let cases = [
            (error("[server]\nlisen = 'x'", &[]), ["capstan.toml:2", "`lisen`"]),
            (error("[serve]\n", &[]), ["capstan.toml:1", "`serve`"]),
            (error("", &[("CAPSTAN_WORKER__SLOT", "1")]), ["CAPSTAN_WORKER__SLOT", "`slot`"]),
            (error("", &[("CAPSTAN_WORKER__SLOTS", "many")]), ["CAPSTAN_WORKER__SLOTS", "worker.slots"]),
            (error("", &[("CAPSTAN_LISTN", "1")]), ["CAPSTAN_LISTN", "CAPSTAN_SECTION__KEY"]),
            (error("", &[("CAPSTAN_MODEL", "gpt")]), ["agent.model", "provider/name"]),
            (error("[worker]\nlease_ms = 5000", &[]), ["worker.lease_ms", "self_stop_ms"]),
            (error("[worker]\nlease_ms = 8999", &[]), ["worker.renew_ms", "a third of lease_ms"]),
            (error("[[auth.keys]]\nuser = 'ada'", &[]), ["\"ada\"", "key_hash"]),
            (error("[contexts.providers.page]\nurl = 'ftp://x'", &[]), ["contexts.providers.page.url", "http"]),
            (error("[contexts]\neach_ms = 0", &[]), ["contexts.each_ms", "60000"]),
            (error("[outbound]\nallow = ['10.0.0.0/33']", &[]), ["outbound.allow", "10.0.0.0/33"]),
            (error("[agent]\ncontext_providers = ['page']", &[]), ["agent.context_providers", "page"]),
            (error("[server\n", &[]), ["capstan.toml:1", ""]),
        ];
        for (message, words) in cases {
            for word in words {
                assert!(message.contains(word), "{message:?} should name {word:?}");
            }
        }
    }

    #[test]
    fn the_file_may_name_variables() {
        let text = "[server]\nlisten = '${HOST:-127.0.0.1}:${PORT}'\nallowed_hosts = ['${NAME}.example', 'b']\n\
                    [worker]\nslots = '${SLOTS:-7}'\n[agent]\nsystem_prompt = 'Say $${NAME}, ${NAME}.'\n\
                    [[auth.keys]]\nuser = '${NAME}'\nkey = '${SECRET}'";
        let pairs = [("PORT", "99"), ("NAME", "ann"), ("SECRET", "canary-0123456789"), ("SLOTS", "")];
        let loaded = load(file(text), &environment(&pairs), &[]).unwrap();
        let config = &loaded.config;
        assert_eq!(config.server.listen.to_string(), "127.0.0.1:99");
        assert_eq!(config.server.allowed_hosts, ["ann.example", "b"]);
        assert_eq!(config.worker.slots, 7);
        assert_eq!(config.agent.system_prompt, "Say ${NAME}, ann.");
        assert_eq!(config.auth.keys[0].key.as_ref().unwrap().expose_secret(), "canary-0123456789");
        assert_eq!(loaded.sources["server.listen"], Source::File("capstan.toml".into()));
        // Reading the output again gives the same settings.
        let shown = show(&loaded);
        let prompt = shown.lines().find(|line| line.starts_with("system_prompt")).unwrap();
        assert!(prompt.contains("Say $${NAME}, ann.") && !shown.contains("canary"), "{shown}");

        let missing = error("[server]\nallowed_hosts = ['a', '${MISSING}']", &[]);
        assert!(missing.contains("capstan.toml") && missing.contains("server.allowed_hosts[1]"), "{missing}");
        assert!(missing.contains("the variable MISSING is not set"), "{missing}");
        assert!(error("[agent]\nmodel = '${X'", &[]).contains("agent.model"));
        let wrong = error("[worker]\nslots = '${SLOTS}'", &[("SLOTS", "canary")]);
        assert!(wrong.contains("worker") && !wrong.contains("canary"), "{wrong}");
    }

    #[test]
    fn setting_that_fails_every_run_is_refused_at_start() {
        for (text, name) in [
            ("[agent.options]\ntemperature = 9.0", "agent.options.temperature"),
            ("[agent.options]\nstop = ['']", "agent.options.stop"),
            ("[agent.options.tool_choice]\ntool = ''", "agent.options.tool_choice.tool"),
            ("[agent]\nfallbacks = ['gpt-5']", "agent.fallbacks"),
            ("[agent]\nfallbacks = ['openai/']", "agent.fallbacks"),
        ] {
            assert!(error(text, &[]).starts_with(&format!("{name}: ")), "{}", error(text, &[]));
        }
    }

    #[test]
    fn variables_of_others_are_left_alone() {
        let pairs =
            [("CAPSTAN_SERVICE_HOST", "10.0.0.1"), ("CAPSTAN_PORT_8080_TCP", "x"), ("CAPSTAN_TEST_X", "1"), ("CAPSTAN_URL", "u")];
        assert!(load(None, &environment(&pairs), &[]).unwrap().sources.is_empty());
    }

    #[test]
    fn no_secret_is_shown_anywhere() {
        let text = "[[auth.keys]]\nuser = 'ada'\nkey = 'cap_canary_0123456789'\n[auth]\nsecret_key = 'canary-master'\n";
        let pairs = [
            ("DATABASE_URL", "postgres://me:canary-pw@db/x?password=canary-too"),
            ("OPENAI_BASE_URL", "https://me:canary@host/v1?key=canary"),
        ];
        let loaded = load(file(text), &environment(&pairs), &[]).unwrap();
        let shown = format!("{}{:?}", show(&loaded), loaded);
        assert!(!shown.contains("canary"), "{shown}");
        assert!(shown.contains("base_url = \"https://host/v1\""), "{shown}");
        assert!(shown.contains("postgres://me:[redacted]@db/x"), "{shown}");
        let wrong = error("[auth]\nsecret_key = ['canary']", &[("CAPSTAN_WORKER__SLOTS", "canary")]);
        assert!(!wrong.contains("canary\""), "{wrong}");
        assert!(!error("", &[("CAPSTAN_WORKER__SLOTS", "canary")]).contains("canary"));
    }
}
