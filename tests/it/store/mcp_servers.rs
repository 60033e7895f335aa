//! User MCP servers and their encrypted secrets.

use std::sync::Arc;

use capstan::domain::ids::{McpServerId, UserId};
use capstan::domain::model::provider::EgressScope;
use capstan::domain::tool::mcp_server::McpServerRecord;
use capstan::store::{CreateNamedOutcome, EncryptedRow, IdempotentOutcome, SecretKind, UpdateNamedOutcome};
use capstan::support::clock::UnixMillis;
use capstan::support::encryption::EncryptedSecret;
use capstan::support::ids::UuidIds;
use serde_json::json;

use super::fixture::{NOW, World, all_items, fresh, key, page, user};
use super::providers::provider;

contract! {
    ;
    a_server_comes_back_as_it_was_made,
    a_name_is_one_of_its_owners,
    others_see_nothing_of_it,
    usable_servers_are_enabled,
    a_change_is_made_from_the_newest_version,
    a_generation_is_no_version,
    an_owner_has_only_so_many,
    a_repeated_request_makes_one,
    a_repeated_request_replaces_once,
    pages_go_by_name,
    key_rotation_covers_mcp_and_provider_secrets,
}

const MOST: u32 = 100;

pub(super) fn server(owner: Option<&UserId>, name: &str) -> McpServerRecord {
    McpServerRecord {
        id: McpServerId::generate(&UuidIds),
        owner: owner.cloned(),
        name: name.to_owned(),
        entry: json!({"command": "näh", "env": {"KEY": "${KEY}"}}).as_object().cloned().unwrap(),
        secrets: Some(EncryptedSecret { key_id: "master-1".to_owned(), data: "c2VjcmV0".to_owned() }),
        egress: EgressScope::Public,
        enabled: true,
        created_at: NOW,
        updated_at: NOW,
        version: 1,
        generation: 1,
    }
}

async fn make(world: &World, record: &McpServerRecord) -> CreateNamedOutcome<McpServerId> {
    fresh(world.store.create_mcp_server(record, MOST, None).await.unwrap())
}

async fn made(world: &World, owner: Option<&UserId>, name: &str) -> McpServerRecord {
    let record = server(owner, name);
    assert_eq!(make(world, &record).await, CreateNamedOutcome::Made(record.id.clone()));
    record
}

async fn a_server_comes_back_as_it_was_made(world: &World) {
    let ann = user();
    let own = made(world, Some(&ann), "my: own").await;
    assert_eq!(world.store.mcp_server(&ann, &own.id).await.unwrap(), Some(own));
    let bare = McpServerRecord { secrets: None, egress: EgressScope::Anywhere, enabled: false, ..server(None, "bare") };
    make(world, &bare).await;
    assert_eq!(world.store.mcp_server(&ann, &bare.id).await.unwrap(), Some(bare));
}

async fn a_name_is_one_of_its_owners(world: &World) {
    let (ann, bob) = (user(), user());
    for owner in [Some(&ann), Some(&bob), None] {
        made(world, owner, "name").await;
        assert_eq!(make(world, &server(owner, "name")).await, CreateNamedOutcome::NameTaken);
        made(world, owner, "Name").await;
    }
}

async fn others_see_nothing_of_it(world: &World) {
    let (ann, bob) = (user(), user());
    let own = made(world, Some(&ann), "own").await;
    assert_eq!(world.store.mcp_server(&bob, &own.id).await.unwrap(), None);
    assert!(world.store.mcp_servers(&bob, &page(10, None)).await.unwrap().items.is_empty());
    assert!(world.store.usable_mcp_servers(&bob).await.unwrap().is_empty());
    for owner in [Some(&bob), None] {
        assert!(!world.store.renew_mcp_server(owner, &own.id).await.unwrap());
        assert!(!world.store.delete_mcp_server(owner, &own.id, 1).await.unwrap());
    }
    assert!(!world.store.delete_mcp_server(Some(&ann), &own.id, 2).await.unwrap(), "another version");
    assert!(world.store.delete_mcp_server(Some(&ann), &own.id, 1).await.unwrap());
    assert!(!world.store.delete_mcp_server(Some(&ann), &own.id, 1).await.unwrap());
}

async fn usable_servers_are_enabled(world: &World) {
    let (ann, bob) = (user(), user());
    let own = made(world, Some(&ann), "b").await;
    let of_all = made(world, None, "a").await;
    let of_bob = made(world, Some(&bob), "c").await;
    let off = McpServerRecord { enabled: false, ..server(Some(&ann), "off") };
    make(world, &off).await;
    assert_eq!(world.store.usable_mcp_servers(&ann).await.unwrap(), [of_all.clone(), own.clone()]);
    let ids = [own.id.clone(), of_bob.id.clone(), off.id, McpServerId::generate(&UuidIds)];
    let mut found = world.store.enabled_mcp_servers(&ids).await.unwrap();
    found.sort_by(|one, other| one.name.cmp(&other.name));
    assert_eq!(found, [own, of_bob]);
    assert!(world.store.enabled_mcp_servers(&[]).await.unwrap().is_empty());
}

async fn a_change_is_made_from_the_newest_version(world: &World) {
    let ann = user();
    let first = made(world, Some(&ann), "first").await;
    made(world, Some(&ann), "taken").await;
    let changed = McpServerRecord {
        name: "second".to_owned(),
        entry: json!({"url": "https://h"}).as_object().cloned().unwrap(),
        secrets: None,
        egress: EgressScope::Anywhere,
        enabled: false,
        updated_at: UnixMillis(NOW.0 + 5),
        ..first.clone()
    };
    assert_eq!(world.store.change_mcp_server(&changed).await.unwrap(), UpdateNamedOutcome::Changed(2));
    let stored = world.store.mcp_server(&ann, &first.id).await.unwrap();
    assert_eq!(stored, Some(McpServerRecord { version: 2, ..changed.clone() }));
    assert_eq!(world.store.change_mcp_server(&changed).await.unwrap(), UpdateNamedOutcome::Stale, "based on version 1");
    let taken = McpServerRecord { name: "taken".to_owned(), version: 2, ..changed.clone() };
    assert_eq!(world.store.change_mcp_server(&taken).await.unwrap(), UpdateNamedOutcome::NameTaken);

    // Of concurrent changes to one version, one succeeds.
    let mut together = tokio::task::JoinSet::new();
    for round in 0..8 {
        let store = Arc::clone(&world.store);
        let mine = McpServerRecord { version: 2, name: format!("name-{round}"), ..changed.clone() };
        together.spawn(async move { store.change_mcp_server(&mine).await.unwrap() });
    }
    let won = together.join_all().await.into_iter().filter(|outcome| *outcome == UpdateNamedOutcome::Changed(3)).count();
    assert_eq!(won, 1);
}

async fn a_generation_is_no_version(world: &World) {
    let ann = user();
    let own = made(world, Some(&ann), "own").await;
    assert!(world.store.renew_mcp_server(Some(&ann), &own.id).await.unwrap());
    let stored = world.store.mcp_server(&ann, &own.id).await.unwrap();
    assert_eq!(stored, Some(McpServerRecord { generation: 2, ..own.clone() }));
    // A concurrent change does not undo it.
    assert_eq!(world.store.change_mcp_server(&own).await.unwrap(), UpdateNamedOutcome::Changed(2));
    let stored = world.store.mcp_server(&ann, &own.id).await.unwrap();
    assert_eq!(stored, Some(McpServerRecord { generation: 2, version: 2, ..own }));
}

async fn an_owner_has_only_so_many(world: &World) {
    let ann = user();
    let mut together = tokio::task::JoinSet::new();
    for round in 0..10 {
        let (store, record) = (Arc::clone(&world.store), server(Some(&ann), &format!("s{round}")));
        together.spawn(async move { fresh(store.create_mcp_server(&record, 3, None).await.unwrap()) });
    }
    let outcomes = together.join_all().await;
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == CreateNamedOutcome::TooMany).count(), 7, "{outcomes:?}");
    made(world, None, "another owner").await;
}

async fn a_repeated_request_makes_one(world: &World) {
    let ann = user();
    let first = server(Some(&ann), "one");
    let made = CreateNamedOutcome::Made(first.id.clone());
    assert_eq!(
        world.store.create_mcp_server(&first, MOST, key(&ann, "k", "f")).await.unwrap(),
        IdempotentOutcome::Fresh(made.clone())
    );
    let again = server(Some(&ann), "one");
    assert_eq!(world.store.create_mcp_server(&again, MOST, key(&ann, "k", "f")).await.unwrap(), IdempotentOutcome::Replayed(made));
    assert_eq!(world.store.create_mcp_server(&again, MOST, key(&ann, "k", "other")).await.unwrap(), IdempotentOutcome::Mismatch);
}

async fn a_repeated_request_replaces_once(world: &World) {
    let ann = user();
    let first = made(world, Some(&ann), "one").await;
    made(world, Some(&ann), "taken").await;
    let replace = async |changed: &McpServerRecord, name: &str, fingerprint: &str| {
        world.store.replace_mcp_server(changed, key(&ann, name, fingerprint)).await.unwrap()
    };
    let replaced = McpServerRecord {
        entry: json!({"url": "https://h"}).as_object().cloned().unwrap(),
        secrets: None,
        updated_at: UnixMillis(NOW.0 + 5),
        ..first.clone()
    };
    assert_eq!(replace(&replaced, "k", "f").await, IdempotentOutcome::Fresh(UpdateNamedOutcome::Changed(2)));
    let stored = world.store.mcp_server(&ann, &first.id).await.unwrap();
    assert_eq!(stored, Some(McpServerRecord { version: 2, ..replaced.clone() }));

    // A change in between stays, even if the repeated request has read it.
    let between = McpServerRecord { enabled: false, version: 2, ..replaced.clone() };
    assert_eq!(world.store.change_mcp_server(&between).await.unwrap(), UpdateNamedOutcome::Changed(3));
    let again = McpServerRecord { version: 3, ..replaced.clone() };
    assert_eq!(replace(&again, "k", "f").await, IdempotentOutcome::Replayed(UpdateNamedOutcome::Changed(2)));
    assert_eq!(replace(&again, "k", "other").await, IdempotentOutcome::Mismatch);
    let stored = world.store.mcp_server(&ann, &first.id).await.unwrap();
    assert_eq!(stored, Some(McpServerRecord { version: 3, ..between }));

    // A request without effect is attempted again.
    let taken = McpServerRecord { name: "taken".to_owned(), ..again.clone() };
    assert_eq!(replace(&replaced, "l", "f").await, IdempotentOutcome::Fresh(UpdateNamedOutcome::Stale), "based on version 1");
    assert_eq!(replace(&taken, "l", "f").await, IdempotentOutcome::Fresh(UpdateNamedOutcome::NameTaken));
    assert_eq!(replace(&again, "l", "f").await, IdempotentOutcome::Fresh(UpdateNamedOutcome::Changed(4)));
    let without_a_key = McpServerRecord { version: 4, ..again };
    let outcome = world.store.replace_mcp_server(&without_a_key, None).await.unwrap();
    assert_eq!(outcome, IdempotentOutcome::Fresh(UpdateNamedOutcome::Changed(5)));

    // Of concurrent requests with one key, one is executed, and the others get its answer.
    let mut together = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (store, mine) = (Arc::clone(&world.store), McpServerRecord { version: 5, ..without_a_key.clone() });
        let claim = key(&ann, "m", "f");
        together.spawn(async move { store.replace_mcp_server(&mine, claim).await.unwrap() });
    }
    let outcomes = together.join_all().await;
    let fresh = outcomes.iter().filter(|outcome| **outcome == IdempotentOutcome::Fresh(UpdateNamedOutcome::Changed(6))).count();
    let replayed =
        outcomes.iter().filter(|outcome| **outcome == IdempotentOutcome::Replayed(UpdateNamedOutcome::Changed(6))).count();
    assert_eq!((fresh, replayed), (1, 7), "{outcomes:?}");
}

async fn pages_go_by_name(world: &World) {
    let (ann, bob) = (user(), user());
    for (owner, name) in [(Some(&ann), "b"), (None, "b"), (None, "B: x"), (Some(&ann), "a-1"), (Some(&bob), "a"), (None, "a_1")] {
        made(world, owner, name).await;
    }
    let found = all_items(async |after| world.store.mcp_servers(&ann, &page(1, after)).await.unwrap()).await;
    let names: Vec<String> = found.into_iter().map(|record| record.name).collect();
    assert_eq!(names, ["B: x", "a-1", "a_1", "b", "b"]);
}

async fn key_rotation_covers_mcp_and_provider_secrets(world: &World) {
    let ann = user();
    let own = made(world, Some(&ann), "own").await;
    make(world, &McpServerRecord { secrets: None, ..server(None, "bare") }).await;
    let beside = provider(None, "beside");
    world.store.create_provider(&beside, MOST, None).await.unwrap();
    assert_eq!(world.store.master_keys_in_use().await.unwrap(), [("master-1".to_owned(), 2)]);
    let (of_server, of_provider) = (own.secrets.clone().unwrap(), beside.key.unwrap().encrypted);
    let rows = [
        EncryptedRow { of: SecretKind::McpServer, owner: Some(ann.clone()), id: own.id.as_str().to_owned(), encrypted: of_server },
        EncryptedRow { of: SecretKind::Provider, owner: None, id: beside.id.as_str().to_owned(), encrypted: of_provider },
    ];
    assert_eq!(world.store.encrypted_rows(None, 10).await.unwrap(), rows);
    assert_eq!(world.store.encrypted_rows(None, 1).await.unwrap(), rows[..1]);
    assert_eq!(world.store.encrypted_rows(Some(&rows[0].id), 10).await.unwrap(), rows[1..]);
    let anew = EncryptedSecret { key_id: "master-2".to_owned(), data: "bmV3".to_owned() };
    assert!(world.store.reencrypt(&rows[0], Some(&anew)).await.unwrap());
    assert!(!world.store.reencrypt(&rows[0], Some(&anew)).await.unwrap(), "it was encrypted again before");
    let stored = world.store.mcp_server(&ann, &own.id).await.unwrap();
    assert_eq!(stored, Some(McpServerRecord { secrets: Some(anew), version: 2, ..own.clone() }));
    assert_eq!(
        world.store.change_mcp_server(&own).await.unwrap(),
        UpdateNamedOutcome::Stale,
        "it would restore the old encryption"
    );
}
