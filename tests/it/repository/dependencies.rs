//! Dependencies in `Cargo.toml` are used.

use super::{files, read};

/// Returns the code of all Rust files of these folders, without comments.
fn code_of(folders: &[&str]) -> String {
    let texts = folders.iter().flat_map(|folder| files(folder, "rs")).map(read).collect::<Vec<_>>().join("\n");
    texts.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// Returns whether code has a path that begins with this crate, or imports the crate itself.
fn names_crate(code: &str, package: &str) -> bool {
    let name = package.replace('-', "_");
    let is_path = code.match_indices(&format!("{name}::")).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_')
    });
    is_path || code.contains(&format!("use {name};"))
}

/// A dependency that only tests use belongs to `[dev-dependencies]`: each one of the server is compiled for every release.
#[test]
fn every_dependency_is_used() {
    let manifest: toml::Table = read("Cargo.toml").parse().unwrap();
    let mut unused = Vec::new();
    for (section, folders) in [("dependencies", &["src"][..]), ("dev-dependencies", &["src", "tests"])] {
        let code = code_of(folders);
        let packages = manifest[section].as_table().unwrap().keys();
        unused.extend(packages.filter(|package| !names_crate(&code, package)).map(|package| format!("{section}: {package}")));
    }
    assert_eq!(unused, Vec::<String>::new(), "remove these from Cargo.toml");
}

#[test]
fn crate_is_found_as_whole_name_only() {
    assert!(names_crate("let a = futures_util::future::ready(1);", "futures-util"));
    assert!(names_crate("use jiff;", "jiff"));
    assert!(!names_crate("let a = my_bytes::read();", "bytes"));
    assert!(!names_crate("let bytes = read();", "bytes"));
}
