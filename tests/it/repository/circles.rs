//! Imports between the files of one top-level module of `src` form no circle of more than two files.
//!
//! A file of a circle cannot be read, tested or moved without the others. A re-export counts as an import of the file that
//! defines the item, so that a `mod.rs` does not hide a circle.

use std::collections::{BTreeMap, BTreeSet};

use super::{files, read};

/// Circles of more than two files that still exist: the top-level module, and the number of files. This list may only shrink.
const ALLOWED: &[(&str, usize)] = &[];

/// Segments of a path below `crate`.
type ModulePath = Vec<String>;

/// One file of a top-level module.
struct SourceFile {
    name: String,
    /// Its code without comments, tests and re-exports.
    code: String,
    is_mod_rs: bool,
    /// Names that it re-exports, with their paths below this file.
    reexports: BTreeMap<String, ModulePath>,
}

fn is_ident(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn segments(path: &str) -> ModulePath {
    path.split("::").map(|segment| segment.split(" as ").next().unwrap().trim().to_owned()).filter(|s| !s.is_empty()).collect()
}

/// Lists the paths of a `use` tree such as `a::{b, c::{self, d}}`.
fn expand(prefix: &[String], tree: &str, paths: &mut Vec<ModulePath>) {
    let Some(open) = tree.find('{') else {
        return paths.push(prefix.iter().cloned().chain(segments(tree)).collect());
    };
    let head: ModulePath = prefix.iter().cloned().chain(segments(&tree[..open])).collect();
    let inner = &tree[open + 1..tree.rfind('}').unwrap_or(tree.len())];
    let (mut depth, mut start) = (0, 0);
    for (at, c) in inner.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                expand(&head, &inner[start..at], paths);
                start = at + 1;
            }
            _ => {}
        }
    }
    if !inner[start..].trim().is_empty() {
        expand(&head, &inner[start..], paths);
    }
}

/// Splits code into its `use` trees that begin with `keyword`, and the rest.
fn take_uses(code: &str, keyword: &str) -> (Vec<String>, String) {
    let (mut trees, mut rest, mut from) = (Vec::new(), String::new(), 0);
    while let Some(at) = code[from..].find(keyword).map(|at| from + at) {
        let end = code[at..].find(';').map_or(code.len(), |end| at + end);
        // The keyword may be part of other text: an item begins its line.
        let is_item = code[..at].rsplit('\n').next().unwrap().trim().is_empty();
        if is_item {
            rest.push_str(&code[from..at]);
            trees.push(code[at + keyword.len()..end].to_owned());
        } else {
            rest.push_str(&code[from..at + keyword.len()]);
        }
        from = if is_item { end } else { at + keyword.len() };
    }
    rest.push_str(&code[from..]);
    (trees, rest)
}

/// Lists the qualified paths of code that begin with one of `heads`, such as `super::name::Type`.
fn qualified_paths(code: &str, heads: &[String]) -> Vec<ModulePath> {
    let mut paths = Vec::new();
    for head in heads {
        for (at, _) in code.match_indices(&format!("{head}::")) {
            let before = code[..at].chars().next_back();
            if before.is_none_or(|c| !is_ident(c) && c != ':') {
                let path: String = code[at..].chars().take_while(|c| is_ident(*c) || *c == ':').collect();
                paths.push(segments(&path));
            }
        }
    }
    paths
}

/// Returns the files of a top-level module by their module paths.
fn source_files(module: &str) -> BTreeMap<ModulePath, SourceFile> {
    let mut found = BTreeMap::new();
    for file in files(&format!("src/{module}"), "rs") {
        let name = file.to_str().unwrap().to_owned();
        if name.contains("test") {
            continue;
        }
        let mut path: ModulePath = name.trim_start_matches("src/").trim_end_matches(".rs").split('/').map(str::to_owned).collect();
        let is_mod_rs = path.last().is_some_and(|last| last == "mod");
        if is_mod_rs {
            path.pop();
        }
        let code = read(&file);
        let code = code.split("#[cfg(test)]\nmod tests").next().unwrap();
        let code: String = code.lines().map(|line| format!("{}\n", line.split("//").next().unwrap())).collect();
        let (mut code, mut reexports) = (code, BTreeMap::new());
        for keyword in ["pub use ", "pub(crate) use ", "pub(super) use "] {
            let (trees, rest) = take_uses(&code, keyword);
            code = rest;
            let mut paths = Vec::new();
            for tree in trees {
                if is_mod_rs && !tree.starts_with("crate") && !tree.starts_with("super") {
                    expand(&[], &tree, &mut paths);
                } else {
                    code.push_str(&format!("\nuse {tree};"));
                }
            }
            let paths = paths.into_iter().map(|path| path.into_iter().skip_while(|head| head == "self").collect::<ModulePath>());
            reexports.extend(paths.filter_map(|path| Some((path.last()?.clone(), path))));
        }
        found.insert(path, SourceFile { name, code, is_mod_rs, reexports });
    }
    found
}

/// Finds the file that a path below `crate` leads to, through re-exports.
fn file_of(files: &BTreeMap<ModulePath, SourceFile>, mut path: ModulePath) -> Option<ModulePath> {
    for _ in 0..8 {
        let length = (1..=path.len()).rev().find(|length| files.contains_key(&path[..*length]))?;
        let file = path[..length].to_vec();
        let Some(target) = path.get(length).and_then(|name| files[&file].reexports.get(name)) else { return Some(file) };
        path = file.iter().chain(target).chain(&path[length + 1..]).cloned().collect();
    }
    None
}

/// Returns the files that `file` imports from its own top-level module.
fn imports(files: &BTreeMap<ModulePath, SourceFile>, path: &ModulePath) -> BTreeSet<ModulePath> {
    let file = &files[path];
    let children: Vec<String> = match file.is_mod_rs {
        true => files
            .keys()
            .filter(|child| child.len() == path.len() + 1 && child.starts_with(path))
            .map(|child| child[path.len()].clone())
            .collect(),
        false => Vec::new(),
    };
    let (trees, rest) = take_uses(&file.code, "use ");
    let mut paths = Vec::new();
    for tree in &trees {
        expand(&[], tree.trim(), &mut paths);
    }
    let heads: Vec<String> = ["crate", "super", "self"].into_iter().map(str::to_owned).chain(children.clone()).collect();
    paths.extend(qualified_paths(&rest, &heads));
    let absolute = paths.into_iter().filter_map(|segments| {
        let mut base = path.clone();
        let mut rest = &segments[..];
        match rest.first()?.as_str() {
            "crate" => {
                base.clear();
                rest = &rest[1..];
            }
            "self" => rest = &rest[1..],
            "super" => {
                while rest.first().is_some_and(|head| head == "super") {
                    base.pop();
                    rest = &rest[1..];
                }
            }
            head => {
                children.iter().find(|child| *child == head)?;
            }
        }
        Some(base.iter().chain(rest).cloned().collect())
    });
    absolute.filter_map(|absolute| file_of(files, absolute)).filter(|target| target != path).collect()
}

/// Returns the circles of more than two files among `imports`: groups in which each file reaches each other one.
fn circles(imports: &BTreeMap<ModulePath, BTreeSet<ModulePath>>) -> Vec<BTreeSet<ModulePath>> {
    let reached = |start: &ModulePath| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![start]);
        while let Some(file) = open.pop() {
            open.extend(imports[file].iter().filter(|next| seen.insert((*next).clone())));
        }
        seen
    };
    let reach: BTreeMap<_, _> = imports.keys().map(|file| (file, reached(file))).collect();
    let circle_of = |file: &ModulePath| reach[file].iter().filter(|other| reach[other].contains(file)).cloned().collect();
    let all: BTreeSet<BTreeSet<ModulePath>> = imports.keys().map(circle_of).collect();
    all.into_iter().filter(|circle| circle.len() > 2).collect()
}

#[test]
fn imports_form_no_circle_above_two_files() {
    let modules: BTreeSet<String> = files("src", "rs")
        .iter()
        .filter_map(|file| file.to_str()?.strip_prefix("src/")?.split_once('/').map(|(module, _)| module.to_owned()))
        .collect();
    assert!(modules.len() > 10, "the modules were found: {modules:?}");
    let (mut found, mut told) = (Vec::new(), Vec::new());
    for module in &modules {
        let files = source_files(module);
        let graph = files.keys().map(|path| (path.clone(), imports(&files, path))).collect();
        for circle in circles(&graph) {
            let names: Vec<_> = circle.iter().map(|path| files[path].name.as_str()).collect();
            told.push(format!("{module}: {} files import each other: {}", names.len(), names.join(" ")));
            found.push((module.as_str(), names.len()));
        }
    }
    found.sort_unstable();
    let mut allowed = ALLOWED.to_vec();
    allowed.sort_unstable();
    assert_eq!(found, allowed, "break the new circle, or shrink ALLOWED to the remaining ones:\n{}", told.join("\n"));
}

#[test]
fn use_trees_are_expanded() {
    let mut paths = Vec::new();
    expand(&[], "crate::a::{self, b as c, d::{E, F}}", &mut paths);
    let paths: Vec<String> = paths.iter().map(|path| path.join("::")).collect();
    assert_eq!(paths, ["crate::a::self", "crate::a::b", "crate::a::d::E", "crate::a::d::F"]);
}

#[test]
fn circle_of_three_is_found_and_one_of_two_is_not() {
    let path = |name: &str| vec![name.to_owned()];
    let graph = |edges: &[(&str, &str)]| {
        let mut graph: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for (from, to) in edges {
            graph.entry(path(to)).or_default();
            graph.entry(path(from)).or_default().insert(path(to));
        }
        graph
    };
    assert_eq!(circles(&graph(&[("a", "b"), ("b", "a"), ("b", "c")])), []);
    let found = circles(&graph(&[("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")]));
    assert_eq!(found, [["a", "b", "c"].map(path).into_iter().collect::<BTreeSet<_>>()]);
}
