//! Logging in at OpenRouter: the owner agrees there, and gets a provider here whose key nobody has typed.
//!
//! OAuth with PKCE (RFC 7636), where this server is the client: <https://openrouter.ai/docs/use-cases/oauth-pkce>. What comes back is
//! bound to who began it, by the key that the caller shows or by what the browser was given then: else anybody could send others
//! through a login of their own, and would get their keys.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use secrecy::{ExposeSecret as _, SecretString};
use sha2::{Digest as _, Sha256};

use super::keys::{MAX_KEY_BYTES, hash_key, secret};
use super::{Access, Error, Result, Service};
use crate::domain::ids::{ProviderId, UserId};
use crate::domain::principal::Principal;
use crate::domain::provider::{CallLimits, ProviderKind, ProviderRecord, Reach};
use crate::store::{LoginTaker, PageRequest, ProviderChanged, ProviderCursor, ProviderLogin, ProviderMade};
use crate::support::seal::Place;

/// How long the owner has to agree, in milliseconds.
pub(super) const LIFETIME_MS: u32 = 600_000;

/// The provider that a login makes.
const NAME: &str = "openrouter";

/// The longest code that is believed to be one.
pub(super) const MAX_CODE_BYTES: usize = 2_048;

/// A login that has begun.
pub struct BegunLogin {
    /// Where the owner agrees.
    pub url: String,
    /// Which of the logins that a browser may have begun it is.
    pub mark: String,
    /// What the browser shows when it comes back.
    pub browser: String,
    /// For how long, in seconds.
    pub lifetime_seconds: u32,
}

/// Who comes back from a login.
#[derive(Clone, Copy)]
pub enum ComesBack<'a> {
    /// Somebody who has shown a key.
    Caller(&'a Principal),
    /// A browser with what it was given.
    Browser(&'a str),
}

/// What tells the logins of one browser apart, by the state that comes back.
#[must_use]
pub fn login_mark(state: &str) -> String {
    hash_key(state).chars().filter(char::is_ascii_alphanumeric).take(16).collect()
}

/// The place of a verifier.
fn place<'a>(owner: &'a UserId, state_hash: &'a str) -> Place<'a> {
    Place { purpose: "provider_login", owner: Some(owner.as_str()), record: state_hash }
}

impl Service {
    /// Begins a login, in the place of an earlier one of the same owner. `callback` is where the browser comes back to, without the
    /// state, which is added as `?state=`.
    pub async fn begin_login(&self, access: &Access, callback: &str) -> Result<BegunLogin> {
        let endpoints = &self.provider_deps()?.endpoints;
        let random = |prefix: &str| secret(prefix).map_err(Error::NoRandomness);
        let (state, browser, verifier) = (random("login_")?, random("browser_")?, SecretString::from(random("")?));
        let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.expose_secret()));
        let (owner, state_hash) = (access.principal().user_id.clone(), hash_key(&state));
        let verifier = self.seal(&place(&owner, &state_hash), &verifier).await?;
        let key_hash = access.key_hash().map(str::to_owned);
        let login = ProviderLogin { owner, browser_hash: hash_key(&browser), key_hash, verifier };
        self.store.create_login(&state_hash, &login, LIFETIME_MS).await?;
        let url = endpoints.login_url(&format!("{callback}?state={state}"), &challenge).map_err(Error::Conflict)?;
        Ok(BegunLogin { url, mark: login_mark(&state), browser, lifetime_seconds: LIFETIME_MS / 1000 })
    }

    /// Ends a login: gets the key for the code, and puts it into the owner's provider `openrouter`, which is made if it is missing.
    pub async fn finish_login(&self, who: ComesBack<'_>, state: &str, code: &str) -> Result<ProviderRecord> {
        let deps = self.provider_deps()?;
        let unknown = || Error::invalid("this login is unknown, is used up, or began more than 10 minutes ago: begin it anew");
        if state.len() > MAX_KEY_BYTES || code.is_empty() || code.len() > MAX_CODE_BYTES {
            return Err(unknown());
        }
        let state_hash = hash_key(state);
        // Whoever has only learnt the state takes nothing out.
        let taker = match who {
            ComesBack::Caller(principal) => LoginTaker::Owner(principal.user_id.clone()),
            ComesBack::Browser(shown) => LoginTaker::Browser(hash_key(shown)),
        };
        let login = self.store.take_login(&state_hash, &taker).await?.ok_or_else(unknown)?;
        // A browser comes back on behalf of the key that it was sent away with.
        if let (ComesBack::Browser(_), Some(hash)) = (who, &login.key_hash)
            && self.access_by_hash(hash.clone()).await?.is_none_or(|access| access.principal().user_id != login.owner)
        {
            return Err(unknown());
        }
        let verifier = deps.vault.open(&place(&login.owner, &state_hash), &login.verifier).map_err(|_| unknown())?;
        let key = deps.endpoints.exchange(code, &verifier).await.map_err(Error::Provider)?;
        let record = self.keep_key(&login.owner, &key).await?;
        deps.endpoints.changed(&record.id);
        tracing::info!(provider.id = %record.id, "a login at OpenRouter gave a key");
        Ok(record)
    }

    async fn keep_key(&self, owner: &UserId, key: &SecretString) -> Result<ProviderRecord> {
        let deps = self.provider_deps()?;
        let now = self.clock.now();
        let new = || ProviderRecord {
            id: ProviderId::generate(self.ids.as_ref()),
            owner: Some(owner.clone()),
            name: NAME.to_owned(),
            kind: ProviderKind::Openai,
            base_url: String::new(),
            reach: Reach::Anywhere,
            key: None,
            models: Vec::new(),
            limits: CallLimits::default(),
            accent: None,
            enabled: true,
            created_at: now,
            updated_at: now,
            version: 1,
        };
        let before = self.own_provider(owner, NAME).await?;
        let is_new = before.is_none();
        let mut record = before.unwrap_or_else(new);
        // Where the server itself is configured to go.
        record.base_url = deps.endpoints.login_api();
        (record.kind, record.reach, record.enabled, record.updated_at) = (ProviderKind::Openai, Reach::Anywhere, true, now);
        self.put_key(&mut record, Some(key.clone())).await?;
        if is_new {
            match self.store.create_provider(&record, deps.max_per_owner, None).await? {
                crate::store::Keyed::Fresh(ProviderMade::Made(_)) => return Ok(record),
                crate::store::Keyed::Fresh(ProviderMade::TooMany) => {
                    return Err(Error::Conflict("this owner has as many providers as one may have; delete one".to_owned()));
                }
                crate::store::Keyed::Fresh(ProviderMade::NameTaken)
                | crate::store::Keyed::Replayed(_)
                | crate::store::Keyed::Mismatch => {}
            }
        } else if let ProviderChanged::Changed(version) = self.store.change_provider(&record).await? {
            return Ok(ProviderRecord { version, ..record });
        }
        Err(Error::Conflict("the provider openrouter was changed in the same moment; log in once more".to_owned()))
    }

    /// The owner's own provider of a name, whether or not it is enabled.
    async fn own_provider(&self, owner: &UserId, name: &str) -> Result<Option<ProviderRecord>> {
        // Before any of that name: no id is empty. There are two of a name at most, one of them the server's.
        let after = ProviderCursor { name: name.to_owned(), id: ProviderId::from_stored(String::new()) };
        let page = self.store.providers(owner, &PageRequest { limit: 2, after: Some(after) }).await?;
        Ok(page.items.into_iter().find(|record| record.name == name && record.owner.as_ref() == Some(owner)))
    }
}
