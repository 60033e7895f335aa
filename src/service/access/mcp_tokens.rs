//! The tokens of logins at MCP servers, and their refresh.
//!
//! An authorization server that rotates refresh tokens accepts each of them once, and may end the login if one is used again. So
//! only one caller refreshes: the first one in a process, and among processes the one that claims the row. The others wait for the
//! result. A refresh continues when its caller is gone, because the new tokens must be stored.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use async_trait::async_trait;
use secrecy::{ExposeSecret as _, SecretString};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::domain::ids::McpServerId;
use crate::domain::tool::mcp_server::{tokens_place, tokens_row};
use crate::store::{McpTokens, Store, StoreError, retry_while_unavailable};
use crate::support::encryption::Vault;
use crate::support::locks::lock;
use crate::tools::mcp::oauth::{Access, Refusal, TokenScope, TokenSet, Tokens, Wire, refresh};

/// How long one process may refresh: longer than its request and the storing of the result can take.
const CLAIM_MS: u32 = 60_000;
/// How long a caller waits for a refresh by another process, and the interval of its checks.
const PATIENCE: Duration = Duration::from_secs(65);
const PAUSE: Duration = Duration::from_millis(100);
/// How long a token is used after a failed refresh, before the next attempt.
const GRACE: Duration = Duration::from_secs(10);
/// How long storing the result of a refresh waits for a silent database.
const STORE_PATIENCE: Duration = Duration::from_secs(30);

pub struct McpTokenStore(Arc<Inner>);

struct Inner {
    store: Arc<dyn Store>,
    vault: Arc<Vault>,
    tasks: TaskTracker,
    refresh_locks: Mutex<HashMap<McpServerId, Weak<tokio::sync::Mutex<()>>>>,
}

impl McpTokenStore {
    /// Stores the tokens in `store`, encrypted by `vault`. `tasks` owns refreshes, and must end before the store is closed.
    pub fn new(store: Arc<dyn Store>, vault: Arc<Vault>, tasks: TaskTracker) -> Arc<Self> {
        Arc::new(Self(Arc::new(Inner { store, vault, tasks, refresh_locks: Mutex::default() })))
    }
}

#[async_trait]
impl Tokens for McpTokenStore {
    async fn token(&self, scope: &TokenScope, refused: Option<&SecretString>) -> Result<Option<Access>, String> {
        let (inner, scope, refused) = (Arc::clone(&self.0), scope.clone(), refused.cloned());
        let found = self.0.tasks.spawn(async move { inner.token(&scope, refused.as_ref()).await });
        found.await.map_err(|_| "the tokens of its login could not be read, because of a bug in this program".to_owned())?
    }
}

impl Inner {
    async fn token(&self, scope: &TokenScope, refused: Option<&SecretString>) -> Result<Option<Access>, String> {
        let turn = self.refresh_lock(&scope.server);
        let _turn = turn.lock().await;
        let began = Instant::now();
        loop {
            let unreadable = |error: StoreError| format!("the tokens of its login cannot be read: {error}");
            let Some(row) = self.store.mcp_tokens(&scope.server).await.map_err(unreadable)? else { return Ok(None) };
            let tokens = self.decrypt(scope, &row)?;
            let Some(token) = tokens.access_for(&scope.url, scope.issuer.as_deref()) else { return Ok(None) };
            let refresh = tokens.refresh();
            let is_refused = refused.is_some_and(|refused| refused.expose_secret() == token.expose_secret());
            let is_fresh = row.fresh_for_ms.is_none_or(|ms| ms > 0);
            match (is_refused, is_fresh, refresh.is_some()) {
                (false, true, _) => {
                    return Ok(Some(Access { token, refresh, fresh_for: row.fresh_for_ms.and_then(duration) }));
                }
                // The server decides whether the token has expired.
                (false, false, false) => return Ok(Some(Access { token, refresh, fresh_for: Some(GRACE) })),
                // One refusal may be an error of the server, and a lost login cannot be restored. The token stays for the next
                // request.
                (true, true, false) => return Ok(None),
                (true, false, false) => {
                    self.forget(scope, &row).await?;
                    return Ok(None);
                }
                (_, _, true) => {}
            }
            if self.store.claim_mcp_tokens(&scope.server, row.version, CLAIM_MS).await.map_err(unreadable)? {
                match self.refreshed(scope, &row, tokens).await? {
                    RefreshOutcome::Done(access) => return Ok(Some(access)),
                    RefreshOutcome::Ended => return Ok(None),
                    RefreshOutcome::Overtaken => {}
                    RefreshOutcome::Failed(_) if !is_refused => return Ok(Some(Access { token, refresh, fresh_for: Some(GRACE) })),
                    RefreshOutcome::Failed(reason) => return Err(format!("its login could not be refreshed: {reason}")),
                }
            }
            if began.elapsed() >= PATIENCE {
                return Err("another process is refreshing its login and has not finished in time".to_owned());
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn refreshed(&self, scope: &TokenScope, row: &McpTokens, tokens: TokenSet) -> Result<RefreshOutcome, String> {
        let exchanged = match Wire::new(&scope.url, scope.egress) {
            Ok(wire) => refresh(&wire, tokens).await,
            Err(reason) => Err(Refusal::Failed(reason)),
        };
        let (server, version) = (&scope.server, row.version);
        let count = |result: &'static str| metrics::counter!("capstan_mcp_login_refreshes_total", "result" => result).increment(1);
        match exchanged {
            Ok((new_tokens, fresh_for_ms)) => {
                count("ok");
                let text = SecretString::from(serde_json::to_string(&new_tokens).map_err(|error| error.to_string())?);
                let encrypted = self.vault.encrypt(&tokens_place(row.owner.as_ref(), &tokens_row(server)), &text);
                let encrypted = encrypted.map_err(|error| format!("the tokens of its login cannot be encrypted: {error}"))?;
                let ended = retry_while_unavailable(STORE_PATIENCE, || {
                    self.store.end_mcp_refresh(server, version, Some((&encrypted, fresh_for_ms)))
                })
                .await;
                let ended = ended.map_err(|error| format!("the tokens of its login cannot be stored: {error}"))?;
                tracing::info!(mcp.server.id = %server, "refreshed the login at an MCP server");
                match new_tokens.access_for(&scope.url, scope.issuer.as_deref()).filter(|_| ended) {
                    Some(token) => {
                        let fresh_for = fresh_for_ms.and_then(duration);
                        Ok(RefreshOutcome::Done(Access { token, refresh: new_tokens.refresh(), fresh_for }))
                    }
                    None => Ok(RefreshOutcome::Overtaken),
                }
            }
            Err(Refusal::Final(reason)) => {
                count("refused");
                tracing::warn!(mcp.server.id = %server, reason, "the login at an MCP server has ended");
                self.forget(scope, row).await?;
                Ok(RefreshOutcome::Ended)
            }
            Err(Refusal::Failed(reason)) => {
                count("failed");
                tracing::warn!(mcp.server.id = %server, reason, "the login at an MCP server could not be refreshed");
                // A claim that cannot be released expires.
                let _ = self.store.end_mcp_refresh(server, version, None).await;
                Ok(RefreshOutcome::Failed(reason))
            }
        }
    }

    async fn forget(&self, scope: &TokenScope, row: &McpTokens) -> Result<bool, String> {
        let forgotten =
            retry_while_unavailable(STORE_PATIENCE, || self.store.forget_mcp_tokens(&scope.server, Some(row.version))).await;
        forgotten.map_err(|error| format!("its login cannot be removed: {error}"))
    }

    fn decrypt(&self, scope: &TokenScope, row: &McpTokens) -> Result<TokenSet, String> {
        // The tokens are encrypted for the owner of the server, so the tokens of another owner's row cannot be decrypted.
        let opened = self.vault.decrypt(&tokens_place(scope.owner.as_ref(), &tokens_row(&scope.server)), &row.encrypted);
        let opened = opened.map_err(|error| {
            tracing::error!(mcp.server.id = %scope.server, error = %error, "the tokens of an MCP server cannot be decrypted");
            "this server cannot decrypt the tokens of its login (its log has the reason); log in again".to_owned()
        })?;
        serde_json::from_str(opened.expose_secret()).map_err(|_| "the tokens of its login cannot be read; log in again".to_owned())
    }

    fn refresh_lock(&self, server: &McpServerId) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = lock(&self.refresh_locks);
        if let Some(refresh_lock) = locks.get(server).and_then(Weak::upgrade) {
            return refresh_lock;
        }
        locks.retain(|_, refresh_lock| refresh_lock.strong_count() > 0);
        let refresh_lock = Arc::default();
        locks.insert(server.clone(), Arc::downgrade(&refresh_lock));
        refresh_lock
    }
}

fn duration(ms: i64) -> Option<Duration> {
    u64::try_from(ms).ok().map(Duration::from_millis)
}

enum RefreshOutcome {
    Done(Access),
    /// The login has ended: a user must log in again.
    Ended,
    /// A user has logged in or out meanwhile.
    Overtaken,
    Failed(String),
}
