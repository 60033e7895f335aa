//! The time until another worker continues the runs of a killed one, at default settings.
//!
//! The full measurement: `CAPSTAN_NODE_KILLS=20 cargo nextest run -p capstan-it --no-capture dead_worker`.

use std::time::Duration;

use capstan::support::clock::{Clock as _, SystemClock};

use rstest::rstest;

use super::{plain, site, start_runs};
use support::measure::{percentile, size};
use support::model::ModelMock;
use support::{print_figure, wait};

/// Runs in the middle of an answer when a worker is killed.
const HELD: usize = 40;

/// Lease, sweep and claim: the model streams again within 13 seconds.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_runs_of_a_dead_worker_are_found_in_time(#[values(false, true)] pooled: bool) {
    let kills = size("CAPSTAN_NODE_KILLS", 1);
    let model = ModelMock::start().await;
    // A worker has fewer slots than there are held runs, so both workers hold some of them at the kill.
    let (site, _pooler) = site(&model, pooled).await;
    let site = site.env("CAPSTAN_WORKER__SLOTS", "30");
    let (mut one, mut two) = tokio::join!(site.start(), site.start());
    let tools: Vec<String> = plain(160);
    let mut delays = Vec::new();
    for kill in 0..kills {
        let mut runs = if kill == 0 { start_runs(&[&one, &two], tools.clone()).await } else { Vec::new() };
        let id = format!("held{kill}");
        let script = format!("[[id:{id}]][[text:2,0]][[hold]][[text:2,0]]");
        let held = start_runs(&[&two, &one], vec![script; HELD]).await;
        model.wait_for("all held runs", &id, |seen| seen.iter().filter(|one| one.sent.len() == 2).count() == HELD).await;
        // A run that the killed worker has begun, but not stored, would be started again instead of resumed.
        let begun = "SELECT CAST(count(DISTINCT run_id) AS text) FROM events WHERE kind = 'run.started'";
        let all = i64::try_from(160 + HELD * (kill + 1)).unwrap();
        wait::until("the stored beginning of all runs", Duration::from_secs(30), || async {
            (site.database.count(begun).await >= all).then_some(())
        })
        .await;
        let nodes = "SELECT CAST(count(DISTINCT node_id) AS text) FROM run_leases";
        assert_eq!(site.database.count(nodes).await, 2);
        let died_at = SystemClock.now().0;
        one.kill9().await;
        model.release(&id);
        runs.extend(held);
        for run in &runs {
            assert_eq!(two.finished(run).await["status"], "completed");
        }
        // The first delta of the next attempt.
        let spoken = format!(
            "SELECT CAST(min(d.at) AS text) FROM events d JOIN events r ON r.run_id = d.run_id AND r.conversation_id = d.conversation_id \
             AND r.attempt = d.attempt AND r.kind = 'run.resumed' WHERE d.kind = 'part.delta' AND d.at >= {died_at} GROUP BY d.run_id"
        );
        let spoken = site.database.rows(&spoken).await;
        assert!(spoken.len() >= 10, "{spoken:?}");
        delays.extend(spoken.iter().map(|row| row[0].as_deref().unwrap().parse::<i64>().unwrap() - died_at));
        // The remaining worker is killed next.
        one = std::mem::replace(&mut two, site.start().await);
    }
    let [half, most, all] = [50, 99, 100].map(|percent| percentile(&delays, percent));
    print_figure(&format!("{kills} kills, {} runs taken over: p50 {half} ms, p99 {most} ms, slowest {all} ms", delays.len()));
    assert!(most <= 13_000, "a killed worker's runs continued only after {most} ms (p99)");
    for index in 0..160 {
        assert_eq!(site.ledger.count("append", &format!("n{index}")), 1);
    }
    site.assert_sound(&model).await;
}
