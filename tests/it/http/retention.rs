//! Streams of runs that ended long ago, before and after delta compaction.

use axum::http::{Method, StatusCode};
use capstan::domain::event::EventBody;
use capstan::domain::ids::PartId;
use capstan::service::{CompactionMode, CompactionStep, DeltaCompactor};
use capstan::support::ids::UuidIds;
use serde_json::{Value, json};

use super::ag_ui;
use super::rig::{Frame, Reply, Rig, Sse};
use super::sockets::connect;

/// Compacts the deltas of all ended runs, as if a week had passed.
async fn a_week_passes(rig: &Rig) {
    let mut folder = DeltaCompactor::new(rig.store.clone(), 0, CompactionMode::Write);
    while folder.step().await.unwrap() == CompactionStep::Compacted {}
    assert!(folder.events > 0);
}

/// The final state of a client that follows the log: the text of each part, and the whole messages.
#[derive(Debug, Default, PartialEq)]
struct Screen {
    shown: Vec<(String, String)>,
    messages: Vec<Value>,
    resets: Vec<String>,
    last: String,
}

impl Screen {
    fn of(envelopes: impl IntoIterator<Item = Value>) -> Self {
        let mut screen = Self::default();
        for envelope in envelopes {
            let data = &envelope["data"];
            let word = |value: &Value| value.as_str().unwrap().to_owned();
            screen.last = word(&envelope["type"]);
            match screen.last.as_str() {
                "part.delta" => {
                    let (part, delta) = (word(&data["part_id"]), word(&data["delta"]));
                    match screen.shown.iter_mut().find(|(shown, _)| *shown == part) {
                        Some((_, text)) => text.push_str(&delta),
                        None => screen.shown.push((part, delta)),
                    }
                }
                "message.completed" => screen.messages.push(data["message"].clone()),
                "stream.reset" => screen = Self { resets: vec![word(&data["reason"])], ..Self::default() },
                _ => {}
            }
        }
        screen
    }

    fn of_frames(frames: &[Frame]) -> Self {
        Self::of(frames.iter().map(Frame::json))
    }
}

/// Returns the `seq` of the first delta.
fn first_delta(frames: &[Frame]) -> i64 {
    frames.iter().find(|frame| frame.kind() == "part.delta").unwrap().id.unwrap()
}

#[tokio::test]
async fn a_stream_opened_a_month_later_says_the_same_in_fewer_events() {
    let (rig, _, run) = Rig::with_played_run("hello").await;
    let path = format!("/api/v1/runs/{run}/events");
    let before = rig.stream(&path, &[]).await.rest().await;
    a_week_passes(&rig).await;
    let after = rig.stream(&path, &[]).await.rest().await;
    assert_eq!(Screen::of_frames(&after), Screen::of_frames(&before));
    assert_eq!(Screen::of_frames(&after).last, "stream.end");
    assert_eq!(after.len(), before.len() - 2);
    assert!(after.iter().all(|frame| before.iter().any(|was| (was.id, was.kind()) == (frame.id, frame.kind()))));
    // In pages of the smallest size, each one continues the previous one.
    let mut paged = Vec::new();
    let mut next = format!("{path}?limit=1");
    loop {
        let page = rig.get(&next).await;
        assert_eq!(page.status, StatusCode::OK, "{}", page.body);
        paged.extend(page.json()["data"].as_array().unwrap().clone());
        match page.json()["next_cursor"].as_str() {
            Some(cursor) => next = format!("{path}?limit=1&cursor={cursor}"),
            None => break,
        }
    }
    let stored: Vec<Value> = after.iter().map(Frame::json).filter(|event| event.get("seq").is_some()).collect();
    assert_eq!(paged, stored);
    // A client at the head gets an empty answer.
    let last = paged.last().unwrap()["seq"].to_string();
    assert_eq!(rig.stream(&path, &[("last-event-id", &last)]).await.status, StatusCode::NO_CONTENT);
}

/// W-08.
#[tokio::test]
async fn a_cursor_within_what_was_folded_is_refused_on_every_wire() {
    let (mut rig, conversation, run) = Rig::with_played_run("hello").await;
    let path = format!("/api/v1/runs/{run}/events");
    let before = rig.stream(&path, &[]).await.rest().await;
    a_week_passes(&rig).await;
    let after = rig.stream(&path, &[]).await.rest().await;
    let head = before.iter().filter_map(|frame| frame.id).max().unwrap();
    let first = first_delta(&before);
    let address = rig.listen().await;
    // Of three deltas the last one is left. A cursor at it or before all of them continues, and a cursor between them is
    // refused.
    for (cursor, is_good) in [(first - 1, true), (first, false), (first + 1, false), (first + 2, true)] {
        let rest: Vec<Frame> = after.iter().filter(|frame| frame.id.is_none_or(|id| id > cursor)).cloned().collect();
        let frames = rig.stream(&path, &[("last-event-id", &cursor.to_string())]).await.rest().await;
        let page = rig.get(&format!("{path}?after={cursor}")).await;
        let log = rig.get(&format!("/api/v1/conversations/{conversation}/events?after={cursor}")).await;
        let mut socket = connect(&address, &[]).await.unwrap_or_else(|status| panic!("{status}"));
        let answer = socket.call("subscribe", json!({"run_id": run, "after": cursor})).await;
        assert!(answer["result"].is_object(), "{answer}");
        let mut pushed = vec![socket.next().await.unwrap()];
        while pushed.last().unwrap()["type"] != "stream.end" {
            pushed.push(socket.next().await.unwrap());
        }
        if is_good {
            assert_eq!((frames.len(), page.status, log.status), (rest.len(), StatusCode::OK, StatusCode::OK));
            assert_eq!(frames[..rest.len() - 1], rest[..rest.len() - 1]);
            assert_eq!(pushed[..rest.len() - 1], rest[..rest.len() - 1].iter().map(Frame::json).collect::<Vec<_>>());
            continue;
        }
        for answer in [page, log] {
            assert_eq!((answer.status, answer.code().as_str()), (StatusCode::GONE, "cursor_gone"), "{}", answer.body);
        }
        assert_eq!((frames[0].kind().as_str(), frames[0].id), ("stream.reset", None));
        assert_eq!(frames[0].json()["data"], json!({"reason": "cursor_expired", "oldest": 1, "head": head}));
        // The events after it are those that a client without a cursor gets.
        assert_eq!(frames[1..after.len()], after[..after.len() - 1]);
        assert_eq!(pushed[0]["type"], "stream.reset");
        assert_eq!(pushed[1..after.len()], after[..after.len() - 1].iter().map(Frame::json).collect::<Vec<_>>());
        let mut log = rig.stream(&format!("/api/v1/conversations/{conversation}/events?after={cursor}"), &[]).await;
        assert_eq!(log.next().await.unwrap().kind(), "stream.reset");
        let snapshot = log.next().await.unwrap();
        assert_eq!((snapshot.kind().as_str(), snapshot.id), ("stream.snapshot", Some(head)));
        assert_eq!(snapshot.json()["data"]["messages"].as_array().unwrap().len(), 2);
    }
}

#[tokio::test]
async fn cursor_of_ag_ui_within_compacted_deltas_is_refused() {
    let (rig, _, run) = Rig::with_played_run("hello").await;
    let path = format!("/ag-ui/default?runId={run}");
    let before = ag_ui::frames(&rig.get(&path).await);
    a_week_passes(&rig).await;
    assert_eq!(ag_ui::said(&ag_ui::frames(&rig.get(&path).await)), "Hello\nworld");
    let mut refused = 0;
    for (at, (id, _)) in before.iter().enumerate() {
        let reply = rig.get(&format!("{path}&offset={id}")).await;
        if reply.status == StatusCode::GONE {
            assert_eq!(reply.code(), "cursor_gone");
            refused += 1;
            continue;
        }
        let rest = ag_ui::frames(&reply);
        assert_eq!(ag_ui::said(&before[..=at]) + &ag_ui::said(&rest), "Hello\nworld", "after {id}");
        assert_eq!(rest.last(), before.last().filter(|_| at + 1 < before.len()), "after {id}");
    }
    // Of three deltas the last one is left, and a cursor at one of the others is refused.
    assert_eq!(refused, 2);
}

#[tokio::test]
async fn sequence_number_inside_compacted_deltas_is_refused() {
    let (rig, _, run) = Rig::with_played_run("hello").await;
    let path = format!("/v1/responses/{}?stream=true", run.replace("run_", "resp_"));
    let read = async |path: &str| rig.exchange(Method::GET, path, &[], None).await;
    let events = |reply: &Reply| -> Vec<Value> {
        assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
        let body = reply.body.strip_suffix("data: [DONE]\n\n").unwrap();
        body.lines().filter_map(|line| Some(serde_json::from_str(line.strip_prefix("data: ")?).unwrap())).collect()
    };
    let said = |events: &[Value]| -> String {
        let deltas = events.iter().filter(|event| event["type"] == "response.output_text.delta");
        deltas.map(|event| event["delta"].as_str().unwrap()).collect()
    };
    let before = events(&read(&path).await);
    a_week_passes(&rig).await;
    assert_eq!(said(&events(&read(&path).await)), "Hello\nworld");
    let mut refused = 0;
    for (at, event) in before.iter().enumerate() {
        let number = &event["sequence_number"];
        let reply = read(&format!("{path}&starting_after={number}")).await;
        if reply.status == StatusCode::GONE {
            let error = &reply.json()["error"];
            assert_eq!((&error["code"], &error["param"]), (&json!("cursor_gone"), &json!("starting_after")), "{error}");
            refused += 1;
            continue;
        }
        let rest = events(&reply);
        assert_eq!(said(&before[..=at]) + &said(&rest), "Hello\nworld", "after {number}");
        assert_eq!(rest.last(), before.last().filter(|_| at + 1 < before.len()), "after {number}");
    }
    // Of three deltas the last one is left.
    assert_eq!(refused, 2);
}

/// Plays a run whose log has several pages, and opens a reader that has seen the first of them.
async fn a_reader_within(rig: &Rig, path: impl Fn(&str, &str) -> String) -> (String, Sse, Vec<Frame>) {
    let (conversation, run) = rig.start("hello").await;
    let fence = rig.claim().await;
    let act = rig.play_half(&fence).await;
    let part_id = PartId::generate(&UuidIds);
    for batch in 0..13 {
        let delta = |n: usize| EventBody::PartDelta { part_id: part_id.clone(), delta: format!("{batch}.{n} ") };
        rig.write(&fence, &(0..100).map(delta).collect::<Vec<_>>(), Vec::new()).await;
    }
    rig.play_rest(&fence, act).await;
    let mut stream = rig.stream(&path(&conversation, &run), &[]).await;
    let mut read = Vec::new();
    // The middle of the compacted deltas, where no page begins.
    while read.len() < 400 {
        read.push(stream.next().await.unwrap());
    }
    (run, stream, read)
}

/// D-15.
#[tokio::test]
async fn a_slow_reader_of_a_run_that_is_folded_meanwhile_begins_again() {
    let rig = Rig::new().await;
    let (run, stream, mut read) = a_reader_within(&rig, |_, run| format!("/api/v1/runs/{run}/events")).await;
    a_week_passes(&rig).await;
    read.extend(stream.rest().await);
    let anew = Screen::of_frames(&rig.stream(&format!("/api/v1/runs/{run}/events"), &[]).await.rest().await);
    assert_eq!(Screen::of_frames(&read), Screen { resets: vec!["cursor_expired".to_owned()], ..anew });
}

#[tokio::test]
async fn slow_reader_of_a_compacted_log_gets_a_snapshot() {
    let rig = Rig::new().await;
    let (_, mut stream, mut read) = a_reader_within(&rig, |id, _| format!("/api/v1/conversations/{id}/events?after=0")).await;
    a_week_passes(&rig).await;
    read.extend(stream.until("stream.reset").await);
    let deltas = read.iter().filter(|frame| frame.kind() == "part.delta").count();
    assert!(deltas < 1_303, "{deltas}");
    let snapshot = stream.next().await.unwrap();
    assert_eq!(snapshot.kind(), "stream.snapshot");
    assert_eq!(snapshot.json()["data"]["messages"][1]["parts"][0]["text"], "Hello\nworld");
    // The stream continues from the snapshot.
    let conversation = snapshot.json()["conversation_id"].as_str().unwrap().to_owned();
    rig.post(&format!("/api/v1/conversations/{conversation}/messages"), json!({"content": "two"})).await;
    assert_eq!(stream.next().await.unwrap().id, snapshot.id.map(|seq| seq + 1));
}
