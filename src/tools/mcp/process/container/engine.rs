//! The container engine: finds its program before the first container, and asks it about images.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::process::Command;
use tokio::sync::Mutex;

use crate::support::{redact, text};
use crate::tools::Environment;

/// The engines of `auto`, in this order.
const KNOWN: [&str; 2] = ["docker", "podman"];
/// How long an engine may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long it may take to pull an image. The start limit of the server usually ends the pull before.
const FETCH_LIMIT: Duration = Duration::from_secs(3_600);
/// Options of `podman run`, unknown to Docker: no volumes of the image, and no further writable mounts (`/run`, `/var/tmp`).
pub const NOTHING_ELSE: [&str; 2] = ["--image-volume=ignore", "--read-only-tmpfs=false"];
/// The environment of an engine. Variables of an entry never reach it, because these choose the machine and the code that it uses.
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

/// Finds the engine once. A failed search is repeated each time, because the engine may be started meanwhile.
pub struct Engine {
    wanted: String,
    environment: Environment,
    found: Mutex<Option<PathBuf>>,
    volumes: Mutex<Option<ImageVolumes>>,
}

/// How an engine treats the volumes that an image declares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageVolumes {
    /// It ignores them with [`NOTHING_ELSE`].
    Left,
    /// It makes each as a writable volume, unless another mount covers it.
    Made,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Image {
    /// Runs the inspected image, even if its name means another one by then.
    pub id: String,
    pub volumes: Vec<String>,
}

impl Engine {
    pub fn new(wanted: &str, environment: Environment) -> Self {
        Self { wanted: wanted.to_owned(), environment, found: Mutex::new(None), volumes: Mutex::new(None) }
    }

    /// Returns the program, or says why there is none and what to do.
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

    pub fn variables(&self) -> BTreeMap<String, SecretString> {
        let seen = VARIABLES.iter().filter_map(|name| Some(((*name).to_owned(), SecretString::from((self.environment)(name)?))));
        seen.collect()
    }

    async fn tried(&self, candidate: &str) -> Result<PathBuf, String> {
        let program = self.in_path(candidate).ok_or("not found in PATH")?;
        // The program may exist although its daemon does not run.
        asked(&program, Some(&self.variables()), &["ps", "--quiet"], PATIENCE).await?;
        Ok(program)
    }

    /// Asks `program` once how it treats volumes of images. Its name does not tell: podman may be called `docker`, and either may be
    /// wrapped by a script. Without an answer, nothing may be run.
    pub async fn volumes(&self, program: &Path) -> Result<ImageVolumes, String> {
        let mut known = self.volumes.lock().await;
        if let Some(known) = *known {
            return Ok(known);
        }
        let help = asked(program, Some(&self.variables()), &["run", "--help"], PATIENCE).await;
        let help = help.map_err(|reason| format!("the container engine does not say what `run` can be told: {reason}"))?;
        let mut names = NOTHING_ELSE.iter().filter_map(|option| option.split('=').next());
        let volumes = if names.all(|name| help.contains(name)) { ImageVolumes::Left } else { ImageVolumes::Made };
        *known = Some(volumes);
        Ok(volumes)
    }

    /// Returns the image with this name, and pulls it if it is missing. The log has the engine's own errors, which are for operators only.
    pub async fn image(&self, program: &Path, name: &str) -> Result<Image, String> {
        let variables = self.variables();
        let failed = |reason: String| {
            tracing::warn!(image = name, error = reason, "an image cannot be had from the container engine");
            format!("the image {name} cannot be had; the log of the server says why")
        };
        let inspect = ["image", "inspect", name];
        let said = match asked(program, Some(&variables), &inspect, PATIENCE).await {
            Ok(said) => said,
            // A local image is never pulled again: its name may mean another image in the registry by now.
            Err(reason) => {
                let there = asked(program, Some(&variables), &["images", "--quiet", name], PATIENCE).await.map_err(failed)?;
                if !there.is_empty() {
                    return Err(failed(reason));
                }
                asked(program, Some(&variables), &["pull", "--quiet", name], FETCH_LIMIT).await.map_err(failed)?;
                asked(program, Some(&variables), &inspect, PATIENCE).await.map_err(failed)?
            }
        };
        inspected(&said).ok_or_else(|| failed("what it says of the image cannot be read".to_owned()))
    }

    fn in_path(&self, name: &str) -> Option<PathBuf> {
        if name.contains('/') {
            return Some(PathBuf::from(name)).filter(|path| path.is_file());
        }
        let path = (self.environment)("PATH")?;
        let is_program =
            |path: &PathBuf| path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0);
        std::env::split_paths(&path).map(|folder| folder.join(name)).find(is_program)
    }
}

/// Runs a command of an engine with the environment `variables`, or else with that of this process.
pub async fn asked(
    engine: &Path,
    variables: Option<&BTreeMap<String, SecretString>>,
    args: &[&str],
    limit: Duration,
) -> Result<String, String> {
    let mut command = Command::new(engine);
    if let Some(variables) = variables {
        command.env_clear().envs(plain(variables));
    }
    command.args(args).stdin(Stdio::null()).kill_on_drop(true);
    let said = tokio::time::timeout(limit, command.output()).await.map_err(|_| format!("no answer within {limit:?}"))?;
    let said = said.map_err(|error| error.to_string())?;
    if said.status.success() {
        return Ok(String::from_utf8_lossy(&said.stdout).into_owned());
    }
    let words = redact::error_text(String::from_utf8_lossy(&said.stderr).trim());
    Err(text::prefix_chars(&words, 300).to_owned())
}

/// Reads the output of `image inspect`. `None` if its form is unknown, because the volumes would be unknown, too.
fn inspected(said: &str) -> Option<Image> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Inspected {
        id: String,
        config: Option<Config>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Config {
        volumes: Option<BTreeMap<String, IgnoredAny>>,
    }
    let mut found: Vec<Inspected> = serde_json::from_str(said).ok()?;
    let Inspected { id, config } = found.pop().filter(|_| found.is_empty())?;
    // The command line must not take it for an option.
    if !id.starts_with(|first: char| first.is_ascii_alphanumeric()) {
        return None;
    }
    let volumes = config.and_then(|config| config.volumes).unwrap_or_default();
    Some(Image { id, volumes: volumes.into_keys().collect() })
}

/// Returns the variables in the form for `Command::envs`.
pub fn plain(variables: &BTreeMap<String, SecretString>) -> impl Iterator<Item = (&String, &str)> {
    variables.iter().map(|(name, value)| (name, value.expose_secret()))
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

    #[test]
    fn an_image_is_what_the_engine_says_of_it_or_nothing() {
        let image = |volumes: &[&str]| {
            Some(Image { id: "sha256:0f".to_owned(), volumes: volumes.iter().copied().map(str::to_owned).collect() })
        };
        for (said, expected) in [
            (r#"[{"Id":"sha256:0f","Config":{"Volumes":{"/data":{},"/b":{}},"Cmd":[]}}]"#, image(&["/b", "/data"])),
            (r#"[{"Id":"sha256:0f","Config":{"Volumes":null}}]"#, image(&[])),
            (r#"[{"Id":"sha256:0f","Config":{}}]"#, image(&[])),
            (r#"[{"Id":"sha256:0f"}]"#, image(&[])),
            (r#"[{"Id":"--privileged","Config":{}}]"#, None),
            (r#"[{"Id":"sha256:0f","Config":{"Volumes":["/data"]}}]"#, None),
            (r#"[{"Id":"sha256:0f"},{"Id":"sha256:10"}]"#, None),
            ("[]", None),
            ("", None),
        ] {
            assert_eq!(inspected(said), expected, "{said}");
        }
    }

    #[tokio::test]
    async fn what_an_engine_makes_of_volumes_is_asked_and_not_guessed() {
        let folder = tempfile::tempdir().unwrap();
        for (script, expected) in [
            ("echo '  --image-volume string'; echo '  --read-only-tmpfs'", Ok(ImageVolumes::Left)),
            ("echo '  --volume list'", Ok(ImageVolumes::Made)),
            ("echo 'no such daemon' >&2; exit 1", Err(())),
        ] {
            let docker = program(folder.path(), "docker", script);
            assert_eq!(engine("docker", folder.path()).volumes(&docker).await.map_err(|_| ()), expected, "{script}");
        }
    }
}
