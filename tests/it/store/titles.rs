//! Titles that models write.

use capstan::domain::agent::{AgentProfile, TitlePolicy};
use capstan::domain::conversation::AgentChoice;
use capstan::domain::ids::{ConversationId, UserId};
use capstan::domain::model::Usage;
use capstan::store::{
    AcceptRun, ConversationChange, CopyConversation, CopyLimits, CopySource, CopyUntil, GeneratedTitle, NewConversation,
    UsageFilter,
};
use capstan::support::clock::UnixMillis;
use capstan::support::ids::UuidIds;

use super::fixture::{NOW, World, completed, conversation, fresh, hello, page, text, user};

contract! {
    ;
    a_title_is_asked_for_once_and_what_it_uses_is_counted,
    no_title_takes_the_place_of_one_that_is_somebodys,
    an_agent_may_want_no_title,
    title_after_deletion_books_its_spending,
}

const LATER: UnixMillis = UnixMillis(NOW.0 + 7);

fn said(owner: &UserId, id: &ConversationId, words: &str) -> AcceptRun {
    AcceptRun { create_with_title: Some(String::new()), parts: text(words), ..hello(owner, id) }
}

fn made(owner: &UserId, id: &ConversationId, was: &str, title: Option<&str>) -> GeneratedTitle {
    let usage = Usage { input_tokens: 30, output_tokens: 4, model_calls: 1, ..Usage::default() };
    GeneratedTitle {
        owner: owner.clone(),
        conversation: id.clone(),
        was: was.to_owned(),
        title: title.map(str::to_owned),
        model: "small/titles".to_owned(),
        usage: Some(usage),
        budget_of: None,
        now: LATER,
    }
}

async fn title(world: &World, owner: &UserId, id: &ConversationId) -> String {
    world.store.conversation(owner, id).await.unwrap().unwrap().title
}

async fn a_title_is_asked_for_once_and_what_it_uses_is_counted(world: &World) {
    let (owner, id) = (user(), conversation());
    world.accept(said(&owner, &id, "Where is\ntea from?")).await;
    world.commit_one(completed(&world.claim_one().await)).await.unwrap();
    assert_eq!(world.store.claim_title(&user(), &id).await.unwrap(), None, "another owner");
    assert_eq!(world.store.claim_title(&owner, &id).await.unwrap().as_deref(), Some("Where is tea from?"));
    assert_eq!(world.store.claim_title(&owner, &id).await.unwrap(), None);
    let before = world.log(&owner, &id).await.len();
    let events = world.store.finish_title(made(&owner, &id, "Where is tea from?", Some("Tea"))).await.unwrap();
    let log = world.log(&owner, &id).await;
    assert_eq!((&log[before..], events.len()), (&events[..], 1));
    assert_eq!((&*events[0].kind, events[0].data.as_str()), ("conversation.updated", r#"{"title":"Tea","status":"idle"}"#));
    let shown = world.store.conversation(&owner, &id).await.unwrap().unwrap();
    assert_eq!((shown.title.as_str(), shown.updated_at, shown.last_seq), ("Tea", LATER.to_rfc3339(), events[0].seq));
    // Another run changes nothing.
    world.accept(said(&owner, &id, "And coffee?")).await;
    assert_eq!(world.store.claim_title(&owner, &id).await.unwrap(), None);
    assert_eq!(title(world, &owner, &id).await, "Tea");

    let used = async |owner: Option<&UserId>| {
        let filter = UsageFilter::by_day_and_model(owner.cloned(), UnixMillis(0));
        let rows = world.store.usage(&filter, &page(10, None)).await.unwrap().items;
        rows.into_iter()
            .map(|row| (row.model.unwrap(), row.runs, row.usage.input_tokens, row.usage.model_calls))
            .collect::<Vec<_>>()
    };
    let rows = [("demo/demo".to_owned(), 2, 0, 0), ("small/titles".to_owned(), 0, 30, 1)];
    assert_eq!(used(Some(&owner)).await, rows);
    assert_eq!(used(None).await, rows);
    assert_eq!(used(Some(&user())).await, []);
    world.commit_one(completed(&world.claim_one().await)).await.unwrap();
    assert!(world.store.delete_conversation(&owner, &id).await.unwrap().is_some());
    assert_eq!(used(None).await, []);
    assert_eq!(world.store.finish_title(made(&owner, &id, "Tea", Some("Gone"))).await.unwrap(), []);
}

async fn no_title_takes_the_place_of_one_that_is_somebodys(world: &World) {
    let owner = user();
    // The user sets a title meanwhile, even the same one.
    let id = conversation();
    world.accept(said(&owner, &id, "tea")).await;
    assert_eq!(world.store.claim_title(&owner, &id).await.unwrap().as_deref(), Some("tea"));
    world.store.change_conversation(&owner, &id, &ConversationChange::title("tea"), LATER).await.unwrap().unwrap();
    assert_eq!(world.store.finish_title(made(&owner, &id, "tea", Some("Tea"))).await.unwrap(), []);
    assert_eq!((title(world, &owner, &id).await.as_str(), world.store.claim_title(&owner, &id).await.unwrap()), ("tea", None));
    // The user had set a title before. Other changes do not matter.
    let id = conversation();
    world.accept(said(&owner, &id, "tea")).await;
    let pinned = ConversationChange { pinned: Some(true), ..ConversationChange::default() };
    world.store.change_conversation(&owner, &id, &pinned, LATER).await.unwrap().unwrap();
    let copy = CopyConversation {
        id: conversation(),
        owner: owner.clone(),
        title: None,
        source: CopySource::Conversation { id: id.clone(), until: CopyUntil::End },
        limits: CopyLimits { messages: 100, bytes: 100_000 },
        max_conversations: 0,
        ids: std::sync::Arc::new(UuidIds),
        now: LATER,
    };
    let copy_id = copy.id.clone();
    fresh(world.store.copy_conversation(copy, None).await.unwrap());
    assert_eq!(world.store.claim_title(&owner, &copy_id).await.unwrap(), None, "a copy keeps its title");
    assert_eq!(world.store.claim_title(&owner, &id).await.unwrap().as_deref(), Some("tea"));
    // The model wrote no title.
    assert_eq!(world.store.finish_title(GeneratedTitle { usage: None, ..made(&owner, &id, "tea", None) }).await.unwrap(), []);
    assert_eq!(title(world, &owner, &id).await, "tea");
    for given in ["Mine", ""] {
        let new = NewConversation {
            id: conversation(),
            owner: owner.clone(),
            title: given.to_owned(),
            system_prompt: None,
            instructions: None,
            choice: AgentChoice::default(),
            max_conversations: 0,
            now: NOW,
        };
        let id = new.id.clone();
        fresh(world.store.create_conversation(new, None).await.unwrap());
        world.accept(said(&owner, &id, "tea")).await;
        let claimed = world.store.claim_title(&owner, &id).await.unwrap();
        assert_eq!(claimed.as_deref(), given.is_empty().then_some("tea"), "{given:?}");
    }
}

async fn an_agent_may_want_no_title(world: &World) {
    let (owner, id) = (user(), conversation());
    let profile = AgentProfile { title: TitlePolicy::None, ..AgentProfile::default() };
    for words in ["tea", "and coffee"] {
        world.accept(AcceptRun { profile: profile.clone(), ..said(&owner, &id, words) }).await;
        assert_eq!(title(world, &owner, &id).await, "");
    }
    world.accept(said(&owner, &id, "and water")).await;
    assert_eq!(title(world, &owner, &id).await, "and water", "another agent wants one");
}

async fn title_after_deletion_books_its_spending(world: &World) {
    let (owner, id) = (user(), conversation());
    let run = world.accept(said(&owner, &id, "tea")).await.run.id;
    world.commit_one(completed(&world.claim_one().await)).await.unwrap();
    assert!(world.store.claim_title(&owner, &id).await.unwrap().is_some());
    assert!(world.store.delete_conversation(&owner, &id).await.unwrap().is_some());
    let made = GeneratedTitle { budget_of: Some(run), ..made(&owner, &id, "tea", Some("Tea")) };
    assert_eq!(world.store.finish_title(made).await.unwrap(), []);
    let spent = world.database.rows(&format!("SELECT CAST(sum(tokens) AS text) FROM spending WHERE owner_id = '{owner}'")).await;
    assert_eq!(spent, [[Some("34".to_owned())]]);
}
