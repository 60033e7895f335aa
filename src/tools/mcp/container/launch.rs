//! The command line that runs one container, and the one that removes it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};
use tempfile::NamedTempFile;
use tokio::process::Command;
use tokio_util::task::TaskTracker;

use super::super::process::Program;
use super::engine::plain;
use super::{Container, ContainerOptions, Containers, Mount, handed};

/// How long the removal of a container may take.
const REMOVAL_LIMIT: Duration = Duration::from_secs(20);
/// The most open files of each process in a container.
const OPEN_FILES: u32 = 1_024;

/// All that starts a container.
pub struct Launch {
    engine: String,
    args: Vec<String>,
    env: BTreeMap<String, SecretString>,
    removal: Removal,
    /// The variables of the container, which may be secrets and so stand in no command line. The engine has read the file
    /// by the time that the container says its first word.
    _variables: Option<NamedTempFile>,
}

/// What removes a container.
#[derive(Clone)]
pub struct Removal {
    engine: PathBuf,
    env: BTreeMap<String, SecretString>,
    name: String,
}

impl Launch {
    /// What starts `container` under the name `name`, with `command` and `args` in it instead of, or after, what its image says.
    ///
    /// # Errors
    /// In words: what it asks for and may not have, or why there is no engine.
    pub async fn prepare(
        container: &Container,
        (command, args): (Option<&str>, &[String]),
        variables: &BTreeMap<String, SecretString>,
        name: &str,
        Containers { engine, options, handed, .. }: &Containers,
    ) -> Result<Self, String> {
        let image = image(container, command, options)?;
        let file = (!variables.is_empty()).then(|| written(variables, handed.as_deref())).transpose()?;
        let mut line = bounds(container, options)?;
        line.extend(["--name".to_owned(), name.to_owned()]);
        if let Some(file) = &file {
            line.extend(["--env-file".to_owned(), file.path().display().to_string()]);
        }
        line.push(image.to_owned());
        line.extend(command.map(str::to_owned));
        line.extend_from_slice(args);
        let (program, env) = (engine.find().await?, engine.variables());
        let removal = Removal { engine: program.clone(), env: env.clone(), name: name.to_owned() };
        Ok(Self { engine: program.display().to_string(), args: line, env, removal, _variables: file })
    }

    /// The engine's command as a program, whose word is the name of the container. `remains` is as for any program.
    pub fn program<'a>(&'a self, word: String, remains: &'a TaskTracker) -> Program<'a> {
        let Self { engine, args, env, removal, _variables } = self;
        Program { command: engine, args, env, cwd: None, word, removal: Some(removal.clone()), remains }
    }
}

impl Removal {
    /// Removes the container, whatever it is doing, if it is there.
    pub async fn carry_out(&self) {
        let mut command = Command::new(&self.engine);
        command.args(["rm", "--force", &self.name]).env_clear().envs(plain(&self.env));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        // Usually it is gone already, which is what the engine then complains about.
        if tokio::time::timeout(REMOVAL_LIMIT, command.status()).await.is_err() {
            tracing::error!(container = self.name, "a container could not be removed within {REMOVAL_LIMIT:?}");
        }
    }
}

/// Removes all containers whose names begin with one of `words`. The engine sees `variables`, or without them the environment that this
/// process has. Tells how many there were, or `None` if the engine does not say that they are gone.
pub async fn remove_all(engine: &Path, variables: Option<&BTreeMap<String, SecretString>>, words: &[&str]) -> Option<usize> {
    let found = asked(engine, variables, &["ps", "--all", "--format", "{{.Names}}"]).await?;
    let names = String::from_utf8_lossy(&found.stdout);
    let left: Vec<&str> = names.lines().filter(|name| words.iter().any(|word| name.starts_with(word))).collect();
    if !left.is_empty() {
        asked(engine, variables, &[&["rm", "--force"], left.as_slice()].concat()).await?;
    }
    Some(left.len())
}

/// What the engine says, if it says so in time and without complaint.
async fn asked(engine: &Path, variables: Option<&BTreeMap<String, SecretString>>, args: &[&str]) -> Option<Output> {
    let mut command = Command::new(engine);
    if let Some(variables) = variables {
        command.env_clear().envs(plain(variables));
    }
    command.args(args).stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let said = tokio::time::timeout(REMOVAL_LIMIT, command.output()).await.ok()?.ok()?;
    said.status.success().then_some(said)
}

fn image<'a>(container: &'a Container, command: Option<&str>, options: &'a ContainerOptions) -> Result<&'a str, String> {
    let image = match (&container.image, command) {
        (Some(image), _) => return Ok(image),
        (None, Some("npx")) => &options.npx_image,
        (None, Some("uvx")) => &options.uvx_image,
        (None, _) => return Err("the entry needs an image: only npx and uvx have one of their own".to_owned()),
    };
    if !container.network {
        return Err(
            "npx and uvx fetch what they run: set capstan.container.network, or use an image that has the server in it".to_owned()
        );
    }
    Ok(image)
}

/// What a container is given, and nothing more.
fn bounds(container: &Container, options: &ContainerOptions) -> Result<Vec<String>, String> {
    if container.network && !options.network {
        return Err("containers may have no network here; an operator can allow it with mcp.containers.network".to_owned());
    }
    let memory = within("memory_mib", container.memory_mib, options.memory_mib)?;
    let processes = within("processes", container.processes, options.processes)?;
    let cpus = within("cpus", container.cpus, options.cpus)?;
    let mut line: Vec<String> = ["run", "--rm", "--interactive", "--read-only", "--cap-drop", "ALL"].map(str::to_owned).into();
    // What it says is read from the engine. The log that the engine would keep of it beside that has no bounds.
    line.extend(["--log-driver".to_owned(), "none".to_owned()]);
    line.extend(["--security-opt".to_owned(), "no-new-privileges".to_owned()]);
    line.extend(["--network".to_owned(), if container.network { "bridge" } else { "none" }.to_owned()]);
    // As much swap as memory means: none beside it.
    line.extend(["--memory".to_owned(), format!("{memory}m"), "--memory-swap".to_owned(), format!("{memory}m")]);
    line.extend(["--cpus".to_owned(), cpus.to_string(), "--pids-limit".to_owned(), processes.to_string()]);
    line.extend(["--ulimit".to_owned(), format!("nofile={OPEN_FILES}:{OPEN_FILES}")]);
    // What runs packages unpacks them there, and runs what it has unpacked.
    line.extend([
        "--tmpfs".to_owned(),
        "/tmp:rw,exec,nosuid,nodev,size=256m".to_owned(),
        "--env".to_owned(),
        "HOME=/tmp".to_owned(),
    ]);
    for mount in &container.mounts {
        line.extend(["--mount".to_owned(), mounted(mount, options)?]);
    }
    Ok(line)
}

fn within<T: PartialOrd + Copy + std::fmt::Display>(key: &str, asked: Option<T>, most: T) -> Result<T, String> {
    match asked {
        Some(asked) if asked > most => {
            Err(format!("capstan.container.{key} asks for {asked}, and mcp.containers.{key} allows {most}"))
        }
        Some(asked) => Ok(asked),
        None => Ok(most),
    }
}

/// Judged by where it really is: a link in an allowed folder may lead anywhere.
fn mounted(mount: &Mount, options: &ContainerOptions) -> Result<String, String> {
    let Mount { source, target, writable } = mount;
    let place = std::fs::canonicalize(source).map_err(|error| format!("{source} cannot be mounted: {error}"))?;
    let lies_in = |folders: &[PathBuf]| folders.iter().any(|folder| contains(folder, &place));
    let may_write = lies_in(&options.writable_mounts);
    if !may_write && (*writable || !lies_in(&options.mounts)) {
        let setting = if *writable { "mcp.containers.writable_mounts" } else { "mcp.containers.mounts" };
        return Err(format!("{source} may not be mounted here; an operator can allow it with {setting}"));
    }
    // The engine goes the way to it once more, and what another container may write may have become a link by then.
    let lies_inside =
        |folder: &&PathBuf| std::fs::canonicalize(folder).is_ok_and(|folder| place != folder && place.starts_with(&folder));
    if let Some(folder) = options.writable_mounts.iter().find(lies_inside) {
        return Err(format!(
            "{source} lies inside {}, which containers may write (mcp.containers.writable_mounts): another one could put a link in \
             its place before it is mounted. Mount that folder as a whole, or keep what is to be mounted in another one",
            folder.display()
        ));
    }
    let place = place
        .to_str()
        .filter(|place| !place.contains([',', '"']))
        .ok_or_else(|| format!("{source} leads to a path that cannot be mounted"))?;
    let mut option = format!("type=bind,source={place},target={target}");
    if !writable {
        option.push_str(",readonly");
    }
    Ok(option)
}

fn contains(folder: &Path, place: &Path) -> bool {
    std::fs::canonicalize(folder).is_ok_and(|folder| place.starts_with(folder))
}

/// Variables in the form of `--env-file`, in a file that only we can read.
fn written(variables: &BTreeMap<String, SecretString>, folder: Option<&Path>) -> Result<NamedTempFile, String> {
    let mut text = String::new();
    for (name, value) in variables {
        let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        let value = value.expose_secret();
        if !is_name || value.contains(['\n', '\r', '\0']) {
            return Err(format!("env.{name}: a container takes names of letters, digits and _, and values of one line"));
        }
        let _ = writeln!(text, "{name}={value}");
    }
    handed::written(folder, &text).map_err(|error| format!("the variables of the container cannot be handed over: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(container: &Container, options: &ContainerOptions) -> Result<String, String> {
        bounds(container, options).map(|line| line.join(" "))
    }

    #[test]
    fn a_container_has_as_little_as_can_be() {
        let line = line(&Container::default(), &ContainerOptions::default()).unwrap();
        for words in [
            "--read-only",
            "--cap-drop ALL",
            "no-new-privileges",
            "--network none",
            "--memory 512m --memory-swap 512m",
            "--cpus 1 ",
            "--pids-limit 128",
            "--rm",
            "--log-driver none",
        ] {
            assert!(line.contains(words), "{words:?} in {line}");
        }
        assert!(!line.contains("--mount") && !line.contains("--privileged"), "{line}");
    }

    #[test]
    fn what_the_settings_do_not_allow_is_refused() {
        let options = ContainerOptions::default();
        let network = Container { network: true, ..Container::default() };
        assert!(line(&network, &options).unwrap_err().contains("mcp.containers.network"));
        let greedy = Container { memory_mib: Some(1_024), ..Container::default() };
        assert!(line(&greedy, &options).unwrap_err().contains("asks for 1024, and mcp.containers.memory_mib allows 512"));
        let modest = Container { memory_mib: Some(64), cpus: Some(0.5), processes: Some(9), ..Container::default() };
        let line = line(&modest, &options).unwrap();
        assert!(line.contains("--memory 64m") && line.contains("--cpus 0.5") && line.contains("--pids-limit 9"), "{line}");
    }

    #[test]
    fn a_mount_is_judged_by_where_it_leads() {
        let (allowed, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::create_dir(allowed.path().join("docs")).unwrap();
        std::os::unix::fs::symlink(other.path(), allowed.path().join("link")).unwrap();
        let options = ContainerOptions { mounts: vec![allowed.path().to_owned()], ..ContainerOptions::default() };
        let mount = |path: &Path, writable| {
            let mount = Mount { source: path.display().to_string(), target: "/docs".to_owned(), writable };
            mounted(&mount, &options)
        };
        let docs = mount(&allowed.path().join("docs"), false).unwrap();
        assert!(docs.ends_with(",target=/docs,readonly"), "{docs}");
        for path in [allowed.path().join("link"), other.path().to_owned(), allowed.path().join("docs/../..")] {
            assert!(mount(&path, false).unwrap_err().contains("mcp.containers.mounts"));
        }
        assert!(mount(&allowed.path().join("docs"), true).unwrap_err().contains("mcp.containers.writable_mounts"));
    }

    #[test]
    fn what_another_container_may_write_is_mounted_as_a_whole_or_not_at_all() {
        let (shared, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (inner, link) = (shared.path().join("inner"), other.path().join("link"));
        std::fs::create_dir(&inner).unwrap();
        std::os::unix::fs::symlink(&inner, &link).unwrap();
        let options = ContainerOptions {
            // Whatever else is said of what lies in it.
            mounts: vec![inner.clone(), other.path().to_owned()],
            writable_mounts: vec![shared.path().to_owned(), inner.clone()],
            ..ContainerOptions::default()
        };
        let mount = |path: &Path, writable| {
            let mount = Mount { source: path.display().to_string(), target: "/docs".to_owned(), writable };
            mounted(&mount, &options)
        };
        for writable in [true, false] {
            assert!(mount(shared.path(), writable).is_ok());
            for path in [&inner, &link] {
                let error = mount(path, writable).unwrap_err();
                assert!(error.contains("lies inside") && error.contains("as a whole"), "{error}");
            }
        }
        assert!(mount(other.path(), false).is_ok());
    }

    #[test]
    fn npx_and_uvx_have_images() {
        let options = ContainerOptions::default();
        let fetching = Container { network: true, ..Container::default() };
        assert_eq!(image(&fetching, Some("npx"), &options), Ok(options.npx_image.as_str()));
        assert!(image(&Container::default(), Some("uvx"), &options).unwrap_err().contains("network"));
        assert!(image(&fetching, Some("sh"), &options).unwrap_err().contains("needs an image"));
    }

    #[test]
    fn variables_stand_in_a_file_of_ours_alone() {
        use std::os::unix::fs::PermissionsExt as _;
        let one = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), SecretString::from(value.to_owned()))]);
        let file = written(&one("TOKEN", "a=b c"), None).unwrap();
        assert_eq!(std::fs::read_to_string(file.path()).unwrap(), "TOKEN=a=b c\n");
        assert_eq!(file.path().metadata().unwrap().permissions().mode() & 0o777, 0o600);
        for (name, value) in [("A B", "x"), ("#A", "x"), ("A", "x\nLD_PRELOAD=y")] {
            assert!(written(&one(name, value), None).is_err(), "{name}={value:?}");
        }
    }
}
