//! A copy of the database is restored, or started elsewhere.

use std::time::Duration;

use reqwest::StatusCode;
use rstest::rstest;
use serde_json::{Value, json};

use support::database::{Database, Kind};
use support::server::{Server, Site};
use support::sse::{Next, SseStream};

/// The largest integer that JavaScript represents exactly.
const MAX_SAFE: i64 = (1 << 53) - 1;

async fn end(mut server: Server) {
    server.signal("TERM").await;
    assert!(server.ended(Duration::from_secs(30)).await.success());
}

/// Asserts that a server refuses to start and says why.
async fn refused(site: &Site) {
    let mut server = site.spawn(&[]);
    let status = server.ended(Duration::from_secs(60)).await;
    let log = server.log_text();
    let has_reason = log.contains("copy") || log.contains("is older than the database that was served here");
    assert!(!status.success() && log.contains("serve --accept-restore") && has_reason, "{log}");
}

/// Runs a message in the conversation, or in a new one. Returns the conversation and the events of the run.
async fn say(server: &Server, conversation: Option<&str>) -> (String, Vec<Value>) {
    let run = match conversation {
        Some(conversation) => server.send(conversation, "[[text:3,0]]", "queue").await["run"].clone(),
        None => server.start_run(&json!({ "input": "[[text:3,0]]" })).await,
    };
    let id = run["id"].as_str().unwrap();
    assert_eq!(server.finished(id).await["status"], "completed");
    (run["conversation_id"].as_str().unwrap().to_owned(), server.run_events_json(id).await)
}

fn seqs(events: &[Value]) -> Vec<i64> {
    events.iter().map(|event| event["seq"].as_i64().unwrap()).collect()
}

/// Returns the events after the cursor as one JSON page.
async fn page(server: &Server, conversation: &str, after: i64) -> (StatusCode, Value) {
    let path = format!("/conversations/{conversation}/events?limit=100&after={after}");
    let answer = server.get(&path).header("accept", "application/json").send().await.unwrap();
    (answer.status(), answer.json().await.unwrap())
}

/// Returns the page without events about the conversation as a whole.
fn of_runs(page: &Value) -> Vec<Value> {
    page["data"].as_array().unwrap().iter().filter(|event| event["run_id"].is_string()).cloned().collect()
}

/// Asserts that a cursor from the lost time is never silently continued.
async fn is_told(server: &Server, conversation: &str, lost: i64) {
    let (status, problem) = page(server, conversation, lost).await;
    assert_eq!((status, &problem["code"]), (StatusCode::GONE, &json!("cursor_gone")), "{problem}");
    let request = server.get(&format!("/conversations/{conversation}/events")).header("accept", "text/event-stream");
    let mut stream = SseStream::new(request.header("last-event-id", lost.to_string()).send().await.unwrap());
    let mut told = Vec::new();
    while told.len() < 2 {
        let Next::Frame(frame) = stream.next().await else { panic!("the stream ended after {told:?}") };
        told.push((frame.kind(), frame.json()["data"]["reason"].as_str().map(str::to_owned)));
    }
    let reset = ("stream.reset".to_owned(), Some("cursor_expired".to_owned()));
    assert_eq!(told, [reset, ("stream.snapshot".to_owned(), None)]);
}

/// D-16, W-19: no server works on a copy by accident, and sequence numbers of the lost time are never reused.
#[rstest]
#[case::sqlite(Kind::Sqlite)]
#[case::postgres(Kind::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_is_put_back(#[case] kind: Kind) {
    let (model, site, server) = Site::start_scripted(kind).await;
    let (conversation, kept) = say(&server, None).await;
    end(server).await;
    let folder = tempfile::tempdir().unwrap();
    let copy = site.database.copy(folder.path()).await;

    // Two servers, one of them on a copy of the other's database.
    let server = site.start().await;
    let another = tempfile::tempdir().unwrap();
    let elsewhere = Site::scripted_on(copy.copy(another.path()).await, &model);
    refused(&elsewhere).await;
    let (_, lost) = say(&server, Some(&conversation)).await;
    end(server).await;

    site.database.put_back(&copy).await;
    refused(&site).await;
    let site = site.argument("--accept-restore");
    let server = site.start().await;
    let (newest, lost) = (*seqs(&kept).last().unwrap(), *seqs(&lost).last().unwrap());
    assert!(newest < lost);
    is_told(&server, &conversation, lost).await;
    let (status, nothing) = page(&server, &conversation, newest).await;
    assert_eq!((status, &nothing["data"]), (StatusCode::OK, &json!([])));

    let (_, new) = say(&server, Some(&conversation)).await;
    assert!(seqs(&new).iter().all(|seq| *seq > lost + 1_000_000_000 && *seq < MAX_SAFE), "{new:?}");
    is_told(&server, &conversation, lost).await;
    let (_, rest) = page(&server, &conversation, newest).await;
    assert_eq!(of_runs(&rest), new, "a cursor before the copy continues");
    let (_, all) = page(&server, &conversation, 0).await;
    assert_eq!(of_runs(&all), [&kept[..], &new[..]].concat());
    end(server).await;

    // The restore was accepted already.
    let server = site.start().await;
    let (_, newer) = say(&server, Some(&conversation)).await;
    assert_eq!(seqs(&newer)[0], seqs(&new).last().unwrap() + 1);
    end(server).await;
    // Nothing in an identical copy tells it apart, so only an operator can accept it.
    let (ok, said) = site.command(&["migrate", "--accept-restore"]).await;
    assert!(ok && said.contains("is accepted as the database"), "{said}");
    let server = site.start().await;
    let (_, newest) = say(&server, Some(&conversation)).await;
    assert!(seqs(&newest)[0] > seqs(&newer).last().unwrap() + 1);
    let (_, rest) = page(&server, &conversation, *seqs(&newer).last().unwrap()).await;
    assert_eq!(of_runs(&rest), newest);
}

/// The whole folder is copied, with the file that detects copies: it holds the time of its creation, and the copy was created
/// later.
#[tokio::test(flavor = "multi_thread")]
async fn a_folder_is_copied_with_its_mark() {
    let (model, site, server) = Site::start_scripted(Kind::Sqlite).await;
    let (conversation, _) = say(&server, None).await;
    end(server).await;
    let folder = tempfile::tempdir().unwrap();
    let copy = site.database.copy(folder.path()).await;
    let mark_of = |database: &Database| format!("{}.mark", database.url.trim_start_matches("sqlite:"));
    std::fs::copy(mark_of(&site.database), mark_of(&copy)).unwrap();
    let server = site.start().await;
    say(&server, Some(&conversation)).await;
    end(server).await;

    let another = tempfile::tempdir().unwrap();
    let elsewhere = copy.copy(another.path()).await;
    std::fs::copy(mark_of(&copy), mark_of(&elsewhere)).unwrap();
    refused(&Site::scripted_on(elsewhere, &model)).await;
    // The copy replaces the original file.
    site.database.put_back(&copy).await;
    std::fs::copy(mark_of(&copy), mark_of(&site.database)).unwrap();
    refused(&site).await;

    // The server is killed during the acceptance, and the next start does not ask again.
    let accepts = site.argument("--accept-restore");
    let mut dies = accepts.spawn(&[("CAPSTAN_FAILPOINTS", "accepted=kill")]);
    assert!(!dies.ended(Duration::from_secs(60)).await.success());
    let site = accepts.without_arguments();
    let server = site.start().await;
    say(&server, Some(&conversation)).await;
    end(server).await;
    end(site.start().await).await;
}
