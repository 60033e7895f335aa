//! The program that runs containers, found when the first one is wanted.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};
use tokio::process::Command;
use tokio::sync::Mutex;

use crate::support::{redact, text};
use crate::tools::Environment;

/// Those that are tried, in this order.
const KNOWN: [&str; 2] = ["docker", "podman"];
/// How long one may take to say that it works.
const PATIENCE: Duration = Duration::from_secs(10);
/// What they look for in the environment, of ours: an entry's variables never reach them, because some of these say which
/// machine they work on, and others which code they load.
const VARIABLES: [&str; 14] = [
    "PATH",
    "HOME",
    "TMPDIR",
    "XDG_RUNTIME_DIR",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "DOCKER_HOST",
    "DOCKER_CONFIG",
    "DOCKER_CONTEXT",
    "DOCKER_TLS_VERIFY",
    "DOCKER_CERT_PATH",
    "CONTAINER_HOST",
    "CONTAINERS_CONF",
    "DBUS_SESSION_BUS_ADDRESS",
];

/// Finds the engine, and remembers it. One that does not work is asked again each time: it may be started meanwhile.
pub struct Engine {
    wanted: String,
    environment: Environment,
    found: Mutex<Option<PathBuf>>,
}

impl Engine {
    /// Looks for nothing yet.
    pub fn new(wanted: &str, environment: Environment) -> Self {
        Self { wanted: wanted.to_owned(), environment, found: Mutex::new(None) }
    }

    /// The program.
    ///
    /// # Errors
    /// In words: why there is none, and what to do.
    pub async fn find(&self) -> Result<PathBuf, String> {
        let mut found = self.found.lock().await;
        if let Some(engine) = &*found {
            return Ok(engine.clone());
        }
        let candidates = match self.wanted.as_str() {
            "none" => return Err("servers in containers are turned off (mcp.containers.engine)".to_owned()),
            "auto" => KNOWN.to_vec(),
            one => vec![one],
        };
        let mut reasons = Vec::new();
        for candidate in candidates {
            match self.tried(candidate).await {
                Ok(engine) => {
                    tracing::info!(engine = %engine.display(), "containers are run by this program");
                    *found = Some(engine.clone());
                    return Ok(engine);
                }
                Err(reason) => reasons.push(format!("{candidate}: {reason}")),
            }
        }
        Err(format!(
            "no container engine works here ({}); install or start Docker or podman, or name another program in \
             mcp.containers.engine",
            reasons.join("; ")
        ))
    }

    /// What the program sees of our environment.
    pub fn variables(&self) -> BTreeMap<String, SecretString> {
        let seen = VARIABLES.iter().filter_map(|name| Some(((*name).to_owned(), SecretString::from((self.environment)(name)?))));
        seen.collect()
    }

    async fn tried(&self, candidate: &str) -> Result<PathBuf, String> {
        let program = self.in_path(candidate).ok_or("not found in PATH")?;
        // It may be there while what it speaks to is not.
        let mut command = Command::new(&program);
        command.args(["ps", "--quiet"]).env_clear().envs(plain(&self.variables()));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        let said = tokio::time::timeout(PATIENCE, command.output()).await.map_err(|_| format!("no answer within {PATIENCE:?}"))?;
        let said = said.map_err(|error| error.to_string())?;
        if said.status.success() {
            return Ok(program);
        }
        let words = redact::error_text(String::from_utf8_lossy(&said.stderr).trim());
        Err(text::prefix_chars(&words, 300).to_owned())
    }

    fn in_path(&self, name: &str) -> Option<PathBuf> {
        if name.contains('/') {
            return Some(PathBuf::from(name)).filter(|path| path.is_file());
        }
        let path = (self.environment)("PATH")?;
        std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| is_program(path))
    }
}

/// The variables as a command takes them.
pub fn plain(variables: &BTreeMap<String, SecretString>) -> impl Iterator<Item = (&String, &str)> {
    variables.iter().map(|(name, value)| (name, value.expose_secret()))
}

#[cfg(unix)]
fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_program(path: &Path) -> bool {
    path.is_file()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn engine(wanted: &str, path: &Path) -> Engine {
        let path = path.to_str().unwrap().to_owned();
        Engine::new(wanted, Arc::new(move |name| (name == "PATH").then(|| format!("{path}:/usr/bin:/bin"))))
    }

    fn program(folder: &Path, name: &str, script: &str) -> PathBuf {
        use std::os::unix::fs::PermissionsExt as _;
        let path = folder.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[tokio::test]
    async fn the_first_that_works_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        program(folder.path(), "docker", "echo 'Cannot connect to the daemon' >&2; exit 1");
        let podman = program(folder.path(), "podman", "[ \"$*\" = 'ps --quiet' ]");
        assert_eq!(engine("auto", folder.path()).find().await, Ok(podman));
        let error = engine("docker", folder.path()).find().await.unwrap_err();
        assert!(error.contains("docker: Cannot connect to the daemon") && error.contains("mcp.containers.engine"), "{error}");
        assert!(engine("none", folder.path()).find().await.unwrap_err().contains("turned off"));
        let error = engine("/nonexistent/engine", folder.path()).find().await.unwrap_err();
        assert!(error.contains("/nonexistent/engine: not found"), "{error}");
    }
}
