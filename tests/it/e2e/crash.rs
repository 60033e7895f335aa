//! Poison: a run that kills each worker that claims it. The crash matrix tests the cost of a kill at each point.

use std::time::Duration;

use rstest::rstest;
use serde_json::json;

use support::audit;
use support::database::Kind;
use support::server::Site;

/// D-11.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_kills_its_worker_is_given_up(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, site, mut server) = Site::start_with_failpoint(kind, "C06=kill@1").await;
    let run = server.start_run(&json!({"input": "[[id:poison]][[text:1,0]]"})).await;
    let run = run["id"].as_str().unwrap();
    server.ended(Duration::from_secs(10)).await;
    for _ in 0..2 {
        // The server claims the run at once, so it may be killed before it is ready.
        let mut server = site.spawn(&[("CAPSTAN_FAILPOINTS", "C06=kill@1")]);
        server.ended(Duration::from_secs(30)).await;
    }
    let server = site.start().await;
    let ended = server.finished(run).await;
    assert_eq!((&ended["status"], &ended["error"]["code"]), (&json!("failed"), &json!("poison")), "{ended}");
    assert_eq!(model.total(), 3);
    // The conversation stays usable.
    let conversation = ended["conversation_id"].as_str().unwrap();
    let next = server.send(conversation, "[[id:next]][[text:2,0]]", "queue").await;
    assert_eq!(server.finished(next["run"]["id"].as_str().unwrap()).await["status"], "completed");
    site.assert_sound(&model).await;
}

/// D-11, G14. All runs of a killed worker get a crash count, and only the guilty run is poisoned.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn run_that_kills_its_worker_fails_alone(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    const BYSTANDERS: usize = 5;
    let (model, site, mut server) = Site::serve(async |model| Site::scripted(kind, model).await.short_leases()).await;
    let mut bystanders = Vec::new();
    for index in 0..BYSTANDERS {
        let input = format!("[[id:bystander-{index}]][[text:40,50]]");
        bystanders.push(server.start_run(&json!({ "input": input })).await["id"].as_str().unwrap().to_owned());
    }
    let guilty = server.start_run(&json!({"input": "[[id:guilty]][[text:400,50]]"})).await["id"].as_str().unwrap().to_owned();
    for death in 1..=3 {
        if death < 3 {
            for index in 0..BYSTANDERS {
                model.wait_for("a bystander", &format!("bystander-{index}"), |asked| asked.len() >= death).await;
            }
        }
        model.wait_for("the guilty one", "guilty", |asked| asked.len() >= death).await;
        server.kill9().await;
        server = site.start().await;
    }
    let ended = server.finished(&guilty).await;
    assert_eq!((&ended["status"], &ended["error"]["code"]), (&json!("failed"), &json!("poison")), "{ended}");
    for run in &bystanders {
        let ended = server.finished(run).await;
        assert_eq!(ended["status"], "completed", "{ended}");
    }
    // At least three attempts, one for each kill. A lease lost on a busy machine counts no crash but costs a request.
    assert!(model.exchanges("guilty").len() >= 3);
    audit::assert_sound(&site.database).await;
}

/// D-11. A run that kills its worker before the first decision is poisoned, too. The worker that ends it does not load it.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn run_that_kills_workers_while_loading_is_poison(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    const DEADLY: [(&str, &str); 1] = [("CAPSTAN_FAILPOINTS", "C04-loaded=kill@1")];
    let (model, site, mut server) = Site::serve(async |model| Site::scripted(kind, model).await.short_leases()).await;
    let run = server.start_run(&json!({"input": "[[id:heavy]][[text:400,50]]"})).await["id"].as_str().unwrap().to_owned();
    model.wait_for("the run", "heavy", |asked| asked.len() == 1).await;
    server.kill9().await;
    for _ in 0..2 {
        let mut server = site.spawn(&DEADLY);
        server.ended(Duration::from_secs(30)).await;
    }
    let server = site.start_with(&DEADLY).await;
    let ended = server.finished(&run).await;
    assert_eq!((&ended["status"], &ended["error"]["code"]), (&json!("failed"), &json!("poison")), "{ended}");
    assert_eq!((&ended["attempt"], model.total()), (&json!(4), 1));
    let explained = server.get_json(&format!("/runs/{run}/explain")).await;
    assert_eq!((&explained["crashes"], &ended["error"]["retryable"]), (&json!(3), &json!(true)), "{explained}");
    audit::assert_sound(&site.database).await;
}
