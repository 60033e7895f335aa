//! MCP servers in containers, run by real engines.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use capstan::domain::tool::ToolCallState;
use capstan::tools::mcp::ContainerOptions;
use rstest::rstest;
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use support::database::Kind;
use support::mcp::{PATIENCE, Tools, text};
use support::model::ModelMock;
use support::{print_figure, wait};

const IMAGE: &str = "localhost/capstan-tiny:1";

const PODMAN: &str = "podman";
const DOCKER: &str = "docker";

/// A container engine with an image, or `None` if it cannot run containers here. That is reported, or fails if the engine is
/// required.
struct Site {
    folder: TempDir,
    engine: PathBuf,
}

impl Site {
    fn open(program: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let script = match program {
            // Inside a container, podman cannot raise limits, and finds hybrid control groups, which its default runtime does
            // not support.
            PODMAN => "[ \"$1\" = run ] && shift && set -- run --ulimit nproc=1024:1024 \"$@\"\nexec podman --runtime runc \"$@\""
                .to_owned(),
            other => format!("exec {other} \"$@\""),
        };
        let script = format!("#!/bin/sh\n{script}\n");
        let engine = folder.path().join("engine");
        std::fs::write(&engine, script).unwrap();
        executable(&engine);
        let site = Self { folder, engine };
        match site.make_image() {
            Ok(()) => Some(site),
            Err(reason) => {
                #[expect(clippy::disallowed_methods, reason = "the caller names the engines that must work")]
                let required = std::env::var("CAPSTAN_TEST_CONTAINERS").unwrap_or_default();
                let is_required = required.split(',').any(|name| name.trim() == program);
                assert!(!is_required, "CAPSTAN_TEST_CONTAINERS names {program}, which runs no containers here: {reason}");
                print_figure(&format!("NOT TESTED: servers in containers, because {program} runs none here: {reason}"));
                None
            }
        }
    }

    /// Builds an image with a shell, its tools and the server, and with a volume that the server tries to write.
    fn make_image(&self) -> Result<(), String> {
        let root = self.folder.path().join("root");
        for folder in ["bin", "data", "run", "var/tmp"] {
            std::fs::create_dir_all(root.join(folder)).map_err(|error| error.to_string())?;
        }
        std::fs::copy("/bin/busybox", root.join("bin/busybox")).map_err(|error| format!("busybox-static: {error}"))?;
        for tool in ["sh", "sed", "cat", "ls", "tr", "touch", "sleep"] {
            std::os::unix::fs::symlink("busybox", root.join("bin").join(tool)).map_err(|error| error.to_string())?;
        }
        std::fs::write(root.join("server.sh"), include_str!("tiny_server.sh")).map_err(|error| error.to_string())?;
        let archive = self.folder.path().join("image.tar");
        let packed = Command::new("tar").arg("-C").arg(&root).arg("-cf").arg(&archive).arg(".").output();
        said(packed.map_err(|error| error.to_string())?)?;
        said(self.engine(&["import", "--change", "VOLUME /data", archive.to_str().unwrap_or_default(), IMAGE])?)?;
        said(self.engine(&["run", "--rm", "--ulimit", "nofile=64:64", IMAGE, "/bin/sh", "-c", "exit 0"])?)
    }

    fn engine(&self, args: &[&str]) -> Result<Output, String> {
        Command::new(&self.engine).args(args).stdin(Stdio::null()).output().map_err(|error| error.to_string())
    }

    /// Returns the names of all containers.
    fn containers(&self) -> Vec<String> {
        let output = self.engine(&["ps", "--all", "--format", "{{.Names}}"]).unwrap();
        String::from_utf8(output.stdout).unwrap().lines().filter(|name| name.starts_with("capstan-")).map(str::to_owned).collect()
    }

    /// Returns all volumes, of any container.
    fn volumes(&self) -> Vec<String> {
        let output = self.engine(&["volume", "ls", "--quiet"]).unwrap();
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
    }

    fn options(&self) -> ContainerOptions {
        ContainerOptions { engine: self.engine.to_str().unwrap().to_owned(), memory_mib: 64, ..ContainerOptions::default() }
    }
}

fn executable(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

fn said(output: Output) -> Result<(), String> {
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()) }
}

/// One test for everything, because an engine is slow with many concurrent requests.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn container_server_sees_its_mounts_and_is_removed(#[values(PODMAN, DOCKER)] engine: &str) {
    let Some(site) = Site::open(engine) else { return };
    let volumes = site.volumes();
    let docs = site.folder.path().join("docs");
    std::fs::create_dir(&docs).unwrap();
    std::fs::write(docs.join("note"), "noted").unwrap();
    let mounts = json!([{"source": docs, "target": "/docs"}]);
    let entry = |container: serde_json::Value| {
        json!({"image": IMAGE, "command": "/bin/sh", "args": ["/server.sh", "--pid=host"], "env": {"TOKEN": "sec=ret 7"},
            "capstan": {"container": container}})
    };
    let servers = json!({"tiny": entry(json!({"mounts": mounts, "cpus": 0.5, "processes": 16})),
        "greedy": entry(json!({"memory_mib": 65})), "online": entry(json!({"network": true})),
        "host": entry(json!({"mounts": [{"source": "/etc", "target": "/docs"}]}))});
    let options = ContainerOptions { mounts: vec![docs.clone()], ..site.options() };
    let tools = Tools::contained(&servers, options).await;

    let seen = tools.call("tiny__look", json!({})).await;
    let seen = text(&seen);
    for words in [
        // The server got the whole value, and its answer is redacted.
        "token=[redacted:TOKEN] ",
        "letters=SEC=RET 7 ",
        "host= ",
        "root=read-only",
        "tmp=writable",
        // Neither the image's declared volume nor podman's own variables.
        "also=;",
        "net=lo,",
        "docs=noted/read-only",
        "caps=0000000000000000",
        "arg=--pid=host",
    ] {
        assert!(seen.contains(words), "{words:?} in {seen}");
    }
    for (server, words) in
        [("greedy", "mcp.containers.memory_mib allows 64"), ("online", "mcp.containers.network"), ("host", "mcp.containers.mounts")]
    {
        let error = tools.status(server).await.error.unwrap();
        assert!(error.contains(words), "{server}: {error}");
    }
    let running = Command::new("ps").args(["-eo", "args"]).output().unwrap();
    assert!(!String::from_utf8_lossy(&running.stdout).contains("sec=ret"), "a secret is in a command line");
    assert_eq!(site.containers().len(), 1);

    let (progress, _reports) = mpsc::channel(1);
    let stays = tools.call_with("tiny__stay", json!({}), Duration::from_secs(1), progress, CancellationToken::new()).await;
    assert_ne!(stays.state, ToolCallState::Done);
    wait::within("the end of the servers", PATIENCE, tools.shutdown()).await;
    assert_eq!(site.containers(), Vec::<String>::new(), "a container that ignores signals is removed");
    assert_eq!(site.volumes(), volumes);

    // The same when the whole server is killed.
    let model = ModelMock::start().await;
    let place = support::server::Site::new(Kind::Sqlite)
        .await
        .with_model(&model)
        .mcp(json!({"mcpServers": {"tiny": entry(json!({}))}}))
        .env("CAPSTAN_MCP__CONTAINERS__ENGINE", site.engine.to_str().unwrap());
    let mut server = place.start().await;
    server.start_run(&json!({"input": "[[id:stays]][[call:tiny__stay {}]]"})).await;
    wait::until("the container to heed nothing", PATIENCE, || async {
        // Each engine has its own option for the columns of a process.
        let columns: &[&str] = if engine == PODMAN { &["args"] } else { &["-eo", "pid,args"] };
        let output = site.engine(&[&["top", site.containers().first()?.as_str()], columns].concat()).unwrap();
        String::from_utf8_lossy(&output.stdout).contains("sleep 1").then_some(())
    })
    .await;
    server.kill9().await;
    wait::until("its removal", PATIENCE, || async { site.containers().is_empty().then_some(()) }).await;
    assert_eq!(site.volumes(), volumes);
}

/// The missing engine is reported at start, before the first call.
#[tokio::test(flavor = "multi_thread")]
async fn missing_container_engine_is_reported_at_start() {
    let model = ModelMock::start().await;
    let place = support::server::Site::new(Kind::Sqlite)
        .await
        .with_model(&model)
        .mcp(json!({"mcpServers": {"tiny": {"image": IMAGE}}}))
        .env("CAPSTAN_MCP__CONTAINERS__ENGINE", "/no/such/engine");
    let server = place.start().await;
    wait::until("the word in the log", PATIENCE, || async {
        let said = server.log_text();
        let is_told = said.contains("MCP servers in containers cannot be started") && said.contains("/no/such/engine");
        is_told.then_some(())
    })
    .await;
}

/// Files with a container's secrets do not outlive a killed server, and neither do the containers.
#[tokio::test(flavor = "multi_thread")]
async fn container_files_are_removed_after_a_kill() {
    let model = ModelMock::start().await;
    let place = support::server::Site::new(Kind::Sqlite).await.with_model(&model);
    // A fake engine whose containers never answer. It accepts podman's options, has containers with our names, and logs what it
    // removes. Its first removal fails.
    let (engine, names, removed) =
        (place.folder.path().join("engine"), place.folder.path().join("names"), place.folder.path().join("removed"));
    let script = format!(
        "#!/bin/sh\n[ \"$2\" = --help ] && echo '--image-volume --read-only-tmpfs' && exit 0\n\
         [ \"$1\" = run ] && exec sleep 1000\n[ \"$1\" = ps ] && [ -e '{names}' ] && cat '{names}'\n\
         [ \"$1\" = rm ] && {{ [ -e '{removed}' ] && tried=yes; echo \"$*\" >> '{removed}'; [ \"$tried\" ] || exit 1; }}\nexit 0\n",
        names = names.display(),
        removed = removed.display()
    );
    std::fs::write(&engine, script).unwrap();
    executable(&engine);
    let entry = json!({"image": "tiny", "env": {"TOKEN": "file-canary-1"}});
    let place = place
        .mcp(json!({"mcpServers": {"tiny": entry}}))
        .env("CAPSTAN_MCP__CONTAINERS__ENGINE", engine.to_str().unwrap())
        .env("CAPSTAN_MCP__START_WAIT_MS", "100");
    let folder = place.folder.path().join("data/containers");
    let found = |beginning: &str| -> Vec<PathBuf> {
        let Ok(entries) = std::fs::read_dir(&folder) else { return Vec::new() };
        let entries = entries.map(Result::unwrap);
        entries.filter(|entry| entry.file_name().to_str().unwrap().starts_with(beginning)).map(|entry| entry.path()).collect()
    };
    let files = || found("capstan-");
    let mut server = place.start().await;
    server.start_run(&json!({"input": "[[id:handed]][[say:bye]]"})).await;
    wait::until("the file", PATIENCE, || async {
        let file = files().pop()?;
        (std::fs::read_to_string(file).ok()? == "TOKEN=file-canary-1\n").then_some(())
    })
    .await;
    server.kill9().await;
    wait::until("its removal", PATIENCE, || async { files().is_empty().then_some(()) }).await;

    // If the server is killed together with its process reaper, the next start removes the files.
    std::fs::write(folder.join("capstan-left"), "TOKEN=file-canary-1\n").unwrap();
    let notes = found("has-capstan-");
    assert_eq!(notes.len(), 1, "{notes:?}");
    let word = notes[0].file_name().unwrap().to_str().unwrap().strip_prefix("has-").unwrap().to_owned();
    std::fs::write(&names, format!("{word}0.\ncapstan-another-0.\n{word}1.\nsomebody-elses\n")).unwrap();
    let server = place.start().await;
    assert!(!folder.join("capstan-left").exists(), "{:?}", files());
    wait::until("the removal of the containers", PATIENCE, || async { (!notes[0].exists()).then_some(()) }).await;
    let removed = std::fs::read_to_string(&removed).unwrap();
    let asked = removed.lines().filter(|line| *line == format!("rm --force --volumes {word}0. {word}1.")).count();
    assert!(asked > 1, "the failed removal is repeated: {removed}");
    assert!(!removed.contains("another") && !removed.contains("somebody"), "{removed}");
    drop(server);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_engine_the_way_out_is_named() {
    let options = ContainerOptions { engine: "/nonexistent/engine".to_owned(), ..ContainerOptions::default() };
    let tools = Tools::contained(&json!({"tiny": {"image": "tiny"}}), options).await;
    let error = tools.status("tiny").await.error.unwrap();
    assert!(error.contains("install or start Docker or podman") && error.contains("mcp.containers.engine"), "{error}");
    tools.shutdown().await;
}
