//! One owner with thousands of queued runs does not delay another owner's run.

use std::time::{Duration, Instant};

use rstest::rstest;
use serde_json::json;

use crate::support::database::Kind;
use crate::support::model::ModelMock;
use crate::support::server::Site;

const QUEUED: i64 = 5_000;

/// Copies the only run there is, with its conversation, as one that nobody has begun, so and so often.
async fn flood(site: &Site) {
    let numbers = format!("WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {QUEUED})");
    for copy in [
        "INSERT INTO conversations (id, owner_id, title, status, created_at, updated_at)
         SELECT c.id || '_' || i, c.owner_id, 'flood', 'queued', c.created_at, c.updated_at FROM conversations c, n",
        "INSERT INTO conversation_heads (conversation_id, owner_id, last_seq)
         SELECT h.conversation_id || '_' || i, h.owner_id, h.last_seq FROM conversation_heads h, n",
        "INSERT INTO messages (id, conversation_id, owner_id, run_id, position, role, body, created_at)
         SELECT m.id || '_' || i, m.conversation_id || '_' || i, m.owner_id, m.run_id || '_' || i, m.position, m.role, m.body,
             m.created_at FROM messages m, n WHERE m.role = 'user'",
        "INSERT INTO runs (id, conversation_id, owner_id, status, active, claimable_at, claim_cause, profile, agent, agent_version,
             model, counters, usage, first_seq, created_at)
         SELECT r.id || '_' || i, r.conversation_id || '_' || i, r.owner_id, 'queued', true, r.created_at, 'first', r.profile,
             r.agent, r.agent_version, r.model, '{}', r.usage, r.first_seq, r.created_at FROM runs r, n",
    ] {
        site.database.rows(&format!("{numbers} {copy}")).await;
    }
}

/// D-12.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn another_owner_is_served_at_once(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let model = ModelMock::start().await;
    // Each run of the flood holds its slot for a while.
    let site = Site::scripted(kind, &model).await.env("CAPSTAN_WORKER__SLOTS", "4");
    let (ann, bob) = (site.key_of("ann").await, site.key_of("bob").await);
    let mut server = site.start().await;
    server.set_key(&ann);
    let run = server.start_run(&json!({"input": "[[id:flood]][[text:5,20]]"})).await;
    server.finished(run["id"].as_str().unwrap()).await;
    server.signal("TERM").await;
    server.ended(Duration::from_secs(20)).await;
    flood(&site).await;

    let mut server = site.start().await;
    server.set_key(&bob);
    let mut slowest = Duration::ZERO;
    for _ in 0..5 {
        let began = Instant::now();
        let run = server.start_run(&json!({"input": "[[id:bob]][[say:hello]]"})).await;
        assert_eq!(server.finished(run["id"].as_str().unwrap()).await["status"], "completed");
        slowest = slowest.max(began.elapsed());
    }
    let left = site.database.count("SELECT CAST(count(*) AS text) FROM runs WHERE status = 'queued'").await;
    assert!(left > QUEUED / 2, "the flood is over: {left} left");
    assert!(slowest < Duration::from_secs(5), "{slowest:?}");
}
