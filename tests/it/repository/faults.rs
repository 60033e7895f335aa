//! Every row of `docs/faults.md` has a test that names it, and tests name no other faults.

use std::collections::BTreeSet;

use super::tests_of::tests_of;
use super::{files, read};

/// The letters of the tables whose rows need a test.
const CATALOGUES: [char; 5] = ['D', 'L', 'M', 'S', 'W'];

#[test]
fn every_fault_of_the_page_has_a_test() {
    let sources = files("tests", "rs").into_iter().chain(files("src", "rs")).filter(|file| !file.ends_with("repository/faults.rs"));
    let code: Vec<String> = sources.map(read).collect();
    let page = read("docs/faults.md");
    for letter in CATALOGUES {
        let explained: BTreeSet<u32> =
            page.lines().filter_map(|line| line.strip_prefix(&format!("| {letter}-"))?.split(' ').next()?.parse().ok()).collect();
        let named: BTreeSet<u32> = code.iter().flat_map(|code| rows_of_tests(letter, code)).collect();
        assert!(
            !explained.is_empty() && explained == named,
            "{letter}: docs/faults.md has {explained:?}, and tests name {named:?}"
        );
    }
}

/// A number of a list that is not part of the repository explains nothing.
#[test]
fn comments_name_no_number_of_an_unknown_list() {
    let page = read("docs/faults.md");
    for file in files("tests", "rs").into_iter().chain(files("src", "rs")) {
        for line in read(&file).lines() {
            let Some((_, comment)) = line.split_once("// ") else { continue };
            let number: &str = comment.split([' ', ':', '.', ',']).next().unwrap();
            let digits = number.strip_prefix(|letter: char| letter.is_ascii_uppercase()).unwrap_or_default();
            let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            let is_explained = [' ', ':'].iter().any(|end| page.contains(&format!("\n- {number}{end}")));
            assert!(!is_number || is_explained, "{file:?} names {number}, which docs/faults.md does not explain: {line}");
        }
    }
}

/// Returns the rows in the comments directly above tests. A comment elsewhere does not count.
fn rows_of_tests(letter: char, code: &str) -> BTreeSet<u32> {
    tests_of(code).iter().flat_map(|test| &test.comments).flat_map(|line| rows(letter, line)).collect()
}

/// Returns the rows that a line names, including ranges such as L-24 to L-29.
fn rows(letter: char, line: &str) -> BTreeSet<u32> {
    let mut named = BTreeSet::new();
    let mark = format!("{letter}-");
    for (at, _) in line.match_indices(&mark) {
        let number: String = line[at + 2..].chars().take_while(char::is_ascii_digit).collect();
        let Ok(first) = number.parse::<u32>() else { continue };
        let rest = line[at + 2 + number.len()..].strip_prefix(&format!(" to {mark}")).unwrap_or_default();
        let last: String = rest.chars().take_while(char::is_ascii_digit).collect();
        named.extend(first..=last.parse().unwrap_or(first));
    }
    named
}

#[test]
fn only_what_stands_above_a_test_counts() {
    let code = r#"
// L-01
const NOTHING: u32 = 1;

contract! {
    // L-11
    one,
    two,
    ;
    /// W-12, L-13
    three,
}

// W-13
#[rstest]
#[case(1)]
fn with_arguments(
    #[case] one: u32,
) {}

// L-02, L-04 to L-06: what a test plays.
#[rstest]
#[case(
    // L-07
    "x]y"
)]
#[tokio::test(flavor = "multi_thread")]
async fn a_test() {
    // L-03
}

/// L-08
#[cfg(test)]
mod tests {
    /// L-09
    #[test]
    fn another() {}

    /// L-10
    fn help() {}
}
"#;
    assert_eq!(rows_of_tests('L', code), [2, 4, 5, 6, 9, 11, 13].into());
    assert_eq!(tests_of(code)[0].name, "one");
    assert_eq!(rows_of_tests('W', code), [12, 13].into());
}
