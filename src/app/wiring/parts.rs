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
use crate::store::{self, OnClone, RecordStore, Store, StoreOptions};
use crate::support::clock::{Clock as _, SystemClock};
use crate::support::files;
use crate::support::ids::UuidIds;
use crate::support::net::egress::EgressScope;
use crate::tools::mcp::{
    McpConfig, McpWarning, MemberRules, PROXIES, UserServerSource, remove_stale_container_files, without_login,
};
use crate::tools::{OPTIONAL_TOOLS, ToolExecutor, ToolExecutorOptions};

const LOCAL_USER: &str = "local";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenPurpose {
    /// The server. Only one can run on SQLite.
    Server(OnClone),
    /// A command that may run beside the server.
    Command,
}

/// Creates the data folder, opens the database and migrates its schema.
pub async fn open_store(config: &Config, purpose: OpenPurpose) -> anyhow::Result<Arc<dyn Store>> {
    make_folder(&config.server.data_dir)?;
    let options = StoreOptions {
        exclusive: purpose != OpenPurpose::Command,
        durability: config.database.synchronous,
        max_connections: config.database.max_connections,
        request_timeout: Duration::from_millis(config.database.request_timeout_ms),
        pooler: config.database.pooler,
        max_running_per_owner: config.limits.max_running_runs_per_owner,
        on_clone: match purpose {
            OpenPurpose::Server(on_clone) => on_clone,
            OpenPurpose::Command => OnClone::SkipCheck,
        },
    };
    let url = config.database_url();
    store::open(url.expose_secret(), &options)
        .await
        .with_context(|| format!("the database {} cannot be opened", crate::app::config::redact_url(url.expose_secret())))
}

/// Creates a folder that only this user can read, because it contains conversations. An existing folder keeps its permissions.
pub fn make_folder(folder: &Path) -> anyhow::Result<()> {
    files::private_folder(folder).with_context(|| {
        format!("the data folder {} cannot be created; set another one with --data-dir or CAPSTAN_DATA_DIR", folder.display())
    })
}

/// Reads the `mcpServers` file. An error in one entry disables only that server.
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
        text: format!("the value of the variable {name} begins and ends with quotes, which count as part of the value"),
    }));
    let with_login = PROXIES.iter().filter(|name| environment.get(name).is_some_and(|url| without_login(url) != url));
    mcp.warnings.extend(with_login.map(|name| McpWarning {
        entry: None,
        text: format!(
            "MCP servers get the variable {name} without its user and password: name it in the env of an entry that needs them"
        ),
    }));
    Ok(mcp)
}

/// Returns the executor of built-in tools, of the MCP servers in `mcp`, and of user servers. Starts none of them.
pub fn tools(
    config: &Config,
    mcp: McpConfig,
    environment: &Environment,
    user_servers: Option<Arc<dyn UserServerSource>>,
) -> anyhow::Result<Arc<ToolExecutor>> {
    let mut options = ToolExecutorOptions::new(config.files_root(), Arc::new(SystemClock));
    options.user_servers = user_servers;
    let variables = environment.clone();
    if let Some(name) = config.tools.enable.iter().find(|name| !OPTIONAL_TOOLS.contains(&name.as_str())) {
        anyhow::bail!("tools.enable contains {name:?}, which is not an optional tool; available are {}", OPTIONAL_TOOLS.join(", "));
    }
    options.enabled = config.tools.enable.clone();
    // This path means the running program, even if its file has been replaced.
    options.guard = cfg!(target_os = "linux").then(|| "/proc/self/exe".into());
    options.connections = config.mcp.connections();
    options.start_wait = Duration::from_millis(config.mcp.start_wait_ms);
    options.containers = config.mcp.containers.clone();
    options.homes = Some(config.server.data_dir.join("servers"));
    options.container_inputs = Some(container_inputs(config)?);
    options.egress = member_rules(config).egress;
    options.environment = Arc::new(move |name| variables.get(name).map(str::to_owned));
    options.mcp = mcp;
    // A configured folder may be read-only, so only the default folder is created.
    if config.tools.files_root.is_none() {
        make_folder(&config.files_root())?;
    }
    Ok(ToolExecutor::new(options))
}

/// Returns the folder for files that are mounted into containers, and removes the files of killed processes.
fn container_inputs(config: &Config) -> anyhow::Result<PathBuf> {
    let folder = config.server.data_dir.join("containers");
    // The guard process may have another working directory.
    let folder = std::path::absolute(&folder).with_context(|| format!("{} is not a valid path", folder.display()))?;
    match remove_stale_container_files(&folder) {
        Ok(0) => {}
        Ok(removed) => tracing::info!(removed, "removed container input files of a killed process"),
        Err(error) => {
            tracing::warn!(%error, folder = %folder.display(), "container input files of a killed process cannot be removed");
        }
    }
    Ok(folder)
}

pub fn member_rules(config: &Config) -> MemberRules {
    // The check of the settings has refused an invalid allowlist. If one got here, it would count as empty.
    let egress = config.outbound.egress().unwrap_or(EgressScope::Public);
    MemberRules { commands: config.mcp.allow_user_commands, egress }
}

/// Returns the user of a server without keys, who is an administrator.
pub async fn local_principal(store: &dyn RecordStore) -> anyhow::Result<Principal> {
    let user = ensure_user(store, LOCAL_USER, UserRole::Admin).await?;
    Ok(Principal { user_id: user.id, role: user.role })
}

/// Returns the keys of the configuration, by hash. Creates missing users.
pub async fn configured_keys(config: &Config, store: &dyn RecordStore) -> anyhow::Result<HashMap<String, Principal>> {
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

pub async fn ensure_user(store: &dyn RecordStore, name: &str, role: UserRole) -> anyhow::Result<User> {
    let id = UserId::generate(&UuidIds);
    store.ensure_user(id, name, role, SystemClock.now()).await.with_context(|| format!("the user {name:?} cannot be stored"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn data_folders_are_private() {
        let outer = tempfile::tempdir().unwrap();
        let data = outer.path().join("a/data");
        let mode = || std::fs::metadata(&data).unwrap().permissions().mode() & 0o777;
        make_folder(&data).unwrap();
        assert_eq!(mode(), 0o700);
        std::fs::set_permissions(&data, std::fs::Permissions::from_mode(0o750)).unwrap();
        make_folder(&data).unwrap();
        assert_eq!(mode(), 0o750, "existing permissions stay");
    }
}
