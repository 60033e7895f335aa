//! `/api/v1/users`: the users of the server, for administrators.

use axum::Json;
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use crate::domain::access::principal::UserRole;
use crate::domain::ids::UserId;
use crate::http::wire::auth::Caller;
use crate::http::wire::extract::{Id, Input};
use crate::http::wire::page::{self, PageParams, Paging};
use crate::http::wire::problem::HttpResult;
use crate::http::wire::types::ListBody;
use crate::service::{Page, StoredUser, UserCursor, UserPatch};

/// A user.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = User)]
pub(crate) struct UserBody {
    /// The id.
    id: UserId,
    /// The name, which is unique.
    name: String,
    /// The role.
    role: UserRole,
    /// The groups.
    groups: Vec<String>,
    /// When the user was created, RFC 3339.
    created_at: String,
}

impl From<StoredUser> for UserBody {
    fn from(StoredUser { user, groups, created_at }: StoredUser) -> Self {
        Self { id: user.id, name: user.name, role: user.role, groups, created_at: created_at.to_rfc3339() }
    }
}

/// Lists users by name
///
/// For administrators only.
#[utoipa::path(
    get, path = "/api/v1/users", tag = "users", operation_id = "list_users", params(PageParams),
    responses((status = 200, description = "A page of the list", body = ListBody<UserBody>)),
)]
pub(crate) async fn list(caller: Caller, Paging(page): Paging<UserCursor>) -> HttpResult<Response> {
    let Page { items, next } = caller.app.service.users(&caller.principal, &page).await?;
    let items: Vec<UserBody> = items.into_iter().map(UserBody::from).collect();
    Ok(page::answer(Page { items, next }, page.limit, "/api/v1/users", ""))
}

/// Changes a user
///
/// For administrators only. The request takes 5 seconds if an administrator becomes a member: until then, other processes may still
/// accept the old role.
#[utoipa::path(
    patch, path = "/api/v1/users/{id}", tag = "users", operation_id = "update_user",
    params(("id" = UserId, Path, description = "The id of the user")), request_body = UserPatch,
    responses((status = 200, description = "The user", body = UserBody)),
)]
pub(crate) async fn update(caller: Caller, Id(id): Id<UserId>, Input { body, .. }: Input<UserPatch>) -> HttpResult<Json<UserBody>> {
    Ok(Json(caller.app.service.update_user(&caller.principal, &id, body).await?.into()))
}
