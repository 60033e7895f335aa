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
