//! Servers that are killed at random instants while clients keep sending messages.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::checks;
use super::kill_points::Scenario;
use super::turn::Turn;
use support::chance::Chance;
use support::client::{Address, Client, Followed};
use support::database::Kind;
use support::model::ModelMock;
use support::server::Site;
use support::sse::stored;
use support::{audit, print_figure, setting, wait};

/// Kills in the quick form.
const KILLS: u64 = 10;

/// Concurrent clients.
const CLIENTS: u64 = 4;

#[tokio::test(flavor = "multi_thread")]
async fn random_kills_on_sqlite() {
    play(Kind::Sqlite, 1).await;
}

/// Two servers, killed in turn: each run of the killed one continues on the other.
#[tokio::test(flavor = "multi_thread")]
async fn random_kills_on_postgres() {
    play(Kind::Postgres, 2).await;
}

/// A message of a client and its result.
struct Said {
    key: String,
    turn: Turn,
    run: String,
    followed: Followed,
}

/// Sends one message after the other, each after the end of the previous run.
async fn talk(client: u64, seed: u64, address: Address, enough: CancellationToken) -> Vec<Said> {
    let mut chance = Chance::new(seed * 1_000 + client);
    let mut said = Vec::new();
    while !enough.is_cancelled() {
        let key = format!("client {client} message {}", said.len());
        let turn = Turn::new(&key, Scenario::Turn, 1, &mut chance);
        let client = Client::new(address.clone(), &key, json!({"input": turn.input}));
        let run = client.run();
        let followed = client.follow().await;
        let (run, _) = run.borrow().clone().unwrap();
        said.push(Said { key, turn, run, followed });
    }
    said
}

async fn play(kind: Kind, nodes: u64) {
    let kills = setting("CAPSTAN_MATRIX_KILLS").map_or(KILLS, |text| text.parse().unwrap());
    let seed = setting("CAPSTAN_MATRIX_SEED").map_or(1, |text| text.parse().unwrap());
    let model = ModelMock::start().await;
    let site = Arc::new(Site::scripted(kind, &model).await.short_leases().env("CAPSTAN_AGENT__MAX_CRASHES", "1000000"));
    let mut servers = Vec::new();
    let mut addresses = Vec::new();
    for _ in 0..nodes {
        servers.push(site.start().await);
        addresses.push(watch::Sender::new(servers.last().unwrap().url.clone()));
    }
    let enough = CancellationToken::new();
    let mut talking = JoinSet::new();
    for client in 0..CLIENTS {
        let address = addresses[usize::try_from(client % nodes).unwrap()].subscribe();
        talking.spawn(talk(client, seed, address, enough.clone()));
    }

    let mut chance = Chance::new(seed);
    for kill in 0..kills {
        let node = usize::try_from(kill % nodes).unwrap();
        // From the middle of the start to well after it.
        tokio::time::sleep(Duration::from_millis(chance.between(100, 1_400))).await;
        servers[node].kill9().await;
        servers[node] = site.spawn(&[]);
        addresses[node].send_replace(servers[node].url.clone());
        if kill % 50 == 49 {
            print_figure(&format!("kills {}/{kills} on {kind:?}", kill + 1));
        }
    }
    enough.cancel();
    let said = wait::within("the clients to have everything", Duration::from_secs(120), talking.join_all()).await;
    let said: Vec<Said> = said.into_iter().flatten().collect();
    let again = site.database.count("SELECT CAST(coalesce(sum(attempt - 1), 0) AS text) FROM runs").await;
    let unknown = site.database.count("SELECT CAST(count(*) AS text) FROM tool_calls WHERE state = 'unknown'").await;
    let runs = said.len();
    print_figure(&format!(
        "kills on {kind:?}, seed {seed}: {runs} runs, {again} taken up again after {kills} kills; {unknown} unknown outcomes"
    ));

    // No accept was lost or doubled: one run for each key, with exactly its calls.
    let runs: HashSet<&str> = said.iter().map(|said| said.run.as_str()).collect();
    assert_eq!(runs.len(), said.len(), "one run for two keys");
    assert_eq!(usize::try_from(site.database.count("SELECT CAST(count(*) AS text) FROM runs").await).unwrap(), said.len());
    let (calls, entries) = (checks::calls(&site).await, site.ledger.entries());
    let mut calls_of: HashMap<&str, usize> = HashMap::new();
    for (id, call) in &calls {
        checks::effect(&entries, id, call);
        *calls_of.entry(call.text.as_str()).or_default() += 1;
    }
    let server = servers.last().unwrap();
    for Said { key, turn, run, followed } in &said {
        assert_eq!(server.finished(run).await["status"], "completed", "{key}");
        let log = stored(&server.run_events(run).await.all().await);
        assert_eq!(followed.frames, log, "the client's events for {key}, and the log");
        checks::text(&model, None, &log);
        for call in turn.rounds.iter().flatten() {
            assert_eq!(calls_of.remove(call.text.as_str()), Some(1), "{key}: {call:?}");
        }
    }
    assert!(calls_of.is_empty(), "calls that no message asked for: {calls_of:?}");
    model.assert_history_was_sendable();
    for mut server in servers {
        server.kill9().await;
    }
    site.ledger.no_server_left().await;
    audit::assert_sound(&site.database).await;
}
