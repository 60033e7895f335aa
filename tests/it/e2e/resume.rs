//! A stream can be cut after any event and resumed: over both transports, on another server, after a restart.

use reqwest::StatusCode;
use rstest::rstest;
use serde_json::{Value, json};

use support::audit;
use support::database::Kind;
use support::server::{Server, Site};
use support::sse::{Frame, Next, stored};
use support::ws::WsClient;

const SCRIPT: &str = r#"[[id:cut]][[reason:2,1]][[call:ledger__append {"text":"a"}]][[call:ledger__lookup {"text":"b"}]]
[[next]][[text:5,20]][[hold]][[text:5,20]][[say:end "quoted" ünïcödé 日本 \n]]"#;

/// Reads a run through connections that each break after one event.
pub(super) async fn cut_at_every_event(server: &Server, run: &str) -> Vec<Frame> {
    let mut frames: Vec<Frame> = Vec::new();
    loop {
        let cursor = frames.last().and_then(|frame| frame.id.clone());
        // Status 204: the stream has no more events.
        let Some(mut stream) = server.run_events_after(run, cursor.as_deref()).await else { return frames };
        let before = frames.len();
        loop {
            match stream.next().await {
                Next::Frame(frame) if frame.id.is_some() => {
                    frames.push(frame);
                    break;
                }
                Next::Frame(frame) if frame.kind() == "stream.end" => return frames,
                Next::Frame(_) => {}
                Next::End | Next::Broken => panic!("the stream ended without its end after {before} events"),
            }
        }
    }
}

/// Does the same over WebSockets.
async fn cut_sockets_at_every_event(server: &Server, run: &str) -> Vec<String> {
    let mut events: Vec<String> = Vec::new();
    loop {
        let mut params = json!({"run_id": run});
        if let Some(last) = events.last() {
            params["after"] = serde_json::from_str::<Value>(last).unwrap()["seq"].clone();
        }
        let mut socket = WsClient::connect(&server.url, None).await;
        let answer = socket.call("subscribe", params).await;
        assert!(answer.get("error").is_none(), "{answer}");
        let (more, ended) = socket.events(1).await;
        events.extend(more);
        if ended {
            return events;
        }
    }
}

fn data(frames: &[Frame]) -> Vec<String> {
    frames.iter().map(|frame| frame.data.clone()).collect()
}

/// W-06.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn cut_clients_end_with_the_same_bytes(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, site, mut server) = Site::start_scripted(kind).await;
    let second = match kind {
        Kind::Sqlite => None,
        Kind::Postgres => Some(site.start().await),
    };
    let mut whole = server.stream_run(&json!({"input": SCRIPT})).await;
    let Next::Frame(first) = whole.next().await else { panic!("no first event") };
    let run = first.json()["run_id"].as_str().unwrap().to_owned();

    // All clients read while the run is under way: the model holds until one of them has seen the middle.
    let uncut = async {
        let mut frames = whole.until_kind("part.delta").await;
        frames.insert(0, first.clone());
        model.release("cut");
        frames.extend(whole.all().await);
        stored(&frames)
    };
    let elsewhere = async {
        match &second {
            Some(second) => Some(cut_at_every_event(second, &run).await),
            None => None,
        }
    };
    let (uncut, cut, sockets, elsewhere) =
        tokio::join!(uncut, cut_at_every_event(&server, &run), cut_sockets_at_every_event(&server, &run), elsewhere);
    assert!(uncut.len() > 20, "{}", uncut.len());
    assert_eq!(uncut, cut);
    assert_eq!(data(&uncut), sockets);
    if let Some(elsewhere) = elsewhere {
        assert_eq!(uncut, elsewhere);
    }

    // Later, from the store alone.
    server.kill9().await;
    drop(second);
    let server = site.start().await;
    assert_eq!(uncut, cut_at_every_event(&server, &run).await);
    assert_eq!(uncut, stored(&server.run_events(&run).await.all().await));
    assert_eq!(data(&uncut), cut_sockets_at_every_event(&server, &run).await);
    let as_json = server.run_events_json(&run).await;
    assert_eq!(uncut.iter().map(Frame::json).collect::<Vec<_>>(), as_json);
    site.assert_sound(&model).await;
}

/// W-12.
#[tokio::test(flavor = "multi_thread")]
async fn fifty_readers_of_one_run_each_get_all_of_it() {
    let (model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let script = "[[id:many]][[text:5,0]][[hold]][[text:300,1]]";
    let run = server.start_run(&json!({"input": script})).await["id"].as_str().unwrap().to_owned();
    let begun = futures_util::future::join_all((0..50).map(|_| async {
        let mut stream = server.run_events(&run).await;
        (stream.until_kind("part.delta").await, stream)
    }));
    let begun = begun.await;
    model.release("many");
    let ended = begun.into_iter().map(|(mut frames, stream)| async move {
        frames.extend(stream.all().await);
        stored(&frames)
    });
    let all = futures_util::future::join_all(ended).await;
    let log = stored(&server.run_events(&run).await.all().await);
    assert!(log.len() > 10 && all.iter().all(|one| *one == log), "{} events", log.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finished_stream_tells_an_event_source_to_stay_away() {
    let site = Site::new(Kind::Sqlite).await;
    let server = site.start().await;
    let frames = server.stream_run(&json!({"input": "hello"})).await.all().await;
    let run = frames[0].json()["run_id"].as_str().unwrap().to_owned();
    let last = stored(&frames).last().unwrap().id.clone().unwrap();
    let path = format!("/runs/{run}/events");
    let again = server.get(&path).header("accept", "text/event-stream").header("last-event-id", &last).send().await.unwrap();
    assert_eq!(again.status(), 204);
    // A cursor beyond the head is an error: an event on a stream, a problem in JSON.
    let future = server.get(&path).header("accept", "text/event-stream").header("last-event-id", "99999").send().await.unwrap();
    let frames = support::sse::SseStream::new(future).all().await;
    assert_eq!(frames[0].kind(), "stream.reset", "{frames:?}");
    let future = server.get(&format!("{path}?after=99999")).send().await.unwrap();
    assert_eq!(future.status(), 410);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn conversation_stream_starts_with_a_snapshot_without_gaps(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, site, server) = Site::start_scripted(kind).await;
    let run = server.start_run(&json!({"input": "[[id:snap]][[text:3,0]][[hold]][[text:3,0]]"})).await;
    let conversation = run["conversation_id"].as_str().unwrap().to_owned();
    model.wait_for("three tokens", "snap", |seen| seen.first().is_some_and(|first| first.sent.len() == 3)).await;
    let path = format!("/conversations/{conversation}/events");
    let answer = server.get(&path).header("accept", "text/event-stream").send().await.unwrap();
    let mut stream = support::sse::SseStream::new(answer);
    let Next::Frame(snapshot) = stream.next().await else { panic!("no snapshot") };
    assert_eq!(snapshot.kind(), "stream.snapshot");
    let head = snapshot.json()["data"]["head"].as_i64().unwrap();
    model.release("snap");
    let live = stream.until_kind("run.completed").await;
    let ids: Vec<i64> = live.iter().map(|frame| frame.id.as_ref().unwrap().parse().unwrap()).collect();
    assert_eq!(ids, (head + 1..=head + i64::try_from(ids.len()).unwrap()).collect::<Vec<_>>());
    server.finished(run["id"].as_str().unwrap()).await;
    audit::assert_sound(&site.database).await;
}

/// Returns the remaining lines of an answer.
async fn lines_of(answer: reqwest::Response) -> Vec<Value> {
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(answer.headers()["content-type"], "application/x-ndjson");
    let text = answer.text().await.unwrap();
    assert!(text.ends_with('\n'), "{text:?}");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_of_json_are_the_same_events() {
    let (_model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let lines = |request: reqwest::RequestBuilder| request.header("accept", "application/x-ndjson").send();
    let told = lines(server.post(
        "/runs",
        &json!({"input": r#"[[text:5,1]][[call:calculate {"expression":"1"}]][[next]][[say:two
lines]]"#}),
    ))
    .await
    .unwrap();
    let run = told.headers()["content-location"].to_str().unwrap().rsplit('/').next().unwrap().to_owned();
    let told = lines_of(told).await;
    let (end, told) = told.split_last().unwrap();
    assert_eq!(end["type"], "stream.end", "{end}");
    assert_eq!(told, server.run_events_json(&run).await);
    // From a cursor in the middle, which is the `seq` of the previous line.
    let middle = told.len() / 2;
    let after = &told[middle]["seq"];
    let rest = lines_of(lines(server.get(&format!("/runs/{run}/events?after={after}"))).await.unwrap()).await;
    assert_eq!(rest.split_last().unwrap().1, &told[middle + 1..]);
    let over = lines(server.get(&format!("/runs/{run}/events?after={}", told.last().unwrap()["seq"]))).await.unwrap();
    assert_eq!(over.status(), StatusCode::NO_CONTENT);
}
