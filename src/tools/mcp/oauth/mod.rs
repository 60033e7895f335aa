//! Logins at remote servers: OAuth 2.1 with PKCE, as the protocol has it since 2025-06-18.
//!
//! A server that answers 401 says where its authorization server is (RFC 9728), which says what it can do (RFC 8414, or OpenID's
//! document), takes this program as a client (RFC 7591) unless the entry names one, and gives tokens for this server alone
//! (RFC 8707). The official library has that flow, too, within one process and with its own idea of where it may be led. Here a login
//! begins in one process and ends in another, tokens are kept in a database where only one of many processes may refresh them,
//! and whatever a server says of other servers is believed only in so far as [`wire`] and [`discovery`] allow.
//!
//! Owns what is said on the wire. Must not know where tokens are kept, nor who may log in: see [`Tokens`].

mod challenge;
mod discovery;
mod flow;
mod login;
mod wire;

use secrecy::SecretString;

pub use flow::{Pending, Refusal, TokenSet, begin, exchange, refresh};
pub use login::{Access, AuthState, Authorized, Login, TokenOf, Tokens};
pub use wire::Wire;

/// What an entry says of logins, under `capstan.oauth`.
#[derive(Clone, Default)]
pub struct OAuthEntry {
    /// The client that somebody has registered there; else this program registers itself.
    pub client_id: Option<String>,
    /// Its secret.
    pub client_secret: Option<SecretString>,
    /// The authorization server that the client is registered at: logins lead to no other one.
    pub issuer: Option<String>,
    /// What to ask for; else what the server asks for.
    pub scopes: Option<Vec<String>>,
}
