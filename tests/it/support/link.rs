//! The wire between a server and its database, which can be cut, and may be deaf.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader, copy, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// A relay to an address. Ends when dropped, with all that goes through it.
pub struct Link {
    /// Where to connect to.
    pub address: SocketAddr,
    kept_back: Arc<AtomicU64>,
    state: watch::Sender<State>,
    _tasks: JoinSet<()>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State {
    cuts: u64,
    hushes: u64,
    is_whole: bool,
}

/// The answers that the link carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hears {
    All,
    /// No notifications, as behind a pooler: LISTEN is answered, and then nothing comes.
    Answers,
}

impl Link {
    /// A relay from a free port of the loopback to `target`.
    pub async fn to(target: String) -> Self {
        Self::carrying(target, Hears::All).await
    }

    /// The same to a Postgres whose notifications never arrive.
    pub async fn without_notifications(target: String) -> Self {
        Self::carrying(target, Hears::Answers).await
    }

    async fn carrying(target: String, hears: Hears) -> Self {
        let kept_back = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&kept_back);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (state, seen) = watch::channel(State { cuts: 0, hushes: 0, is_whole: true });
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut carried = JoinSet::new();
            loop {
                let (mut near, _) = listener.accept().await.unwrap();
                let State { cuts, hushes, is_whole } = *seen.borrow();
                let (target, mut seen, mut heard, count) = (target.clone(), seen.clone(), seen.clone(), Arc::clone(&count));
                // Dropping the stream is the refusal.
                if is_whole {
                    carried.spawn(async move {
                        let carrying = async {
                            if let Ok(mut far) = TcpStream::connect(target).await {
                                let _ = match hears {
                                    Hears::All => copy_bidirectional(&mut near, &mut far).await.map(drop),
                                    Hears::Answers => carry_answers(&mut near, &mut far, &count).await,
                                };
                            }
                        };
                        tokio::select! {
                            () = carrying => return,
                            _ = seen.wait_for(|state| state.cuts != cuts) => return,
                            _ = heard.wait_for(|state| state.hushes != hushes) => {}
                        }
                        // The near side stays open without a far side.
                        let _ = seen.wait_for(|state| state.cuts != cuts).await;
                        drop(near);
                    });
                }
            }
        });
        Self { address, kept_back, state, _tasks: tasks }
    }

    /// How many notifications did not go through.
    pub fn kept_back(&self) -> u64 {
        self.kept_back.load(Ordering::Relaxed)
    }

    /// Breaks all connections and makes no new ones.
    pub fn cut(&self) {
        self.state.send_modify(|state| *state = State { cuts: state.cuts + 1, is_whole: false, ..*state });
    }

    /// Carries nothing more on the connections that there are, and leaves them open. New ones are carried.
    pub fn hush(&self) {
        self.state.send_modify(|state| state.hushes += 1);
    }

    /// Makes connections again.
    pub fn mend(&self) {
        self.state.send_modify(|state| state.is_whole = true);
    }
}

/// Carries both ways until either ends, but no `NotificationResponse` of the Postgres protocol. Every message of the server is a
/// letter and a length that counts itself; a connection without TLS has no other bytes.
async fn carry_answers(near: &mut TcpStream, far: &mut TcpStream, kept_back: &AtomicU64) -> std::io::Result<()> {
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let ((mut requests, mut client), (answers, mut server)) = (near.split(), far.split());
    let mut answers = BufReader::new(answers);
    let back = async {
        loop {
            let mut message = vec![0; 5];
            answers.read_exact(&mut message).await?;
            let length = u32::from_be_bytes(message[1..].try_into().unwrap()) as usize;
            message.resize(1 + length, 0);
            answers.read_exact(&mut message[5..]).await?;
            if message[0] == b'A' {
                kept_back.fetch_add(1, Ordering::Relaxed);
            } else {
                client.write_all(&message).await?;
            }
        }
    };
    tokio::select! {
        sent = copy(&mut requests, &mut server) => sent.map(drop),
        ended = back => ended,
    }
}
