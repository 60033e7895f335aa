//! Agents of owners and their versions.

use std::sync::Arc;

use capstan::domain::agent::agent_record::{AgentRecord, AgentVersion};
use capstan::domain::ids::{AgentId, UserId};
use capstan::store::{AgentVersionCursor, CreateNamedOutcome, IdempotentOutcome, MAX_AGENT_VERSIONS, UpdateNamedOutcome};
use capstan::support::clock::UnixMillis;
use capstan::support::ids::UuidIds;
use serde_json::json;

use super::fixture::{NOW, World, all_items, fresh, key, page, user};

contract! {
    ;
    an_agent_comes_back_as_it_was_made,
    a_name_is_one_of_its_owners_agents,
    others_see_no_agent,
    runs_get_the_newest_version_or_the_pinned_one,
    an_agent_changes_from_its_newest_revision,
    old_versions_go,
    an_owner_has_only_so_many_agents,
    a_repeated_request_makes_one_agent,
    agents_go_by_name,
}

const MOST: u32 = 100;

fn version(number: u32, by: &UserId) -> AgentVersion {
    AgentVersion {
        number,
        profile: json!({"max_rounds": number, "system_prompt": "näh"}).as_object().cloned().unwrap(),
        note: format!("note {number}"),
        created_by: by.clone(),
        created_at: NOW,
    }
}

fn agent(owner: Option<&UserId>, name: &str) -> AgentRecord {
    AgentRecord {
        id: AgentId::generate(&UuidIds),
        owner: owner.cloned(),
        name: name.to_owned(),
        description: "für alles".to_owned(),
        pinned: None,
        latest: 1,
        profile: version(1, &user()).profile,
        created_at: NOW,
        updated_at: NOW,
        revision: 1,
    }
}

async fn make(world: &World, record: &AgentRecord) -> CreateNamedOutcome<AgentId> {
    fresh(world.store.create_agent(record, &version(1, &user()), MOST, None).await.unwrap())
}

async fn made(world: &World, owner: Option<&UserId>, name: &str) -> AgentRecord {
    let record = agent(owner, name);
    assert_eq!(make(world, &record).await, CreateNamedOutcome::Made(record.id.clone()));
    record
}

/// Stores another version of the agent.
async fn again(world: &World, record: &AgentRecord, by: &UserId) -> AgentRecord {
    let next = version(record.latest + 1, by);
    let changed = AgentRecord { latest: next.number, ..record.clone() };
    let outcome = world.store.change_agent(&changed, Some(&next)).await.unwrap();
    assert_eq!(outcome, UpdateNamedOutcome::Changed(record.revision + 1));
    AgentRecord { profile: next.profile, revision: record.revision + 1, ..changed }
}

async fn an_agent_comes_back_as_it_was_made(world: &World) {
    let ann = user();
    let own = made(world, Some(&ann), "own").await;
    assert_eq!(world.store.agent(&ann, &own.id).await.unwrap(), Some(own.clone()));
    assert_eq!(world.store.agent_named(&ann, "own").await.unwrap(), Some(own.clone()));
    let by = user();
    let first = version(1, &by);
    let global = agent(None, "all");
    world.store.create_agent(&global, &first, MOST, None).await.unwrap();
    assert_eq!(world.store.agent(&ann, &global.id).await.unwrap(), Some(global.clone()));
    assert_eq!(world.store.agent_version(&global.id, 1).await.unwrap(), Some(first));
    assert_eq!(world.store.agent_version(&global.id, 2).await.unwrap(), None);
}

async fn a_name_is_one_of_its_owners_agents(world: &World) {
    let (ann, bob) = (user(), user());
    for owner in [Some(&ann), Some(&bob), None] {
        made(world, owner, "name").await;
        assert_eq!(make(world, &agent(owner, "name")).await, CreateNamedOutcome::NameTaken);
        made(world, owner, "Name").await;
    }
    let found = world.store.agent_named(&ann, "name").await.unwrap().unwrap();
    assert_eq!(found.owner, Some(ann), "her own takes precedence");
    assert_eq!(world.store.agent_named(&user(), "name").await.unwrap().unwrap().owner, None);
}

async fn others_see_no_agent(world: &World) {
    let (ann, bob) = (user(), user());
    let own = made(world, Some(&ann), "own").await;
    assert_eq!(world.store.agent(&bob, &own.id).await.unwrap(), None);
    assert_eq!(world.store.agent_named(&bob, "own").await.unwrap(), None);
    assert!(world.store.agents(&bob, &page(10, None)).await.unwrap().items.is_empty());
    for owner in [Some(&bob), None] {
        assert!(!world.store.delete_agent(owner, &own.id, 1).await.unwrap());
    }
    assert!(!world.store.delete_agent(Some(&ann), &own.id, 2).await.unwrap(), "another revision");
    assert!(world.store.delete_agent(Some(&ann), &own.id, 1).await.unwrap());
    assert!(!world.store.delete_agent(Some(&ann), &own.id, 1).await.unwrap());
    assert_eq!(world.store.agent_version(&own.id, 1).await.unwrap(), None, "no version is left");
}

async fn runs_get_the_newest_version_or_the_pinned_one(world: &World) {
    let ann = user();
    let first = made(world, Some(&ann), "own").await;
    let second = again(world, &first, &ann).await;
    assert_eq!(world.store.agent(&ann, &first.id).await.unwrap(), Some(second.clone()));
    let pinned = AgentRecord { pinned: Some(1), ..second.clone() };
    assert_eq!(world.store.change_agent(&pinned, None).await.unwrap(), UpdateNamedOutcome::Changed(3));
    let stored = world.store.agent(&ann, &first.id).await.unwrap().unwrap();
    assert_eq!((stored.current(), stored.latest, &stored.profile), (1, 2, &first.profile));
    let found = world.store.agent_versions(&first.id, &page(1, None)).await.unwrap();
    assert_eq!((found.items, found.next.as_deref()), (vec![version(2, &ann)], Some("2")));
    let found = world.store.agent_versions(&first.id, &page(1, Some("2".to_owned()))).await.unwrap();
    assert_eq!((found.items[0].number, found.next), (1, None));
    assert_eq!("2".parse(), Ok(AgentVersionCursor(2)));
}

async fn an_agent_changes_from_its_newest_revision(world: &World) {
    let ann = user();
    let first = made(world, Some(&ann), "first").await;
    made(world, Some(&ann), "taken").await;
    let changed =
        AgentRecord { name: "second".to_owned(), description: String::new(), updated_at: UnixMillis(NOW.0 + 5), ..first.clone() };
    assert_eq!(world.store.change_agent(&changed, None).await.unwrap(), UpdateNamedOutcome::Changed(2));
    let stored = world.store.agent(&ann, &first.id).await.unwrap();
    assert_eq!(stored, Some(AgentRecord { revision: 2, ..changed.clone() }));
    assert_eq!(world.store.change_agent(&changed, None).await.unwrap(), UpdateNamedOutcome::Stale, "based on revision 1");
    let taken = AgentRecord { name: "taken".to_owned(), revision: 2, ..changed.clone() };
    assert_eq!(world.store.change_agent(&taken, None).await.unwrap(), UpdateNamedOutcome::NameTaken);

    // Of concurrent changes to one version, one succeeds.
    let mut together = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (store, ann) = (Arc::clone(&world.store), ann.clone());
        let mine = AgentRecord { revision: 2, latest: 2, ..changed.clone() };
        together.spawn(async move { store.change_agent(&mine, Some(&version(2, &ann))).await.unwrap() });
    }
    let won = together.join_all().await.into_iter().filter(|outcome| *outcome == UpdateNamedOutcome::Changed(3)).count();
    assert_eq!(won, 1);
    assert_eq!(world.store.agent_versions(&first.id, &page(10, None)).await.unwrap().items.len(), 2);
}

async fn old_versions_go(world: &World) {
    let ann = user();
    let first = made(world, Some(&ann), "own").await;
    let second = again(world, &first, &ann).await;
    // As if it had had that many versions since.
    let late = AgentRecord { latest: MAX_AGENT_VERSIONS + 1, pinned: Some(2), ..second };
    world.store.change_agent(&late, Some(&version(late.latest, &ann))).await.unwrap();
    let kept = |number| world.store.agent_version(&first.id, number);
    assert_eq!(kept(1).await.unwrap(), None);
    let later = AgentRecord { latest: late.latest + 1, revision: 3, ..late };
    world.store.change_agent(&later, Some(&version(later.latest, &ann))).await.unwrap();
    assert!(kept(2).await.unwrap().is_some(), "runs use this version");
}

async fn an_owner_has_only_so_many_agents(world: &World) {
    let ann = user();
    let mut together = tokio::task::JoinSet::new();
    for round in 0..10 {
        let (store, record) = (Arc::clone(&world.store), agent(Some(&ann), &format!("a{round}")));
        together.spawn(async move { fresh(store.create_agent(&record, &version(1, &user()), 3, None).await.unwrap()) });
    }
    let outcomes = together.join_all().await;
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == CreateNamedOutcome::TooMany).count(), 7, "{outcomes:?}");
    made(world, None, "another owner").await;
}

async fn a_repeated_request_makes_one_agent(world: &World) {
    let ann = user();
    let (first, version) = (agent(Some(&ann), "one"), version(1, &ann));
    let made = CreateNamedOutcome::Made(first.id.clone());
    let make = async |record: &AgentRecord, fingerprint: &str| {
        world.store.create_agent(record, &version, MOST, key(&ann, "k", fingerprint)).await.unwrap()
    };
    assert_eq!(make(&first, "f").await, IdempotentOutcome::Fresh(made.clone()));
    let again = agent(Some(&ann), "one");
    assert_eq!(make(&again, "f").await, IdempotentOutcome::Replayed(made));
    assert_eq!(make(&again, "other").await, IdempotentOutcome::Mismatch);
}

async fn agents_go_by_name(world: &World) {
    let (ann, bob) = (user(), user());
    for (owner, name) in [(Some(&ann), "b"), (None, "b"), (None, "B.x"), (Some(&ann), "a-1"), (Some(&bob), "a"), (None, "a_1")] {
        made(world, owner, name).await;
    }
    let found = all_items(async |after| world.store.agents(&ann, &page(1, after)).await.unwrap()).await;
    let names: Vec<String> = found.into_iter().map(|record| record.name).collect();
    assert_eq!(names, ["B.x", "a-1", "a_1", "b", "b"]);
}
