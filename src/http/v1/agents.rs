//! `/api/v1/agents`: agents that users store, in versions, and built-in agents.

use axum::extract::{FromRequestParts, Path};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::Response;
use axum::{Json, RequestPartsExt as _};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::domain::agent::AgentProfile;
use crate::domain::agent::agent_record::{AgentRecord, AgentVersion, ProfileDocument};
use crate::domain::agent::preset::preset_id;
use crate::domain::ids::{AgentId, UserId};
use crate::http::options::App;
use crate::http::wire::auth::Caller;
use crate::http::wire::etag::{IfMatch, versioned};
use crate::http::wire::extract::Input;
use crate::http::wire::page::{self, PageParams, Paging};
use crate::http::wire::problem::{HttpResult, Problem};
use crate::http::wire::responses::created;
use crate::http::wire::types::ListBody;
use crate::service::{AgentCursor, AgentPatch, AgentRef, AgentVersionCursor, AgentView, AnyAgent, Error, NewAgent, Page};

/// The version to which an agent is rolled back.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RollBackBody {
    /// The number of the version.
    #[schema(minimum = 1)]
    version: u32,
    /// The reason for the rollback.
    #[serde(default)]
    #[schema(max_length = 1000)]
    note: String,
}

/// The origin of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AgentScope {
    Own,
    Global,
    Preset,
    Config,
}

/// An agent.
#[serde_with::skip_serializing_none]
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Agent {
    /// The id.
    id: AgentId,
    /// The name by which runs request the agent.
    name: String,
    /// The purpose of the agent.
    description: String,
    /// The origin of the agent.
    scope: AgentScope,
    /// The version that runs receive.
    version: u32,
    /// The newest version.
    latest_version: u32,
    /// The pinned version, if any.
    pinned_version: Option<u32>,
    /// The profile of `version`: its differences from the agent of the server's settings, or from the agent that `extends` names.
    #[schema(value_type = Object)]
    profile: ProfileDocument,
    /// The complete profile that runs receive.
    #[schema(value_type = Option<Object>)]
    effective: Option<AgentProfile>,
    /// The reason why runs cannot use the agent, such as a change of the server's settings.
    error: Option<String>,
    /// When the agent was created, RFC 3339. Absent for built-in agents and for the agent of the server's settings.
    created_at: Option<String>,
    /// When the agent was changed, RFC 3339. Absent for built-in agents and for the agent of the server's settings.
    updated_at: Option<String>,
    /// Incremented at each change, and also sent as the `ETag`. Absent for built-in agents and for the agent of the server's
    /// settings.
    revision: Option<i64>,
}

impl Agent {
    fn of(view: AgentView) -> Self {
        let (effective, error) = match view.effective {
            Ok(profile) => (Some(*profile), None),
            Err(error) => (None, Some(error.to_string())),
        };
        let description = view.agent.description().to_owned();
        let without_record = |id, name: String, scope, profile| Self {
            id,
            name,
            description,
            scope,
            version: 1,
            latest_version: 1,
            pinned_version: None,
            profile,
            effective: None,
            error: None,
            created_at: None,
            updated_at: None,
            revision: None,
        };
        let agent = match view.agent {
            AnyAgent::Stored(record) => {
                let version = record.current();
                let AgentRecord { id, owner, name, pinned, latest, profile, created_at, updated_at, revision, .. } = *record;
                let scope = if owner.is_some() { AgentScope::Own } else { AgentScope::Global };
                Self {
                    version,
                    latest_version: latest,
                    pinned_version: pinned,
                    created_at: Some(created_at.to_rfc3339()),
                    updated_at: Some(updated_at.to_rfc3339()),
                    revision: Some(revision),
                    ..without_record(id, name, scope, profile)
                }
            }
            AnyAgent::Preset(preset) => without_record(preset.id, preset.name.to_owned(), AgentScope::Preset, preset.profile),
            AnyAgent::Default(name) => without_record(preset_id(&name), name, AgentScope::Config, ProfileDocument::new()),
        };
        Self { effective, error, ..agent }
    }

    fn answer(view: AgentView) -> Response {
        let agent = Self::of(view);
        versioned(agent.revision, agent)
    }
}

/// A version of an agent.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AgentVersion)]
pub(crate) struct AgentVersionBody {
    /// The number of the version.
    version: u32,
    /// The profile of the version: its differences from the agent of the server's settings, or from the agent that `extends` names.
    #[schema(value_type = Object)]
    profile: ProfileDocument,
    /// The reason for the version.
    note: String,
    /// The user who created the version.
    created_by: UserId,
    /// When the version was created, RFC 3339.
    created_at: String,
}

impl From<AgentVersion> for AgentVersionBody {
    fn from(version: AgentVersion) -> Self {
        let AgentVersion { number, profile, note, created_by, created_at } = version;
        Self { version: number, profile, note, created_by, created_at: created_at.to_rfc3339() }
    }
}

/// The version in a path. Text that is not a number matches no version.
#[derive(Deserialize)]
pub(crate) struct VersionPath {
    version: String,
}

/// The agent in a path, by id or by name.
pub(crate) struct Named(AgentRef);

impl FromRequestParts<App> for Named {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _app: &App) -> HttpResult<Self> {
        let missing = |_| Problem::from(Error::NotFound("agent"));
        let Path(segments) = parts.extract::<Path<Vec<(String, String)>>>().await.map_err(missing)?;
        let name = segments.into_iter().find_map(|(key, value)| (key == "agent").then_some(value)).unwrap_or_default();
        Ok(Self(name.as_str().into()))
    }
}

/// Creates an agent
///
/// A run requests the agent by its name, as `agent`. Fields that are absent from `profile` come from the agent of the server's
/// settings. A member's agent cannot have higher limits or need fewer approvals than that agent.
#[utoipa::path(
    post, path = "/api/v1/agents", tag = "agents", operation_id = "create_agent", request_body = NewAgent,
    responses((status = 201, description = "The agent", body = Agent, headers(("Location" = String), ("ETag" = String)))),
)]
pub(crate) async fn create(caller: Caller, Input { body, key }: Input<NewAgent>) -> HttpResult<Response> {
    let (view, replay) = caller.app.service.create_agent(&caller.principal, body, key).await?;
    let agent = Agent::of(view);
    let location = format!("/api/v1/agents/{}", agent.id);
    Ok(created(replay, agent.revision, &location, agent))
}

/// Lists agents by name
///
/// The list contains the caller's own agents, agents for all users, built-in agents, and the agent of the server's settings.
#[utoipa::path(
    get, path = "/api/v1/agents", tag = "agents", operation_id = "list_agents", params(PageParams),
    responses((status = 200, description = "A page of the list", body = ListBody<Agent>)),
)]
pub(crate) async fn list(caller: Caller, Paging(page): Paging<AgentCursor>) -> HttpResult<Response> {
    let Page { items, next } = caller.app.service.agents(&caller.principal, &page).await?;
    // The list omits effective profiles, because prompts can be long.
    let items = items.into_iter().map(|view| Agent { effective: None, ..Agent::of(view) }).collect();
    Ok(page::answer(Page { items, next }, page.limit, "/api/v1/agents", ""))
}

/// Returns an agent
#[utoipa::path(
    get, path = "/api/v1/agents/{agent}", tag = "agents", operation_id = "get_agent",
    params(("agent" = String, Path, description = "The id or name of the agent")),
    responses((status = 200, description = "The agent", body = Agent, headers(("ETag" = String)))),
)]
pub(crate) async fn get(caller: Caller, Named(agent): Named) -> HttpResult<Response> {
    Ok(Agent::answer(caller.app.service.agent(&caller.principal, &agent).await?))
}

/// Changes an agent
///
/// A change of `profile` creates a new version. New runs receive that version, unless another version is pinned. Runs that are
/// already accepted keep their version.
#[utoipa::path(
    patch, path = "/api/v1/agents/{agent}", tag = "agents", operation_id = "update_agent",
    params(("agent" = String, Path, description = "The id or name of the agent"), IfMatch),
    request_body = AgentPatch,
    responses((status = 200, description = "The agent", body = Agent, headers(("ETag" = String)))),
)]
pub(crate) async fn update(
    caller: Caller,
    Named(agent): Named,
    IfMatch(versions): IfMatch,
    Input { body, .. }: Input<AgentPatch>,
) -> HttpResult<Response> {
    Ok(Agent::answer(caller.app.service.update_agent(&caller.principal, &agent, body, versions.as_deref()).await?))
}

/// Deletes an agent
///
/// All versions of the agent are deleted. Runs that already use the agent continue.
#[utoipa::path(
    delete, path = "/api/v1/agents/{agent}", tag = "agents", operation_id = "delete_agent",
    params(("agent" = String, Path, description = "The id or name of the agent"), IfMatch),
    responses(
        (status = 204, description = "The agent was deleted"),
        (status = 409, description = "The agent is built in or comes from the server's settings"),
    ),
)]
pub(crate) async fn delete(caller: Caller, Named(agent): Named, IfMatch(versions): IfMatch) -> HttpResult<StatusCode> {
    caller.app.service.delete_agent(&caller.principal, &agent, versions.as_deref()).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Lists the versions of an agent, newest first
///
/// The server keeps the newest 1,000 versions and the pinned version.
#[utoipa::path(
    get, path = "/api/v1/agents/{agent}/versions", tag = "agents", operation_id = "list_agent_versions",
    params(("agent" = String, Path, description = "The id or name of the agent"), PageParams),
    responses(
        (status = 200, description = "A page of the list", body = ListBody<AgentVersionBody>),
        (status = 409, description = "The agent is built in or comes from the server's settings"),
    ),
)]
pub(crate) async fn versions(
    caller: Caller,
    Named(agent): Named,
    Paging(page): Paging<AgentVersionCursor>,
) -> HttpResult<Response> {
    let Page { items, next } = caller.app.service.agent_versions(&caller.principal, &agent, &page).await?;
    let items: Vec<AgentVersionBody> = items.into_iter().map(AgentVersionBody::from).collect();
    let name = match &agent {
        AgentRef::Id(id) => id.as_str(),
        AgentRef::Name(name) => name,
    };
    Ok(page::answer(Page { items, next }, page.limit, &format!("/api/v1/agents/{name}/versions"), ""))
}

/// Returns a version of an agent
#[utoipa::path(
    get, path = "/api/v1/agents/{agent}/versions/{version}", tag = "agents", operation_id = "get_agent_version",
    params(
        ("agent" = String, Path, description = "The id or name of the agent"),
        ("version" = u32, Path, description = "The number of the version"),
    ),
    responses(
        (status = 200, description = "The version", body = AgentVersionBody),
        (status = 409, description = "The agent is built in or comes from the server's settings"),
    ),
)]
pub(crate) async fn version(
    caller: Caller,
    Named(agent): Named,
    Path(path): Path<VersionPath>,
) -> HttpResult<Json<AgentVersionBody>> {
    let number = path.version.parse().map_err(|_| Error::NotFound("version of this agent"))?;
    Ok(Json(caller.app.service.agent_version(&caller.principal, &agent, number).await?.into()))
}

/// Rolls an agent back
///
/// Creates a new version with the profile of an earlier version. Afterwards, no version is pinned.
#[utoipa::path(
    post, path = "/api/v1/agents/{agent}/rollback", tag = "agents", operation_id = "roll_back_agent",
    params(("agent" = String, Path, description = "The id or name of the agent")), request_body = RollBackBody,
    responses((status = 200, description = "The agent", body = Agent, headers(("ETag" = String)))),
)]
pub(crate) async fn roll_back(
    caller: Caller,
    Named(agent): Named,
    Input { body, .. }: Input<RollBackBody>,
) -> HttpResult<Response> {
    Ok(Agent::answer(caller.app.service.roll_back_agent(&caller.principal, &agent, body.version, &body.note).await?))
}
