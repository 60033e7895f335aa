//! The wire between a server and its database, which can be cut.

use std::net::SocketAddr;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// A relay to an address. Ends when dropped, with all that goes through it.
pub struct Link {
    /// Where to connect to.
    pub address: SocketAddr,
    state: watch::Sender<State>,
    _tasks: JoinSet<()>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State {
    cuts: u64,
    is_whole: bool,
}

impl Link {
    /// A relay from a free port of the loopback to `target`.
    pub async fn to(target: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (state, seen) = watch::channel(State { cuts: 0, is_whole: true });
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut carried = JoinSet::new();
            loop {
                let (mut near, _) = listener.accept().await.unwrap();
                let State { cuts, is_whole } = *seen.borrow();
                let (target, mut seen) = (target.clone(), seen.clone());
                // Dropping the stream is the refusal.
                if is_whole {
                    carried.spawn(async move {
                        let carrying = async {
                            if let Ok(mut far) = TcpStream::connect(target).await {
                                let _ = copy_bidirectional(&mut near, &mut far).await;
                            }
                        };
                        tokio::select! {
                            () = carrying => {}
                            _ = seen.wait_for(|state| state.cuts != cuts) => {}
                        }
                    });
                }
            }
        });
        Self { address, state, _tasks: tasks }
    }

    /// Breaks all connections and makes no new ones.
    pub fn cut(&self) {
        self.state.send_modify(|state| *state = State { cuts: state.cuts + 1, is_whole: false });
    }

    /// Makes connections again.
    pub fn mend(&self) {
        self.state.send_modify(|state| state.is_whole = true);
    }
}
