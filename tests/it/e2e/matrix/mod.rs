//! The process dies, sleeps, panics or loses its database at every boundary between two persisted steps, and the run ends as if
//! nothing had happened, except for what nobody can know.
//!
//! One generator makes the cases: point, way, store and seed. The quick form tries each point in two ways on each store. The full
//! form is `make crash-matrix`: `CAPSTAN_MATRIX_SEEDS` says how many seeds every point is tried with, in every way. What is never
//! reached fails either form, see [`combination`].
//! Its other half kills at random instants, `CAPSTAN_MATRIX_KILLS` times on each store.
//! `CAPSTAN_MATRIX_ONLY` plays only the cases whose name contains it, as the summary gives it.

mod bugs;
mod case;
mod checks;
mod kills;
mod points;
mod rotation;
mod turn;

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::repository;
use crate::support::chance::Chance;
use crate::support::database::Kind;
use crate::support::{setting, tell, wait};
use case::{Case, Way};
use points::{Often, POINTS, Point, TRIED_ELSEWHERE, WITHOUT_POINT};

/// How long a case may take.
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
        let found = text.split("failpoint::reached(").skip(1).flat_map(|rest| {
            // More than one name, if the code says which by a condition.
            let arguments = rest.split(')').next().unwrap_or_default().to_owned();
            arguments.split('"').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>()
        });
        in_code.extend(found);
    }
    let in_code: HashSet<&str> = in_code.iter().map(String::as_str).collect();
    let tried: HashSet<&str> = tried.into_iter().chain(TRIED_ELSEWHERE.iter().map(|(name, _)| *name)).collect();
    assert_eq!(tried, in_code, "the failpoints of the table and those of the code");
    for row in 1..=32 {
        let row = format!("C{row:02}");
        let has_point = POINTS.iter().any(|point| point.name.split('-').next() == Some(&row));
        let has_reason = WITHOUT_POINT.iter().any(|(name, why)| *name == row && !why.is_empty());
        assert!(has_point != has_reason, "{row} must have either a point or a reason");
    }
}

/// The cases of a store.
fn cases(kind: Kind) -> Vec<Case> {
    let seeds: Option<u64> = setting("CAPSTAN_MATRIX_SEEDS").map(|text| text.parse().unwrap());
    let mut cases = Vec::new();
    for (row, point) in POINTS.iter().enumerate() {
        match seeds {
            None => {
                // Each point in one more way than death, and in another one on the other store.
                let others = [Way::Stop, Way::Panic, Way::Cut];
                let place = if kind == Kind::Sqlite { row } else { row + 1 };
                cases.push(case(point, Way::Kill, kind, 0, None));
                cases.extend(point.also.iter().map(|at| case(point, Way::Kill, kind, 0, Some(*at))));
                cases.push(case(point, others[place % others.len()], kind, 0, None));
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

/// How many cases of a combination cannot all miss their point by chance. In the longest play so far none of 4,800 did.
const ENOUGH: usize = 10;

/// How often the cases of something were played, and how often they reached their point.
#[derive(Default)]
struct Tally {
    played: usize,
    reached: usize,
    /// Whether a case is among them that is the same each time.
    is_certain: bool,
}

impl Tally {
    fn add(&mut self, case: &Case) {
        self.played += 1;
        self.is_certain |= case.seed == 0 && case.point.often != Often::Siblings;
    }

    /// Whether it is no accident that the point was never reached.
    fn is_missing(&self) -> bool {
        self.reached == 0 && (self.is_certain || self.played >= ENOUGH)
    }
}

/// What must be reached at least once: a point in one of the ways, and in the quick form also at one of the times at which a run gets there.
/// Counted by point alone, a way that never comes to anything would be hidden behind the others.
///
/// A way does nothing before its point is reached, so that it cannot be why it is not. What can is the script of a seed: when words or
/// results fall together, its run gets to a point less often than was counted. Each seed of the full form draws its script and its time
/// anew, and of [`ENOUGH`] of them one gets there. Seed 0 does the same each time, and its time is the first one, or one that the table
/// names because its run is there for certain: it counts by itself, and the quick form has no other. Only whether two results fall together
/// is not the script's alone to say. Nothing is demanded of a few other
/// seeds that `CAPSTAN_MATRIX_ONLY` has picked, but that they reach each of their points in one way.
fn combination(case: &Case) -> String {
    match setting("CAPSTAN_MATRIX_SEEDS") {
        None => format!("{}@{} {:?}", case.point.name, case.at, case.way),
        Some(_) => format!("{} {:?}", case.point.name, case.way),
    }
}

/// Plays the cases of a store, a few at a time, and fails if any is violated, or if any point or [`combination`] was never reached.
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
        tell(&format!("matrix {done}/{count} {name}: {verdict} ({} ms)", case_began.elapsed().as_millis()));
    }
    tell(&format!("matrix on {kind:?}: {count} cases in {} s", began.elapsed().as_secs()));
    for (point, times) in &reached {
        tell(&format!("  {point:<10} reached {times} times"));
    }
    for (of, Tally { played, reached, .. }) in tallies.iter().filter(|(_, tally)| tally.reached < tally.played) {
        tell(&format!("  {of}: reached {reached} times of {played}"));
    }
    tell(&format!("  {} violations", violations.len()));
    assert!(violations.is_empty(), "{} of {count} cases are violated:\n{}", violations.len(), violations.join("\n"));
    let never: Vec<_> = reached.iter().filter(|(_, times)| **times == 0).map(|(point, _)| point).collect();
    assert!(never.is_empty(), "points that were never reached: {never:?}");
    let missing: Vec<_> = tallies.iter().filter(|(_, tally)| tally.is_missing()).map(|(of, _)| of).collect();
    assert!(missing.is_empty(), "points that were never reached in this way, or at this time: {missing:?}");
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
