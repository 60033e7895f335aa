//! The authentication of a WebSocket's client.

use crate::http::options::{App, Auth};
use crate::http::wire::problem::HttpResult;
use crate::service::Access;

pub(super) enum Identity {
    Known(Access),
    /// An unknown key or ticket.
    Refused,
    /// Not sent yet.
    NoKey,
}

pub(super) async fn check(app: &App, key: &str) -> HttpResult<Identity> {
    match &app.options.auth {
        Auth::Open(principal) => Ok(Identity::Known(Access::without_key(principal.clone()))),
        Auth::Keys => Ok(app.service.authenticate(key).await?.map_or(Identity::Refused, Identity::Known)),
    }
}
