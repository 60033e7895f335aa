//! The scope of a record as it is shown.

use serde::Serialize;
use utoipa::ToSchema;

use crate::domain::access::principal::{Principal, UserRole};
use crate::domain::ids::UserId;

/// Where a provider is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ShownScope {
    Own,
    Global,
    /// In the server's configuration or environment, for everybody's use; it is changed there.
    Config,
}

impl ShownScope {
    /// Returns the scope of a record that is kept, and whether the viewer may see its details.
    pub(crate) fn of(owner: Option<&UserId>, viewer: &Principal) -> (Self, bool) {
        match (owner, viewer.role) {
            (Some(_), UserRole::Admin | UserRole::Member) => (Self::Own, true),
            (None, UserRole::Admin) => (Self::Global, true),
            (None, UserRole::Member) => (Self::Global, false),
        }
    }
}
