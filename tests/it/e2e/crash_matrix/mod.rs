//! The process is killed, stopped, panics or loses its database at each boundary between two stored steps. The run still ends
//! correctly, except for outcomes that are unknown.
//!
//! One generator makes the cases: point, way, store and seed. The quick form kills at each point on each store, and disturbs in
//! another way on one of them. The full form is `make crash-matrix`, where `CAPSTAN_MATRIX_SEEDS` is the number of seeds for each
//! point and way. A combination that is never reached fails either form, see [`combination`].
//! The other half kills at random instants, `CAPSTAN_MATRIX_KILLS` times on each store.
//! `CAPSTAN_MATRIX_ONLY` plays only the cases whose name contains it, as the summary prints it.

mod bugs;
mod case;
mod checks;
mod kill_points;
mod kills;
mod rotation;
mod turn;

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use case::{Case, Way};
use kill_points::{Often, POINTS, Point, TRIED_ELSEWHERE, WITHOUT_POINT};
use support::chance::Chance;
use support::database::Kind;
use support::repository;
use support::{print_figure, setting, wait};

/// The time limit of a case.
const CASE_LIMIT: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread")]
async fn every_point_on_sqlite() {
    play(Kind::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_point_on_postgres() {
    play(Kind::Postgres).await;
}

#[test]
fn every_boundary_is_tried_or_has_its_reason() {
    let tried: HashSet<&str> = POINTS.iter().map(|point| point.failpoint).collect();
    let mut in_code = HashSet::new();
    for file in repository::files("src", "rs") {
        let text = repository::read(&file);
        let found = text.split("failpoint::hit(").skip(1).flat_map(|rest| {
            // The code may choose between several names by a condition.
            let arguments = rest.split(')').next().unwrap_or_default().to_owned();
            arguments.split('"').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>()
        });
        in_code.extend(found);
    }
    let in_code: HashSet<&str> = in_code.iter().map(String::as_str).collect();
    let tried: HashSet<&str> = tried.into_iter().chain(TRIED_ELSEWHERE.iter().map(|(name, _)| *name)).collect();
    assert_eq!(tried, in_code, "the failpoints of the table and of the code");
    for row in 1..=32 {
        let row = format!("C{row:02}");
        let has_point = POINTS.iter().any(|point| point.name.split('-').next() == Some(&row));
        let has_reason = WITHOUT_POINT.iter().any(|(name, why)| *name == row && !why.is_empty());
        assert!(has_point != has_reason, "{row} must have either a point or a reason");
    }
}

/// Returns the cases of a store.
fn cases(kind: Kind) -> Vec<Case> {
    let seeds: Option<u64> = setting("CAPSTAN_MATRIX_SEEDS").map(|text| text.parse().unwrap());
    let mut cases = Vec::new();
    for (row, point) in POINTS.iter().enumerate() {
        match seeds {
            None => {
                cases.push(case(point, Way::Kill, kind, 0, None));
                cases.extend(point.also.iter().map(|at| case(point, Way::Kill, kind, 0, Some(*at))));
                // Another way on one of the stores, so that each way comes to a third of the points, on both stores.
                let others = [Way::Stop, Way::Panic, Way::Cut];
                let store = if (row / others.len()).is_multiple_of(2) { Kind::Sqlite } else { Kind::Postgres };
                if kind == store {
                    cases.push(case(point, others[row % others.len()], kind, 0, None));
                }
            }
            Some(seeds) => {
                for seed in 0..seeds {
                    cases.extend(Way::ALL.map(|way| case(point, way, kind, seed, None)));
                }
            }
        }
    }
    let only = setting("CAPSTAN_MATRIX_ONLY").unwrap_or_default();
    cases.retain(|case| case.name().contains(&only));
    cases
}

fn case(point: &'static Point, way: Way, kind: Kind, seed: u64, at: Option<usize>) -> Case {
    let salt = point
        .name
        .bytes()
        .chain(format!("{way:?}{kind:?}").bytes())
        .fold(0_u64, |sum, byte| sum * 31 % 1_000_003 + u64::from(byte));
    Case::new(point, way, kind, seed, at, Chance::new(seed * 1_000_003 + salt))
}

/// The number of cases of a combination that cannot all miss their point by chance. The longest run so far had no such miss in
/// 4,800.
const ENOUGH: usize = 10;

/// How often the cases of a combination were played, and how often they reached their point.
#[derive(Default)]
struct Tally {
    played: usize,
    reached: usize,
    /// Whether one of the cases is the same each time.
    is_certain: bool,
}

impl Tally {
    fn add(&mut self, case: &Case) {
        self.played += 1;
        self.is_certain |= case.seed == 0 && case.point.often != Often::Siblings;
    }

    /// Returns whether the misses cannot be chance.
    fn is_missing(&self) -> bool {
        self.reached == 0 && (self.is_certain || self.played >= ENOUGH)
    }
}

/// Returns the combination that must be reached at least once: a point and a way, in the quick form also the pass. A count by
/// point alone would hide a way that never works.
///
/// A way has no effect before its point, so it cannot be the cause of a miss. The script of a seed can: when texts or results
/// coincide, the run reaches a point less often than expected. Each seed of the full form draws its script and its pass anew,
/// and of [`ENOUGH`] seeds at least one must get there.
/// Seed 0 is the same each time. Its pass is the first one, or one in the table that its run certainly reaches. So it counts
/// alone, and the quick form has no other seed. Only the timing of two results is not fixed by the script. A few other seeds
/// that `CAPSTAN_MATRIX_ONLY` selects need only reach each of their points in one way.
fn combination(case: &Case) -> String {
    match setting("CAPSTAN_MATRIX_SEEDS") {
        None => format!("{}@{} {:?}", case.point.name, case.at, case.way),
        Some(_) => format!("{} {:?}", case.point.name, case.way),
    }
}

/// Plays the cases of a store, a few at a time. Fails if a check fails, or if a point or [`combination`] was never reached.
async fn play(kind: Kind) {
    let cases = cases(kind);
    let (count, began) = (cases.len(), Instant::now());
    let mut reached: BTreeMap<&str, usize> = cases.iter().map(|case| (case.point.name, 0)).collect();
    let mut tallies: BTreeMap<String, Tally> = BTreeMap::new();
    for case in &cases {
        tallies.entry(combination(case)).or_default().add(case);
    }
    let mut violations = Vec::new();
    let at_a_time = setting("CAPSTAN_MATRIX_JOBS").map_or(4, |text| text.parse().unwrap());
    let mut waiting = cases.into_iter();
    let mut playing = JoinSet::new();
    let mut under_way = BTreeMap::new();
    let mut done = 0;
    loop {
        while playing.len() < at_a_time {
            let Some(case) = waiting.next() else { break };
            let (name, point, of, case_began) = (case.name(), case.point.name, combination(&case), Instant::now());
            let id = playing.spawn(async move { wait::within("the case", CASE_LIMIT, case.play()).await }).id();
            under_way.insert(id.to_string(), (name, point, of, case_began));
        }
        let Some(ended) = playing.join_next_with_id().await else { break };
        done += 1;
        let id = ended.as_ref().map_or_else(tokio::task::JoinError::id, |(id, _)| *id);
        let (name, point, of, case_began) = under_way.remove(&id.to_string()).unwrap();
        let verdict = match ended {
            Ok((_, true)) => {
                *reached.get_mut(point).unwrap() += 1;
                tallies.get_mut(&of).unwrap().reached += 1;
                "ok".to_owned()
            }
            Ok((_, false)) => "not reached".to_owned(),
            Err(error) => {
                let why = reason(error);
                violations.push(format!("{name}: {why}"));
                format!("VIOLATED: {why}")
            }
        };
        print_figure(&format!("matrix {done}/{count} {name}: {verdict} ({} ms)", case_began.elapsed().as_millis()));
    }
    print_figure(&format!("matrix on {kind:?}: {count} cases in {} s", began.elapsed().as_secs()));
    for (point, times) in &reached {
        print_figure(&format!("  {point:<10} reached {times} times"));
    }
    for (of, Tally { played, reached, .. }) in tallies.iter().filter(|(_, tally)| tally.reached < tally.played) {
        print_figure(&format!("  {of}: reached {reached} times of {played}"));
    }
    print_figure(&format!("  {} violations", violations.len()));
    assert!(violations.is_empty(), "{} of {count} cases failed:\n{}", violations.len(), violations.join("\n"));
    let never: Vec<_> = reached.iter().filter(|(_, times)| **times == 0).map(|(point, _)| point).collect();
    assert!(never.is_empty(), "points that were never reached: {never:?}");
    let missing: Vec<_> = tallies.iter().filter(|(_, tally)| tally.is_missing()).map(|(of, _)| of).collect();
    assert!(missing.is_empty(), "points that were never reached in this way or at this pass: {missing:?}");
}

fn reason(error: tokio::task::JoinError) -> String {
    match error.try_into_panic() {
        Ok(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
        }
        Err(error) => error.to_string(),
    }
}
