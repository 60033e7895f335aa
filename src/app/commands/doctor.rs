//! `capstan doctor`: checks everything that `serve` needs, and reports problems with their remedies.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::anyhow;
use secrecy::ExposeSecret as _;

use crate::app::commands::output::print;
use crate::app::config::{Environment, Loaded};
use crate::app::models::{self, DefaultModel, Models};
use crate::app::wiring::parts::{self, Opener};
use crate::app::wiring::secrets::{self, Tally};
use crate::domain::ids::UserId;
use crate::domain::model::ToolChoice;
use crate::store::Store;
use crate::tools::Toolbox as _;
use crate::tools::mcp::{McpConfig, McpWarning};

const LIST_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Finding {
    Good,
    /// Not as it should be, but the server works.
    Doubtful,
    /// The server would not start, or every run would fail.
    Bad,
}

struct Report(Vec<(&'static str, Finding, String)>);

impl Report {
    fn add(&mut self, what: &'static str, finding: Finding, words: impl Into<String>) {
        self.0.push((what, finding, words.into()));
    }

    /// Ends a check, which added its findings unless an error stopped it.
    fn end(&mut self, what: &'static str, checked: anyhow::Result<()>) {
        if let Err(error) = checked {
            self.add(what, Finding::Bad, format!("{error:#}"));
        }
    }

    fn table(&self) -> String {
        let mut out = String::new();
        for (what, finding, words) in &self.0 {
            let mark = match finding {
                Finding::Good => "ok  ",
                Finding::Doubtful => "warn",
                Finding::Bad => "FAIL",
            };
            out.push_str(&format!("{mark}  {what:<12}  {words}\n"));
        }
        out
    }

    fn code(&self) -> ExitCode {
        let bad = self.0.iter().any(|(_, finding, _)| *finding == Finding::Bad);
        if bad { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }
}

/// Prints settings that cannot be read as the only finding.
pub fn report_settings(error: &anyhow::Error) -> anyhow::Result<ExitCode> {
    let mut report = Report(Vec::new());
    report.add("settings", Finding::Bad, format!("{error:#}"));
    print(&report.table())?;
    Ok(report.code())
}

/// Prints all findings. The exit code is 1 if one of them is bad.
pub async fn run(loaded: &Loaded, environment: &Environment) -> anyhow::Result<ExitCode> {
    let mut report = Report(Vec::new());
    let set = loaded.sources.len();
    report.add("settings", Finding::Good, format!("{set} set, the rest are defaults; `capstan config` shows them"));
    let checked = data_folder(loaded, &mut report);
    report.end("data folder", checked);
    let checked = database(loaded, &mut report).await;
    report.end("database", checked);
    let checked = models(loaded, environment, &mut report).await;
    report.end("model", checked);
    let checked = tools(loaded, environment, &mut report).await;
    report.end("tools", checked);
    print(&report.table())?;
    Ok(report.code())
}

fn data_folder(loaded: &Loaded, report: &mut Report) -> anyhow::Result<()> {
    let folder = &loaded.config.server.data_dir;
    let shown = folder.display();
    let probe = folder.join(".capstan-doctor");
    parts::make_folder(folder)?;
    let written = std::fs::write(&probe, b"probe").and_then(|()| std::fs::remove_file(&probe));
    written.map_err(|error| anyhow!("{shown} cannot be written: {error}; choose another one with --data-dir"))?;
    report.add("data folder", Finding::Good, format!("{shown} can be written"));
    Ok(())
}

async fn database(loaded: &Loaded, report: &mut Report) -> anyhow::Result<()> {
    let shown = crate::app::config::redact_url(loaded.config.database_url().expose_secret());
    let store = parts::open_store(&loaded.config, Opener::Command).await?;
    match store.ping().await {
        Ok(()) => report.add("database", Finding::Good, format!("{shown} answers and its schema is up to date")),
        Err(error) => report.add("database", Finding::Bad, format!("{shown}: {error}")),
    }
    let keys = !loaded.config.auth.keys.is_empty() || store.has_keys().await.unwrap_or_default();
    let listen = loaded.config.server.listen;
    match (keys, listen.ip().is_loopback()) {
        (true, _) => report.add("keys", Finding::Good, "requests need a key"),
        (false, true) => report.add("keys", Finding::Good, format!("none; {listen} is reachable from this machine only")),
        (false, false) => report.add(
            "keys",
            Finding::Bad,
            format!("none, and {listen} is reachable from outside: make one with `capstan keys create --user NAME`"),
        ),
    }
    let checked = secrets(loaded, store.as_ref(), report).await;
    report.end("secrets", checked);
    store.close().await;
    Ok(())
}

/// Checks that every secret in the database can be decrypted.
async fn secrets(loaded: &Loaded, store: &dyn Store, report: &mut Report) -> anyhow::Result<()> {
    let vault = secrets::vault(&loaded.config)?;
    if let Some(path) = vault.file().filter(|_| vault.is_file_open_to_others()) {
        let words = format!("others of this machine may read {0}: `chmod 600 {0}`", path.display());
        report.add("secrets", Finding::Doubtful, words);
    }
    let Tally { new, old, lost, .. } = secrets::pass(store, &vault, None).await?;
    for (secret, why) in &lost {
        report.add("secrets", Finding::Bad, format!("{secret}: {why}"));
    }
    if old > 0 {
        let words = format!("{old} are sealed with older master keys; `capstan secrets rotate` seals them with the newest");
        report.add("secrets", Finding::Doubtful, words);
    }
    if lost.is_empty() {
        report.add("secrets", Finding::Good, format!("all {} in the database can be opened", new + old));
    }
    Ok(())
}

async fn models(loaded: &Loaded, environment: &Environment, report: &mut Report) -> anyhow::Result<()> {
    let models = models::select(loaded, environment).await?;
    for warning in &models.warnings {
        report.add("model", Finding::Doubtful, warning.clone());
    }
    match &models.default_model {
        _ if models.demonstration => {
            report.add(
                "model",
                Finding::Doubtful,
                "demo/demo answers: only a demonstration; set OPENAI_API_KEY or OPENAI_BASE_URL",
            );
        }
        DefaultModel::Known(model) => report.add("model", Finding::Good, format!("{model} answers runs that name no other")),
        // The warning above says it.
        DefaultModel::FirstListed(_) => {}
    }
    for endpoint in &models.endpoints {
        let words = format!("{} at {}", endpoint.provider, endpoint.shown());
        match endpoint.models(LIST_TIMEOUT).await {
            Ok(list) => report.add("provider", Finding::Good, format!("{words} lists {} models", list.len())),
            // Some endpoints work without such a list.
            Err(error) => report.add("provider", Finding::Doubtful, format!("{words}: {error}")),
        }
    }
    other_models(loaded, &models, report).await;
    Ok(())
}

/// Checks that a provider serves each fallback and the title model.
async fn other_models(loaded: &Loaded, models: &Models, report: &mut Report) {
    let agent = &loaded.config.agent;
    // A database that cannot be opened has a line already.
    let Ok(store) = parts::open_store(&loaded.config, Opener::Command).await else { return };
    for (line, setting, wanted) in [
        ("fallbacks", "agent.fallbacks", agent.fallbacks.as_slice()),
        ("title model", "agent.title_model", agent.title_model.as_slice()),
    ] {
        match models::check_served(setting, wanted, models, store.as_ref()).await {
            Ok(()) if wanted.is_empty() => {}
            Ok(()) => report.add(line, Finding::Good, wanted.join(", ")),
            failed @ Err(_) => report.end(line, failed),
        }
    }
    store.close().await;
}

/// Returns the tools that entries name in `capstan`, each with its server.
fn named_tools(mcp: &McpConfig) -> BTreeSet<(String, String)> {
    let usable = mcp.servers.iter().filter_map(|(server, config)| Some((server, config.as_ref().ok()?)));
    usable.flat_map(|(server, config)| config.named_tools().map(|(_, tool)| (server.clone(), tool.to_owned()))).collect()
}

async fn tools(loaded: &Loaded, environment: &Environment, report: &mut Report) -> anyhow::Result<()> {
    let mcp = parts::mcp_config(&loaded.config, environment)?;
    for McpWarning { entry, text } in &mcp.warnings {
        let entry = entry.as_ref().map(|entry| format!("{entry}: ")).unwrap_or_default();
        report.add("mcp config", Finding::Doubtful, format!("{entry}{text}"));
    }
    let named = named_tools(&mcp);
    let door = parts::tools(&loaded.config, mcp, environment, None)?;
    // An owner without servers of their own sees the configured ones only.
    let nobody = UserId::from_stored(String::new());
    let definitions = door.definitions(&nobody).await;
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
            let words = format!("{setting} names {name}, which is not on offer: a rule under a wrong name protects nothing");
            report.add("tools", Finding::Doubtful, words);
        }
    }
    for name in agent.tool_filter.servers.keys() {
        let beginning = format!("{name}__");
        if !definitions.iter().any(|tool| tool.name.starts_with(&beginning)) {
            report.add("tools", Finding::Doubtful, format!("agent.tool_filter.servers names {name}, which offers no tools"));
        }
    }
    for (server, name) in named {
        let mut of_server = definitions.iter().filter(|tool| tool.server.as_deref() == Some(server.as_str())).peekable();
        // A server that lists nothing has a line of its own.
        if of_server.peek().is_some() && of_server.all(|tool| tool.tool != name) {
            let words = format!("{server}: the entry names the tool {name}, which the server does not have");
            report.add("mcp config", Finding::Doubtful, words);
        }
    }
    for server in door.servers(&nobody).await {
        match server.error {
            None => report.add("mcp server", Finding::Good, format!("{}: {} tools", server.name, server.tools)),
            Some(error) => {
                let said = server.stderr.map(|said| format!("; its standard error ends with: {said}")).unwrap_or_default();
                report.add("mcp server", Finding::Bad, format!("{}: {error}{said}", server.name));
            }
        }
    }
    door.shutdown().await;
    Ok(())
}
