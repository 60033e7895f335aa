//! Starts a server at its first use, and restarts it after a crash or a lost connection.
//!
//! Owns the attempts to start, and the policy that decides when an attempt is due. Must not know calls.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::support::locks::lock;
use crate::tools::mcp::ServerTransport;
use crate::tools::mcp::process::slots::ProcessPermit;
use crate::tools::mcp::process::stderr_end;
use crate::tools::mcp::server::connected_server::ConnectedServer;
use crate::tools::mcp::server::{Phase, Server};
use crate::tools::mcp::transport::connection::Connection;
use crate::tools::mcp::transport::endpoint::{Endpoint, ServerError};

/// A starting server holds a start permit for the start limit divided by this number: for 10 s of the 60 s by default. A slower
/// start usually waits for something outside of this machine.
const PERMIT_SHARE: u32 = 6;

impl Server {
    /// Resets the failure count, so that the next use connects at once.
    pub fn reset_restart_policy(&self) {
        *lock(&self.restarts) = RestartPolicy::default();
        self.change_phase(|phase| {
            let is_away = matches!(phase, Phase::Failed { .. } | Phase::Idle(_));
            if is_away {
                *phase = Phase::Unknown;
            }
            is_away
        });
    }

    /// Reconnects after a loss or a failed start, when its backoff has ended.
    pub fn reconnect_if_due(self: &Arc<Self>) {
        let now = Instant::now();
        let is_due = match &*self.phase.borrow() {
            Phase::Up(connected) => !connected.connection.is_alive() && lock(&self.restarts).is_due(now),
            Phase::Failed { retry_at, .. } => now >= *retry_at && lock(&self.restarts).reconnects_automatically(),
            Phase::Unknown | Phase::Starting { .. } | Phase::Idle(_) | Phase::Closed => false,
        };
        if is_due {
            self.start_connecting();
        }
    }

    /// Begins to connect, unless it is connected or its backoff has not ended.
    pub(super) fn start_connecting(self: &Arc<Self>) {
        let (mut lost, mut start) = (None, None);
        let now = Instant::now();
        // A remote server may end sessions at any time, so only the ends of processes count as losses.
        let is_process = !matches!(self.config.transport, ServerTransport::Http { .. });
        self.change_phase(|phase| {
            let (next, starts) = match phase {
                Phase::Unknown | Phase::Idle(_) => (Phase::Starting { since: now }, true),
                Phase::Up(connected) if !connected.connection.is_alive() => {
                    let next = match lock(&self.restarts).record_loss(now, is_process) {
                        Some(until) => {
                            let reason = RestartPolicy::TOO_MANY.to_owned();
                            let fault = ServerError { reason, stderr: connected.connection.stderr_tail() };
                            let name = &self.identity.name;
                            tracing::warn!(mcp.server = name, "MCP server {name} is crash-looping");
                            (Phase::Failed { fault, retry_at: until, next_attempt_at: None }, false)
                        }
                        None => (Phase::Starting { since: now }, true),
                    };
                    lost = Some((connected.clone(), self.open_resources.token()));
                    next
                }
                Phase::Failed { retry_at, .. } if now >= *retry_at => (Phase::Starting { since: now }, true),
                Phase::Failed { .. } | Phase::Up(_) | Phase::Starting { .. } | Phase::Closed => return false,
            };
            *phase = next;
            // The tokens are created while the phase is locked, so that `close` waits for the task below.
            start = starts.then(|| self.open_resources.token());
            true
        });
        if start.is_some() || lost.is_some() {
            let server = self.clone();
            self.common.tasks.spawn(async move {
                let close_lost = async {
                    if let Some((connected, _token)) = lost {
                        server.close_when_idle(&connected.connection).await;
                    }
                };
                let start = async {
                    if let Some(_token) = start {
                        Arc::clone(&server).start().await;
                    }
                };
                tokio::join!(start, close_lost);
            });
        }
    }

    async fn start(self: Arc<Self>) {
        let mut attempt = Attempt(Some(Arc::clone(&self)));
        let opened = async {
            drop(self.closing_lock.lock().await);
            self.open_in_turn().await
        };
        let result = tokio::select! {
            // Checked first: a start that waited for a slot until the server was closed must not begin.
            biased;
            () = self.closing.cancelled() => return,
            () = self.common.closing.cancelled() => return,
            opened = opened => opened,
        };
        let name = &self.identity.name;
        let next = match result {
            Ok(connected) => {
                lock(&self.restarts).started();
                tracing::info!(mcp.server = name, "MCP server {name} is connected");
                Phase::Up(Arc::new(connected))
            }
            Err(fault) => {
                let ServerError { reason, stderr } = &fault;
                let stderr = stderr.as_deref().map(stderr_end);
                tracing::warn!(mcp.server = name, error = reason, stderr, "MCP server {name} cannot be used");
                self.failed_to_start(fault)
            }
        };
        // Disarmed before the phase changes: a server can crash at once, and the next attempt may already be starting.
        attempt.0 = None;
        let mut late = None;
        self.change_phase(|phase| {
            let is_open = !matches!(phase, Phase::Closed);
            if is_open {
                *phase = next;
            } else {
                late = Some(next);
            }
            is_open
        });
        if let Some(Phase::Up(connected)) = late {
            connected.connection.close().await;
        }
    }

    /// Returns the phase after a failed attempt. The backoff grows each time.
    fn failed_to_start(&self, fault: ServerError) -> Phase {
        let mut restarts = lock(&self.restarts);
        let wait = restarts.failed();
        let is_planned = restarts.reconnects_automatically();
        drop(restarts);
        let millis = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let next_attempt_at = is_planned.then(|| self.common.clock.now().after(millis));
        Phase::Failed { fault, retry_at: Instant::now() + wait, next_attempt_at }
    }

    /// Connects when it gets a start permit. The start limit begins then, so that waiting for other servers does not count.
    async fn open_in_turn(self: &Arc<Self>) -> Result<ConnectedServer, ServerError> {
        // Starting a remote server costs this machine no resources, so it needs no permit.
        let (permit, turn) = match &self.config.transport {
            ServerTransport::Stdio { .. } | ServerTransport::Container { .. } => {
                let permit = self.common.processes.acquire(Arc::<Self>::clone(self)).await?;
                self.common.guard.watch();
                if matches!(self.config.transport, ServerTransport::Container { .. })
                    && let Some((engine, variables)) = self.common.containers.engine().await
                {
                    self.common.guard.watch_containers(&engine, &variables, self.common.containers.input_files_dir.as_deref());
                    self.common.containers.record_containers();
                }
                let turn = self.common.starts.acquire().await.map_err(|_| "the servers are being shut down".to_owned())?;
                (Some(permit), Some(turn))
            }
            ServerTransport::Http { .. } => (None, None),
        };
        let limit = self.common.start_limit;
        let mut opening = pin!(tokio::time::timeout(limit, self.open(permit)));
        let opened = tokio::select! {
            biased;
            opened = &mut opening => opened,
            () = tokio::time::sleep(limit / PERMIT_SHARE) => {
                drop(turn);
                opening.await
            }
        };
        let late = || format!("the server did not start within {limit:?}: mcp.start_timeout_ms sets the limit");
        opened.unwrap_or_else(|_| Err(late().into()))
    }

    async fn open(self: &Arc<Self>, permit: Option<ProcessPermit>) -> Result<ConnectedServer, ServerError> {
        if let Some(login) = &self.login {
            login.drop_cached_token().await;
        }
        let connection = Connection::open(Endpoint {
            name: &self.identity.name,
            config: &self.config,
            common: &self.common,
            stateless: &self.stateless,
            uses_sse: &self.uses_sse,
            home: self.home.as_deref(),
            login: self.login.as_ref(),
            open_resources: &self.open_resources,
        });
        let connection = connection.await?;
        ConnectedServer::open(connection, self.labels(), &self.config, permit).await
    }
}

/// An attempt to start a server. If it ends without a result, by a panic, it counts as failed, so that no caller waits for ever.
struct Attempt(Option<Arc<Server>>);

impl Drop for Attempt {
    fn drop(&mut self) {
        let Some(server) = &self.0 else { return };
        server.change_phase(|phase| {
            let is_open = matches!(phase, Phase::Starting { .. });
            if is_open {
                let fault = ServerError::from("starting it failed because of an error in this program".to_owned());
                *phase = server.failed_to_start(fault);
            }
            is_open
        });
    }
}

/// The most automatic attempts to restore a connection.
const MAX_ATTEMPTS: u32 = 5;
/// More losses than this within the window are a crash loop.
const MAX_LOSSES: usize = 5;
const WINDOW: Duration = Duration::from_secs(300);

/// The restart policy of a server.
///
/// A lost connection is restored automatically after 1, 2, 4, 8 and 16 seconds, and at once for a call. After that, and before the first
/// success, only a call starts the server, with the same backoff. A process that ends more than five times within five minutes is in a
/// crash loop: it is not started until the first of those ends is five minutes ago.
#[derive(Debug, Default)]
pub struct RestartPolicy {
    /// Failures since it last ran: the loss of its connection, and failed starts.
    in_a_row: u32,
    /// Whether it ran before these failures.
    has_run: bool,
    /// When the loss of the current connection was detected.
    lost_at: Option<Instant>,
    /// When connections were lost, the newest last.
    losses: VecDeque<Instant>,
}

impl RestartPolicy {
    pub const TOO_MANY: &str = "it is crash-looping: it ended more than 5 times within 5 minutes; a call starts it again once the \
                                first of these ends is 5 minutes old, or start it through POST /api/v1/mcp-servers/{id}/start";

    /// Returns the number of failures in a row.
    pub fn failures(&self) -> u32 {
        self.in_a_row
    }

    /// Records a successful start.
    pub fn started(&mut self) {
        (self.in_a_row, self.has_run, self.lost_at) = (0, true, None);
    }

    /// Records a failed start, and returns the backoff.
    pub fn failed(&mut self) -> Duration {
        let wait = Duration::from_secs(1 << self.in_a_row.min(4));
        self.in_a_row = self.in_a_row.saturating_add(1);
        wait
    }

    /// Returns whether a lost connection is to be restored automatically now.
    pub fn is_due(&mut self, now: Instant) -> bool {
        let lost_at = *self.lost_at.get_or_insert(now);
        now.duration_since(lost_at) >= Duration::from_secs(1)
    }

    /// Returns whether it is started without a call.
    pub fn reconnects_automatically(&self) -> bool {
        self.has_run && self.in_a_row <= MAX_ATTEMPTS
    }

    /// Records a lost connection, and returns the end of the wait if this is a crash loop. Counts the loss only if `is_process`.
    pub fn record_loss(&mut self, now: Instant, is_process: bool) -> Option<Instant> {
        self.in_a_row = self.in_a_row.max(1);
        self.lost_at = None;
        if !is_process {
            return None;
        }
        self.losses.push_back(now);
        while self.losses.len() > MAX_LOSSES + 1 || self.losses.front().is_some_and(|first| now.duration_since(*first) >= WINDOW) {
            self.losses.pop_front();
        }
        let first = self.losses.front().filter(|_| self.losses.len() > MAX_LOSSES)?;
        // No automatic start, because it would only count as one more loss.
        self.in_a_row = MAX_ATTEMPTS + 1;
        Some(*first + WINDOW)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_connection_is_tried_five_times_by_itself() {
        let mut policy = RestartPolicy::default();
        let now = Instant::now();
        assert_eq!(policy.failed(), Duration::from_secs(1));
        assert!(!policy.reconnects_automatically(), "it has never run");
        policy.started();
        assert_eq!(policy.failures(), 0);
        assert!(!policy.is_due(now) && policy.is_due(now + Duration::from_secs(1)));
        assert_eq!(policy.record_loss(now, true), None);
        let mut waits = vec![1];
        loop {
            let wait = policy.failed().as_secs();
            if !policy.reconnects_automatically() {
                break;
            }
            waits.push(wait);
        }
        assert_eq!(waits, [1, 2, 4, 8, 16]);
        assert_eq!(policy.failures(), 6, "the loss, and five attempts");
        assert_eq!(policy.failed(), Duration::from_secs(16), "whoever needs it may ask that often");
        policy.started();
        assert!(policy.reconnects_automatically());
    }

    #[test]
    fn crash_loop_stops_restarts() {
        let mut policy = RestartPolicy::default();
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        for seconds in [0, 10, 20, 30, 40] {
            assert_eq!(policy.record_loss(at(seconds), true), None);
            policy.started();
        }
        assert_eq!(policy.record_loss(at(50), true), Some(at(300)));
        assert!(!policy.reconnects_automatically());
        policy.started();
        assert_eq!(policy.record_loss(at(305), true), Some(at(310)), "the first of the last six");
        policy.started();
        assert_eq!(policy.record_loss(at(700), true), None);
        let mut far = RestartPolicy::default();
        assert!((0..20).all(|seconds| far.record_loss(at(seconds), false).is_none()));
    }
}
