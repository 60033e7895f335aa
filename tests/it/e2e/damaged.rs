//! Rows and files that cannot be read.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::str::FromStr as _;
use std::time::Duration;

use reqwest::StatusCode;
use rstest::rstest;
use serde_json::json;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{Connection as _, Row as _};

use support::audit;
use support::database::Kind;
use support::server::Site;
use support::wait::until;

/// A message that joined a run cannot be read: only that run ends with an error. Other owners' requests are not affected.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_cannot_be_read_costs_its_run_only(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, site, server) = Site::start_scripted(kind).await;
    let one = server.start_run(&json!({"input": "[[id:one]][[text:2,0]][[hold]]"})).await;
    let two = server.start_run(&json!({"input": "[[id:two]][[text:2,0]][[hold]]"})).await;
    for id in ["one", "two"] {
        model.wait_for("two tokens", id, |seen| seen.first().is_some_and(|first| first.sent.len() == 2)).await;
    }
    let conversation = one["conversation_id"].as_str().unwrap();
    server.send(conversation, "[[id:joined]]", "steer").await;
    let joined = format!("conversation_id = '{conversation}' AND role = 'user'");
    let newest = format!("position = (SELECT max(position) FROM messages WHERE {joined})");
    site.database.rows(&format!("UPDATE messages SET body = '{{' WHERE {joined} AND {newest}")).await;
    let two = two["id"].as_str().unwrap();
    server.post_json(&format!("/runs/{two}/cancel"), &json!({})).await;
    assert_eq!(server.finished(two).await["status"], "cancelled");
    let failed = server.finished(one["id"].as_str().unwrap()).await;
    assert_eq!((&failed["status"], &failed["error"]["code"]), (&json!("failed"), &json!("internal_error")), "{failed}");
    assert_eq!(site.database.count("SELECT CAST(count(*) AS text) FROM run_leases").await, 0);
}

/// A queue cause that this version does not know does not block the run.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_was_queued_for_an_unknown_cause_is_carried_out(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, site, server) = Site::start_scripted(kind).await;
    let one = server.start_run(&json!({"input": "[[id:one]][[text:2,0]][[hold]]"})).await;
    model.wait_for("two tokens", "one", |seen| seen.first().is_some_and(|first| first.sent.len() == 2)).await;
    let second = server.send(one["conversation_id"].as_str().unwrap(), "[[id:two]][[text:2,0]]", "queue").await;
    let second = second["run"]["id"].as_str().unwrap();
    site.database.rows(&format!("UPDATE runs SET claim_cause = 'of a later version' WHERE id = '{second}'")).await;
    model.release("one");
    assert_eq!(server.finished(second).await["status"], "completed");
}

/// A run whose rows cannot be read fails: it must not hold a slot or be retried forever.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_rows_cannot_be_read_fails(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, site, server) = Site::start_scripted(kind).await;
    let run = server.start_run(&json!({"input": "[[id:one]][[text:2,0]][[hold]]"})).await;
    let conversation = run["conversation_id"].as_str().unwrap().to_owned();
    model.wait_for("two tokens", "one", |seen| seen.first().is_some_and(|first| first.sent.len() == 2)).await;
    let second = server.send(&conversation, "[[id:two]][[text:2,0]]", "queue").await;
    site.database.rows("UPDATE messages SET body = '{' WHERE role = 'user'").await;
    model.release("one");
    let failed = server.finished(second["run"]["id"].as_str().unwrap()).await;
    assert_eq!((&failed["status"], &failed["error"]["code"]), (&json!("failed"), &json!("internal_error")), "{failed}");
    assert!(model.exchanges("two").is_empty());
    assert_eq!(site.database.count("SELECT CAST(count(*) AS text) FROM run_leases").await, 0);
    let other = server.start_run(&json!({"input": "[[id:three]][[text:2,0]]"})).await;
    assert_eq!(server.finished(other["id"].as_str().unwrap()).await["status"], "completed");
}

/// Returns the offset and the size of the first page of the messages table in the file of a stopped server.
async fn page_of_messages(url: &str) -> (u64, usize) {
    let mut connection = SqliteConnection::connect_with(&SqliteConnectOptions::from_str(url).unwrap()).await.unwrap();
    // Copies the killed server's writes from the WAL into the file.
    sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").execute(&mut connection).await.unwrap();
    let read = "SELECT rootpage, (SELECT page_size FROM pragma_page_size) FROM sqlite_schema WHERE name = 'messages'";
    let row = sqlx::query(read).fetch_one(&mut connection).await.unwrap();
    let (page, size): (i64, i64) = (row.get(0), row.get(1));
    connection.close().await.unwrap();
    (u64::try_from((page - 1) * size).unwrap(), usize::try_from(size).unwrap())
}

/// D-09: a page of the file is damaged. No run fails for it, the server reports that it cannot serve, and work goes on after
/// the repair.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_page_fails_no_run() {
    let (model, site, mut server) = Site::start_scripted(Kind::Sqlite).await;
    let run = server.start_run(&json!({"input": "[[id:torn]][[text:2,0]][[hold]][[text:2,0]]"})).await;
    let run = run["id"].as_str().unwrap();
    model.wait_for("two tokens", "torn", |seen| seen.first().is_some_and(|first| first.sent.len() == 2)).await;
    server.kill9().await;
    let (at, size) = page_of_messages(&site.database.url).await;
    let file = File::options().read(true).write(true).open(site.database.url.trim_start_matches("sqlite:")).unwrap();
    let mut whole = vec![0; size];
    file.read_exact_at(&mut whole, at).unwrap();
    file.write_all_at(&vec![0xff; size], at).unwrap();
    file.sync_all().unwrap();

    // The server may notice the damage before it is ready.
    let mut server = site.spawn(&[]);
    let limit = Duration::from_secs(60);
    until("the server not to be ready", limit, || async {
        let answer = server.get("//readyz").send().await.ok()?;
        (answer.status() == StatusCode::SERVICE_UNAVAILABLE).then_some(())
    })
    .await;
    assert_eq!(server.get("//healthz").send().await.unwrap().status(), StatusCode::OK);
    let refused = server.post("/runs", &json!({"input": "in vain"})).send().await.unwrap();
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    // The run is attempted more often than a run whose own rows cannot be read.
    until("the run to be tried again and again", limit, || async {
        (server.log_text().matches("run could not be loaded").count() > 6).then_some(())
    })
    .await;
    assert!(server.log_text().contains("the database file is damaged: stop the server and put a backup in its place"));
    let unfinished = "SELECT CAST(count(*) AS text) FROM runs WHERE finished_at IS NULL";
    assert_eq!(site.database.count(unfinished).await, 1);
    server.kill9().await;

    file.write_all_at(&whole, at).unwrap();
    file.sync_all().unwrap();
    let server = site.start().await;
    assert_eq!(server.get("//readyz").send().await.unwrap().status(), StatusCode::OK);
    model.release("torn");
    assert_eq!(server.finished(run).await["status"], "completed");
    audit::assert_sound(&site.database).await;
}

/// The same for a file that is no database.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_no_database_keeps_the_server_from_starting() {
    let (_model, site, mut server) = Site::start_scripted(Kind::Sqlite).await;
    server.signal("TERM").await;
    server.ended(Duration::from_secs(20)).await;
    let file = File::options().write(true).open(site.database.url.trim_start_matches("sqlite:")).unwrap();
    file.write_all_at(&[0xff; 100], 0).unwrap();
    let Err(refused) = site.try_start(&[]).await else { panic!("it has started") };
    let log = refused.log_text();
    assert!(log.contains("the database file is damaged") && log.contains("put a backup in its place"), "{log}");
}
