//! The dependencies of each `Cargo.toml` are used.

use super::{files, read};

/// Returns the code of all Rust files of a folder, without comments.
fn code_of(folder: &str) -> String {
    let texts = files(folder, "rs").into_iter().map(read).collect::<Vec<_>>().join("\n");
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

/// A dependency that only tests use belongs to `[dev-dependencies]` or to the package of the tests: each one of the server is
/// compiled for every release.
#[test]
fn every_dependency_is_used() {
    let packages = [
        ("Cargo.toml", "dependencies", "src"),
        ("Cargo.toml", "dev-dependencies", "src"),
        ("tests/it/Cargo.toml", "dependencies", "tests/it"),
        ("tests/it/Cargo.toml", "dev-dependencies", "tests/it"),
        ("fuzz/Cargo.toml", "dependencies", "fuzz"),
        ("fuzz/Cargo.toml", "dev-dependencies", "fuzz/benches"),
    ];
    let mut unused = Vec::new();
    for (path, section, folder) in packages {
        let manifest: toml::Table = read(path).parse().unwrap();
        let code = code_of(folder);
        let names = manifest[section].as_table().unwrap().keys();
        unused.extend(names.filter(|package| !names_crate(&code, package)).map(|package| format!("{path}, {section}: {package}")));
    }
    assert_eq!(unused, Vec::<String>::new(), "remove these");
}

#[test]
fn crate_is_found_as_whole_name_only() {
    assert!(names_crate("let a = futures_util::future::ready(1);", "futures-util"));
    assert!(names_crate("use jiff;", "jiff"));
    assert!(!names_crate("let a = my_bytes::read();", "bytes"));
    assert!(!names_crate("let bytes = read();", "bytes"));
}
