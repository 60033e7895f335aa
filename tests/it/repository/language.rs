//! Documents and comments are in plain technical English, as CONTRIBUTING.md asks for.
//!
//! The rules are those that a program can check: words and openings that hide the subject of a sentence, and long sentences.

use super::{files, read};

/// Words that hide who or what acts.
const BANNED: [&str; 9] =
    ["whoever", "whomever", "nobody", "somebody", "anybody", "everybody", "whatever", "thereby", "in the place of"];

/// Openings that put the subject of a sentence at its end.
const OPENINGS: [&str; 9] = ["What", "Who", "Whoever", "Whatever", "Whose", "Nobody", "Somebody", "One that", "Those that"];

/// The most words in a sentence.
const LONGEST: usize = 40;

/// The most words in a sentence of the documents, on average over a page.
const LONGEST_MEAN: usize = 18;

/// The most source files in a folder of `src`.
const MOST_FILES: usize = 20;

/// Lines that may break a rule: the file, a part of the line, and the reason. This list may only shrink.
const ALLOWED: &[(&str, &str, &str)] = &[];

/// Replaces inline code, whose words are names.
fn without_code(text: &str) -> String {
    text.split('`').enumerate().map(|(index, piece)| if index % 2 == 0 { piece } else { "code" }).collect()
}

/// Returns the words of a text in lower case.
fn words(text: &str) -> Vec<String> {
    text.split(|c: char| !c.is_alphanumeric() && !"'-_".contains(c))
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect()
}

/// Splits a text into sentences. A colon, a semicolon and a cell of a table end one as well.
fn sentences(text: &str) -> Vec<&str> {
    text.split_inclusive(|c| ".!?:;|".contains(c)).map(str::trim).filter(|sentence| !sentence.is_empty()).collect()
}

/// Returns why a reader would stumble over a line.
fn stumbling(line: &str) -> Option<String> {
    let text = without_code(line);
    let padded = format!(" {} ", words(&text).join(" "));
    if let Some(word) = BANNED.iter().find(|word| padded.contains(&format!(" {word} "))) {
        return Some(format!("`{word}`"));
    }
    let starts = |sentence: &str, opening: &str| {
        let rest = sentence.strip_prefix(opening).and_then(|rest| rest.strip_prefix(' '));
        rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_lowercase()))
    };
    // The end of the sentence before belongs to its own piece.
    let mut found = sentences(&text).into_iter().filter_map(|sentence| OPENINGS.iter().find(|opening| starts(sentence, opening)));
    if let Some(opening) = found.next() {
        return Some(format!("begins with `{opening}`"));
    }
    sentences(&text).iter().any(|sentence| words(sentence).len() > LONGEST).then(|| format!("over {LONGEST} words"))
}

/// Lists the lines of prose of a file with their numbers: Markdown outside of code, and comments of everything else.
fn prose(name: &str, text: &str) -> Vec<(usize, String)> {
    let mut in_code = false;
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if name.ends_with(".md") {
            if line.trim_start().starts_with("```") {
                in_code = !in_code;
            } else if !in_code && !line.starts_with("    ") {
                lines.push((index + 1, line.to_owned()));
            }
            continue;
        }
        let line = line.trim_start();
        let markers = ["//!", "///", "//", "-- ", "# "];
        if let Some(comment) = markers.iter().find_map(|marker| line.strip_prefix(marker)) {
            lines.push((index + 1, comment.trim().to_owned()));
        }
    }
    lines
}

fn pages() -> Vec<String> {
    let pages = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(str::to_owned).into_iter();
    pages.chain(["docs", "migrations"].into_iter().flat_map(|folder| names(folder, "md"))).collect()
}

fn names(folder: &str, ending: &str) -> Vec<String> {
    files(folder, ending).iter().map(|file| file.to_str().unwrap().to_owned()).collect()
}

#[test]
fn prose_is_plain() {
    let folders = [("src", "rs"), ("tests/it", "rs"), ("fuzz/fuzz_targets", "rs"), ("fuzz/benches", "rs")];
    let sources = folders.into_iter().chain([
        ("migrations", "sql"),
        ("scripts", "sh"),
        ("src", "toml"),
        ("web/src", "ts"),
        ("web/src", "tsx"),
    ]);
    let all = pages().into_iter().chain(sources.flat_map(|(folder, ending)| names(folder, ending)));
    let mut found = Vec::new();
    for name in all.filter(|name| !name.ends_with("repository/language.rs") && !name.ends_with("/schema.d.ts")) {
        for (number, line) in prose(&name, &read(&name)) {
            let is_allowed = ALLOWED.iter().any(|(file, part, _)| *file == name && line.contains(part));
            if let Some(reason) = stumbling(&line).filter(|_| !is_allowed) {
                found.push(format!("{name}:{number}: {reason}: {line}"));
            }
        }
    }
    assert!(found.is_empty(), "say these sentences with a named subject, and shorter:\n{}", found.join("\n"));
}

#[test]
fn sentences_of_documents_are_short() {
    let mut found = Vec::new();
    for name in pages() {
        let lines = prose(&name, &read(&name));
        let text: String = lines.iter().map(|(_, line)| format!("{}\n", without_code(line))).collect();
        let blocks = text.split("\n\n").flat_map(|block| block.split("\n- ")).map(|block| block.replace('\n', " "));
        let lengths: Vec<usize> = blocks
            .flat_map(|block| sentences(&block).into_iter().map(|sentence| words(sentence).len()).collect::<Vec<_>>())
            .filter(|length| *length > 0)
            .collect();
        let mean = lengths.iter().sum::<usize>() / lengths.len().max(1);
        if mean > LONGEST_MEAN {
            found.push(format!("{name}: {mean} words a sentence"));
        }
    }
    assert!(found.is_empty(), "shorten the sentences of these pages:\n{}", found.join("\n"));
}

#[test]
fn folders_of_source_are_small() {
    let mut folders = std::collections::BTreeMap::<String, usize>::new();
    for file in files("src", "rs") {
        *folders.entry(file.parent().unwrap().to_str().unwrap().to_owned()).or_default() += 1;
    }
    folders.retain(|_, count| *count > MOST_FILES);
    assert!(folders.is_empty(), "group the files of these folders: {folders:?}");
}

#[test]
fn stumbling_lines_are_found() {
    assert_eq!(stumbling("The worker renews its lease."), None);
    assert_eq!(stumbling("What is kept is told."), Some("begins with `What`".to_owned()));
    assert_eq!(stumbling("It ends. Who asks gets 404."), Some("begins with `Who`".to_owned()));
    assert_eq!(stumbling("A key that nobody has."), Some("`nobody`".to_owned()));
    assert_eq!(stumbling("The word `nobody` is data."), None);
    assert_eq!(stumbling(&"word ".repeat(41)), Some("over 40 words".to_owned()));
}
