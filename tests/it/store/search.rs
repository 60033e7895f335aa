//! Full-text search.

use capstan::domain::conversation::message::{Message, Part, Role, ToolCallPart};
use capstan::domain::conversation::search::Terms;
use capstan::domain::ids::{CallId, ConversationId, PartId, UserId};
use capstan::domain::run::change::Change;
use capstan::domain::run::record::RunWrite;
use capstan::store::{SearchCursor, SearchHit};
use capstan::support::clock::UnixMillis;
use capstan::support::ids::UuidIds;
use serde_json::{Value, json};

use super::fixture::{World, assistant, completed, conversation, hello, page, text, user};
use support::database::Kind;

contract! {
    ;
    words_are_found_by_their_beginnings_and_by_their_owner_only,
    search_separates_messages_before_and_after_a_rewind,
    only_what_clients_hide_is_not_found,
    a_text_of_any_kind_is_stored,
}

async fn said(world: &World, owner: &UserId, words: &str) -> ConversationId {
    let id = conversation();
    let mut accept = hello(owner, &id);
    accept.parts = text(words);
    world.store.accept_run(accept, None).await.unwrap();
    id
}

async fn find(world: &World, owner: &UserId, query: &str) -> Vec<SearchHit> {
    let found = world.store.search(owner, &Terms::read(query).unwrap(), None, &page::<SearchCursor>(100, None)).await;
    found.unwrap_or_else(|error| panic!("{query:?}: {error}")).items
}

async fn places(world: &World, owner: &UserId, query: &str) -> Vec<ConversationId> {
    find(world, owner, query).await.into_iter().map(|found| found.message.conversation_id).collect()
}

async fn words_are_found_by_their_beginnings_and_by_their_owner_only(world: &World) {
    let (ada, ben) = (user(), user());
    let rent = said(world, &ada, "The rent is due on the third of May: see example.com/rent-2026 (GRÖSSE XL).").await;
    let other = said(world, &ada, "Parents rarely rent a third car.").await;
    said(world, &ben, "Ben's rent is due as well.").await;
    for query in ["rent due", "RENT du", "\"third of\"", "2026", "example", "gröss", "xl rent the", "rent-2026"] {
        assert_eq!(places(world, &ada, query).await, std::slice::from_ref(&rent), "{query:?}");
    }
    assert_eq!(places(world, &ada, "rent third").await, [other.clone(), rent.clone()], "newest first");
    for query in ["\"of third\"", "\"thir\"", "ent", "rent nothing", "ben", ada.as_str(), "owner", "user", "car NOT rent"] {
        assert_eq!(places(world, &ada, query).await, [], "{query:?}");
    }
    assert_eq!(places(world, &ben, "rent due").await.len(), 1);
    assert_eq!(places(world, &user(), "rent").await, []);
    for signs in [
        "rent*",
        "rent:*",
        "^rent",
        "NEAR(rent due)",
        "owner : rent",
        "-rent",
        "rent OR",
        "\"rent\\\"",
        "rent & !x",
        "{rent}: due <-> rent",
    ] {
        let Ok(terms) = Terms::read(signs) else { continue };
        world
            .store
            .search(&ada, &terms, None, &page::<SearchCursor>(10, None))
            .await
            .unwrap_or_else(|error| panic!("{signs:?}: {error}"));
    }

    // The snippet shows the original text, independent of the database's lower-case rules.
    let trip = said(world, &ben, "We meet in İstanbul, at the STRAẞE.").await;
    for query in ["İstanbul", "\"in İstanbul\"", "STRAẞE", "İst"] {
        assert_eq!(places(world, &ben, query).await, std::slice::from_ref(&trip), "{query:?}");
    }

    // Pages, and archived conversations.
    let terms = Terms::read("rent").unwrap();
    let first = world.store.search(&ada, &terms, None, &page::<SearchCursor>(1, None)).await.unwrap();
    assert_eq!(first.items[0].message.conversation_id, other);
    let second = world.store.search(&ada, &terms, None, &page::<SearchCursor>(1, first.next)).await.unwrap();
    assert_eq!((&second.items[0].message.conversation_id, &second.next), (&rent, &None));
    let change = capstan::store::ConversationChange { archived: Some(true), ..Default::default() };
    world.store.change_conversation(&ada, &rent, &change, UnixMillis(1)).await.unwrap();
    for (archived, wanted) in [(Some(true), rent.clone()), (Some(false), other.clone())] {
        let found = world.store.search(&ada, &terms, archived, &page::<SearchCursor>(10, None)).await.unwrap();
        assert_eq!(found.items.iter().map(|found| &found.message.conversation_id).collect::<Vec<_>>(), [&wanted]);
    }
    world.store.delete_conversation(&ada, &other).await.unwrap();
    assert_eq!(places(world, &ada, "rent").await, [rent]);
    let left = match world.database.kind {
        Kind::Postgres => "SELECT CAST(count(*) AS text) FROM message_words WHERE message_id NOT IN (SELECT id FROM messages)",
        Kind::Sqlite => {
            "SELECT CAST(count(*) AS text) FROM message_words_docsize WHERE id NOT IN (SELECT number FROM message_words_of)"
        }
    };
    assert_eq!(world.database.count(left).await, 0, "a deleted conversation leaves no words");
}

async fn search_separates_messages_before_and_after_a_rewind(world: &World) {
    let owner = user();
    let run = world.run(&owner).await;
    let fence = world.claim_one().await;
    let answer = assistant(&fence, "An answer about lighthouses.");
    world.commit_one(RunWrite { changes: vec![Change::AddMessage(answer)], ..completed(&fence) }).await.unwrap();
    let found = find(world, &owner, "lighthouse").await;
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].message.role, &found[0].message.run_id), (Role::Assistant, &run.run.id));
    assert!(!found[0].title.is_empty());
    world.database.rows("UPDATE messages SET superseded_by = 'x' WHERE role = 'assistant'").await;
    assert_eq!(find(world, &owner, "lighthouse").await, []);
}

/// Returns a call beside the text of an answer.
fn call(arguments: Value) -> Part {
    Part::ToolCall(ToolCallPart {
        id: PartId::generate(&UuidIds),
        call_id: CallId::generate(&UuidIds),
        name: "tickets__create".to_owned(),
        arguments,
        provider_call_id: None,
        raw: None,
        undoes: None,
    })
}

/// The words of a call's arguments are not part of the message's text.
async fn only_what_clients_hide_is_not_found(world: &World) {
    let owner = user();
    world.run(&owner).await;
    let fence = world.claim_one().await;
    let says = |words: &str, more: Vec<Part>| {
        let mut message = assistant(&fence, words);
        message.parts.extend(more);
        message
    };
    let plain = says("A harbour at night.", Vec::new());
    let answer = says("A harbour at dawn.", vec![call(json!({"internal": true}))]);
    let nested = says("A harbour at noon.", vec![call(json!({"ticket": {"internal": true}, "internal": false}))]);
    let nul = says("A harbour in fog.", vec![call(json!({"internal": true, "nul": "\\u0000"}))]);
    let hint = Message { internal: true, role: Role::User, ..says("A harbour for the model.", Vec::new()) };
    let hidden = Message { internal: true, ..says("A harbour for nobody.", vec![call(json!({"internal": true}))]) };
    for message in [&plain, &answer, &nested, &nul, &hint, &hidden] {
        world.commit_one(RunWrite { changes: vec![Change::AddMessage(message.clone())], ..completed(&fence) }).await.unwrap();
    }
    let mut told: Vec<String> = find(world, &owner, "harbour").await.iter().map(|found| found.message.text()).collect();
    told.sort_unstable();
    let mut wanted = vec!["A harbour at dawn.", "A harbour at night.", "A harbour at noon."];
    // Postgres text cannot hold the character that the arguments escape, so the message has no words there.
    if world.database.kind == Kind::Sqlite {
        wanted.push("A harbour in fog.");
    }
    assert_eq!(told, wanted);
}

async fn a_text_of_any_kind_is_stored(world: &World) {
    let owner = user();
    let long = "x".repeat(3_000);
    let many: String = (0..60_000).map(|n| format!("w{n:05} ")).collect();
    let odd = "nul \u{0} \\u0000 tab\t \"quoted\" \u{1f389} \u{feff} \u{202e} e\u{301} नमस्ते 日本語 \u{fffd}";
    for words in [long.as_str(), many.as_str(), odd, "", " ", "'", "\\", "%", &"ä".repeat(60_000)] {
        said(world, &owner, words).await;
    }
    assert_eq!(find(world, &owner, "w00042").await.len(), 1);
    assert_eq!(find(world, &owner, "w59999").await.len(), 0, "only the first 50,000 characters count");
}
