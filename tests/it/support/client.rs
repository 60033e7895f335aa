//! A client as it should be: it asks again by the same key until its message is accepted, and comes back with its cursor until it
//! has seen the end.

use std::time::Duration;

use reqwest::{Client as Http, Response, StatusCode};
use serde_json::Value;
use tokio::sync::watch;

use super::sse::{Frame, Next, SseStream};

/// How long it waits before it tries again.
const PAUSE: Duration = Duration::from_millis(50);

/// The current address of the server. A client that receives a new address drops its work with the old one.
pub type Address = watch::Receiver<String>;

/// A run and its conversation, once they are known.
pub type Known = watch::Receiver<Option<(String, String)>>;

/// One message, and what was received of its run.
pub struct Client {
    http: Http,
    address: Address,
    key: String,
    body: Value,
    frames: Vec<Frame>,
    run: watch::Sender<Option<(String, String)>>,
}

/// The frames that a client received, and how its run ended.
pub struct Followed {
    /// Every event, in the order of arrival.
    pub frames: Vec<Frame>,
    /// Whether the run was gone, instead of over.
    pub is_gone: bool,
}

impl Client {
    /// A client that has not sent anything yet.
    pub fn new(address: Address, key: &str, body: Value) -> Self {
        let http = Http::builder().no_proxy().build().unwrap();
        Self { http, address, key: key.to_owned(), body, frames: Vec::new(), run: watch::Sender::default() }
    }

    /// Tells the run and its conversation when they are known.
    pub fn run(&self) -> Known {
        self.run.subscribe()
    }

    /// Sends the message and reads to the end.
    pub async fn follow(mut self) -> Followed {
        loop {
            let url = self.address.borrow_and_update().clone();
            let mut address = self.address.clone();
            let over = tokio::select! {
                over = self.listen(&url) => over,
                _ = address.changed() => None,
            };
            if let Some(is_gone) = over {
                return Followed { frames: self.frames, is_gone };
            }
            let _ = tokio::time::timeout(PAUSE, address.changed()).await;
        }
    }

    /// Reads as long as this server lets it. Says whether the run is gone, if it is over.
    async fn listen(&mut self, url: &str) -> Option<bool> {
        let answer = self.ask(url).await.ok()?;
        match answer.status() {
            StatusCode::OK => {}
            StatusCode::NO_CONTENT => return Some(false),
            StatusCode::NOT_FOUND => return Some(true),
            _ => return None,
        }
        let mut stream = SseStream::new(answer);
        while let Next::Frame(frame) = stream.next().await {
            let json = frame.json();
            let word = |name: &str| json[name].as_str().map(str::to_owned);
            if self.run.borrow().is_none() {
                self.run.send_replace(word("run_id").zip(word("conversation_id")));
            }
            let is_end = frame.kind() == "stream.end";
            // A ping is of no run, and no part of the log.
            if frame.id.is_some() {
                self.frames.push(frame);
            }
            if is_end {
                return Some(false);
            }
        }
        None
    }

    async fn ask(&self, url: &str) -> reqwest::Result<Response> {
        let last = self.frames.last().and_then(|frame| frame.id.as_deref());
        let run = self.run.borrow().clone();
        let request = match (last, run) {
            (Some(last), Some((run, _))) => self.http.get(format!("{url}/api/v1/runs/{run}/events")).header("last-event-id", last),
            _ => self.http.post(format!("{url}/api/v1/runs")).header("idempotency-key", &self.key).json(&self.body),
        };
        request.header("accept", "text/event-stream").send().await
    }
}

/// Asks again and again, wherever the server is, until it answers with success, or that there is no such thing (any more).
pub async fn insist(mut address: Address, request: impl Fn(&Http, &str) -> reqwest::RequestBuilder) -> Response {
    let http = Http::builder().no_proxy().build().unwrap();
    loop {
        let url = address.borrow_and_update().clone();
        tokio::select! {
            answer = request(&http, &url).send() => match answer {
                Ok(answer) if answer.status().is_success() || answer.status() == StatusCode::NOT_FOUND => return answer,
                Ok(_) | Err(_) => {}
            },
            _ = address.changed() => continue,
        }
        let _ = tokio::time::timeout(PAUSE, address.changed()).await;
    }
}
