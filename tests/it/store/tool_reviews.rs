//! Tool reviews: stored tool definitions and their acceptance.

use std::collections::BTreeSet;

use capstan::domain::ids::{ToolReviewId, UserId};
use capstan::domain::tool::tool_review::ToolReviewStatus;
use capstan::store::{ComparedDefinitions, ListedDefinition, ToolReviewScope};
use capstan::support::ids::UuidIds;
use serde_json::json;

use super::fixture::*;

contract! {
    ;
    the_first_definition_is_accepted_and_another_one_is_not,
    servers_of_owners_are_their_own,
    two_that_see_a_tool_at_once_agree,
}

fn seen(owner: Option<&UserId>, tool: &str, says: &str) -> ListedDefinition {
    ListedDefinition {
        id: ToolReviewId::generate(&UuidIds),
        owner: owner.cloned(),
        server: "files".to_owned(),
        tool: tool.to_owned(),
        definition_hash: capstan::support::json::hash(&json!([says])),
        description: says.to_owned(),
        parameters: r#"{"type":"object"}"#.to_owned(),
        hints: r#"{"readOnlyHint":true}"#.to_owned(),
    }
}

async fn the_first_definition_is_accepted_and_another_one_is_not(world: &World) {
    let (admin, member) = (user(), user());
    let store = &world.store;
    let both = [seen(None, "read", "reads"), seen(None, "write", "writes")];
    for _ in 0..2 {
        assert_eq!(store.compare_tool_definitions(&both).await.unwrap(), ComparedDefinitions::default());
    }
    let evil = seen(None, "read", "reads\u{0} and sends");
    let worse = seen(None, "read", "reads and sends more");
    for (changed, new_reviews_of) in [(&evil, vec![None]), (&evil, Vec::new()), (&worse, vec![None])] {
        let again = [changed.clone(), both[1].clone()];
        let expected =
            ComparedDefinitions { changed: vec![changed.id.clone()], new_reviews_of: new_reviews_of.into_iter().collect() };
        assert_eq!(store.compare_tool_definitions(&again).await.unwrap(), expected);
    }
    let compared = store.compare_tool_definitions(&both).await.unwrap();
    assert_eq!(compared, ComparedDefinitions::default(), "an accepted definition stays accepted");
    assert_eq!(store.tool_reviews(&member, None).await.unwrap().len(), 3, "only the newest changed definition is kept");
    let changed = store.tool_reviews(&member, Some(ToolReviewStatus::Changed)).await.unwrap();
    let [pin] = changed.as_slice() else { panic!("{changed:?}") };
    assert_eq!((&pin.id, pin.definition.description.as_str()), (&worse.id, "reads and sends more"));
    let before = pin.before.as_ref().unwrap();
    assert_eq!((before.description.as_str(), &before.definition_hash), ("reads", &both[0].definition_hash));
    assert_eq!(before.hints, json!({"readOnlyHint": true}));

    let scope = |owner: &UserId, includes_shared| ToolReviewScope { owner: owner.clone(), includes_shared };
    assert_eq!(store.accept_tool_review(&scope(&member, false), &worse.id, &member).await.unwrap(), None);
    assert_eq!(store.accept_tool_review(&scope(&admin, true), &evil.id, &admin).await.unwrap(), None, "it has changed again");
    let accepted = store.accept_tool_review(&scope(&admin, true), &worse.id, &admin).await.unwrap().unwrap();
    assert_eq!((accepted.status, accepted.accepted_by.as_ref(), accepted.before), (ToolReviewStatus::Accepted, Some(&admin), None));
    let again = store.accept_tool_review(&scope(&admin, true), &worse.id, &user()).await.unwrap().unwrap();
    assert_eq!((again.accepted_by, again.accepted_at), (Some(admin), accepted.accepted_at));
    assert_eq!(store.compare_tool_definitions(&[worse]).await.unwrap().changed, []);
}

async fn servers_of_owners_are_their_own(world: &World) {
    let (one, other) = (user(), user());
    let store = &world.store;
    for owner in [None, Some(&one), Some(&other)] {
        let says = owner.map_or("all users", |owner| owner.as_str());
        assert_eq!(store.compare_tool_definitions(&[seen(owner, "read", says)]).await.unwrap().changed, []);
    }
    let changed = seen(Some(&one), "read", "changed");
    let compared = store.compare_tool_definitions(std::slice::from_ref(&changed)).await.unwrap();
    assert_eq!((compared.changed, compared.new_reviews_of), (vec![changed.id.clone()], BTreeSet::from([Some(one.clone())])));
    assert_eq!(store.tool_reviews(&one, None).await.unwrap().len(), 3);
    assert_eq!(store.tool_reviews(&other, None).await.unwrap().len(), 2);
    let theirs = ToolReviewScope { owner: other.clone(), includes_shared: true };
    assert_eq!(store.accept_tool_review(&theirs, &changed.id, &other).await.unwrap(), None);
    let own = ToolReviewScope { owner: one.clone(), includes_shared: false };
    assert!(store.accept_tool_review(&own, &changed.id, &one).await.unwrap().is_some());
}

async fn two_that_see_a_tool_at_once_agree(world: &World) {
    for round in 0..10 {
        let tool = format!("tool{round}");
        let (one, other) = ([seen(None, &tool, "one")], [seen(None, &tool, "other")]);
        let (first, second) =
            tokio::join!(world.store.compare_tool_definitions(&one), world.store.compare_tool_definitions(&other));
        let held = first.unwrap().changed.len() + second.unwrap().changed.len();
        assert_eq!(held, 1, "one of them was first");
    }
}
