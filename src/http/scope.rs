//! The scope of a record that users keep: the caller's own, the server's, or the configuration's.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Whose a provider is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Scope {
    /// The caller's own.
    #[default]
    Own,
    /// The server's, for everybody's use.
    Global,
}

/// Where a provider is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ShownScope {
    /// The caller's own.
    Own,
    /// The server's, for everybody's use.
    Global,
    /// In the server's configuration or environment, for everybody's use; it is changed there.
    Config,
}
