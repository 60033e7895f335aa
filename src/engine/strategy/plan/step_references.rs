//! References to other steps in the description of a step.

use crate::support::search_words::words;

const COUNTED: [&str; 10] = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"];
const ORDERED: [&str; 10] = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"];

/// Returns whether a description refers to the step with the index `at`. Descriptions count steps from 1, such as "step 2", "steps
/// 1, 2 and 3", "steps 1-3", "step two" or "the second step".
pub(super) fn names_step(description: &str, at: usize) -> bool {
    let step_number = at.saturating_add(1);
    let description_words = words(&description.replace(['-', '\u{2013}', '\u{2014}'], " to "));
    (0..description_words.len()).any(|position| {
        let Some(rest) = description_words[position].strip_prefix("step") else { return false };
        match rest.strip_prefix('s').unwrap_or(rest) {
            "" => {
                lists(description_words[position + 1..].iter(), counted, step_number)
                    || lists(description_words[..position].iter().rev(), ordered, step_number)
            }
            number => number.parse() == Ok(step_number),
        }
    })
}

/// Returns whether these words begin with a list of numbers, such as "1, 2 and 4 to 6", that includes `step_number`.
fn lists<'w>(description_words: impl Iterator<Item = &'w String>, number: fn(&str) -> Option<usize>, step_number: usize) -> bool {
    let (mut last, mut is_range) = (None, false);
    for word in description_words {
        match word.as_str() {
            "and" | "or" | "no" | "nr" | "number" | "numbers" => {}
            "to" | "through" => is_range = true,
            word => {
                let Some(this) = number(word) else { return false };
                let other = last.filter(|_| is_range).unwrap_or(this);
                if (this.min(other)..=this.max(other)).contains(&step_number) {
                    return true;
                }
                (last, is_range) = (Some(this), false);
            }
        }
    }
    false
}

fn counted(word: &str) -> Option<usize> {
    word.parse().ok().or_else(|| place_of(word, &COUNTED))
}

fn ordered(word: &str) -> Option<usize> {
    let digits = ["st", "nd", "rd", "th"].iter().find_map(|end| word.strip_suffix(end));
    digits.and_then(|digits| digits.parse().ok()).or_else(|| place_of(word, &ORDERED))
}

fn place_of(word: &str, all: &[&str]) -> Option<usize> {
    all.iter().position(|known| *known == word).map(|at| at + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("move what step 2 has found", &[2])]
    #[case("the result of step2, and of Step #3", &[2, 3])]
    #[case("join steps 1 and 2", &[1, 2])]
    #[case("join step 1 and 2", &[1, 2])]
    #[case("sum up steps 1, 2 and 4", &[1, 2, 4])]
    #[case("sum up steps 1, 2, & 4", &[1, 2, 4])]
    #[case("sum up steps 1-3", &[1, 2, 3])]
    #[case("sum up steps 2 to 4 or step 6", &[2, 3, 4, 6])]
    #[case("write step one's result into a.txt", &[1])]
    #[case("compare the first and third steps", &[1, 3])]
    #[case("use the 2nd step", &[2])]
    #[case("step number 5", &[5])]
    #[case("step-1", &[1])]
    #[case("move 1 and 2 to step/3.png", &[3])]
    #[case("move step 1 to 20 folders", &[1, 2, 3, 4, 5, 6, 7, 8, 9])]
    #[case("go one step further, then move 2 files", &[])]
    #[case("read stepped.txt 1", &[])]
    #[case("steps 99999999999999999999 and none", &[])]
    #[case("", &[])]
    fn steps_are_named_in_many_ways(#[case] description: &str, #[case] expected: &[usize]) {
        let named: Vec<usize> = (0..9).filter(|at| names_step(description, *at)).map(|at| at + 1).collect();
        assert_eq!(named, expected, "{description}");
    }

    proptest! {
        #[test]
        fn any_list_is_read(numbers in prop::collection::vec(1..30_usize, 1..6), joint in prop_oneof![Just(", "), Just(" and "), Just(" & ")]) {
            let list = numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(joint);
            for at in 0..30 {
                prop_assert_eq!(names_step(&format!("use steps {list}."), at), numbers.contains(&(at + 1)));
            }
        }
    }
}
