//! The program that runs containers, found when the first one is wanted, and what it says.

use std::collections::BTreeMap;
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

/// Those that are tried, in this order.
const KNOWN: [&str; 2] = ["docker", "podman"];
/// How long one may take to say that it works.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long it may take to fetch an image. Whoever starts a server gives up long before, and then it is not fetched any longer.
const FETCH_LIMIT: Duration = Duration::from_secs(3_600);
/// What `run` of podman is told, and that of Docker does not know: to make no volumes that an image declares, and to mount nothing
/// that can be written (`/run`, `/var/tmp`) beside what it is told to mount.
pub const NOTHING_ELSE: [&str; 2] = ["--image-volume=ignore", "--read-only-tmpfs=false"];
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
    volumes: Mutex<Option<ImageVolumes>>,
}

/// What becomes of the volumes that an image declares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageVolumes {
    /// None is made where `run` is told [`NOTHING_ELSE`].
    Left,
    /// Each is made, on the disk of the engine and to be written, unless it is mounted in another way.
    Made,
}

/// An image as an engine has it.
#[derive(Debug, PartialEq, Eq)]
pub struct Image {
    /// By this it is run as it was looked at, whatever its name means by then.
    pub id: String,
    /// Where it declares volumes, as it has written that.
    pub volumes: Vec<String>,
}

impl Engine {
    /// Looks for nothing yet.
    pub fn new(wanted: &str, environment: Environment) -> Self {
        Self { wanted: wanted.to_owned(), environment, found: Mutex::new(None), volumes: Mutex::new(None) }
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
        asked(&program, Some(&self.variables()), &["ps", "--quiet"], PATIENCE).await?;
        Ok(program)
    }

    /// What becomes of the volumes of images that `program` runs. Asked once: by its name alone nobody knows what it is, since podman may
    /// be called `docker`, and a script may stand before either.
    ///
    /// # Errors
    /// In words, if it does not say so. Nothing may be run then.
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

    /// The image with that name as `program` has it, which fetches it if it is not there.
    ///
    /// # Errors
    /// In words, for everybody. What the engine says is for operators, and in the log.
    pub async fn image(&self, program: &Path, name: &str) -> Result<Image, String> {
        let variables = self.variables();
        let failed = |reason: String| {
            tracing::warn!(image = name, error = reason, "an image cannot be had from the container engine");
            format!("the image {name} cannot be had; the log of the server says why")
        };
        let inspect = ["image", "inspect", name];
        let said = match asked(program, Some(&variables), &inspect, PATIENCE).await {
            Ok(said) => said,
            // What is there is not fetched: a name can stand for another image elsewhere by now.
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
        std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| is_program(path))
    }
}

/// What an engine answers, which sees `variables`, or without them the environment that this process has.
///
/// # Errors
/// In words: that it does not answer within the limit, or what it complains about.
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

/// Reads what `image inspect` says. `None` if that is not what is known of it: then nobody knows which volumes there are.
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
    // It must not be taken for an option.
    if !id.starts_with(|first: char| first.is_ascii_alphanumeric()) {
        return None;
    }
    let volumes = config.and_then(|config| config.volumes).unwrap_or_default();
    Some(Image { id, volumes: volumes.into_keys().collect() })
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
