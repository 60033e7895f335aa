//! A Postgres database after long use: ended runs cost nothing.
//!
//! The full measurement: `CAPSTAN_FINISHED_RUNS=1000000 CAPSTAN_CLAIMS=5000 cargo nextest run -p capstan-it
//! --no-capture finished_runs`, `CAPSTAN_SNAPSHOT_RUNS=360000 CAPSTAN_CLAIMS=5000` with `passed_by_claims`, and
//! `CAPSTAN_RENEWALS=1200` with `renewed_for_an_hour`.

use std::time::{Duration, Instant};

use capstan::domain::ids::{ConversationId, RunId, UserId};
use capstan::domain::run::change::Change;
use capstan::domain::run::record::Fence;
use capstan::store::{ConversationFilter, ResumeKind, RunFilter, Store, StoreOptions, open};
use sqlx::{Connection as _, PgConnection};

use super::fixture::{
    LONG, World, assistant, changes, completed, conversation, earlier, failed, hello, page, resume_request, started, user,
};
use support::database::Kind;
use support::measure::{percentile, size};
use support::{print_figure, wait};

const ACTIVE: u32 = 1_000;

/// Owners of ended runs.
const OWNERS: usize = 2;

/// How often each statement is measured.
const TRIES: usize = 20;

fn owner(number: usize) -> UserId {
    UserId::parse(&format!("user_{:032x}", number % OWNERS)).unwrap()
}

fn run(number: usize) -> RunId {
    RunId::parse(&format!("run_{number:032x}")).unwrap()
}

fn conversation_of(number: usize) -> ConversationId {
    ConversationId::parse(&format!("conv_{number:032x}")).unwrap()
}

/// Copies all rows of a conversation with one run, `count` times. The new ids come from [`owner`], [`run`] and
/// [`conversation_of`], starting at `first`.
async fn multiply(world: &World, template: &Fence, first: usize, count: usize) {
    let hex = |prefix: &str, number: &str| format!("'{prefix}_' || lpad(to_hex({number}), 32, '0')");
    let (conversation, run, owner) = (hex("conv", "n"), hex("run", "n"), hex("user", &format!("n % {OWNERS}")));
    let tables = [
        ("conversations", "id", format!("'id', {conversation}, 'owner_id', {owner}")),
        ("conversation_heads", "conversation_id", format!("'conversation_id', {conversation}, 'owner_id', {owner}")),
        ("runs", "conversation_id", format!("'id', {run}, 'conversation_id', {conversation}, 'owner_id', {owner}")),
        (
            "messages",
            "conversation_id",
            format!("'id', 'msg_' || md5(t.id || n), 'conversation_id', {conversation}, 'run_id', {run}, 'owner_id', {owner}"),
        ),
        ("events", "conversation_id", format!("'conversation_id', {conversation}, 'run_id', {run}, 'owner_id', {owner}")),
    ];
    for (table, key, ids) in tables {
        let copy = format!(
            "INSERT INTO {table} SELECT made.* FROM generate_series({first}, {}) AS n JOIN {table} t ON t.{key} = '{}' \
             CROSS JOIN LATERAL jsonb_populate_record(t, jsonb_build_object({ids})) AS made",
            first + count - 1,
            template.conversation_id
        );
        world.database.rows(&copy).await;
    }
}

/// Starts workers with [`ACTIVE`] runs under way.
async fn busy(world: &World) -> Vec<Fence> {
    let template = world.run(&user()).await.run;
    let template = Fence { run_id: template.id, conversation_id: template.conversation_id, epoch: 0 };
    multiply(world, &template, 1 << 40, ACTIVE as usize - 1).await;
    let claims = world.claim(ACTIVE).await;
    assert_eq!(claims.len(), ACTIVE as usize);
    claims.into_iter().map(|claim| claim.fence).collect()
}

/// Waits until all connections of the store are closed: only then are their statistics complete.
async fn settled(world: &World) {
    let there =
        "SELECT CAST(count(*) AS text) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'capstan'";
    wait::until("the end of all connections", Duration::from_secs(20), || async {
        (world.database.count(there).await == 0).then_some(())
    })
    .await;
}

/// Waits until no other transaction of the server is under way. It would keep old row versions, in all databases.
async fn undisturbed(world: &World) {
    let others = "SELECT CAST(count(*) AS text) FROM pg_stat_activity
        WHERE (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL) AND pid <> pg_backend_pid()";
    wait::until("the end of other transactions", Duration::from_secs(30), || async {
        (world.database.count(others).await == 0).then_some(())
    })
    .await;
}

/// Returns the number of rows read so far, from tables and indexes.
async fn looked_at(world: &World) -> i64 {
    settled(world).await;
    let tables = "SELECT CAST((SELECT sum(seq_tup_read) FROM pg_stat_user_tables) + \
                  (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes) AS text)";
    world.database.count(tables).await
}

/// Returns how many rows one of [`TRIES`] reads.
async fn cost(world: &World, what: &str, one: impl AsyncFn(&dyn Store, usize)) -> i64 {
    let before = looked_at(world).await;
    let store = open(&world.database.url, &StoreOptions::default()).await.unwrap();
    let begun = Instant::now();
    for number in 0..TRIES {
        one(store.as_ref(), number).await;
    }
    let each = begun.elapsed() / u32::try_from(TRIES).unwrap();
    store.close().await;
    let rows = (looked_at(world).await - before) / i64::try_from(TRIES).unwrap();
    print_figure(&format!("{what}: {rows} rows looked at, {each:?}"));
    rows
}

/// Claims runs while messages arrive. Returns the time of each successful claim, and how many claims there were in all: on a busy
/// machine, messages arrive slowly, and most claims find nothing.
async fn claims(world: &World, wanted: usize) -> (Vec<Duration>, i64) {
    let store = open(&world.database.url, &StoreOptions::default()).await.unwrap();
    let accepting = async {
        for number in 0.. {
            store.accept_run(hello(&owner(number), &conversation()), None).await.unwrap();
        }
    };
    let claiming = async {
        let (mut times, mut all) = (Vec::new(), 0);
        while times.len() < wanted {
            all += 1;
            // As often as a server does at 200 runs/s.
            if times.len().is_multiple_of(200) {
                store.raise_low_water().await.unwrap();
            }
            let begun = Instant::now();
            let claims = store.claim_runs(&world.node, 64, LONG).await.unwrap();
            if claims.is_empty() {
                tokio::task::yield_now().await;
                continue;
            }
            times.push(begun.elapsed());
            let writes: Vec<_> = claims.iter().flat_map(|claim| [started(&claim.fence), completed(&claim.fence)]).collect();
            store.commit(&writes).await.unwrap();
        }
        (times, all)
    };
    let claims = tokio::select! {
        () = accepting => unreachable!("messages arrive without end"),
        claims = claiming => claims,
    };
    store.close().await;
    claims
}

/// The rows that each claim looks at, with accepting and ending its run, and the 99th percentile of the times of claims.
async fn measured_claims(world: &World, what: &str) -> (i64, Duration) {
    let before = looked_at(world).await;
    let (times, all) = claims(world, size("CAPSTAN_CLAIMS", 200)).await;
    let rows = (looked_at(world).await - before) / all;
    let [half, most] = [50, 99].map(|percent| percentile(&times, percent));
    print_figure(&format!(
        "{what}: {} of {all} claims, p50 {half:?}, p99 {most:?}; with accepting and ending {rows} rows each",
        times.len()
    ));
    (rows, most)
}

/// D-18.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finished_runs_cost_nothing_on_postgres() {
    const USUAL: usize = 20_000;
    let finished = size("CAPSTAN_FINISHED_RUNS", USUAL);
    let world = World::new(Kind::Postgres).await;
    let template = world.claimed(&user()).await;
    let said = assistant(&template, "hello yourself");
    for write in [started(&template), changes(&template, vec![Change::AddMessage(said)]), completed(&template)] {
        world.commit_one(write).await.unwrap();
    }
    multiply(&world, &template, 0, finished).await;
    let leases = busy(&world).await;
    let unlucky = user();
    let mut broken = Vec::new();
    for _ in 0..TRIES {
        let fence = world.claimed(&unlucky).await;
        world.commit_one(failed(&fence)).await.unwrap();
        broken.push(fence.run_id);
    }
    world.database.rows("ANALYZE").await;
    world.store.close().await;

    let (rows, most) = measured_claims(&world, &format!("{finished} finished runs, {ACTIVE} under way")).await;
    // Each lease is counted for its owner.
    assert!(rows < 2 * i64::from(ACTIVE) + 1_000, "{rows} rows for each claim");

    let costs = [
        cost(&world, "list of conversations", async |store, n| {
            let page = store
                .conversations(
                    &owner(n),
                    &ConversationFilter { archived: Some(false), ..ConversationFilter::default() },
                    &page(50, None),
                )
                .await
                .unwrap();
            assert_eq!(page.items.len(), 50);
        })
        .await,
        cost(&world, "lists of runs", async |store, n| {
            let found = store.runs(&owner(n), &RunFilter::default(), &page(50, None)).await.unwrap();
            assert_eq!(found.items.len(), 50);
            let of_conversation = RunFilter { conversation: Some(conversation_of(n)), ..RunFilter::default() };
            assert_eq!(store.runs(&owner(n), &of_conversation, &page(50, None)).await.unwrap().items.len(), 1);
        })
        .await,
        cost(&world, "messages", async |store, n| {
            let found = store.messages(&owner(n), &conversation_of(n), &page(50, None)).await.unwrap().unwrap();
            assert_eq!(found.items.len(), 2);
            let newest = store.earlier_messages(&owner(n), &conversation_of(n), earlier(50, None)).await.unwrap().unwrap();
            assert_eq!(newest.items.len(), 2);
        })
        .await,
        cost(&world, "a run and its log", async |store, n| {
            assert!(store.run(&owner(n), &run(n)).await.unwrap().is_some());
            assert_eq!(store.active_run(&owner(n), &conversation_of(n)).await.unwrap(), None);
            assert!(store.events(&owner(n), &conversation_of(n), 0, 500).await.unwrap().len() > 3);
            assert!(store.log_bounds(&owner(n), &conversation_of(n)).await.unwrap().is_some());
            assert_eq!(store.heads(&[conversation_of(n)]).await.unwrap().len(), 1);
        })
        .await,
        cost(&world, "resume", async |store, n| {
            store.resume_run(resume_request(&unlucky, &broken[n], ResumeKind::Resume), None).await.unwrap();
        })
        .await,
        cost(&world, "claim and load", async |store, _| {
            let claims = store.claim_runs(&world.node, 1, LONG).await.unwrap();
            assert!(store.load_run(&claims[0].fence).await.unwrap().is_some());
        })
        .await,
        cost(&world, "explain", async |store, n| {
            assert!(store.explain_run(&owner(n), &run(n)).await.unwrap().is_some());
        })
        .await,
        cost(&world, "sweep, control and timers", async |store, _| {
            assert_eq!(store.sweep_expired_leases(50, true).await.unwrap().requeued, []);
            assert_eq!(store.control_signals(&[leases[0].run_id.clone()]).await.unwrap(), []);
            store.next_claimable_in().await.unwrap();
        })
        .await,
        cost(&world, "counts for metrics", async |store, _| assert!(!store.run_counts().await.unwrap().is_empty())).await,
    ];
    // Some statements read all runs under way. Reading one owner's ended runs would be half of all rows.
    assert!(costs.iter().all(|rows| *rows < i64::try_from(finished / 5).unwrap()), "{costs:?}");
    // In the suite, other tests share the machine.
    let limit = if finished == USUAL { 100 } else { 10 };
    assert!(most <= Duration::from_millis(limit), "p99 {most:?}");
}

/// While a session holds a snapshot, each claim leaves a dead entry in the index of the queue.
#[tokio::test]
async fn a_snapshot_that_is_held_open_is_seen_on_postgres() {
    let world = World::new(Kind::Postgres).await;
    let age = async || world.store.oldest_snapshot().await.unwrap().unwrap();
    let mut report = PgConnection::connect(&world.database.url).await.unwrap();
    for statement in ["BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT count(*) FROM users"] {
        sqlx::query(statement).execute(&mut report).await.unwrap();
    }
    wait::until("a snapshot of some age", Duration::from_secs(20), || async {
        (age().await > Duration::from_millis(300)).then_some(())
    })
    .await;
    report.close().await.unwrap();
    wait::until("its end", Duration::from_secs(20), || async { (age().await < Duration::from_millis(300)).then_some(()) }).await;
}

/// Returns the store after `count` runs have left the queue over half an hour, with their leases.
async fn hurry_through_the_queue(world: &World, count: usize) {
    let template = world.claimed(&user()).await;
    for write in [started(&template), completed(&template)] {
        world.commit_one(write).await.unwrap();
    }
    let id = "lpad(to_hex(n), 32, '0')";
    let at = format!("now_ms() - ({count} - n) * {}::bigint / {count}", 30 * 60 * 1000);
    let owner = format!("'user_' || lpad(to_hex(n % {OWNERS}), 32, '0')");
    let ids = format!("'id', 'run_' || {id}, 'conversation_id', 'conv_' || {id}, 'owner_id', {owner}, 'claimable_at', {at}");
    for statement in [
        format!(
            "INSERT INTO runs SELECT made.* FROM generate_series(1, {count}) AS n JOIN runs t ON t.id = '{}' \
             CROSS JOIN LATERAL jsonb_populate_record(t, jsonb_build_object({ids})) AS made",
            template.run_id
        ),
        "UPDATE runs SET claimable_at = NULL WHERE claimable_at IS NOT NULL".to_owned(),
        format!(
            "INSERT INTO run_leases SELECT 'run_' || {id}, {owner}, 'node_gone', 1, {at}, {at} \
             FROM generate_series(1, {count}) AS n"
        ),
        "DELETE FROM run_leases".to_owned(),
        // An empty queue is the usual case, and the planner then expects an index of the queue to cost nothing.
        "ANALYZE".to_owned(),
    ] {
        world.database.rows(&statement).await;
    }
}

/// Entries that left the queue after a snapshot was taken cannot be vacuumed, but claims must not read them. In half an hour
/// with 200 runs a second, they are 360,000. D-07.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_a_held_snapshot_are_not_passed_by_claims() {
    const USUAL: usize = 20_000;
    let gone = size("CAPSTAN_SNAPSHOT_RUNS", USUAL);
    let world = World::new(Kind::Postgres).await;
    let mut report = PgConnection::connect(&world.database.url).await.unwrap();
    for statement in ["BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT count(*) FROM users"] {
        sqlx::query(statement).execute(&mut report).await.unwrap();
    }
    hurry_through_the_queue(&world, gone).await;
    world.store.close().await;
    let (rows, most) = measured_claims(&world, &format!("{gone} runs since the snapshot")).await;
    report.close().await.unwrap();
    // The dead entries of the test's own claims are read for some seconds, the more the slower the machine is. A claim that starts
    // at the first entry reads all that have gone.
    assert!(gone > USUAL || rows < i64::try_from(gone / 2).unwrap(), "{rows} rows for each claim");
    // In the suite, other tests share the machine.
    let limit = if gone == USUAL { 200 } else { 50 };
    assert!(most <= Duration::from_millis(limit), "p99 {most:?}");
}

/// An hour has 1,200 renewals at an interval of 3 seconds, and here they follow each other at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_renewed_for_an_hour_stay_small_on_postgres() {
    let rounds = size("CAPSTAN_RENEWALS", 100);
    let world = World::new(Kind::Postgres).await;
    let leases = busy(&world).await;
    undisturbed(&world).await;
    let mut largest = 0;
    for round in 0..rounds {
        let held = world.store.renew_leases(&world.node, &leases, LONG, 0).await.unwrap().renewed;
        assert_eq!(held.len(), ACTIVE as usize);
        if round % 20 == 0 {
            largest = largest.max(world.database.count("SELECT CAST(pg_total_relation_size('run_leases') AS text)").await);
        }
    }
    world.store.close().await;
    settled(&world).await;
    let updates =
        "SELECT CAST(n_tup_upd AS text), CAST(n_tup_hot_upd AS text) FROM pg_stat_user_tables WHERE relname = 'run_leases'";
    let updates = world.database.rows(updates).await.remove(0);
    let [all, in_place]: [i64; 2] = [0, 1].map(|column| updates[column].as_deref().unwrap().parse().unwrap());
    print_figure(&format!(
        "{ACTIVE} leases renewed {rounds} times: {} KiB at most, {in_place} of {all} updates in place",
        largest / 1024
    ));
    assert_eq!(all, i64::from(ACTIVE) * i64::try_from(rounds).unwrap());
    assert!(in_place * 100 >= all * 99, "{in_place} of {all} updates in place");
    assert!(largest < 1 << 20, "{largest} bytes");
}
