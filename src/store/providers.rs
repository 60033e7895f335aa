//! What is kept of providers: the trait, its values, and how rows become them.

use std::fmt;
use std::str::FromStr;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use sqlx::{ColumnIndex, Decode, Row, Type};

use super::pages::written_by_us;
use super::{IdempotencyClaim, InvalidCursor, Keyed, Page, PageRequest, StoreResult};
use crate::domain::ids::{ProviderId, UserId};
use crate::domain::provider::ProviderRecord;
use crate::support::seal::Sealed;

/// The last one of a page that goes by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameCursor<I> {
    /// Its name.
    pub name: String,
    /// Which one of that name it is.
    pub id: I,
}

/// The last provider of a page.
pub type ProviderCursor = NameCursor<ProviderId>;

impl<I: fmt::Display> fmt::Display for NameCursor<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, self.id)
    }
}

impl<I: FromStr + fmt::Display> FromStr for NameCursor<I> {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        let (name, id) = text.rsplit_once(':').ok_or(InvalidCursor)?;
        let cursor = Self { name: name.to_owned(), id: id.parse().map_err(|_| InvalidCursor)? };
        written_by_us(cursor, text)
    }
}

/// What came of making something that an owner keeps under a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NamedMade<I> {
    /// It is stored.
    Made(I),
    /// The owner has one of this name. Nothing is stored.
    NameTaken,
    /// The owner has as many as one may have. Nothing is stored.
    TooMany,
}

/// What came of making a provider.
pub type ProviderMade = NamedMade<ProviderId>;

/// What came of changing something that an owner keeps under a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NamedChanged {
    /// It is stored, with this version.
    Changed(i64),
    /// It is not of the version that the change was made from, or is gone. Nothing is changed.
    Stale,
    /// The owner has another one of this name. Nothing is changed.
    NameTaken,
}

/// What came of changing a provider.
pub type ProviderChanged = NamedChanged;

/// A login at a provider that is under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderLogin {
    /// Whose it is.
    pub owner: UserId,
    /// SHA-256 of what the browser shows that has begun it.
    pub browser_hash: String,
    /// SHA-256 of the key that it was begun with; `None` on a server without keys.
    pub key_hash: Option<String>,
    /// The verifier.
    pub verifier: Sealed,
}

/// Who asks for a login that is under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoginTaker {
    /// Its owner.
    Owner(UserId),
    /// The browser that shows what hashes to this.
    Browser(String),
}

impl LoginTaker {
    /// The owner and the hash of whom a login must be, one of them.
    pub(super) fn parts(&self) -> (Option<&str>, Option<&str>) {
        match self {
            Self::Owner(owner) => (Some(owner.as_str()), None),
            Self::Browser(hash) => (None, Some(hash)),
        }
    }
}

/// What has a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecretOf {
    /// A provider: its key.
    Provider,
    /// An MCP server: what stands in the place of the names in its entry.
    McpServer,
    /// A login at an MCP server: its tokens.
    McpTokens,
}

impl SecretOf {
    /// Reads the word that queries say.
    pub(super) fn from_word(word: &str) -> Option<Self> {
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
    /// What has it.
    pub of: SecretOf,
    /// Whose it is; `None` if it is the server's.
    pub owner: Option<UserId>,
    /// The row's id. None of one sort is one of another.
    pub id: String,
    /// The secret.
    pub sealed: Sealed,
}

/// Providers that people keep. Those of an owner and those of the server: nobody sees the others.
#[async_trait]
pub trait ProviderStore: Send + Sync {
    /// Stores a provider, unless its owner has `most` already. Idempotent by `idempotency`.
    async fn create_provider(
        &self,
        new: &ProviderRecord,
        most: u32,
        idempotency: Option<IdempotencyClaim>,
    ) -> StoreResult<Keyed<ProviderMade>>;

    /// The provider, unless it is missing or another owner's.
    async fn provider(&self, viewer: &UserId, id: &ProviderId) -> StoreResult<Option<ProviderRecord>>;

    /// A page of providers, by name.
    async fn providers(&self, viewer: &UserId, page: &PageRequest<ProviderCursor>) -> StoreResult<Page<ProviderRecord>>;

    /// The enabled provider that a name stands for: the owner's own, or else the server's.
    async fn provider_named(&self, owner: &UserId, name: &str) -> StoreResult<Option<ProviderRecord>>;

    /// Stores a changed provider: all but owner and `created_at`. `version` is the one that it was changed from.
    async fn change_provider(&self, changed: &ProviderRecord) -> StoreResult<ProviderChanged>;

    /// Deletes a provider of that owner, or of the server. False if there is none of that version.
    async fn delete_provider(&self, owner: Option<&UserId>, id: &ProviderId, version: i64) -> StoreResult<bool>;

    /// Keeps a login for `lifetime_ms`, by the database's clock, in the place of an earlier one of its owner.
    async fn create_login(&self, state_hash: &str, login: &ProviderLogin, lifetime_ms: u32) -> StoreResult<()>;

    /// Takes a login out, if it is the taker's: of all that ask for it, one gets it. `None` if it is unknown, somebody else's, was
    /// taken or has expired.
    async fn take_login(&self, state_hash: &str, taker: &LoginTaker) -> StoreResult<Option<ProviderLogin>>;

    /// The master keys with which secrets are sealed, and how many secrets each.
    async fn master_keys_in_use(&self) -> StoreResult<Vec<(String, i64)>>;

    /// Secrets in an order of their own, after the given one, at most `limit`.
    async fn sealed_rows(&self, after: Option<&str>, limit: u32) -> StoreResult<Vec<SealedRow>>;

    /// Puts the same secret, sealed anew, in the place of `row`'s; or none. False if it is not there any more.
    async fn reseal(&self, row: &SealedRow, anew: Option<&Sealed>) -> StoreResult<bool>;
}

/// Reads `key_id` and `key_data`.
pub(super) fn read_sealed<'r, R>(row: &'r R) -> Result<Option<Sealed>, sqlx::Error>
where
    R: Row,
    &'static str: ColumnIndex<R>,
    String: Decode<'r, R::Database> + Type<R::Database>,
{
    let (key_id, data): (Option<String>, Option<String>) = (row.try_get("key_id")?, row.try_get("key_data")?);
    Ok(key_id.zip(data).map(|(key_id, data)| Sealed { key_id, data }))
}

/// Reads a login that was taken, if it has not expired: `is_valid`.
pub(super) fn read_login<'r, R>(row: &'r R) -> Result<Option<ProviderLogin>, sqlx::Error>
where
    R: Row,
    &'static str: ColumnIndex<R>,
    String: Decode<'r, R::Database> + Type<R::Database>,
    bool: Decode<'r, R::Database> + Type<R::Database>,
{
    if !row.try_get::<bool, _>("is_valid")? {
        return Ok(None);
    }
    let (owner, browser_hash) = (UserId::from_stored(row.try_get("owner_id")?), row.try_get("browser_hash")?);
    let key_hash = row.try_get("key_hash")?;
    Ok(read_sealed(row)?.map(|verifier| ProviderLogin { owner, browser_hash, key_hash, verifier }))
}

/// The page that these rows make, of which one more was asked for than it holds. `cursor` is that of its last one.
pub(super) fn page_of<T>(mut items: Vec<T>, limit: u32, cursor: impl Fn(&T) -> String) -> Page<T> {
    let more = items.len() > limit as usize;
    items.truncate(limit as usize);
    let last = items.last().filter(|_| more);
    let next = last.map(cursor);
    Page { items, next }
}

/// The cursor of a provider.
pub(super) fn cursor(record: &ProviderRecord) -> String {
    ProviderCursor { name: record.name.clone(), id: record.id.clone() }.to_string()
}
