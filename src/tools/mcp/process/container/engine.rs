//! The container engine: finds its program before the first container, and queries its images.

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

/// The engines that `auto` tries, in this order.
const KNOWN: [&str; 2] = ["docker", "podman"];
/// How long an engine may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// How long it may take to pull an image. The start limit of the server usually ends the pull before.
const FETCH_LIMIT: Duration = Duration::from_secs(3_600);
/// Options of `podman run`, unknown to Docker: no volumes of the image, and no further writable mounts (`/run`, `/var/tmp`).
pub const NO_EXTRA_VOLUMES: [&str; 2] = ["--image-volume=ignore", "--read-only-tmpfs=false"];
/// The environment of an engine. Variables of an entry never reach it, because they could select another machine or program.
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
    requested: String,
    environment: Environment,
    found: Mutex<Option<PathBuf>>,
    volumes: Mutex<Option<ImageVolumes>>,
}

/// How an engine treats the volumes that an image declares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageVolumes {
    /// The engine ignores them with [`NO_EXTRA_VOLUMES`].
    Ignored,
    /// The engine creates each as a writable volume, unless another mount covers it.
    Created,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Image {
    /// The id, which refers to the inspected image even if the name refers to another image later.
    pub id: String,
    pub volumes: Vec<String>,
}

impl Engine {
    pub fn new(requested: &str, environment: Environment) -> Self {
        Self { requested: requested.to_owned(), environment, found: Mutex::new(None), volumes: Mutex::new(None) }
    }

    /// Returns the program, or why there is none and how to fix it.
    pub async fn find(&self) -> Result<PathBuf, String> {
        let mut found = self.found.lock().await;
        if let Some(engine) = &*found {
            return Ok(engine.clone());
        }
        let candidates = match self.requested.as_str() {
            "none" => return Err("containers are disabled (mcp.containers.engine)".to_owned()),
            "auto" => KNOWN.to_vec(),
            one => vec![one],
        };
        let mut reasons = Vec::new();
        for candidate in candidates {
            match self.probe(candidate).await {
                Ok(engine) => {
                    tracing::info!(engine = %engine.display(), "found the container engine");
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

    async fn probe(&self, candidate: &str) -> Result<PathBuf, String> {
        let program = self.in_path(candidate).ok_or("not found in PATH")?;
        // The program may exist although its daemon does not run.
        run_command(&program, Some(&self.variables()), &["ps", "--quiet"], ANSWER_LIMIT).await?;
        Ok(program)
    }

    /// Asks `program` once how it treats volumes of images. Its name is no evidence: podman may be called `docker`, and a script may wrap
    /// either. Without an answer, no container may run.
    pub async fn volumes(&self, program: &Path) -> Result<ImageVolumes, String> {
        let mut known = self.volumes.lock().await;
        if let Some(known) = *known {
            return Ok(known);
        }
        let help = run_command(program, Some(&self.variables()), &["run", "--help"], ANSWER_LIMIT).await;
        let help = help.map_err(|reason| format!("the container engine does not list the options of `run`: {reason}"))?;
        let mut names = NO_EXTRA_VOLUMES.iter().filter_map(|option| option.split('=').next());
        let volumes = if names.all(|name| help.contains(name)) { ImageVolumes::Ignored } else { ImageVolumes::Created };
        *known = Some(volumes);
        Ok(volumes)
    }

    /// Returns the image with this name, and pulls it if it is missing. The log contains the engine's errors, which are for operators only.
    pub async fn image(&self, program: &Path, name: &str) -> Result<Image, String> {
        let variables = self.variables();
        let failed = |reason: String| {
            tracing::warn!(image = name, error = reason, "the container engine could not provide an image");
            format!("the image {name} is not available; the log of the server has the reason")
        };
        let inspect = ["image", "inspect", name];
        let output = match run_command(program, Some(&variables), &inspect, ANSWER_LIMIT).await {
            Ok(output) => output,
            // A local image is never pulled again: in the registry its name may refer to another image by now.
            Err(reason) => {
                let there =
                    run_command(program, Some(&variables), &["images", "--quiet", name], ANSWER_LIMIT).await.map_err(failed)?;
                if !there.is_empty() {
                    return Err(failed(reason));
                }
                run_command(program, Some(&variables), &["pull", "--quiet", name], FETCH_LIMIT).await.map_err(failed)?;
                run_command(program, Some(&variables), &inspect, ANSWER_LIMIT).await.map_err(failed)?
            }
        };
        inspected(&output).ok_or_else(|| failed("the output of `image inspect` cannot be parsed".to_owned()))
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

/// Runs a command of an engine with the environment `variables`, or with that of this process.
pub async fn run_command(
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
    let output = tokio::time::timeout(limit, command.output()).await.map_err(|_| format!("no answer within {limit:?}"))?;
    let output = output.map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let words = redact::error_text(String::from_utf8_lossy(&output.stderr).trim());
    Err(text::prefix_chars(&words, 300).to_owned())
}

/// Parses the output of `image inspect`. `None` if its structure is unknown, because the volumes would be unknown, too.
fn inspected(output: &str) -> Option<Image> {
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
    let mut found: Vec<Inspected> = serde_json::from_str(output).ok()?;
    let Inspected { id, config } = found.pop().filter(|_| found.is_empty())?;
    // The engine must not mistake the id for an option.
    if !id.starts_with(|first: char| first.is_ascii_alphanumeric()) {
        return None;
    }
    let volumes = config.and_then(|config| config.volumes).unwrap_or_default();
    Some(Image { id, volumes: volumes.into_keys().collect() })
}

/// Returns the variables as `Command::envs` expects them.
pub fn plain(variables: &BTreeMap<String, SecretString>) -> impl Iterator<Item = (&String, &str)> {
    variables.iter().map(|(name, value)| (name, value.expose_secret()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn engine(requested: &str, path: &Path) -> Engine {
        let path = path.to_str().unwrap().to_owned();
        Engine::new(requested, Arc::new(move |name| (name == "PATH").then(|| format!("{path}:/usr/bin:/bin"))))
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
        assert!(engine("none", folder.path()).find().await.unwrap_err().contains("disabled"));
        let error = engine("/nonexistent/engine", folder.path()).find().await.unwrap_err();
        assert!(error.contains("/nonexistent/engine: not found"), "{error}");
    }

    #[test]
    fn an_image_is_what_the_engine_says_of_it_or_nothing() {
        let image = |volumes: &[&str]| {
            Some(Image { id: "sha256:0f".to_owned(), volumes: volumes.iter().copied().map(str::to_owned).collect() })
        };
        for (output, expected) in [
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
            assert_eq!(inspected(output), expected, "{output}");
        }
    }

    #[tokio::test]
    async fn container_engine_is_asked_about_volumes() {
        let folder = tempfile::tempdir().unwrap();
        for (script, expected) in [
            ("echo '  --image-volume string'; echo '  --read-only-tmpfs'", Ok(ImageVolumes::Ignored)),
            ("echo '  --volume list'", Ok(ImageVolumes::Created)),
            ("echo 'no such daemon' >&2; exit 1", Err(())),
        ] {
            let docker = program(folder.path(), "docker", script);
            assert_eq!(engine("docker", folder.path()).volumes(&docker).await.map_err(|_| ()), expected, "{script}");
        }
    }
}
