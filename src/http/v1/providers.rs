//! `/api/v1/providers`: model endpoints that users keep, and those of the configuration.

use axum::Json;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::domain::access::principal::{Principal, UserRole};
use crate::domain::ids::ProviderId;
use crate::domain::model::cost::Prices;
use crate::domain::model::provider::{CallLimits, ModelEntry, ProviderKind, ProviderRecord};
use crate::domain::problem::ProblemBody;
use crate::http::wire::answer::created;
use crate::http::wire::auth::Caller;
use crate::http::wire::etag::{versioned, wanted_versions};
use crate::http::wire::extract::{Id, Input, OptionalInput};
use crate::http::wire::page::{self, PageParams, Paging};
use crate::http::wire::problem::Answer;
use crate::http::wire::scope::ShownScope;
use crate::http::wire::types::ListBody;
use crate::service::{AnyProvider, ConfiguredProvider, NewProvider, Page, ProviderCursor, ProviderPatch, TestedProvider};
use crate::support::tokens::Tokenizer;

/// What is shown of a key.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct KeyShown {
    /// Whether there is one.
    set: bool,
    /// Its end, if it is long enough.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

/// A provider.
#[serde_with::skip_serializing_none]
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Provider {
    /// The id.
    id: ProviderId,
    /// What stands before the slash of its models.
    name: String,
    /// The wire that it speaks.
    kind: ProviderKind,
    /// Where its API is. Of providers of the configuration only administrators see it.
    base_url: Option<String>,
    /// The key.
    key: KeyShown,
    /// What is known of its models beside the provider's own list.
    models: Vec<ModelEntry>,
    /// How long its calls may take, where that is not as long as those of all.
    #[serde(skip_serializing_if = "CallLimits::is_empty")]
    #[schema(required = false)]
    limits: CallLimits,
    /// How its chat completions differ from OpenAI's own, where that is said.
    #[schema(value_type = Option<Object>)]
    accent: Option<Map<String, Value>>,
    /// Whether runs may use it.
    enabled: bool,
    /// Whose it is.
    scope: ShownScope,
    /// When it was made, RFC 3339. Not for providers of the configuration.
    created_at: Option<String>,
    /// When it was changed, RFC 3339. Not for providers of the configuration.
    updated_at: Option<String>,
    /// Raised by one at each change; also the `ETag`. Not for providers of the configuration.
    version: Option<i64>,
}

impl Provider {
    pub(crate) fn of(record: ProviderRecord, viewer: &Principal) -> Self {
        let (scope, sees_hint) = ShownScope::of(record.owner.as_ref(), viewer);
        let hint = record.key.as_ref().and_then(|key| key.hint.clone()).filter(|_| sees_hint);
        Self {
            id: record.id,
            name: record.name,
            kind: record.kind,
            base_url: Some(record.base_url),
            key: KeyShown { set: record.key.is_some(), hint },
            models: record.models,
            limits: record.limits,
            accent: record.accent,
            enabled: record.enabled,
            scope,
            created_at: Some(record.created_at.to_rfc3339()),
            updated_at: Some(record.updated_at.to_rfc3339()),
            version: Some(record.version),
        }
    }

    fn of_any(provider: AnyProvider, viewer: &Principal) -> Self {
        let ConfiguredProvider { id, name, kind, base_url, has_key } = match provider {
            AnyProvider::Stored(record) => return Self::of(*record, viewer),
            AnyProvider::Configured(provider) => provider,
        };
        let base_url = match viewer.role {
            UserRole::Admin => Some(base_url),
            // The URL is the operator's own.
            UserRole::Member => None,
        };
        Self {
            id,
            name,
            kind,
            base_url,
            key: KeyShown { set: has_key, hint: None },
            models: Vec::new(),
            limits: CallLimits::default(),
            accent: None,
            enabled: true,
            scope: ShownScope::Config,
            created_at: None,
            updated_at: None,
            version: None,
        }
    }
}

/// Makes a provider
///
/// Runs use its models as `name/model`. A member's URL must be a public https one, unless the server allows others.
#[utoipa::path(
    post, path = "/api/v1/providers", tag = "providers", operation_id = "create_provider", request_body = NewProvider,
    responses((status = 201, description = "The provider", body = Provider, headers(("Location" = String), ("ETag" = String)))),
)]
pub(crate) async fn create(caller: Caller, Input { body, key }: Input<NewProvider>) -> Answer<Response> {
    let (record, replay) = caller.app.service.create_provider(&caller.principal, body, key).await?;
    let place = format!("/api/v1/providers/{}", record.id);
    Ok(created(replay, Some(record.version), &place, Provider::of(record, &caller.principal)))
}

/// Providers, by name
///
/// The caller's own and those of the server, those of its configuration included. Runs mean by a name the caller's own one first,
/// then the server's, then that of the configuration.
#[utoipa::path(
    get, path = "/api/v1/providers", tag = "providers", operation_id = "list_providers", params(PageParams),
    responses((status = 200, description = "A page", body = ListBody<Provider>, headers(("Link" = String)))),
)]
pub(crate) async fn list(caller: Caller, Paging(page): Paging<ProviderCursor>) -> Answer<Response> {
    let Page { items, next } = caller.app.service.providers(&caller.principal, &page).await?;
    let items = items.into_iter().map(|provider| Provider::of_any(provider, &caller.principal)).collect();
    Ok(page::answer(Page { items, next }, page.limit, "/api/v1/providers", ""))
}

/// A provider
#[utoipa::path(
    get, path = "/api/v1/providers/{id}", tag = "providers", operation_id = "get_provider",
    params(("id" = ProviderId, Path, description = "The provider")),
    responses((status = 200, description = "The provider", body = Provider, headers(("ETag" = String)))),
)]
pub(crate) async fn get(caller: Caller, Id(id): Id<ProviderId>) -> Answer<Response> {
    let provider = Provider::of_any(caller.app.service.provider(&caller.principal, &id).await?, &caller.principal);
    Ok(versioned(provider.version, provider))
}

/// Changes a provider
///
/// Runs use it as it is from their next model call on.
#[utoipa::path(
    patch, path = "/api/v1/providers/{id}", tag = "providers", operation_id = "update_provider",
    params(
        ("id" = ProviderId, Path, description = "The provider"),
        ("If-Match" = Option<String>, Header, description = "ETags that the client has: then only a version of these is changed"),
    ),
    request_body = ProviderPatch,
    responses(
        (status = 200, description = "The provider", body = Provider, headers(("ETag" = String))),
        (status = 412, description = "It has another version by now", body = ProblemBody, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn update(
    caller: Caller,
    Id(id): Id<ProviderId>,
    headers: HeaderMap,
    Input { body, .. }: Input<ProviderPatch>,
) -> Answer<Response> {
    let record = caller.app.service.update_provider(&caller.principal, &id, &body, wanted_versions(&headers).as_deref()).await?;
    Ok(versioned(Some(record.version), Provider::of(record, &caller.principal)))
}

/// Deletes a provider
///
/// Runs that are under way with it fail at their next model call.
#[utoipa::path(
    delete, path = "/api/v1/providers/{id}", tag = "providers", operation_id = "delete_provider",
    params(
        ("id" = ProviderId, Path, description = "The provider"),
        ("If-Match" = Option<String>, Header, description = "ETags that the client has: then only a version of these is deleted"),
    ),
    responses(
        (status = 204, description = "It is gone"),
        (status = 412, description = "It has another version by now", body = ProblemBody, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn delete(caller: Caller, Id(id): Id<ProviderId>, headers: HeaderMap) -> Answer<StatusCode> {
    caller.app.service.delete_provider(&caller.principal, &id, wanted_versions(&headers).as_deref()).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A model of a provider.
#[serde_with::skip_serializing_none]
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ProviderModel {
    /// How runs name it: `provider/name`.
    model: String,
    /// Its name at the provider.
    name: String,
    /// Tokens of its window.
    context: Option<u64>,
    /// The most tokens of one answer.
    max_output: Option<u64>,
    /// What cuts its texts into tokens; unknown, if the server can only estimate how many they are.
    tokenizer: Option<Tokenizer>,
    /// What it costs.
    prices: Option<Prices>,
    /// Whether it calls tools.
    tools: Option<bool>,
    /// Whether it sees pictures.
    vision: Option<bool>,
}

impl ProviderModel {
    fn of(provider: &str, entry: ModelEntry) -> Self {
        let ModelEntry { name, context, max_output, tokenizer, prices, tools, vision, limits: _ } = entry;
        Self { model: format!("{provider}/{name}"), name, context, max_output, tokenizer, prices, tools, vision }
    }
}

/// The models of a provider
///
/// Those that its endpoint lists now, with what the provider's record and the server know of them. All on one page.
#[utoipa::path(
    get, path = "/api/v1/providers/{id}/models", tag = "providers", operation_id = "list_provider_models",
    params(("id" = ProviderId, Path, description = "The provider")),
    responses(
        (status = 200, description = "The models, by name", body = ListBody<ProviderModel>),
        (status = 502, description = "The provider failed", body = ProblemBody, content_type = "application/problem+json"),
        (status = 504, description = "The provider took too long", body = ProblemBody, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn models(caller: Caller, Id(id): Id<ProviderId>) -> Answer<Json<ListBody<ProviderModel>>> {
    let (name, models) = caller.app.service.provider_models(&caller.principal, &id).await?;
    Ok(Json(ListBody::whole(models.into_iter().map(|model| ProviderModel::of(&name, model)).collect())))
}

/// Which model to test.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TestProviderBody {
    /// The model's name at the provider; the first that is known if absent.
    #[schema(min_length = 1, max_length = 200)]
    model: Option<String>,
}

/// Tests a provider
///
/// Asks a model for a word, which costs next to nothing. Every request asks anew, whatever its `Idempotency-Key`.
#[utoipa::path(
    post, path = "/api/v1/providers/{id}/test", tag = "providers", operation_id = "test_provider",
    params(("id" = ProviderId, Path, description = "The provider")), request_body = Option<TestProviderBody>,
    responses((status = 200, description = "What came of it", body = TestedProvider)),
)]
pub(crate) async fn test(
    caller: Caller,
    Id(id): Id<ProviderId>,
    // A repeated test does no harm, and an earlier answer would not describe the present.
    OptionalInput { body, key: _ }: OptionalInput<TestProviderBody>,
) -> Answer<Json<TestedProvider>> {
    Ok(Json(caller.app.service.test_provider(&caller.principal, &id, body.model).await?))
}
