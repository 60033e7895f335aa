//! Logins at remote servers: OAuth 2.1 with PKCE, as in the protocol since 2025-06-18.
//!
//! A server that answers 401 names its authorization server (RFC 9728). The authorization server publishes its metadata (RFC 8414 or
//! OpenID), and registers this program as a client (RFC 7591) unless the entry has one. Its tokens are for this MCP server alone (RFC
//! 8707). A login may begin in one process and end in another, and only one process may refresh a stored token. [`requests`] and [`discovery`]
//! limit which URLs a server may name.
//!
//! Owns the requests of a login. Must not know where tokens are stored, or who may log in: see [`Tokens`].

mod discovery;
mod flow;
mod requests;
mod tokens;

use secrecy::SecretString;

pub use flow::{Pending, Refusal, TokenSet, begin, exchange, refresh};
pub use requests::Wire;
pub use tokens::{Access, AuthState, AuthorizedClient, Login, TokenScope, Tokens};

/// The settings of an entry for logins, under `capstan.oauth`.
#[derive(Clone, Default)]
pub struct OAuthEntry {
    /// A registered client; without one, this program registers itself.
    pub client_id: Option<String>,
    pub client_secret: Option<SecretString>,
    /// The only allowed authorization server.
    pub issuer: Option<String>,
    /// The scopes to request, instead of those of the server.
    pub scopes: Option<Vec<String>>,
}
