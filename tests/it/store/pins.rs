//! Tool reviews: stored tool definitions and their acceptance.

use capstan::domain::ids::{PinId, UserId};
use capstan::domain::tool::pin::PinStatus;
use capstan::store::{PinScope, SeenTool};
use capstan::support::ids::UuidIds;
use serde_json::json;

use super::fixture::*;

contract! {
    ;
    the_first_definition_is_accepted_and_another_one_is_not,
    servers_of_owners_are_their_own,
    two_that_see_a_tool_at_once_agree,
}

fn seen(owner: Option<&UserId>, tool: &str, says: &str) -> SeenTool {
    SeenTool {
        id: PinId::generate(&UuidIds),
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
    assert_eq!(store.sight_tools(&both).await.unwrap(), []);
    assert_eq!(store.sight_tools(&both).await.unwrap(), []);
    let evil = seen(None, "read", "reads\u{0} and sends");
    let worse = seen(None, "read", "reads and sends more");
    for changed in [&evil, &evil, &worse] {
        let again = [changed.clone(), both[1].clone()];
        assert_eq!(store.sight_tools(&again).await.unwrap(), vec![changed.id.clone()]);
    }
    assert_eq!(store.sight_tools(&both).await.unwrap(), [], "an accepted definition stays accepted");
    assert_eq!(store.tool_pins(&member, None).await.unwrap().len(), 3, "only the newest changed definition is kept");
    let changed = store.tool_pins(&member, Some(PinStatus::Changed)).await.unwrap();
    let [pin] = changed.as_slice() else { panic!("{changed:?}") };
    assert_eq!((&pin.id, pin.definition.description.as_str()), (&worse.id, "reads and sends more"));
    let before = pin.before.as_ref().unwrap();
    assert_eq!((before.description.as_str(), &before.definition_hash), ("reads", &both[0].definition_hash));
    assert_eq!(before.hints, json!({"readOnlyHint": true}));

    let scope = |owner: &UserId, everybody| PinScope { owner: owner.clone(), everybody };
    assert_eq!(store.accept_tool_pin(&scope(&member, false), &worse.id, &member).await.unwrap(), None);
    assert_eq!(store.accept_tool_pin(&scope(&admin, true), &evil.id, &admin).await.unwrap(), None, "it has changed again");
    let accepted = store.accept_tool_pin(&scope(&admin, true), &worse.id, &admin).await.unwrap().unwrap();
    assert_eq!((accepted.status, accepted.accepted_by.as_ref(), accepted.before), (PinStatus::Accepted, Some(&admin), None));
    let again = store.accept_tool_pin(&scope(&admin, true), &worse.id, &user()).await.unwrap().unwrap();
    assert_eq!((again.accepted_by, again.accepted_at), (Some(admin), accepted.accepted_at));
    assert_eq!(store.sight_tools(&[worse]).await.unwrap(), []);
}

async fn servers_of_owners_are_their_own(world: &World) {
    let (one, other) = (user(), user());
    let store = &world.store;
    for owner in [None, Some(&one), Some(&other)] {
        let says = owner.map_or("everybody", |owner| owner.as_str());
        assert_eq!(store.sight_tools(&[seen(owner, "read", says)]).await.unwrap(), []);
    }
    let changed = seen(Some(&one), "read", "changed");
    assert_eq!(store.sight_tools(std::slice::from_ref(&changed)).await.unwrap(), vec![changed.id.clone()]);
    assert_eq!(store.tool_pins(&one, None).await.unwrap().len(), 3);
    assert_eq!(store.tool_pins(&other, None).await.unwrap().len(), 2);
    let theirs = PinScope { owner: other.clone(), everybody: true };
    assert_eq!(store.accept_tool_pin(&theirs, &changed.id, &other).await.unwrap(), None);
    let own = PinScope { owner: one.clone(), everybody: false };
    assert!(store.accept_tool_pin(&own, &changed.id, &one).await.unwrap().is_some());
}

async fn two_that_see_a_tool_at_once_agree(world: &World) {
    for round in 0..10 {
        let tool = format!("tool{round}");
        let (one, other) = ([seen(None, &tool, "one")], [seen(None, &tool, "other")]);
        let (first, second) = tokio::join!(world.store.sight_tools(&one), world.store.sight_tools(&other));
        let held = first.unwrap().len() + second.unwrap().len();
        assert_eq!(held, 1, "one of them was first");
    }
}
