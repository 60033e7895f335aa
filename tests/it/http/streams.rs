//! Cursors, reconnection and the format of event streams.

use std::time::Duration;

use axum::http::{Method, StatusCode};
use capstan::http::HttpLimits;
use serde_json::{Value, json};

use super::rig::{Frame, Keys, Rig, text};

fn stored(frames: &[Frame]) -> Vec<Frame> {
    frames.iter().filter(|frame| frame.json().get("seq").is_some()).cloned().collect()
}

#[tokio::test]
async fn a_post_may_be_answered_with_the_stream() {
    let rig = Rig::new().await;
    let mut stream = rig.post_stream("/api/v1/runs", &[], json!({"input": "hello"})).await;
    assert_eq!(stream.status, StatusCode::OK);
    let header = |name: &str| stream.headers.get(name).unwrap().to_str().unwrap().to_owned();
    assert_eq!(header("content-type"), "text/event-stream");
    assert_eq!(header("cache-control"), "no-store");
    assert_eq!(header("x-accel-buffering"), "no");
    let location = header("content-location");
    let first = stream.next().await.unwrap();
    assert_eq!((stream.comments.as_slice(), stream.retry.as_slice()), (["connected".to_owned()].as_slice(), [1000].as_slice()));
    let run = text(&first.json()["run_id"]);
    assert_eq!(location, format!("/api/v1/runs/{run}"));
    rig.play().await;
    let mut frames = vec![first];
    frames.extend(stream.rest().await);
    let kinds: Vec<_> = frames.iter().map(Frame::kind).collect();
    assert_eq!(kinds[kinds.len() - 2..], ["run.completed", "stream.end"]);
    let events = stored(&frames);
    assert_eq!(frames.last().unwrap().json()["data"]["last_seq"], events.last().unwrap().json()["seq"]);
    // The live events equal the stored ones byte for byte.
    let page = rig.get(&format!("/api/v1/runs/{run}/events?limit=100")).await;
    let sent = events.iter().map(|frame| frame.data.clone()).collect::<Vec<_>>().join(",");
    assert_eq!(page.body, format!("{{\"data\":[{sent}],\"next_cursor\":null}}"));
    assert!(events.iter().all(|frame| Some(frame.json()["seq"].as_i64().unwrap()) == frame.id));
}

#[tokio::test]
async fn a_client_that_is_cut_at_every_event_misses_nothing() {
    let rig = Rig::new().await;
    let (conversation, run) = rig.start("hello").await;
    let path = format!("/api/v1/runs/{run}/events");
    let whole = rig.stream(&path, &[]).await;
    let fence = rig.claim().await;
    let act = rig.play_half(&fence).await;

    // While the run is under way.
    let mut pieces: Vec<Frame> = Vec::new();
    let head = rig.store.log_bounds(&rig.local.user_id, &fence.conversation_id).await.unwrap().unwrap().head;
    loop {
        let last = pieces.last().map_or_else(String::new, |frame| frame.id.unwrap().to_string());
        if last == head.to_string() {
            break;
        }
        let mut stream = rig.stream(&path, &[("last-event-id", &last)]).await;
        pieces.push(stream.next().await.unwrap());
    }
    rig.play_rest(&fence, act).await;

    // After the end of the run, with the other form of the cursor.
    loop {
        let seq = pieces.last().unwrap().id.unwrap();
        let mut stream = rig.stream(&format!("{path}?after={seq}"), &[]).await;
        if stream.status == StatusCode::NO_CONTENT {
            break;
        }
        pieces.push(stream.next().await.unwrap());
    }
    let whole = whole.rest().await;
    assert_eq!(pieces, stored(&whole));
    assert_eq!(pieces.len(), 13, "{pieces:#?}");

    // On a browser's reconnect, the header is newer than the URL.
    let mut stream = rig.stream(&format!("{path}?after=1"), &[("last-event-id", "5")]).await;
    assert_eq!(stream.next().await.unwrap().id, Some(6));
    // The log of the conversation has the same events.
    let mut log = rig.stream(&format!("/api/v1/conversations/{conversation}/events?after=0"), &[]).await;
    let until_end = log.until("run.completed").await;
    let of_run: Vec<_> = until_end.into_iter().filter(|frame| frame.json()["run_id"] == run.as_str()).collect();
    assert_eq!(of_run, pieces);
}

/// W-07.
#[tokio::test]
async fn two_runs_in_one_conversation_keep_apart() {
    let rig = Rig::new().await;
    let (conversation, first) = rig.start("one").await;
    let messages = format!("/api/v1/conversations/{conversation}/messages");
    let second = text(&rig.post(&messages, json!({"content": "two"})).await.json()["run"]["id"]);
    let streams = [
        rig.stream(&format!("/api/v1/runs/{first}/events"), &[]).await,
        rig.stream(&format!("/api/v1/runs/{second}/events"), &[]).await,
    ];
    rig.play().await;
    rig.play().await;
    for (stream, run) in streams.into_iter().zip([first, second]) {
        let frames = stream.rest().await;
        assert!(frames.iter().all(|frame| frame.json()["run_id"] == run.as_str()));
        assert_eq!(frames.last().unwrap().kind(), "stream.end");
        // Pages of the same run, each with few events.
        let mut paged = Vec::new();
        let mut path = format!("/api/v1/runs/{run}/events?limit=4");
        loop {
            let page = rig.get(&path).await;
            paged.extend(page.json()["data"].as_array().unwrap().clone());
            match page.json()["next_cursor"].as_str() {
                Some(next) => path = format!("/api/v1/runs/{run}/events?limit=4&cursor={next}"),
                None => break,
            }
        }
        assert_eq!(paged, stored(&frames).iter().map(Frame::json).collect::<Vec<Value>>());
    }
}

#[tokio::test]
async fn a_conversation_begins_with_a_snapshot() {
    let (rig, conversation, run, fence, act) = Rig::with_half_played_run("hello").await;
    let path = format!("/api/v1/conversations/{conversation}/events");
    let mut stream = rig.stream(&path, &[]).await;
    let snapshot = stream.next().await.unwrap();
    assert_eq!(snapshot.kind(), "stream.snapshot");
    let data = snapshot.json()["data"].clone();
    assert_eq!(data["head"].as_i64(), snapshot.id);
    assert_eq!(data["messages"][0]["role"], "user");
    assert_eq!(data["messages"].as_array().unwrap().len(), 1);
    assert_eq!(data["active_run"]["run"]["id"], run.as_str());
    let partial = &data["active_run"]["partial_message"];
    assert_eq!((&partial["status"], &partial["parts"][0]["text"]), (&json!("partial"), &json!("Hello\nworld")));
    assert_eq!(data["pending_approvals"], json!([]));
    assert_eq!(data["pending_inputs"], json!([]));
    rig.play_rest(&fence, act).await;
    let next = stream.next().await.unwrap();
    assert_eq!(next.id, snapshot.id.map(|seq| seq + 1));
    // An idle conversation has no unfinished message.
    let mut stream = rig.stream(&path, &[]).await;
    let data = stream.next().await.unwrap().json()["data"].clone();
    assert_eq!((data["messages"].as_array().unwrap().len(), &data["active_run"]), (2, &Value::Null));
}

/// W-08.
#[tokio::test]
async fn a_cursor_outside_of_the_log_is_named() {
    let (rig, conversation, run) = Rig::with_played_run("hello").await;
    for path in [format!("/api/v1/runs/{run}/events"), format!("/api/v1/conversations/{conversation}/events")] {
        let reply = rig.get(&format!("{path}?after=999")).await;
        assert_eq!((reply.status, reply.code().as_str()), (StatusCode::GONE, "cursor_gone"));
        let mut stream = rig.stream(&path, &[("last-event-id", "999")]).await;
        let reset = stream.next().await.unwrap();
        assert_eq!((reset.kind().as_str(), reset.id), ("stream.reset", None));
        assert_eq!(reset.json()["data"], json!({"reason": "cursor_in_future", "oldest": 1, "head": 14}));
        // The events after it are those that a client without a cursor gets.
        let follows = stream.next().await.unwrap().kind();
        assert_eq!(follows, if path.contains("runs") { "message.created" } else { "stream.snapshot" });
        for garbage in ["x", "-1", "1.5", "%2b1", "99999999999999999999", "0x1", ""] {
            let reply = rig.get(&format!("{path}?after={garbage}")).await;
            assert_eq!((reply.status, reply.code().as_str()), (StatusCode::BAD_REQUEST, "invalid_cursor"), "{garbage}");
            let headers = [("accept", "text/event-stream")];
            let reply = rig.send(Method::GET, &format!("{path}?after={garbage}"), &headers, None).await;
            assert_eq!(reply.code(), "invalid_cursor");
        }
    }
}

/// W-09, W-10.
#[tokio::test]
async fn silence_is_filled_and_a_restart_is_announced() {
    let limits = HttpLimits { sse_ping: Duration::from_millis(20), ..HttpLimits::default() };
    let rig = Rig::with(limits, |_| {}, Keys::None).await;
    let (_, run) = rig.start("hello").await;
    let mut stream = rig.stream(&format!("/api/v1/runs/{run}/events"), &[]).await;
    let queued = stream.until("run.queued").await.pop().unwrap();
    let ping = stream.until("stream.ping").await.pop().unwrap();
    assert_eq!(ping.id, None);
    // The title was set later: an event of the conversation, not of the run.
    assert_eq!(ping.json()["data"]["head"].as_i64(), queued.id.map(|seq| seq + 1));
    assert!(stream.comments.contains(&"ping".to_owned()));
    rig.shutdown.cancel();
    while stream.next().await.is_some() {}
    assert_eq!(stream.retry.len(), 2, "the last frame has a retry hint");
    let reply = rig.get("/readyz").await;
    assert_eq!((reply.status, reply.header("retry-after")), (StatusCode::SERVICE_UNAVAILABLE, "2"));
    assert_eq!(rig.get("/healthz").await.status, StatusCode::OK);
}

#[tokio::test]
async fn deleting_a_conversation_ends_its_streams() {
    let rig = Rig::new().await;
    let (conversation, run) = rig.start("hello").await;
    let stream = rig.stream(&format!("/api/v1/conversations/{conversation}/events?after=0"), &[]).await;
    let reply = rig.send(Method::DELETE, &format!("/api/v1/conversations/{conversation}"), &[], None).await;
    assert_eq!(reply.status, StatusCode::NO_CONTENT);
    let end = stream.rest().await.pop().unwrap();
    assert_eq!((end.kind().as_str(), &end.json()["data"]["reason"]), ("stream.end", &json!("deleted")));
    for path in [format!("/api/v1/conversations/{conversation}"), format!("/api/v1/runs/{run}")] {
        assert_eq!(rig.get(&path).await.status, StatusCode::NOT_FOUND);
    }
}

/// The poller never saw the log: it was deleted before the first poll.
#[tokio::test]
async fn deletion_by_another_process_ends_new_streams() {
    let mut rig = Rig::new().await;
    let (conversation, run) = rig.start("hello").await;
    let paths = [format!("/api/v1/conversations/{conversation}/events"), format!("/api/v1/runs/{run}/events")];
    let mut streams = Vec::new();
    for path in &paths {
        let mut stream = rig.stream(path, &[]).await;
        stream.next().await.unwrap();
        streams.push(stream);
    }
    let id = capstan::domain::ids::ConversationId::parse(&conversation).unwrap();
    rig.store.delete_conversation(&rig.local.user_id, &id).await.unwrap().unwrap();
    rig.poll();
    for stream in streams {
        let end = stream.rest().await.pop().unwrap();
        assert_eq!((end.kind().as_str(), &end.json()["data"]["reason"]), ("stream.end", &json!("deleted")));
    }
}

/// Few but large events: pages end early, and following them yields every event.
#[tokio::test]
async fn large_events_come_in_small_pages() {
    let (rig, conversation, run, fence, act) = Rig::with_half_played_run("hello").await;
    let part_id = capstan::domain::ids::PartId::generate(&capstan::support::ids::UuidIds);
    for _ in 0..12 {
        let delta = capstan::domain::event::EventBody::PartDelta { part_id: part_id.clone(), delta: "x".repeat(400_000) };
        rig.write(&fence, &[delta], Vec::new()).await;
    }
    rig.play_rest(&fence, act).await;
    let head = rig.store.log_bounds(&rig.local.user_id, &fence.conversation_id).await.unwrap().unwrap().head;
    for (path, count) in [(format!("/api/v1/conversations/{conversation}"), head), (format!("/api/v1/runs/{run}"), 25)] {
        let mut pages = 0;
        let mut seqs: Vec<i64> = Vec::new();
        let mut after = 0;
        loop {
            let page = rig.get(&format!("{path}/events?limit=100&after={after}")).await;
            assert!(page.body.len() < 2_000_000, "{}", page.body.len());
            pages += 1;
            seqs.extend(page.json()["data"].as_array().unwrap().iter().map(|event| event["seq"].as_i64().unwrap()));
            match page.json()["next_cursor"].as_str() {
                Some(next) => after = next.parse().unwrap(),
                None => break,
            }
        }
        assert!(seqs.windows(2).all(|pair| pair[0] < pair[1]), "{seqs:?}");
        assert_eq!((pages >= 4, i64::try_from(seqs.len()).unwrap()), (true, count), "{path}: {pages} pages");
        let frames = stored(&rig.stream(&format!("/api/v1/runs/{run}/events"), &[]).await.rest().await);
        assert_eq!(frames.len(), 25);
    }
}

/// W-04.
#[tokio::test]
async fn a_slow_reader_gets_everything() {
    let rig = Rig::new().await;
    let (_, run) = rig.start("hello").await;
    let stream = rig.stream(&format!("/api/v1/runs/{run}/events"), &[]).await;
    let fence = rig.claim().await;
    let act = rig.play_half(&fence).await;
    let part_id = capstan::domain::ids::PartId::generate(&capstan::support::ids::UuidIds);
    // More than the queue of a subscription holds, in events and in bytes.
    for _ in 0..40 {
        let delta = capstan::domain::event::EventBody::PartDelta { part_id: part_id.clone(), delta: "x".repeat(5_000) };
        rig.write(&fence, &vec![delta; 20], Vec::new()).await;
    }
    rig.play_rest(&fence, act).await;
    let frames = stored(&stream.rest().await);
    assert_eq!(frames.len(), 813);
    let seqs: Vec<_> = frames.iter().map(|frame| frame.id.unwrap()).collect();
    assert!(seqs.windows(2).all(|pair| pair[0] < pair[1]));
}
