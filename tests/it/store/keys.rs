//! Users and their API keys.

use capstan::domain::access::principal::{User, UserRole};
use capstan::domain::ids::{KeyId, UserId};
use capstan::store::{IdempotencyKey, IdempotentOutcome, StoredKey};
use capstan::support::clock::UnixMillis;
use capstan::support::ids::UuidIds;

use super::fixture::{NOW, World, all_items, page};

contract! {
    ;
    a_user_is_made_once,
    a_key_names_its_user,
    a_revoked_key_is_nobodys,
    key_is_created_once_for_an_idempotency_key,
    keys_are_paged_newest_first,
}

async fn ensure(world: &World, name: &str, role: UserRole) -> User {
    world.store.ensure_user(UserId::generate(&UuidIds), name, role, NOW).await.unwrap()
}

async fn a_user_is_made_once(world: &World) {
    let made = ensure(world, "ann", UserRole::Member).await;
    assert_eq!((made.name.as_str(), made.role), ("ann", UserRole::Member));
    assert_eq!(ensure(world, "ann", UserRole::Member).await, made);
    let raised = User { role: UserRole::Admin, ..made };
    assert_eq!(ensure(world, "ann", UserRole::Admin).await, raised);
    assert_eq!(ensure(world, "ann", UserRole::Member).await, raised, "no accidental loss of the role");
    assert_ne!(ensure(world, "Ann", UserRole::Member).await.id, raised.id);
    world.store.set_role(&raised.id, UserRole::Member).await.unwrap();
    let lowered = world.store.user_named("ann").await.unwrap().unwrap();
    assert_eq!(lowered, User { role: UserRole::Member, ..raised });

    let mut together = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let store = world.store.clone();
        together
            .spawn(async move { store.ensure_user(UserId::generate(&UuidIds), "bob", UserRole::Member, NOW).await.unwrap().id });
    }
    let mut ids = together.join_all().await;
    ids.dedup();
    assert_eq!(ids.len(), 1);
}

async fn a_key_names_its_user(world: &World) {
    assert!(!world.store.has_keys(None).await.unwrap());
    let ann = ensure(world, "ann", UserRole::Admin).await;
    world.store.create_key(KeyId::generate(&UuidIds), &ann.id, "hash-1", "cap_ab", NOW).await.unwrap();
    assert!(world.store.has_keys(None).await.unwrap());
    assert_eq!(world.store.user_by_key_hash("hash-1").await.unwrap(), Some(ann.clone()));
    assert_eq!(world.store.user_by_key_hash("hash-2").await.unwrap(), None);
    let twice = world.store.create_key(KeyId::generate(&UuidIds), &ann.id, "hash-1", "cap_ab", NOW).await;
    assert!(!twice.unwrap_err().is_transient());
    let nobody = UserId::generate(&UuidIds);
    let orphan = world.store.create_key(KeyId::generate(&UuidIds), &nobody, "hash-3", "cap_ab", NOW).await;
    assert!(orphan.is_err(), "a key needs a user");
}

async fn a_revoked_key_is_nobodys(world: &World) {
    let (ann, bob) = (ensure(world, "ann", UserRole::Admin).await, ensure(world, "bob", UserRole::Member).await);
    let (first, second) = (KeyId::generate(&UuidIds), KeyId::generate(&UuidIds));
    world.store.create_key(first.clone(), &ann.id, "hash-1", "cap_1", NOW).await.unwrap();
    world.store.create_key(second.clone(), &bob.id, "hash-2", "cap_2", UnixMillis(NOW.0 + 1)).await.unwrap();
    let live = || async {
        let mut live = world.store.live_hashes(&["hash-1", "hash-2", "hash-3"].map(str::to_owned)).await.unwrap();
        live.sort();
        live
    };
    assert_eq!(live().await, ["hash-1", "hash-2"]);
    // Sessions of browsers are checked by the same question.
    world.store.create_session("session-live", &ann.id, "hash-1", 600_000).await.unwrap();
    world.store.create_session("session-over", &ann.id, "hash-1", 0).await.unwrap();
    let sessions = ["session-live", "session-over", "session-unknown"].map(str::to_owned);
    assert_eq!(world.store.live_hashes(&sessions).await.unwrap(), ["session-live"]);
    world.store.delete_session("session-live").await.unwrap();
    assert_eq!(world.store.live_hashes(&sessions).await.unwrap(), [""; 0]);
    assert_eq!(world.store.live_hashes(&[]).await.unwrap(), [""; 0]);

    let later = UnixMillis(NOW.0 + 2);
    assert!(!world.store.revoke_key(&KeyId::generate(&UuidIds), later).await.unwrap(), "there is no such key");
    assert!(world.store.revoke_key(&first, later).await.unwrap());
    assert!(!world.store.revoke_key(&first, UnixMillis(NOW.0 + 3)).await.unwrap(), "the first revocation is kept");
    assert_eq!(live().await, ["hash-2"]);
    assert_eq!(world.store.user_by_key_hash("hash-1").await.unwrap(), None);
    assert!(world.store.has_keys(None).await.unwrap());
    let keys = world.store.keys().await.unwrap();
    let key = |id, number: u8, user, created_at, revoked_at| {
        let (hash, label) = (format!("hash-{number}"), format!("cap_{number}"));
        StoredKey { id, hash, label, user, created_at, revoked_at }
    };
    let expected = [key(first, 1, ann, NOW, Some(later)), key(second.clone(), 2, bob, UnixMillis(NOW.0 + 1), None)];
    assert_eq!(keys, expected);
    assert!(world.store.revoke_key(&second, later).await.unwrap());
    assert!(!world.store.has_keys(None).await.unwrap());
}

fn new_key(user: &User, hash: &str, created_at: UnixMillis) -> StoredKey {
    let (id, hash, label) = (KeyId::generate(&UuidIds), hash.to_owned(), "laptop".to_owned());
    StoredKey { id, hash, label, user: user.clone(), created_at, revoked_at: None }
}

async fn key_is_created_once_for_an_idempotency_key(world: &World) {
    let ann = ensure(world, "ann", UserRole::Member).await;
    let request =
        |fingerprint: &str| Some(IdempotencyKey { owner: ann.id.clone(), key: "once".into(), fingerprint: fingerprint.into() });
    let (first, second) = (new_key(&ann, "hash-1", NOW), new_key(&ann, "hash-2", NOW));
    let created = world.store.create_key_once(&first, 2, request("a")).await.unwrap();
    assert_eq!(created, IdempotentOutcome::Fresh(Some(first.id.clone())));
    let again = world.store.create_key_once(&second, 2, request("a")).await.unwrap();
    assert_eq!(again, IdempotentOutcome::Replayed(Some(first.id.clone())));
    let other = world.store.create_key_once(&second, 2, request("b")).await.unwrap();
    assert_eq!(other, IdempotentOutcome::Mismatch);
    assert_eq!(world.store.keys().await.unwrap(), [first], "repeated requests store nothing");
    let free = world.store.create_key_once(&second, 2, None).await.unwrap();
    assert_eq!(free, IdempotentOutcome::Fresh(Some(second.id.clone())));
    let third = new_key(&ann, "hash-3", NOW);
    let above = world.store.create_key_once(&third, 2, None).await.unwrap();
    assert_eq!(above, IdempotentOutcome::Fresh(None));
    world.store.revoke_key(&second.id, NOW).await.unwrap();
    let free = world.store.create_key_once(&third, 2, None).await.unwrap();
    assert_eq!(free, IdempotentOutcome::Fresh(Some(third.id)), "a revoked key does not count");
}

async fn keys_are_paged_newest_first(world: &World) {
    let (ann, bob) = (ensure(world, "ann", UserRole::Member).await, ensure(world, "bob", UserRole::Member).await);
    let mut keys = Vec::new();
    // The last two have the same time.
    for (user, at) in [(&ann, 1), (&bob, 2), (&ann, 3), (&ann, 3)] {
        let key = new_key(user, &format!("hash-{}", keys.len()), UnixMillis(at));
        world.store.create_key_once(&key, 0, None).await.unwrap();
        keys.push(key);
    }
    keys.sort_by(|one, other| (other.created_at.0, &other.id).cmp(&(one.created_at.0, &one.id)));
    for user in [None, Some(&ann.id), Some(&bob.id)] {
        let expected: Vec<StoredKey> = keys.iter().filter(|key| user.is_none_or(|user| key.user.id == *user)).cloned().collect();
        let listed = all_items(async |after| world.store.keys_page(user, &page(1, after)).await.unwrap()).await;
        assert_eq!(listed, expected);
    }
}
