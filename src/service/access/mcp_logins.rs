//! OAuth logins at MCP servers. A user who may change a server gives consent at its authorization server. Then all users who may
//! use the server reach it with the tokens of that login.
//!
//! The end of a login is bound to its beginning, as at [OpenRouter](crate::service::access::logins), and to the server, its URL and
//! its authorization server.

use std::sync::Arc;

use secrecy::{ExposeSecret as _, SecretString};
use tokio::time::Instant;

use crate::domain::access::principal::Principal;
use crate::domain::ids::{McpServerId, UserId};
use crate::domain::tool::mcp_server::{tokens_place, tokens_row};
use crate::service::access::keys::{MAX_KEY_BYTES, hash_key};
use crate::service::access::logins::{LIFETIME_MS, LoginSecrets, MAX_CODE_BYTES, associated_data, unknown};
use crate::service::records::mcp_servers::AnyMcpServer;
use crate::service::{Access, Error, LoginParty, McpServerView, Result, Service, StartedLogin, decrypt_mcp_server};
use crate::store::{McpTokens, ProviderLogin};
use crate::support::net::egress::EgressScope;
use crate::tools::mcp::ServerTransport;
use crate::tools::mcp::oauth::{self, OAuthEntry, Pending, Wire};

pub struct LoginCallback {
    pub state: String,
    pub code: Option<String>,
    /// The authorization server that redirected the browser.
    pub issuer: Option<String>,
    /// The authorization server's error code, if it returned no code.
    pub error: Option<String>,
}

struct Target {
    url: String,
    egress: EgressScope,
    entry: OAuthEntry,
    owner: Option<UserId>,
}

const PURPOSE: &str = "mcp_login";

fn not_possible(reason: String) -> Error {
    Error::Conflict(format!("a login at this MCP server is not possible: {reason}"))
}

fn failed(reason: String) -> Error {
    Error::Conflict(format!("the login failed: {reason}"))
}

impl Service {
    /// Begins a login at a server, which replaces an earlier one of the same user there. The browser returns to `callback`.
    pub async fn begin_mcp_login(&self, access: &Access, id: &McpServerId, callback: &str) -> Result<StartedLogin> {
        let server = self.steerable_mcp_server(access.principal(), id).await?;
        let target = self.login_target(&server)?;
        self.mcp_login_limit.admit(&access.principal().user_id, self.mcp_deps()?.max_logins, Instant::now())?;
        let secrets = LoginSecrets::new()?;
        let wire = Wire::new(&target.url, target.egress).map_err(not_possible)?;
        let started = oauth::begin(&wire, &target.entry, callback, &secrets.state, &secrets.verifier).await;
        let (url, pending) = started.map_err(not_possible)?;
        let pending = serde_json::to_string(&pending).map_err(|error| not_possible(error.to_string()))?;
        let (state_hash, login) = self.login_of(access, PURPOSE, &secrets, &SecretString::from(pending)).await?;
        self.store.create_mcp_login(&state_hash, id, &login, LIFETIME_MS).await?;
        Ok(secrets.into_started(url))
    }

    /// Completes a login: exchanges the code for tokens, and connects to the server with them.
    pub async fn finish_mcp_login(
        self: &Arc<Self>,
        party: LoginParty<'_>,
        back: LoginCallback,
    ) -> Result<(Principal, McpServerView)> {
        let LoginCallback { state, code, issuer, error } = back;
        if state.len() > MAX_KEY_BYTES || code.as_ref().is_some_and(|code| code.is_empty() || code.len() > MAX_CODE_BYTES) {
            return Err(unknown());
        }
        let state_hash = hash_key(&state);
        let (id, login) = self.store.take_mcp_login(&state_hash, &party.claimant()).await?.ok_or_else(unknown)?;
        let principal = self.returned(party, &login).await?;
        let associated_data = associated_data(PURPOSE, &login.owner, &state_hash);
        let pending = self.provider_deps()?.vault.decrypt(&associated_data, &login.verifier).map_err(|_| unknown())?;
        let pending: Pending = serde_json::from_str(pending.expose_secret()).map_err(|_| unknown())?;
        pending.check_issuer(issuer.as_deref()).map_err(Error::invalid)?;
        let Some(code) = code else {
            let word = error.filter(|word| word.len() <= 64 && word.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'));
            return Err(Error::invalid(format!(
                "the authorization server refused the login: {}",
                word.as_deref().unwrap_or("it returned no code")
            )));
        };
        // The user's rights may have changed since the login began.
        let server = self.steerable_mcp_server(&principal, &id).await?;
        let target = self.login_target(&server)?;
        let wire = Wire::new(&target.url, target.egress).map_err(failed)?;
        if !pending.is_for(&wire.server, target.entry.issuer.as_deref()) {
            let reason = "the entry of the MCP server has changed its URL or authorization server; begin a new login";
            return Err(failed(reason.to_owned()));
        }
        let (service, user, server) = (Arc::clone(self), principal.clone(), id.clone());
        // A code can be exchanged only once, so the tokens are stored even if the browser has disconnected.
        self.run_to_end(|_store, _hub| async move {
            service.keep_mcp_login(&user, server, (&wire, target.owner), pending, &code).await
        })
        .await?;
        let server = self.probe_mcp_server(&principal, &id).await?;
        Ok((principal, server))
    }

    async fn keep_mcp_login(
        &self,
        principal: &Principal,
        id: McpServerId,
        (wire, owner): (&Wire, Option<UserId>),
        pending: Pending,
        code: &str,
    ) -> Result<()> {
        let got = oauth::exchange(wire, pending, code).await;
        let (tokens, fresh_for_ms) = got.map_err(|refusal| failed(refusal.reason()))?;
        let text = serde_json::to_string(&tokens).map_err(|error| failed(error.to_string()))?;
        let encrypted = self.encrypt(&tokens_place(owner.as_ref(), &tokens_row(&id)), &SecretString::from(text)).await?;
        let stored = McpTokens { server: id.clone(), owner, encrypted, fresh_for_ms, version: 1 };
        self.store.put_mcp_tokens(&stored).await?;
        tracing::info!(mcp.server.id = %id, user.id = %principal.user_id, "login at an MCP server completed");
        self.stop_mcp_server(principal, &id).await.map(drop)
    }

    /// Removes the login at a server, in all processes.
    pub async fn forget_mcp_login(&self, principal: &Principal, id: &McpServerId) -> Result<()> {
        self.steerable_mcp_server(principal, id).await?;
        if self.store.forget_mcp_tokens(id, None).await? {
            tracing::info!(mcp.server.id = %id, user.id = %principal.user_id, "login at an MCP server removed");
        }
        self.stop_mcp_server(principal, id).await.map(drop)
    }

    /// Returns the principal of the request. For a browser, the principal of the key that began the login, if the key is still
    /// valid.
    async fn returned(&self, party: LoginParty<'_>, login: &ProviderLogin) -> Result<Principal> {
        match party {
            LoginParty::Caller(principal) => Ok(principal.clone()),
            LoginParty::Browser(_) => {
                let hash = login.key_hash.clone().ok_or_else(unknown)?;
                let principal = self.access_by_hash(hash).await?.map(|access| access.principal().clone());
                principal.filter(|principal| principal.user_id == login.owner).ok_or_else(unknown)
            }
        }
    }

    fn login_target(&self, server: &AnyMcpServer) -> Result<Target> {
        let deps = self.mcp_deps()?;
        let (config, owner) = match server {
            AnyMcpServer::Stored(record) => {
                (decrypt_mcp_server(&self.provider_deps()?.vault, record, &deps.rules).config, record.owner.clone())
            }
            AnyMcpServer::Configured(server) => (deps.servers.configured_entry(&server.id), None),
        };
        match config.map_err(not_possible)?.transport {
            ServerTransport::Http { headers, .. } if headers.keys().any(|name| name.eq_ignore_ascii_case("authorization")) => {
                Err(not_possible("its entry contains an Authorization header".to_owned()))
            }
            ServerTransport::Http { url, oauth: entry, egress, .. } => Ok(Target { url, egress, entry, owner }),
            ServerTransport::Stdio { .. } | ServerTransport::Container { .. } => {
                Err(not_possible("it is a local process".to_owned()))
            }
        }
    }
}
