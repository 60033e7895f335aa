//! `/api/v1/settings`: the settings in force, for administrators.

use axum::Json;
use serde::Serialize;
use utoipa::ToSchema;

use crate::domain::setting::Setting;
use crate::http::wire::auth::Caller;
use crate::http::wire::problem::HttpResult;

/// A list of settings.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SettingList)]
pub(crate) struct SettingsBody {
    /// The settings, by name.
    data: Vec<Setting>,
}

/// Lists the settings in force
///
/// For administrators only. Secrets are redacted. The list shows the settings of the process that answers. A change needs a
/// restart.
#[utoipa::path(
    get, path = "/api/v1/settings", tag = "system", operation_id = "list_settings",
    responses((status = 200, description = "The settings", body = SettingsBody), (status = 403, description = "The caller is no administrator")),
)]
pub(crate) async fn list(caller: Caller) -> HttpResult<Json<SettingsBody>> {
    Ok(Json(SettingsBody { data: caller.app.service.settings(&caller.principal)?.to_vec() }))
}
