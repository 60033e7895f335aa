//! Errors in agent profiles, and a check that several parts of a profile share.

/// An error in a profile: the field, with `/` between its parts, and the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct InvalidProfile {
    pub field: String,
    pub reason: String,
}

pub(super) fn invalid(field: impl Into<String>, reason: impl Into<String>) -> InvalidProfile {
    InvalidProfile { field: field.into(), reason: reason.into() }
}

impl InvalidProfile {
    /// Prefixes the field with the name of the outer field.
    pub(super) fn within(self, outer: &str) -> Self {
        Self { field: format!("{outer}/{}", self.field), ..self }
    }
}

pub(super) const MODEL_FORM: &str = "models are written provider/name, such as openai/gpt-5-mini";

/// Returns whether a model is written `provider/name`.
pub fn is_model(model: &str) -> bool {
    model.split_once('/').is_some_and(|(provider, name)| !provider.is_empty() && !name.is_empty())
}
