//! Several server processes on one database.

mod deaf;
mod kills;
mod rolling;

use std::collections::HashMap;
use std::time::Duration;

use futures_util::StreamExt as _;
use serde_json::json;

use crate::support::audit;
use crate::support::database::Kind;
use crate::support::model::ModelMock;
use crate::support::server::{Server, Site};
use crate::support::wait;

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

#[tokio::test(flavor = "multi_thread")]
async fn two_workers_do_each_run_once() {
    let model = ModelMock::start().await;
    let site = Site::scripted(Kind::Postgres, &model).await.env("CAPSTAN_WORKER__SLOTS", "20");
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
    model.assert_history_was_sendable();
    audit::assert_sound(&site.database).await;
}

/// A client of one server follows a run that another server works on.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_may_be_read_where_the_run_is_not() {
    let model = ModelMock::start().await;
    let site = Site::scripted(Kind::Postgres, &model).await;
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
