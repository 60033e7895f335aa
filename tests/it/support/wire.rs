//! A provider at the level of bytes: plays each answer as chunks, pauses and cuts, and notes what was asked and who hung up.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// One thing that the provider does. A connection is closed in order when the last step is done.
#[derive(Debug, Clone)]
pub enum Step {
    /// Sends bytes as one chunk of the body.
    Send(Vec<u8>),
    /// Sends bytes as they are, outside of the chunked body.
    Raw(Vec<u8>),
    /// Waits.
    Pause(Duration),
    /// Says nothing more until the client hangs up.
    Hang,
    /// Drops the connection without ending the body.
    Cut,
}

/// An answer to one request.
#[derive(Debug, Clone)]
pub struct Answer {
    head: String,
    steps: Vec<Step>,
}

impl Answer {
    /// An answer with a status, headers as they stand on the wire, and a chunked body.
    pub fn new(status: u16, headers: &[(&str, &str)], steps: Vec<Step>) -> Self {
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        Self { head: format!("HTTP/1.1 {status} X\r\n{headers}transfer-encoding: chunked\r\n\r\n"), steps }
    }

    /// A stream of events.
    pub fn events(steps: Vec<Step>) -> Self {
        Self::new(200, &[("content-type", "text/event-stream")], steps)
    }

    /// A connection that ends without a byte.
    pub fn dead() -> Self {
        Self { head: String::new(), steps: vec![Step::Cut] }
    }

    /// A stream of events in one chunk.
    pub fn stream(body: impl AsRef<[u8]>) -> Self {
        Self::events(vec![Step::Send(body.as_ref().to_vec())])
    }

    /// A JSON document with a status.
    pub fn json(status: u16, body: &str) -> Self {
        Self::new(status, &[("content-type", "application/json")], vec![Step::Send(body.as_bytes().to_vec())])
    }
}

/// A request as it came.
#[derive(Debug, Clone)]
pub struct Asked {
    /// Request line and headers.
    pub head: String,
    /// The body.
    pub body: Vec<u8>,
}

impl Asked {
    /// The body as JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).expect("a request with a JSON body")
    }
}

/// The provider. Stops when dropped.
pub struct Wire {
    /// Ends with `/v1`.
    pub base_url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
    hung_up: watch::Receiver<Option<Instant>>,
    connections: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

impl Wire {
    /// A provider that gives the answers in order, and the last one again and again.
    pub async fn play(answers: Vec<Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let base_url = format!("http://{}/v1", listener.local_addr().expect("a bound socket"));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (hung_up_tx, hung_up) = watch::channel(None);
        let mut tasks = JoinSet::new();
        let notes = Arc::clone(&asked);
        let answers: Arc<[Answer]> = answers.into();
        let connections = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&connections);
        tasks.spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                counter.fetch_add(1, Ordering::SeqCst);
                let (answers, notes, hung_up) = (Arc::clone(&answers), Arc::clone(&notes), hung_up_tx.clone());
                open.spawn(async move {
                    let _ = serve(socket, &answers, &notes, &hung_up).await;
                });
            }
        });
        Self { base_url, asked, hung_up, connections, _tasks: tasks }
    }

    /// Returns the requests so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("no test panics with the lock").clone()
    }

    /// Connections made so far.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// When the client hung up, which must happen within `limit`.
    pub async fn hung_up(&self, limit: Duration) -> Instant {
        let mut hung_up = self.hung_up.clone();
        let seen = super::wait::within("the client to hang up", limit, hung_up.wait_for(Option::is_some)).await;
        seen.expect("the provider runs").expect("a moment")
    }
}

async fn serve(
    mut socket: TcpStream,
    answers: &[Answer],
    notes: &Mutex<Vec<Asked>>,
    hung_up: &watch::Sender<Option<Instant>>,
) -> std::io::Result<()> {
    socket.set_nodelay(true)?;
    while let Some(asked) = read_request(&mut socket).await? {
        let answer = {
            let mut notes = notes.lock().expect("no test panics with the lock");
            notes.push(asked);
            answers[(notes.len() - 1).min(answers.len() - 1)].clone()
        };
        socket.write_all(answer.head.as_bytes()).await?;
        let (mut reader, mut writer) = socket.split();
        let play = async {
            for step in &answer.steps {
                match step {
                    Step::Send(bytes) if bytes.is_empty() => {}
                    Step::Send(bytes) => {
                        writer.write_all(format!("{:x}\r\n", bytes.len()).as_bytes()).await?;
                        writer.write_all(bytes).await?;
                        writer.write_all(b"\r\n").await?;
                    }
                    Step::Raw(bytes) => writer.write_all(bytes).await?,
                    Step::Pause(pause) => tokio::time::sleep(*pause).await,
                    Step::Hang => std::future::pending::<()>().await,
                    Step::Cut => return Ok(false),
                }
            }
            writer.write_all(b"0\r\n\r\n").await?;
            std::io::Result::Ok(true)
        };
        let mut nothing = [0; 1];
        let goes_on = tokio::select! {
            goes_on = play => goes_on,
            // A client sends nothing while it waits for the answer, so any read means the end of its connection.
            _ = reader.read(&mut nothing) => Err(std::io::ErrorKind::ConnectionAborted.into()),
        };
        match goes_on {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(error) => {
                hung_up.send_replace(Some(Instant::now()));
                return Err(error);
            }
        }
    }
    Ok(())
}

async fn read_request(socket: &mut TcpStream) -> std::io::Result<Option<Asked>> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        if socket.read_buf(&mut bytes).await? == 0 {
            return Ok(None);
        }
    };
    let head = String::from_utf8_lossy(&bytes[..head_end]).into_owned();
    let length = head
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, value)| value.trim().parse().ok())
        .unwrap_or(0);
    let mut body = bytes.split_off(head_end);
    while body.len() < length {
        if socket.read_buf(&mut body).await? == 0 {
            return Ok(None);
        }
    }
    Ok(Some(Asked { head, body }))
}
