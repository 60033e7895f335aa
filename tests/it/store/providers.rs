//! User providers, their encrypted keys, and logins.

use std::sync::Arc;

use capstan::domain::ids::{ProviderId, UserId};
use capstan::domain::model::provider::{CallLimits, EgressScope, ModelEntry, ProviderKind, ProviderRecord, StoredSecret};
use capstan::store::{EncryptedRow, IdempotentOutcome, LoginClaimant, ProviderChanged, ProviderLogin, ProviderMade, SecretKind};
use capstan::support::clock::UnixMillis;
use capstan::support::encryption::EncryptedSecret;
use capstan::support::ids::UuidIds;
use serde_json::json;

use super::fixture::{NOW, World, all_items, fresh, key, page, user};

contract! {
    ;
    a_provider_comes_back_as_it_was_made,
    a_name_is_one_of_its_owners,
    a_name_stands_for_the_owners_own_first,
    others_see_nothing_of_it,
    a_change_is_made_from_the_newest_version,
    an_owner_has_only_so_many,
    a_repeated_request_makes_one,
    pages_go_by_name,
    provider_secrets_can_be_rotated,
    a_login_is_given_to_one,
    name_with_nul_is_stored_without_it,
    page_limit_of_zero_is_one,
}

const MOST: u32 = 100;

fn encrypted(text: &str) -> EncryptedSecret {
    EncryptedSecret { key_id: "master-1".to_owned(), data: text.to_owned() }
}

pub fn provider(owner: Option<&UserId>, name: &str) -> ProviderRecord {
    let mut model = ModelEntry::named("gpt-ä/x");
    model.prices = serde_json::from_value(json!({"input": 1.25, "output": 10})).unwrap();
    model.vision = Some(false);
    ProviderRecord {
        id: ProviderId::generate(&UuidIds),
        owner: owner.cloned(),
        name: name.to_owned(),
        kind: ProviderKind::OpenaiResponses,
        base_url: "https://example.com/v1?api-version=1".to_owned(),
        egress: EgressScope::Public,
        key: Some(StoredSecret { encrypted: encrypted("c2VjcmV0"), hint: Some("abcd".to_owned()) }),
        models: vec![model],
        limits: CallLimits { idle_ms: Some(90_000), ..CallLimits::default() },
        quirks: json!({"key_header": "api-key"}).as_object().cloned(),
        enabled: true,
        created_at: NOW,
        updated_at: NOW,
        version: 1,
    }
}

async fn make(world: &World, record: &ProviderRecord) -> ProviderMade {
    fresh(world.store.create_provider(record, MOST, None).await.unwrap())
}

async fn made(world: &World, owner: Option<&UserId>, name: &str) -> ProviderRecord {
    let record = provider(owner, name);
    assert_eq!(make(world, &record).await, ProviderMade::Made(record.id.clone()));
    record
}

async fn named(world: &World, owner: &UserId, name: &str) -> Option<ProviderId> {
    world.store.provider_named(owner, name).await.unwrap().map(|record| record.id)
}

async fn a_provider_comes_back_as_it_was_made(world: &World) {
    let ann = user();
    let record = made(world, Some(&ann), "own").await;
    assert_eq!(world.store.provider(&ann, &record.id).await.unwrap(), Some(record.clone()));
    assert_eq!(world.store.provider_named(&ann, "own").await.unwrap(), Some(record));
    let bare = ProviderRecord {
        key: None,
        models: Vec::new(),
        limits: CallLimits::default(),
        quirks: None,
        egress: EgressScope::Anywhere,
        ..provider(None, "bare")
    };
    make(world, &bare).await;
    assert_eq!(world.store.provider(&ann, &bare.id).await.unwrap(), Some(bare));
}

async fn a_name_is_one_of_its_owners(world: &World) {
    let (ann, bob) = (user(), user());
    for owner in [Some(&ann), Some(&bob), None] {
        made(world, owner, "name").await;
        assert_eq!(make(world, &provider(owner, "name")).await, ProviderMade::NameTaken);
        made(world, owner, "Name").await;
    }
}

async fn a_name_stands_for_the_owners_own_first(world: &World) {
    let (ann, bob) = (user(), user());
    let global = made(world, None, "name").await;
    assert_eq!(named(world, &ann, "name").await, Some(global.id.clone()));
    let own = made(world, Some(&ann), "name").await;
    assert_eq!(named(world, &ann, "name").await, Some(own.id.clone()));
    assert_eq!(named(world, &bob, "name").await, Some(global.id.clone()));
    // A disabled provider does not take precedence.
    let off = ProviderRecord { enabled: false, ..own };
    assert_eq!(world.store.change_provider(&off).await.unwrap(), ProviderChanged::Changed(2));
    assert_eq!(named(world, &ann, "name").await, Some(global.id));
    assert_eq!(named(world, &ann, "nam").await, None);
    assert_eq!(named(world, &ann, "na\u{0}me").await, None);
}

async fn others_see_nothing_of_it(world: &World) {
    let (ann, bob) = (user(), user());
    let own = made(world, Some(&ann), "own").await;
    assert_eq!(world.store.provider(&bob, &own.id).await.unwrap(), None);
    assert_eq!(named(world, &bob, "own").await, None);
    assert!(world.store.providers(&bob, &page(10, None)).await.unwrap().items.is_empty());
    for owner in [Some(&bob), None] {
        assert!(!world.store.delete_provider(owner, &own.id, 1).await.unwrap());
    }
    assert!(world.store.provider(&ann, &own.id).await.unwrap().is_some());
    assert!(!world.store.delete_provider(Some(&ann), &own.id, 2).await.unwrap(), "another version");
    assert!(world.store.delete_provider(Some(&ann), &own.id, 1).await.unwrap());
    assert!(!world.store.delete_provider(Some(&ann), &own.id, 1).await.unwrap());
}

async fn a_change_is_made_from_the_newest_version(world: &World) {
    let ann = user();
    let first = made(world, Some(&ann), "first").await;
    made(world, Some(&ann), "taken").await;
    let changed = ProviderRecord {
        name: "second".to_owned(),
        kind: ProviderKind::Ollama,
        base_url: "http://127.0.0.1:1".to_owned(),
        egress: EgressScope::Anywhere,
        key: None,
        models: Vec::new(),
        limits: CallLimits { total_ms: Some(1), ..CallLimits::default() },
        quirks: None,
        enabled: false,
        updated_at: UnixMillis(NOW.0 + 5),
        ..first.clone()
    };
    assert_eq!(world.store.change_provider(&changed).await.unwrap(), ProviderChanged::Changed(2));
    let stored = world.store.provider(&ann, &first.id).await.unwrap();
    assert_eq!(stored, Some(ProviderRecord { version: 2, ..changed.clone() }));
    assert_eq!(world.store.change_provider(&changed).await.unwrap(), ProviderChanged::Stale, "based on version 1");
    let taken = ProviderRecord { name: "taken".to_owned(), version: 2, ..changed.clone() };
    assert_eq!(world.store.change_provider(&taken).await.unwrap(), ProviderChanged::NameTaken);
    let nothing = ProviderRecord { id: ProviderId::generate(&UuidIds), ..taken };
    assert_eq!(world.store.change_provider(&nothing).await.unwrap(), ProviderChanged::Stale);

    // Of concurrent changes to one version, one succeeds.
    let mut together = tokio::task::JoinSet::new();
    for round in 0..8 {
        let store = Arc::clone(&world.store);
        let mine = ProviderRecord { version: 2, name: format!("name-{round}"), ..changed.clone() };
        together.spawn(async move { store.change_provider(&mine).await.unwrap() });
    }
    let won = together.join_all().await.into_iter().filter(|outcome| *outcome == ProviderChanged::Changed(3)).count();
    assert_eq!(won, 1);
}

async fn an_owner_has_only_so_many(world: &World) {
    let ann = user();
    let mut together = tokio::task::JoinSet::new();
    for round in 0..10 {
        let (store, record) = (Arc::clone(&world.store), provider(Some(&ann), &format!("p{round}")));
        together.spawn(async move { fresh(store.create_provider(&record, 3, None).await.unwrap()) });
    }
    let outcomes = together.join_all().await;
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == ProviderMade::TooMany).count(), 7, "{outcomes:?}");
    made(world, None, "another owner").await;
}

async fn a_repeated_request_makes_one(world: &World) {
    let ann = user();
    let first = provider(Some(&ann), "one");
    let made = ProviderMade::Made(first.id.clone());
    assert_eq!(
        world.store.create_provider(&first, MOST, key(&ann, "k", "f")).await.unwrap(),
        IdempotentOutcome::Fresh(made.clone())
    );
    let again = provider(Some(&ann), "one");
    assert_eq!(world.store.create_provider(&again, MOST, key(&ann, "k", "f")).await.unwrap(), IdempotentOutcome::Replayed(made));
    assert_eq!(world.store.create_provider(&again, MOST, key(&ann, "k", "other")).await.unwrap(), IdempotentOutcome::Mismatch);
    // A refused request may be repeated with the same key.
    let taken = world.store.create_provider(&again, MOST, key(&ann, "k2", "f")).await.unwrap();
    assert_eq!(taken, IdempotentOutcome::Fresh(ProviderMade::NameTaken));
    let other = provider(Some(&ann), "other");
    let tried = world.store.create_provider(&other, MOST, key(&ann, "k2", "f")).await.unwrap();
    assert_eq!(tried, IdempotentOutcome::Fresh(ProviderMade::Made(other.id)));
}

async fn pages_go_by_name(world: &World) {
    let (ann, bob) = (user(), user());
    for (owner, name) in [(Some(&ann), "b"), (None, "b"), (None, "B"), (Some(&ann), "a-1"), (Some(&bob), "a"), (None, "a_1")] {
        made(world, owner, name).await;
    }
    let found = all_items(async |after| {
        let page = world.store.providers(&ann, &page(2, after)).await.unwrap();
        assert!(page.items.len() <= 2);
        page
    });
    let found = found.await;
    assert_eq!(found.len(), 5);
    let mut sorted: Vec<&str> = found.iter().map(|record| record.name.as_str()).collect();
    sorted.dedup();
    assert_eq!(sorted, ["B", "a-1", "a_1", "b"]);
}

async fn provider_secrets_can_be_rotated(world: &World) {
    let ann = user();
    let own = made(world, Some(&ann), "own").await;
    let global = made(world, None, "global").await;
    make(world, &ProviderRecord { key: None, ..provider(None, "bare") }).await;
    assert_eq!(world.store.master_keys_in_use().await.unwrap(), [("master-1".to_owned(), 2)]);
    let rows = world.store.encrypted_rows(None, 10).await.unwrap();
    let expected = |record: &ProviderRecord| EncryptedRow {
        of: SecretKind::Provider,
        owner: record.owner.clone(),
        id: record.id.as_str().to_owned(),
        encrypted: record.key.as_ref().unwrap().encrypted.clone(),
    };
    assert_eq!(rows, [expected(&own), expected(&global)]);
    let first = world.store.encrypted_rows(None, 1).await.unwrap();
    assert_eq!(world.store.encrypted_rows(Some(&first[0].id), 10).await.unwrap(), [expected(&global)]);

    let anew = EncryptedSecret { key_id: "master-2".to_owned(), data: "bmV3".to_owned() };
    assert!(world.store.reencrypt(&rows[0], Some(&anew)).await.unwrap());
    assert!(!world.store.reencrypt(&rows[0], Some(&anew)).await.unwrap(), "it was encrypted again before");
    let stored = world.store.provider(&ann, &own.id).await.unwrap().unwrap();
    let key = Some(StoredSecret { encrypted: anew, hint: Some("abcd".to_owned()) });
    assert_eq!(stored, ProviderRecord { key, version: 2, ..own.clone() }, "other fields are unchanged");
    // A change that is based on the earlier version would restore the old encryption.
    assert_eq!(world.store.change_provider(&own).await.unwrap(), ProviderChanged::Stale);
    let counts = [("master-1".to_owned(), 1), ("master-2".to_owned(), 1)];
    assert_eq!(world.store.master_keys_in_use().await.unwrap(), counts);

    assert!(world.store.reencrypt(&rows[1], None).await.unwrap());
    let stored = world.store.provider(&ann, &global.id).await.unwrap();
    assert_eq!(stored, Some(ProviderRecord { key: None, version: 2, ..global }), "a provider without its key is a new version");
}

async fn a_login_is_given_to_one(world: &World) {
    let (owner, verifier) = (user(), encrypted("dmVyaWZpZXI="));
    let login = ProviderLogin { owner, browser_hash: "browser".to_owned(), key_hash: Some("key".to_owned()), verifier };
    let takers = [LoginClaimant::Owner(login.owner.clone()), LoginClaimant::Browser("browser".to_owned())];
    for round in 0..10 {
        let state = format!("state-{round}");
        world.store.create_login(&state, &login, 600_000).await.unwrap();
        // The state alone does not take a login.
        for stranger in
            [LoginClaimant::Owner(user()), LoginClaimant::Browser("other".to_owned()), LoginClaimant::Browser(String::new())]
        {
            assert_eq!(world.store.take_login(&state, &stranger).await.unwrap(), None, "{stranger:?}");
        }
        let mut together = tokio::task::JoinSet::new();
        for turn in 0..8 {
            let (store, state, taker) = (Arc::clone(&world.store), state.clone(), takers[turn % 2].clone());
            together.spawn(async move { store.take_login(&state, &taker).await.unwrap() });
        }
        let got: Vec<_> = together.join_all().await.into_iter().flatten().collect();
        assert_eq!(got, std::slice::from_ref(&login));
    }
    let login = ProviderLogin { key_hash: None, ..login };
    world.store.create_login("old", &login, 600_000).await.unwrap();
    world.store.create_login("new", &login, 600_000).await.unwrap();
    assert_eq!(world.store.take_login("old", &takers[0]).await.unwrap(), None, "only the newest login of an owner is valid");
    assert_eq!(world.store.take_login("new", &takers[0]).await.unwrap(), Some(login.clone()));
    world.store.create_login("expired", &login, 0).await.unwrap();
    assert_eq!(world.store.take_login("expired", &takers[1]).await.unwrap(), None);
}

async fn name_with_nul_is_stored_without_it(world: &World) {
    let ann = user();
    let record = made(world, Some(&ann), "a\0b").await;
    let stored = world.store.provider(&ann, &record.id).await.unwrap().unwrap();
    assert_eq!(stored.name, "a\u{fffd}b");
    assert_eq!(named(world, &ann, "a\0b").await, Some(record.id.clone()));
    assert_eq!(make(world, &provider(Some(&ann), "a\u{fffd}b")).await, ProviderMade::NameTaken);
    let other = made(world, Some(&ann), "other").await;
    let renamed = ProviderRecord { name: "a\0b".to_owned(), ..other };
    assert_eq!(world.store.change_provider(&renamed).await.unwrap(), ProviderChanged::NameTaken);
}

async fn page_limit_of_zero_is_one(world: &World) {
    let ann = user();
    made(world, Some(&ann), "a").await;
    made(world, Some(&ann), "b").await;
    let first = world.store.providers(&ann, &page(0, None)).await.unwrap();
    assert_eq!(first.items.iter().map(|provider| provider.name.as_str()).collect::<Vec<_>>(), ["a"]);
    let second = world.store.providers(&ann, &page(0, first.next)).await.unwrap();
    assert_eq!((second.items.len(), second.next), (1, None));
}
