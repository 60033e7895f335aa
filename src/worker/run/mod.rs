//! Drives one claimed run from its loading to its end.

pub(super) mod attempt;
pub(super) mod driver;
pub(super) mod ending;
pub(super) mod figures;
pub(super) mod profiles;
