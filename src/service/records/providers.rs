//! Providers that are stored through the API: creation, changes, model lists, tests.
//!
//! A user may use every visible provider. Its key is sent only to the host that it was given for, and is never shown.

use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::time::Instant;
use utoipa::ToSchema;

use crate::domain::access::principal::{Principal, UserRole};
use crate::domain::ids::{ProviderId, UserId};
use crate::domain::model::ModelError;
use crate::domain::model::provider::{
    CallLimits, EgressScope, MAX_LIMIT_MS, ModelEntry, ProviderKind, ProviderRecord, StoredSecret,
};
use crate::domain::problem::{ProblemBody, ProblemCode};
use crate::service::idempotency_outcome::{Replay, RequestKey, outcome_or_conflict};
use crate::service::records::configured_providers::AnyProvider;
use crate::service::records::endpoints::{InvalidProvider, ProviderDeps, Target};
use crate::service::records::named::{
    Kind, OwnerScope, TRIES, check_version, default_true, may_change, new_owner, nullable, page_of_all,
};
use crate::service::runs::agent_and_model::is_short;
use crate::service::{Error, Result, Service};
use crate::store::{Page, PageRequest, ProviderChanged, ProviderCursor};
use crate::support::encryption::{AssociatedData, EncryptedSecret, EncryptionError, Vault};
use crate::support::redact::names_secret;

const MAX_NAME_CHARS: usize = 64;
const MAX_URL_BYTES: usize = 2_048;
const MAX_KEY_BYTES: usize = 8_192;
pub(in crate::service) const MAX_MODELS: usize = 500;
const MAX_QUIRKS_BYTES: usize = 16 * 1024;
const MAX_MODEL_CHARS: usize = 200;
/// Shorter keys have no hint.
const MIN_HINTED_CHARS: usize = 20;
const HINT_CHARS: usize = 4;

const PROVIDERS: Kind =
    Kind { one: "a provider", many: "providers", refusal: "only an administrator can change providers of the server" };

/// A provider to create.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CreateProviderBody)]
pub struct NewProvider {
    /// The name before the slash in the names of its models: `name/model`.
    #[schema(pattern = "^[a-z0-9][a-z0-9._-]{0,63}$")]
    name: String,
    /// The dialect of the provider.
    kind: ProviderKind,
    /// The base URL of the API. Defaults to the official API of the dialect.
    #[schema(max_length = 2048)]
    base_url: Option<String>,
    /// The key. The server never shows it again.
    #[schema(value_type = Option<String>, write_only, max_length = 8192)]
    key: Option<SecretString>,
    /// Facts about its models that the provider's own list lacks.
    #[serde(default)]
    #[schema(max_items = 500)]
    models: Vec<ModelEntry>,
    /// Time limits of the provider's calls.
    #[serde(default)]
    limits: CallLimits,
    /// Quirks of the provider's chat completions, as in `providers.NAME.accent`. Defaults to the known quirks of its host.
    #[schema(value_type = Option<Object>)]
    accent: Option<Map<String, Value>>,
    /// Whether runs may use the provider.
    #[serde(default = "default_true")]
    #[schema(default = true)]
    enabled: bool,
    /// The owner of the provider: the caller or the server. Only an administrator may create a provider for all users.
    #[serde(default)]
    scope: OwnerScope,
}

/// The changes to a provider. Absent fields stay unchanged.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = UpdateProviderBody)]
pub struct ProviderPatch {
    /// The new name.
    #[schema(pattern = "^[a-z0-9][a-z0-9._-]{0,63}$")]
    name: Option<String>,
    /// The dialect of the provider.
    kind: Option<ProviderKind>,
    /// The base URL of the API. A change of the host requires the key again.
    #[schema(max_length = 2048)]
    base_url: Option<String>,
    /// A new key. `null` removes the stored key.
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<String>, write_only, max_length = 8192)]
    key: Option<Option<SecretString>>,
    /// All facts about its models.
    #[schema(max_items = 500)]
    models: Option<Vec<ModelEntry>>,
    /// All time limits of the provider's calls.
    limits: Option<CallLimits>,
    /// Quirks of the provider's chat completions. `null` removes them.
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<Object>)]
    accent: Option<Option<Map<String, Value>>>,
    /// Whether runs may use the provider.
    enabled: Option<bool>,
}

/// The result of a provider test.
#[derive(Debug, Serialize, ToSchema)]
pub struct TestedProvider {
    /// Whether the model answered.
    ok: bool,
    /// The tested model. Empty if no model was found.
    model: String,
    /// Duration of the test in milliseconds.
    latency_ms: u64,
    /// The error, if the test failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ProblemBody>,
}

impl Service {
    pub(in crate::service) fn provider_deps(&self) -> Result<&ProviderDeps> {
        self.providers.as_ref().ok_or_else(|| Error::conflict("this server stores no providers"))
    }

    /// Returns whether the owner's runs can use this model. Needs no query for providers of the configuration.
    pub(in crate::service) async fn serves(&self, owner: &UserId, model: &str) -> Result<bool> {
        if (self.models)(model) {
            return Ok(true);
        }
        match model.split_once('/') {
            Some((provider, name)) if self.providers.is_some() && !name.is_empty() && is_name(provider) => {
                Ok(self.store.provider_named(owner, provider).await?.is_some())
            }
            Some(_) | None => Ok(false),
        }
    }

    pub async fn create_provider(
        &self,
        principal: &Principal,
        new: NewProvider,
        key: Option<RequestKey>,
    ) -> Result<(ProviderRecord, Replay)> {
        let deps = self.provider_deps()?;
        let NewProvider { name, kind, base_url, key: secret, models, limits, accent, enabled, scope } = new;
        let owner = new_owner(principal, scope, &PROVIDERS)?;
        let base_url = base_url.or_else(|| deps.endpoints.default_base_url(kind).map(str::to_owned));
        let base_url = base_url.ok_or_else(|| Error::field("/base_url", "must be given for this kind"))?;
        let new = ProviderRecord::new(ProviderId::generate(self.ids.as_ref()), owner, name, kind, self.clock.now());
        let mut record = ProviderRecord { base_url, egress: egress_of(principal), models, limits, quirks: accent, enabled, ..new };
        check(&record)?;
        self.put_key(&mut record, secret).await?;
        let claim = self.claim(&principal.user_id, key);
        let (outcome, replay) = outcome_or_conflict(self.store.create_provider(&record, deps.max_per_owner, claim).await?)?;
        let id = PROVIDERS.created_id(outcome, &record.name, deps.max_per_owner)?;
        deps.endpoints.forget_client(&id);
        Ok((self.record(principal, &id).await?, replay))
    }

    pub async fn provider(&self, principal: &Principal, id: &ProviderId) -> Result<AnyProvider> {
        let configured = self.provider_deps()?.endpoints.configured();
        if let Some(provider) = configured.iter().find(|provider| provider.id == *id) {
            return Ok(AnyProvider::Configured(provider.clone()));
        }
        Ok(AnyProvider::Stored(Box::new(self.record(principal, id).await?)))
    }

    async fn record(&self, principal: &Principal, id: &ProviderId) -> Result<ProviderRecord> {
        self.store.provider(&principal.user_id, id).await?.ok_or(Error::NotFound("provider"))
    }

    pub async fn providers(&self, principal: &Principal, page: &PageRequest<ProviderCursor>) -> Result<Page<AnyProvider>> {
        let configured = self.provider_deps()?.endpoints.configured();
        let stored = self.store.providers(&principal.user_id, page).await?;
        let configured = configured.iter().cloned().map(AnyProvider::Configured).collect();
        Ok(page_of_all(stored, AnyProvider::Stored, configured, page, AnyProvider::cursor))
    }

    /// Changes a provider. If versions are named, the provider must have one of them.
    pub async fn update_provider(
        &self,
        principal: &Principal,
        id: &ProviderId,
        patch: &ProviderPatch,
        versions: Option<&[i64]>,
    ) -> Result<ProviderRecord> {
        let deps = self.provider_deps()?;
        for _ in 0..TRIES {
            let before = self.changeable(principal, id, versions).await?;
            let mut after = self.apply_patch(principal, &before, patch).await?;
            after.updated_at = self.clock.now().max(before.updated_at);
            match self.store.change_provider(&after).await? {
                ProviderChanged::Changed(version) => {
                    deps.endpoints.forget_client(id);
                    return Ok(ProviderRecord { version, ..after });
                }
                ProviderChanged::NameTaken => return Err(PROVIDERS.name_taken(&after.name)),
                ProviderChanged::Stale => {}
            }
        }
        Err(Error::Stale)
    }

    pub async fn delete_provider(&self, principal: &Principal, id: &ProviderId, versions: Option<&[i64]>) -> Result<()> {
        let deps = self.provider_deps()?;
        for _ in 0..TRIES {
            let record = self.changeable(principal, id, versions).await?;
            if self.store.delete_provider(record.owner.as_ref(), id, record.version).await? {
                deps.endpoints.forget_client(id);
                return Ok(());
            }
        }
        Err(Error::Stale)
    }

    /// Requests a one-word answer from the named model, or from the first known one.
    pub async fn test_provider(&self, principal: &Principal, id: &ProviderId, model: Option<String>) -> Result<TestedProvider> {
        let provider = self.provider(principal, id).await?;
        let endpoints = &self.provider_deps()?.endpoints;
        let (target, configured_model) = match &provider {
            AnyProvider::Configured(_) => (None, None),
            AnyProvider::Stored(record) => (Some(self.target(record)?), record.models.first().map(|model| model.name.clone())),
        };
        let started_at = Instant::now();
        let done = |model: String, error: Option<ModelError>| {
            let latency_ms = u64::try_from(started_at.elapsed().as_millis()).unwrap_or(u64::MAX);
            let error = error.map(|error| ProblemCode::from(error.kind).body(error.message));
            TestedProvider { ok: error.is_none(), model, latency_ms, error }
        };
        let model = match model.or(configured_model) {
            Some(model) => model,
            None => {
                let listed = match &target {
                    Some(target) => endpoints.models(target).await,
                    None => endpoints.models_of_configured(provider.name()).await,
                };
                match listed.map(|listed| listed.into_iter().find(|model| model.chats != Some(false))) {
                    Ok(Some(first)) => first.name,
                    Ok(None) => return Err(Error::field("/model", "must be given: the provider lists no models")),
                    Err(error) => return Ok(done(String::new(), Some(error))),
                }
            }
        };
        let outcome = match &target {
            Some(target) => endpoints.test(target, &model).await,
            None => endpoints.test_configured(provider.name(), &model).await,
        };
        Ok(done(model, outcome.err()))
    }

    /// Returns the record, if the principal may change it. If versions are named, the record must have one of them.
    async fn changeable(&self, principal: &Principal, id: &ProviderId, versions: Option<&[i64]>) -> Result<ProviderRecord> {
        let record = match self.provider(principal, id).await? {
            AnyProvider::Stored(record) => *record,
            AnyProvider::Configured(_) => return Err(Error::Forbidden("providers of the configuration can only be changed there")),
        };
        may_change(principal, record.owner.as_ref(), &PROVIDERS)?;
        check_version(versions, record.version)?;
        Ok(record)
    }

    async fn apply_patch(&self, principal: &Principal, before: &ProviderRecord, patch: &ProviderPatch) -> Result<ProviderRecord> {
        let mut after = before.clone();
        after.name = patch.name.clone().unwrap_or(after.name);
        after.kind = patch.kind.unwrap_or(after.kind);
        if let Some(url) = &patch.base_url {
            after.base_url.clone_from(url);
            after.egress = egress_of(principal);
        }
        after.models = patch.models.clone().unwrap_or(after.models);
        after.limits = patch.limits.unwrap_or(after.limits);
        after.quirks = patch.accent.clone().unwrap_or(after.quirks);
        after.enabled = patch.enabled.unwrap_or(after.enabled);
        check(&after)?;
        if patch.key.is_none() && after.key.is_some() && origin(&after.base_url) != origin(&before.base_url) {
            let detail = "has another host than the stored key was given for: send the key again, or null to remove it";
            return Err(Error::field("/base_url", detail));
        }
        match &patch.key {
            Some(key) => self.put_key(&mut after, key.clone()).await?,
            None => self.check_target(&after, after.key.as_ref().map(|_| SecretString::from("key")))?,
        }
        Ok(after)
    }

    /// Stores a key in a record, encrypted, or removes it.
    pub(in crate::service) async fn put_key(&self, record: &mut ProviderRecord, key: Option<SecretString>) -> Result<()> {
        let key = key.map(|key| SecretString::from(key.expose_secret().trim()));
        if let Some(key) = &key {
            let key = key.expose_secret();
            if key.is_empty() || key.len() > MAX_KEY_BYTES || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
                let detail =
                    format!("must be 1 to {MAX_KEY_BYTES} visible ASCII characters; leave it out for a provider without one");
                return Err(Error::field("/key", detail));
            }
        }
        self.check_target(record, key.clone())?;
        record.key = None;
        if let Some(key) = key {
            record.key =
                Some(StoredSecret { encrypted: self.encrypt(&record.key_place(), &key).await?, hint: hint(key.expose_secret()) });
        }
        Ok(())
    }

    fn check_target(&self, record: &ProviderRecord, key: Option<SecretString>) -> Result<()> {
        let deps = self.provider_deps()?;
        let target = Target { record, egress: now(record.egress, deps.member_egress), key };
        deps.endpoints.check(&target).map_err(|InvalidProvider { pointer, reason }| Error::field(pointer, reason))
    }

    /// Encrypts a secret. For the first secret, creates the master key if none is configured and no other process can use the
    /// database. Creates no new master key while secrets with another one exist, because each process would know only one of them.
    pub(in crate::service) async fn encrypt(
        &self,
        associated_data: &AssociatedData<'_>,
        secret: &SecretString,
    ) -> Result<EncryptedSecret> {
        let vault = &self.provider_deps()?.vault;
        let encrypted = match vault.encrypt(associated_data, secret) {
            Err(EncryptionError::NoKey(_)) if self.store.is_shared() => {
                let detail = "this server has no master key to encrypt keys, and creates none because other processes may use \
                 its database: the operator must set CAPSTAN_SECRET_KEY, the same for all of them, or run `capstan secrets \
                 rotate --new-key` with the data folder that they share";
                return Err(Error::conflict(detail));
            }
            Err(EncryptionError::NoKey(_)) => {
                let id = vault.make_first_key().map_err(Error::Encryption)?;
                tracing::info!(key.id = id, file = ?vault.file(), "created the first master key; keep a copy of the file");
                vault.encrypt(associated_data, secret)
            }
            encrypted => encrypted,
        };
        let encrypted = encrypted.map_err(Error::Encryption)?;
        let in_use = self.store.master_keys_in_use().await?;
        match in_use.into_iter().find(|(id, _)| !vault.has_key(id)) {
            Some((id, _)) => Err(Error::Conflict(format!(
                "the database contains keys that are encrypted with the master key {id}, which this process does not have: the \
                 operator must give it to every process, as CAPSTAN_SECRET_KEY or in CAPSTAN_SECRET_KEY_PREVIOUS"
            ))),
            None => Ok(encrypted),
        }
    }

    pub(in crate::service) fn target<'a>(&self, record: &'a ProviderRecord) -> Result<Target<'a>> {
        let deps = self.provider_deps()?;
        open_target(&deps.vault, record, deps.member_egress).map_err(Error::Encryption)
    }
}

/// Decrypts the key of a record, or fails. `member_egress` contains the addresses that URLs of members may have.
pub fn open_target<'a>(
    vault: &Vault,
    record: &'a ProviderRecord,
    member_egress: EgressScope,
) -> std::result::Result<Target<'a>, EncryptionError> {
    let key = record.key.as_ref().map(|key| vault.decrypt(&record.key_place(), &key.encrypted)).transpose()?;
    Ok(Target { record, egress: now(record.egress, member_egress), key })
}

/// Returns the addresses that a URL may have, by the role of the user who set it.
pub(in crate::service) fn egress_of(principal: &Principal) -> EgressScope {
    match principal.role {
        UserRole::Admin => EgressScope::Anywhere,
        UserRole::Member => EgressScope::Public,
    }
}

/// Returns the addresses that a URL may have, by the current settings.
fn now(by_role: EgressScope, of_members: EgressScope) -> EgressScope {
    match by_role {
        EgressScope::Anywhere => EgressScope::Anywhere,
        EgressScope::Public | EgressScope::Listed(_) => of_members,
    }
}

pub fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    name.len() <= MAX_NAME_CHARS
        && bytes.next().is_some_and(|first| first.is_ascii_lowercase() || first.is_ascii_digit())
        && bytes.all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_' | b'.'))
}

/// Checks the fields that are the same for all kinds.
fn check(record: &ProviderRecord) -> Result<()> {
    if !is_name(&record.name) {
        let detail = format!("must have 1 to {MAX_NAME_CHARS} of a-z, 0-9, -, _ and ., and begin with a letter or digit");
        return Err(Error::field("/name", detail));
    }
    if record.base_url.len() > MAX_URL_BYTES {
        return Err(Error::field("/base_url", format!("must have at most {MAX_URL_BYTES} bytes")));
    }
    // Some clients parse a URL with spaces, control characters or a user differently, and would connect to another host.
    let host = record.base_url.split_once("://").map(|(_, rest)| authority(rest));
    if host.is_none_or(str::is_empty) || record.base_url.contains(|c: char| c.is_control() || c.is_whitespace()) {
        return Err(Error::field("/base_url", "must be a URL such as https://api.example.com/v1"));
    }
    if host.is_some_and(|host| host.contains('@')) {
        return Err(Error::field("/base_url", "must not contain a user or password; send the key as key"));
    }
    if record.base_url.contains('#') || !has_plain_query(&record.base_url) {
        let detail = "may have no query except api-version=..., and no fragment, because all users of the provider see it; \
         send a key as key";
        return Err(Error::field("/base_url", detail));
    }
    check_limits("/limits", &record.limits)?;
    check_quirks(record)?;
    if record.models.len() > MAX_MODELS {
        return Err(Error::field("/models", format!("must be at most {MAX_MODELS}")));
    }
    for (index, model) in record.models.iter().enumerate() {
        let pointer = format!("/models/{index}/name");
        if !is_short(&model.name, MAX_MODEL_CHARS) {
            let detail = format!("must have 1 to {MAX_MODEL_CHARS} characters, and no control characters");
            return Err(Error::field(&pointer, detail));
        }
        if record.models.iter().take(index).any(|other| other.name == model.name) {
            return Err(Error::field(&pointer, "occurs twice"));
        }
        for (field, tokens) in [("context", model.context), ("max_output", model.max_output)] {
            if tokens == Some(0) {
                return Err(Error::field(&format!("/models/{index}/{field}"), "must be at least 1"));
            }
        }
        if let Some(limits) = &model.limits {
            check_limits(&format!("/models/{index}/limits"), limits)?;
            if limits.connect_ms.is_some() {
                let detail = "is the same for all models of a provider: set it in the provider's limits";
                return Err(Error::field(&format!("/models/{index}/limits/connect_ms"), detail));
            }
        }
    }
    Ok(())
}

fn check_limits(pointer: &str, limits: &CallLimits) -> Result<()> {
    match limits.named().into_iter().find(|(_, ms)| ms.is_some_and(|ms| !(1..=MAX_LIMIT_MS).contains(&ms))) {
        Some((name, _)) => Err(Error::field(&format!("{pointer}/{name}"), format!("must be 1 to {MAX_LIMIT_MS}"))),
        None => Ok(()),
    }
}

/// Checks whether the provider can have quirks. The dialect checks their content.
fn check_quirks(record: &ProviderRecord) -> Result<()> {
    let Some(quirks) = &record.quirks else { return Ok(()) };
    match record.kind {
        ProviderKind::Openai => {}
        ProviderKind::OpenaiResponses | ProviderKind::Anthropic | ProviderKind::Gemini | ProviderKind::Ollama => {
            return Err(Error::field("/accent", "is only allowed for the kind openai"));
        }
    }
    let whole = Value::Object(quirks.clone());
    if whole.to_string().len() > MAX_QUIRKS_BYTES {
        return Err(Error::field("/accent", format!("must have at most {MAX_QUIRKS_BYTES} bytes")));
    }
    let url = quirks.get("url").and_then(Value::as_str).unwrap_or_default();
    if !has_plain_query(url) || holds_secret(&whole) {
        return Err(Error::field(
            "/accent",
            "must not contain a secret, because all users of the provider see it; send a key as key",
        ));
    }
    Ok(())
}

/// Returns whether the query of a URL certainly contains no key.
fn has_plain_query(url: &str) -> bool {
    let is_plain = |value: &str| value.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'));
    match url.split_once('?') {
        None => true,
        Some((_, query)) => query.strip_prefix("api-version=").is_some_and(|value| value.len() <= 32 && is_plain(value)),
    }
}

fn holds_secret(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.iter().any(|(name, value)| names_secret(name) || holds_secret(value)),
        Value::Array(items) => items.iter().any(holds_secret),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// Returns scheme, host and port of a URL as written.
pub(in crate::service) fn origin(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    format!("{scheme}://{}", authority(rest)).to_ascii_lowercase()
}

fn authority(rest: &str) -> &str {
    rest.split(['/', '?', '#', '\\']).next().unwrap_or_default()
}

fn hint(key: &str) -> Option<String> {
    // Keys are ASCII: see `put_key`.
    let end = key.get(key.len().checked_sub(HINT_CHARS)?..)?;
    (key.len() >= MIN_HINTED_CHARS).then(|| format!("…{end}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_can_stand_before_a_slash() {
        for name in ["openai", "my-own_2.x", "0"] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", "-x", "A", "a/b", "a b", "ä", &"x".repeat(65)] {
            assert!(!is_name(name), "{name}");
        }
    }

    #[test]
    fn of_long_keys_the_end_is_shown() {
        assert_eq!(hint("sk-0123456789abcdefg"), Some("…defg".to_owned()));
        assert_eq!(hint("sk-0123456789abcdef"), None);
    }

    #[test]
    fn a_key_was_given_for_a_host() {
        assert_eq!(origin("https://Host:1/a?b"), origin("HTTPS://host:1?c"));
        assert_ne!(origin("https://host/a"), origin("http://host/a"));
        assert_ne!(origin("https://host/a"), origin("https://host.evil/a"));
        assert_eq!(origin("https://host"), origin("https://host\\.evil"), "the backslash begins a path");
    }
}
