//! Limitations of models that refusals showed.

use capstan::domain::model::provider::LearnedLimitation;
use capstan::support::clock::UnixMillis;
use rstest::rstest;

use super::fixture::World;
use support::database::Kind;

const LATER: UnixMillis = UnixMillis(4_000_000_000_000);

fn learned(model: &str, limitation: &str, until: UnixMillis) -> LearnedLimitation {
    let change = "tools_left_out".to_owned();
    LearnedLimitation { model: model.to_owned(), limitation: limitation.to_owned(), change, until }
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn learned_limitations_are_kept_until_they_expire(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let world = World::new(kind).await;
    let store = &world.store;
    let known = [learned("a", "one", LATER), learned("b", "one", LATER), learned("a", "two", UnixMillis(1))];
    store.keep_model_limitations("acme", &known).await.unwrap();
    store.keep_model_limitations("other", &[learned("a", "three", LATER)]).await.unwrap();
    // The same fact twice is one row with the newer expiry.
    let again = learned("a", "one", UnixMillis(LATER.0 + 1));
    store.keep_model_limitations("acme", &[again.clone(), again.clone()]).await.unwrap();
    assert_eq!(store.model_limitations("acme", Some("a")).await.unwrap(), std::slice::from_ref(&again));
    assert_eq!(store.model_limitations("acme", None).await.unwrap(), [again, learned("b", "one", LATER)]);
    assert_eq!(store.count_expired(0, None).await.unwrap().limitations, 1);
    assert_eq!(store.remove_expired_model_limitations().await.unwrap(), 1);
    assert_eq!(store.count_expired(0, None).await.unwrap().limitations, 0);
    assert_eq!(store.remove_expired_model_limitations().await.unwrap(), 0);
}
