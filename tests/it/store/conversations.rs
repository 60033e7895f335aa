//! Conversations: lists, changes, retention and owners.

use std::collections::HashSet;

use capstan::domain::conversation::message::Message;
use capstan::domain::conversation::{AgentChoice, ConversationSort, ConversationStatus};
use capstan::domain::ids::{CallId, ConversationId, MessageId, UserId};
use capstan::domain::run::change::{Change, StepKind};
use capstan::store::{
    AcceptOutcome, AcceptRun, BeforeCursor, CancelOutcome, CancelRun, ConversationChange, ConversationFilter, CopyConversation,
    CopyLimits, CopyOutcome, CopySource, CopyUntil, CreateOutcome, EarlierPage, IdempotentOutcome, IdleAction, NewConversation,
    PAGE_BYTES, ResumeKind, ResumeOutcome, RunFilter,
};
use capstan::support::clock::UnixMillis;
use capstan::support::ids::UuidIds;

use super::fixture::{
    NOW, World, assistant, changes, conversation, earlier, fresh, hello, key, page, planned_call, resume_request, user,
};

contract! {
    a_conversation_is_made_once,
    a_conversation_is_renamed,
    pages_of_messages_have_no_gaps,
    messages_are_read_backwards_without_gaps,
    ;
    pages_of_conversations_have_no_gaps,
    conversations_are_found_by_title,
    pages_of_messages_end_when_they_are_large,
    foreign_resource_looks_missing,
    conversations_are_kept_in_order,
    idle_conversations_are_put_away_and_deleted,
    conversations_without_a_word_are_deleted,
    an_owner_has_so_many_conversations,
    pages_have_at_least_one_row_and_at_most_a_hundred,
    texts_with_nul_are_stored_and_found_replaced,
    messages_are_found_by_their_ids_and_their_calls,
}

/// A call brings the messages of its run from the call on, which contain its result as well.
async fn messages_are_found_by_their_ids_and_their_calls(world: &World) {
    let (owner, other) = (user(), user());
    let fence = world.claimed(&owner).await;
    let (answer, result) = (assistant(&fence, "answer"), assistant(&fence, "result"));
    let call = planned_call(&fence, &answer.id, 0);
    let work = vec![
        Change::StartStep { step: 2, kind: StepKind::Tools, request: None },
        Change::AddMessage(answer.clone()),
        Change::AddToolCalls(vec![call.clone()]),
    ];
    world.commit_one(changes(&fence, work)).await.unwrap();
    world.commit_one(changes(&fence, vec![Change::AddMessage(result.clone())])).await.unwrap();
    let elsewhere = world.run(&owner).await.message.id;
    let found = async |owner: &UserId, messages: &[&MessageId], calls: &[&CallId], most_bytes| {
        let messages: Vec<MessageId> = messages.iter().map(|id| (*id).clone()).collect();
        let calls: Vec<CallId> = calls.iter().map(|id| (*id).clone()).collect();
        let found = world.store.referenced_messages(owner, &messages, &calls, most_bytes).await.unwrap();
        found.map(|found| {
            let mut ids: Vec<MessageId> = found.into_iter().map(|message| message.id).collect();
            ids.sort_unstable();
            ids
        })
    };
    let set = |ids: &[&MessageId]| Some(ids.iter().map(|id| (*id).clone()).collect::<Vec<_>>());
    assert_eq!(found(&owner, &[&answer.id, &elsewhere], &[], 10_000).await, set(&[&answer.id, &elsewhere]));
    assert_eq!(found(&owner, &[&answer.id], &[&call.id, &call.id], 10_000).await, set(&[&answer.id, &result.id]));
    assert_eq!(found(&owner, &[], &[&CallId::generate(&UuidIds)], 10_000).await, set(&[]));
    assert_eq!(found(&other, &[&answer.id], &[&call.id], 10_000).await, set(&[]));
    assert_eq!(found(&owner, &[&answer.id], &[], 10).await, None, "the messages are larger than the limit");
    world.store.delete_conversation(&owner, &fence.conversation_id).await.unwrap().unwrap();
    assert_eq!(found(&owner, &[&answer.id, &elsewhere], &[&call.id], 10_000).await, set(&[&elsewhere]));
}

async fn pages_have_at_least_one_row_and_at_most_a_hundred(world: &World) {
    let owner = user();
    for _ in 0..101 {
        make(world, &owner, "one of many", NOW).await;
    }
    let filter = ConversationFilter::default();
    let listed = async |limit| world.store.conversations(&owner, &filter, &page(limit, None)).await.unwrap();
    for (limit, rows) in [(0, 1), (1_000, 100)] {
        let listed = listed(limit).await;
        assert_eq!(listed.items.len(), rows);
        assert!(listed.next.is_some());
    }
    let id = conversation();
    for _ in 0..101 {
        world.accept(hello(&owner, &id)).await;
    }
    for (limit, rows) in [(0, 1), (1_000, 100)] {
        let messages = world.store.messages(&owner, &id, &page(limit, None)).await.unwrap().unwrap();
        assert_eq!(messages.items.len(), rows);
        assert!(messages.next.is_some());
        let runs = world.store.runs(&owner, &RunFilter::default(), &page(limit, None)).await.unwrap();
        assert_eq!(runs.items.len(), rows);
    }
}

async fn texts_with_nul_are_stored_and_found_replaced(world: &World) {
    let owner = user();
    let new = NewConversation {
        id: conversation(),
        owner: owner.clone(),
        title: "ti\0tle".into(),
        system_prompt: None,
        instructions: None,
        choice: AgentChoice { agent: Some("a\0gent".into()), model: Some("m\0".into()) },
        max_conversations: 0,
        now: NOW,
    };
    let id = new.id.clone();
    let CreateOutcome::Conversation(made) = fresh(world.store.create_conversation(new, None).await.unwrap()) else {
        panic!("made")
    };
    let found = world.store.conversation(&owner, &id).await.unwrap().unwrap();
    assert_eq!(*made, found);
    let stored = ("ti\u{fffd}tle", Some("a\u{fffd}gent"), Some("m\u{fffd}"));
    assert_eq!((found.title.as_str(), found.agent.as_deref(), found.model.as_deref()), stored);
    let change =
        ConversationChange { tags: Some(vec!["t\0ag".into()]), agent: Some("o\0ther".into()), ..ConversationChange::default() };
    let (changed, _) = world.store.change_conversation(&owner, &id, &change, NOW).await.unwrap().unwrap();
    assert_eq!((changed.agent.as_deref(), changed.tags.as_slice()), (Some("o\u{fffd}ther"), ["t\u{fffd}ag".to_owned()].as_slice()));
    let filters = [
        ConversationFilter { tag: Some("t\0ag".into()), ..ConversationFilter::default() },
        ConversationFilter { query: Some("I\0T".into()), ..ConversationFilter::default() },
    ];
    for filter in filters {
        let listed = world.store.conversations(&owner, &filter, &page(10, None)).await.unwrap();
        assert_eq!(listed.items.len(), 1, "{filter:?}");
    }
    let filter = RunFilter { agent: Some("a\0".into()), ..RunFilter::default() };
    assert_eq!(world.store.runs(&owner, &filter, &page(10, None)).await.unwrap().items, []);
}

async fn an_owner_has_so_many_conversations(world: &World) {
    let (owner, max_conversations) = (user(), 2);
    let first = make(world, &owner, "one", NOW).await;
    let second = conversation();
    let begins = |id: &ConversationId| AcceptRun { max_conversations, ..hello(&owner, id) };
    let accepted = world.store.accept_run(begins(&second), key(&owner, "k", "f")).await.unwrap();
    assert!(matches!(fresh(accepted), AcceptOutcome::Run { .. }));
    // A third conversation is refused, and its key is not stored.
    let third = conversation();
    for _ in 0..2 {
        let refused = world.store.accept_run(begins(&third), key(&owner, "third", "f")).await.unwrap();
        assert_eq!(fresh(refused), AcceptOutcome::TooManyConversations);
    }
    let new = NewConversation {
        id: third.clone(),
        owner: owner.clone(),
        title: String::new(),
        system_prompt: None,
        instructions: None,
        choice: AgentChoice::default(),
        max_conversations,
        now: NOW,
    };
    assert_eq!(fresh(world.store.create_conversation(new.clone(), None).await.unwrap()), CreateOutcome::TooMany);
    let copy = CopyConversation {
        id: third.clone(),
        owner: owner.clone(),
        title: None,
        source: CopySource::Conversation { id: first.clone(), until: CopyUntil::End },
        limits: CopyLimits { messages: 10, bytes: 1_000 },
        max_conversations,
        ids: std::sync::Arc::new(UuidIds),
        now: NOW,
    };
    assert_eq!(fresh(world.store.copy_conversation(copy.clone(), None).await.unwrap()), CopyOutcome::TooMany);
    // Existing conversations stay usable, a repeated request gets its answer, and other owners have their own limit.
    let again = world.store.accept_run(begins(&second), key(&owner, "k", "f")).await.unwrap();
    assert!(matches!(again, IdempotentOutcome::Replayed(AcceptOutcome::Run { .. })));
    assert!(matches!(fresh(world.store.accept_run(begins(&second), None).await.unwrap()), AcceptOutcome::Run { .. }));
    let theirs = AcceptRun { owner: user(), ..begins(&conversation()) };
    assert!(matches!(fresh(world.store.accept_run(theirs, None).await.unwrap()), AcceptOutcome::Run { .. }));
    // Archived conversations do not count.
    let away = ConversationChange { archived: Some(true), ..ConversationChange::default() };
    world.store.change_conversation(&owner, &first, &away, NOW).await.unwrap().unwrap();
    assert!(matches!(fresh(world.store.copy_conversation(copy, None).await.unwrap()), CopyOutcome::Conversation(_)));
    assert_eq!(fresh(world.store.create_conversation(new, None).await.unwrap()), CreateOutcome::TooMany);
    let last = AcceptRun { max_conversations: 3, ..hello(&owner, &conversation()) };
    assert!(matches!(fresh(world.store.accept_run(last, None).await.unwrap()), AcceptOutcome::Run { .. }));
}

async fn conversations_are_kept_in_order(world: &World) {
    let owner = user();
    let mut ids = Vec::new();
    for n in 0..3 {
        ids.push(make(world, &owner, &format!("c{n}"), UnixMillis(NOW.0 + n)).await);
    }
    let change = async |id: &ConversationId, change: ConversationChange| {
        world.store.change_conversation(&owner, id, &change, NOW).await.unwrap().unwrap().0
    };
    let tags = vec!["früh".to_owned(), "\"quoted\"".to_owned()];
    let changed =
        change(&ids[0], ConversationChange { pinned: Some(true), tags: Some(tags.clone()), ..ConversationChange::default() });
    let changed = changed.await;
    assert_eq!((changed.title.as_str(), changed.pinned, &changed.tags, &changed.archived_at), ("c0", true, &tags, &None));
    let away = ConversationChange { archived: Some(true), ..ConversationChange::default() };
    let first = change(&ids[1], away.clone()).await;
    assert_eq!(first.archived_at, Some(NOW.to_rfc3339()));
    assert_eq!(world.store.conversation(&owner, &ids[1]).await.unwrap(), Some(first.clone()));
    let again = world.store.change_conversation(&owner, &ids[1], &away, UnixMillis(NOW.0 + 9)).await.unwrap().unwrap().0;
    assert_eq!(again.archived_at, first.archived_at, "it was archived before");

    let titles = async |filter: ConversationFilter| -> Vec<String> {
        let found = world.store.conversations(&owner, &filter, &page(10, None)).await.unwrap();
        found.items.into_iter().map(|conversation| conversation.title).collect()
    };
    let none = ConversationFilter::default;
    assert_eq!(titles(none()).await, ["c2", "c1", "c0"]);
    assert_eq!(titles(ConversationFilter { archived: Some(false), ..none() }).await, ["c2", "c0"]);
    assert_eq!(titles(ConversationFilter { archived: Some(true), ..none() }).await, ["c1"]);
    assert_eq!(titles(ConversationFilter { pinned: Some(true), ..none() }).await, ["c0"]);
    assert_eq!(titles(ConversationFilter { pinned: Some(false), ..none() }).await, ["c2", "c1"]);
    for tag in &tags {
        assert_eq!(titles(ConversationFilter { tag: Some(tag.clone()), ..none() }).await, ["c0"]);
    }
    assert_eq!(titles(ConversationFilter { tag: Some("quoted".to_owned()), ..none() }).await, [""; 0]);
    let by_change = ConversationFilter { sort: ConversationSort::Updated, ..none() };
    assert_eq!(titles(by_change.clone()).await, ["c1", "c2", "c0"]);
    let (mut last, mut paged) = (None, Vec::new());
    loop {
        let found = world.store.conversations(&owner, &by_change, &page(1, last)).await.unwrap();
        paged.extend(found.items.into_iter().map(|conversation| conversation.title));
        let Some(next) = found.next else { break };
        last = Some(next.parse().unwrap());
    }
    assert_eq!(paged, ["c1", "c2", "c0"]);
    assert_eq!(titles(ConversationFilter { tag: Some(tags[0].clone()), archived: Some(true), ..none() }).await, [""; 0]);

    // A message moves it out of the archive.
    world.accept(hello(&owner, &ids[1])).await;
    assert_eq!(world.store.conversation(&owner, &ids[1]).await.unwrap().unwrap().archived_at, None);
    let back = ConversationChange { archived: Some(false), tags: Some(Vec::new()), ..ConversationChange::default() };
    let changed = change(&ids[0], back).await;
    assert_eq!((changed.tags.len(), changed.pinned), (0, true));
}

async fn idle_conversations_are_put_away_and_deleted(world: &World) {
    const DAY: u64 = 24 * 3_600_000;
    let owner = user();
    let [old, pinned, busy, young, away] = ["old", "pinned", "busy", "young", "away"];
    let mut ids = Vec::new();
    for title in [old, pinned, busy, young, away] {
        ids.push(make(world, &owner, title, NOW).await);
    }
    world.accept(hello(&owner, &ids[2])).await;
    let pin = ConversationChange { pinned: Some(true), ..ConversationChange::default() };
    world.store.change_conversation(&owner, &ids[1], &pin, NOW).await.unwrap();
    let archive = ConversationChange { archived: Some(true), ..ConversationChange::default() };
    world.store.change_conversation(&owner, &ids[4], &archive, NOW).await.unwrap();
    // The database's clock decides. The test's clock is behind it, so every conversation but the young one is old.
    let young = ids[3].as_str();
    world.database.rows(&format!("UPDATE conversations SET updated_at = 9000000000000 WHERE id = '{young}' RETURNING id")).await;

    let mine = async |tidying: IdleAction, after: Option<&ConversationId>| -> Vec<ConversationId> {
        let found = world.store.idle_conversations(tidying, DAY, after, 100).await.unwrap();
        found.into_iter().filter(|(whose, _)| *whose == owner).map(|(_, id)| id).collect()
    };
    assert_eq!(mine(IdleAction::Archive, None).await, [ids[0].clone()]);
    assert_eq!(mine(IdleAction::Archive, Some(&ids[0])).await, []);
    assert_eq!(mine(IdleAction::Delete, None).await, [ids[4].clone()]);
    let before = world.store.log_bounds(&owner, &ids[0]).await.unwrap().unwrap().head;
    let archived = world.store.archive_idle(&ids, DAY).await.unwrap();
    // Clients with an open list get an event, as for each change.
    let [event] = archived.as_slice() else { panic!("only the one of which it holds: {archived:?}") };
    assert_eq!((&event.conversation_id, event.seq, event.kind.as_ref()), (&ids[0], before + 1, "conversation.updated"));
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&event.data).unwrap(),
        serde_json::json!({"title": "old", "status": "idle"})
    );
    assert_eq!(world.store.events(&owner, &ids[0], before, 10).await.unwrap(), archived);
    let put_away = world.store.conversation(&owner, &ids[0]).await.unwrap().unwrap();
    assert!(put_away.archived_at.is_some() && put_away.last_seq == before + 1, "{put_away:?}");
    assert_eq!(world.store.archive_idle(&ids, DAY).await.unwrap(), []);
    assert!(!world.store.delete_idle(&owner, &ids[0], IdleAction::Delete, DAY).await.unwrap(), "it was archived only now");
    // Archived as long ago, but pinned, busy, or changed since.
    let others = ids[1..4].iter().map(|id| format!("'{id}'")).collect::<Vec<_>>().join(", ");
    world.database.rows(&format!("UPDATE conversations SET archived_at = 1 WHERE id IN ({others}) RETURNING id")).await;
    assert_eq!(mine(IdleAction::Delete, None).await, [ids[4].clone()]);
    for id in &ids[1..4] {
        assert!(!world.store.delete_idle(&owner, id, IdleAction::Delete, DAY).await.unwrap(), "{id}");
    }
    assert!(!world.store.delete_idle(&user(), &ids[4], IdleAction::Delete, DAY).await.unwrap(), "another owner");
    assert!(world.store.delete_idle(&owner, &ids[4], IdleAction::Delete, DAY).await.unwrap());
    assert_eq!(world.store.conversation(&owner, &ids[4]).await.unwrap(), None);
    assert!(!world.store.delete_idle(&owner, &ids[4], IdleAction::Delete, DAY).await.unwrap());
}

async fn conversations_without_a_word_are_deleted(world: &World) {
    const DAY: u64 = 24 * 3_600_000;
    let owner = user();
    let mut ids = Vec::new();
    for title in ["", "named", "", "", ""] {
        ids.push(make(world, &owner, title, NOW).await);
    }
    let [empty, named, spoken, pinned, young] = [0, 1, 2, 3, 4].map(|at| ids[at].clone());
    world.accept(hello(&owner, &spoken)).await;
    let pin = ConversationChange { pinned: Some(true), ..ConversationChange::default() };
    world.store.change_conversation(&owner, &pinned, &pin, NOW).await.unwrap();
    let prepared = [
        ConversationChange { tags: Some(vec!["later".to_owned()]), ..ConversationChange::default() },
        ConversationChange { system_prompt: Some("You are a cook.".to_owned()), ..ConversationChange::default() },
        ConversationChange { instructions: Some("Be brief.".to_owned()), ..ConversationChange::default() },
    ];
    let mut kept = vec![named, spoken.clone(), pinned.clone(), young.clone()];
    for change in prepared {
        let id = make(world, &owner, "", NOW).await;
        world.store.change_conversation(&owner, &id, &change, NOW).await.unwrap();
        kept.push(id);
    }
    world.database.rows(&format!("UPDATE conversations SET title = '' WHERE id = '{spoken}' RETURNING id")).await;
    world.database.rows(&format!("UPDATE conversations SET updated_at = 9000000000000 WHERE id = '{young}' RETURNING id")).await;

    let found = world.store.idle_conversations(IdleAction::DeleteEmpty, DAY, None, 1_000).await.unwrap();
    let mine: Vec<_> = found.into_iter().filter(|(whose, _)| *whose == owner).map(|(_, id)| id).collect();
    assert_eq!(mine, std::slice::from_ref(&empty));
    for id in &kept {
        assert!(!world.store.delete_idle(&owner, id, IdleAction::DeleteEmpty, DAY).await.unwrap(), "{id}");
    }
    assert!(!world.store.delete_idle(&user(), &empty, IdleAction::DeleteEmpty, DAY).await.unwrap(), "another owner");
    assert!(world.store.delete_idle(&owner, &empty, IdleAction::DeleteEmpty, DAY).await.unwrap());
    assert_eq!(world.store.conversation(&owner, &empty).await.unwrap(), None);
}

async fn make(world: &World, owner: &capstan::domain::ids::UserId, title: &str, now: UnixMillis) -> ConversationId {
    let new = NewConversation {
        id: conversation(),
        owner: owner.clone(),
        title: title.to_owned(),
        system_prompt: None,
        instructions: None,
        choice: AgentChoice::default(),
        max_conversations: 0,
        now,
    };
    let id = new.id.clone();
    assert!(matches!(fresh(world.store.create_conversation(new, None).await.unwrap()), CreateOutcome::Conversation(_)));
    id
}

async fn a_conversation_is_made_once(world: &World) {
    let owner = user();
    let new = NewConversation {
        id: conversation(),
        owner: owner.clone(),
        title: "One".to_owned(),
        system_prompt: None,
        instructions: None,
        choice: AgentChoice::default(),
        max_conversations: 0,
        now: NOW,
    };
    let CreateOutcome::Conversation(made) =
        fresh(world.store.create_conversation(new.clone(), key(&owner, "k", "f")).await.unwrap())
    else {
        panic!("it is new")
    };
    assert_eq!((made.title.as_str(), made.status, made.last_seq), ("One", ConversationStatus::Idle, 0));
    assert_eq!((&made.created_at, &made.updated_at), (&NOW.to_rfc3339(), &NOW.to_rfc3339()));
    assert_eq!(world.store.conversation(&owner, &new.id).await.unwrap().as_ref(), Some(&*made));
    let again = world.store.create_conversation(new.clone(), key(&owner, "k", "f")).await.unwrap();
    assert_eq!(again, IdempotentOutcome::Replayed(CreateOutcome::Conversation(made.clone())));
    assert_eq!(world.store.create_conversation(new.clone(), key(&owner, "k", "g")).await.unwrap(), IdempotentOutcome::Mismatch);
    // The id is taken for all owners.
    assert_eq!(fresh(world.store.create_conversation(new.clone(), None).await.unwrap()), CreateOutcome::Exists);
    let theirs = NewConversation { owner: user(), title: "Theirs".to_owned(), ..new.clone() };
    assert_eq!(fresh(world.store.create_conversation(theirs, None).await.unwrap()), CreateOutcome::Exists);
    assert_eq!(world.store.conversation(&owner, &new.id).await.unwrap(), Some(*made));
}

async fn a_conversation_is_renamed(world: &World) {
    let (owner, id) = (user(), conversation());
    world.accept(hello(&owner, &id)).await;
    let later = UnixMillis(NOW.0 + 5);
    let (renamed, events) =
        world.store.change_conversation(&owner, &id, &ConversationChange::title("New"), later).await.unwrap().unwrap();
    assert_eq!((renamed.title.as_str(), renamed.last_seq), ("New", 4));
    assert_eq!(renamed.updated_at, later.to_rfc3339());
    assert_eq!(world.log(&owner, &id).await[3..], events);
    assert_eq!(
        (events[0].kind.as_ref(), events[0].data.as_str()),
        ("conversation.updated", r#"{"title":"New","status":"queued"}"#)
    );
    assert_eq!(world.store.conversation(&owner, &id).await.unwrap(), Some(renamed));
    assert_eq!(
        world.store.change_conversation(&owner, &conversation(), &ConversationChange::title("New"), later).await.unwrap(),
        None
    );
}

async fn foreign_resource_looks_missing(world: &World) {
    let (owner, other) = (user(), user());
    let stored = world.run(&owner).await;
    let (run, id) = (&stored.run.id, &stored.run.conversation_id);
    let store = &world.store;
    assert_eq!(store.conversation(&other, id).await.unwrap(), None);
    assert_eq!(store.conversations(&other, &ConversationFilter::default(), &page(10, None)).await.unwrap().items, []);
    assert_eq!(store.change_conversation(&other, id, &ConversationChange::title("mine"), NOW).await.unwrap(), None);
    assert_eq!(store.delete_conversation(&other, id).await.unwrap(), None);
    assert_eq!(store.messages(&other, id, &page(10, None)).await.unwrap(), None);
    assert_eq!(store.run(&other, run).await.unwrap(), None);
    assert_eq!(store.active_run(&other, id).await.unwrap(), None);
    assert_eq!(store.explain_run(&other, run).await.unwrap(), None);
    assert_eq!(
        fresh(store.cancel_run(CancelRun { owner: &other, id: run, by: "user", now: NOW }, None).await.unwrap()),
        CancelOutcome::NoRun
    );
    let resume = resume_request(&other, run, ResumeKind::Resume);
    assert_eq!(fresh(store.resume_run(resume, None).await.unwrap()), ResumeOutcome::NoRun);
    for create_with_title in [None, Some(String::new())] {
        let accept = AcceptRun { create_with_title, ..hello(&other, id) };
        assert_eq!(fresh(store.accept_run(accept, None).await.unwrap()), AcceptOutcome::NoConversation);
    }
    assert_eq!(world.log(&owner, id).await.len(), 3, "nothing was written");
    assert_eq!(world.view(&owner, run).await.run, stored.run);
}

async fn pages_of_conversations_have_no_gaps(world: &World) {
    let (owner, other) = (user(), user());
    let mut made = HashSet::new();
    for n in 0..23 {
        // Many rows have the same timestamp.
        made.insert(make(world, &owner, "x", UnixMillis(NOW.0 + n / 5)).await);
        make(world, &other, "x", NOW).await;
    }
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let found = world.store.conversations(&owner, &ConversationFilter::default(), &page(4, after)).await.unwrap();
        assert!(found.items.len() == 4 || found.next.is_none());
        seen.extend(found.items.into_iter().map(|item| (item.created_at, item.id)));
        // A row that is created meanwhile is newer than all later pages.
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
    let mut pages = Vec::new();
    let mut before = None;
    loop {
        let found = world.store.earlier_messages(&owner, id, earlier(50, before)).await.unwrap().unwrap();
        pages.push(found.items.iter().map(|(_, message)| first(message)).collect::<String>());
        before = found.items.first().filter(|_| found.earlier).map(|(before, _)| *before);
        if before.is_none() {
            break;
        }
    }
    assert_eq!(pages, ["34", "12", "h0"]);
    let few = EarlierPage { bytes: 1, ..earlier(50, None) };
    let newest = world.store.earlier_messages(&owner, id, few).await.unwrap().unwrap();
    assert_eq!(
        (newest.items.iter().map(|(_, message)| first(message)).collect::<String>(), newest.earlier),
        ("4".to_owned(), true)
    );
}

async fn conversations_are_found_by_title(world: &World) {
    let owner = user();
    let report = make(world, &owner, "Quarterly REPORT", NOW).await;
    let percent = make(world, &owner, "100% sure", NOW).await;
    make(world, &owner, "100 percent", NOW).await;
    let find = |query: &str| {
        let (filter, owner) =
            (ConversationFilter { query: Some(query.to_owned()), ..ConversationFilter::default() }, owner.clone());
        async move {
            let found = world.store.conversations(&owner, &filter, &page(10, None)).await.unwrap();
            found.items.into_iter().map(|item| item.id).collect::<Vec<_>>()
        }
    };
    assert_eq!(find("report").await, std::slice::from_ref(&report));
    assert_eq!(find("LY rep").await, [report]);
    assert_eq!(find("0%").await, [percent], "% is no wildcard");
    assert_eq!(find("_").await, []);
    assert_eq!(find("\\").await, []);
    assert_eq!(find("").await.len(), 3);
    let filter = ConversationFilter { query: Some("e".to_owned()), ..ConversationFilter::default() };
    let first = world.store.conversations(&owner, &filter, &page(1, None)).await.unwrap();
    let second = world.store.conversations(&owner, &filter, &page(2, first.next)).await.unwrap();
    assert_eq!((first.items.len(), second.items.len(), second.next), (1, 2, None));
}

async fn messages_are_read_backwards_without_gaps(world: &World) {
    let owner = user();
    let fence = world.claimed(&owner).await;
    for n in 0..4 {
        let add = vec![Change::AddMessage(assistant(&fence, &n.to_string()))];
        world.commit_one(changes(&fence, add)).await.unwrap();
    }
    let id = &fence.conversation_id;
    for (limit, texts, has_earlier) in [(2, vec!["2", "3"], true), (5, vec!["hello", "0", "1", "2", "3"], false)] {
        let newest = world.store.earlier_messages(&owner, id, earlier(limit, None)).await.unwrap().unwrap();
        assert_eq!(newest.items.iter().map(|(_, message)| message.text()).collect::<Vec<_>>(), texts);
        assert_eq!(newest.earlier, has_earlier);
    }
    let mut pages = Vec::new();
    let mut before = None;
    loop {
        let found = world.store.earlier_messages(&owner, id, earlier(2, before)).await.unwrap().unwrap().into_page();
        pages.push(found.items.iter().map(|message| message.text()).collect::<Vec<_>>());
        before = found.next.map(|next| next.parse::<BeforeCursor>().unwrap());
        if before.is_none() {
            break;
        }
    }
    assert_eq!(pages, [vec!["2", "3"], vec!["0", "1"], vec!["hello"]]);
    let first = world.store.earlier_messages(&owner, id, earlier(5, Some(BeforeCursor(1)))).await.unwrap().unwrap();
    assert_eq!((first.items, first.earlier), (Vec::new(), false));
    let empty = make(world, &owner, "x", NOW).await;
    assert_eq!(world.store.earlier_messages(&owner, &empty, earlier(5, None)).await.unwrap().unwrap().items, []);
    assert_eq!(world.store.earlier_messages(&user(), id, earlier(5, None)).await.unwrap(), None);
}
