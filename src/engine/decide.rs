//! The transition function.

use super::{Decision, Input, RunState, Surroundings};

/// What follows from `input` in `state`. Pure; never panics, whatever order inputs come in: an input that makes no sense in a
/// state gives an empty decision.
#[must_use]
pub fn decide(_state: &RunState, _input: Input, _surroundings: &Surroundings<'_>) -> Decision {
    Decision::default()
}
