//! The agent or model that a request names as its `model`.

use crate::domain::problem::{ProblemBody, ProblemCode};
use crate::http::wire::problem::Problem;

/// The agent and the model of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub agent: Option<String>,
    pub model: Option<String>,
}

impl Target {
    /// Reads the `model` of a request: a name with a slash is a model, any other name is an agent.
    pub(super) fn of(name: &str) -> Self {
        let (agent, model) = match name {
            "" => (None, None),
            name if name.contains('/') => (None, Some(name.to_owned())),
            name => (Some(name.to_owned()), None),
        };
        Self { agent, model }
    }

    /// Returns whether the request names a model, which runs without an agent's prompt and tools.
    pub(super) fn is_plain(&self) -> bool {
        self.model.is_some()
    }
}

/// Moves an error about the agent to the field `model`, because the request has no other field for it. Sets the status to 404.
pub(super) fn without_agent(Problem(mut problem): Problem) -> Problem {
    if problem.errors.iter().any(|error| error.pointer == "/agent") {
        let detail = format!("{}; GET /v1/models lists agents and models", problem.detail.split(';').next().unwrap_or_default());
        let mut errors = std::mem::take(&mut problem.errors);
        errors.iter_mut().for_each(|error| "/model".clone_into(&mut error.pointer));
        return ProblemBody { status: 404, errors, ..ProblemCode::UnknownModel.body(detail) }.into();
    }
    if problem.code == ProblemCode::UnknownModel.as_str() {
        problem.status = 404;
    }
    Problem(problem)
}
