//! The parts that several commands need, made from the settings.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use secrecy::ExposeSecret as _;

use super::config::{Config, Environment, Synchronous, is_quoted};
use crate::domain::ids::UserId;
use crate::domain::principal::{Principal, User, UserRole};
use crate::service::hash_key;
use crate::store::{self, Durability, KeyStore, OnCopy, Store, StoreOptions};
use crate::support::clock::{SharedClock, SystemClock};
use crate::support::ids::{SharedIds, UuidIds};
use crate::support::outbound::Reach;
use crate::tools::mcp::{KeptServers, McpConfig, McpWarning, MemberRules, sweep_handed};
use crate::tools::{Door, DoorOptions, OPTIONAL_TOOLS};

/// The name of the one user of a server without keys.
const LOCAL_USER: &str = "local";

/// Where time and ids come from.
#[derive(Clone)]
pub struct Sources {
    /// The machine's clock.
    pub clock: SharedClock,
    /// Random, time-ordered ids.
    pub ids: SharedIds,
}

impl Sources {
    /// The real ones.
    #[must_use]
    pub fn real() -> Self {
        Self { clock: Arc::new(SystemClock), ids: Arc::new(UuidIds) }
    }
}

/// Who opens the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opener {
    /// The server, of which there is one on SQLite. It does not work on a copy unless told so.
    Server(OnCopy),
    /// A command that may run beside it.
    Command,
}

/// Opens the database, brings its schema up to date, and makes the data folder if the database or the tools need it.
///
/// # Errors
/// In words that name the database without its password.
pub async fn open_store(config: &Config, opener: Opener) -> anyhow::Result<Arc<dyn Store>> {
    make_folder(&config.server.data_dir)?;
    let options = StoreOptions {
        exclusive: opener != Opener::Command,
        durability: match config.database.synchronous {
            Synchronous::Full => Durability::Full,
            Synchronous::Normal => Durability::Normal,
        },
        max_connections: config.database.max_connections,
        request_timeout: Duration::from_millis(config.database.request_timeout_ms),
        max_running_per_owner: config.limits.max_running_runs_per_owner,
        on_copy: match opener {
            Opener::Server(on_copy) => on_copy,
            Opener::Command => OnCopy::Overlook,
        },
    };
    let url = config.database_url();
    store::open(url.expose_secret(), &options)
        .await
        .with_context(|| format!("the database {} cannot be opened", super::config::redact_url(url.expose_secret())))
}

/// Makes a folder of ours, for nobody else on the machine: conversations stand in it. One that is there stays as it is.
///
/// # Errors
/// If it cannot be made.
pub fn make_folder(folder: &Path) -> anyhow::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(folder).with_context(|| {
        format!("the data folder {} cannot be made; choose another one with --data-dir or CAPSTAN_DATA_DIR", folder.display())
    })
}

/// Reads the `mcpServers` file. A fault in one entry concerns that server alone.
///
/// # Errors
/// If the file cannot be read, or holds no servers.
pub fn mcp_config(config: &Config, environment: &Environment) -> anyhow::Result<McpConfig> {
    let Some(path) = &config.tools.mcp_config else { return Ok(McpConfig::default()) };
    let document =
        std::fs::read_to_string(path).with_context(|| format!("the MCP configuration {} cannot be read", path.display()))?;
    let quoted = RefCell::new(BTreeSet::new());
    let lookup = |name: &str| {
        let value = environment.get(name)?;
        if is_quoted(value) {
            quoted.borrow_mut().insert(name.to_owned());
        }
        Some(value.to_owned())
    };
    let mut mcp = McpConfig::parse(&document, &lookup).with_context(|| path.display().to_string())?;
    mcp.warnings.extend(quoted.into_inner().into_iter().map(|name| McpWarning {
        entry: None,
        text: format!("the value of the variable {name} begins and ends with quotes, which are part of it"),
    }));
    Ok(mcp)
}

/// The built-in tools, the MCP servers of `mcp`, and those that people keep. Starts nothing yet.
///
/// # Errors
/// If a setting names a tool that does not exist, or a folder cannot be made.
pub fn tools(
    config: &Config,
    mcp: McpConfig,
    environment: &Environment,
    sources: &Sources,
    kept: Option<Arc<dyn KeptServers>>,
) -> anyhow::Result<Arc<Door>> {
    let mut options = DoorOptions::new(config.files_root(), Arc::clone(&sources.clock));
    options.kept = kept;
    let variables = environment.clone();
    let unknown = config.tools.enable.iter().find(|name| !OPTIONAL_TOOLS.contains(&name.as_str()));
    if let Some(name) = unknown {
        anyhow::bail!("tools.enable names {name:?}, which is no optional tool; there are {}", OPTIONAL_TOOLS.join(", "));
    }
    options.enabled = config.tools.enable.clone();
    // The program that runs, even if its file has been replaced since.
    options.guard = cfg!(target_os = "linux").then(|| "/proc/self/exe".into());
    options.connections = config.mcp.connections();
    options.start_patience = Duration::from_millis(config.mcp.start_patience_ms);
    options.containers = config.mcp.containers.clone();
    options.homes = Some(config.server.data_dir.join("servers"));
    options.container_inputs = Some(container_inputs(config)?);
    options.reach = reach_of_members(config);
    options.environment = Arc::new(move |name| variables.get(name).map(str::to_owned));
    options.mcp = mcp;
    // The folder may be somebody's own and read-only; only the default one is made.
    if config.tools.files_root.is_none() {
        make_folder(&config.files_root())?;
    }
    Ok(Door::new(options))
}

/// Where the files lie that containers are handed, without those that a process has left there that was killed.
fn container_inputs(config: &Config) -> anyhow::Result<PathBuf> {
    let folder = config.server.data_dir.join("containers");
    // The guard may look from somewhere else.
    let folder = std::path::absolute(&folder).with_context(|| format!("{} is no path", folder.display()))?;
    match sweep_handed(&folder) {
        Ok(0) => {}
        Ok(removed) => tracing::info!(removed, "removed what containers were to be handed when an earlier process was killed"),
        Err(error) => tracing::warn!(%error, folder = %folder.display(), "what containers were handed cannot be removed"),
    }
    Ok(folder)
}

/// Where URLs of members may lead. A list that cannot be read was refused with the settings, and would lift nothing.
#[must_use]
pub fn reach_of_members(config: &Config) -> Reach {
    config.outbound.reach().unwrap_or(Reach::Public)
}

/// What the settings say of MCP servers that members keep.
#[must_use]
pub fn member_rules(config: &Config) -> MemberRules {
    MemberRules { commands: config.mcp.allow_user_commands, reach: reach_of_members(config) }
}

/// The one user of a server without keys, who may do everything.
///
/// # Errors
/// If the database cannot be written.
pub async fn local_principal(store: &dyn KeyStore, sources: &Sources) -> anyhow::Result<Principal> {
    Ok(principal(ensure_user(store, LOCAL_USER, UserRole::Admin, sources).await?))
}

/// The keys of the configuration, by hash, with their users made if missing.
///
/// # Errors
/// If the database cannot be written.
pub async fn configured_keys(
    config: &Config,
    store: &dyn KeyStore,
    sources: &Sources,
) -> anyhow::Result<HashMap<String, Principal>> {
    let mut keys = HashMap::new();
    for key in &config.auth.keys {
        let hash = match (&key.key_hash, &key.key) {
            (Some(hash), _) => hash.clone(),
            (None, Some(plain)) => hash_key(plain.expose_secret()),
            (None, None) => continue,
        };
        let user = ensure_user(store, &key.user, key.role, sources).await?;
        keys.insert(hash, Principal { user_id: user.id, role: key.role });
    }
    Ok(keys)
}

/// The user of that name, made if missing.
///
/// # Errors
/// If the database cannot be written.
pub async fn ensure_user(store: &dyn KeyStore, name: &str, role: UserRole, sources: &Sources) -> anyhow::Result<User> {
    let id = UserId::generate(sources.ids.as_ref());
    store.ensure_user(id, name, role, sources.clock.now()).await.with_context(|| format!("the user {name:?} cannot be stored"))
}

fn principal(user: User) -> Principal {
    Principal { user_id: user.id, role: user.role }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn folders_are_made_for_nobody_else() {
        let outer = tempfile::tempdir().unwrap();
        let data = outer.path().join("a/data");
        let mode = || std::fs::metadata(&data).unwrap().permissions().mode() & 0o777;
        make_folder(&data).unwrap();
        assert_eq!(mode(), 0o700);
        std::fs::set_permissions(&data, std::fs::Permissions::from_mode(0o750)).unwrap();
        make_folder(&data).unwrap();
        assert_eq!(mode(), 0o750, "what an operator has set stays");
    }
}
