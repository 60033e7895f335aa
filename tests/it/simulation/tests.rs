//! Many seeds, one seed twice, and planted bugs.

use std::collections::{BTreeMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use capstan::domain::event::EventBody;
use rstest::rstest;

use super::world::{Verdict, play};
use support::model_store::Bug;
use support::print_figure;

/// Seeds of an ordinary test run.
const SEEDS: u64 = 400;

/// The number of seeds, from the first one on, within which a planted bug must be found.
const ENOUGH: u64 = 200;

#[expect(clippy::disallowed_methods, reason = "which seeds are played is a setting of the tests")]
fn text_setting(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn setting(name: &str) -> Option<u64> {
    let value = text_setting(name)?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is no number: {value:?}")))
}

/// Returns the violations of a seed, and how to play it again.
fn told(verdict: &Verdict) -> String {
    let Verdict { seed, wrong, .. } = verdict;
    format!(
        "seed {seed}:\n  {}\nplay it again: CAPSTAN_SIM_SEED={seed} cargo nextest run -p capstan-it --no-capture \
         --test simulation every_seed_holds",
        wrong.join("\n  ")
    )
}

/// `CAPSTAN_SIM_SEEDS=n` is the number of seeds, and `CAPSTAN_SIM_FROM=n` the first one. `CAPSTAN_SIM_SEED=n` plays a single
/// seed and prints its events. `CAPSTAN_SIM_HASHES=FILE` writes a line `SEED HASH` for the event logs of each seed: a change
/// that keeps behaviour yields the same file.
#[test]
fn every_seed_holds() {
    if let Some(seed) = setting("CAPSTAN_SIM_SEED") {
        let verdict = play(seed, None, true);
        assert!(verdict.wrong.is_empty(), "{}", told(&verdict));
        return;
    }
    let (from, asked) = (setting("CAPSTAN_SIM_FROM").unwrap_or(0), setting("CAPSTAN_SIM_SEEDS"));
    let until = from + asked.unwrap_or(SEEDS);
    if asked.is_none() {
        // The tests that run beside it mostly wait, and measure times.
        rustix::process::nice(19).unwrap();
    }
    let threads = if asked.is_some() { std::thread::available_parallelism().map_or(1, usize::from) } else { 1 };
    let (next, failed, began) = (AtomicU64::new(from), Mutex::new(Vec::new()), Instant::now());
    let (lasted, runs) = (AtomicU64::new(0), AtomicU64::new(0));
    let happened = Mutex::new(BTreeMap::new());
    let hashes = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::SeqCst);
                    if seed >= until || failed.lock().unwrap().len() >= 10 {
                        return;
                    }
                    let verdict = play(seed, None, false);
                    lasted.fetch_add(verdict.lasted.as_secs(), Ordering::SeqCst);
                    runs.fetch_add(verdict.runs as u64, Ordering::SeqCst);
                    hashes.lock().unwrap().insert(seed, verdict.event_logs);
                    for (what, times) in &verdict.happened {
                        *happened.lock().unwrap().entry(what.clone()).or_insert(0) += times;
                    }
                    if !verdict.wrong.is_empty() {
                        print_figure(&told(&verdict));
                        failed.lock().unwrap().push(told(&verdict));
                    }
                    let played = seed + 1 - from;
                    if asked.is_some() && played.is_multiple_of(500) {
                        print_figure(&format!("{played} seeds in {:?}", began.elapsed()));
                    }
                }
            });
        }
    });
    let (lasted, runs) = (Duration::from_secs(lasted.into_inner()), runs.into_inner());
    print_figure(&format!("{} seeds with {runs} runs and {lasted:?} of their time in {:?}", until - from, began.elapsed()));
    let happened = happened.into_inner().unwrap();
    print_figure(&format!("{happened:?}"));
    if let Some(file) = text_setting("CAPSTAN_SIM_HASHES") {
        let lines = hashes.into_inner().unwrap().into_iter().map(|(seed, hash)| format!("{seed} {hash:016x}\n"));
        std::fs::write(&file, lines.collect::<String>()).unwrap_or_else(|error| panic!("cannot write {file}: {error}"));
    }
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    if until - from >= SEEDS {
        // The worlds have neither tool reviews nor client tools.
        let kinds = EventBody::KINDS.iter().copied().filter(|kind| !["tool.quarantined", "tool.requested"].contains(kind));
        let must = kinds.chain([
            "poison",
            "interrupted",
            "tool_outcome_unknown",
            "provider_auth",
            "internal_error",
            "taken back",
            "said anew",
            "compacted",
            "answered once more",
            "called once more",
            "undone",
        ]);
        let never: Vec<_> = must.filter(|what| !happened.contains_key(*what)).collect();
        assert!(never.is_empty(), "these kinds of events never occur: {never:?}");
    }
}

/// Each play has its own world, so equal results cannot come from shared state of the process.
#[test]
fn a_seed_always_gives_the_same() {
    let mut sums = HashSet::new();
    for seed in 0..10 {
        let [first, second] = [(), ()].map(|()| play(seed, None, false));
        assert_eq!(first.notes, second.notes, "seed {seed}");
        assert_eq!(first.event_logs, second.event_logs, "seed {seed}");
        assert!(first.notes.0 > 100, "the seed has events");
        sums.insert(first.notes);
    }
    assert_eq!(sums.len(), 10, "other seeds have other events");
}

#[rstest]
#[case::fence_ignored(Bug::FenceIgnored, "but the right to write was that of", 0)]
#[case::fence_not_raised(Bug::FenceNotRaised, "", 0)]
#[case::orphan_kept(Bug::OrphanKept, "but the right to write was that of", 0)]
#[case::lease_revived(Bug::LeaseRevived, "was renewed for", 122)]
#[case::terminal_overwritten(Bug::TerminalOverwritten, "and is Cancelled", 0)]
#[case::unheard_end(Bug::UnheardEnd, "no model has heard", 72)]
#[case::shown_before_stored(Bug::ShownBeforeStored, "but stored is", 0)]
#[case::taken_out_read(Bug::TakenOutRead, "was taken out of its conversation", 0)]
#[case::cut_call_run(Bug::CutCallRun, "arguments that no model has given to the end", 0)]
#[case::lag_skipped(Bug::LagSkipped, "is not shown", 0)]
fn a_planted_bug_is_found(#[case] bug: Bug, #[case] symptom: &str, #[case] from: u64) {
    // A rare bug needs many seeds, so the search begins at the first one that is known to find it.
    let found = (from..from + ENOUGH).find(|seed| play(*seed, Some(bug), false).wrong.iter().any(|wrong| wrong.contains(symptom)));
    let seed = found.unwrap_or_else(|| panic!("{bug:?} was not found in {ENOUGH} seeds from {from} on"));
    print_figure(&format!("{bug:?} is found by seed {seed}"));
}
