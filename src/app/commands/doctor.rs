//! `capstan doctor`: checks everything that `serve` needs, and prints problems with their remedies.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::anyhow;
use futures_util::future::join_all;
use secrecy::ExposeSecret as _;

use crate::app::commands::output::print;
use crate::app::commands::rotate_secrets::{self, RotationCounts};
use crate::app::config::{Environment, Loaded};
use crate::app::models::{self, Endpoint, Models};
use crate::app::wiring::master_keys;
use crate::app::wiring::parts::{self, OpenPurpose};
use crate::domain::ids::UserId;
use crate::domain::model::provider::{LearnedLimitation, ModelEntry};
use crate::domain::model::{ModelError, ModelErrorKind, ToolChoice};
use crate::store::Store;
use crate::support::clock::UnixMillis;
use crate::support::net::http::error_chain;
use crate::tools::Toolbox as _;
use crate::tools::mcp::{McpConfig, McpWarning};

const LIST_TIMEOUT: Duration = Duration::from_secs(5);

/// The most models of one provider whose learned limitations are shown.
const MAX_LEARNED_MODELS: usize = 3;
/// The most learned limitations of one model that are shown.
const MAX_LEARNED: usize = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Finding {
    Good,
    /// A problem with which the server still works.
    Doubtful,
    /// A problem with which the server would not start, or every run would fail.
    Bad,
}

struct Report(Vec<(&'static str, Finding, String)>);

impl Report {
    fn add(&mut self, subject: &'static str, finding: Finding, words: impl Into<String>) {
        self.0.push((subject, finding, words.into()));
    }

    /// Ends a check, which has added its findings unless an error stopped it.
    fn end(&mut self, subject: &'static str, checked: anyhow::Result<()>) {
        if let Err(error) = checked {
            self.add(subject, Finding::Bad, error_chain(error.as_ref()));
        }
    }

    fn table(&self) -> String {
        let mut out = String::new();
        for (subject, finding, words) in &self.0 {
            let mark = match finding {
                Finding::Good => "ok  ",
                Finding::Doubtful => "warn",
                Finding::Bad => "FAIL",
            };
            out.push_str(&format!("{mark}  {subject:<12}  {words}\n"));
        }
        let count = |kind: Finding| self.0.iter().filter(|(_, finding, _)| *finding == kind).count();
        out + &match (count(Finding::Bad), count(Finding::Doubtful)) {
            (0, 0) => "everything works\n".to_owned(),
            (0, doubtful) => format!("the server works; read the lines with warn: {doubtful}\n"),
            (bad, _) => format!("the server does not work yet; read the lines with FAIL: {bad}\n"),
        }
    }

    fn code(&self) -> ExitCode {
        let bad = self.0.iter().any(|(_, finding, _)| *finding == Finding::Bad);
        if bad { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }
}

/// Prints unreadable settings as the only finding.
pub fn report_settings(error: &anyhow::Error) -> anyhow::Result<ExitCode> {
    let mut report = Report(Vec::new());
    report.add("settings", Finding::Bad, error_chain(error.as_ref()));
    print(&report.table())?;
    Ok(report.code())
}

/// Prints all findings. The exit code is 1 if one of them is bad.
pub async fn run(loaded: &Loaded, environment: &Environment) -> anyhow::Result<ExitCode> {
    let mut report = Report(Vec::new());
    let set = loaded.sources.len();
    report.add("settings", Finding::Good, format!("{set} set, all others have their defaults; `capstan config` shows them"));
    let checked = data_folder(loaded, &mut report);
    report.end("data folder", checked);
    let store = match parts::open_store(&loaded.config, OpenPurpose::Command).await {
        Ok(store) => Some(store),
        Err(error) => {
            let words = format!("{}; start the database, or correct DATABASE_URL", error_chain(error.as_ref()));
            report.add("database", Finding::Bad, words);
            None
        }
    };
    if let Some(store) = &store {
        check_database(loaded, store.as_ref(), &mut report).await;
    }
    let checked = models(loaded, environment, store.as_deref(), &mut report).await;
    report.end("model", checked);
    if let Some(store) = store {
        store.close().await;
    }
    let checked = tools(loaded, environment, &mut report).await;
    report.end("tools", checked);
    print(&report.table())?;
    Ok(report.code())
}

fn data_folder(loaded: &Loaded, report: &mut Report) -> anyhow::Result<()> {
    let folder = &loaded.config.server.data_dir;
    let path = folder.display();
    let probe = folder.join(".capstan-doctor");
    parts::make_folder(folder)?;
    let written = std::fs::write(&probe, b"probe").and_then(|()| std::fs::remove_file(&probe));
    written.map_err(|error| anyhow!("{path} cannot be written: {error}; choose another one with --data-dir"))?;
    report.add("data folder", Finding::Good, format!("{path} is writable"));
    Ok(())
}

async fn check_database(loaded: &Loaded, store: &dyn Store, report: &mut Report) {
    let path = crate::app::config::redact_url(loaded.config.database_url().expose_secret());
    match store.ping().await {
        Ok(()) => {
            let pooled =
                if store.is_pooled() { ", through a pooler: several servers hear each other by polling alone" } else { "" };
            report.add("database", Finding::Good, format!("{path} answers, and its schema is up to date{pooled}"));
        }
        Err(error) => report.add("database", Finding::Bad, format!("{path}: {error}")),
    }
    let keys = !loaded.config.auth.keys.is_empty() || store.has_keys(None).await.unwrap_or_default();
    let listen = loaded.config.server.listen;
    match (keys, listen.ip().is_loopback()) {
        (true, _) => report.add("keys", Finding::Good, "requests require a key"),
        (false, true) => report.add("keys", Finding::Good, format!("none; only this machine can reach {listen}")),
        (false, false) => report.add(
            "keys",
            Finding::Bad,
            format!("none, and other machines can reach {listen}: create one with `capstan keys create --user NAME`"),
        ),
    }
    let checked = check_secrets(loaded, store, report).await;
    report.end("secrets", checked);
}

async fn check_secrets(loaded: &Loaded, store: &dyn Store, report: &mut Report) -> anyhow::Result<()> {
    let vault = master_keys::open_vault(&loaded.config)?;
    if let Some(path) = vault.file().filter(|_| vault.is_file_open_to_others()) {
        let words = format!("other users of this machine can read {0}: `chmod 600 {0}`", path.display());
        report.add("secrets", Finding::Doubtful, words);
    }
    let RotationCounts { new, old, unreadable, .. } = rotate_secrets::count_or_rotate(store, &vault, None).await?;
    for (secret, why) in &unreadable {
        report.add("secrets", Finding::Bad, format!("{secret}: {why}"));
    }
    if old > 0 {
        let words =
            format!("{old} are encrypted with older master keys; `capstan secrets rotate` encrypts them with the newest one");
        report.add("secrets", Finding::Doubtful, words);
    }
    if unreadable.is_empty() {
        report.add("secrets", Finding::Good, format!("all {} in the database can be decrypted", new + old));
    }
    Ok(())
}

async fn models(loaded: &Loaded, environment: &Environment, store: Option<&dyn Store>, report: &mut Report) -> anyhow::Result<()> {
    let models = models::select_models(loaded, environment).await?;
    let default = models.default_model.known();
    // Without a default model, runs that name none are refused.
    let finding = if default.is_none() { Finding::Bad } else { Finding::Doubtful };
    for warning in &models.warnings {
        report.add("model", finding, warning.clone());
    }
    let is_of_default = |endpoint: &Endpoint| {
        default.as_ref().and_then(|model| model.split_once('/')).is_some_and(|(name, _)| name == endpoint.provider)
    };
    // Some providers have one URL for several dialects.
    let mut endpoints: Vec<&Endpoint> = models.endpoints.iter().collect();
    endpoints.sort_by_key(|endpoint| !is_of_default(endpoint));
    let mut urls = BTreeSet::new();
    endpoints.retain(|endpoint| urls.insert(endpoint.base_url.as_str()));
    let lists = join_all(endpoints.iter().map(|endpoint| endpoint.list(LIST_TIMEOUT))).await;
    let mut is_answered = true;
    for (endpoint, list) in endpoints.into_iter().zip(lists) {
        let is_default = is_of_default(endpoint);
        let (finding, words) = provider(endpoint, list, default.as_deref().filter(|_| is_default));
        is_answered &= finding != Finding::Bad || !is_default;
        report.add("provider", finding, format!("{} at {} {words}", endpoint.provider, endpoint.display_url()));
    }
    if let Some(store) = store {
        check_learned_limitations(&models, store, report).await;
        check_optional_models(loaded, &models, store, report).await;
    }
    let unserved = match store {
        Some(store) => models::unserved_default(&models, store).await?,
        None => None,
    };
    match (unserved, default) {
        (Some(problem), _) => report.add("model", Finding::Bad, problem),
        (None, Some(_)) if models.is_demonstration => report.add(
            "model",
            Finding::Doubtful,
            "demo/demo answers, which is only a demonstration; set OPENAI_API_KEY or another provider's key, or \
             OPENAI_BASE_URL for a compatible server, or start Ollama",
        ),
        (None, Some(model)) if is_answered => report.add("model", Finding::Good, format!("{model} is the default model")),
        (None, Some(model)) => report.add("model", Finding::Bad, format!("{model} is the default model, and its provider fails")),
        // A warning above says why.
        (None, None) => {}
    }
    Ok(())
}

/// Returns the finding about a provider, by its list of models. `default` is the default model, if the provider has it.
fn provider(endpoint: &Endpoint, list: Result<Vec<ModelEntry>, ModelError>, default: Option<&str>) -> (Finding, String) {
    let worst = if default.is_some() { Finding::Bad } else { Finding::Doubtful };
    let error = match list {
        Ok(list) => {
            let name = default.and_then(|model| model.split_once('/')).map(|(_, name)| name);
            let latest = name.map(|name| format!("{name}:latest"));
            let is_listed = list.iter().any(|model| Some(&*model.name) == name || Some(&model.name) == latest.as_ref());
            let count = format!("lists {} models", list.len());
            return match name.filter(|_| !is_listed && !list.is_empty()) {
                Some(name) => (Finding::Doubtful, format!("{count}, and {name} is none of them: check CAPSTAN_MODEL")),
                None => (Finding::Good, count),
            };
        }
        Err(error) => error,
    };
    let message = &error.message;
    match (error.kind, &endpoint.key_variable) {
        (ModelErrorKind::Auth, Some(variable)) if endpoint.key.is_some() => {
            (worst, format!("refuses the key: check {variable} ({message})"))
        }
        (ModelErrorKind::Auth, Some(variable)) => (worst, format!("wants a key: set {variable} ({message})")),
        (ModelErrorKind::Network | ModelErrorKind::Timeout, _) => {
            (worst, format!("does not answer: start it, or correct its URL ({message})"))
        }
        // Some providers have no list.
        _ => (Finding::Doubtful, format!("lists no models, but may answer all the same ({message})")),
    }
}

async fn check_learned_limitations(models: &Models, store: &dyn Store, report: &mut Report) {
    for endpoint in &models.endpoints {
        let mut of_models: BTreeMap<String, Vec<LearnedLimitation>> = BTreeMap::new();
        for known in store.model_limitations(&endpoint.limitations_key(), None).await.unwrap_or_default() {
            of_models.entry(known.model.clone()).or_default().push(known);
        }
        for (model, known) in of_models.iter().take(MAX_LEARNED_MODELS) {
            let changes: Vec<&str> = known.iter().take(MAX_LEARNED).map(|known| known.change.as_str()).collect();
            let more = match known.len() - changes.len() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let until = known.iter().map(|known| known.until).max().unwrap_or(UnixMillis(0)).to_rfc3339();
            let words = format!("{}/{model}: {}{more} until {until}, after refusals", endpoint.provider, changes.join(", "));
            report.add("learned", Finding::Good, words);
        }
        if let Some(more) = of_models.len().checked_sub(MAX_LEARNED_MODELS).filter(|more| *more > 0) {
            report.add("learned", Finding::Good, format!("{}: {more} more models", endpoint.provider));
        }
    }
}

/// Checks that providers serve each fallback and the title model.
async fn check_optional_models(loaded: &Loaded, models: &Models, store: &dyn Store, report: &mut Report) {
    let agent = &loaded.config.agent;
    for (line, setting, kind) in [
        ("fallbacks", "agent.fallbacks", agent.fallbacks.as_slice()),
        ("title model", "agent.title_model", agent.title_model.as_slice()),
    ] {
        match models::check_served(setting, kind, models, store).await {
            Ok(()) if kind.is_empty() => {}
            Ok(()) => report.add(line, Finding::Good, kind.join(", ")),
            failed @ Err(_) => report.end(line, failed),
        }
    }
}

/// Returns the tools that the `capstan` part of entries names, each with its server.
fn named_tools(mcp: &McpConfig) -> BTreeSet<(String, String)> {
    let usable = mcp.servers.iter().filter_map(|(server, config)| Some((server, config.as_ref().ok()?)));
    usable.flat_map(|(server, config)| config.named_tools().map(|(_, tool)| (server.clone(), tool.to_owned()))).collect()
}

async fn tools(loaded: &Loaded, environment: &Environment, report: &mut Report) -> anyhow::Result<()> {
    let mcp = parts::mcp_config(&loaded.config, environment).unwrap_or_else(|error| {
        report.end("mcp config", Err(error));
        McpConfig::default()
    });
    for McpWarning { entry, text } in &mcp.warnings {
        let entry = entry.as_ref().map(|entry| format!("{entry}: ")).unwrap_or_default();
        report.add("mcp config", Finding::Doubtful, format!("{entry}{text}"));
    }
    let named = named_tools(&mcp);
    let door = parts::tools(&loaded.config, mcp, environment, None)?;
    // A user without servers sees only the configured ones.
    let no_user = UserId::from_stored(String::new());
    let definitions = door.definitions(&no_user).await;
    report.add("tools", Finding::Good, format!("{} on offer", definitions.len()));
    let agent = &loaded.config.agent;
    let rules = agent.approval.tools.keys().map(|name| ("agent.approval.tools", name));
    let offered = agent.tools.iter().flatten().map(|name| ("agent.tools", name));
    let chosen = match &agent.options.tool_choice {
        Some(ToolChoice::Tool(name)) => Some(("agent.options.tool_choice", name)),
        Some(ToolChoice::Auto | ToolChoice::None | ToolChoice::Required) | None => None,
    };
    for (setting, name) in rules.chain(offered).chain(chosen) {
        if definitions.iter().all(|tool| tool.name != *name) {
            let words = format!("{setting} names the tool {name}, which does not exist: a rule with a wrong name has no effect");
            report.add("tools", Finding::Doubtful, words);
        }
    }
    for name in agent.tool_filter.servers.keys() {
        let beginning = format!("{name}__");
        if !definitions.iter().any(|tool| tool.name.starts_with(&beginning)) {
            report.add(
                "tools",
                Finding::Doubtful,
                format!("agent.tool_filter.servers names the server {name}, which offers no tools"),
            );
        }
    }
    for (server, name) in named {
        let mut of_server = definitions.iter().filter(|tool| tool.server.as_deref() == Some(server.as_str())).peekable();
        // A server without any listed tool has a finding already.
        if of_server.peek().is_some() && of_server.all(|tool| tool.tool != name) {
            let words = format!("{server}: the entry names the tool {name}, which the server does not have");
            report.add("mcp config", Finding::Doubtful, words);
        }
    }
    for server in door.servers(&no_user).await {
        match server.error {
            None if server.status == "starting" => {
                let words = "still starting; a first start may download the server: run this command again";
                report.add("mcp server", Finding::Doubtful, format!("{}: {words}", server.name));
            }
            None => report.add("mcp server", Finding::Good, format!("{}: {} tools", server.name, server.tools)),
            Some(error) => {
                let stderr = server.stderr.map(|stderr| format!("; its standard error ends with: {stderr}")).unwrap_or_default();
                report.add("mcp server", Finding::Bad, format!("{}: {error}{stderr}", server.name));
            }
        }
    }
    door.shutdown().await;
    Ok(())
}
