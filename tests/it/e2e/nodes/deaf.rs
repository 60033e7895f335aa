//! Servers that get no notifications, as behind a pooler in transaction mode: they poll.

use std::time::Duration;

use capstan::support::clock::{Clock as _, SystemClock};
use serde_json::json;
use tokio::task::JoinSet;

use support::audit;
use support::database::Kind;
use support::link::Link;
use support::measure::{percentile, size};
use support::model::ModelMock;
use support::server::Site;
use support::sse::Next;
use support::{print_figure, wait};

/// W-14, D-14: a client of one server follows runs of another one. The full measurement: `CAPSTAN_POLLED_RUNS=100`.
#[tokio::test(flavor = "multi_thread")]
async fn streams_are_carried_by_polling_alone() {
    const USUAL: usize = 20;
    let runs = size("CAPSTAN_POLLED_RUNS", USUAL);
    let model = ModelMock::start().await;
    let site = Site::scripted(Kind::Postgres, &model).await.env("CAPSTAN_LOG__LEVEL", "info");
    let link = Link::without_notifications(site.database.server()).await;
    let url = site.database.url_through(link.address);
    let _worker = site.start_with(&[("CAPSTAN_SERVER__ROLE", "worker"), ("DATABASE_URL", &url)]).await;
    let api = site.start_with(&[("CAPSTAN_SERVER__ROLE", "api"), ("DATABASE_URL", &url)]).await;
    let mut readers = JoinSet::new();
    for _ in 0..runs {
        let mut stream = api.stream_run(&json!({ "input": "[[id:far]][[text:100,50]]" })).await;
        readers.spawn(async move {
            let mut delays = Vec::new();
            while let Next::Frame(frame) = stream.next().await {
                if frame.id.is_some() && frame.kind() != "run.queued" {
                    let at: jiff::Timestamp = frame.json()["at"].as_str().unwrap().parse().unwrap();
                    delays.push(SystemClock.now().0 - at.as_millisecond());
                }
            }
            delays
        });
    }
    let delays = wait::within("the ends", Duration::from_secs(60), readers.join_all()).await.concat();
    let [half, most] = [50, 99].map(|percent| percentile(&delays, percent));
    print_figure(&format!("{} events by polling alone: p50 {half} ms, p99 {most} ms after they were made", delays.len()));
    wait::until("notifications that were kept back", Duration::from_secs(20), || async { (link.kept_back() > 0).then_some(()) })
        .await;
    assert!(delays.len() > runs * 50, "{} events", delays.len());
    // In the suite, other tests share the machine.
    assert!(most <= if runs == USUAL { 1_000 } else { 500 }, "p99 {most} ms");
    audit::assert_sound(&site.database).await;
}
