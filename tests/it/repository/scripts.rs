//! Scripts say which program is missing and how to get it, and the image has the files of its build.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Output};

use super::root;

/// Runs the build of the page with the programs of this folder alone.
fn build_page(programs: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(programs.join("bash"));
    command.arg(root().join("scripts/build-page.sh")).args(arguments).env_clear().env("PATH", programs);
    command.output().unwrap()
}

#[test]
fn page_build_without_node_says_how_to_get_it() {
    let folder = tempfile::tempdir().unwrap();
    for program in ["bash", "dirname"] {
        let found = ["/usr/bin", "/bin"].map(|place| Path::new(place).join(program)).into_iter().find(|path| path.exists());
        symlink(found.unwrap(), folder.path().join(program)).unwrap();
    }
    let check = || {
        for (arguments, code) in [(&[][..], 0), (&["--required"], 1)] {
            let output = build_page(folder.path(), arguments);
            let text = String::from_utf8(output.stderr).unwrap();
            assert_eq!((output.status.code(), output.stdout.len(), text.lines().count()), (Some(code), 0, 1), "{text}");
            for words in ["Node 20.19 or newer is missing", "without the chat page", "https://nodejs.org"] {
                assert!(text.contains(words), "{words:?} in {text}");
            }
        }
    };
    check();
    // An old Node is as good as none.
    for (program, code) in [("npm", 0), ("node", 1)] {
        let path = folder.path().join(program);
        std::fs::write(&path, format!("#!{}\nexit {code}\n", folder.path().join("bash").display())).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    check();
}

/// The image is built from the manifests of all packages, and from a part of their files.
#[test]
fn docker_image_has_the_files_that_cargo_reads() {
    let folder = tempfile::tempdir().unwrap();
    let dockerfile = std::fs::read_to_string(root().join("docker/Dockerfile")).unwrap();
    let build = dockerfile.split("\nFROM ").find(|stage| stage.contains("cargo build")).unwrap();
    for line in build.lines().filter(|line| line.starts_with("COPY ") && !line.contains("--from")) {
        let mut words: Vec<&str> = line.split_whitespace().skip(1).collect();
        let to = folder.path().join(words.pop().unwrap());
        for from in words {
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            let copied = Command::new("cp").arg("-r").arg(root().join(from)).arg(&to).status().unwrap();
            assert!(copied.success(), "{line}");
        }
    }
    let mut cargo = Command::new("cargo");
    cargo.args(["metadata", "--no-deps", "--offline", "--locked", "--format-version", "1"]).current_dir(folder.path());
    let output = cargo.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
