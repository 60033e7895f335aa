//! The listener: accepts connections, serves HTTP/1.1 and HTTP/2 on them, and ends them in order.
//!
//! When the server drains, the listening socket is closed at once: a refused connection makes a browser's EventSource try
//! again, a 503 ends it for good.

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

use crate::http::OneTooMany;

/// How long a client may take to send the head of a request, and a kept-alive connection may rest.
const HEAD_TIMEOUT: Duration = Duration::from_secs(75);

/// How long a client may take to say anything at all.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(20);

/// The wait after an accept that failed, most often for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Streams of one HTTP/2 connection.
const HTTP2_STREAMS: u32 = 250;

/// What the kernel holds back for a client that does not read. Left to itself, it takes up to 4 MiB for each of them.
const SEND_BUFFER_BYTES: u32 = 256 * 1024;

/// What the kernel may hold of what it has not begun to send. A client that stops reading is so felt after this much, not only when the
/// buffer is full: until then it costs as much as one that reads. What is under way to a distant client does not count.
#[cfg(target_os = "linux")]
const UNSENT_BYTES: u32 = 32 * 1024;

/// A client that has not taken a byte for so long, although some were sent, is gone or stalled. Its connection ends: nothing
/// else would ever end that of an event stream.
#[cfg(target_os = "linux")]
const UNREAD_LIMIT: Duration = Duration::from_secs(45);

/// How many connections beyond the most are told so at a time. More wait to be accepted.
const TURNED_AWAY: usize = 64;

/// How long one of these may take to say anything, and to send the head of its request: others want to be told as well.
const EXTRA_FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(2);
const EXTRA_HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// How many connections may wait to be accepted.
const BACKLOG: u32 = 1024;

/// Binds the address.
///
/// # Errors
/// If it is taken or not ours.
pub fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    listen(address).with_context(|| format!("cannot listen on {address}; choose another address with --listen or CAPSTAN_LISTEN"))
}

fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A restarted server need not wait for the last connections of the one before.
    socket.set_reuseaddr(true)?;
    socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves until `drain`, then closes the listening socket, lets requests under way end, and returns when all connections are
/// closed, or at `stop`, which closes those that are left. A connection beyond `max_connections` is [told so](OneTooMany), and closed.
pub async fn serve(listener: TcpListener, app: Router, max_connections: usize, drain: CancellationToken, stop: CancellationToken) {
    let mut either = auto::Builder::new(TokioExecutor::new());
    either.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    either.http2().timer(TokioTimer::new()).max_concurrent_streams(HTTP2_STREAMS).keep_alive_interval(Duration::from_secs(20));
    let mut http1 = http1::Builder::new();
    http1.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    let mut once = http1.clone();
    once.keep_alive(false).header_read_timeout(EXTRA_HEAD_TIMEOUT);
    let room = Room::new(max_connections);
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = drain.cancelled() => break,
            accepted = accept(&listener, &room) => accepted,
            Some(_) = connections.join_next() => continue,
        };
        let (stream, peer, Seat { permit, is_extra }) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let service = app.clone().map_request(move |request: axum::http::Request<_>| {
            let mut request = request.map(axum::body::Body::new);
            if is_extra {
                request.extensions_mut().insert(OneTooMany);
            }
            request
        });
        let (http1, patience) = match is_extra {
            true => (once.clone(), EXTRA_FIRST_BYTE_TIMEOUT),
            false => (http1.clone(), FIRST_BYTE_TIMEOUT),
        };
        let (either, drain) = (either.clone(), drain.clone());
        connections.spawn(async move {
            let begins = tokio::select! {
                () = drain.cancelled() => return,
                begins = tokio::time::timeout(patience, begins_as_http1(&stream)) => begins,
            };
            let (io, service) = (TokioIo::new(stream), TowerToHyperService::new(service));
            let ended = match begins {
                // Whoever speaks HTTP/2 has no way to be told in one answer, and tries again when it is closed.
                Ok(Ok(false)) if is_extra => Ok(()),
                // Boxed, so that a connection takes no more room than its version needs.
                Ok(Ok(false)) => {
                    let mut connection = Box::pin(either.serve_connection_with_upgrades(io, service));
                    until_drained(connection.as_mut(), &drain, |connection| connection.graceful_shutdown()).await
                }
                Ok(Ok(true)) => {
                    let connection = pin!(http1.serve_connection(io, service).with_upgrades());
                    until_drained(connection, &drain, |connection| connection.graceful_shutdown()).await.map_err(Into::into)
                }
                Ok(Err(error)) => Err(error.into()),
                Err(late) => Err(late.into()),
            };
            if let Err(error) = ended {
                tracing::debug!(%peer, error, "a connection broke");
            }
            drop(permit);
        });
    }
    drop(listener);
    let ended = async { while connections.join_next().await.is_some() {} };
    // Dropping the set of connections aborts those that are left.
    tokio::select! {
        () = ended => {}
        () = stop.cancelled() => {}
    }
}

/// Serves a connection; after `drain`, until the requests under way have their answers.
async fn until_drained<C: Future>(mut connection: Pin<&mut C>, drain: &CancellationToken, close: fn(Pin<&mut C>)) -> C::Output {
    tokio::select! {
        ended = connection.as_mut() => return ended,
        () = drain.cancelled() => {}
    }
    close(connection.as_mut());
    connection.await
}

/// Whether the first bytes of a connection, which stay where they are, cannot be those of HTTP/2 (`PRI * HTTP/2.0`, RFC 9113,
/// section 3.4). False where they do not tell: then the HTTP library finds out by reading a few bytes ahead, after which its
/// buffer for the rest is twice as large, for as long as the connection lives.
async fn begins_as_http1(stream: &TcpStream) -> std::io::Result<bool> {
    let mut first = [0; 3];
    let length = stream.peek(&mut first).await?;
    Ok(!b"PRI".starts_with(&first[..length]))
}

/// How many connections there may be.
struct Room {
    usual: Arc<Semaphore>,
    extra: Arc<Semaphore>,
}

/// One connection's place in it.
struct Seat {
    permit: OwnedSemaphorePermit,
    /// It is beyond the most.
    is_extra: bool,
}

impl Room {
    fn new(max_connections: usize) -> Self {
        let usual = Arc::new(Semaphore::new(max_connections.min(Semaphore::MAX_PERMITS)));
        Self { usual, extra: Arc::new(Semaphore::new(TURNED_AWAY)) }
    }

    async fn seat(&self) -> std::io::Result<Seat> {
        let (permit, is_extra) = tokio::select! {
            biased;
            permit = Arc::clone(&self.usual).acquire_owned() => (permit, false),
            permit = Arc::clone(&self.extra).acquire_owned() => (permit, true),
        };
        Ok(Seat { permit: permit.map_err(std::io::Error::other)?, is_extra })
    }

    /// The same place, or a usual one if there is one by now.
    fn rather_usual(&self, seat: Seat) -> Seat {
        match Arc::clone(&self.usual).try_acquire_owned() {
            Ok(permit) if seat.is_extra => Seat { permit, is_extra: false },
            Ok(_) | Err(_) => seat,
        }
    }
}

/// A place first, and then who takes it: a connection that was accepted is not lost when this is given up.
async fn accept(listener: &TcpListener, room: &Room) -> std::io::Result<(TcpStream, SocketAddr, Seat)> {
    let seat = room.seat().await?;
    let (stream, peer) = listener.accept().await?;
    let seat = room.rather_usual(seat);
    // Tokens are small and each one matters now.
    stream.set_nodelay(true)?;
    #[cfg(target_os = "linux")]
    {
        let socket = socket2::SockRef::from(&stream);
        socket.set_tcp_notsent_lowat(UNSENT_BYTES)?;
        socket.set_tcp_user_timeout(Some(UNREAD_LIMIT))?;
    }
    Ok((stream, peer, seat))
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// W-20. Time passes by itself while everybody waits.
    #[tokio::test(start_paused = true)]
    async fn whoever_says_nothing_or_never_ends_its_head_is_left() {
        let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let app = Router::new().route("/", get(|| async { "here" }));
        let (drain, stop) = (CancellationToken::new(), CancellationToken::new());
        let server = serve(listener, app, 10, drain.clone(), stop);
        let clients = async {
            for said in ["", "GET / HTTP/1.1\r\nhost: x\r\nx-slow: a"] {
                let began = tokio::time::Instant::now();
                let mut slow = TcpStream::connect(address).await.unwrap();
                slow.write_all(said.as_bytes()).await.unwrap();
                let mut answer = String::new();
                let _ = slow.read_to_string(&mut answer).await;
                assert!(began.elapsed() <= HEAD_TIMEOUT + Duration::from_secs(1), "{said:?}: {:?}", began.elapsed());
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
