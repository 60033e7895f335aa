//! Builds requests that every provider accepts.

use super::RunState;
use crate::domain::model::{ModelOptions, ModelRequest};

/// The request of the current model step: system prompt, sendable history, tools on offer.
#[must_use]
pub fn model_request(state: &RunState) -> ModelRequest {
    ModelRequest {
        model: state.record.profile.model.clone(),
        system: String::new(),
        messages: Vec::new(),
        tools: Vec::new(),
        options: ModelOptions::default(),
    }
}
