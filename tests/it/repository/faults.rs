//! Every row of the fault catalogues has a test that names it.

use std::collections::{BTreeMap, BTreeSet};

use super::{files, read};

/// A catalogue: the letter of its rows, and their number.
const CATALOGUES: [(char, u32); 4] = [('D', 20), ('L', 48), ('M', 32), ('W', 20)];

/// Rows without a test, and why.
const WITHOUT_TEST: &[(&str, &str)] = &[];

#[test]
fn every_fault_is_played() {
    let mut named: BTreeMap<char, BTreeSet<u32>> = BTreeMap::new();
    for file in files("tests", "rs").into_iter().chain(files("src", "rs")).filter(|file| !file.ends_with("repository/faults.rs")) {
        let code = read(&file);
        for (letter, _) in CATALOGUES {
            named.entry(letter).or_default().extend(rows_of_tests(letter, &code));
        }
    }
    let all = CATALOGUES.into_iter().flat_map(|(letter, rows)| (1..=rows).map(move |row| (letter, row)));
    let (played, silent): (Vec<_>, Vec<_>) = all.partition(|(letter, row)| named[letter].contains(row));
    let name = |(letter, row): (char, u32)| format!("{letter}-{row:02}");
    let excused: Vec<&str> = WITHOUT_TEST.iter().map(|(row, _)| *row).collect();
    assert_eq!(silent.into_iter().map(name).collect::<Vec<_>>(), excused, "the rows that no test names are those with a reason");
    assert!(played.len() > 100);
}

/// Returns the rows in the comments directly above tests, among their attributes. A comment elsewhere does not count.
fn rows_of_tests(letter: char, code: &str) -> BTreeSet<u32> {
    let (mut named, mut above) = (BTreeSet::new(), BTreeSet::new());
    let (mut is_test, mut in_attribute, mut in_contract) = (false, false, false);
    for line in code.lines().map(str::trim) {
        let begins = line.starts_with("#[");
        if begins || in_attribute {
            is_test |= begins && ["test]", "test("].iter().any(|mark| line.contains(mark)) && !line.starts_with("#[cfg");
            // Code after an attribute on its line, such as an argument, is not part of the attribute.
            in_attribute = if begins { line.matches('[').count() > line.matches(']').count() } else { !line.ends_with(']') };
        } else if line.starts_with("//") {
            above.extend(rows(letter, line));
        } else {
            // An entry in a contract's list is a test of each store.
            in_contract = line == "contract! {" || in_contract && line != "}";
            if in_contract || is_test && ["fn ", "async fn "].iter().any(|word| line.starts_with(word)) {
                named.append(&mut above);
            }
            above.clear();
            is_test = false;
        }
    }
    named
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
    assert_eq!(rows_of_tests('W', code), [12, 13].into());
}
