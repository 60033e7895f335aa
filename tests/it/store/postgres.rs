//! Behaviour that only Postgres has: row locks that block, snapshots older than a lock, notifications, and processes with a
//! newer schema.

use std::collections::{BTreeSet, HashSet};
use std::str::FromStr as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use capstan::domain::conversation::list_item::ListHint;
use capstan::domain::conversation::{AgentChoice, ConversationStatus};
use capstan::domain::ids::{ConversationId, NodeId, RunId};
use capstan::domain::run::RunStatus;
use capstan::domain::run::budget::{Allowance, Amount, ReservationOutcome, ReservationRequest};
use capstan::domain::run::record::RunWrite;
use capstan::store::postgres::{Notice, PgNotifier};
use capstan::store::{
    AcceptOutcome, AcceptRun, AcceptingWorker, CancelOutcome, CancelRun, ConversationChange, IdempotentOutcome, NewConversation,
    ResumeKind, StoreError, StoreOptions, Sweep, WriteRejection, open,
};
use capstan::support::ids::UuidIds;
use futures_util::StreamExt as _;
use sqlx::Connection as _;
use sqlx::postgres::{PgConnectOptions, PgConnection};

use super::fixture::{
    LONG, NOW, World, completed, conversation, deltas, failed, fresh, hello, key, resume_request, started, updated, user,
};
use support::database::Kind;
use support::link::Link;
use support::wait::{until, within};

pub(super) const SOON: Duration = Duration::from_secs(20);

/// Opens a separate session with a transaction.
async fn session(world: &World) -> PgConnection {
    let mut session = PgConnection::connect_with(&PgConnectOptions::from_str(&world.database.url).unwrap()).await.unwrap();
    sqlx::query("BEGIN").execute(&mut session).await.unwrap();
    session
}

/// Opens a session that locks the head of a conversation.
async fn hold_head(world: &World, conversation: &str) -> PgConnection {
    let mut session = session(world).await;
    sqlx::query("SELECT FROM conversation_heads WHERE conversation_id = $1 FOR UPDATE")
        .bind(conversation)
        .execute(&mut session)
        .await
        .unwrap();
    session
}

/// Waits until `how_many` statements of the store wait for a lock.
pub(super) async fn blocked(world: &World, how_many: i64) {
    until("statements that wait for a lock", SOON, || async {
        let waiting = "SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        (world.database.count(waiting).await >= how_many).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_writer_waits_for_the_takeover_and_leaves_nothing() {
    let world = World::new(Kind::Postgres).await;
    let owner = user();
    let fence = world.claimed(&owner).await;
    let mut takeover = hold_head(&world, fence.conversation_id.as_str()).await;
    sqlx::query("UPDATE conversation_heads SET epoch = epoch + 1 WHERE run_id = $1")
        .bind(fence.run_id.as_str())
        .execute(&mut takeover)
        .await
        .unwrap();

    let (store, writes) = (world.store.clone(), [deltas(&fence, 3), started(&fence)]);
    let late = async move { store.commit(&writes).await.unwrap() };
    let after = async {
        blocked(&world, 1).await;
        sqlx::query("COMMIT").execute(&mut takeover).await.unwrap();
    };
    let (answers, ()) = tokio::join!(late, after);
    assert_eq!(answers, [Err(WriteRejection::Fenced), Err(WriteRejection::Fenced)]);
    assert_eq!(world.log(&owner, &fence.conversation_id).await.len(), 3);
    assert_eq!(world.view(&owner, &fence.run_id).await.run.started_at, None);
    world.store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_never_waits() {
    let world = World::new(Kind::Postgres).await;
    let owner = user();
    let held = world.run(&owner).await.run;
    let free = world.run(&owner).await.run;
    let mut session = hold_head(&world, held.conversation_id.as_str()).await;
    let claims = within("a claim", SOON, world.claim(10)).await;
    assert_eq!(claims.iter().map(|claim| &claim.fence.run_id).collect::<Vec<_>>(), [&free.id]);
    sqlx::query("ROLLBACK").execute(&mut session).await.unwrap();
    assert_eq!(world.claim_one().await.run_id, held.id);
    world.store.close().await;
}

/// Messages for a conversation with a locked head occupy at most one connection of the workers' pool.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_wait_leave_workers_their_connections() {
    // No waiting request may time out here.
    let world = World::with(Kind::Postgres, &StoreOptions { request_timeout: SOON, ..StoreOptions::default() }).await;
    let owner = user();
    let (held, busy) = (world.claimed(&owner).await, world.claimed(&owner).await);
    world.commit_one(started(&busy)).await.unwrap();
    let free = world.run(&owner).await.run;
    let mut session = hold_head(&world, held.conversation_id.as_str()).await;
    let mut waiting = tokio::task::JoinSet::new();
    for count in 1..=5 {
        let (store, message) = (world.store.clone(), hello(&owner, &held.conversation_id));
        waiting.spawn(async move { store.accept_run(message, None).await.map(|_| ()) });
        blocked(&world, count).await;
        // From here on, the log writer has a recently used connection again.
        world.commit_one(deltas(&busy, 1)).await.unwrap();
    }
    let claims = within("a claim", Duration::from_secs(1), world.claim(10)).await;
    assert_eq!(claims.iter().map(|claim| &claim.fence.run_id).collect::<Vec<_>>(), [&free.id]);
    sqlx::query("ROLLBACK").execute(&mut session).await.unwrap();
    for accepted in within("the messages", SOON, waiting.join_all()).await {
        accepted.unwrap();
    }
    world.store.close().await;
}

/// D-05, I14. Requests and workers occupy all connections of their pools, and each waits for a lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_is_renewed_while_other_statements_wait() {
    let world = World::with(Kind::Postgres, &StoreOptions { max_connections: 8, ..StoreOptions::default() }).await;
    let owner = user();
    let fence = world.claimed(&owner).await;
    let mut holder = session(&world).await;
    sqlx::query("LOCK TABLE conversations, runs IN ACCESS EXCLUSIVE MODE").execute(&mut holder).await.unwrap();
    let mut burst = tokio::task::JoinSet::new();
    let began = std::time::Instant::now();
    for _ in 0..20 {
        let (store, owner, id) = (world.store.clone(), owner.clone(), fence.conversation_id.clone());
        burst.spawn(async move { store.conversation(&owner, &id).await.map(|_| ()) });
    }
    let mut looks = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let store = world.store.clone();
        looks.spawn(async move { store.next_claimable_in().await.map(|_| ()) });
    }
    blocked(&world, 6).await;
    let renewed = world.store.renew_leases(&world.node, std::slice::from_ref(&fence), LONG, 0).await.unwrap().renewed;
    assert_eq!(renewed, std::slice::from_ref(&fence.run_id));
    assert_eq!(world.store.sweep_expired_leases(10, false).await.unwrap(), Sweep::default());
    assert!(!looks.is_empty() && looks.try_join_next().is_none(), "reads of the queue are still waiting");
    for answer in within("the burst", SOON, burst.join_all()).await {
        assert!(answer.unwrap_err().is_transient());
    }
    // The lock timeout and some margin. Requests without a connection have failed earlier.
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    sqlx::query("ROLLBACK").execute(&mut holder).await.unwrap();
    within("the looks", SOON, looks.join_all()).await;
    assert!(world.commit_one(deltas(&fence, 1)).await.is_ok());
    world.store.close().await;
}

/// Statements, lock waits and idle transactions have a timeout in every pool. The pools are private to the store, so
/// triggers record the settings of the connections that write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_connection_to_postgres_has_its_time_outs() {
    let world = World::new(Kind::Postgres).await;
    let owner = user();
    let fence = world.claimed(&owner).await;
    for watch in [
        "CREATE TABLE sessions_seen (place text, backend int, statement text, lock text, idle text)",
        "CREATE FUNCTION see_session() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             INSERT INTO sessions_seen VALUES (TG_TABLE_NAME, pg_backend_pid(), current_setting('statement_timeout'),
                 current_setting('lock_timeout'), current_setting('idle_in_transaction_session_timeout'));
             RETURN NULL;
         END $$",
        "CREATE TRIGGER see_session AFTER INSERT ON conversations FOR EACH STATEMENT EXECUTE FUNCTION see_session()",
        "CREATE TRIGGER see_session AFTER INSERT ON events FOR EACH STATEMENT EXECUTE FUNCTION see_session()",
        "CREATE TRIGGER see_session AFTER UPDATE ON run_leases FOR EACH STATEMENT EXECUTE FUNCTION see_session()",
    ] {
        world.database.rows(watch).await;
    }
    // A connection of the request pool, of the log writer's pool, and of the lease pool.
    let (id, title, now) = (conversation(), "A title".to_owned(), NOW);
    let new = NewConversation {
        id,
        owner,
        title,
        system_prompt: None,
        instructions: None,
        choice: AgentChoice::default(),
        max_conversations: 0,
        now,
    };
    fresh(world.store.create_conversation(new, None).await.unwrap());
    world.commit_one(deltas(&fence, 1)).await.unwrap();
    let renewed = world.store.renew_leases(&world.node, std::slice::from_ref(&fence), LONG, 0).await.unwrap().renewed;
    assert_eq!(renewed, [fence.run_id]);

    let seen = world.database.rows("SELECT place, statement, lock, idle, backend::text FROM sessions_seen ORDER BY place").await;
    let said: Vec<Vec<&str>> = seen.iter().map(|row| row[..4].iter().map(|column| column.as_deref().unwrap()).collect()).collect();
    let limits = |place| vec![place, "10s", "2s", "5s"];
    assert_eq!(said, [limits("conversations"), limits("events"), limits("run_leases")]);
    let backends: HashSet<_> = seen.iter().map(|row| row[4].clone()).collect();
    assert_eq!(backends.len(), 3, "a connection of each pool: {backends:?}");
    world.store.close().await;
}

/// An error of our own, here in reading a row, ends the transaction and not its connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreadable_row_keeps_its_connection() {
    // Leaves five connections for requests: a connection that is rolled back is away for a moment, and the next request takes another.
    let world = World::with(Kind::Postgres, &StoreOptions { max_connections: 8, ..StoreOptions::default() }).await;
    let owner = user();
    let [unreadable, sound] = [world.run(&owner).await.run, world.run(&owner).await.run].map(|run| run.conversation_id);
    for watch in [
        "CREATE TABLE sessions_seen (backend int)",
        "CREATE FUNCTION see_session() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             INSERT INTO sessions_seen VALUES (pg_backend_pid());
             RETURN NULL;
         END $$",
        "CREATE TRIGGER see_session AFTER UPDATE OF title ON conversations FOR EACH STATEMENT EXECUTE FUNCTION see_session()",
    ] {
        world.database.rows(watch).await;
    }
    world.database.rows(&format!("UPDATE conversations SET status = 'odd' WHERE id = '{unreadable}'")).await;
    let title = ConversationChange { title: Some("A title".to_owned()), ..ConversationChange::default() };
    for _ in 0..20 {
        let failed = world.store.change_conversation(&owner, &unreadable, &title, NOW).await;
        assert!(matches!(failed, Err(StoreError::Corrupt { .. })), "{failed:?}");
        assert!(world.store.change_conversation(&owner, &sound, &title, NOW).await.unwrap().is_some());
    }
    let backends = world.database.count("SELECT count(DISTINCT backend)::text FROM sessions_seen").await;
    assert!(backends <= 5, "the pool has opened a connection for each failure: {backends}");
    world.store.close().await;
}

/// D-08. Postgres ends one of two deadlocked transactions. The store retries the commit, and the run is not affected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_was_sent_away_is_made_again() {
    let world = World::new(Kind::Postgres).await;
    let owner = user();
    let mut fences = vec![world.claimed(&owner).await, world.claimed(&owner).await];
    // A commit locks heads in this order, and the other session locks in reverse order.
    fences.sort_by(|one, other| one.conversation_id.cmp(&other.conversation_id));
    let mut other = hold_head(&world, fences[1].conversation_id.as_str()).await;
    // The other session never checks for deadlocks, so Postgres ends the store's commit.
    sqlx::query("SET LOCAL deadlock_timeout = '60s'").execute(&mut other).await.unwrap();
    let commit = async {
        let batch = [deltas(&fences[0], 1), deltas(&fences[1], 1)];
        world.commit_all(&batch).await
    };
    let against = async {
        blocked(&world, 1).await;
        sqlx::query("SELECT FROM conversation_heads WHERE conversation_id = $1 FOR UPDATE")
            .bind(fences[0].conversation_id.as_str())
            .execute(&mut other)
            .await
            .unwrap();
        sqlx::query("ROLLBACK").execute(&mut other).await.unwrap();
    };
    let (answers, ()) = within("both", SOON, Box::pin(async { tokio::join!(commit, against) })).await;
    assert_eq!(answers, [Ok(4), Ok(4)]);
    let deadlocks = "SELECT deadlocks::text FROM pg_stat_database WHERE datname = current_database()";
    until("the deadlock to be counted", SOON, || async { (world.database.count(deadlocks).await == 1).then_some(()) }).await;
    for fence in &fences {
        assert_eq!(world.log(&owner, &fence.conversation_id).await.len(), 4, "once");
    }
    world.store.close().await;
}

/// D-04.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sweepers_share_the_dead_without_doubles() {
    let world = World::new(Kind::Postgres).await;
    let owner = user();
    for _ in 0..20 {
        world.run(&owner).await;
    }
    let dead: HashSet<RunId> =
        world.store.claim_runs(&world.node, 20, 1).await.unwrap().into_iter().map(|claim| claim.fence.run_id).collect();
    let mut sweepers = tokio::task::JoinSet::new();
    let count = Arc::new(AtomicUsize::new(0));
    for _ in 0..4 {
        let (store, count) = (world.store.clone(), Arc::clone(&count));
        sweepers.spawn(async move {
            let mut mine = Vec::new();
            // Locked rows are skipped, so a sweep may return nothing while other sweepers hold the remaining rows.
            while count.load(Ordering::SeqCst) < 20 {
                let taken = store.sweep_expired_leases(3, true).await.unwrap().requeued;
                count.fetch_add(taken.len(), Ordering::SeqCst);
                mine.extend(taken.into_iter().map(|taken| taken.run_id));
            }
            mine
        });
    }
    let taken: Vec<_> = within("the sweepers", SOON, sweepers.join_all()).await.into_iter().flatten().collect();
    assert_eq!((taken.len(), taken.into_iter().collect::<HashSet<_>>()), (dead.len(), dead), "each by exactly one sweeper");
    let claims = world.claim(100).await;
    assert_eq!(claims.len(), 20);
    world.store.close().await;
}

/// D-01: a confirmed claim is lost, as after a failover to a replica that was behind, and its worker is still alive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_holder_of_a_lost_claim_has_no_other_ones_fence() {
    let world = World::new(Kind::Postgres).await;
    let (owner, id, other) = (user(), conversation(), NodeId::generate(&UuidIds));
    let epoch = format!("(SELECT epoch FROM conversation_heads WHERE conversation_id = '{id}')");
    // Claimed from the queue, and claimed by the hand-off. Then again after a restore raised all epochs.
    for (is_taken_on, lift) in [(false, 0), (true, 0), (true, 1_000), (false, 0)] {
        let ahead = format!("UPDATE conversation_heads SET epoch = epoch + {lift} WHERE conversation_id = '{id}'");
        world.database.rows(&ahead).await;
        let rows = world.database.rows(&format!("SELECT coalesce({epoch}, 0)::text")).await;
        let before = rows[0][0].clone().unwrap();
        let taker = is_taken_on.then(|| AcceptingWorker { node: world.node.clone(), lease_ms: LONG });
        let accepted = fresh(world.store.accept_run(AcceptRun { taker, ..hello(&owner, &id) }, None).await.unwrap());
        let AcceptOutcome::Run { claim, .. } = accepted else { panic!("a run was expected") };
        assert_eq!(claim.is_some(), is_taken_on);
        let lost = match claim {
            Some(claim) => claim.fence,
            None => world.claim_one().await,
        };
        for change in [
            format!("UPDATE conversation_heads SET epoch = {before}, run_id = NULL WHERE conversation_id = '{id}'"),
            format!("DELETE FROM run_leases WHERE run_id = '{}'", lost.run_id),
            format!("UPDATE runs SET attempt = 0, crashes = 0, claimable_at = now_ms() WHERE id = '{}'", lost.run_id),
        ] {
            world.database.rows(&change).await;
        }
        let new = world.store.claim_runs(&other, 1, LONG).await.unwrap().remove(0).fence;
        assert_eq!(new.run_id, lost.run_id);
        assert_eq!(world.commit_one(started(&lost)).await, Err(WriteRejection::Fenced));
        assert_eq!(world.store.raise_fence(&lost, 1).await.unwrap(), None);
        world.store.give_up_leases(std::slice::from_ref(&lost)).await.unwrap();
        let renewed = world.store.renew_leases(&other, std::slice::from_ref(&new), LONG, 0).await.unwrap().renewed;
        assert_eq!(renewed, std::slice::from_ref(&new.run_id));
        world.commit_one(completed(&new)).await.unwrap();
    }
    world.store.close().await;
}

/// D-04.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claimers_share_the_queue_without_doubles() {
    let world = World::new(Kind::Postgres).await;
    let mut queued = HashSet::new();
    for owner in [user(), user()] {
        for _ in 0..10 {
            queued.insert(world.run(&owner).await.run.id);
        }
    }
    let mut claimers = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let store = world.store.clone();
        claimers.spawn(async move {
            let node = NodeId::generate(&UuidIds);
            let mut mine = Vec::new();
            // Locked rows are skipped, so a claim may return nothing while other claimers hold the remaining rows.
            while store.next_claimable_in().await.unwrap().is_some() {
                mine.extend(store.claim_runs(&node, 3, LONG).await.unwrap().into_iter().map(|claim| claim.fence));
            }
            mine
        });
    }
    let claimed: Vec<_> = within("the claimers", SOON, claimers.join_all()).await.into_iter().flatten().collect();
    let ids: HashSet<RunId> = claimed.iter().map(|fence| fence.run_id.clone()).collect();
    assert_eq!((claimed.len(), ids), (queued.len(), queued));
    world.store.close().await;
}

/// The end's statement starts before the message commits, and waits behind it for the head's lock. Its snapshot of `runs` is
/// older than that lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_that_waited_finds_the_run_that_was_queued_meanwhile() {
    let world = World::new(Kind::Postgres).await;
    let owner = user();
    let fence = world.claimed(&owner).await;
    let mut session = hold_head(&world, fence.conversation_id.as_str()).await;

    let mut tasks = tokio::task::JoinSet::new();
    let (store, second) = (world.store.clone(), hello(&owner, &fence.conversation_id));
    let queued = second.run_id.clone();
    tasks.spawn(async move { drop(store.accept_run(second, None).await.unwrap()) });
    blocked(&world, 1).await;
    let (store, end) = (world.store.clone(), completed(&fence));
    tasks.spawn(async move { assert_eq!(store.commit(&[end]).await.unwrap().len(), 1) });
    blocked(&world, 2).await;
    sqlx::query("COMMIT").execute(&mut session).await.unwrap();
    within("the message and the end", SOON, tasks.join_all()).await;

    let active = world.store.active_run(&owner, &fence.conversation_id).await.unwrap();
    assert_eq!(active.map(|run| run.id), Some(queued.clone()));
    assert_eq!(world.status(&owner, &fence.conversation_id).await, "queued");
    assert_eq!(world.claim_one().await.run_id, queued);
    world.store.close().await;
}

/// The statement starts before the new title commits, and waits behind it for the head's lock. Its snapshot of the conversation
/// is older than that lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delayed_commit_reports_the_new_title() {
    let world = World::new(Kind::Postgres).await;
    let owner = user();
    let fence = world.claimed(&owner).await;
    let writes = [("One", ConversationStatus::Processing, started(&fence)), ("Two", ConversationStatus::Idle, completed(&fence))];
    for (title, status, write) in writes {
        let mut session = hold_head(&world, fence.conversation_id.as_str()).await;
        sqlx::query("UPDATE conversations SET title = $1").bind(title).execute(&mut session).await.unwrap();
        let write = RunWrite { events: [updated(status)].into_iter().chain(write.events).collect(), ..write };
        let after = async {
            blocked(&world, 1).await;
            sqlx::query("COMMIT").execute(&mut session).await.unwrap();
        };
        let (first, ()) = tokio::join!(world.commit_one(write), after);
        let told = world.store.events(&owner, &fence.conversation_id, first.unwrap() - 1, 1).await.unwrap().remove(0);
        assert_eq!(told.data, format!(r#"{{"title":"{title}","status":"{}"}}"#, status.as_str()));
    }
    world.store.close().await;
}

/// The same key in requests about different runs, whose heads are separate locks. The first request has written the key and not
/// yet committed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_another_request_is_about_to_keep_is_waited_for() {
    let world = World::new(Kind::Postgres).await;
    let owner = user();
    let first = world.run(&owner).await.run;
    let other = world.run(&owner).await.run;
    fresh(
        world
            .store
            .cancel_run(CancelRun { owner: &owner, id: &first.id, by: "user", now: NOW }, key(&owner, "used", "one"))
            .await
            .unwrap(),
    );
    let fence = world.claim_one().await;
    assert_eq!(fence.run_id, other.id);
    world.commit_one(failed(&fence)).await.unwrap();
    let waiting = world.run(&owner).await.run;

    let mut session = PgConnection::connect_with(&PgConnectOptions::from_str(&world.database.url).unwrap()).await.unwrap();
    sqlx::query("BEGIN").execute(&mut session).await.unwrap();
    sqlx::query(
        "INSERT INTO idempotency_keys SELECT owner_id, k, fingerprint, outcome, created_at
         FROM idempotency_keys, unnest(ARRAY['a', 'b']) AS k WHERE key = 'used'",
    )
    .execute(&mut session)
    .await
    .unwrap();
    let cancel =
        world.store.cancel_run(CancelRun { owner: &owner, id: &waiting.id, by: "user", now: NOW }, key(&owner, "a", "one"));
    let resume = world.store.resume_run(resume_request(&owner, &other.id, ResumeKind::Resume), key(&owner, "b", "two"));
    let after = async {
        blocked(&world, 2).await;
        sqlx::query("COMMIT").execute(&mut session).await.unwrap();
    };
    let (cancelled, resumed, ()) = tokio::join!(cancel, resume, after);
    let IdempotentOutcome::Replayed(CancelOutcome::Over { run, .. }) = cancelled.unwrap() else {
        panic!("what came of the first one")
    };
    assert_eq!(run.id, first.id);
    assert_eq!(resumed.unwrap(), IdempotentOutcome::Mismatch);
    assert_eq!(world.view(&owner, &waiting.id).await.run.status, RunStatus::Queued, "the request had no effect");
    assert_eq!(world.store.active_run(&owner, &fence.conversation_id).await.unwrap(), None, "the request had no effect");
    world.store.close().await;
}

/// D-14: the peer of a connection is gone without closing it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_has_fallen_silent_is_replaced_on_postgres() {
    let world = World::new(Kind::Postgres).await;
    let link = Link::to(world.database.server()).await;
    let limit = Duration::from_secs(2);
    let here = PgNotifier::new(&world.database.url_through(link.address), "here").unwrap().with_idle_timeout(limit);
    let elsewhere = PgNotifier::new(&world.database.url, "elsewhere").unwrap();
    // Each process also receives its own notifications.
    let presence = async {
        let mut pause = tokio::time::interval(limit / 10);
        loop {
            pause.tick().await;
            let _ = here.announce_presence().await;
        }
    };
    let story = async {
        let mut heard = Box::pin(here.listen());
        assert_eq!(within("the connection", SOON, heard.next()).await, Some(Notice::LogUnknown));
        let nothing = tokio::time::timeout(limit * 2, heard.next()).await;
        assert!(nothing.is_err(), "its own notification is not passed on: {nothing:?}");
        link.hush();
        assert_eq!(within("another connection", SOON, heard.next()).await, Some(Notice::LogUnknown));
        // Its own notifications must arrive on the new connection, too.
        let heard_again = async {
            loop {
                elsewhere.announce_queue().await.unwrap();
                match heard.next().await {
                    Some(Notice::LogUnknown) => {}
                    other => return other,
                }
            }
        };
        assert_eq!(within("the queue", SOON, Box::pin(heard_again)).await, Some(Notice::Queue));
    };
    tokio::select! {
        () = story => {}
        () = presence => {}
    }
    // Outgoing notifications work again, too.
    let mut heard = Box::pin(elsewhere.listen());
    assert_eq!(within("the connection", SOON, heard.next()).await, Some(Notice::LogUnknown));
    until("a hint to go out", SOON, || async { here.announce_queue().await.ok() }).await;
    assert_eq!(within("the hint", SOON, heard.next()).await, Some(Notice::Queue));
    drop(heard);
    here.close().await;
    elsewhere.close().await;
    world.store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn notification_reaches_other_processes() {
    let world = World::new(Kind::Postgres).await;
    let here = PgNotifier::new(&world.database.url, "here").unwrap();
    let elsewhere = PgNotifier::new(&world.database.url, "elsewhere").unwrap();
    let mut heard = Box::pin(elsewhere.listen());
    assert_eq!(
        within("the connection", SOON, heard.next()).await,
        Some(Notice::LogUnknown),
        "after listening starts, subscribers check the log"
    );

    let two = vec![conversation(), conversation()];
    here.announce(&two).await.unwrap();
    let hints = BTreeSet::from([
        ListHint::Changed(two[0].clone()),
        ListHint::Removed(two[1].clone(), user()),
        ListHint::Reviews(None),
        ListHint::Reviews(Some(user())),
    ]);
    here.announce_lists(&hints).await.unwrap();
    here.announce_queue().await.unwrap();
    here.announce_control().await.unwrap();
    assert_eq!(within("the logs", SOON, heard.next()).await, Some(Notice::Log(two)));
    assert_eq!(within("the lists", SOON, heard.next()).await, Some(Notice::List(hints.into_iter().collect())));
    assert_eq!(within("the queue", SOON, heard.next()).await, Some(Notice::Queue));
    assert_eq!(within("control", SOON, heard.next()).await, Some(Notice::Control));
    here.announce_presence().await.unwrap();
    assert_eq!(within("presence", SOON, heard.next()).await, Some(Notice::Present));

    // A lost connection is reopened, and subscribers check for missed events.
    let listening = "SELECT pg_terminate_backend(pid)::text FROM pg_stat_activity
                     WHERE datname = current_database() AND query LIKE 'LISTEN%'";
    assert_eq!(world.database.rows(listening).await.len(), 1);
    assert_eq!(within("the new connection", SOON, heard.next()).await, Some(Notice::LogUnknown));
    here.announce_queue().await.unwrap();
    assert_eq!(within("the queue again", SOON, heard.next()).await, Some(Notice::Queue));
    drop(heard);
    here.close().await;
    elsewhere.close().await;
    world.store.close().await;
}

#[tokio::test]
async fn a_database_that_does_not_answer_is_unavailable() {
    // A closed listener's port refuses connections.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let refused = open(&format!("postgres://nobody@127.0.0.1:{port}/none"), &StoreOptions::default()).await.err().unwrap();
    assert!(matches!(refused, StoreError::Unavailable(_)), "{refused:?}");
}

/// Deletion in many pieces, and a process that is killed between two of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_a_deleted_conversation_are_purged_later() {
    let world = World::new(Kind::Postgres).await;
    let owner = user();
    let (cut, whole) = (world.claimed(&owner).await, world.claimed(&owner).await);
    for fence in [&cut, &whole] {
        for _ in 0..6 {
            world.commit_one(deltas(fence, 1_000)).await.unwrap();
        }
    }
    let left = async |id: &ConversationId| {
        let mut left = 0;
        for (table, column) in [("events", "conversation_id"), ("messages", "conversation_id"), ("conversations", "id")] {
            left += world.database.count(&format!("SELECT count(*)::text FROM {table} WHERE {column} = '{id}'")).await;
        }
        left
    };
    world.store.delete_conversation(&owner, &whole.conversation_id).await.unwrap().unwrap();
    assert_eq!(left(&whole.conversation_id).await, 0);

    let id = &cut.conversation_id;
    for died in [
        format!("UPDATE conversations SET owner_id = '' WHERE id = '{id}'"),
        format!("DELETE FROM conversation_heads WHERE conversation_id = '{id}'"),
        format!("DELETE FROM runs WHERE conversation_id = '{id}'"),
    ] {
        world.database.rows(&died).await;
    }
    assert_eq!(world.store.conversation(&owner, id).await.unwrap(), None);
    assert_eq!(world.store.delete_conversation(&owner, id).await.unwrap(), None);
    assert_eq!(world.commit_one(deltas(&cut, 1)).await, Err(WriteRejection::Fenced));
    // A new conversation with the same id does not get the remaining rows.
    let accept = capstan::store::AcceptRun { create_with_title: Some(String::new()), ..hello(&owner, id) };
    assert_eq!(fresh(world.store.accept_run(accept, None).await.unwrap()), capstan::store::AcceptOutcome::NoConversation);
    world.store.remove_expired_idempotency(3_600_000).await.unwrap();
    assert_eq!(left(id).await, 0);
    world.accept(hello(&owner, id)).await;
}

/// A session holds the head of one conversation for long. All runs of the process wait behind the batch, so the batch is not
/// retried repeatedly.
#[tokio::test]
async fn a_batch_waits_for_a_lock_once() {
    let world = World::new(Kind::Postgres).await;
    let owner = user();
    let fences = [world.claimed(&owner).await, world.claimed(&owner).await];
    let holder = hold_head(&world, fences[0].conversation_id.as_str()).await;
    let began = std::time::Instant::now();
    let refused = world.store.commit(&[deltas(&fences[0], 1), deltas(&fences[1], 1)]).await;
    assert!(matches!(refused, Err(StoreError::Contended(_))), "{refused:?}");
    // A session's lock timeout is 2 s.
    assert!(began.elapsed() < Duration::from_millis(3_900), "{:?}", began.elapsed());
    drop(holder);
}

/// Releasing leases does not wait for locks, and returns the leases that remain.
#[tokio::test]
async fn a_lease_whose_rows_are_locked_is_given_up_later() {
    let world = World::new(Kind::Postgres).await;
    let owner = user();
    let (held, free) = (world.claimed(&owner).await, world.claimed(&owner).await);
    let lost = [held.clone(), free.clone()];
    let mut session = hold_head(&world, held.conversation_id.as_str()).await;
    let left = within("an answer", SOON, world.store.give_up_leases(&lost)).await.unwrap();
    assert_eq!(left, std::slice::from_ref(&held.run_id));
    assert_eq!(world.claim_one().await.run_id, free.run_id);
    sqlx::query("ROLLBACK").execute(&mut session).await.unwrap();
    assert_eq!(world.store.give_up_leases(&lost).await.unwrap(), []);
    let again = world.claim_one().await;
    assert_eq!((again.run_id.clone(), world.load(&again).await.crashes), (held.run_id, 0), "no crash is counted");
    world.store.close().await;
}

/// Reservations of one owner wait for each other without a connection. Other requests of the owner, and other owners, still get
/// connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reservations_of_an_owner_hold_no_other_connection() {
    let world = World::with(Kind::Postgres, &StoreOptions { max_connections: 6, ..StoreOptions::default() }).await;
    let (ann, bob) = (user(), user());
    let reserve = ReservationRequest {
        amount: Amount { tokens: 1, ..Amount::default() },
        conversation: Allowance::default(),
        day: Allowance { tokens: Some(100), usd: None },
    };
    let (of_ann, of_bob) = (world.claimed(&ann).await, world.claimed(&bob).await);
    let mut holder = session(&world).await;
    sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended($1, $2))")
        .bind(ann.as_str())
        .bind(0x6275_6467_6574_i64)
        .execute(&mut holder)
        .await
        .unwrap();
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let (store, fence, ann) = (world.store.clone(), of_ann.clone(), ann.clone());
        waiting.spawn(async move { store.reserve(&fence, &ann, &reserve).await.unwrap() });
    }
    for _ in 0..20 {
        let granted = within("another owner", SOON, world.store.reserve(&of_bob, &bob, &reserve)).await.unwrap();
        assert!(matches!(granted, Some(ReservationOutcome::Granted { .. })), "{granted:?}");
    }
    assert!(waiting.try_join_next().is_none(), "another waiting reservation went first");
    for answer in within("those who wait", SOON, waiting.join_all()).await {
        assert_eq!(answer, Some(ReservationOutcome::Busy), "the wait is limited");
    }
    sqlx::query("ROLLBACK").execute(&mut holder).await.unwrap();
    let granted = world.store.reserve(&of_ann, &ann, &reserve).await.unwrap();
    assert!(matches!(granted, Some(ReservationOutcome::Granted { .. })), "{granted:?}");
    world.store.close().await;
}
