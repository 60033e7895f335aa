//! Users and their API keys.

use capstan::domain::access::principal::{User, UserRole};
use capstan::domain::ids::{KeyId, UserId};
use capstan::store::StoredKey;
use capstan::support::clock::UnixMillis;
use capstan::support::ids::UuidIds;

use super::fixture::{NOW, World};

contract! {
    ;
    a_user_is_made_once,
    a_key_names_its_user,
    a_revoked_key_is_nobodys,
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
    assert!(!world.store.has_keys().await.unwrap());
    let ann = ensure(world, "ann", UserRole::Admin).await;
    world.store.create_key(KeyId::generate(&UuidIds), &ann.id, "hash-1", "cap_ab", NOW).await.unwrap();
    assert!(world.store.has_keys().await.unwrap());
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
        let mut live = world.store.live_keys(&["hash-1", "hash-2", "hash-3"].map(str::to_owned)).await.unwrap();
        live.sort();
        live
    };
    assert_eq!(live().await, ["hash-1", "hash-2"]);
    assert_eq!(world.store.live_keys(&[]).await.unwrap(), [""; 0]);

    let later = UnixMillis(NOW.0 + 2);
    assert!(!world.store.revoke_key(&KeyId::generate(&UuidIds), later).await.unwrap(), "there is no such key");
    assert!(world.store.revoke_key(&first, later).await.unwrap());
    assert!(!world.store.revoke_key(&first, UnixMillis(NOW.0 + 3)).await.unwrap(), "the first revocation is kept");
    assert_eq!(live().await, ["hash-2"]);
    assert_eq!(world.store.user_by_key_hash("hash-1").await.unwrap(), None);
    assert!(world.store.has_keys().await.unwrap());
    let keys = world.store.keys().await.unwrap();
    let key = |id, label: &str, user, created_at, revoked_at| StoredKey { id, label: label.into(), user, created_at, revoked_at };
    let expected = [key(first, "cap_1", ann, NOW, Some(later)), key(second.clone(), "cap_2", bob, UnixMillis(NOW.0 + 1), None)];
    assert_eq!(keys, expected);
    assert!(world.store.revoke_key(&second, later).await.unwrap());
    assert!(!world.store.has_keys().await.unwrap());
}
