//! Conversations, lists of them, and whose they are.

use std::collections::HashSet;

use capstan::domain::change::Change;
use capstan::domain::conversation::ConversationStatus;
use capstan::domain::ids::ConversationId;
use capstan::domain::message::Message;
use capstan::domain::trace::TraceId;
use capstan::store::{
    AcceptRun, Accepted, Cancelled, ConversationFilter, Created, GoOn, Keyed, NewConversation, PAGE_BYTES, ResumeRun, Resumed,
};
use capstan::support::clock::UnixMillis;
use capstan::support::ids::UuidIds;

use super::fixture::{NOW, World, assistant, changes, conversation, fresh, hello, key, page, user};

contract! {
    a_conversation_is_made_once,
    a_conversation_is_renamed,
    pages_of_messages_have_no_gaps,
    the_newest_messages_are_read_alone,
    ;
    pages_of_conversations_have_no_gaps,
    conversations_are_found_by_title,
    pages_of_messages_end_when_they_are_large,
    what_is_somebody_elses_looks_missing,
}

async fn make(world: &World, owner: &capstan::domain::ids::UserId, title: &str, now: UnixMillis) -> ConversationId {
    let new = NewConversation { id: conversation(), owner: owner.clone(), title: title.to_owned(), now };
    let id = new.id.clone();
    assert!(matches!(fresh(world.store.create_conversation(new, None).await.unwrap()), Created::Conversation(_)));
    id
}

async fn a_conversation_is_made_once(world: &World) {
    let owner = user();
    let new = NewConversation { id: conversation(), owner: owner.clone(), title: "One".to_owned(), now: NOW };
    let Created::Conversation(made) = fresh(world.store.create_conversation(new.clone(), key(&owner, "k", "f")).await.unwrap())
    else {
        panic!("it is new")
    };
    assert_eq!((made.title.as_str(), made.status, made.last_seq), ("One", ConversationStatus::Idle, 0));
    assert_eq!((&made.created_at, &made.updated_at), (&NOW.to_rfc3339(), &NOW.to_rfc3339()));
    assert_eq!(world.store.conversation(&owner, &new.id).await.unwrap().as_ref(), Some(&made));
    let again = world.store.create_conversation(new.clone(), key(&owner, "k", "f")).await.unwrap();
    assert_eq!(again, Keyed::Replayed(Created::Conversation(made.clone())));
    assert_eq!(world.store.create_conversation(new.clone(), key(&owner, "k", "g")).await.unwrap(), Keyed::Mismatch);
    // The id is taken, for everybody.
    assert_eq!(fresh(world.store.create_conversation(new.clone(), None).await.unwrap()), Created::Exists);
    let theirs = NewConversation { owner: user(), title: "Theirs".to_owned(), ..new.clone() };
    assert_eq!(fresh(world.store.create_conversation(theirs, None).await.unwrap()), Created::Exists);
    assert_eq!(world.store.conversation(&owner, &new.id).await.unwrap(), Some(made));
}

async fn a_conversation_is_renamed(world: &World) {
    let (owner, id) = (user(), conversation());
    world.accept(hello(&owner, &id)).await;
    let later = UnixMillis(NOW.0 + 5);
    let (renamed, events) = world.store.rename_conversation(&owner, &id, "New", later).await.unwrap().unwrap();
    assert_eq!((renamed.title.as_str(), renamed.last_seq), ("New", 4));
    assert_eq!(renamed.updated_at, later.to_rfc3339());
    assert_eq!(world.log(&id).await[3..], events);
    assert_eq!(
        (events[0].kind.as_ref(), events[0].data.as_str()),
        ("conversation.updated", r#"{"title":"New","status":"queued"}"#)
    );
    assert_eq!(world.store.conversation(&owner, &id).await.unwrap(), Some(renamed));
    assert_eq!(world.store.rename_conversation(&owner, &conversation(), "New", later).await.unwrap(), None);
}

async fn what_is_somebody_elses_looks_missing(world: &World) {
    let (owner, other) = (user(), user());
    let stored = world.run(&owner).await;
    let (run, id) = (&stored.run.id, &stored.run.conversation_id);
    let store = &world.store;
    assert_eq!(store.conversation(&other, id).await.unwrap(), None);
    assert_eq!(store.conversations(&other, &ConversationFilter::default(), &page(10, None)).await.unwrap().items, []);
    assert_eq!(store.rename_conversation(&other, id, "mine", NOW).await.unwrap(), None);
    assert_eq!(store.delete_conversation(&other, id).await.unwrap(), None);
    assert_eq!(store.messages(&other, id, &page(10, None)).await.unwrap(), None);
    assert_eq!(store.run(&other, run).await.unwrap(), None);
    assert_eq!(store.active_run(&other, id).await.unwrap(), None);
    assert_eq!(store.explain_run(&other, run).await.unwrap(), None);
    assert_eq!(fresh(store.cancel_run(&other, run, "user", NOW, None).await.unwrap()), Cancelled::NoRun);
    let new_run_id = capstan::domain::ids::RunId::generate(&UuidIds);
    let resume = ResumeRun {
        owner: other.clone(),
        run_id: run.clone(),
        how: GoOn::Resume,
        new_run_id,
        trace: TraceId::generate(&UuidIds),
        now: NOW,
    };
    assert_eq!(fresh(store.resume_run(resume, None).await.unwrap()), Resumed::NoRun);
    for create_with_title in [None, Some(String::new())] {
        let accept = AcceptRun { create_with_title, ..hello(&other, id) };
        assert_eq!(fresh(store.accept_run(accept, None).await.unwrap()), Accepted::NoConversation);
    }
    assert_eq!(world.log(id).await.len(), 3, "nothing was written");
    assert_eq!(world.view(&owner, run).await.run, stored.run);
}

async fn pages_of_conversations_have_no_gaps(world: &World) {
    let (owner, other) = (user(), user());
    let mut made = HashSet::new();
    for n in 0..23 {
        // Many share a moment.
        made.insert(make(world, &owner, "x", UnixMillis(NOW.0 + n / 5)).await);
        make(world, &other, "x", NOW).await;
    }
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let found = world.store.conversations(&owner, &ConversationFilter::default(), &page(4, after)).await.unwrap();
        assert!(found.items.len() == 4 || found.next.is_none());
        seen.extend(found.items.into_iter().map(|item| (item.created_at, item.id)));
        // One that is made meanwhile is newer than all that follow.
        make(world, &owner, "late", UnixMillis(NOW.0 + 100)).await;
        after = found.next;
        if after.is_none() {
            break;
        }
    }
    let mut ordered = seen.clone();
    ordered.sort_by(|one, two| two.cmp(one));
    assert_eq!(seen, ordered, "newest first");
    assert_eq!(seen.len(), 23);
    assert_eq!(seen.into_iter().map(|(_, id)| id).collect::<HashSet<_>>(), made);
}

async fn pages_of_messages_have_no_gaps(world: &World) {
    let owner = user();
    let fence = world.claimed(&owner).await;
    for n in 0..9 {
        let add = vec![Change::AddMessage(assistant(&fence, &n.to_string()))];
        world.commit_one(changes(&fence, add)).await.unwrap();
    }
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let found = world.store.messages(&owner, &fence.conversation_id, &page(5, after)).await.unwrap().unwrap();
        assert_eq!(found.items.len(), 5);
        seen.extend(found.items.iter().map(|message| message.text()));
        after = found.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(seen, ["hello", "0", "1", "2", "3", "4", "5", "6", "7", "8"]);
}

async fn pages_of_messages_end_when_they_are_large(world: &World) {
    let owner = user();
    let fence = world.claimed(&owner).await;
    let id = &fence.conversation_id;
    for n in 0..5 {
        let says = format!("{n}{}", "é".repeat(PAGE_BYTES / 4));
        world.commit_one(changes(&fence, vec![Change::AddMessage(assistant(&fence, &says))])).await.unwrap();
    }
    let first = |message: &Message| message.text().chars().next().unwrap();
    let mut pages = Vec::new();
    let mut after = None;
    loop {
        let found = world.store.messages(&owner, id, &page(50, after)).await.unwrap().unwrap();
        pages.push(found.items.iter().map(first).collect::<String>());
        after = found.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(pages, ["h01", "23", "4"]);
    let newest = world.store.newest_messages(&owner, id, 500).await.unwrap().unwrap();
    assert_eq!((newest.items.iter().map(first).collect::<String>(), newest.earlier), ("34".to_owned(), true));
}

async fn conversations_are_found_by_title(world: &World) {
    let owner = user();
    let report = make(world, &owner, "Quarterly REPORT", NOW).await;
    let percent = make(world, &owner, "100% sure", NOW).await;
    make(world, &owner, "100 percent", NOW).await;
    let find = |query: &str| {
        let (filter, owner) = (ConversationFilter { query: Some(query.to_owned()) }, owner.clone());
        async move {
            let found = world.store.conversations(&owner, &filter, &page(10, None)).await.unwrap();
            found.items.into_iter().map(|item| item.id).collect::<Vec<_>>()
        }
    };
    assert_eq!(find("report").await, std::slice::from_ref(&report));
    assert_eq!(find("LY rep").await, [report]);
    assert_eq!(find("0%").await, [percent], "no pattern");
    assert_eq!(find("_").await, []);
    assert_eq!(find("\\").await, []);
    assert_eq!(find("").await.len(), 3);
    let filter = ConversationFilter { query: Some("e".to_owned()) };
    let first = world.store.conversations(&owner, &filter, &page(1, None)).await.unwrap();
    let second = world.store.conversations(&owner, &filter, &page(2, first.next)).await.unwrap();
    assert_eq!((first.items.len(), second.items.len(), second.next), (1, 2, None));
}

async fn the_newest_messages_are_read_alone(world: &World) {
    let owner = user();
    let fence = world.claimed(&owner).await;
    for n in 0..4 {
        let add = vec![Change::AddMessage(assistant(&fence, &n.to_string()))];
        world.commit_one(changes(&fence, add)).await.unwrap();
    }
    let id = &fence.conversation_id;
    for (limit, texts, earlier) in [(2, vec!["2", "3"], true), (5, vec!["hello", "0", "1", "2", "3"], false)] {
        let newest = world.store.newest_messages(&owner, id, limit).await.unwrap().unwrap();
        assert_eq!(newest.items.iter().map(|message| message.text()).collect::<Vec<_>>(), texts);
        assert_eq!(newest.earlier, earlier);
    }
    let empty = make(world, &owner, "x", NOW).await;
    assert_eq!(world.store.newest_messages(&owner, &empty, 5).await.unwrap().unwrap().items, []);
    assert_eq!(world.store.newest_messages(&user(), id, 5).await.unwrap(), None);
}
