//! Parts that several commands build from the settings.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use secrecy::ExposeSecret as _;

use crate::app::config::{Config, Environment, is_quoted};
use crate::domain::access::principal::{Principal, User, UserRole};
use crate::domain::ids::UserId;
use crate::service::hash_key;
use crate::store::{self, KeyStore, OnCopy, Store, StoreOptions};
use crate::support::clock::{Clock as _, SystemClock};
use crate::support::files;
use crate::support::ids::UuidIds;
use crate::support::net::outbound::Reach;
use crate::tools::mcp::{KeptServers, McpConfig, McpWarning, MemberRules, sweep_handed};
use crate::tools::{Door, DoorOptions, OPTIONAL_TOOLS};

/// The only user of a server without keys.
const LOCAL_USER: &str = "local";

/// The part of the program that opens the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opener {
    /// The server, of which there is one on SQLite.
    Server(OnCopy),
    /// A command that may run beside the server.
    Command,
}

/// Creates the data folder, opens the database and migrates its schema.
pub async fn open_store(config: &Config, opener: Opener) -> anyhow::Result<Arc<dyn Store>> {
    make_folder(&config.server.data_dir)?;
    let options = StoreOptions {
        exclusive: opener != Opener::Command,
        durability: config.database.synchronous,
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
        .with_context(|| format!("the database {} cannot be opened", crate::app::config::redact_url(url.expose_secret())))
}

/// Creates a folder that only this user can read, because it holds conversations. An existing folder keeps its permissions.
pub fn make_folder(folder: &Path) -> anyhow::Result<()> {
    files::private_folder(folder).with_context(|| {
        format!("the data folder {} cannot be made; choose another one with --data-dir or CAPSTAN_DATA_DIR", folder.display())
    })
}

/// Reads the `mcpServers` file. A fault in one entry disables that server only.
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

/// Returns the executor of built-in tools, of the MCP servers in `mcp`, and of user servers. Starts none of them.
pub fn tools(
    config: &Config,
    mcp: McpConfig,
    environment: &Environment,
    kept: Option<Arc<dyn KeptServers>>,
) -> anyhow::Result<Arc<Door>> {
    let mut options = DoorOptions::new(config.files_root(), Arc::new(SystemClock));
    options.kept = kept;
    let variables = environment.clone();
    if let Some(name) = config.tools.enable.iter().find(|name| !OPTIONAL_TOOLS.contains(&name.as_str())) {
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
    options.reach = member_rules(config).reach;
    options.environment = Arc::new(move |name| variables.get(name).map(str::to_owned));
    options.mcp = mcp;
    // A configured folder may be read-only, so only the default one is created.
    if config.tools.files_root.is_none() {
        make_folder(&config.files_root())?;
    }
    Ok(Door::new(options))
}

/// Returns the folder for files that are mounted into containers, after removing the files of killed processes.
fn container_inputs(config: &Config) -> anyhow::Result<PathBuf> {
    let folder = config.server.data_dir.join("containers");
    // The guard process may have another working folder.
    let folder = std::path::absolute(&folder).with_context(|| format!("{} is no path", folder.display()))?;
    match sweep_handed(&folder) {
        Ok(0) => {}
        Ok(removed) => tracing::info!(removed, "removed what containers were to be handed when an earlier process was killed"),
        Err(error) => tracing::warn!(%error, folder = %folder.display(), "what containers were handed cannot be removed"),
    }
    Ok(folder)
}

pub fn member_rules(config: &Config) -> MemberRules {
    // An invalid allowlist was refused with the settings, and would allow nothing.
    let reach = config.outbound.reach().unwrap_or(Reach::Public);
    MemberRules { commands: config.mcp.allow_user_commands, reach }
}

/// Returns the user of a server without keys, who is an administrator.
pub async fn local_principal(store: &dyn KeyStore) -> anyhow::Result<Principal> {
    let user = ensure_user(store, LOCAL_USER, UserRole::Admin).await?;
    Ok(Principal { user_id: user.id, role: user.role })
}

/// Returns the keys of the configuration, by hash. Creates missing users.
pub async fn configured_keys(config: &Config, store: &dyn KeyStore) -> anyhow::Result<HashMap<String, Principal>> {
    let mut keys = HashMap::new();
    for key in &config.auth.keys {
        let hash = match (&key.key_hash, &key.key) {
            (Some(hash), _) => hash.clone(),
            (None, Some(plain)) => hash_key(plain.expose_secret()),
            (None, None) => continue,
        };
        let user = ensure_user(store, &key.user, key.role).await?;
        keys.insert(hash, Principal { user_id: user.id, role: key.role });
    }
    Ok(keys)
}

pub async fn ensure_user(store: &dyn KeyStore, name: &str, role: UserRole) -> anyhow::Result<User> {
    let id = UserId::generate(&UuidIds);
    store.ensure_user(id, name, role, SystemClock.now()).await.with_context(|| format!("the user {name:?} cannot be stored"))
}

#[cfg(test)]
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
