//! Tests are called `subject_condition_outcome`: short, and with the words of the glossary.

use super::tests_of::tests_of;
use super::{files, read};

/// The most characters of a name.
const LONGEST: usize = 60;

/// Words that hide who or what acts, or that the glossary replaces.
const BANNED: [&str; 12] =
    ["nobody", "somebody", "anybody", "everybody", "whoever", "whomever", "whatever", "people", "thing", "things", "anew", "told"];

/// Words that begin a name without its subject.
const OPENINGS: [&str; 7] = ["what", "who", "whose", "one", "those", "it", "its"];

/// Returns the rule that a name breaks.
fn broken_rule(name: &str) -> Option<String> {
    if name.len() > LONGEST {
        return Some(format!("{} characters", name.len()));
    }
    let words: Vec<&str> = name.split('_').collect();
    if let Some(opening) = OPENINGS.iter().find(|opening| words.first() == Some(opening)) {
        return Some(format!("begins with `{opening}`"));
    }
    words.iter().find(|word| BANNED.contains(word)).map(|word| format!("`{word}`"))
}

#[test]
fn test_names_follow_the_rules() {
    let mut found = Vec::new();
    for file in files("src", "rs").into_iter().chain(files("tests/it", "rs")).filter(|file| !file.ends_with("repository/faults.rs"))
    {
        for test in tests_of(&read(&file)) {
            found.extend(broken_rule(&test.name).map(|rule| format!("{}: {}: {rule}", file.display(), test.name)));
        }
    }
    assert!(found.is_empty(), "rename to subject_condition_outcome:\n{}", found.join("\n"));
}

#[test]
fn rules_of_test_names_are_applied() {
    assert_eq!(broken_rule("empty_tool_result_is_sent_as_placeholder"), None);
    assert_eq!(broken_rule("what_is_sent_is_kept"), Some("begins with `what`".to_owned()));
    assert_eq!(broken_rule("slow_reader_harms_nobody"), Some("`nobody`".to_owned()));
    assert_eq!(broken_rule(&"a".repeat(61)), Some("61 characters".to_owned()));
}
