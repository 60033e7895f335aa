//! Runs one WebSocket of any protocol, from the handshake to the close.

use std::borrow::Cow;
use std::error::Error as _;
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket};
use futures_util::{FutureExt as _, SinkExt as _};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until, timeout, timeout_at};

use super::identity::{Identity, check};
use crate::domain::trace::TraceId;
use crate::http::metrics::OpenStream;
use crate::http::options::App;
use crate::http::wire::links::with_prefix;
use crate::service::{Access, StoreError};

/// Time limit for the client to accept a write.
const WRITE_TIMEOUT: Duration = Duration::from_secs(20);
/// Time limit for the client to answer a close.
const GOODBYE: Duration = Duration::from_secs(1);

/// The frames of one protocol on a socket.
pub(in crate::http) trait SocketProtocol: Send + Sized + 'static {
    /// Limit of a message of the client, in bytes.
    const MAX_MESSAGE_BYTES: usize;

    /// Reads the key from the first frame of a client that sent none with the handshake. `None` if no frame may contain one: then
    /// the handshake is refused.
    const FIRST_FRAME_KEY: Option<fn(&str) -> Option<String>>;

    /// `trace` is the trace id of the handshake, which runs started on the socket get.
    fn new(app: App, access: Access, trace: TraceId) -> Self;

    /// Executes a frame of the client. Returns the lines of the response.
    fn request(&mut self, text: &str) -> impl Future<Output = Result<Vec<String>, Close>> + Send;

    /// Returns the next lines to send. Waits forever if nothing is followed. Cancel-safe.
    fn next(&mut self) -> impl Future<Output = Result<Vec<String>, StoreError>> + Send;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::http) enum Close {
    Answer,
    Protocol,
    NotText,
    /// A frame that does not belong to the protocol of the socket.
    BadFrame,
    TooBig,
    Restart,
    /// The client reads too slowly, or the database cannot be read.
    TooSlow,
    Abuse,
    Unauthorized,
    NoAuth,
    TooMany,
}

impl Close {
    /// Returns the close frame; `None` for the client's own close, which the library answers when the socket is polled again.
    fn frame(self) -> Option<CloseFrame> {
        let (code, reason) = match self {
            Self::Answer => return None,
            Self::Protocol => (1002, "protocol error"),
            Self::NotText => (1007, "text that is not UTF-8"),
            Self::BadFrame => (1008, "not a frame of this protocol"),
            Self::TooBig => (1009, "message too big"),
            Self::Restart => (1012, "the server restarts; reconnect with your cursor"),
            Self::TooSlow => (1013, "too slow; reconnect with your cursor"),
            Self::Abuse => (4400, "too many unreadable frames"),
            Self::Unauthorized => (4401, "the key or ticket is missing, wrong, used or revoked"),
            Self::NoAuth => (4408, "no authentication in time"),
            Self::TooMany => (4429, "too many WebSockets"),
        };
        Some(CloseFrame { code, reason: Utf8Bytes::from_static(reason) })
    }
}

pub(super) async fn run<P: SocketProtocol>(app: App, mut socket: WebSocket, identity: Identity, trace: TraceId) {
    let (access, first) = match identity {
        Identity::Known(access) => (access, None),
        Identity::Refused => return close(&mut socket, Close::Unauthorized).await,
        Identity::NoKey => match first_frame::<P>(&app, &mut socket).await {
            Ok((access, text)) => (access, Some(text)),
            Err(Some(reason)) => return close(&mut socket, reason).await,
            Err(None) => return,
        },
    };
    let Some(_permit) = app.sockets.permit(&access.principal().user_id, app.options.limits.ws_max_per_principal) else {
        return close(&mut socket, Close::TooMany).await;
    };
    let _open = OpenStream::new("websocket");
    let protocol = P::new(app.clone(), access.clone(), trace);
    let mut session = Session { app, socket, protocol, heard: Instant::now() };
    let end = tokio::select! {
        biased;
        // Checked at any time, because a client that does not read can block the session for long.
        () = access.wait_until_over() => Err(Some(Close::Unauthorized)),
        end = session.serve(first) => end,
    };
    if let Err(Some(reason)) = end {
        close(&mut session.socket, reason).await;
    }
}

/// Waits for the frame with the key, and returns it. `Err(None)` if the client disconnected.
async fn first_frame<P: SocketProtocol>(app: &App, socket: &mut WebSocket) -> Result<(Access, Utf8Bytes), Option<Close>> {
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
        let Some(key) = P::FIRST_FRAME_KEY.and_then(|key| key(&text)) else { return Err(Some(Close::Unauthorized)) };
        return match check(app, &key).await {
            Ok(Identity::Known(access)) => Ok((access, text)),
            Ok(Identity::Refused | Identity::NoKey) => Err(Some(Close::Unauthorized)),
            Err(_unavailable) => Err(Some(Close::TooSlow)),
        };
    }
}

/// Returns the text of a message; `None` for a message that only shows that the client is alive.
fn incoming(message: Option<Result<Message, axum::Error>>) -> Result<Option<Utf8Bytes>, Option<Close>> {
    match message {
        None => Err(None),
        Some(Ok(Message::Close(_))) => Err(Some(Close::Answer)),
        Some(Ok(Message::Text(text))) => Ok(Some(text)),
        // Binary frames are not supported: they get the response of an invalid frame.
        Some(Ok(Message::Binary(_))) => Ok(Some(Utf8Bytes::from_static("binary"))),
        Some(Ok(Message::Ping(_) | Message::Pong(_))) => Ok(None),
        Some(Err(error)) => Err(close_of_error(&error)),
    }
}

/// Returns the close code for an error of the protocol; `None` if the connection is lost.
fn close_of_error(error: &axum::Error) -> Option<Close> {
    use tungstenite::Error;
    match error.source().and_then(|source| source.downcast_ref::<Error>()) {
        Some(Error::Capacity(_)) => Some(Close::TooBig),
        Some(Error::Utf8(_)) => Some(Close::NotText),
        Some(Error::Protocol(tungstenite::error::ProtocolError::ResetWithoutClosingHandshake)) => None,
        Some(Error::Protocol(_)) => Some(Close::Protocol),
        Some(_) | None => None,
    }
}

/// Sends within the time limit of a client.
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

/// Sends the reason, and lets the client read it before the connection closes.
async fn close(socket: &mut WebSocket, reason: Close) {
    let goodbye = async {
        if let Some(frame) = reason.frame()
            && socket.send(Message::Close(Some(frame))).await.is_err()
        {
            return;
        }
        while let Some(Ok(_)) = socket.recv().await {}
    };
    // A client that does not answer is disconnected.
    let _ = timeout(GOODBYE, goodbye).await;
}

struct Session<P> {
    app: App,
    socket: WebSocket,
    protocol: P,
    heard: Instant,
}

impl<P: SocketProtocol> Session<P> {
    /// Serves until the session must close (`Some`) or the client disconnects (`None`). `first` is a frame that has arrived
    /// already.
    async fn serve(&mut self, first: Option<Utf8Bytes>) -> Result<(), Option<Close>> {
        if let Some(text) = first {
            self.request(&text).await?;
        }
        let every = self.app.options.limits.ws_ping;
        let mut ping = interval_at(Instant::now() + every, every);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let shutdown = self.app.options.shutdown.clone();
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return Err(Some(Close::Restart)),
                _ = ping.tick() => in_time(self.socket.send(Message::Ping(bytes::Bytes::new()))).await?,
                () = sleep_until(self.heard + self.app.options.limits.ws_silence) => match self.socket.recv().now_or_never() {
                    // A message that arrived during a slow write is still unread: the client is not silent.
                    Some(message) => self.message(message).await?,
                    None => return Err(None),
                },
                message = self.socket.recv() => self.message(message).await?,
                lines = self.protocol.next() => match lines {
                    Ok(lines) => self.write(lines).await?,
                    Err(error) => {
                        let error = &error as &dyn std::error::Error;
                        tracing::error!(error, "closing a WebSocket because the log cannot be read");
                        return Err(Some(Close::TooSlow));
                    }
                },
            }
        }
    }

    async fn write(&mut self, lines: impl IntoIterator<Item = String>) -> Result<(), Option<Close>> {
        let prefix = self.app.options.path_prefix();
        let lines = lines.into_iter().map(|line| match with_prefix(&line, prefix) {
            Cow::Owned(prefixed) => prefixed,
            Cow::Borrowed(_) => line,
        });
        write(&mut self.socket, lines).await
    }

    async fn message(&mut self, message: Option<Result<Message, axum::Error>>) -> Result<(), Option<Close>> {
        self.heard = Instant::now();
        match incoming(message)? {
            Some(text) => self.request(&text).await,
            None => Ok(()),
        }
    }

    async fn request(&mut self, text: &str) -> Result<(), Option<Close>> {
        if text.len() > P::MAX_MESSAGE_BYTES {
            return Err(Some(Close::TooBig));
        }
        let lines = self.protocol.request(text).await.map_err(Some)?;
        self.write(lines).await
    }
}
