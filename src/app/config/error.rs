//! Errors of the configuration.

use std::fmt;

/// Names the key and its source. It contains no value, because a value may be a secret.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{source_name}: {reason}")]
pub struct ConfigError {
    source_name: String,
    reason: String,
}

pub(super) fn invalid(source: impl fmt::Display, reason: impl Into<String>) -> ConfigError {
    ConfigError { source_name: source.to_string(), reason: reason.into() }
}
