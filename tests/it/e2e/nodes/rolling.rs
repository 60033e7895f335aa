//! A rolling deploy: servers are replaced one after the other while runs use tools.
//!
//! The full measurement: `CAPSTAN_ROLLING_RUNS=300 cargo nextest run -p capstan-it --no-capture replaced_one_by_one`.
//! `CAPSTAN_OLDER_BINARY` names a server of an earlier version: this build replaces it, and then it replaces this build, as in
//! a rollback (`scripts/two-versions.sh`).

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rstest::rstest;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;

use support::audit;
use support::client::{Client, Followed};
use support::database::Database;
use support::measure::{percentile, size};
use support::model::ModelMock;
use support::server::{Server, Site, program};
use support::sse::stored;
use support::{print_figure, setting, wait};

/// Tool calls of each run. A model call of one second comes before each, so that runs outlast three restarts.
const ROUNDS: usize = 20;

fn script(run: usize) -> String {
    let mut script = "[[id:rolling]]".to_owned();
    for round in 0..ROUNDS {
        write!(script, "[[text:2,500]][[call:ledger__append {{\"text\":\"r{run}-{round}\"}}]][[next]]").unwrap();
    }
    script + "[[text:2,0]]"
}

/// Three servers, and clients that follow runs on them.
struct Cluster {
    model: ModelMock,
    servers: Vec<Server>,
    addresses: Vec<watch::Sender<String>>,
    clients: JoinSet<Followed>,
    runs: usize,
    slowest_end: Duration,
}

impl Cluster {
    async fn start(model: ModelMock, site: &Site) -> Self {
        let (one, two, three) = tokio::join!(site.start(), site.start(), site.start());
        let servers = vec![one, two, three];
        let addresses = servers.iter().map(|server| watch::Sender::new(server.url.clone())).collect();
        Self { model, servers, addresses, clients: JoinSet::new(), runs: 0, slowest_end: Duration::ZERO }
    }

    /// Starts `runs` more runs through clients and waits until the model was asked in each of them.
    async fn load(&mut self, runs: usize) {
        let asked = self.model.total();
        for index in self.runs..self.runs + runs {
            let address = self.addresses[index % 3].subscribe();
            let client = Client::new(address, &format!("key-{index}"), json!({ "input": script(index) }));
            self.clients.spawn(client.follow());
        }
        self.runs += runs;
        let model = &self.model;
        let under_way = || async { (model.total() >= asked + runs).then_some(()) };
        wait::until("all runs to be under way", Duration::from_secs(60), under_way).await;
    }

    /// Stops each server in order and starts another one instead. Streams end with their server, and clients reconnect to the
    /// next one with their cursor.
    async fn replace(&mut self, site: &Site) {
        for place in 0..3 {
            let begun = Instant::now();
            self.servers[place].signal("TERM").await;
            assert!(self.servers[place].ended(Duration::from_secs(27)).await.success());
            self.slowest_end = self.slowest_end.max(begun.elapsed());
            let (gone, next) = (self.servers[place].url.clone(), self.servers[(place + 1) % 3].url.clone());
            for address in &self.addresses {
                address.send_if_modified(|url| {
                    let moves = *url == gone;
                    if moves {
                        url.clone_from(&next);
                    }
                    moves
                });
            }
            self.servers[place] = site.start().await;
        }
    }

    /// Waits until the clients have every event. No run failed, no event is lost or doubled, and each call ran once.
    async fn judge(&mut self, site: &Site) {
        let all = wait::within("the clients", Duration::from_secs(120), std::mem::take(&mut self.clients).join_all()).await;
        for Followed { frames, .. } in all {
            let run = frames[0].json()["run_id"].as_str().unwrap().to_owned();
            assert_eq!(self.servers[0].finished(&run).await["status"], "completed");
            assert_eq!(stored(&frames), stored(&self.servers[0].run_events(&run).await.all().await));
        }
        let ended = site.database.rows("SELECT DISTINCT state, CASE WHEN state <> 'done' THEN outcome END FROM tool_calls").await;
        assert_eq!(ended, [[Some("done".to_owned()), None]]);
        let mut executed: HashMap<String, usize> = HashMap::new();
        for entry in site.ledger.entries() {
            *executed.entry(entry.arguments["text"].to_string()).or_default() += 1;
        }
        assert_eq!((executed.len(), executed.values().max()), (self.runs * ROUNDS, Some(&1)));
        self.model.assert_history_was_sendable();
    }
}

/// Returns how long each handed-back run waited, in milliseconds: from the last event of one attempt to the first of the next.
async fn hand_overs(database: &Database) -> Vec<i64> {
    let events = "SELECT run_id, CAST(attempt AS text), CAST(at AS text), kind, data FROM events \
                  WHERE run_id IS NOT NULL AND attempt > 0 ORDER BY run_id, seq";
    let rows = database.rows(events).await;
    let number = |column: &Option<String>| column.as_deref().unwrap().parse::<i64>().unwrap();
    let mut hand_overs = Vec::new();
    for (last, first) in rows.iter().zip(&rows[1..]) {
        if last[0] == first[0] && last[1] != first[1] {
            let (kind, data) = (first[3].as_deref().unwrap(), first[4].as_deref().unwrap());
            assert_eq!((kind, data), ("run.resumed", r#"{"cause":"handed_back"}"#), "handed back by a drain");
            assert_ne!(last[3].as_deref(), Some("step.reset"), "between steps: no step was reset");
            hand_overs.push(number(&first[2]) - number(&last[2]));
        }
    }
    hand_overs
}

/// Returns the newest migration of the database.
async fn schema(database: &Database) -> i64 {
    database.count("SELECT CAST(max(version) AS text) FROM _sqlx_migrations").await
}

// D-17.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn replaced_one_by_one(#[values(false, true)] pooled: bool) {
    let runs = size("CAPSTAN_ROLLING_RUNS", if pooled { 12 } else { 60 });
    let older = setting("CAPSTAN_OLDER_BINARY").map(PathBuf::from);
    let present = program();
    let model = ModelMock::start().await;
    let (site, _pooler) = super::site(&model, pooled).await;
    let mut site = site.env("CAPSTAN_LOG__LEVEL", "info");
    site = site.program(older.as_ref().unwrap_or(&present));
    let mut cluster = Cluster::start(model, &site).await;
    let before = schema(&site.database).await;
    cluster.load(runs).await;
    site = site.program(&present);
    cluster.replace(&site).await;
    cluster.judge(&site).await;

    if let Some(older) = older {
        let after = schema(&site.database).await;
        print_figure(&format!("upgraded from schema {before} to {after}"));
        cluster.load(runs).await;
        site = site.program(&older);
        if before == after {
            cluster.replace(&site).await;
            print_figure("rolled back");
        } else {
            let refused = site.try_start(&[]).await.err().unwrap().log_text();
            let reason = format!("it has version {}, which this program does not know", before + 1);
            assert!(refused.contains(&reason), "{refused}");
            print_figure(&format!("a rollback is refused, and harms nobody: {reason}"));
        }
        cluster.judge(&site).await;
        audit::assert_sound_but_for_the_audit(&site.database).await;
    } else {
        audit::assert_sound(&site.database).await;
    }

    let hand_overs = hand_overs(&site.database).await;
    let [half, most, all] = [50, 99, 100].map(|percent| percentile(&hand_overs, percent));
    print_figure(&format!(
        "{} runs, {} hand-overs: p50 {half} ms, p99 {most} ms, slowest {all} ms; a server was gone within {:?}",
        cluster.runs,
        hand_overs.len(),
        cluster.slowest_end
    ));
    // The first server had a third of the runs, and the servers that claimed them were replaced next.
    assert!(hand_overs.len() >= runs / 2, "{} hand-backs", hand_overs.len());
    assert!(most <= 2_000, "p99 of hand-backs: {most} ms");
}
