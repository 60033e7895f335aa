//! `capstan cleanup` beside a running server, and streams that are opened long after their run.

use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};

use support::audit;
use support::database::Kind;
use support::server::Site;
use support::sse::{self, Frame};
use support::wait;

const DAY_MS: i64 = 24 * 60 * 60 * 1000;

/// Returns the comparable part of a stream: the whole messages, and the terminal event.
fn told(frames: &[Frame]) -> (Vec<Value>, Vec<String>) {
    let messages = frames.iter().filter(|frame| frame.kind() == "message.completed");
    let end = sse::kinds(frames).split_off(frames.len() - 2);
    (messages.map(|frame| frame.json()["data"]["message"].clone()).collect(), end)
}

/// W-11.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_opened_a_month_later(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (_model, site, server) = Site::start_scripted(kind).await;
    let mut streams = Vec::new();
    for id in ["old", "young"] {
        let frames = server.stream_run(&json!({"input": format!("[[id:{id}]][[text:100,5]]")})).await.all().await;
        let run = frames[0].json()["run_id"].as_str().unwrap().to_owned();
        streams.push((run, frames));
    }
    let [(old, old_frames), (young, young_frames)] = &streams[..] else { unreachable!() };
    let deltas = |frames: &[Frame]| sse::kinds(frames).iter().filter(|kind| *kind == "part.delta").count();
    assert!(deltas(old_frames) > 1, "{}", deltas(old_frames));

    let age = 30 * DAY_MS;
    site.database.rows(&format!("UPDATE runs SET finished_at = finished_at - {age} WHERE id = '{old}' RETURNING id")).await;
    let (ok, counted) = site.command(&["cleanup", "--dry-run"]).await;
    let gone = deltas(old_frames) - 1;
    let none = "0 tickets, sessions and shares, 0 idempotency records, 0 audit records, 0 spending rows, 0 tool sets, 0 limitations of models\n";
    assert!(counted.contains(&format!("expired rows to remove: {none}")), "{counted}");
    assert!(ok && counted.contains(&format!("runs older than 7 days to compact: 1; events to merge into others: {gone}")));
    assert_eq!(sse::stored(&server.run_events(old).await.all().await), sse::stored(old_frames));
    let (ok, done) = site.command(&["cleanup"]).await;
    assert!(ok && done.contains(&format!("that were compacted: 1; events merged into others: {gone}")), "{done}");
    let (ok, done) = site.command(&["cleanup"]).await;
    assert!(ok && done.contains("that were compacted: 0;"), "{done}");

    let later = server.run_events(old).await.all().await;
    assert_eq!(told(&later), told(old_frames));
    assert_eq!(deltas(&later), 1);
    assert_eq!(later.len(), old_frames.len() - gone);
    let first = sse::find(old_frames, "part.delta").unwrap().json()["seq"].to_string();
    let reset = server.run_events_after(old, Some(&first)).await.unwrap().all().await;
    assert_eq!(reset[0].kind(), "stream.reset");
    assert_eq!(sse::stored(&reset), sse::stored(&later));
    // Recent runs are unchanged.
    assert_eq!(sse::stored(&server.run_events(young).await.all().await), sse::stored(young_frames));
    audit::assert_sound(&site.database).await;
}

/// The server compacts deltas by itself and is killed during it several times.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_dies_while_it_folds_leaves_a_log_that_is_whole(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (_model, site, mut server) = Site::start_scripted(kind).await;
    let mut before = Vec::new();
    for _ in 0..4 {
        let frames = server.stream_run(&json!({"input": "[[text:60,3]]"})).await.all().await;
        before.push((frames[0].json()["run_id"].as_str().unwrap().to_owned(), frames));
    }
    let age = 30 * DAY_MS;
    site.database.rows(&format!("UPDATE runs SET finished_at = finished_at - {age} RETURNING id")).await;
    let left = || async { site.database.count("SELECT CAST(count(*) AS text) FROM runs WHERE folded_at IS NULL").await };
    assert_eq!(left().await, 4);
    let mut seen = 4;
    while seen > 0 {
        server.kill9().await;
        audit_whole(&site, &before).await;
        server = site.spawn(&[]);
        seen = wait::until("some run to be folded", Duration::from_secs(30), || async {
            let now = left().await;
            (now < seen).then_some(now)
        })
        .await;
    }
    server.kill9().await;
    let server = site.start().await;
    for (run, frames) in &before {
        let later = server.run_events(run).await.all().await;
        assert_eq!(told(&later), told(frames));
        assert_eq!(sse::kinds(&later).iter().filter(|kind| *kind == "part.delta").count(), 1);
    }
    audit::assert_sound(&site.database).await;
}

/// A run whose server is gone, without another server that could find it.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn cleanup_puts_stuck_runs_back(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, site, mut server) = Site::serve(async |model| Site::scripted(kind, model).await.short_leases()).await;
    let run = server.start_run(&json!({"input": "[[id:stuck]][[text:5,5]][[hold]]"})).await["id"].as_str().unwrap().to_owned();
    model.wait_for("its words", "stuck", |seen| seen.first().is_some_and(|first| first.sent.len() == 5)).await;
    let (ok, said) = site.command(&["cleanup", "--dry-run"]).await;
    assert!(ok && said.contains("runs with an expired lease to put back into the queue: 0\n"), "{said}");
    server.kill9().await;
    wait::until("its lease to end", Duration::from_secs(30), || async {
        let (ok, said) = site.command(&["cleanup", "--dry-run"]).await;
        (ok && said.contains("runs with an expired lease to put back into the queue: 1\n")).then_some(())
    })
    .await;
    let (ok, said) = site.command(&["cleanup"]).await;
    assert!(ok && said.contains("runs with an expired lease put back into the queue: 1\n"), "{said}");
    assert!(site.database.rows("SELECT run_id FROM run_leases").await.is_empty());
    model.release("stuck");
    let server = site.start().await;
    assert_eq!(server.finished(&run).await["status"], "completed");
    audit::assert_sound(&site.database).await;
}

/// Asserts that the rows are sound and no run has lost text, whether or not its deltas are compacted.
async fn audit_whole(site: &Site, before: &[(String, Vec<Frame>)]) {
    audit::assert_sound(&site.database).await;
    for (run, frames) in before {
        let said = format!("SELECT data FROM events WHERE run_id = '{run}' AND kind = 'part.delta' ORDER BY seq");
        let texts = |data: Vec<Value>| data.iter().map(|data| data["delta"].as_str().unwrap().to_owned()).collect::<String>();
        let rows = site.database.rows(&said).await.into_iter().map(|mut row| row.remove(0).unwrap());
        let stored = texts(rows.map(|data| serde_json::from_str(&data).unwrap()).collect());
        let deltas = frames.iter().filter(|frame| frame.kind() == "part.delta");
        assert_eq!(stored, texts(deltas.map(|frame| frame.json()["data"].clone()).collect()));
    }
}
