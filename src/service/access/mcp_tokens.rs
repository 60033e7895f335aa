//! The tokens of logins at MCP servers, and their refresh.
//!
//! An authorization server that rotates refresh tokens takes each of them once, and may end the whole login if it sees one again. So only
//! one caller refreshes: within a process the first one, and among processes the one that claims the row. The others wait for the result.
//! A refresh goes on when its caller is gone: the tokens that it gets must be stored.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use async_trait::async_trait;
use secrecy::{ExposeSecret as _, SecretString};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::domain::ids::McpServerId;
use crate::domain::tool::mcp_server::{tokens_place, tokens_row};
use crate::store::{McpTokens, Store, StoreError, patiently};
use crate::support::locks::lock;
use crate::support::seal::Vault;
use crate::tools::mcp::oauth::{Access, Refusal, TokenOf, TokenSet, Tokens, Wire, refresh};

/// How long a refresh belongs to one process: longer than its one request and the storing of its result may take.
const CLAIM_MS: u32 = 60_000;
/// How long a caller waits for a refresh of another process, and how often it looks.
const PATIENCE: Duration = Duration::from_secs(65);
const PAUSE: Duration = Duration::from_millis(100);
/// How long a token is used before a failed refresh is tried again.
const GRACE: Duration = Duration::from_secs(10);
/// How long a silent database is waited for to store the result of a refresh.
const STORE_PATIENCE: Duration = Duration::from_secs(30);

pub struct TokenKeeper(Arc<Inner>);

struct Inner {
    store: Arc<dyn Store>,
    vault: Arc<Vault>,
    tasks: TaskTracker,
    turns: Mutex<HashMap<McpServerId, Weak<tokio::sync::Mutex<()>>>>,
}

impl TokenKeeper {
    /// Keeps the tokens in `store`, sealed by `vault`. `tasks` owns refreshes, and must end before the store is closed.
    pub fn new(store: Arc<dyn Store>, vault: Arc<Vault>, tasks: TaskTracker) -> Arc<Self> {
        Arc::new(Self(Arc::new(Inner { store, vault, tasks, turns: Mutex::default() })))
    }
}

#[async_trait]
impl Tokens for TokenKeeper {
    async fn token(&self, of: &TokenOf, refused: Option<&SecretString>) -> Result<Option<Access>, String> {
        let (inner, of, refused) = (Arc::clone(&self.0), of.clone(), refused.cloned());
        let found = self.0.tasks.spawn(async move { inner.token(&of, refused.as_ref()).await });
        found.await.map_err(|_| "the tokens of its login cannot be looked at, by a mistake of this program".to_owned())?
    }
}

impl Inner {
    async fn token(&self, of: &TokenOf, refused: Option<&SecretString>) -> Result<Option<Access>, String> {
        let turn = self.turn(&of.server);
        let _turn = turn.lock().await;
        let began = Instant::now();
        loop {
            let unreadable = |error: StoreError| format!("the tokens of its login cannot be read: {error}");
            let Some(row) = self.store.mcp_tokens(&of.server).await.map_err(unreadable)? else { return Ok(None) };
            let tokens = self.opened(of, &row)?;
            let Some(token) = tokens.access_for(&of.url, of.issuer.as_deref()) else { return Ok(None) };
            let refresh = tokens.refresh();
            let is_refused = refused.is_some_and(|refused| refused.expose_secret() == token.expose_secret());
            let is_fresh = row.fresh_for_ms.is_none_or(|ms| ms > 0);
            match (is_refused, is_fresh, refresh.is_some()) {
                (false, true, _) => {
                    return Ok(Some(Access { token, refresh, fresh_for: row.fresh_for_ms.and_then(duration) }));
                }
                // Whether it has ended is the server's to say.
                (false, false, false) => return Ok(Some(Access { token, refresh, fresh_for: Some(GRACE) })),
                // One refusal may be a mistake of the server, and the login could not be had back: the token is shown again at the next use.
                (true, true, false) => return Ok(None),
                (true, false, false) => {
                    self.forget(of, &row).await?;
                    return Ok(None);
                }
                (_, _, true) => {}
            }
            if self.store.claim_mcp_tokens(&of.server, row.version, CLAIM_MS).await.map_err(unreadable)? {
                match self.refreshed(of, &row, tokens).await? {
                    Refreshed::Done(access) => return Ok(Some(access)),
                    Refreshed::Over => return Ok(None),
                    Refreshed::Overtaken => {}
                    Refreshed::Failed(_) if !is_refused => return Ok(Some(Access { token, refresh, fresh_for: Some(GRACE) })),
                    Refreshed::Failed(reason) => return Err(format!("its login could not be refreshed: {reason}")),
                }
            }
            if began.elapsed() >= PATIENCE {
                return Err("its login is being refreshed by another process, which does not end".to_owned());
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn refreshed(&self, of: &TokenOf, row: &McpTokens, tokens: TokenSet) -> Result<Refreshed, String> {
        let asked = match Wire::new(&of.url, of.reach) {
            Ok(wire) => refresh(&wire, tokens).await,
            Err(reason) => Err(Refusal::Failed(reason)),
        };
        let (server, version) = (&of.server, row.version);
        let count = |result: &'static str| metrics::counter!("capstan_mcp_login_refreshes_total", "result" => result).increment(1);
        match asked {
            Ok((anew, fresh_for_ms)) => {
                count("ok");
                let text = SecretString::from(serde_json::to_string(&anew).map_err(|error| error.to_string())?);
                let sealed = self.vault.seal(&tokens_place(row.owner.as_ref(), &tokens_row(server)), &text);
                let sealed = sealed.map_err(|error| format!("the tokens of its login cannot be sealed: {error}"))?;
                let ended =
                    patiently(STORE_PATIENCE, || self.store.end_mcp_refresh(server, version, Some((&sealed, fresh_for_ms)))).await;
                let ended = ended.map_err(|error| format!("the tokens of its login cannot be kept: {error}"))?;
                tracing::info!(mcp.server.id = %server, "refreshed the login at an MCP server");
                match anew.access_for(&of.url, of.issuer.as_deref()).filter(|_| ended) {
                    Some(token) => {
                        let fresh_for = fresh_for_ms.and_then(duration);
                        Ok(Refreshed::Done(Access { token, refresh: anew.refresh(), fresh_for }))
                    }
                    None => Ok(Refreshed::Overtaken),
                }
            }
            Err(Refusal::Final(reason)) => {
                count("refused");
                tracing::warn!(mcp.server.id = %server, reason, "the login at an MCP server is over");
                self.forget(of, row).await?;
                Ok(Refreshed::Over)
            }
            Err(Refusal::Failed(reason)) => {
                count("failed");
                tracing::warn!(mcp.server.id = %server, reason, "the login at an MCP server could not be refreshed");
                // A claim that cannot be returned ends by itself.
                let _ = self.store.end_mcp_refresh(server, version, None).await;
                Ok(Refreshed::Failed(reason))
            }
        }
    }

    async fn forget(&self, of: &TokenOf, row: &McpTokens) -> Result<bool, String> {
        let forgotten = patiently(STORE_PATIENCE, || self.store.forget_mcp_tokens(&of.server, Some(row.version))).await;
        forgotten.map_err(|error| format!("its login cannot be forgotten: {error}"))
    }

    fn opened(&self, of: &TokenOf, row: &McpTokens) -> Result<TokenSet, String> {
        // Sealed for the owner of the server as it is now: a row of another owner does not open.
        let opened = self.vault.open(&tokens_place(of.owner.as_ref(), &tokens_row(&of.server)), &row.sealed);
        let opened = opened.map_err(|error| {
            tracing::error!(mcp.server.id = %of.server, error = %error, "the tokens of an MCP server cannot be opened");
            "the tokens of its login cannot be opened by this server, whose log says why; log in anew".to_owned()
        })?;
        serde_json::from_str(opened.expose_secret()).map_err(|_| "the tokens of its login cannot be read; log in anew".to_owned())
    }

    fn turn(&self, server: &McpServerId) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = lock(&self.turns);
        if let Some(turn) = turns.get(server).and_then(Weak::upgrade) {
            return turn;
        }
        turns.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::default();
        turns.insert(server.clone(), Arc::downgrade(&turn));
        turn
    }
}

fn duration(ms: i64) -> Option<Duration> {
    u64::try_from(ms).ok().map(Duration::from_millis)
}

enum Refreshed {
    Done(Access),
    /// A user has to log in.
    Over,
    /// A user has logged in or out in the meantime.
    Overtaken,
    Failed(String),
}
