//! Servers that are replaced one after the other, as a deploy does, while runs that use tools are under way.
//!
//! The full measurement: `CAPSTAN_ROLLING_RUNS=300 cargo nextest run --features failpoints --no-capture replaced_one_by_one`.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::support::audit;
use crate::support::client::{Client, Followed};
use crate::support::database::{Database, Kind};
use crate::support::measure::{percentile, size};
use crate::support::model::ModelMock;
use crate::support::server::Site;
use crate::support::sse::stored;
use crate::support::{tell, wait};

/// Tool calls of each run. A model call before each takes a second, so that runs outlast three restarts.
const ROUNDS: usize = 20;

fn script(run: usize) -> String {
    let mut script = "[[id:rolling]]".to_owned();
    for round in 0..ROUNDS {
        write!(script, "[[text:2,500]][[call:ledger__append {{\"text\":\"r{run}-{round}\"}}]][[next]]").unwrap();
    }
    script + "[[text:2,0]]"
}

/// How long nobody worked on runs that were handed back, in milliseconds: from the last event of one attempt to the first of the
/// next one.
async fn hand_overs(database: &Database) -> Vec<i64> {
    let events = "SELECT run_id, CAST(attempt AS text), CAST(at AS text), kind, data FROM events \
                  WHERE run_id IS NOT NULL AND attempt > 0 ORDER BY run_id, seq";
    let rows = database.rows(events).await;
    let number = |column: &Option<String>| column.as_deref().unwrap().parse::<i64>().unwrap();
    let mut hand_overs = Vec::new();
    for (last, first) in rows.iter().zip(&rows[1..]) {
        if last[0] == first[0] && last[1] != first[1] {
            let (kind, data) = (first[3].as_deref().unwrap(), first[4].as_deref().unwrap());
            assert_eq!((kind, data), ("run.resumed", r#"{"cause":"handed_back"}"#), "handed over in order");
            assert_ne!(last[3].as_deref(), Some("step.reset"), "between steps: none was given up");
            hand_overs.push(number(&first[2]) - number(&last[2]));
        }
    }
    hand_overs
}

#[tokio::test(flavor = "multi_thread")]
async fn replaced_one_by_one() {
    let runs = size("CAPSTAN_ROLLING_RUNS", 60);
    let model = ModelMock::start().await;
    let site = Site::scripted(Kind::Postgres, &model).await.env("CAPSTAN_LOG__LEVEL", "info");
    let mut servers: [_; 3] = tokio::join!(site.start(), site.start(), site.start()).into();
    let addresses = servers.each_ref().map(|server| watch::Sender::new(server.url.clone()));
    let mut clients = JoinSet::new();
    for index in 0..runs {
        let client = Client::new(addresses[index % 3].subscribe(), &format!("key-{index}"), json!({ "input": script(index) }));
        clients.spawn(client.follow());
    }
    wait::until("all runs to be under way", Duration::from_secs(60), || async { (model.total() >= runs).then_some(()) }).await;

    let mut slowest_end = Duration::ZERO;
    for place in 0..3 {
        let begun = Instant::now();
        servers[place].signal("TERM").await;
        // Streams end with their server; clients come back with their cursor to the next one.
        assert!(servers[place].ended(Duration::from_secs(27)).await.success());
        slowest_end = slowest_end.max(begun.elapsed());
        let (gone, next) = (servers[place].url.clone(), servers[(place + 1) % 3].url.clone());
        for address in &addresses {
            address.send_if_modified(|url| {
                let moves = *url == gone;
                if moves {
                    url.clone_from(&next);
                }
                moves
            });
        }
        servers[place] = site.start().await;
    }

    let all = wait::within("the clients", Duration::from_secs(120), clients.join_all()).await;
    for Followed { frames, .. } in all {
        let run = frames[0].json()["run_id"].as_str().unwrap().to_owned();
        assert_eq!(servers[0].finished(&run).await["status"], "completed");
        assert_eq!(stored(&frames), stored(&servers[0].run_events(&run).await.all().await));
    }
    let mut executed: HashMap<String, usize> = HashMap::new();
    for entry in site.ledger.entries() {
        *executed.entry(entry.arguments["text"].to_string()).or_default() += 1;
    }
    assert_eq!((executed.len(), executed.values().max()), (runs * ROUNDS, Some(&1)));
    assert_eq!(site.database.rows("SELECT DISTINCT state FROM tool_calls").await, [[Some("done".to_owned())]]);
    model.assert_history_was_sendable();
    audit::assert_sound(&site.database).await;

    let hand_overs = hand_overs(&site.database).await;
    let [half, most, all] = [50, 99, 100].map(|percent| percentile(&hand_overs, percent));
    tell(&format!(
        "{runs} runs, {} hand-overs: p50 {half} ms, p99 {most} ms, slowest {all} ms; a server was gone within {slowest_end:?}",
        hand_overs.len()
    ));
    // The first one had a third of the runs, and whoever took them on was replaced next.
    assert!(hand_overs.len() >= runs / 2, "{} hand-overs", hand_overs.len());
    assert!(most <= 2_000, "handed over within {most} ms (p99)");
}
