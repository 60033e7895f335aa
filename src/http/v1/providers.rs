//! `/api/v1/providers`: model endpoints that users store, and providers of the configuration.

use axum::Json;
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::domain::access::principal::{Principal, UserRole};
use crate::domain::ids::ProviderId;
use crate::domain::model::cost::Prices;
use crate::domain::model::provider::{CallLimits, LearnedLimitation, ModelEntry, ProviderKind, ProviderRecord};
use crate::http::wire::auth::Caller;
use crate::http::wire::etag::{IfMatch, versioned};
use crate::http::wire::extract::{Id, Input, OptionalInput};
use crate::http::wire::page::{self, PageParams, Paging};
use crate::http::wire::problem::HttpResult;
use crate::http::wire::responses::created;
use crate::http::wire::scope::VisibleScope;
use crate::http::wire::types::ListBody;
use crate::service::{self, AnyProvider, ConfiguredProvider, NewProvider, Page, ProviderCursor, ProviderPatch, TestedProvider};
use crate::support::tokens::Tokenizer;

/// The visible part of a key.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ProviderKey)]
pub(crate) struct KeyShown {
    /// Whether the provider has a key.
    set: bool,
    /// The end of the key, if the key is long enough.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

/// A provider.
#[serde_with::skip_serializing_none]
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Provider {
    /// The id.
    id: ProviderId,
    /// The name before the slash in the names of the provider's models.
    name: String,
    /// The dialect of the provider.
    kind: ProviderKind,
    /// The base URL of the API. For providers of the configuration, visible to administrators only.
    base_url: Option<String>,
    /// The key.
    key: KeyShown,
    /// Facts about its models that extend the provider's own list.
    models: Vec<ModelEntry>,
    /// Time limits of calls that differ from the defaults.
    #[serde(skip_serializing_if = "CallLimits::is_empty")]
    #[schema(required = false)]
    limits: CallLimits,
    /// Quirks of the provider's chat completions, if any are set.
    #[schema(value_type = Option<Object>)]
    accent: Option<Map<String, Value>>,
    /// Whether runs may use the provider.
    enabled: bool,
    /// The scope of the provider: its owner, all users, or the configuration.
    scope: VisibleScope,
    /// When the provider was created, RFC 3339. Absent for providers of the configuration.
    created_at: Option<String>,
    /// When the provider was changed, RFC 3339. Absent for providers of the configuration.
    updated_at: Option<String>,
    /// Incremented at each change, and also sent as the `ETag`. Absent for providers of the configuration.
    version: Option<i64>,
}

impl Provider {
    pub(crate) fn of(record: ProviderRecord, viewer: &Principal) -> Self {
        let (scope, sees_hint) = VisibleScope::of(record.owner.as_ref(), viewer);
        let hint = record.key.as_ref().and_then(|key| key.hint.clone()).filter(|_| sees_hint);
        Self {
            id: record.id,
            name: record.name,
            kind: record.kind,
            base_url: Some(record.base_url),
            key: KeyShown { set: record.key.is_some(), hint },
            models: record.models,
            limits: record.limits,
            accent: record.quirks,
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
            // The URL is visible to administrators only.
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
            scope: VisibleScope::Config,
            created_at: None,
            updated_at: None,
            version: None,
        }
    }
}

/// Creates a provider
///
/// Runs refer to its models as `name/model`. A member must give a public `https` URL, unless the server's settings allow others.
#[utoipa::path(
    post, path = "/api/v1/providers", tag = "providers", operation_id = "create_provider", request_body = NewProvider,
    responses((status = 201, description = "The provider", body = Provider, headers(("Location" = String), ("ETag" = String)))),
)]
pub(crate) async fn create(caller: Caller, Input { body, key }: Input<NewProvider>) -> HttpResult<Response> {
    let (record, replay) = caller.app.service.create_provider(&caller.principal, body, key).await?;
    let location = format!("/api/v1/providers/{}", record.id);
    Ok(created(replay, Some(record.version), &location, Provider::of(record, &caller.principal)))
}

/// Lists providers by name
///
/// The list contains the caller's own providers, providers for all users, and providers of the configuration. If several have the
/// same name, runs use the caller's own provider first. Next come the provider for all users and the provider of the configuration.
#[utoipa::path(
    get, path = "/api/v1/providers", tag = "providers", operation_id = "list_providers", params(PageParams),
    responses((status = 200, description = "A page of the list", body = ListBody<Provider>)),
)]
pub(crate) async fn list(caller: Caller, Paging(page): Paging<ProviderCursor>) -> HttpResult<Response> {
    let Page { items, next } = caller.app.service.providers(&caller.principal, &page).await?;
    let items = items.into_iter().map(|provider| Provider::of_any(provider, &caller.principal)).collect();
    Ok(page::answer(Page { items, next }, page.limit, "/api/v1/providers", ""))
}

/// Returns a provider
#[utoipa::path(
    get, path = "/api/v1/providers/{id}", tag = "providers", operation_id = "get_provider",
    params(("id" = ProviderId, Path, description = "The id of the provider")),
    responses((status = 200, description = "The provider", body = Provider, headers(("ETag" = String)))),
)]
pub(crate) async fn get(caller: Caller, Id(id): Id<ProviderId>) -> HttpResult<Response> {
    let provider = Provider::of_any(caller.app.service.provider(&caller.principal, &id).await?, &caller.principal);
    Ok(versioned(provider.version, provider))
}

/// Changes a provider
///
/// Active runs use the changed provider from their next model call.
#[utoipa::path(
    patch, path = "/api/v1/providers/{id}", tag = "providers", operation_id = "update_provider",
    params(("id" = ProviderId, Path, description = "The id of the provider"), IfMatch),
    request_body = ProviderPatch,
    responses((status = 200, description = "The provider", body = Provider, headers(("ETag" = String)))),
)]
pub(crate) async fn update(
    caller: Caller,
    Id(id): Id<ProviderId>,
    IfMatch(versions): IfMatch,
    Input { body, .. }: Input<ProviderPatch>,
) -> HttpResult<Response> {
    let record = caller.app.service.update_provider(&caller.principal, &id, &body, versions.as_deref()).await?;
    Ok(versioned(Some(record.version), Provider::of(record, &caller.principal)))
}

/// Deletes a provider
///
/// Active runs that use the provider fail at their next model call.
#[utoipa::path(
    delete, path = "/api/v1/providers/{id}", tag = "providers", operation_id = "delete_provider",
    params(("id" = ProviderId, Path, description = "The id of the provider"), IfMatch),
    responses((status = 204, description = "The provider was deleted")),
)]
pub(crate) async fn delete(caller: Caller, Id(id): Id<ProviderId>, IfMatch(versions): IfMatch) -> HttpResult<StatusCode> {
    caller.app.service.delete_provider(&caller.principal, &id, versions.as_deref()).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A model of a provider.
#[serde_with::skip_serializing_none]
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ProviderModel {
    /// The name in runs: `provider/name`.
    model: String,
    /// The name at the provider.
    name: String,
    /// Size of the context window in tokens.
    context: Option<u64>,
    /// Maximum number of tokens of one answer.
    max_output: Option<u64>,
    /// The tokenizer of the model. Absent if the server can only estimate numbers of tokens.
    tokenizer: Option<Tokenizer>,
    /// The prices of the model.
    prices: Option<Prices>,
    /// Whether the model supports tool calls.
    tools: Option<bool>,
    /// Maximum number of tools of one request.
    max_tools: Option<u32>,
    /// Whether the model accepts pictures.
    vision: Option<bool>,
    /// Changes of requests to the model that the server learned from refusals.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    learned: Vec<LearnedChange>,
}

/// A change of requests to a model after its provider refused one.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LearnedChange {
    /// The change, as in the event `model.adapted`.
    what: String,
    /// When the server tries again without the change, RFC 3339.
    #[schema(format = DateTime)]
    until: String,
}

impl LearnedChange {
    fn of(limitation: LearnedLimitation) -> Self {
        Self { what: limitation.change, until: limitation.until.to_rfc3339() }
    }
}

impl ProviderModel {
    fn of(provider: &str, model: service::ProviderModel) -> Self {
        let learned = model.learned.into_iter().map(LearnedChange::of).collect();
        let ModelEntry { name, context, max_output, tokenizer, prices, tools, max_tools, vision, limits: _, chats: _ } =
            model.entry;
        Self {
            model: format!("{provider}/{name}"),
            name,
            context,
            max_output,
            tokenizer,
            prices,
            tools,
            max_tools,
            vision,
            learned,
        }
    }
}

/// Lists the models of a provider
///
/// Returns the models that the endpoint lists now and those of the provider's record, on one page. The record and the server add
/// further facts.
#[utoipa::path(
    get, path = "/api/v1/providers/{id}/models", tag = "providers", operation_id = "list_provider_models",
    params(("id" = ProviderId, Path, description = "The id of the provider")),
    responses(
        (status = 200, description = "The models, sorted by name", body = ListBody<ProviderModel>),
        (status = 502, description = "The provider failed"),
        (status = 504, description = "The provider took too long"),
    ),
)]
pub(crate) async fn models(caller: Caller, Id(id): Id<ProviderId>) -> HttpResult<Json<ListBody<ProviderModel>>> {
    let (name, models) = caller.app.service.provider_models(&caller.principal, &id).await?;
    Ok(Json(ListBody::whole(models.into_iter().map(|model| ProviderModel::of(&name, model)).collect())))
}

/// The abilities of a model, as far as they are known.
#[serde_with::skip_serializing_none]
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelAbilities {
    /// Whether the model supports tool calls.
    tools: Option<bool>,
    /// Whether the model accepts pictures.
    images: Option<bool>,
}

/// The limits of a model, as far as they are known.
#[serde_with::skip_serializing_none]
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelLimits {
    /// Size of the context window in tokens.
    context: Option<u64>,
    /// Maximum number of tokens of one answer.
    output: Option<u64>,
    /// Maximum number of tools of one request.
    tools: Option<u32>,
}

/// A model that runs can use.
#[serde_with::skip_serializing_none]
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Model {
    /// The name in runs: `provider/name`.
    id: String,
    /// The name of the provider.
    provider: String,
    /// The abilities of the model.
    abilities: ModelAbilities,
    /// The limits of the model.
    limits: ModelLimits,
    /// The prices of the model.
    price: Option<Prices>,
    /// Whether the provider lists the model now.
    available: bool,
    /// Changes of requests to the model that the server learned from refusals.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    learned: Vec<LearnedChange>,
}

/// Lists the models of all providers
///
/// Asks every provider for its models, and waits at most 15 seconds. Models of a provider that fails are shown as far as they are
/// known.
#[utoipa::path(
    get, path = "/api/v1/models", tag = "providers", operation_id = "list_models",
    responses((status = 200, description = "The models, sorted by name", body = ListBody<Model>)),
)]
pub(crate) async fn all_models(caller: Caller) -> HttpResult<Json<ListBody<Model>>> {
    let models = caller.app.service.models(&caller.principal).await?;
    let shown = |(provider, model): (String, service::ProviderModel)| {
        let entry = model.entry;
        Model {
            id: format!("{provider}/{}", entry.name),
            provider,
            abilities: ModelAbilities { tools: entry.tools, images: entry.vision },
            limits: ModelLimits { context: entry.context, output: entry.max_output, tools: entry.max_tools },
            price: entry.prices,
            available: model.available,
            learned: model.learned.into_iter().map(LearnedChange::of).collect(),
        }
    };
    Ok(Json(ListBody::whole(models.into_iter().map(shown).collect())))
}

/// The model of a provider test.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TestProviderBody {
    /// The model's name at the provider. Defaults to the first known model.
    #[schema(min_length = 1, max_length = 200)]
    model: Option<String>,
}

/// Tests a provider
///
/// Requests one word from a model, at almost no cost. Each request makes a new call, regardless of its `Idempotency-Key`.
#[utoipa::path(
    post, path = "/api/v1/providers/{id}/test", tag = "providers", operation_id = "test_provider",
    params(("id" = ProviderId, Path, description = "The id of the provider")), request_body = Option<TestProviderBody>,
    responses((status = 200, description = "The result of the test", body = TestedProvider)),
)]
pub(crate) async fn test(
    caller: Caller,
    Id(id): Id<ProviderId>,
    // A repeated test is harmless, and an earlier result would be outdated.
    OptionalInput { body, key: _ }: OptionalInput<TestProviderBody>,
) -> HttpResult<Json<TestedProvider>> {
    Ok(Json(caller.app.service.test_provider(&caller.principal, &id, body.model).await?))
}
