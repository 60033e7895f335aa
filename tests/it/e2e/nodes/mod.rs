//! Several server processes on one database, reached directly or through a pooler in transaction mode.

mod deaf;
mod feeds;
mod kills;
mod rolling;

use std::collections::HashMap;
use std::time::Duration;

use futures_util::StreamExt as _;
use rstest::rstest;
use serde_json::json;

use support::audit;
use support::database::Database;
use support::model::ModelMock;
use support::pooler::Pooler;
use support::server::{Server, Site};
use support::wait;

/// Returns a site on an empty database of Postgres, which the first server migrates, and the pooler in front of it if there is to be
/// one.
async fn site(model: &ModelMock, pooled: bool) -> (Site, Option<Pooler>) {
    let site = Site::scripted_on(Database::empty_on_postgres().await, model);
    if !pooled {
        return (site, None);
    }
    let pooler = Pooler::start(&site.database, "").await;
    (pooler.between(site), Some(pooler))
}

async fn start_runs(servers: &[&Server], scripts: Vec<String>) -> Vec<String> {
    let starting = scripts.into_iter().enumerate().map(|(index, script)| async move {
        let run = servers[index % servers.len()].start_run(&json!({"input": script})).await;
        run["id"].as_str().unwrap().to_owned()
    });
    futures_util::stream::iter(starting).buffered(16).collect().await
}

fn plain(count: usize) -> Vec<String> {
    let script = |index| format!("[[id:n{index}]][[call:ledger__append {{\"text\":\"n{index}\"}}]][[next]][[text:5,10]]");
    (0..count).map(script).collect()
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn two_workers_do_each_run_once(#[values(false, true)] pooled: bool) {
    let model = ModelMock::start().await;
    let (site, _pooler) = site(&model, pooled).await;
    let site = site.env("CAPSTAN_WORKER__SLOTS", "20");
    let (one, two) = tokio::join!(site.start(), site.start());
    let runs = start_runs(&[&one, &two], plain(200)).await;
    for run in &runs {
        assert_eq!(one.finished(run).await["status"], "completed");
    }
    let mut per_text: HashMap<String, usize> = HashMap::new();
    for entry in site.ledger.entries() {
        *per_text.entry(entry.arguments["text"].to_string()).or_default() += 1;
    }
    assert_eq!((per_text.len(), per_text.values().max()), (200, Some(&1)));
    assert_eq!(model.total(), 400, "each model step made one request");
    let attempts = site.database.rows("SELECT DISTINCT CAST(attempt AS text) FROM runs").await;
    assert_eq!(attempts, [[Some("1".to_owned())]]);
    site.assert_sound(&model).await;
}

/// A client of one server follows a run that another server works on.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_may_be_read_where_the_run_is_not(#[values(false, true)] pooled: bool) {
    let model = ModelMock::start().await;
    let (site, _pooler) = site(&model, pooled).await;
    let worker = site.start_with(&[("CAPSTAN_SERVER__ROLE", "worker")]).await;
    let api = site.start_with(&[("CAPSTAN_SERVER__ROLE", "api")]).await;
    let mut stream = api.stream_run(&json!({"input": "[[id:far]][[text:3,0]][[hold]][[text:3,0]]"})).await;
    let begun = stream.until_kind("part.delta").await;
    model.release("far");
    let ended = stream.until_kind("run.completed").await;
    let run = begun[0].json()["run_id"].as_str().unwrap().to_owned();
    assert_eq!(begun.len() + ended.len(), api.run_events_json(&run).await.len());
    wait::within("the end", Duration::from_secs(10), stream.all()).await;
    drop(worker);
    audit::assert_sound(&site.database).await;
}

/// A pooler may also ignore startup parameters: without any error, their limits then hold for no session.
#[tokio::test(flavor = "multi_thread")]
async fn pooler_that_ignores_startup_parameters_is_noticed() {
    let model = ModelMock::start().await;
    let site = Site::scripted_on(Database::empty_on_postgres().await, &model);
    let pooler = Pooler::start(&site.database, "ignore_startup_parameters = extra_float_digits,options").await;
    let site = pooler.between(site);
    let server = site.start().await;
    assert!(server.log_text().contains("pooler"), "{}", server.log_text());
    let (good, report) = site.doctor().await;
    assert!(good && report.contains("through a pooler"), "{report}");
    let run = server.say(None, "[[id:a]][[say:yes]]").await;
    assert_eq!(run["status"], "completed");
}
