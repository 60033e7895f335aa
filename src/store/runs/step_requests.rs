//! The requests of model steps: the values.

use crate::domain::run::StepRequest;

#[derive(Debug, Clone, PartialEq)]
pub enum StepRequestOutcome {
    /// Boxed, because it is much larger than the others.
    Request(Box<StepRequest>),
    /// The run is missing or belongs to another owner.
    NoRun,
    /// The run has no such step, or it is no model step.
    NoStep,
    /// The newest attempt of the step has no record.
    NotRecorded,
}
