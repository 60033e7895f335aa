//! Shared parts of tests that measure: the amount of work, and the results.

use super::setting;

/// How much of it: `usual` in the suite, another number by a variable for those who measure.
pub fn size(variable: &str, usual: usize) -> usize {
    setting(variable).map_or(usual, |given| given.parse().unwrap())
}

/// The least value that so many percent of all are not above.
pub fn percentile<T: Ord + Copy>(values: &[T], percent: usize) -> T {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted[(sorted.len() * percent).div_ceil(100).max(1) - 1]
}

#[test]
fn percentile_is_the_least_that_covers() {
    let values: Vec<u32> = (1..=200).rev().collect();
    assert_eq!((percentile(&values, 50), percentile(&values, 99), percentile(&values, 100)), (100, 198, 200));
    assert_eq!(percentile(&[7], 50), 7);
}
