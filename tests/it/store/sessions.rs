//! Sessions of signed-in browsers.

use super::fixture::{World, user};

contract! {
    ;
    session_is_found_until_it_ends,
    expired_session_is_unknown_and_removed,
}

const LONG: u32 = 600_000;

async fn session_is_found_until_it_ends(world: &World) {
    let owner = user();
    world.store.create_session("hash", &owner, "key", LONG).await.unwrap();
    assert!(world.store.create_session("hash", &owner, "key", LONG).await.is_err(), "a hash stands for one session");
    assert_eq!(world.store.session("hash").await.unwrap(), Some((owner, "key".to_owned())));
    assert_eq!(world.store.session("other").await.unwrap(), None);
    for _ in 0..2 {
        world.store.delete_session("hash").await.unwrap();
        assert_eq!(world.store.session("hash").await.unwrap(), None);
    }
}

async fn expired_session_is_unknown_and_removed(world: &World) {
    world.store.create_session("long", &user(), "key", LONG).await.unwrap();
    world.store.create_session("over", &user(), "key", 0).await.unwrap();
    assert_eq!(world.store.session("over").await.unwrap(), None);
    assert_eq!(world.store.count_expired(0, None).await.unwrap().tickets, 1);
    assert_eq!(world.store.remove_expired_sessions().await.unwrap(), 1);
    assert_eq!(world.store.remove_expired_sessions().await.unwrap(), 0);
    assert!(world.store.session("long").await.unwrap().is_some());
}
