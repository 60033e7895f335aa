//! Many concurrent runs and streams: a hundred, or `CAPSTAN_CROWD_RUNS`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use reqwest::StatusCode;
use rstest::rstest;
use serde_json::json;

use support::database::Kind;
use support::measure::size;
use support::model::ModelMock;
use support::server::Site;
use support::sse::{SseStream, kinds, stored};
use support::{print_figure, wait};

/// W-09: all runs are under way at once: the model holds each one in the middle until all have arrived.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_streams_of_a_crowd_are_complete(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let runs = size("CAPSTAN_CROWD_RUNS", 100);
    let model = ModelMock::start().await;
    let site = Site::scripted(kind, &model).await.env("CAPSTAN_LOG__LEVEL", "info");
    // The model is silent until the last run arrives. The test causes this silence, so the idle timeout must not fire.
    let site = site.env("CAPSTAN_DATABASE__MAX_CONNECTIONS", "16").env("CAPSTAN_PROVIDERS__OPENAI__IDLE_MS", "300000");
    // A development build on a busy machine cannot renew so many leases in time, and no lease may expire here.
    let site = site.env("CAPSTAN_WORKER__LEASE_MS", "60000").env("CAPSTAN_WORKER__SELF_STOP_MS", "50000");
    // The machine cannot answer so many simultaneous requests within 1.5 s either. Another test covers the requests that
    // time out.
    let site = site.env("CAPSTAN_DATABASE__REQUEST_TIMEOUT_MS", "15000");
    let server = site.start().await;
    let body = json!({"input": "[[id:crowd]][[text:20,20]][[hold]][[text:20,20]]"});
    let busy = &AtomicUsize::new(0);
    let (server, body) = (&server, &body);
    let one = |number: usize| async move {
        // The client repeats a refused request with the same key.
        let answer = wait::until("the server to take the run", Duration::from_secs(180), || async {
            let request = server.post("/runs", body).header("accept", "text/event-stream");
            let answer = request.header("idempotency-key", format!("crowd-{number}")).send().await.unwrap();
            let is_taken = answer.status() != StatusCode::SERVICE_UNAVAILABLE;
            busy.fetch_add(usize::from(!is_taken), Ordering::Relaxed);
            is_taken.then_some(answer)
        });
        let mut stream = SseStream::new(answer.await);
        let mut frames = stream.until_kind("part.delta").await;
        frames.extend(stream.all().await);
        frames
    };
    let all = join_all((0..runs).map(one));
    let gate = async {
        wait::until("all runs to stand in the middle", Duration::from_secs(200), || async {
            (model.total() >= runs).then_some(())
        })
        .await;
        model.release("crowd");
    };
    let (streams, ()) = tokio::join!(all, gate);
    for frames in streams {
        assert_eq!(kinds(&frames).last().unwrap(), "stream.end");
        let frames = stored(&frames);
        assert_eq!(frames.last().unwrap().kind(), "run.completed");
        let text: String = frames
            .iter()
            .filter(|frame| frame.kind() == "part.delta")
            .map(|frame| frame.json()["data"]["delta"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(text.split_whitespace().count(), 40, "{text}");
        let ids: Vec<usize> = frames.iter().map(|frame| frame.id.as_ref().unwrap().parse().unwrap()).collect();
        assert!(ids.is_sorted_by(|one, next| one < next), "{ids:?}");
    }
    print_figure(&format!("{kind:?}: {} times a request was made again after a 503, of {runs}", busy.load(Ordering::Relaxed)));
    assert_eq!(model.total(), runs, "each model step made one request");
    site.assert_sound(&model).await;
}
