//! Logins at remote servers: OAuth 2.1 with PKCE, as in the protocol since 2025-06-18.
//!
//! A server that answers 401 names its authorization server (RFC 9728). That one publishes its metadata (RFC 8414 or OpenID), registers
//! this program as a client (RFC 7591) unless the entry names one, and issues tokens for this server alone (RFC 8707). A login may
//! begin in one process and end in another, and only one process may refresh a stored token. [`wire`] and [`discovery`] limit
//! where a server may lead.
//!
//! Owns the requests of a login. Must not know where tokens are stored, nor who may log in: see [`Tokens`].

mod challenge;
mod discovery;
mod flow;
mod login;
mod wire;

use secrecy::SecretString;

pub use flow::{Pending, Refusal, TokenSet, begin, exchange, refresh};
pub use login::{Access, AuthState, Authorized, Login, TokenOf, Tokens};
pub use wire::Wire;

/// The settings of an entry for logins, under `capstan.oauth`.
#[derive(Clone, Default)]
pub struct OAuthEntry {
    /// A registered client; without one, this program registers itself.
    pub client_id: Option<String>,
    pub client_secret: Option<SecretString>,
    /// The only authorization server that logins may lead to.
    pub issuer: Option<String>,
    /// The scopes to request, instead of those of the server.
    pub scopes: Option<Vec<String>>,
}
