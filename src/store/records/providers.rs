//! Providers that owners keep, and logins at providers: the trait and its values.

use async_trait::async_trait;

use crate::domain::ids::{ProviderId, UserId};
use crate::domain::model::provider::ProviderRecord;
use crate::store::records::named::{NameCursor, NamedChanged, NamedMade};
use crate::store::{IdempotencyClaim, Keyed, Page, PageRequest, StoreResult};
use crate::support::seal::Sealed;

pub type ProviderCursor = NameCursor<ProviderId>;

pub type ProviderMade = NamedMade<ProviderId>;

pub type ProviderChanged = NamedChanged;

/// A login at a provider that is under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderLogin {
    pub owner: UserId,
    /// SHA-256 of what the browser shows that has begun it.
    pub browser_hash: String,
    /// SHA-256 of the key that it was begun with; `None` on a server without keys.
    pub key_hash: Option<String>,
    pub verifier: Sealed,
}

/// The caller that takes a login under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoginTaker {
    Owner(UserId),
    /// The browser that shows what hashes to this.
    Browser(String),
}

impl LoginTaker {
    /// The owner and the hash of whom a login must be, one of them.
    pub(in crate::store) fn parts(&self) -> (Option<&str>, Option<&str>) {
        match self {
            Self::Owner(owner) => (Some(owner.as_str()), None),
            Self::Browser(hash) => (None, Some(hash)),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecretOf {
    /// A provider: its key.
    Provider,
    /// An MCP server: the values of the names in its entry.
    McpServer,
    /// A login at an MCP server: its tokens.
    McpTokens,
}

impl SecretOf {
    /// Reads the word that queries say.
    pub(in crate::store) fn from_word(word: &str) -> Option<Self> {
        match word {
            "provider" => Some(Self::Provider),
            "mcp_server" => Some(Self::McpServer),
            "mcp_tokens" => Some(Self::McpTokens),
            _ => None,
        }
    }
}

/// A secret of any row, as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedRow {
    pub of: SecretOf,
    /// The owner; `None` for the server.
    pub owner: Option<UserId>,
    /// The row's id. None of one sort is one of another.
    pub id: String,
    pub sealed: Sealed,
}

/// Providers of owners and of the server. A viewer sees their own and the server's.
#[async_trait]
pub trait ProviderStore: Send + Sync {
    /// Stores a provider, unless its owner has `most` already. Idempotent by `idempotency`.
    async fn create_provider(
        &self,
        new: &ProviderRecord,
        most: u32,
        idempotency: Option<IdempotencyClaim>,
    ) -> StoreResult<Keyed<ProviderMade>>;

    /// Returns the provider, unless it is missing or another owner's.
    async fn provider(&self, viewer: &UserId, id: &ProviderId) -> StoreResult<Option<ProviderRecord>>;

    /// A page of providers, by name.
    async fn providers(&self, viewer: &UserId, page: &PageRequest<ProviderCursor>) -> StoreResult<Page<ProviderRecord>>;

    /// The enabled provider that a name stands for: the owner's own, or else the server's.
    async fn provider_named(&self, owner: &UserId, name: &str) -> StoreResult<Option<ProviderRecord>>;

    /// Stores a changed provider: all but owner and `created_at`. `version` is the one that it was changed from.
    async fn change_provider(&self, changed: &ProviderRecord) -> StoreResult<ProviderChanged>;

    /// Deletes a provider of that owner, or of the server. False if there is none of that version.
    async fn delete_provider(&self, owner: Option<&UserId>, id: &ProviderId, version: i64) -> StoreResult<bool>;

    /// Stores a login for `lifetime_ms`, by the database's clock. It replaces an earlier one of its owner.
    async fn create_login(&self, state_hash: &str, login: &ProviderLogin, lifetime_ms: u32) -> StoreResult<()>;

    /// Takes a login, if it is the taker's: one of concurrent callers gets it. `None` if it is unknown, another owner's, taken or expired.
    async fn take_login(&self, state_hash: &str, taker: &LoginTaker) -> StoreResult<Option<ProviderLogin>>;

    /// Returns the master keys that encrypt secrets, each with the number of its secrets.
    async fn master_keys_in_use(&self) -> StoreResult<Vec<(String, i64)>>;

    /// Returns secrets by id, after the given one, at most `limit`.
    async fn sealed_rows(&self, after: Option<&str>, limit: u32) -> StoreResult<Vec<SealedRow>>;

    /// Replaces the secret of `row` by the same one under another key, or removes it. Returns false if it is not there any more.
    async fn reseal(&self, row: &SealedRow, anew: Option<&Sealed>) -> StoreResult<bool>;
}
