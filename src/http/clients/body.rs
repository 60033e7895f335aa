//! Bodies of requests that contain a whole history.

use axum::extract::Request;
use axum::http::header::CONTENT_LENGTH;
use serde::de::{Deserialize, DeserializeOwned, Deserializer};

use crate::http::options::App;
use crate::http::wire::extract::Input;
use crate::http::wire::problem::HttpResult;
use crate::service::Access;

/// Reads a body. A body above the usual limit, or of unknown length, may be as large as an import, but only a few are read at a
/// time.
pub(in crate::http) async fn read<T: DeserializeOwned>(request: Request, app: &App, access: &Access) -> HttpResult<Input<T>> {
    let length = request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    let usual = app.options.limits.max_body_bytes;
    if length.is_some_and(|length| length <= usual) {
        return Input::read(request, app, usual, None).await;
    }
    let _permit = app.service.begin_upload(&access.principal().user_id).await?;
    let most = usize::try_from(app.service.copy_limits().bytes).unwrap_or(usize::MAX).max(usual);
    Input::read(request, app, most, None).await
}

/// Deserializes a field whose `null` means the same as its absence: many clients send both.
pub(in crate::http) fn null_is_absent<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}
