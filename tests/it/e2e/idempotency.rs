//! Idempotency keys: a repeated request has the effect of one.

use std::collections::HashSet;

use futures_util::future::join_all;
use rstest::rstest;
use serde_json::{Value, json};

use support::audit;
use support::database::Kind;
use support::server::Site;

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn fifty_equal_posts_make_one_run(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, site, server) = Site::start_scripted(kind).await;
    let body = json!({"input": "[[id:i]][[text:3,5]]"});
    let post = || async {
        let answer = server.post("/runs", &body).header("idempotency-key", "same").send().await.unwrap();
        let replayed = answer.headers().get("idempotent-replayed").is_some_and(|value| value == "true");
        (answer.status().as_u16(), replayed, answer.json::<Value>().await.unwrap())
    };
    let mut answers = join_all((0..50).map(|_| post())).await;
    // A request that races the unfinished first one may be told to retry. It does.
    for answer in &mut answers {
        while answer.0 == 409 {
            assert_eq!(answer.2["code"], "idempotency_in_progress");
            *answer = post().await;
        }
    }
    assert!(answers.iter().all(|answer| answer.0 == 202), "{answers:?}");
    assert_eq!(answers.iter().filter(|answer| !answer.1).count(), 1, "exactly one answer is not a replay");
    let bodies: HashSet<String> = answers.iter().map(|answer| answer.2.to_string()).collect();
    assert_eq!(bodies.len(), 1, "{bodies:?}");
    let run = answers[0].2["run"]["id"].as_str().unwrap().to_owned();
    assert_eq!(server.finished(&run).await["status"], "completed");
    assert_eq!(site.database.count("SELECT CAST(count(*) AS text) FROM runs").await, 1);
    assert_eq!(model.total(), 1);

    // Another body under the same key is refused. The same body under another key is another run.
    let other = server.post("/runs", &json!({"input": "other"})).header("idempotency-key", "same").send().await.unwrap();
    assert_eq!(other.status(), 422);
    let other = server.post("/runs", &body).header("idempotency-key", "different").send().await.unwrap();
    assert_eq!(other.status(), 202);
    let other: Value = other.json().await.unwrap();
    assert_ne!(other["run"]["id"].as_str(), Some(run.as_str()));
    server.finished(other["run"]["id"].as_str().unwrap()).await;
    audit::assert_sound(&site.database).await;
}
