//! A database that is away, unreachable, read-only, full or slow. Runs wait for it, and nothing is lost or done twice.

use std::time::{Duration, Instant};

use reqwest::{RequestBuilder, StatusCode};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

use support::audit;
use support::client::{Client, Followed};
use support::cluster::Cluster;
use support::database::{Database, Kind};
use support::model::ModelMock;
use support::server::{Server, Site};
use support::sse::{Frame, Next, stored};
use support::{print_figure, setting, wait};

/// Runs under way when the outage begins.
const RUNS: usize = 24;

/// Returns the length of an outage: longer than a default lease. `CAPSTAN_OUTAGE_SECS=60` is the full measurement.
fn outage() -> Duration {
    Duration::from_secs(setting("CAPSTAN_OUTAGE_SECS").map_or(12, |given| given.parse().unwrap()))
}

/// Runs in the middle of an answer with a tool call to come, each followed by a client that reconnects.
struct Crowd {
    model: ModelMock,
    // Dropped before the site, whose folder holds its log.
    server: Server,
    site: Site,
    _address: watch::Sender<String>,
    clients: JoinSet<Followed>,
}

impl Crowd {
    async fn on(database: Option<Database>) -> Self {
        let model = ModelMock::start().await;
        let site = match database {
            Some(database) => Site::scripted_on(database, &model),
            None => Site::scripted(Kind::Postgres, &model).await,
        };
        let server = site.start().await;
        let address = watch::Sender::new(server.url.clone());
        let mut clients = JoinSet::new();
        for index in 0..RUNS {
            let script = format!(
                "[[id:crowd]][[text:2,0]][[hold]][[text:3,0]][[call:ledger__append {{\"text\":\"d{index}\"}}]][[next]][[text:3,0]]"
            );
            let client = Client::new(address.subscribe(), &format!("key-{index}"), json!({ "input": script }));
            clients.spawn(client.follow());
        }
        model.wait_for("all of them", "crowd", |seen| seen.iter().filter(|one| one.sent.len() == 2).count() >= RUNS).await;
        Self { model, site, server, _address: address, clients }
    }

    /// Waits for the end of all runs and checks that nothing is missing or doubled. Returns how many tool calls have an unknown
    /// outcome.
    async fn ends_well(self) -> usize {
        let all = wait::within("the clients", Duration::from_secs(60), self.clients.join_all()).await;
        for Followed { frames, .. } in all {
            let run = frames[0].json()["run_id"].as_str().unwrap().to_owned();
            assert_eq!(self.server.finished(&run).await["status"], "completed");
            let frames: Vec<Frame> = stored(&frames);
            assert_eq!(frames, stored(&self.server.run_events(&run).await.all().await));
        }
        let messages =
            "SELECT CAST(count(*) AS text) FROM messages WHERE role = 'user' AND CAST(body AS text) LIKE '%[[id:crowd]]%'";
        assert_eq!(self.site.database.count(messages).await, i64::try_from(RUNS).unwrap(), "one message for each key");
        // Each call took effect once. A call that had begun at the outage has an unknown outcome and is not repeated.
        let calls = self.site.database.rows("SELECT CAST(arguments AS text), state, run_id FROM tool_calls").await;
        assert_eq!(calls.len(), RUNS);
        let mut unknown = 0;
        for call in calls {
            let arguments: Value = serde_json::from_str(call[0].as_deref().unwrap()).unwrap();
            let count = self.site.ledger.count("append", arguments["text"].as_str().unwrap());
            match call[1].as_deref() {
                Some("done") => assert_eq!(count, 1, "{call:?}"),
                Some("unknown") => {
                    assert!(count <= 1, "{call:?}");
                    unknown += 1;
                }
                _ => panic!("{call:?}"),
            }
        }
        self.model.assert_history_was_sendable();
        // A run whose acceptance reached no process has no worker, so it counts no crash either.
        let crashes = "SELECT CAST(max(crashes) AS text) FROM runs WHERE id IN \
                       (SELECT run_id FROM messages WHERE CAST(body AS text) LIKE '%[[id:crowd]]%')";
        let crashes = self.site.database.count(crashes).await;
        assert_eq!(crashes, 0, "no crash is counted");
        audit::assert_sound(&self.site.database).await;
        unknown
    }
}

/// Sends a request that cannot be served. Returns how long the answer took.
async fn refused(request: RequestBuilder) -> Duration {
    let begun = Instant::now();
    let answer = wait::within("an answer", Duration::from_secs(30), request.send()).await.unwrap();
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(answer.headers().contains_key("retry-after"));
    let problem: Value = answer.json().await.unwrap();
    assert_eq!((&problem["code"], &problem["retryable"]), (&json!("unavailable"), &json!(true)), "{problem}");
    begun.elapsed()
}

/// Sends each kind of request while `is_over` returns false. Returns the longest time to an answer.
async fn ask_in_vain(server: &Server, is_over: impl Fn() -> bool) -> Duration {
    let mut longest = Duration::ZERO;
    let mut pause = tokio::time::interval(Duration::from_millis(200));
    while !is_over() {
        pause.tick().await;
        let missing = "run_00000000000070008000000000000000";
        let asked = tokio::join!(
            refused(server.post("/runs", &json!({ "input": "in vain" }))),
            refused(server.get(&format!("/runs/{missing}"))),
            refused(server.get("/conversations")),
            refused(server.get("//readyz")),
        );
        longest = longest.max(asked.0).max(asked.1).max(asked.2).max(asked.3);
        assert_eq!(server.get("//healthz").send().await.unwrap().status(), StatusCode::OK, "the process itself is healthy");
    }
    longest
}

/// D-01.
#[tokio::test(flavor = "multi_thread")]
async fn gone_and_back_again() {
    let cluster = Cluster::start().await;
    let crowd = Crowd::on(Some(Database::on(&cluster.url).await)).await;
    cluster.down().await;
    let gone = Instant::now();
    let longest = ask_in_vain(&crowd.server, || gone.elapsed() > outage() / 2).await;
    // The next text of the model cannot be written.
    crowd.model.release("crowd");
    let longest = longest.max(ask_in_vain(&crowd.server, || gone.elapsed() > outage()).await);
    assert!(longest <= Duration::from_secs(2), "an answer took {longest:?}");
    cluster.up().await;
    let back = Instant::now();
    assert_eq!(crowd.ends_well().await, 0, "no tool call had begun at the outage");
    print_figure(&format!(
        "all runs had ended {:?} after the database was back; an answer meanwhile took at most {longest:?}",
        back.elapsed()
    ));
    assert!(back.elapsed() < Duration::from_secs(30), "the runs continued only after {:?}", back.elapsed());
}

/// D-01, W-19: confirmed commits are lost, as after a failover to a replica that was behind.
#[tokio::test(flavor = "multi_thread")]
async fn lost_commits_of_a_restored_database_are_detected() {
    let (model, site, server) = Site::serve(async |model| Site::scripted(Kind::Postgres, model).await.short_leases()).await;
    let script = r#"[[id:lost]][[text:3,0]][[hold]][[call:ledger__append {"text":"x"}]][[next]][[say:bye]]"#;
    let mut stream = server.stream_run(&json!({ "input": script })).await;
    let run = stream.until_kind("part.delta").await[0].json()["run_id"].as_str().unwrap().to_owned();
    // All pending writes must be stored first. A later write would come between the lost events and the new sequence numbers.
    wait::until("all that was said so far", Duration::from_secs(20), || async {
        server.run_events_json(&run).await.iter().any(|event| event.to_string().contains("r1t2 ")).then_some(())
    })
    .await;
    let lose = "WITH gone AS (DELETE FROM events WHERE seq > (SELECT max(last_seq) FROM conversation_heads) - 2)
                UPDATE conversation_heads SET last_seq = last_seq - 2";
    site.database.rows(lose).await;
    // Clients that follow the run get a reset event and read again from the start.
    let reset = loop {
        let Next::Frame(frame) = stream.next().await else { panic!("the stream ended") };
        if frame.id.is_none() {
            break frame.json();
        }
    };
    assert_eq!((&reset["type"], &reset["data"]["reason"]), (&json!("stream.reset"), &json!("cursor_in_future")), "{reset}");
    model.release("lost");
    let ended = server.finished(&run).await;
    assert_eq!(ended["status"], "completed", "{ended}");
    let log = stored(&server.run_events(&run).await.all().await);
    assert_eq!(stored(&stream.all().await), log);
    assert_eq!(site.ledger.count("append", "x"), 1);
    site.assert_sound(&model).await;
}

/// A database that accepts connections and does not answer: only timeouts detect it.
#[tokio::test(flavor = "multi_thread")]
async fn frozen_for_a_while() {
    let cluster = Cluster::start().await;
    let crowd = Crowd::on(Some(Database::on(&cluster.url).await)).await;
    // The pool has open connections, so the next request waits for an answer, not for a connection.
    assert_eq!(crowd.server.get("/conversations").send().await.unwrap().status(), StatusCode::OK);
    let keyed = || {
        let body = json!({ "input": "[[id:frozen]][[text:2,0]]" });
        crowd.server.post("/runs", &body).header("idempotency-key", "frozen")
    };
    cluster.freeze().await;
    let frozen = Instant::now();
    let at_once = tokio::join!(refused(keyed()), refused(crowd.server.get("/conversations")));
    let mut longest = at_once.0.max(at_once.1);
    longest = longest.max(ask_in_vain(&crowd.server, || frozen.elapsed() > outage() / 2).await);
    // The next text of the model cannot be written.
    crowd.model.release("crowd");
    longest = longest.max(ask_in_vain(&crowd.server, || frozen.elapsed() > outage()).await);
    assert!(longest <= Duration::from_secs(2), "an answer took {longest:?}");
    cluster.thaw().await;
    let back = Instant::now();
    let run = wait::until("the message to be accepted", Duration::from_secs(20), || async {
        let answer = keyed().send().await.ok().filter(|answer| answer.status() == StatusCode::ACCEPTED)?;
        answer.json::<Value>().await.ok()?["run"]["id"].as_str().map(str::to_owned)
    })
    .await;
    assert_eq!(crowd.server.finished(&run).await["status"], "completed");
    let said = "SELECT CAST(count(*) AS text) FROM messages WHERE role = 'user' AND CAST(body AS text) LIKE '%[[id:frozen]]%'";
    assert_eq!(crowd.site.database.count(said).await, 1, "the refused request and its late commit are one message");
    // A request without a key may commit after its 503: the client cannot know.
    wait::until("what was done later to end", Duration::from_secs(30), || async {
        let open = crowd.site.database.count("SELECT CAST(count(*) AS text) FROM runs WHERE finished_at IS NULL").await;
        (open == 0).then_some(())
    })
    .await;
    assert_eq!(crowd.ends_well().await, 0, "no tool call had begun when the database froze");
    print_figure(&format!("all runs had ended {:?} after the thaw; an answer meanwhile took at most {longest:?}", back.elapsed()));
}

/// D-05 and D-06: connections that break during any statement.
#[tokio::test(flavor = "multi_thread")]
async fn connections_are_killed_again_and_again() {
    let crowd = Crowd::on(None).await;
    crowd.model.release("crowd");
    for _ in 0..10 {
        crowd.site.database.cut_off().await;
        let run = crowd.server.post("/runs", &json!({ "input": "[[id:between]][[text:2,0]]" })).send().await.unwrap();
        assert!(run.status() == StatusCode::ACCEPTED || run.status() == StatusCode::SERVICE_UNAVAILABLE, "{run:?}");
    }
    crowd.ends_well().await;
}

/// D-06: two connections in each pool. Clients disconnect during a commit, and others drop and reopen their streams. No
/// connection returns to the pool with an open transaction.
#[tokio::test(flavor = "multi_thread")]
async fn two_connections_for_hundreds_of_streams() {
    let (_model, site, server) =
        Site::serve(async |model| Site::scripted(Kind::Postgres, model).await.env("CAPSTAN_DATABASE__MAX_CONNECTIONS", "2")).await;
    let address = watch::Sender::new(server.url.clone());
    let mut clients = JoinSet::new();
    for index in 0..200 {
        let body = json!({ "input": "[[id:many]][[text:20,20]]" });
        clients.spawn(Client::new(address.subscribe(), &format!("key-{index}"), body.clone()).follow());
        let request = server.post("/runs", &body);
        clients.spawn(async move {
            let _ = tokio::time::timeout(Duration::from_millis(index % 40), request.send()).await;
            Followed { frames: Vec::new(), is_gone: true }
        });
    }
    let forgotten = "SELECT CAST(count(*) AS text) FROM pg_stat_activity WHERE datname = current_database() \
                     AND state LIKE 'idle in transaction%' AND state_change < clock_timestamp() - interval '3 s'";
    let mut followed = 0;
    let mut pause = tokio::time::interval(Duration::from_millis(500));
    let all = async {
        loop {
            tokio::select! {
                client = clients.join_next() => match client {
                    Some(client) => followed += usize::from(!client.unwrap().is_gone),
                    None => break,
                },
                _ = pause.tick() => assert_eq!(site.database.count(forgotten).await, 0, "a transaction was left open"),
            }
        }
    };
    wait::within("all streams", Duration::from_secs(120), all).await;
    assert_eq!(followed, 200);
    wait::until("every run to end", Duration::from_secs(60), || async {
        let open = site.database.count("SELECT CAST(count(*) AS text) FROM runs WHERE finished_at IS NULL").await;
        (open == 0).then_some(())
    })
    .await;
    let unwell = "SELECT CAST(count(*) AS text) FROM runs WHERE status <> 'completed'";
    assert_eq!(site.database.count(unwell).await, 0);
    let sessions = "SELECT CAST(count(*) AS text) FROM pg_stat_activity WHERE datname = current_database() \
                    AND application_name = 'capstan' AND state LIKE 'idle in transaction%'";
    wait::until("no session to be in a transaction", Duration::from_secs(2), || async {
        (site.database.count(sessions).await == 0).then_some(())
    })
    .await;
    audit::assert_sound(&site.database).await;
}

/// D-20: a renewal that takes longer than the renewal interval still arrives in time.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_is_slow() {
    let model = ModelMock::start().await;
    let site = Site::scripted(Kind::Postgres, &model).await.short_leases();
    // Only renewals are slow. A lease may expire only if all renewals fail, which takes a while on a busy machine.
    let site = site.env("CAPSTAN_WORKER__LEASE_MS", "8000").env("CAPSTAN_WORKER__SELF_STOP_MS", "6000");
    let server = site.start().await;
    let beside = site.start().await;
    let script = r#"[[id:slow]][[text:2,0]][[hold]][[call:ledger__append {"text":"x"}]][[next]][[say:bye]]"#;
    let mut stream = server.stream_run(&json!({ "input": script })).await;
    let run = stream.until_kind("part.delta").await[0].json()["run_id"].as_str().unwrap().to_owned();
    let held = site.database.hold_leases().await;
    let waiting = "SELECT CAST(count(*) AS text) FROM pg_stat_activity WHERE datname = current_database() \
                   AND wait_event_type = 'Lock' AND query LIKE '%UPDATE run_leases%' \
                   AND query_start < clock_timestamp() - interval '600 ms'";
    wait::until("a renewal to wait", Duration::from_secs(10), || async { (site.database.count(waiting).await > 0).then_some(()) })
        .await;
    drop(held);
    wait::until("the warning", Duration::from_secs(5), || async {
        server.log_text().contains("leases were renewed late").then_some(())
    })
    .await;
    model.release("slow");
    let ended = server.finished(&run).await;
    assert_eq!((&ended["status"], &ended["attempt"]), (&json!("completed"), &json!(1)), "{ended}");
    assert_eq!(site.ledger.count("append", "x"), 1);
    assert_eq!(model.exchanges("slow").len(), 2, "no request was sent twice");
    for server in [server, beside] {
        let log = server.log_text();
        assert!(!log.contains("lease lost") && !log.contains("dropping the run"), "{log}");
    }
    audit::assert_sound(&site.database).await;
}

/// D-09.
#[tokio::test(flavor = "multi_thread")]
async fn read_only_for_a_while() {
    let crowd = Crowd::on(None).await;
    crowd.site.database.command("ALTER DATABASE {database} SET default_transaction_read_only = on").await;
    crowd.site.database.cut_off().await;
    crowd.model.release("crowd");
    wait::until("a message to be refused", Duration::from_secs(20), || async {
        let answer = crowd.server.post("/runs", &json!({ "input": "in vain" })).send().await.ok()?;
        (answer.status() == StatusCode::SERVICE_UNAVAILABLE).then_some(())
    })
    .await;
    refused(crowd.server.get("//readyz")).await;
    wait::until("what is there to be read", Duration::from_secs(10), || async {
        let answer = crowd.server.get("/conversations").send().await.ok()?;
        (answer.status() == StatusCode::OK).then_some(())
    })
    .await;
    crowd.site.database.command("ALTER DATABASE {database} RESET default_transaction_read_only").await;
    crowd.site.database.cut_off().await;
    crowd.ends_well().await;
}

/// D-09: the log of the database is full. The server reports the failure where it can, and nothing needs repair
/// afterwards.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn full_for_a_while() {
    let model = ModelMock::start().await;
    let site = Site::scripted(Kind::Sqlite, &model).await.bears_small_files();
    let server = site.start().await;
    let script = r#"[[id:full]][[text:2,0]][[hold]][[call:ledger__append {"text":"x"}]][[next]][[text:3,0]]"#;
    let mut stream = server.stream_run(&json!({ "input": script })).await;
    let mut seen = stream.until_kind("part.delta").await;
    let run = seen[0].json()["run_id"].as_str().unwrap().to_owned();
    let log = format!("{}-wal", site.database.url.trim_start_matches("sqlite:"));
    server.limit_files(Some(std::fs::metadata(log).unwrap().len())).await;
    // The next text of the model cannot be written.
    model.release("full");
    refused(server.post("/runs", &json!({ "input": "in vain" }))).await;
    wait::until("the server not to be ready", Duration::from_secs(10), || async {
        (server.get("//readyz").send().await.ok()?.status() == StatusCode::SERVICE_UNAVAILABLE).then_some(())
    })
    .await;
    assert_eq!(server.get("/conversations").send().await.unwrap().status(), StatusCode::OK, "stored data can be read");
    server.limit_files(None).await;
    assert_eq!(server.get("//readyz").send().await.unwrap().status(), StatusCode::OK);
    assert_eq!(server.finished(&run).await["status"], "completed");
    seen.extend(stored(&stream.all().await));
    assert_eq!(seen, stored(&server.run_events(&run).await.all().await));
    assert_eq!(site.ledger.count("append", "x"), 1);
    let (_, after) = server.post_json("/runs", &json!({ "input": "[[id:after]][[text:2,0]]" })).await;
    assert_eq!(server.finished(after["run"]["id"].as_str().unwrap()).await["status"], "completed");
    site.assert_sound(&model).await;
}
