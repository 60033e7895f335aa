//! Builds the command line that runs one container, and removes containers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};
use tempfile::NamedTempFile;

use super::engine::{ImageVolumes, NO_EXTRA_VOLUMES, run_command};
use super::{Container, ContainerOptions, Containers, Mount, variable_files};

/// How long one command that removes or lists containers may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);
/// How long the removal may take with all retries.
const REMOVAL_LIMIT: Duration = Duration::from_secs(60);
/// The waits before retries. The engine may be restarting, or removing the container itself.
const REMOVAL_PAUSES: [Duration; 5] =
    [Duration::from_millis(200), Duration::from_secs(1), Duration::from_secs(3), Duration::from_secs(5), Duration::from_secs(10)];
/// The writable folder of a container.
const SCRATCH: &str = "/tmp";
const OPEN_FILES: u32 = 1_024;

/// The command that starts a container.
pub struct Launch {
    pub engine: String,
    pub args: Vec<String>,
    pub env: BTreeMap<String, SecretString>,
    pub removal: ContainerCleanup,
    /// The variables of the container, in a file because a command line is public. The engine has read it before the first output of the
    /// container.
    _variables: Option<NamedTempFile>,
}

#[derive(Clone)]
pub struct ContainerCleanup {
    engine: PathBuf,
    env: BTreeMap<String, SecretString>,
    name: String,
}

impl Launch {
    /// Prepares the start of `container` with the name `name`. `command` and `args` replace the command of the image, or follow its
    /// entry point.
    pub async fn prepare(
        container: &Container,
        (command, args): (Option<&str>, &[String]),
        variables: &BTreeMap<String, SecretString>,
        name: &str,
        Containers { engine, options, input_files_dir, .. }: &Containers,
    ) -> Result<Self, String> {
        let image = image(container, command, options)?;
        let file = (!variables.is_empty()).then(|| written(variables, input_files_dir.as_deref())).transpose()?;
        let mut line = limits(container, options)?;
        line.extend(["--name".to_owned(), name.to_owned()]);
        if let Some(file) = &file {
            line.extend(["--env-file".to_owned(), file.path().display().to_string()]);
        }
        let (program, env) = (engine.find().await?, engine.variables());
        match engine.volumes(&program).await? {
            ImageVolumes::Ignored => {
                line.extend(NO_EXTRA_VOLUMES.map(str::to_owned));
                line.push(image.to_owned());
            }
            ImageVolumes::Created => {
                let image = engine.image(&program, image).await?;
                line.extend(cover_volumes(&image.volumes, container)?);
                line.push(image.id);
            }
        }
        line.extend(command.map(str::to_owned));
        line.extend_from_slice(args);
        let removal = ContainerCleanup { engine: program.clone(), env: env.clone(), name: name.to_owned() };
        Ok(Self { engine: program.display().to_string(), args: line, env, removal, _variables: file })
    }
}

impl ContainerCleanup {
    pub async fn remove_container(&self) {
        remove(&self.engine, Some(&self.env), vec![self.name.clone()]).await;
    }
}

/// Removes all containers whose names begin with one of `words`, and returns their number; `None` if the engine does not confirm the
/// removal. `variables` is as for [`run_command`].
pub async fn remove_all(engine: &Path, variables: Option<&BTreeMap<String, SecretString>>, words: &[&str]) -> Option<usize> {
    let names = listed(engine, variables).await.ok()?;
    let left: Vec<String> = names.into_iter().filter(|name| words.iter().any(|marker| name.starts_with(marker))).collect();
    let found = left.len();
    remove(engine, variables, left).await.then_some(found)
}

/// Removes containers with their volumes, and returns whether the engine confirms the removal. Retries for a time, and then logs the
/// containers that remain.
async fn remove(engine: &Path, variables: Option<&BTreeMap<String, SecretString>>, names: Vec<String>) -> bool {
    let (mut left, mut reason) = (names, "it has not answered".to_owned());
    let tries = async {
        let mut pauses = REMOVAL_PAUSES.into_iter();
        while !left.is_empty() {
            let output = {
                let names = left.iter().map(String::as_str);
                let line: Vec<&str> = ["rm", "--force", "--volumes"].into_iter().chain(names).collect();
                run_command(engine, variables, &line, ANSWER_LIMIT).await
            };
            match output {
                Ok(_) => return left.clear(),
                Err(words) => reason = words,
            }
            // Some engines also fail for a container that no longer exists. Only their list is reliable.
            if let Ok(listed) = listed(engine, variables).await {
                left.retain(|name| listed.contains(name));
            }
            match pauses.next() {
                Some(pause) if !left.is_empty() => tokio::time::sleep(pause).await,
                Some(_) | None => return,
            }
        }
    };
    let _ = tokio::time::timeout(REMOVAL_LIMIT, tries).await;
    for name in &left {
        tracing::error!(container = name, error = reason, "a container could not be removed, and may still run");
    }
    left.is_empty()
}

async fn listed(engine: &Path, variables: Option<&BTreeMap<String, SecretString>>) -> Result<Vec<String>, String> {
    let names = run_command(engine, variables, &["ps", "--all", "--format", "{{.Names}}"], ANSWER_LIMIT).await?;
    Ok(names.lines().map(str::to_owned).collect())
}

fn image<'a>(container: &'a Container, command: Option<&str>, options: &'a ContainerOptions) -> Result<&'a str, String> {
    let image = match (&container.image, command) {
        (Some(image), _) => return Ok(image),
        (None, Some("npx")) => &options.npx_image,
        (None, Some("uvx")) => &options.uvx_image,
        (None, _) => return Err("the entry needs an image: only npx and uvx have a default image".to_owned()),
    };
    if !container.network {
        return Err("npx and uvx download their packages: set capstan.container.network, or use an image that contains the server"
            .to_owned());
    }
    Ok(image)
}

/// Returns the options of `run` with the rights and limits of a container.
fn limits(container: &Container, options: &ContainerOptions) -> Result<Vec<String>, String> {
    if container.network && !options.network {
        return Err("containers must not use the network; an operator can allow it with mcp.containers.network".to_owned());
    }
    let memory = check_limit("memory_mib", container.memory_mib, options.memory_mib)?;
    let processes = check_limit("processes", container.processes, options.processes)?;
    let cpus = check_limit("cpus", container.cpus, options.cpus)?;
    let mut line: Vec<String> = ["run", "--rm", "--interactive", "--read-only", "--cap-drop", "ALL"].map(str::to_owned).into();
    // The output is read from the engine, whose own log of it would be unbounded.
    line.extend(["--log-driver".to_owned(), "none".to_owned()]);
    line.extend(["--security-opt".to_owned(), "no-new-privileges".to_owned()]);
    line.extend(["--network".to_owned(), if container.network { "bridge" } else { "none" }.to_owned()]);
    // A swap limit equal to the memory limit means no swap.
    line.extend(["--memory".to_owned(), format!("{memory}m"), "--memory-swap".to_owned(), format!("{memory}m")]);
    line.extend(["--cpus".to_owned(), cpus.to_string(), "--pids-limit".to_owned(), processes.to_string()]);
    line.extend(["--ulimit".to_owned(), format!("nofile={OPEN_FILES}:{OPEN_FILES}")]);
    // Executable, because package runners unpack programs there.
    line.extend(["--tmpfs".to_owned(), format!("{SCRATCH}:rw,exec,nosuid,nodev,size=256m")]);
    line.extend(["--env".to_owned(), format!("HOME={SCRATCH}")]);
    for mount in &container.mounts {
        line.extend(["--mount".to_owned(), mounted(mount, options)?]);
    }
    Ok(line)
}

fn check_limit<T: PartialOrd + Copy + std::fmt::Display>(key: &str, requested: Option<T>, most: T) -> Result<T, String> {
    match requested {
        Some(requested) if requested > most => {
            Err(format!("capstan.container.{key} is {requested}, but mcp.containers.{key} allows {most}"))
        }
        Some(requested) => Ok(requested),
        None => Ok(most),
    }
}

/// Returns a mount option. The resolved path decides, because a link in an allowed folder may lead anywhere.
fn mounted(mount: &Mount, options: &ContainerOptions) -> Result<String, String> {
    let Mount { source, target, writable } = mount;
    let real_path = std::fs::canonicalize(source).map_err(|error| format!("{source} cannot be mounted: {error}"))?;
    let lies_in = |folders: &[PathBuf]| {
        folders.iter().any(|folder| std::fs::canonicalize(folder).is_ok_and(|folder| real_path.starts_with(folder)))
    };
    let may_write = lies_in(&options.writable_mounts);
    if !may_write && (*writable || !lies_in(&options.mounts)) {
        let setting = if *writable { "mcp.containers.writable_mounts" } else { "mcp.containers.mounts" };
        return Err(format!("{source} must not be mounted; an operator can allow it with {setting}"));
    }
    // The engine resolves the path again, and another container may have put a link into a writable folder meanwhile.
    let lies_inside =
        |folder: &&PathBuf| std::fs::canonicalize(folder).is_ok_and(|folder| real_path != folder && real_path.starts_with(&folder));
    if let Some(folder) = options.writable_mounts.iter().find(lies_inside) {
        return Err(format!(
            "{source} lies inside {}, which containers may write (mcp.containers.writable_mounts): another one could put a link in \
             its place before it is mounted. Mount that folder as a whole, or keep what is to be mounted in another one",
            folder.display()
        ));
    }
    let real_path = real_path
        .to_str()
        .filter(|real_path| !real_path.contains([',', '"']))
        .ok_or_else(|| format!("{source} resolves to a path that cannot be mounted"))?;
    let mut option = format!("type=bind,source={real_path},target={target}");
    if !writable {
        option.push_str(",readonly");
    }
    Ok(option)
}

/// Covers the declared volumes of an image by empty read-only file systems, if the engine would create them.
///
/// A writable volume would be unbounded on the disk of the engine. Docker has no read-only volume without a name, and a named volume would
/// outlive its container.
fn cover_volumes(volumes: &[String], container: &Container) -> Result<Vec<String>, String> {
    let mounted: BTreeSet<String> = container.mounts.iter().filter_map(|mount| cleaned(&mount.target)).collect();
    let mut line = BTreeSet::new();
    for volume in volumes {
        let volume =
            cleaned(volume).ok_or_else(|| format!("its image declares a volume at {volume:?}, which cannot be made read-only"))?;
        // A mount with the same target replaces the volume.
        if volume != SCRATCH && !mounted.contains(&volume) {
            line.insert(format!("--mount=type=tmpfs,target={volume},ro"));
        }
    }
    Ok(line.into_iter().collect())
}

/// Normalises a path in a container as engines do. `None` if it is not absolute, or not possible in a mount option.
fn cleaned(path: &str) -> Option<String> {
    let fits = path.starts_with('/') && !path.contains([',', '"', ':', '\n', '\r', '\0']);
    let parts: Vec<&str> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    (fits && !parts.is_empty() && !parts.contains(&"..")).then(|| format!("/{}", parts.join("/")))
}

/// Writes variables to a private file for `--env-file`.
fn written(variables: &BTreeMap<String, SecretString>, folder: Option<&Path>) -> Result<NamedTempFile, String> {
    let mut text = String::new();
    for (name, value) in variables {
        let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        let value = value.expose_secret();
        if !is_name || value.contains(['\n', '\r', '\0']) {
            return Err(format!("env.{name}: a container accepts names of letters, digits and _, and values without line breaks"));
        }
        let _ = writeln!(text, "{name}={value}");
    }
    variable_files::written(folder, &text)
        .map_err(|error| format!("the file with the variables of the container could not be written: {error}"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// An engine that records its commands, and then runs `script`.
    fn engine(folder: &Path, script: &str) -> PathBuf {
        use std::os::unix::fs::PermissionsExt as _;
        let path = folder.join("engine");
        let script = format!("#!/bin/sh\ncd '{}' || exit 9\necho \"$*\" >> asked\n{script}\n", folder.display());
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// The commands that the fake engine received, in order.
    fn was_asked(folder: &Path) -> Vec<String> {
        std::fs::read_to_string(folder.join("asked")).unwrap().lines().map(str::to_owned).collect()
    }

    const PATH: &str = "/usr/bin:/bin";

    fn path() -> BTreeMap<String, SecretString> {
        BTreeMap::from([("PATH".to_owned(), SecretString::from(PATH.to_owned()))])
    }

    /// The command line of `container`.
    async fn launched(engine: &Path, container: &Container, options: ContainerOptions) -> Result<String, String> {
        let options = ContainerOptions { engine: engine.display().to_string(), ..options };
        let environment = Arc::new(|name: &str| (name == "PATH").then(|| PATH.to_owned()));
        let containers = Containers::new(options, None, "capstan-1-".to_owned(), environment);
        let launch = Launch::prepare(container, (None, [].as_slice()), &BTreeMap::new(), "capstan-1-0.", &containers).await?;
        Ok(launch.args.join(" "))
    }

    #[tokio::test]
    async fn image_volumes_are_ignored_if_the_engine_can() {
        let folder = tempfile::tempdir().unwrap();
        let script = "[ \"$1\" = run ] && echo '  --image-volume string'; [ \"$1\" = run ] && echo '  --read-only-tmpfs'; exit 0";
        let engine = engine(folder.path(), script);
        let container = Container { image: Some("localhost/tiny:1".to_owned()), ..Container::default() };
        let line = launched(&engine, &container, ContainerOptions::default()).await.unwrap();
        assert!(line.ends_with(" --image-volume=ignore --read-only-tmpfs=false localhost/tiny:1"), "{line}");
        assert_eq!(was_asked(folder.path()), ["ps --quiet", "run --help"]);
    }

    #[tokio::test]
    async fn image_volumes_are_covered_by_tmpfs_otherwise() {
        let (folder, docs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let script = "case \"$1\" in\n\
            pull) touch pulled ;;\n\
            image) [ -e pulled ] && echo '[{\"Id\":\"sha256:0f\",\"Config\":{\"Volumes\":\
            {\"/data/\":{},\"/data\":{},\"/tmp\":{},\"/docs\":{}}}}]' ;;\n\
            esac";
        let engine = engine(folder.path(), script);
        let docs = docs.path().to_owned();
        let mount = Mount { source: docs.display().to_string(), target: "/docs/".to_owned(), writable: false };
        let container = Container { image: Some("tiny:1".to_owned()), mounts: vec![mount], ..Container::default() };
        let options = ContainerOptions { mounts: vec![docs], ..ContainerOptions::default() };
        let line = launched(&engine, &container, options).await.unwrap();
        assert!(line.ends_with(" --mount=type=tmpfs,target=/data,ro sha256:0f"), "{line}");
        assert_eq!(line.matches("type=tmpfs,target=/data").count(), 1, "{line}");
        let inspect = "image inspect tiny:1";
        let requested = ["ps --quiet", "run --help", inspect, "images --quiet tiny:1", "pull --quiet tiny:1", inspect];
        assert_eq!(was_asked(folder.path()), requested);
    }

    #[test]
    fn a_volume_that_cannot_be_covered_is_refused() {
        for volume in ["data", "/", "/a/../b", "/a,readonly=false", "/a:/b", ""] {
            let error = cover_volumes(&[volume.to_owned()], &Container::default()).unwrap_err();
            assert!(error.contains("declares a volume"), "{volume:?}: {error}");
        }
    }

    #[tokio::test]
    async fn a_removal_that_fails_is_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        let names = folder.path().join("names");
        std::fs::write(&names, "capstan-1-0.\ncapstan-2-0.\n").unwrap();
        let script = "case \"$1\" in\n\
            ps) cat names ;;\n\
            rm) [ -e failed ] && exit 0; touch failed; echo 'removal is already in progress' >&2; exit 1 ;;\n\
            esac";
        let engine = engine(folder.path(), script);
        let removal = ContainerCleanup { engine: engine.clone(), env: path(), name: "capstan-1-0.".to_owned() };
        removal.remove_container().await;
        let (rm, ps) = ("rm --force --volumes capstan-1-0.", "ps --all --format {{.Names}}");
        assert_eq!(was_asked(folder.path()), [rm, ps, rm]);

        // Checks the same for all containers that an earlier process has left; a retry only names those that remain.
        for file in ["asked", "failed"] {
            std::fs::remove_file(folder.path().join(file)).unwrap();
        }
        assert_eq!(remove_all(&engine, Some(&path()), &["capstan-1-"]).await, Some(1));
        assert_eq!(was_asked(folder.path()), [ps, rm, ps, rm]);
    }

    #[tokio::test]
    async fn removed_container_is_not_removed_again() {
        let folder = tempfile::tempdir().unwrap();
        let engine = engine(folder.path(), "[ \"$1\" = ps ] && echo capstan-2-0. && exit 0; exit 1");
        let removal = ContainerCleanup { engine, env: path(), name: "capstan-1-0.".to_owned() };
        removal.remove_container().await;
        assert_eq!(was_asked(folder.path()), ["rm --force --volumes capstan-1-0.", "ps --all --format {{.Names}}"]);
    }

    fn line(container: &Container, options: &ContainerOptions) -> Result<String, String> {
        limits(container, options).map(|line| line.join(" "))
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
    fn container_option_outside_the_settings_is_refused() {
        let options = ContainerOptions::default();
        let network = Container { network: true, ..Container::default() };
        assert!(line(&network, &options).unwrap_err().contains("mcp.containers.network"));
        let greedy = Container { memory_mib: Some(1_024), ..Container::default() };
        assert!(line(&greedy, &options).unwrap_err().contains("is 1024, but mcp.containers.memory_mib allows 512"));
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
    fn shared_writable_folder_is_mounted_whole_or_refused() {
        let (shared, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (inner, link) = (shared.path().join("inner"), other.path().join("link"));
        std::fs::create_dir(&inner).unwrap();
        std::os::unix::fs::symlink(&inner, &link).unwrap();
        let options = ContainerOptions {
            // The entries for `inner` have no effect, because it is inside of a writable folder.
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
