//! Behaviour that only a database file has: its lock, a second process, a crash.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use capstan::domain::ids::NodeId;
use capstan::store::{Durability, StoreError, StoreOptions, open};
use capstan::support::ids::UuidIds;

use super::fixture::{LONG, World, conversation, deltas, hello, user};
use support::database::Kind;

#[tokio::test]
async fn a_second_server_is_refused() {
    let world = World::new(Kind::Sqlite).await;
    let refused = open(&world.database.url, &StoreOptions::default()).await.err().expect("the folder is taken");
    assert!(matches!(refused, StoreError::Locked(_)));
    let message = refused.to_string();
    assert!(message.contains("capstan.lock") && message.contains("another data folder"), "{message}");

    // A command beside the server may write.
    let beside = StoreOptions { exclusive: false, ..StoreOptions::default() };
    let command = open(&world.database.url, &beside).await.unwrap();
    let id = capstan::domain::ids::UserId::generate(&UuidIds);
    let ann =
        command.ensure_user(id, "ann", capstan::domain::access::principal::UserRole::Member, super::fixture::NOW).await.unwrap();
    let key = capstan::domain::ids::KeyId::generate(&UuidIds);
    command.create_key(key, &ann.id, "hash", "cap_", super::fixture::NOW).await.unwrap();
    command.close().await;
    assert_eq!(world.store.user_by_key_hash("hash").await.unwrap(), Some(ann));

    // Closing releases the folder.
    world.store.close().await;
    open(&world.database.url, &StoreOptions::default()).await.unwrap().close().await;
}

#[tokio::test]
async fn urls_that_name_no_store_are_refused() {
    for url in ["", "x", "mysql://localhost/x", "sqlite::memory:", "sqlite://", "sqlite:x?mode=memory"] {
        let refused = open(url, &StoreOptions::default()).await.err().expect("no store");
        assert!(matches!(refused, StoreError::Migration(_)), "{url}: {refused}");
    }
}

#[tokio::test]
async fn written_rows_survive_a_restart() {
    let world = World::new(Kind::Sqlite).await;
    let owner = user();
    let fence = world.claimed(&owner).await;
    world.commit_one(deltas(&fence, 3)).await.unwrap();
    let log = world.log(&owner, &fence.conversation_id).await;
    world.store.close().await;
    let store = open(&world.database.url, &StoreOptions::default()).await.unwrap();
    assert_eq!(store.events(&owner, &fence.conversation_id, 0, 1_000).await.unwrap(), log);
    let node = NodeId::generate(&UuidIds);
    assert_eq!(store.expire_foreign_leases(&node).await.unwrap(), 1);
    let claims = store.claim_runs(&node, 10, LONG).await.unwrap();
    assert_eq!((claims.len(), &claims[0].fence.run_id), (1, &fence.run_id));
    store.close().await;
}

/// Each commit of the writer waits for the disk unless the settings say otherwise. The connection is private to the store,
/// so a trigger records its pragmas.
#[tokio::test]
async fn a_commit_waits_for_the_disk_by_default() {
    let normal = StoreOptions { durability: Durability::Normal, ..StoreOptions::default() };
    // FULL is 2, NORMAL is 1.
    for (options, synchronous) in [(StoreOptions::default(), "2"), (normal, "1")] {
        let world = World::with(Kind::Sqlite, &options).await;
        for watch in [
            "CREATE TABLE pragmas_seen (synchronous text, journal_mode text)",
            "CREATE TRIGGER see_pragmas AFTER INSERT ON conversations BEGIN
                 INSERT INTO pragmas_seen SELECT s.synchronous, j.journal_mode FROM pragma_synchronous s, pragma_journal_mode j;
             END",
        ] {
            world.database.rows(watch).await;
        }
        world.run(&user()).await;
        let seen = world.database.rows("SELECT synchronous, journal_mode FROM pragmas_seen").await;
        assert_eq!(seen, [[Some(synchronous.to_owned()), Some("wal".to_owned())]]);
        world.store.close().await;
    }
}

/// 300 concurrent streaming runs: the batch of a busy log writer. Prints the time it takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[expect(clippy::print_stdout, reason = "the figures are shown with --no-capture")]
async fn a_batch_of_300_deltas_is_one_short_transaction() {
    let world = World::new(Kind::Sqlite).await;
    let owner = user();
    for _ in 0..300 {
        world.run(&owner).await;
    }
    let node = NodeId::generate(&UuidIds);
    let began = std::time::Instant::now();
    let claims = world.store.claim_runs(&node, 300, LONG).await.unwrap();
    println!("claim of {}: {:?}", claims.len(), began.elapsed());
    let batch: Vec<_> = claims.iter().map(|claim| deltas(&claim.fence, 1)).collect();
    let mut times: Vec<_> = Vec::new();
    for _ in 0..50 {
        let began = std::time::Instant::now();
        let answers = world.store.commit(&batch).await.unwrap();
        times.push(began.elapsed());
        assert!(answers.iter().all(Result::is_ok));
    }
    times.sort();
    println!("commit of 300 deltas: p50 {:?}, p90 {:?}, max {:?}", times[25], times[45], times[49]);
    // Far above the usual time, and far below the time of one statement for each row: this guards the shape, not the figure.
    // The best of all attempts counts, because machine and disk may be busy.
    assert!(times[0] < std::time::Duration::from_millis(100), "{:?}", times[0]);
    world.store.close().await;
}

/// A lease renewal does not wait for a whole burst of messages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_of_messages_keeps_no_lease_waiting() {
    let world = World::new(Kind::Sqlite).await;
    let owner = user();
    let fence = world.claimed(&owner).await;
    let accepted = Arc::new(AtomicUsize::new(0));
    let mut burst = tokio::task::JoinSet::new();
    for _ in 0..300 {
        let (store, owner, accepted) = (world.store.clone(), owner.clone(), Arc::clone(&accepted));
        burst.spawn(async move {
            store.accept_run(hello(&owner, &conversation()), None).await.unwrap();
            accepted.fetch_add(1, Ordering::SeqCst);
        });
    }
    burst.join_next().await.unwrap().unwrap();
    let before = accepted.load(Ordering::SeqCst);
    assert!(before < 200, "the burst is under way: {before}");
    world.store.renew_leases(&world.node, std::slice::from_ref(&fence), LONG, 0).await.unwrap();
    world.commit_one(deltas(&fence, 1)).await.unwrap();
    let meanwhile = accepted.load(Ordering::SeqCst) - before;
    assert!(meanwhile < 50, "{meanwhile} messages were accepted before a lease was renewed and an event written");
    while let Some(done) = burst.join_next().await {
        done.unwrap();
    }
    assert_eq!(accepted.load(Ordering::SeqCst), 300);
}
