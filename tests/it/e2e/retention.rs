//! `capstan cleanup` beside a running server, and a stream that is opened long after its run.

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::audit;
use crate::support::database::Kind;
use crate::support::model::ModelMock;
use crate::support::server::Site;
use crate::support::sse::{self, Frame};

const DAY_MS: i64 = 24 * 60 * 60 * 1000;

/// What counts of a stream: the whole messages, and how it ended.
fn told(frames: &[Frame]) -> (Vec<Value>, Vec<String>) {
    let messages = frames.iter().filter(|frame| frame.kind() == "message.completed");
    let end = sse::kinds(frames).split_off(frames.len() - 2);
    (messages.map(|frame| frame.json()["data"]["message"].clone()).collect(), end)
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_opened_a_month_later(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let model = ModelMock::start().await;
    let site = Site::scripted(kind, &model).await;
    let server = site.start().await;
    let mut streams = Vec::new();
    for id in ["old", "young"] {
        let frames = server.stream_run(&json!({"input": format!("[[id:{id}]][[text:100,5]]")})).await.all().await;
        let run = frames[0].json()["run_id"].as_str().unwrap().to_owned();
        streams.push((run, frames));
    }
    let [(old, old_frames), (young, young_frames)] = &streams[..] else { unreachable!() };
    let deltas = |frames: &[Frame]| sse::kinds(frames).iter().filter(|kind| *kind == "part.delta").count();
    assert!(deltas(old_frames) > 10, "{}", deltas(old_frames));

    let age = 30 * DAY_MS;
    site.database.rows(&format!("UPDATE runs SET finished_at = finished_at - {age} WHERE id = '{old}' RETURNING id")).await;
    let (ok, counted) = site.command(&["cleanup", "--dry-run"]).await;
    let gone = deltas(old_frames) - 1;
    assert!(ok && counted.contains(&format!("runs older than 7 days to fold: 1; events that would become part of others: {gone}")));
    assert_eq!(sse::stored(&server.run_events(old).await.all().await), sse::stored(old_frames));
    let (ok, done) = site.command(&["cleanup"]).await;
    assert!(ok && done.contains(&format!("that were folded: 1; events that are part of others now: {gone}")), "{done}");
    let (ok, done) = site.command(&["cleanup"]).await;
    assert!(ok && done.contains("that were folded: 0;"), "{done}");

    let later = server.run_events(old).await.all().await;
    assert_eq!(told(&later), told(old_frames));
    assert_eq!(deltas(&later), 1);
    assert_eq!(later.len(), old_frames.len() - gone);
    let first = sse::find(old_frames, "part.delta").unwrap().json()["seq"].to_string();
    let reset = server.run_events_after(old, Some(&first)).await.unwrap().all().await;
    assert_eq!(reset[0].kind(), "stream.reset");
    assert_eq!(sse::stored(&reset), sse::stored(&later));
    // What is not old has not changed.
    assert_eq!(sse::stored(&server.run_events(young).await.all().await), sse::stored(young_frames));
    audit::assert_sound(&site.database).await;
}
