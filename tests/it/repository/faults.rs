//! Every row of the catalogue of what model providers do wrong has a test that names it.

use std::collections::BTreeSet;

use super::{files, read};

/// The rows of the catalogue: L-01 to L-48.
const ROWS: u32 = 48;

#[test]
fn every_fault_of_model_providers_is_played() {
    let mut named = BTreeSet::new();
    for file in files("tests", "rs").into_iter().chain(files("src", "rs")).filter(|file| !file.ends_with("faults.rs")) {
        named.extend(rows_of_tests(&read(&file)));
    }
    let silent: Vec<String> = (1..=ROWS).filter(|row| !named.contains(row)).map(|row| format!("L-{row:02}")).collect();
    assert!(silent.is_empty(), "no test names {silent:?}");
}

/// The rows that stand directly above tests, among their comments and attributes. A comment anywhere else is no test.
fn rows_of_tests(code: &str) -> BTreeSet<u32> {
    let (mut named, mut above) = (BTreeSet::new(), BTreeSet::new());
    let (mut is_test, mut in_attribute) = (false, false);
    for line in code.lines().map(str::trim) {
        let begins = line.starts_with("#[");
        if begins || in_attribute {
            is_test |= begins && ["test]", "test("].iter().any(|mark| line.contains(mark)) && !line.starts_with("#[cfg");
            in_attribute = !line.ends_with(']');
        } else if line.starts_with("//") {
            above.extend(rows(line));
        } else {
            if is_test && ["fn ", "async fn "].iter().any(|word| line.starts_with(word)) {
                named.append(&mut above);
            }
            above.clear();
            is_test = false;
        }
    }
    named
}

/// The rows that a line names, ranges such as L-24 to L-29 included.
fn rows(line: &str) -> BTreeSet<u32> {
    let mut named = BTreeSet::new();
    for (at, _) in line.match_indices("L-") {
        let number: String = line[at + 2..].chars().take_while(char::is_ascii_digit).collect();
        let Ok(first) = number.parse::<u32>() else { continue };
        let rest = line[at + 2 + number.len()..].strip_prefix(" to L-").unwrap_or_default();
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
    assert_eq!(rows_of_tests(code), [2, 4, 5, 6, 9].into());
}
