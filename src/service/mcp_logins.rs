//! Logging in at MCP servers: whoever may change a server agrees at its authorization server, and from then on it is reached with the
//! tokens that came of that, by everybody who may use it.
//!
//! What comes back is bound to who began it, as at [OpenRouter](super::logins), and to the server, its URL and its authorization server.

use std::sync::Arc;

use secrecy::{ExposeSecret as _, SecretString};
use tokio::time::Instant;

use super::keys::{MAX_KEY_BYTES, hash_key, secret};
use super::logins::{LIFETIME_MS, MAX_CODE_BYTES, login_mark};
use super::mcp_servers::AnyMcpServer;
use super::{Access, BegunLogin, ComesBack, Error, Result, Service, ShownMcpServer, open_mcp_server};
use crate::domain::ids::{McpServerId, UserId};
use crate::domain::mcp_server::{tokens_place, tokens_row};
use crate::domain::principal::Principal;
use crate::store::{LoginTaker, McpTokens, ProviderLogin};
use crate::support::outbound::Reach;
use crate::support::seal::Place;
use crate::tools::mcp::ServerTransport;
use crate::tools::mcp::oauth::{self, OAuthEntry, Pending, Wire};

/// What a browser brings back from a login.
pub struct CameBack {
    /// Which login it is of.
    pub state: String,
    /// What is exchanged for tokens.
    pub code: Option<String>,
    /// Who has sent it.
    pub issuer: Option<String>,
    /// Why there is no code.
    pub error: Option<String>,
}

/// Where a login leads.
struct Target {
    url: String,
    reach: Reach,
    entry: OAuthEntry,
    owner: Option<UserId>,
}

/// The place of a login that is under way.
fn place<'a>(owner: &'a UserId, state_hash: &'a str) -> Place<'a> {
    Place { purpose: "mcp_login", owner: Some(owner.as_str()), record: state_hash }
}

fn unknown() -> Error {
    Error::invalid("this login is unknown, is used up, or began more than 10 minutes ago: begin it anew")
}

impl Service {
    /// Begins a login at a server, in the place of an earlier one of the same user there. `callback` is where the browser comes back to.
    pub async fn begin_mcp_login(&self, access: &Access, id: &McpServerId, callback: &str) -> Result<BegunLogin> {
        let server = self.steerable_mcp_server(access.principal(), id).await?;
        let target = self.login_target(&server)?;
        self.begun_logins.admit(&access.principal().user_id, self.mcp_deps()?.max_logins, Instant::now())?;
        let random = |prefix: &str| secret(prefix).map_err(Error::NoRandomness);
        let (state, browser, verifier) = (random("login_")?, random("browser_")?, SecretString::from(random("")?));
        let refused = |reason: String| Error::Conflict(format!("there is no logging in at this MCP server: {reason}"));
        let wire = Wire::new(&target.url, target.reach).map_err(refused)?;
        let (url, pending) = oauth::begin(&wire, &target.entry, callback, &state, &verifier).await.map_err(refused)?;
        let pending = serde_json::to_string(&pending).map_err(|error| refused(error.to_string()))?;
        let (owner, state_hash) = (access.principal().user_id.clone(), hash_key(&state));
        let verifier = self.seal(&place(&owner, &state_hash), &SecretString::from(pending)).await?;
        let key_hash = access.key_hash().map(str::to_owned);
        let login = ProviderLogin { owner, browser_hash: hash_key(&browser), key_hash, verifier };
        self.store.create_mcp_login(&state_hash, id, &login, LIFETIME_MS).await?;
        Ok(BegunLogin { url, mark: login_mark(&state), browser, lifetime_seconds: LIFETIME_MS / 1000 })
    }

    /// Ends a login: gets the tokens for the code, and connects to the server with them.
    pub async fn finish_mcp_login(self: &Arc<Self>, who: ComesBack<'_>, back: CameBack) -> Result<(Principal, ShownMcpServer)> {
        let CameBack { state, code, issuer, error } = back;
        if state.len() > MAX_KEY_BYTES || code.as_ref().is_some_and(|code| code.is_empty() || code.len() > MAX_CODE_BYTES) {
            return Err(unknown());
        }
        let state_hash = hash_key(&state);
        // Whoever has only learnt the state takes nothing out.
        let taker = match who {
            ComesBack::Caller(principal) => LoginTaker::Owner(principal.user_id.clone()),
            ComesBack::Browser(shown) => LoginTaker::Browser(hash_key(shown)),
        };
        let (id, login) = self.store.take_mcp_login(&state_hash, &taker).await?.ok_or_else(unknown)?;
        let principal = self.returned(who, &login).await?;
        let pending =
            self.provider_deps()?.vault.open(&place(&login.owner, &state_hash), &login.verifier).map_err(|_| unknown())?;
        let pending: Pending = serde_json::from_str(pending.expose_secret()).map_err(|_| unknown())?;
        pending.check_issuer(issuer.as_deref()).map_err(Error::invalid)?;
        let Some(code) = code else {
            let word = error.filter(|word| word.len() <= 64 && word.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'));
            return Err(Error::invalid(format!("the login was not agreed to: {}", word.as_deref().unwrap_or("no code came"))));
        };
        // What may have changed since it was begun.
        let server = self.steerable_mcp_server(&principal, &id).await?;
        let target = self.login_target(&server)?;
        let refused = |reason: String| Error::Conflict(format!("the login has come to nothing: {reason}"));
        let wire = Wire::new(&target.url, target.reach).map_err(refused)?;
        if !pending.is_for(&wire.server, target.entry.issuer.as_deref()) {
            let reason = "the entry of the MCP server has another URL or authorization server by now; begin it anew";
            return Err(refused(reason.to_owned()));
        }
        let (service, user, server) = (Arc::clone(self), principal.clone(), id.clone());
        // A code is exchanged once: whatever becomes of the browser, what came of it is kept.
        self.whole(async move { service.keep_mcp_login(&user, server, (&wire, target.owner), pending, &code).await }).await?;
        let shown = self.probed(&principal, &id).await?;
        Ok((principal, shown))
    }

    /// Gets the tokens for the code, and has the server reached with them from now on.
    async fn keep_mcp_login(
        &self,
        principal: &Principal,
        id: McpServerId,
        (wire, owner): (&Wire, Option<UserId>),
        pending: Pending,
        code: &str,
    ) -> Result<()> {
        let refused = |reason: String| Error::Conflict(format!("the login has come to nothing: {reason}"));
        let got = oauth::exchange(wire, pending, code).await;
        let (tokens, fresh_for_ms) = got.map_err(|refusal| refused(refusal.reason()))?;
        let text = serde_json::to_string(&tokens).map_err(|error| refused(error.to_string()))?;
        let sealed = self.seal(&tokens_place(owner.as_ref(), &tokens_row(&id)), &SecretString::from(text)).await?;
        let kept = McpTokens { server: id.clone(), owner, sealed, fresh_for_ms, version: 1 };
        self.store.put_mcp_tokens(&kept).await?;
        tracing::info!(mcp.server.id = %id, user.id = %principal.user_id, "somebody has logged in at an MCP server");
        self.stop_mcp_server(principal, &id).await?;
        Ok(())
    }

    /// Forgets the login at a server, in whatever process it is used.
    pub async fn forget_mcp_login(&self, principal: &Principal, id: &McpServerId) -> Result<()> {
        self.steerable_mcp_server(principal, id).await?;
        if self.store.forget_mcp_tokens(id, None).await? {
            tracing::info!(mcp.server.id = %id, user.id = %principal.user_id, "somebody has logged out of an MCP server");
        }
        self.stop_mcp_server(principal, id).await?;
        Ok(())
    }

    /// On behalf of whom somebody comes back. A browser: of the key that it was sent away with, if that is good still.
    async fn returned(&self, who: ComesBack<'_>, login: &ProviderLogin) -> Result<Principal> {
        match who {
            ComesBack::Caller(principal) => Ok(principal.clone()),
            ComesBack::Browser(_) => {
                let hash = login.key_hash.clone().ok_or_else(unknown)?;
                let principal = self.access_by_hash(hash).await?.map(|access| access.principal().clone());
                principal.filter(|principal| principal.user_id == login.owner).ok_or_else(unknown)
            }
        }
    }

    fn login_target(&self, server: &AnyMcpServer) -> Result<Target> {
        let deps = self.mcp_deps()?;
        let (config, owner) = match server {
            AnyMcpServer::Kept(record) => {
                (open_mcp_server(&self.provider_deps()?.vault, record, &deps.rules).config, record.owner.clone())
            }
            AnyMcpServer::Configured(server) => (deps.servers.configured_entry(&server.id), None),
        };
        let refused = |reason: String| Error::Conflict(format!("there is no logging in at this MCP server: {reason}"));
        match config.map_err(refused)?.transport {
            ServerTransport::Http { headers, .. } if headers.keys().any(|name| name.eq_ignore_ascii_case("authorization")) => {
                Err(refused("its entry has a header Authorization".to_owned()))
            }
            ServerTransport::Http { url, oauth: entry, reach, .. } => Ok(Target { url, reach, entry, owner }),
            ServerTransport::Stdio { .. } | ServerTransport::Container { .. } => Err(refused("it is a process".to_owned())),
        }
    }
}
