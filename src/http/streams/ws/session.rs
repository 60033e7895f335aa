//! One socket from the handshake to its end.

use std::error::Error as _;
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket};
use futures_util::{FutureExt as _, SinkExt as _};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until, timeout, timeout_at};

use super::frame;
use super::identity::{Identity, check};
use super::methods::{self, Reply};
use super::subscriptions::Subscriptions;
use crate::domain::access::principal::Principal;
use crate::domain::problem::ProblemBody;
use crate::domain::trace::TraceId;
use crate::http::metrics::OpenStream;
use crate::http::options::App;
use crate::http::wire::problem::Problem;
use crate::service::Access;

pub(super) const MAX_MESSAGE_BYTES: usize = 1024 * 1024;
/// How long the peer may take to accept what is sent to it.
const WRITE_TIMEOUT: Duration = Duration::from_secs(20);
/// How long the peer may take to answer a close.
const GOODBYE: Duration = Duration::from_secs(1);
/// Unreadable frames in a row that are answered; the next one closes the socket.
const PATIENCE: u32 = 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Close {
    Answer,
    Protocol,
    NotText,
    TooBig,
    Restart,
    /// The peer does not read fast enough, or the log cannot be read.
    TooSlow,
    Abuse,
    Unauthorized,
    NoAuth,
    TooMany,
}

impl Close {
    /// Returns the close frame; `None` for the peer's own close, which the library answers with the peer's code when the socket is polled
    /// again.
    fn frame(self) -> Option<CloseFrame> {
        let (code, reason) = match self {
            Self::Answer => return None,
            Self::Protocol => (1002, "protocol error"),
            Self::NotText => (1007, "text that is not UTF-8"),
            Self::TooBig => (1009, "message too big"),
            Self::Restart => (1012, "the server restarts; come back with your cursor"),
            Self::TooSlow => (1013, "too slow; come back with your cursor"),
            Self::Abuse => (4400, "too many unreadable frames"),
            Self::Unauthorized => (4401, "the key or ticket is missing, wrong, used or revoked"),
            Self::NoAuth => (4408, "no authentication in time"),
            Self::TooMany => (4429, "too many WebSockets"),
        };
        Some(CloseFrame { code, reason: Utf8Bytes::from_static(reason) })
    }
}

pub(super) async fn run(app: App, mut socket: WebSocket, identity: Identity, trace: TraceId) {
    let access = match identity {
        Identity::Known(access) => access,
        Identity::Refused => return close(&mut socket, Close::Unauthorized).await,
        Identity::Unsaid => match first_frame(&app, &mut socket).await {
            Ok(access) => access,
            Err(Some(reason)) => return close(&mut socket, reason).await,
            Err(None) => return,
        },
    };
    let Some(_permit) = app.sockets.permit(&access.principal().user_id, app.options.limits.ws_max_per_principal) else {
        return close(&mut socket, Close::TooMany).await;
    };
    let _open = OpenStream::new("websocket");
    let principal = access.principal().clone();
    let (subscriptions, heard) = (Subscriptions::new(app.options.limits.ws_max_subscriptions), Instant::now());
    let mut session = Session { app, socket, principal, trace, subscriptions, heard, strikes: 0 };
    let end = tokio::select! {
        biased;
        // At any time: a peer that does not read can make the session wait for long.
        () = access.over() => Err(Some(Close::Unauthorized)),
        end = session.serve() => end,
    };
    if let Err(Some(reason)) = end {
        close(&mut session.socket, reason).await;
    }
}

/// Waits for the frame with the key. `Err(None)` if the peer went away.
async fn first_frame(app: &App, socket: &mut WebSocket) -> Result<Access, Option<Close>> {
    let deadline = Instant::now() + app.options.limits.ws_auth_timeout;
    loop {
        let text = tokio::select! {
            () = app.options.shutdown.cancelled() => return Err(Some(Close::Restart)),
            message = timeout_at(deadline, socket.recv()) => match message {
                Err(_elapsed) => return Err(Some(Close::NoAuth)),
                Ok(message) => match incoming(message)? {
                    Some(text) => text,
                    None => continue,
                },
            },
        };
        let Ok(frame) = frame::read(&text) else { return Err(Some(Close::Unauthorized)) };
        let Some(token) = methods::auth_token(&frame) else { return Err(Some(Close::Unauthorized)) };
        return match check(app, &token).await {
            Ok(Identity::Known(access)) => {
                let reply = frame::result(frame.id, serde_json::json!({ "authenticated": true }).into());
                write(socket, [reply]).await?;
                Ok(access)
            }
            Ok(Identity::Refused | Identity::Unsaid) => Err(Some(Close::Unauthorized)),
            Err(_unavailable) => Err(Some(Close::TooSlow)),
        };
    }
}

/// Returns the text of a message; `None` for one that only shows that the peer is alive.
fn incoming(message: Option<Result<Message, axum::Error>>) -> Result<Option<Utf8Bytes>, Option<Close>> {
    match message {
        None => Err(None),
        Some(Ok(Message::Close(_))) => Err(Some(Close::Answer)),
        Some(Ok(Message::Text(text))) => Ok(Some(text)),
        // Binary frames are not supported: they are answered like any text that is no frame.
        Some(Ok(Message::Binary(_))) => Ok(Some(Utf8Bytes::from_static("binary"))),
        Some(Ok(Message::Ping(_) | Message::Pong(_))) => Ok(None),
        Some(Err(error)) => Err(fault(&error)),
    }
}

/// Returns the close code for an error below the messages; `None` if the connection is gone.
fn fault(error: &axum::Error) -> Option<Close> {
    use tungstenite::Error;
    match error.source().and_then(|source| source.downcast_ref::<Error>()) {
        Some(Error::Capacity(_)) => Some(Close::TooBig),
        Some(Error::Utf8(_)) => Some(Close::NotText),
        Some(Error::Protocol(tungstenite::error::ProtocolError::ResetWithoutClosingHandshake)) => None,
        Some(Error::Protocol(_)) => Some(Close::Protocol),
        Some(_) | None => None,
    }
}

/// Sends within the time that a peer may take.
async fn in_time(sending: impl Future<Output = Result<(), axum::Error>>) -> Result<(), Option<Close>> {
    match timeout(WRITE_TIMEOUT, sending).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(None),
        Err(_elapsed) => Err(Some(Close::TooSlow)),
    }
}

async fn write(socket: &mut WebSocket, lines: impl IntoIterator<Item = String>) -> Result<(), Option<Close>> {
    let writing = async {
        for line in lines {
            socket.feed(Message::Text(line.into())).await?;
        }
        socket.flush().await
    };
    in_time(writing).await
}

/// Sends the reason, and lets the peer read it before the connection ends.
async fn close(socket: &mut WebSocket, reason: Close) {
    let goodbye = async {
        if let Some(frame) = reason.frame()
            && socket.send(Message::Close(Some(frame))).await.is_err()
        {
            return;
        }
        while let Some(Ok(_)) = socket.recv().await {}
    };
    // A peer that does not answer is dropped.
    let _ = timeout(GOODBYE, goodbye).await;
}

struct Session {
    app: App,
    socket: WebSocket,
    principal: Principal,
    /// That of the handshake: runs that are started here belong to it.
    trace: TraceId,
    subscriptions: Subscriptions,
    heard: Instant,
    strikes: u32,
}

impl Session {
    /// Serves until there is a reason to close (`Some`) or the peer is gone (`None`).
    async fn serve(&mut self) -> Result<(), Option<Close>> {
        let every = self.app.options.limits.ws_ping;
        let mut ping = interval_at(Instant::now() + every, every);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let shutdown = self.app.options.shutdown.clone();
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return Err(Some(Close::Restart)),
                _ = ping.tick() => in_time(self.socket.send(Message::Ping(bytes::Bytes::new()))).await?,
                () = sleep_until(self.heard + self.app.options.limits.ws_silence) => match self.socket.recv().now_or_never() {
                    // A message that arrived during a slow write has not been read yet: that is no silence.
                    Some(message) => self.message(message).await?,
                    None => return Err(None),
                },
                message = self.socket.recv() => self.message(message).await?,
                lines = self.subscriptions.next() => match lines {
                    Ok(lines) => write(&mut self.socket, lines).await?,
                    Err(error) => {
                        let error = &error as &dyn std::error::Error;
                        tracing::error!(error, "a WebSocket ends because the log cannot be read");
                        return Err(Some(Close::TooSlow));
                    }
                },
            }
        }
    }

    async fn message(&mut self, message: Option<Result<Message, axum::Error>>) -> Result<(), Option<Close>> {
        self.heard = Instant::now();
        match incoming(message)? {
            Some(text) => self.request(&text).await,
            None => Ok(()),
        }
    }

    async fn request(&mut self, text: &str) -> Result<(), Option<Close>> {
        if text.len() > MAX_MESSAGE_BYTES {
            return Err(Some(Close::TooBig));
        }
        let frame = match frame::read(text) {
            Ok(frame) => frame,
            Err(error) => {
                self.strikes += 1;
                if self.strikes > PATIENCE {
                    return Err(Some(Close::Abuse));
                }
                return self.refuse("null", error.problem()).await;
            }
        };
        self.strikes = 0;
        let held = &self.subscriptions.targets;
        match methods::call(&self.app, &self.principal, held, &self.trace, &frame).await {
            Ok(reply) => self.answer(frame.id, reply).await,
            Err(Problem(problem)) => self.refuse(frame.id, *problem).await,
        }
    }

    async fn answer(&mut self, id: &str, reply: Reply) -> Result<(), Option<Close>> {
        let (outcome, reader) = match reply {
            Reply::Done(outcome) => (outcome, None),
            Reply::Stream { outcome, reader } => (outcome, Some(reader)),
            Reply::Finished { target, outcome, line } => {
                // Nothing may follow the end.
                self.subscriptions.remove(&target);
                return write(&mut self.socket, [frame::result(id, outcome), line]).await;
            }
            Reply::Unsubscribe(target) => {
                let removed = self.subscriptions.remove(&target);
                (serde_json::json!({ "unsubscribed": removed }).into(), None)
            }
        };
        // The answer goes first, then the events.
        write(&mut self.socket, [frame::result(id, outcome)]).await?;
        if let Some(reader) = reader {
            self.subscriptions.insert(&self.app, *reader);
        }
        Ok(())
    }

    async fn refuse(&mut self, id: &str, mut problem: ProblemBody) -> Result<(), Option<Close>> {
        problem.request_id = format!("req_{}", self.app.service.ids().next());
        if problem.status >= 500 {
            tracing::error!(request_id = problem.request_id, code = problem.code, "a WebSocket request failed");
        }
        write(&mut self.socket, [frame::error(id, &problem)]).await
    }
}
