//! Errors of the configuration.

use std::fmt;

/// Messages name the key and its source, never a value: it may be a secret.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConfigError {
    #[error("{source_name}: {reason}")]
    Invalid { source_name: String, reason: String },
    #[error("cannot read the configuration file {path}: {reason}")]
    Unreadable { path: String, reason: String },
}

pub(super) fn invalid(source: impl fmt::Display, reason: impl Into<String>) -> ConfigError {
    ConfigError::Invalid { source_name: source.to_string(), reason: reason.into() }
}
