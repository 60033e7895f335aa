//! The listener: accepts connections, serves HTTP/1.1 and HTTP/2, and closes connections in order.
//!
//! A drain closes the listening socket at once: a browser's EventSource reconnects after a refused connection, but never after a
//! 503.

use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use crate::http::ExcessConnection;

/// Time limit for a client to send the head of a request, and for an idle kept-alive connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(75);

const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(20);

/// The delay after a failed accept, usually because of the limit of open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const HTTP2_STREAMS: u32 = 250;

/// The size of the kernel's send buffer. It limits the memory for a client that does not read. The default grows to 4 MiB.
const SEND_BUFFER_BYTES: u32 = 256 * 1024;

/// The unsent part of that buffer. With a small value, Capstan notices soon that a client has stopped reading. Sent bytes that
/// are not acknowledged yet do not count.
#[cfg(target_os = "linux")]
const UNSENT_BYTES: u32 = 32 * 1024;

/// The time that sent bytes may stay unacknowledged before the kernel closes the connection. Nothing else closes a stuck event stream.
#[cfg(target_os = "linux")]
const UNREAD_LIMIT: Duration = Duration::from_secs(45);

/// The largest number of excess connections, which are above the limit, at a time. Each gets at most one response.
const MAX_EXCESS: usize = 64;

/// Time limit for the first byte of an excess connection. The limit is short, because further connections wait to be accepted.
const EXCESS_FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(2);
const EXCESS_HEAD_TIMEOUT: Duration = Duration::from_secs(5);

const BACKLOG: u32 = 1024;

pub fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    listen(address).with_context(|| format!("cannot listen on {address}; choose another address with --listen or CAPSTAN_LISTEN"))
}

fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Allows a restart while connections of the previous process are still closing.
    socket.set_reuseaddr(true)?;
    socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves until `drain`, then closes the listening socket and lets requests finish. Returns when all connections are closed; `stop`
/// closes the last ones. A connection above `max_connections` gets one response. [`ExcessConnection`] marks its request.
pub async fn serve(listener: TcpListener, app: Router, max_connections: usize, drain: CancellationToken, stop: CancellationToken) {
    let mut http1_or_http2 = auto::Builder::new(TokioExecutor::new());
    http1_or_http2.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    http1_or_http2
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(HTTP2_STREAMS)
        .keep_alive_interval(Duration::from_secs(20));
    let mut http1 = http1::Builder::new();
    http1.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    let mut http1_single_response = http1.clone();
    http1_single_response.keep_alive(false).header_read_timeout(EXCESS_HEAD_TIMEOUT);
    let permits = ConnectionPermits::new(max_connections);
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = drain.cancelled() => break,
            accepted = accept(&listener, &permits) => accepted,
            Some(_) = connections.join_next() => continue,
        };
        let (stream, peer, ConnectionPermit { permit, is_excess }) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let service = app.clone().map_request(move |request: axum::http::Request<_>| {
            let mut request = request.map(axum::body::Body::new);
            if is_excess {
                request.extensions_mut().insert(ExcessConnection);
            }
            request
        });
        let (http1, time_limit) = match is_excess {
            true => (http1_single_response.clone(), EXCESS_FIRST_BYTE_TIMEOUT),
            false => (http1.clone(), FIRST_BYTE_TIMEOUT),
        };
        let (http1_or_http2, drain) = (http1_or_http2.clone(), drain.clone());
        connections.spawn(async move {
            let is_http1 = tokio::select! {
                () = drain.cancelled() => return,
                is_http1 = tokio::time::timeout(time_limit, begins_as_http1(&stream)) => is_http1,
            };
            let (io, service) = (TokioIo::new(stream), TowerToHyperService::new(service));
            let outcome = match is_http1 {
                // HTTP/2 has no simple single response. Its clients retry when the connection is closed.
                Ok(Ok(false)) if is_excess => Ok(()),
                // Boxed, so that an HTTP/1 connection does not reserve memory for HTTP/2.
                Ok(Ok(false)) => {
                    let mut connection = Box::pin(http1_or_http2.serve_connection_with_upgrades(io, service));
                    until_drained(connection.as_mut(), &drain, |connection| connection.graceful_shutdown()).await
                }
                Ok(Ok(true)) => {
                    let connection = pin!(http1.serve_connection(io, service).with_upgrades());
                    until_drained(connection, &drain, |connection| connection.graceful_shutdown()).await.map_err(Into::into)
                }
                Ok(Err(error)) => Err(error.into()),
                Err(late) => Err(late.into()),
            };
            if let Err(error) = outcome {
                tracing::debug!(%peer, error, "a connection failed or timed out");
            }
            drop(permit);
        });
    }
    drop(listener);
    let all_closed = async { while connections.join_next().await.is_some() {} };
    // Dropping the set aborts the last connections.
    tokio::select! {
        () = all_closed => {}
        () = stop.cancelled() => {}
    }
}

/// Serves a connection. After `drain` it ends when the current requests have their responses.
async fn until_drained<C: Future>(mut connection: Pin<&mut C>, drain: &CancellationToken, close: fn(Pin<&mut C>)) -> C::Output {
    tokio::select! {
        outcome = connection.as_mut() => return outcome,
        () = drain.cancelled() => {}
    }
    close(connection.as_mut());
    connection.await
}

/// Returns whether the first bytes cannot be HTTP/2 (`PRI * HTTP/2.0`, RFC 9113, section 3.4). If they can be HTTP/2, the HTTP library
/// decides. It reads ahead, which doubles its buffer for the life of the connection.
async fn begins_as_http1(stream: &TcpStream) -> std::io::Result<bool> {
    let mut first = [0; 3];
    let length = stream.peek(&mut first).await?;
    Ok(!b"PRI".starts_with(&first[..length]))
}

/// The permits for connections: a regular one for each connection within the limit, and a few extra ones.
struct ConnectionPermits {
    regular: Arc<Semaphore>,
    excess: Arc<Semaphore>,
}

struct ConnectionPermit {
    permit: OwnedSemaphorePermit,
    /// Whether the connection is above the limit.
    is_excess: bool,
}

impl ConnectionPermits {
    fn new(max_connections: usize) -> Self {
        let regular = Arc::new(Semaphore::new(max_connections.min(Semaphore::MAX_PERMITS)));
        Self { regular, excess: Arc::new(Semaphore::new(MAX_EXCESS)) }
    }

    async fn acquire(&self) -> std::io::Result<ConnectionPermit> {
        let (permit, is_excess) = tokio::select! {
            biased;
            permit = Arc::clone(&self.regular).acquire_owned() => (permit, false),
            permit = Arc::clone(&self.excess).acquire_owned() => (permit, true),
        };
        Ok(ConnectionPermit { permit: permit.map_err(std::io::Error::other)?, is_excess })
    }

    /// Replaces an extra permit by a regular one, if one is free.
    fn prefer_regular(&self, current: ConnectionPermit) -> ConnectionPermit {
        match Arc::clone(&self.regular).try_acquire_owned() {
            Ok(permit) if current.is_excess => ConnectionPermit { permit, is_excess: false },
            Ok(_) | Err(_) => current,
        }
    }
}

/// Acquires a permit and then accepts a connection, so that dropping the future loses no accepted connection.
async fn accept(listener: &TcpListener, permits: &ConnectionPermits) -> std::io::Result<(TcpStream, SocketAddr, ConnectionPermit)> {
    let permit = permits.acquire().await?;
    let (stream, peer) = listener.accept().await?;
    let permit = permits.prefer_regular(permit);
    // Deltas are small and must be sent at once.
    stream.set_nodelay(true)?;
    #[cfg(target_os = "linux")]
    {
        let socket = socket2::SockRef::from(&stream);
        socket.set_tcp_notsent_lowat(UNSENT_BYTES)?;
        socket.set_tcp_user_timeout(Some(UNREAD_LIMIT))?;
    }
    Ok((stream, peer, permit))
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// Tests the fault W-20 of docs/faults.md. The paused clock advances while all tasks wait.
    #[tokio::test(start_paused = true)]
    async fn silent_or_endless_request_head_closes_connection() {
        let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let app = Router::new().route("/", get(|| async { "here" }));
        let (drain, stop) = (CancellationToken::new(), CancellationToken::new());
        let server = serve(listener, app, 10, drain.clone(), stop);
        let clients = async {
            for request in ["", "GET / HTTP/1.1\r\nhost: x\r\nx-slow: a"] {
                let began = tokio::time::Instant::now();
                let mut slow = TcpStream::connect(address).await.unwrap();
                slow.write_all(request.as_bytes()).await.unwrap();
                let mut answer = String::new();
                let _ = slow.read_to_string(&mut answer).await;
                assert!(began.elapsed() <= HEAD_TIMEOUT + Duration::from_secs(1), "{request:?}: {:?}", began.elapsed());
                assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");
            }
            let mut quick = TcpStream::connect(address).await.unwrap();
            quick.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
            let mut answer = String::new();
            quick.read_to_string(&mut answer).await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("here"), "{answer}");
            drain.cancel();
        };
        tokio::join!(server, clients);
    }
}
