//! Imports run downwards only, as in the table of ARCHITECTURE.md.

use super::{files, read};

/// Each module, and the modules that it may use. All others are forbidden, siblings included.
const MAY_USE: &[(&str, &[&str])] = &[
    ("support", &[]),
    ("domain", &["support"]),
    ("documents", &["domain", "support"]),
    ("engine", &["domain", "support"]),
    ("live", &["domain", "support"]),
    ("provider", &["domain", "support"]),
    ("store", &["domain", "support"]),
    ("tools", &["domain", "support"]),
    // The service lists tools, and starts, stops and probes MCP servers. It executes no tool call.
    ("service", &["documents", "store", "live", "tools", "domain", "support"]),
    ("worker", &["documents", "engine", "live", "provider", "store", "tools", "domain", "support"]),
    ("http", &["service", "domain", "support"]),
    ("app", &["documents", "http", "worker", "service", "engine", "live", "provider", "store", "tools", "domain", "support"]),
];

/// The items that a module must not use at all.
const MUST_NOT_TOUCH: &[(&str, &[&str])] = &[
    ("engine", &["tokio", "sqlx", "reqwest", "axum", "rmcp"]),
    ("domain", &["tokio", "sqlx", "reqwest", "axum", "rmcp"]),
    ("worker", &["sqlx", "reqwest", "axum", "rmcp"]),
    ("service", &["sqlx", "reqwest", "axum", "rmcp"]),
    ("http", &["sqlx", "reqwest", "rmcp"]),
    ("documents", &["tokio", "sqlx", "reqwest", "axum", "rmcp"]),
];

/// The part of `http` that answers MCP clients, with the SDK.
const SPEAKS_MCP: &str = "src/http/mcp_server";

/// Returns the modules that a piece of code names after `crate::`, alone or in braces.
fn modules_used(code: &str) -> Vec<String> {
    let mut used = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            Some(group) => used.extend(heads_of_group(group)),
            None => used.push(ident(rest)),
        }
    }
    used
}

fn ident(text: &str) -> String {
    text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

fn heads_of_group(group: &str) -> Vec<String> {
    let mut heads = Vec::new();
    let (mut depth, mut start) = (0, 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => {
                heads.push(ident(group[start..at].trim_start()));
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                heads.push(ident(group[start..at].trim_start()));
                start = at + 1;
            }
            _ => {}
        }
    }
    heads.retain(|head| !head.is_empty());
    heads
}

fn without_comments(code: &str) -> String {
    code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

#[test]
fn imports_run_downwards() {
    let mut wrong = Vec::new();
    for file in files("src", "rs") {
        let parts: Vec<_> = file.iter().map(|part| part.to_str().unwrap()).collect();
        let [_, module, _, ..] = parts[..] else { continue };
        // Tests beside the code may use any module.
        let code = without_comments(&read(&file));
        let code = if file.to_string_lossy().contains("test") {
            String::new()
        } else {
            code.split("#[cfg(test)]").next().unwrap().to_owned()
        };
        let (_, may_use) = MAY_USE.iter().find(|(name, _)| *name == module).unwrap_or_else(|| panic!("{module} has no level"));
        for used in modules_used(&code) {
            let ours = MAY_USE.iter().any(|(name, _)| *name == used);
            if ours && used != module && !may_use.contains(&used.as_str()) {
                wrong.push(format!("{}: {module} must not use {used}", file.display()));
            }
        }
        for (name, forbidden) in MUST_NOT_TOUCH {
            let speaks_mcp = |word: &str| word == "rmcp" && file.starts_with(SPEAKS_MCP);
            for word in forbidden.iter().filter(|word| *name == module && code.contains(&format!("{word}::")) && !speaks_mcp(word))
            {
                wrong.push(format!("{}: {module} must not touch {word}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_reader_of_imports_sees_all_forms() {
    let code = "use crate::domain::{a, b};\nuse crate::{\n  store::{self, X},\n  live::Hub,\n};\nlet x = crate::http::y();";
    assert_eq!(modules_used(code), ["domain", "store", "live", "http"]);
}

#[test]
fn files_stay_readable() {
    let long: Vec<String> = ["src", "tests", "benches"]
        .into_iter()
        .filter(|folder| super::root().join(folder).exists())
        .flat_map(|folder| files(folder, "rs"))
        .map(|file| (read(&file).lines().count(), file))
        .filter(|(lines, _)| *lines > 800)
        .map(|(lines, file)| format!("{}: {lines} lines", file.display()))
        .collect();
    assert!(long.is_empty(), "split these files: {}", long.join(", "));
}
