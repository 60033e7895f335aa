//! The identity of a WebSocket's peer.

use crate::http::options::{App, Auth};
use crate::http::problem::Answer;
use crate::service::Access;

/// What the handshake said about who it is.
pub(super) enum Identity {
    /// This one.
    Known(Access),
    /// A key or ticket that is nobody's.
    Refused,
    /// Nothing yet.
    Unsaid,
}

/// Whose key this is.
pub(super) async fn check(app: &App, key: &str) -> Answer<Identity> {
    match &app.options.auth {
        Auth::Open(principal) => Ok(Identity::Known(Access::without_key(principal.clone()))),
        Auth::Keys => Ok(app.service.authenticate(key).await?.map_or(Identity::Refused, Identity::Known)),
    }
}
