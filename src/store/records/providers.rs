//! Stored providers, and logins at providers: the values.

use crate::domain::enum_names::named_enum;
use crate::domain::ids::{ProviderId, UserId};
use crate::store::records::named::{CreateNamedOutcome, NameCursor, UpdateNamedOutcome};
use crate::support::encryption::EncryptedSecret;

pub type ProviderCursor = NameCursor<ProviderId>;

pub type ProviderMade = CreateNamedOutcome<ProviderId>;

pub type ProviderChanged = UpdateNamedOutcome;

/// A login at a provider that has begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderLogin {
    pub owner: UserId,
    /// SHA-256 of the secret of the browser that began the login.
    pub browser_hash: String,
    /// SHA-256 of the API key with which the login began; `None` on a server without keys.
    pub key_hash: Option<String>,
    pub verifier: EncryptedSecret,
}

/// The caller that completes a login.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoginClaimant {
    Owner(UserId),
    /// The browser whose secret has this hash.
    Browser(String),
}

impl LoginClaimant {
    /// Returns the owner and the browser's hash that the login must match. One of them is `None`.
    pub(in crate::store) fn parts(&self) -> (Option<&str>, Option<&str>) {
        match self {
            Self::Owner(owner) => (Some(owner.as_str()), None),
            Self::Browser(hash) => (None, Some(hash)),
        }
    }
}

named_enum! {
    /// The kind of a secret, by its name in query results.
    pub enum SecretKind {
        /// A provider: its key.
        Provider = "provider",
        /// An MCP server: the secrets of its entry.
        McpServer = "mcp_server",
        /// A login at an MCP server: its tokens.
        McpTokens = "mcp_tokens",
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncryptedRow {
    pub of: SecretKind,
    /// The owner; `None` for the server.
    pub owner: Option<UserId>,
    /// The id of the row, unique among all kinds of secrets.
    pub id: String,
    pub encrypted: EncryptedSecret,
}
