//! Documents that a reader relies on name everything that exists, and nothing else.

use std::collections::BTreeSet;
use std::path::PathBuf;

use capstan::app::config::{self, Environment};
use capstan::domain::problem::{ProblemCode, ProblemScope};

use super::{files, read};

#[test]
fn every_error_code_has_a_page() {
    let codes: BTreeSet<String> = ProblemCode::ALL.iter().map(|code| code.as_str().to_owned()).collect();
    let pages: BTreeSet<String> =
        files("docs/errors", "md").iter().map(|file| file.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    let pages = &pages - &BTreeSet::from(["README".to_owned()]);
    assert_eq!(pages, codes);
    for code in ProblemCode::ALL {
        let page = read(format!("docs/errors/{}.md", code.as_str()));
        assert!(page.starts_with(&format!("# {}\n", code.as_str())), "{}: wrong heading", code.as_str());
        let retryable = if code.retryable() { "retryable" } else { "not retryable" };
        let found = match code.found_in() {
            ProblemScope::Requests => "requests",
            ProblemScope::Runs => "runs",
            ProblemScope::Both => "requests and runs",
        };
        let facts = format!("{}. HTTP {}, {retryable}. Found in {found}.\n", code.title(), code.status());
        for words in [&*facts, "## What it means", "## What to do"] {
            assert!(page.contains(words), "{}: the page should say {words:?}", code.as_str());
        }
    }
}

#[test]
fn error_index_agrees_with_the_codes() {
    let index = read("docs/errors/README.md");
    let rows: Vec<&str> = index.lines().filter(|line| line.starts_with("| [`")).collect();
    assert_eq!(rows.len(), ProblemCode::ALL.len());
    for (row, code) in rows.iter().zip(ProblemCode::ALL) {
        let (word, retryable) = (code.as_str(), if code.retryable() { "yes" } else { "no" });
        let found = match code.found_in() {
            ProblemScope::Requests => "request",
            ProblemScope::Runs => "run",
            ProblemScope::Both => "request, run",
        };
        let facts = format!("| [`{word}`]({word}.md) | {} | {found} | {retryable} | {}", code.status(), code.title());
        assert!(row.starts_with(&facts), "{row} should begin with {facts}");
    }
}

#[test]
fn error_pages_of_runs_say_whether_resuming_helps() {
    for code in ProblemCode::ALL {
        let page = read(format!("docs/errors/{}.md", code.as_str()));
        let section = page.split_once("## Resuming the run\n\n").map(|(_, section)| section);
        let beginning = match code.retryable() {
            true => "`POST /api/v1/runs/{id}/resume` can help: ",
            false => "`POST /api/v1/runs/{id}/resume` does not help until ",
        };
        match section {
            Some(section) => assert!(code.found_in().runs() && section.starts_with(beginning), "{}: {section}", code.as_str()),
            None => assert!(!code.found_in().runs(), "{}: the page should say whether resuming helps", code.as_str()),
        }
    }
}

#[test]
fn settings_page_is_what_the_command_prints() {
    let page = config::reference().unwrap();
    assert!(read("docs/reference/settings.md") == page, "run `make settings`, after a change in src/app/config/reference.md");
}

#[test]
fn every_setting_is_explained() {
    let loaded = config::load(None, &Environment::default(), &[]).unwrap();
    let page = read("docs/reference/settings.md");
    let mut section = String::new();
    for line in config::show(&loaded).lines() {
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']').to_owned();
        } else if let Some((key, _)) = line.split_once(" = ") {
            assert!(page.contains(&format!("`{section}.{key}`")), "docs/reference/settings.md should explain `{section}.{key}`");
        }
    }
}

#[test]
fn every_documented_variable_is_accepted() {
    let pages = files("docs", "md").into_iter().chain(["README.md", "docker/compose.yaml", "CONTRIBUTING.md"].map(Into::into));
    let mut names = BTreeSet::new();
    for page in pages {
        let text = read(&page);
        for (at, _) in text.match_indices("CAPSTAN_") {
            let name: String = text[at..].chars().take_while(|c| c.is_ascii_uppercase() || *c == '_').collect();
            // Beginnings of names and the scheme of the long ones are no names.
            if !name.ends_with('_') && !name.contains("__") {
                names.insert(name);
            }
        }
    }
    assert!(names.contains("CAPSTAN_ADMIN_KEY"), "{names:?}");
    // `docs/guarantees.md` names those of the long forms of tests.
    let tests: String =
        files("tests/it/e2e", "rs").into_iter().chain(files("tests/it/store", "rs")).map(|file| read(&file)).collect();
    names.retain(|name| !tests.contains(&format!("size(\"{name}\"")) && !tests.contains(&format!("setting(\"{name}\"")));
    for name in names {
        let environment = Environment::from_iter([(name.as_str(), "x")]);
        let refused = config::load(None, &environment, &[]).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(!refused.contains("this setting does not exist"), "{refused}");
    }
}

#[test]
fn every_metric_is_described() {
    let described = read("src/app/process/telemetry.rs");
    let page = read("docs/reference/metrics.md");
    let mut emitted = BTreeSet::new();
    for file in files("src", "rs").into_iter().filter(|file| !file.ends_with("telemetry.rs")) {
        let code = read(&file);
        for macro_name in ["counter!(", "gauge!(", "histogram!("] {
            for (at, _) in code.match_indices(macro_name) {
                let rest = code[at + macro_name.len()..].trim_start();
                let name = rest.trim_start_matches('"').split('"').next().unwrap();
                emitted.insert(name.to_owned());
            }
        }
    }
    for name in &emitted {
        assert!(described.contains(&format!("\"{name}\"")), "src/app/process/telemetry.rs should describe {name}");
        assert!(page.contains(&format!("`{name}`")), "docs/reference/metrics.md should explain {name}");
    }
    let described: BTreeSet<String> =
        described.match_indices("\"capstan_").map(|(at, _)| described[at + 1..].split('"').next().unwrap().to_owned()).collect();
    let silent: Vec<_> = described.difference(&emitted).collect();
    assert!(silent.is_empty(), "described, and emitted nowhere: {silent:?}");
}

#[test]
fn every_test_that_an_ancestor_page_names_exists() {
    let sources: String = ["src", "tests/it"].iter().flat_map(|folder| files(folder, "rs")).map(|file| read(&file)).collect();
    let pages: String = files("docs/ancestors", "md").into_iter().map(read).collect();
    let rows = pages.lines().filter(|line| line.starts_with("| "));
    let shown = rows.filter_map(|row| row.trim_end_matches(" |").rsplit(" | ").next());
    let names: BTreeSet<&str> = shown.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    assert!(names.len() > 40, "{names:?}");
    for name in names {
        assert!(sources.contains(&format!("fn {name}(")), "a page of docs/ancestors names a test that is not there: {name}");
    }
}

/// Returns the anchors of a page's headings, as GitHub makes them.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = outside_code(page).filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    headings
        .map(|heading| {
            let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
            kept.collect::<String>().to_lowercase().replace(' ', "-")
        })
        .collect()
}

fn outside_code(page: &str) -> impl Iterator<Item = &str> {
    page.split("```").step_by(2).flat_map(str::lines)
}

#[test]
fn every_link_between_documents_leads_to_a_heading() {
    let pages = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "migrations/README.md"].map(PathBuf::from);
    let mut dead = Vec::new();
    for page in pages.into_iter().chain(files("docs", "md")) {
        let text = read(&page);
        for target in outside_code(&text).flat_map(|line| line.split("](").skip(1)).filter_map(|rest| rest.split(')').next()) {
            if target.contains("://") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let folder = page.parent().unwrap();
            let path = if file.is_empty() { page.clone() } else { folder.join(file) };
            let exists = super::root().join(&path).exists();
            if !exists || (!anchor.is_empty() && !anchors(&read(&path)).contains(anchor)) {
                dead.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(dead.is_empty(), "these links lead nowhere:\n{}", dead.join("\n"));
}
