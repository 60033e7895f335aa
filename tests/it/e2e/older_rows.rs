//! A large log from before rows said whose they are: servers of the version before go on writing while it is completed.

use std::path::Path;
use std::str::FromStr as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sqlx::migrate::Migrator;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, Connection as _};
use tokio::task::JoinSet;

use crate::support::database::Kind;
use crate::support::measure::percentile;
use crate::support::server::Site;
use crate::support::wait::{until, within};

const SOON: Duration = Duration::from_secs(60);

/// The last step of the schema without the owners.
const BEFORE: i64 = 30;

/// What nearly all writes may take meanwhile: a migration waits at a lock for half a second at most.
const BEARABLE: Duration = Duration::from_secs(1);

/// What none may take: a disk that is busy holds up a single one for longer than a lock does.
const UNBEARABLE: Duration = Duration::from_secs(3);

const CONVERSATIONS: i64 = 500;
const EVENTS: i64 = 400;

async fn connect(url: &str) -> PgConnection {
    PgConnection::connect_with(&PgConnectOptions::from_str(url).unwrap()).await.unwrap()
}

/// A database as the version before has left it.
async fn large_log(url: &str) {
    let mut connection = connect(url).await;
    let all = Migrator::new(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/migrations/postgres"))).await.unwrap();
    let older = all.iter().filter(|step| step.version <= BEFORE).cloned().collect();
    Migrator::with_migrations(older).run_direct(None, &mut connection, false).await.unwrap();
    let each = format!("FROM generate_series(1, {CONVERSATIONS}) c");
    for statement in [
        format!(
            "INSERT INTO conversations (id, owner_id, title, status, created_at, updated_at)
             SELECT 'conv_' || c, 'user_' || c % 7, '', 'idle', now_ms(), now_ms() {each}"
        ),
        format!("INSERT INTO conversation_heads (conversation_id, last_seq) SELECT 'conv_' || c, {EVENTS} {each}"),
        format!(
            "INSERT INTO events (conversation_id, seq, attempt, kind, at, data)
             SELECT 'conv_' || c, e, 0, 'text.delta', 1, repeat('x', 200) {each}, generate_series(1, {EVENTS}) e"
        ),
        format!(
            "INSERT INTO runs (id, conversation_id, owner_id, status, active, claim_cause, profile, agent, agent_version, model,
                 counters, usage, first_seq, created_at, finished_at)
             SELECT 'run_' || c, 'conv_' || c, 'user_' || c % 7, 'completed', false, 'new', '{{}}', 'default', 1, 'm', '{{}}', '{{}}',
                 1, now_ms(), now_ms() {each}"
        ),
        format!(
            "INSERT INTO run_steps (run_id, step, kind, status, attempt, started_at)
             SELECT 'run_' || c, s, 'model', 'done', 1, 1 {each}, generate_series(1, 9) s"
        ),
        format!(
            "INSERT INTO context_summaries (conversation_id, covers, body, updated_at) SELECT 'conv_' || c, '', '{{}}', 1 {each}"
        ),
    ] {
        sqlx::query(AssertSqlSafe(statement)).execute(&mut connection).await.unwrap();
    }
    // So many new rows would have the database clean up in the very seconds that are looked at.
    sqlx::query("ALTER TABLE events SET (autovacuum_enabled = false)").execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

/// Writes like a server of the version before, in one conversation after the other. Returns what each write took.
async fn go_on_writing(url: String, enough: Arc<AtomicBool>) -> Vec<Duration> {
    let mut connection = connect(&url).await;
    let (mut writes, mut took) = (0, Vec::new());
    while !enough.load(Ordering::Relaxed) {
        let begun = Instant::now();
        sqlx::query(
            "WITH head AS (UPDATE conversation_heads SET last_seq = last_seq + 1 WHERE conversation_id = 'conv_' || $1
                 RETURNING conversation_id, last_seq)
             INSERT INTO events (conversation_id, seq, attempt, kind, at, data)
             SELECT conversation_id, last_seq, 0, 'text.delta', 1, '{}' FROM head",
        )
        .bind(1 + writes % CONVERSATIONS)
        .execute(&mut connection)
        .await
        .unwrap();
        took.push(begun.elapsed());
        writes += 1;
    }
    took
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_log_is_completed_while_older_servers_write_and_after_a_crash_postgres() {
    let site = Site::new(Kind::Postgres).await;
    let database = &site.database;
    large_log(&database.url).await;
    let enough = Arc::new(AtomicBool::new(false));
    let mut older = JoinSet::new();
    older.spawn(go_on_writing(database.url.clone(), Arc::clone(&enough)));

    let mut dies = site.spawn(&[]);
    let reached = "SELECT coalesce((SELECT CAST(id AS text) FROM owners_left WHERE of_table = 'events'), 'all')";
    let is_there = "SELECT CAST(count(*) AS text) FROM pg_class WHERE relname = 'owners_left'";
    until("some events to be completed", SOON, || async {
        let begun = database.count(is_there).await == 1 && database.rows(reached).await[0][0].as_deref() != Some("");
        begun.then_some(())
    })
    .await;
    dies.kill9().await;
    let midway = database.rows(reached).await[0][0].clone();
    assert!(midway.as_deref().is_some_and(|id| id.starts_with("conv_")), "it died midway: {midway:?}");
    // Of the rows from before anybody wrote more.
    let nameless = format!("SELECT CAST(count(*) AS text) FROM events WHERE owner_id = '' AND seq <= {EVENTS}");
    let left = database.count(&nameless).await;
    assert!(left > 0 && left < CONVERSATIONS * EVENTS, "{left}");

    let goes_on = within("the next one", SOON, site.start()).await;
    enough.store(true, Ordering::Relaxed);
    let took = older.join_next().await.unwrap().unwrap();
    let writes = i64::try_from(took.len()).unwrap();
    assert!(writes > 100, "{writes} writes");
    let (most, longest) = (percentile(&took, 99), percentile(&took, 100));
    assert!(most < BEARABLE && longest < UNBEARABLE, "of {writes} writes 99% took up to {most:?}, and one took {longest:?}");
    for (table, id, parent) in [
        ("conversation_heads", "conversation_id", "conversations"),
        ("events", "conversation_id", "conversations"),
        ("run_steps", "run_id", "runs"),
        ("context_summaries", "conversation_id", "conversations"),
    ] {
        let strange = format!(
            "SELECT CAST(count(*) AS text) FROM {table} t LEFT JOIN {parent} p ON p.id = t.{id} WHERE t.owner_id IS DISTINCT FROM p.owner_id"
        );
        assert_eq!(database.count(&strange).await, 0, "{table}");
    }
    assert_eq!(database.count("SELECT CAST(count(*) AS text) FROM owners_left").await, 0);
    assert_eq!(database.count("SELECT CAST(count(*) AS text) FROM events").await, CONVERSATIONS * EVENTS + writes);
    drop(goes_on);
}
