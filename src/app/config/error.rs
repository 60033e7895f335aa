//! Errors of the configuration.

use std::fmt;

/// Why there are no settings. Messages name the key and its source, never a value: it may be a secret.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConfigError {
    /// A key or value that cannot be used.
    #[error("{source_name}: {reason}")]
    Invalid {
        /// File, variable or flag.
        source_name: String,
        /// The reason, and the way out.
        reason: String,
    },
    /// A file that was asked for and cannot be read.
    #[error("cannot read the configuration file {path}: {reason}")]
    Unreadable {
        /// The file.
        path: String,
        /// Why.
        reason: String,
    },
}

pub(super) fn invalid(source: impl fmt::Display, reason: impl Into<String>) -> ConfigError {
    ConfigError::Invalid { source_name: source.to_string(), reason: reason.into() }
}
