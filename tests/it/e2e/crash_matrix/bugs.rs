//! Planted bugs, one at a time, each with the smallest case of the matrix that must find it.
//!
//! `CAPSTAN_PLANTED=NAME` plants one in a server that is built with failpoints. A case that passes with its bug could not fail
//! at all. The same cases without bugs belong to the quick form, or are played here first.

use std::time::Duration;

use rstest::rstest;
use tokio::task::JoinSet;

use super::case::{Waking, Way};
use super::kill_points::POINTS;
use super::{case, reason};
use support::database::Kind;
use support::wait;

/// The time limit of a case with a bug.
const BUG_LIMIT: Duration = Duration::from_secs(60);

const BOTH: [Kind; 2] = [Kind::Sqlite, Kind::Postgres];

/// The bugs: a write without its fence, or only a tool result without it; a repeated call of unknown outcome. Then an
/// idempotency key that is not stored with its message, and a truncated call that runs. Last, events that a lagging client
/// never gets.
/// Events that are written after the end of a run are in no stream of it, only in the pages of the log. The first two bugs need
/// a second process, which only Postgres has.
#[rstest]
#[case::any_write("fence-ignored", "C13-outgoing", Way::Stop, &[Kind::Postgres], "and as pages do")]
#[case::orphan_result("orphan-kept", "C13-outgoing", Way::Stop, &[Kind::Postgres], "and as pages do")]
#[case::unsafe_call("unsafe-rerun", "C12", Way::Kill, &BOTH, r#"right: "unknown""#)]
#[case::no_key("key-dropped", "C02", Way::Kill, &BOTH, "one run by the key")]
#[case::cut_call("cut-call-run", "C19-cut", Way::Kill, &BOTH, r#""cut""#)]
#[case::lag("lag-skipped", "C23", Way::Kill, &BOTH, "what the client has got, and the log")]
#[tokio::test(flavor = "multi_thread")]
async fn a_planted_bug_is_found(
    #[case] bug: &'static str,
    #[case] point: &str,
    #[case] way: Way,
    #[case] kinds: &[Kind],
    #[case] expected: &str,
) {
    let point = POINTS.iter().find(|known| known.name == point).unwrap();
    let play = async |bug, kind| {
        let play = case(point, way, kind, 0, None).with_bug(bug, Waking::AtEnd).play();
        let mut playing = JoinSet::new();
        playing.spawn(wait::within("the case", BUG_LIMIT, play));
        playing.join_next().await.unwrap().err().map(reason)
    };
    for kind in kinds {
        if way == Way::Stop {
            // In the quick form, the stopped process resumes earlier.
            assert_eq!(play(None, *kind).await, None);
        }
        let found = play(Some(bug), *kind).await.unwrap_or_else(|| panic!("{bug} was not found on {kind:?}"));
        assert!(found.contains(expected), "another check found {bug} on {kind:?}: {found}");
    }
}
