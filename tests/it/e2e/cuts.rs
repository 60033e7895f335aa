//! Clients whose connections are cut at random instants while servers are killed: in the end each client has the whole log.
//!
//! The full measurement: `CAPSTAN_CUT_CLIENTS=100 CAPSTAN_CUTS=100`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use reqwest::Client as Http;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;

use support::chance::Chance;
use support::client::{Address, insist};
use support::database::Kind;
use support::measure::size;
use support::model::ModelMock;
use support::server::{Server, Site};
use support::sse::{Next, SseStream, stored};
use support::{audit, print_figure, wait};

const SERVERS: usize = 3;

/// The longest time before a connection is cut, in milliseconds.
const LONGEST: u64 = 250;

/// A run and the events that a client received: the text of each event as sent.
struct Got {
    run: String,
    events: Vec<String>,
}

/// The reason why a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The client cut it at a random instant.
    Cut,
    /// The run ended.
    Over,
    /// The server was killed, or could not serve.
    Lost,
}

/// A client with its random source and its counts.
struct Cutter {
    number: usize,
    chance: Chance,
    addresses: Vec<Address>,
    http: Http,
    cuts: Arc<AtomicUsize>,
}

impl Cutter {
    /// Sends one message after the other until `cuts` connections were cut.
    async fn talk(mut self, cuts: usize) -> Vec<Got> {
        let mut said: Vec<Got> = Vec::new();
        let mut left = cuts;
        while left > 0 {
            let mut got = Got { run: self.start(said.len()).await, events: Vec::new() };
            loop {
                // The last connection is not cut, so that the client sees the end.
                let instant = self.chance.between(0, LONGEST);
                let until = if left > 0 { Instant::now() + Duration::from_millis(instant) } else { far() };
                let url = self.any_address().borrow().clone();
                let end = if self.chance.between(0, 1) == 0 {
                    self.listen(&url, &mut got, until).await
                } else {
                    self.subscribe(&url, &mut got, until).await
                };
                match end {
                    End::Over => break,
                    End::Cut => {
                        left -= 1;
                        self.cuts.fetch_add(1, Ordering::Relaxed);
                    }
                    // A client that is refused at once waits a little.
                    End::Lost => sleep_until(Instant::now() + Duration::from_millis(20)).await,
                }
            }
            said.push(got);
        }
        said
    }

    fn any_address(&mut self) -> &Address {
        let last = u64::try_from(self.addresses.len() - 1).unwrap();
        &self.addresses[usize::try_from(self.chance.between(0, last)).unwrap()]
    }

    async fn start(&mut self, message: usize) -> String {
        let name = format!("{}-{message}", self.number);
        let (words, pause) = (self.chance.between(5, 40), self.chance.between(1, 8));
        let script = format!(
            "[[id:cuts]][[text:3,{pause}]][[call:ledger__append {{\"text\":\"{name}\"}}]][[call:ledger__lookup {{\"text\":\"{name}\"}}]]\
             [[next]][[text:{words},{pause}]]"
        );
        let address = self.any_address().clone();
        let answer = insist(address, |http, url| {
            let body = json!({ "input": script });
            http.post(format!("{url}/api/v1/runs")).header("idempotency-key", &name).json(&body)
        });
        let answer: Value = answer.await.json().await.unwrap();
        answer["run"]["id"].as_str().unwrap().to_owned()
    }

    /// Reads an event stream from the client's cursor.
    async fn listen(&self, url: &str, got: &mut Got, until: Instant) -> End {
        let request = self.http.get(format!("{url}/api/v1/runs/{}/events", got.run)).header("accept", "text/event-stream");
        let request = match got.events.last() {
            Some(last) => request.header("last-event-id", seq(last).unwrap()),
            None => request,
        };
        let answer = match timeout_at(until, request.send()).await {
            Err(_) => return End::Cut,
            Ok(Err(_)) => return End::Lost,
            Ok(Ok(answer)) => answer,
        };
        match answer.status().as_u16() {
            200 => {}
            204 => return End::Over,
            _ => return End::Lost,
        }
        let mut stream = SseStream::new(answer);
        loop {
            match timeout_at(until, stream.next()).await {
                Err(_) => return End::Cut,
                Ok(Next::Frame(frame)) if frame.id.is_some() => got.events.push(frame.data),
                Ok(Next::Frame(frame)) if frame.kind() == "stream.end" => return End::Over,
                Ok(Next::Frame(_)) => {}
                Ok(Next::End | Next::Broken) => return End::Lost,
            }
        }
    }

    /// Reads the same over a WebSocket.
    async fn subscribe(&self, url: &str, got: &mut Got, until: Instant) -> End {
        let mut request = format!("{}/api/v1/ws", url.replacen("http", "ws", 1)).into_client_request().unwrap();
        request.headers_mut().insert("sec-websocket-protocol", "capstan.v1".parse().unwrap());
        let mut socket = match timeout_at(until, tokio_tungstenite::connect_async(request)).await {
            Err(_) => return End::Cut,
            Ok(Err(_)) => return End::Lost,
            Ok(Ok((socket, _))) => socket,
        };
        let mut params = json!({ "run_id": got.run });
        if let Some(last) = got.events.last() {
            params["after"] = json!(seq(last).unwrap());
        }
        let subscribe = json!({ "id": 1, "method": "subscribe", "params": params }).to_string();
        if socket.send(Message::text(subscribe)).await.is_err() {
            return End::Lost;
        }
        loop {
            let text = match timeout_at(until, socket.next()).await {
                Err(_) => return End::Cut,
                Ok(Some(Ok(Message::Text(text)))) => text.as_str().to_owned(),
                Ok(Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Binary(_) | Message::Frame(_)))) => continue,
                Ok(None | Some(Ok(Message::Close(_)) | Err(_))) => return End::Lost,
            };
            if seq(&text).is_some() {
                got.events.push(text);
                continue;
            }
            let value: Value = serde_json::from_str(&text).unwrap();
            if value["type"] == "stream.end" {
                return End::Over;
            }
            if value.get("error").is_some() {
                return End::Lost;
            }
        }
    }
}

/// Returns an instant later than the end of any test.
fn far() -> Instant {
    Instant::now() + Duration::from_secs(3_600)
}

/// Returns the sequence number of a stored event, or `None` for other frames.
fn seq(envelope: &str) -> Option<i64> {
    serde_json::from_str::<Value>(envelope).unwrap()["seq"].as_i64()
}

/// Waits until a server other than number `but` is ready.
async fn ready(servers: &[Server], but: usize) {
    wait::until("a server that serves", Duration::from_secs(60), || async {
        for server in servers.iter().enumerate().filter(|(place, _)| *place != but).map(|(_, server)| server) {
            if server.get("//readyz").send().await.is_ok_and(|answer| answer.status() == 200) {
                return Some(());
            }
        }
        None
    })
    .await;
}

/// W-13.
#[tokio::test(flavor = "multi_thread")]
async fn cut_again_and_again_while_servers_are_killed() {
    let (clients, cuts) = (size("CAPSTAN_CUT_CLIENTS", 20), size("CAPSTAN_CUTS", 10));
    let model = ModelMock::start().await;
    let site = Site::scripted(Kind::Postgres, &model).await.short_leases();
    let site = site.env("CAPSTAN_AGENT__MAX_CRASHES", "1000000").env("CAPSTAN_LOG__LEVEL", "info");
    let mut servers = Vec::new();
    for _ in 0..SERVERS {
        servers.push(site.start().await);
    }
    let addresses: Vec<_> = servers.iter().map(|server| watch::Sender::new(server.url.clone())).collect();
    let count = Arc::new(AtomicUsize::new(0));
    let began = Instant::now();
    let mut talking = JoinSet::new();
    for number in 0..clients {
        let client = Cutter {
            number,
            chance: Chance::new(u64::try_from(number).unwrap()),
            addresses: addresses.iter().map(watch::Sender::subscribe).collect(),
            http: Http::builder().no_proxy().build().unwrap(),
            cuts: Arc::clone(&count),
        };
        talking.spawn(client.talk(cuts));
    }
    let mut kills = 0;
    let mut chance = Chance::new(7);
    let mut said: Vec<Got> = Vec::new();
    let limit = Instant::now() + Duration::from_secs(120) + Duration::from_millis(100) * u32::try_from(clients * cuts).unwrap();
    while !talking.is_empty() {
        let next_kill = Instant::now() + Duration::from_millis(chance.between(600, 2_000));
        while let Ok(Some(done)) = timeout_at(next_kill, talking.join_next()).await {
            said.extend(done.unwrap());
        }
        assert!(Instant::now() < limit, "{} clients do not reach the end", talking.len());
        // As many kills as cuts for each client. More kills on a slow machine would only delay the end.
        if !talking.is_empty() && kills < cuts {
            let node = kills % SERVERS;
            // On a slow machine a start takes longer than the time between kills. One server must always be ready.
            ready(&servers, node).await;
            servers[node].kill9().await;
            servers[node] = site.spawn(&[]);
            addresses[node].send_replace(servers[node].url.clone());
            kills += 1;
        }
    }
    let took = began.elapsed();

    let server = &servers[(kills + SERVERS - 2) % SERVERS];
    ready(std::slice::from_ref(server), 1).await;
    let mut events = 0;
    for Got { run, events: got } in &said {
        assert_eq!(server.finished(run).await["status"], "completed");
        let log: Vec<String> = stored(&server.run_events(run).await.all().await).into_iter().map(|frame| frame.data).collect();
        assert_eq!(*got, log, "the client's events of {run}, and the log");
        events += log.len();
    }
    let again = site.database.count("SELECT CAST(coalesce(sum(attempt - 1), 0) AS text) FROM runs").await;
    print_figure(&format!(
        "{clients} clients, cut {} times, with {kills} kills in {took:?}: {} runs, {again} taken up again; {events} events, each received once",
        count.load(Ordering::Relaxed),
        said.len()
    ));
    assert_eq!(count.load(Ordering::Relaxed), clients * cuts);
    model.assert_history_was_sendable();
    for mut server in servers {
        server.kill9().await;
    }
    site.ledger.no_server_left().await;
    audit::assert_sound(&site.database).await;
}
