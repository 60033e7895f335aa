//! The promises of the README, with no configuration at all.

use rstest::rstest;
use serde_json::json;

use support::audit;
use support::database::Kind;
use support::server::Site;
use support::sse::{find, kinds};

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn single_request_streams_a_run_with_two_tools(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let site = Site::new(kind).await;
    let server = site.start().await;
    let body = json!({"input": "What time is it, and what is 17*23?"});
    let answer = server.post("/runs", &body).header("accept", "text/event-stream").send().await.unwrap();
    assert_eq!(answer.headers()["cache-control"], "no-store");
    assert_eq!(answer.headers()["x-accel-buffering"], "no");
    let location = answer.headers()["content-location"].to_str().unwrap().to_owned();
    let mut stream = support::sse::SseStream::new(answer);
    let mut frames = Vec::new();
    while let support::sse::Next::Frame(frame) = stream.next().await {
        frames.push(frame);
    }
    assert!(stream.commented, "a first comment flushes the headers");
    assert_eq!(stream.retry.as_deref(), Some("1000"));

    let kinds = kinds(&frames);
    assert_eq!(kinds[..3], ["message.created", "run.queued", "run.started"], "{kinds:?}");
    assert_eq!(kinds.last().unwrap(), "stream.end");
    assert_eq!(kinds[kinds.len() - 2], "run.completed");
    let place = |kind: &str| kinds.iter().position(|other| other == kind).unwrap_or_else(|| panic!("no {kind} in {kinds:?}"));
    assert!(place("run.started") < place("tool.started"), "{kinds:?}");
    assert_eq!(kinds.iter().filter(|kind| *kind == "tool.completed").count(), 2);
    let last_tool = kinds.iter().rposition(|kind| kind == "tool.completed").unwrap();
    assert!(kinds[last_tool..].iter().filter(|kind| *kind == "part.delta").count() > 1, "{kinds:?}");
    assert!(frames.iter().all(|frame| frame.event.is_none()), "events are unnamed");
    // Sequence numbers count in the conversation, whose own events are not part of the run's stream.
    let ids: Vec<i64> = frames.iter().filter_map(|frame| frame.id.as_ref()).map(|id| id.parse().unwrap()).collect();
    assert!(ids.is_sorted_by(|one, next| one < next), "{ids:?}");
    for frame in frames.iter().filter(|frame| frame.id.is_some()) {
        assert_eq!(frame.json()["seq"].to_string(), *frame.id.as_ref().unwrap());
    }

    let run = frames[0].json()["run_id"].as_str().unwrap().to_owned();
    assert!(location.ends_with(&run), "{location}");
    let run = server.get_json(&format!("/runs/{run}")).await;
    assert_eq!(run["status"], "completed");
    let messages = server.messages(run["conversation_id"].as_str().unwrap()).await;
    let roles: Vec<&str> = messages.iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles.first(), Some(&"user"));
    assert_eq!(roles.last(), Some(&"assistant"));
    let last = messages.last().unwrap()["parts"].to_string();
    assert!(last.contains("391") && last.to_lowercase().contains("demo"), "{last}");
    let completed = find(&frames, "message.completed").unwrap().json();
    assert!(messages.iter().any(|message| message["id"] == completed["data"]["message"]["id"]));
    audit::assert_sound(&site.database).await;
}
