//! The scope of a record as clients see it.

use serde::Serialize;
use utoipa::ToSchema;

use crate::domain::access::principal::{Principal, UserRole};
use crate::domain::ids::UserId;

/// The scope of a provider or MCP server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = RecordScope)]
pub(crate) enum VisibleScope {
    Own,
    Global,
    /// The record is in the server's configuration or environment. It serves all users and can only be changed there.
    Config,
}

impl VisibleScope {
    /// Returns the scope of a stored record, and whether the viewer may see its details.
    pub(crate) fn of(owner: Option<&UserId>, viewer: &Principal) -> (Self, bool) {
        match (owner, viewer.role) {
            (Some(_), UserRole::Admin | UserRole::Member) => (Self::Own, true),
            (None, UserRole::Admin) => (Self::Global, true),
            (None, UserRole::Member) => (Self::Global, false),
        }
    }
}
