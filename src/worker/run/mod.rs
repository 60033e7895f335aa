//! Drives one claimed run from its loading to its end. Must not know how runs are claimed.

pub(super) mod attempt;
pub(super) mod driver;
pub(super) mod ending;
pub(super) mod run_metrics;
