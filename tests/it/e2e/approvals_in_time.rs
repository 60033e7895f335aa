//! An approval that stays open for a week and through restarts.

use std::time::Duration;

use reqwest::StatusCode;
use rstest::rstest;
use serde_json::{Value, json};

use super::approvals::{INPUT, site, waiting, waits};
use support::audit;
use support::database::{Database, Kind};
use support::server::Site;

const HOUR_MS: i64 = 3_600_000;

/// Moves all stored times back while no server runs.
async fn passes(database: &Database, ms: i64) {
    for sql in [
        format!(
            "UPDATE input_requests SET created_at = created_at - {ms}, expires_at = expires_at - {ms} RETURNING CAST(expires_at AS text)"
        ),
        format!(
            "UPDATE runs SET created_at = created_at - {ms}, started_at = started_at - {ms}, claimable_at = claimable_at - {ms}
             RETURNING id"
        ),
    ] {
        assert_eq!(database.rows(&sql).await.len(), 1, "{sql}");
    }
}

#[rstest]
#[case::answered_in_the_last_hour(7 * 24 - 1, true)]
#[case::after_a_week(7 * 24 + 1, false)]
#[tokio::test(flavor = "multi_thread")]
async fn approval_outlives_restarts_and_a_week(
    #[values(Kind::Sqlite, Kind::Postgres)] kind: Kind,
    #[case] hours: i64,
    #[case] in_time: bool,
) {
    let (model, site, mut server) = Site::serve(async |model| site(kind, model).await).await;
    let (run, path) = waiting(&server, INPUT).await;
    let asked = server.get_json(&path).await;
    server.signal("TERM").await;
    server.exit().await;

    server = site.start().await;
    waits(&server, &run).await;
    assert_eq!(server.get_json(&path).await, asked, "the approval is unchanged");

    // Three restarts over most of a week.
    for third in [hours / 3, hours / 3, hours - 2 * (hours / 3)] {
        server.kill9().await;
        passes(&site.database, third * HOUR_MS).await;
        server = site.start().await;
    }
    let allow = json!({"decision": "allow", "arguments_hash": asked["arguments_hash"]});
    let answered = match in_time {
        true => {
            waits(&server, &run).await;
            server.post_json(&path, &allow).await
        }
        false => {
            server.finished(&run).await;
            server.post_json(&path, &allow).await
        }
    };
    let ended = server.finished(&run).await;
    assert_eq!(ended["status"], "completed", "{ended}");
    let (status, count) = if in_time { (StatusCode::OK, 1) } else { (StatusCode::CONFLICT, 0) };
    assert_eq!((answered.0, site.ledger.count("append", "one")), (status, count), "{}", answered.1);
    let shown = server.get_json(&path).await;
    assert_eq!(shown["status"], if in_time { "allowed" } else { "expired" }, "{shown}");
    let late = server.post_json(&path, &allow).await;
    let why = late.1["detail"].as_str().unwrap();
    assert_eq!(late.0, StatusCode::CONFLICT);
    assert!(why.contains(if in_time { "it was answered" } else { "it has expired" }), "{why}");
    let messages: Value = server.messages(ended["conversation_id"].as_str().unwrap()).await.into();
    assert_eq!(messages.to_string().contains("did not arrive in time"), !in_time, "{messages:#}");
    model.assert_history_was_sendable();
    server.signal("TERM").await;
    tokio::time::timeout(Duration::from_secs(30), server.exit()).await.unwrap();
    audit::assert_sound(&site.database).await;
}
