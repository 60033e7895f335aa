//! `/api/v1/me`: the caller's own account.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::domain::access::principal::{Principal, UserRole};
use crate::domain::ids::UserId;
use crate::http::options::{App, Auth};
use crate::http::wire::auth::Caller;
use crate::http::wire::extract::Input;
use crate::http::wire::problem::HttpResult;
use crate::service::OwnAccount;

/// The account of the caller.
#[serde_with::skip_serializing_none]
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Me {
    /// The id of the user.
    id: UserId,
    /// The name of the user.
    name: String,
    /// The role of the user.
    role: UserRole,
    /// The groups of the user.
    groups: Vec<String>,
    /// Whether the server needs keys, so that this user can sign out.
    keys: bool,
    /// The user's default model, for runs whose message, conversation and agent name no model.
    default_model: Option<String>,
    /// The model of such runs: the user's default model while a provider serves it, or else the server's default. Absent while none
    /// is known.
    model: Option<String>,
    /// The most days until a new share expires. Absent if the server does not share conversations.
    max_share_days: Option<u32>,
}

impl Me {
    fn of(app: &App, principal: &Principal, own: OwnAccount) -> Json<Self> {
        let OwnAccount { account, model, max_share_days } = own;
        Json(Self {
            id: principal.user_id.clone(),
            name: account.name,
            role: principal.role,
            groups: account.groups,
            keys: app.options.auth == Auth::Keys,
            default_model: account.default_model,
            model,
            max_share_days,
        })
    }
}

/// Changes of the caller's account.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct UpdateMeBody {
    /// The model for runs whose message, conversation and agent name none, as `provider/name`. Empty or `null` for the server's
    /// default.
    default_model: Option<String>,
}

/// Returns the caller's account
#[utoipa::path(
    get, path = "/api/v1/me", tag = "users", operation_id = "get_me",
    responses((status = 200, description = "The account", body = Me)),
)]
pub(crate) async fn get(State(app): State<App>, caller: Caller) -> HttpResult<Json<Me>> {
    let own = caller.app.service.own_account(&caller.principal).await?;
    Ok(Me::of(&app, &caller.principal, own))
}

/// Changes the caller's account
///
/// Sets or removes the default model. Other processes of the server use it after at most two seconds.
#[utoipa::path(
    patch, path = "/api/v1/me", tag = "users", operation_id = "update_me", request_body = UpdateMeBody,
    responses((status = 200, description = "The account", body = Me)),
)]
pub(crate) async fn update(
    State(app): State<App>,
    caller: Caller,
    Input { body, .. }: Input<UpdateMeBody>,
) -> HttpResult<Json<Me>> {
    let own = caller.app.service.set_default_model(&caller.principal, body.default_model.as_deref()).await?;
    Ok(Me::of(&app, &caller.principal, own))
}
