//! `/v1/models`: agents by name, and the models of providers as `provider/name`.

use axum::Json;
use axum::extract::Path;
use serde_json::{Value, json};

use crate::domain::problem::{ProblemBody, ProblemCode};
use crate::http::wire::auth::Caller;
use crate::http::wire::problem::{HttpResult, Problem};
use crate::service::AgentView;

/// Lists agents and models
#[utoipa::path(
    get, path = "/v1/models", tag = "models", operation_id = "openai_list_models",
    responses((status = 200, description = "All agents and models", body = Object)),
)]
pub(super) async fn list(caller: Caller) -> HttpResult<Json<Value>> {
    Ok(Json(json!({ "object": "list", "data": all(&caller).await? })))
}

/// Returns an agent or a model
#[utoipa::path(
    get, path = "/v1/models/{model}", tag = "models", operation_id = "openai_get_model",
    params(("model" = String, Path, description = "The name of an agent, or `provider/name`")),
    responses((status = 200, description = "The agent or model", body = Object)),
)]
pub(super) async fn get(caller: Caller, Path(model): Path<String>) -> HttpResult<Json<Value>> {
    let found = all(&caller).await?.into_iter().find(|known| known["id"] == model.as_str());
    found.map(Json).ok_or_else(|| {
        let unknown = ProblemCode::UnknownModel.body(format!("the model {model:?} does not exist; GET /v1/models lists all"));
        Problem::from(ProblemBody { status: 404, ..unknown })
    })
}

/// Returns a model whose name has an unencoded slash, because only some clients encode it.
pub(super) async fn get_of_provider(caller: Caller, Path((provider, model)): Path<(String, String)>) -> HttpResult<Json<Value>> {
    get(caller, Path(format!("{provider}/{model}"))).await
}

async fn all(caller: &Caller) -> HttpResult<Vec<Value>> {
    let service = &caller.app.service;
    let agents = service.all_agents(&caller.principal).await?;
    let created = |view: &AgentView| view.agent.created_at().map_or(0, |at| at.0 / 1000);
    let mut found: Vec<Value> = agents.iter().map(|view| entry(view.agent.name(), created(view), "capstan")).collect();
    for (provider, model) in service.models(&caller.principal).await? {
        found.push(entry(&format!("{provider}/{}", model.entry.name), 0, &provider));
    }
    Ok(found)
}

fn entry(id: &str, created: i64, owned_by: &str) -> Value {
    json!({ "id": id, "object": "model", "created": created, "owned_by": owned_by })
}
