//! Logins at OpenRouter: the owner gives consent there, and gets a provider with a key here.
//!
//! OAuth with PKCE (RFC 7636), where this server is the client: <https://openrouter.ai/docs/use-cases/oauth-pkce>. The end of a
//! login is bound to its beginning, by the caller's key or by a secret of the browser. Without that, an attacker could lead others
//! through a login that the attacker began, and would receive their keys.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use secrecy::{ExposeSecret as _, SecretString};
use sha2::{Digest as _, Sha256};

use crate::domain::access::principal::Principal;
use crate::domain::ids::{ProviderId, UserId};
use crate::domain::model::provider::{EgressScope, ProviderKind, ProviderRecord};
use crate::service::access::keys::{MAX_KEY_BYTES, hash_key, secret};
use crate::service::{Access, Error, Result, Service};
use crate::store::{IdempotentOutcome, LoginClaimant, PageRequest, ProviderChanged, ProviderCursor, ProviderLogin, ProviderMade};
use crate::support::encryption::AssociatedData;

/// The time limit for the owner's consent, in milliseconds.
pub(in crate::service) const LIFETIME_MS: u32 = 600_000;

/// The name of the provider that a login creates.
const NAME: &str = "openrouter";

const PURPOSE: &str = "provider_login";

pub(in crate::service) const MAX_CODE_BYTES: usize = 2_048;

pub struct StartedLogin {
    /// The URL at which the owner gives consent.
    pub url: String,
    /// Distinguishes the logins that one browser has begun.
    pub mark: String,
    /// The secret that the browser sends when it returns.
    pub browser: String,
    pub lifetime_seconds: u32,
}

#[derive(Clone, Copy)]
pub enum LoginParty<'a> {
    Caller(&'a Principal),
    Browser(&'a str),
}

impl LoginParty<'_> {
    /// Returns the caller that may complete the login. Knowing the state alone is not enough.
    pub(in crate::service) fn claimant(self) -> LoginClaimant {
        match self {
            Self::Caller(principal) => LoginClaimant::Owner(principal.user_id.clone()),
            Self::Browser(shown) => LoginClaimant::Browser(hash_key(shown)),
        }
    }
}

/// Distinguishes the logins of one browser by the state that the server returns.
pub fn login_mark(state: &str) -> String {
    hash_key(state).chars().filter(char::is_ascii_alphanumeric).take(16).collect()
}

pub(in crate::service) fn associated_data<'a>(purpose: &'static str, owner: &'a UserId, state_hash: &'a str) -> AssociatedData<'a> {
    AssociatedData { purpose, owner: Some(owner.as_str()), record: state_hash }
}

pub(in crate::service) fn unknown() -> Error {
    Error::invalid("this login is unknown, was already completed, or began more than 10 minutes ago: begin a new one")
}

pub(in crate::service) struct LoginSecrets {
    pub(in crate::service) state: String,
    pub(in crate::service) verifier: SecretString,
    browser: String,
}

impl LoginSecrets {
    pub(in crate::service) fn new() -> Result<Self> {
        let random = |prefix: &str| secret(prefix).map_err(Error::NoRandomness);
        Ok(Self { state: random("login_")?, browser: random("browser_")?, verifier: SecretString::from(random("")?) })
    }

    pub(in crate::service) fn into_started(self, url: String) -> StartedLogin {
        let mark = login_mark(&self.state);
        StartedLogin { url, mark, browser: self.browser, lifetime_seconds: LIFETIME_MS / 1000 }
    }
}

impl Service {
    /// Encrypts `payload`, a secret that the end of the login needs. Returns the hash of the login's state, and the login as
    /// stored.
    pub(in crate::service) async fn login_of(
        &self,
        access: &Access,
        purpose: &'static str,
        secrets: &LoginSecrets,
        payload: &SecretString,
    ) -> Result<(String, ProviderLogin)> {
        let (owner, state_hash) = (access.principal().user_id.clone(), hash_key(&secrets.state));
        let verifier = self.encrypt(&associated_data(purpose, &owner, &state_hash), payload).await?;
        let key_hash = access.key_hash().map(str::to_owned);
        Ok((state_hash, ProviderLogin { owner, browser_hash: hash_key(&secrets.browser), key_hash, verifier }))
    }

    /// Begins a login, which replaces an earlier one of the same owner. The browser returns to `callback`, with `?state=` added.
    pub async fn begin_login(&self, access: &Access, callback: &str) -> Result<StartedLogin> {
        let endpoints = &self.provider_deps()?.endpoints;
        let secrets = LoginSecrets::new()?;
        let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(secrets.verifier.expose_secret()));
        let (state_hash, login) = self.login_of(access, PURPOSE, &secrets, &secrets.verifier).await?;
        self.store.create_login(&state_hash, &login, LIFETIME_MS).await?;
        let url = endpoints.login_url(&format!("{callback}?state={}", secrets.state), &challenge).map_err(Error::Conflict)?;
        Ok(secrets.into_started(url))
    }

    /// Completes a login: exchanges the code for a key, and stores it in the owner's provider `openrouter`, which is created if it
    /// is missing.
    pub async fn finish_login(&self, party: LoginParty<'_>, state: &str, code: &str) -> Result<ProviderRecord> {
        let deps = self.provider_deps()?;
        if state.len() > MAX_KEY_BYTES || code.is_empty() || code.len() > MAX_CODE_BYTES {
            return Err(unknown());
        }
        let state_hash = hash_key(state);
        let login = self.store.take_login(&state_hash, &party.claimant()).await?.ok_or_else(unknown)?;
        // A browser returns on behalf of the API key that began the login.
        if let (LoginParty::Browser(_), Some(hash)) = (party, &login.key_hash)
            && self.access_by_hash(hash.clone()).await?.is_none_or(|access| access.principal().user_id != login.owner)
        {
            return Err(unknown());
        }
        let verifier =
            deps.vault.decrypt(&associated_data(PURPOSE, &login.owner, &state_hash), &login.verifier).map_err(|_| unknown())?;
        let key = deps.endpoints.exchange(code, &verifier).await.map_err(Error::Provider)?;
        let record = self.keep_key(&login.owner, &key).await?;
        deps.endpoints.forget_client(&record.id);
        tracing::info!(provider.id = %record.id, "login at OpenRouter completed");
        Ok(record)
    }

    async fn keep_key(&self, owner: &UserId, key: &SecretString) -> Result<ProviderRecord> {
        let deps = self.provider_deps()?;
        let now = self.clock.now();
        let id = || ProviderId::generate(self.ids.as_ref());
        let new = || ProviderRecord::new(id(), Some(owner.clone()), NAME.to_owned(), ProviderKind::Openai, now);
        let before = self.own_provider(owner, NAME).await?;
        let is_new = before.is_none();
        let mut record = before.unwrap_or_else(new);
        // The URL that the server is configured to use.
        record.base_url = deps.endpoints.login_api();
        (record.kind, record.egress, record.enabled, record.updated_at) = (ProviderKind::Openai, EgressScope::Anywhere, true, now);
        self.put_key(&mut record, Some(key.clone())).await?;
        if is_new {
            match self.store.create_provider(&record, deps.max_per_owner, None).await? {
                IdempotentOutcome::Fresh(ProviderMade::Made(_)) => return Ok(record),
                IdempotentOutcome::Fresh(ProviderMade::TooMany) => {
                    return Err(Error::conflict("the limit of providers is reached; delete one"));
                }
                IdempotentOutcome::Fresh(ProviderMade::NameTaken)
                | IdempotentOutcome::Replayed(_)
                | IdempotentOutcome::Mismatch => {}
            }
        } else if let ProviderChanged::Changed(version) = self.store.change_provider(&record).await? {
            return Ok(ProviderRecord { version, ..record });
        }
        Err(Error::conflict("another request changed the provider openrouter at the same time; log in again"))
    }

    /// Returns the owner's own provider with that name, enabled or not.
    async fn own_provider(&self, owner: &UserId, name: &str) -> Result<Option<ProviderRecord>> {
        // The cursor is before all records with that name, because no id is empty. At most two records have the name: the owner's,
        // and one for all users.
        let after = ProviderCursor { name: name.to_owned(), id: ProviderId::from_stored(String::new()) };
        let page = self.store.providers(owner, &PageRequest { limit: 2, after: Some(after) }).await?;
        Ok(page.items.into_iter().find(|record| record.name == name && record.owner.as_ref() == Some(owner)))
    }
}
