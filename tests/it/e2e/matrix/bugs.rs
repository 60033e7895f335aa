//! Bugs that are planted in the server, one at a time, each with the smallest case that must find it.
//!
//! `CAPSTAN_PLANTED=NAME` plants one in a server that is built with failpoints. A case that holds in spite of its bug could not
//! fail at all. The cases themselves, without the bugs, are those of the matrix, or are played here first.

use std::time::Duration;

use rstest::rstest;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::case::{Waking, Way};
use super::points::POINTS;
use super::{case, reason};
use crate::support::client::Client;
use crate::support::database::Kind;
use crate::support::model::ModelMock;
use crate::support::server::Site;
use crate::support::sse::stored;
use crate::support::wait;

/// How long a case may take in which something is wrong.
const BUG_LIMIT: Duration = Duration::from_secs(60);

/// What a case says, or `None` if it holds.
async fn finding(play: impl Future<Output = ()> + Send + 'static) -> Option<String> {
    let mut playing = JoinSet::new();
    playing.spawn(wait::within("the case", BUG_LIMIT, play));
    playing.join_next().await.unwrap().err().map(reason)
}

/// Of a write that nobody tested by its fence, or only not the outcome of a tool; of a call that is made again though nobody may
/// know whether it was; of a key that is not written with its message. What is written after the end of a run is in no stream of
/// it, only in the pages of the log.
#[rstest]
#[case::any_write("fence-ignored", "C13-outgoing", Way::Stop, Waking::AtEnd, "and as pages do")]
#[case::orphan_result("orphan-kept", "C13-outgoing", Way::Stop, Waking::AtEnd, "and as pages do")]
#[case::unsafe_call("unsafe-rerun", "C12", Way::Kill, Waking::AtEnd, r#"right: "unknown""#)]
#[case::no_key("key-dropped", "C02", Way::Kill, Waking::AtEnd, "one run by the key")]
#[tokio::test(flavor = "multi_thread")]
async fn a_planted_bug_is_found_on_postgres(
    #[case] bug: &'static str,
    #[case] point: &str,
    #[case] way: Way,
    #[case] waking: Waking,
    #[case] expected: &str,
) {
    let point = POINTS.iter().find(|known| known.name == point).unwrap();
    let play = async move {
        case(point, way, Kind::Postgres, 0, None).with_bug(bug, waking).play().await;
    };
    let found = finding(play).await.unwrap_or_else(|| panic!("{bug} was not found"));
    assert!(found.contains(expected), "{bug} was found by something else: {found}");
}

/// A model's answer that ends within its calls is no answer.
async fn cut_call(bug: Option<&'static str>) {
    let model = ModelMock::start().await;
    let site = site(&model, bug).await.env("CAPSTAN_AGENT__LLM_RETRY__DELAYS_MS", "[10]");
    let server = site.start().await;
    let run = server.start_run(&json!({"input": r#"[[id:cut]][[call:ledger__append {"text":"cut"}]][[end]]"#})).await;
    let ended = server.finished(run["id"].as_str().unwrap()).await;
    assert_eq!(site.ledger.count("append", "cut"), 0, "a call that was cut was made");
    assert_eq!((&ended["status"], &ended["error"]["code"]), (&json!("failed"), &json!("provider_incomplete_stream")), "{ended}");
}

/// A client whose queue holds one event reads the rest from the store.
async fn lagging(bug: Option<&'static str>) {
    let model = ModelMock::start().await;
    let site = site(&model, bug).await.env("CAPSTAN_LIMITS__STREAM_BUFFER_EVENTS", "1");
    let server = site.start().await;
    let address = watch::Sender::new(server.url.clone());
    let body = json!({"input": r#"[[id:lag]][[text:20,1]][[call:ledger__append {"text":"lag"}]][[next]][[text:20,1]]"#});
    let following = Client::new(address.subscribe(), "lag", body).follow();
    let followed = wait::within("the client to have everything", Duration::from_secs(15), following).await;
    let run = followed.frames[0].json()["run_id"].as_str().unwrap().to_owned();
    let log = stored(&server.run_events(&run).await.all().await);
    assert_eq!(followed.frames, log, "what the client has got, and the log");
}

async fn site(model: &ModelMock, bug: Option<&'static str>) -> Site {
    let site = Site::scripted(Kind::Sqlite, model).await;
    match bug {
        Some(bug) => site.env("CAPSTAN_PLANTED", bug),
        None => site,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_call_that_is_made_is_found() {
    assert_eq!(finding(cut_call(None)).await, None);
    let found = finding(cut_call(Some("cut-call-run"))).await.unwrap_or_default();
    assert!(found.contains("a call that was cut was made"), "{found}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_lagging_client_misses_is_found() {
    assert_eq!(finding(lagging(None)).await, None);
    let found = finding(lagging(Some("lag-skipped"))).await.unwrap_or_default();
    assert!(found.contains("the client to have everything") || found.contains("what the client has got"), "{found}");
}
