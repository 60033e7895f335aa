//! The requests of model steps: the values.

use crate::domain::enum_names::named_enum;

named_enum! {
    /// The reason why a step has no request, as the end of the sentence "no such ...".
    pub enum MissingStepRequest {
        /// The run is missing or belongs to another owner.
        Run = "run",
        /// The run has no such step, or it is no model step.
        Step = "model step in this run",
        /// The newest attempt of the step has no record.
        Record = "recorded request of this step; steps of copied runs and of earlier versions have none",
    }
}
