//! The other end of a failpoint whose action is `ask`: the test hears that the point was reached while the process stands still
//! there, and says what becomes of it.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::wait;

/// Where servers ask.
pub struct Asker {
    point: &'static str,
    address: SocketAddr,
    questions: mpsc::UnboundedReceiver<Question>,
    _tasks: JoinSet<()>,
}

/// A server that stands at the point.
pub struct Question {
    stream: BufReader<TcpStream>,
}

impl Asker {
    /// Listens on a free port of the loopback for those that reach a point.
    pub async fn start(point: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (asked, questions) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            loop {
                let mut stream = BufReader::new(listener.accept().await.unwrap().0);
                let mut line = String::new();
                let reading = wait::within("the name of the point", Duration::from_secs(10), stream.read_line(&mut line));
                // The port may have been that of a server, and a client still look for it here.
                if reading.await.is_ok() && line.trim() == point {
                    let _ = asked.send(Question { stream });
                }
            }
        });
        Self { point, address, questions, _tasks: tasks }
    }

    /// Returns the environment variable that makes a server ask at the `at`-th arrival at the point.
    pub fn setting(&self, at: usize) -> (&'static str, String) {
        ("CAPSTAN_FAILPOINTS", format!("{}=ask:{}@{at}", self.point, self.address))
    }

    /// Waits until a server asks. A question without a waiting test is not lost.
    pub async fn next(&mut self) -> Question {
        self.questions.recv().await.unwrap()
    }
}

impl Question {
    /// Says what to do: `kill`, `stop`, `panic`, or anything else for nothing.
    pub async fn answer(mut self, word: &str) {
        self.stream.write_all(word.as_bytes()).await.unwrap();
        self.stream.shutdown().await.unwrap();
    }
}
