//! Users and their keys.

use capstan::domain::ids::{KeyId, UserId};
use capstan::domain::principal::{User, UserRole};
use capstan::support::ids::UuidIds;

use super::fixture::{NOW, World};

contract! {
    a_user_is_made_once,
    a_key_names_its_user,
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
    assert_eq!(ensure(world, "ann", UserRole::Member).await, raised, "no way down by accident");
    assert_ne!(ensure(world, "Ann", UserRole::Member).await.id, raised.id);

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
    assert!(orphan.is_err(), "a key belongs to somebody");
}
