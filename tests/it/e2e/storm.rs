//! All clients reconnect at once, because their server was replaced.
//!
//! `CAPSTAN_STORM_CLIENTS` is their number. Some thousands need `ulimit -n 20000`, a release build, and an idle machine.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use reqwest::{Client as Http, StatusCode};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;

use support::database::Kind;
use support::measure::{percentile, size};
use support::model::ModelMock;
use support::server::Site;
use support::sse::{Frame, Next, SseStream, stored};
use support::{audit, print_figure, wait};

/// Clients of one user: fewer than the server allows.
const EACH: usize = 900;

/// A client that follows a run across its server's restart. It waits for the server's `retry` hint, as an `EventSource` does.
struct Follower {
    http: Http,
    address: watch::Receiver<String>,
    key: String,
    run: String,
    /// Reports when the client has a part of the answer, and when it is back.
    at: watch::Sender<usize>,
}

/// The result of one client.
struct Got {
    run: String,
    frames: Vec<Frame>,
    /// The `retry` hint in milliseconds.
    hint: u64,
    /// How often it was refused with 503 or 429.
    refused: usize,
    back: Instant,
}

impl Follower {
    async fn follow(mut self) -> Got {
        let (mut frames, mut refused) = (Vec::<Frame>::new(), 0);
        let mut stream = self.ask(&frames, &mut refused).await;
        let mut is_seen = false;
        while let Next::Frame(frame) = stream.next().await {
            let is_part = frame.kind() == "part.delta";
            frames.extend(Some(frame).filter(|frame| frame.id.is_some()));
            if is_part && !is_seen {
                is_seen = true;
                self.at.send_modify(|count| *count += 1);
            }
        }
        let hint = stream.retry.as_deref().unwrap().parse().unwrap();
        tokio::time::sleep(Duration::from_millis(hint)).await;
        self.address.changed().await.unwrap();
        let mut stream = self.ask(&frames, &mut refused).await;
        let back = Instant::now();
        self.at.send_modify(|count| *count += 1);
        while let Next::Frame(frame) = stream.next().await {
            frames.extend(Some(frame).filter(|frame| frame.id.is_some()));
        }
        Got { run: self.run, frames, hint, refused, back }
    }

    /// Reopens the stream after the received frames, as often as needed.
    async fn ask(&self, frames: &[Frame], refused: &mut usize) -> SseStream {
        loop {
            let url = format!("{}/api/v1/runs/{}/events", *self.address.borrow(), self.run);
            let mut request = self.http.get(url).header("accept", "text/event-stream").bearer_auth(&self.key);
            if let Some(last) = frames.last() {
                request = request.header("last-event-id", last.id.as_deref().unwrap());
            }
            let answer = wait::within("an answer", Duration::from_secs(60), request.send()).await.unwrap();
            if answer.status() == StatusCode::OK {
                return SseStream::new(answer);
            }
            assert!(matches!(answer.status().as_u16(), 429 | 503), "{}", answer.status());
            let after = answer.headers()["retry-after"].to_str().unwrap().parse().unwrap();
            *refused += 1;
            tokio::time::sleep(Duration::from_secs(after)).await;
        }
    }
}

/// Each client gets its missed events from the store once, the `retry` hints differ, and other requests are answered meanwhile.
/// W-09.
#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_clients_that_come_back_at_once() {
    let clients = size("CAPSTAN_STORM_CLIENTS", 100);
    let model = ModelMock::start().await;
    let site = Site::scripted(Kind::Postgres, &model).await.env("CAPSTAN_LOG__LEVEL", "info");
    // Runs in the middle of an answer are handed back after that time. The model is silent until all clients are back.
    let site = site.env("CAPSTAN_WORKER__DRAIN_GRACE_MS", "1000").env("CAPSTAN_PROVIDERS__OPENAI__IDLE_MS", "300000");
    let mut keys = Vec::new();
    for user in 0..clients.div_ceil(EACH) {
        keys.push(site.key_of(&format!("user-{user}")).await);
    }
    let other = site.key_of("somebody else").await;
    let mut server = site.start().await;
    let mut runs = Vec::new();
    for key in &keys {
        server.set_key(key);
        let run = server.start_run(&json!({"input": "[[id:storm]][[text:200,5]][[hold]][[text:20,1]]"})).await;
        runs.push(run["id"].as_str().unwrap().to_owned());
    }
    let (address, at) = (watch::Sender::new(server.url.clone()), watch::Sender::new(0));
    let (http, mut following) = (Http::builder().no_proxy().build().unwrap(), JoinSet::new());
    for number in 0..clients {
        let (key, run) = (keys[number / EACH].clone(), runs[number / EACH].clone());
        following.spawn(Follower { http: http.clone(), address: address.subscribe(), key, run, at: at.clone() }.follow());
    }
    let mut seen = at.subscribe();
    wait::within("all to follow", Duration::from_secs(120), seen.wait_for(|count| *count >= clients)).await.unwrap();

    server.signal("TERM").await;
    assert!(server.ended(Duration::from_secs(40)).await.success());
    let mut server = site.start().await;
    server.set_key(&other);
    let begun = Instant::now();
    address.send_replace(server.url.clone());
    // Another user has short runs meanwhile.
    let mut delays = Vec::new();
    while *at.borrow() < clients * 2 {
        let asked = Instant::now();
        let run = server.start_run(&json!({"input": "[[id:other]][[text:2,0]]"})).await;
        assert_eq!(server.finished(run["id"].as_str().unwrap()).await["status"], "completed");
        delays.push(asked.elapsed().as_millis());
        assert!(begun.elapsed() < Duration::from_secs(120), "{} of {clients} are back", *at.borrow() - clients);
    }
    model.release("storm");
    let all = wait::within("the ends", Duration::from_secs(120), following.join_all()).await;
    let mut logs = Vec::new();
    for (key, run) in keys.iter().zip(&runs) {
        server.set_key(key);
        assert_eq!(server.finished(run).await["status"], "completed");
        logs.push((run, stored(&server.run_events(run).await.all().await)));
    }
    for got in &all {
        let (_, log) = logs.iter().find(|(run, _)| **run == got.run).unwrap();
        assert!(got.frames == *log, "the client's events, and the log: {} and {} events", got.frames.len(), log.len());
    }
    let hints: HashSet<u64> = all.iter().map(|got| got.hint).collect();
    assert!(hints.len() > clients.min(2_000) / 4, "{} different retry hints for {clients} clients", hints.len());
    assert!(hints.iter().all(|hint| (500..2_500).contains(hint)), "{hints:?}");
    let last = all.iter().map(|got| got.back.saturating_duration_since(begun)).max().unwrap();
    let refused: usize = all.iter().map(|got| got.refused).sum();
    let slowest = percentile(&delays, 99);
    print_figure(&format!(
        "{clients} clients: the last one was back {last:?} after the server, {refused} refusals; {} runs of somebody else meanwhile, \
         p50 {} ms, p99 {slowest} ms",
        delays.len(),
        percentile(&delays, 50),
    ));
    assert!(slowest <= 5_000, "a run of another user took {slowest} ms");
    audit::assert_sound(&site.database).await;
}
