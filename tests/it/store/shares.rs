//! Shares of conversations.

use capstan::domain::conversation::message::{FilePart, Part, ReasoningPart, Role};
use capstan::domain::conversation::shares::{Share, SharedMessage, SharedPart};
use capstan::domain::ids::{ConversationId, PartId, ShareId, UserId};
use capstan::store::{
    AppendOutcome, ConversationChange, IdempotentOutcome, NewShare, Rewind, RewindFrom, ShareLimits, ShareOutcome,
};
use capstan::support::ids::UuidIds;

use super::fixture::{LONG, NOW, World, all_items, append, conversation, fresh, hello, key, page, text, user};

contract! {
    ;
    share_is_read_until_it_is_deleted,
    later_changes_leave_a_share_as_it_is,
    expired_share_is_unknown_and_removed,
    conversation_has_limited_shares,
    share_of_many_messages_is_complete_or_refused,
    repeated_creation_returns_the_first_share,
    deleted_conversation_has_no_shares,
    owner_lists_the_shares_of_all_conversations,
}

const LIMITS: ShareLimits = ShareLimits { per_conversation: 2, bytes: 100_000, read_bytes: 4_000_000 };

fn new(owner: &UserId, id: &ConversationId, hash: &str) -> NewShare {
    NewShare {
        id: ShareId::generate(&UuidIds),
        owner: owner.clone(),
        conversation_id: id.clone(),
        hash: hash.to_owned(),
        lifetime_ms: LONG,
        limits: LIMITS,
    }
}

async fn create(world: &World, new: NewShare) -> ShareOutcome {
    fresh(world.store.create_share(new, None).await.unwrap())
}

async fn shared(world: &World, new: NewShare) -> Share {
    match create(world, new).await {
        ShareOutcome::Shared(share) => share,
        other @ (ShareOutcome::TooMany | ShareOutcome::TooLarge | ShareOutcome::NoConversation) => panic!("{other:?}"),
    }
}

async fn messages(world: &World, hash: &str) -> Option<Vec<SharedMessage>> {
    world.store.shared_conversation(hash).await.unwrap().map(|shared| shared.messages)
}

fn said(role: Role, words: &str) -> SharedMessage {
    SharedMessage { role, created_at: NOW.to_rfc3339(), parts: vec![SharedPart::Text { text: words.to_owned() }] }
}

/// Creates a conversation with these messages.
async fn of_messages(world: &World, owner: &UserId, messages: Vec<(Role, Vec<Part>)>) -> ConversationId {
    let id = conversation();
    world.accept(hello(owner, &id)).await;
    let fence = world.claim_one().await;
    world.commit_one(super::fixture::completed(&fence)).await.unwrap();
    let appended = fresh(world.store.append_messages(append(owner, &id, messages), None).await.unwrap());
    assert!(matches!(appended, AppendOutcome::Appended { .. }), "{appended:?}");
    id
}

async fn share_is_read_until_it_is_deleted(world: &World) {
    let (owner, other) = (user(), user());
    let id = of_messages(world, &owner, vec![(Role::User, text("tea?")), (Role::Assistant, text("yes \u{0}\u{1F375}"))]).await;
    let share = shared(world, new(&owner, &id, "one")).await;
    assert_eq!((share.title.as_str(), share.message_count), ("A title", 3));
    assert_eq!(share.expires_at, share.created_at.after(LONG));
    let read = world.store.shared_conversation("one").await.unwrap().unwrap();
    assert_eq!((read.title.as_str(), read.created_at), ("A title", share.created_at.to_rfc3339()));
    assert_eq!(read.expires_at, share.expires_at.to_rfc3339());
    let expected = [said(Role::User, "hello"), said(Role::User, "tea?"), said(Role::Assistant, "yes \u{fffd}\u{1F375}")];
    assert_eq!(read.messages, expected);
    assert_eq!(world.store.shares(&owner, &id).await.unwrap(), std::slice::from_ref(&share));

    assert_eq!(messages(world, "other").await, None);
    assert_eq!(world.store.shares(&other, &id).await.unwrap(), []);
    assert_eq!(create(world, new(&other, &id, "two")).await, ShareOutcome::NoConversation);
    assert_eq!(create(world, new(&owner, &conversation(), "two")).await, ShareOutcome::NoConversation);
    assert!(world.store.create_share(new(&owner, &id, "one"), None).await.is_err(), "a hash stands for one share");
    for (by, of, share_id) in
        [(&other, &id, &share.id), (&owner, &conversation(), &share.id), (&owner, &id, &ShareId::generate(&UuidIds))]
    {
        assert!(!world.store.delete_share(by, of, share_id).await.unwrap());
    }
    assert!(messages(world, "one").await.is_some());
    assert!(world.store.delete_share(&owner, &id, &share.id).await.unwrap());
    assert!(!world.store.delete_share(&owner, &id, &share.id).await.unwrap());
    assert_eq!(messages(world, "one").await, None);
    assert_eq!(world.store.shares(&owner, &id).await.unwrap(), []);
}

async fn later_changes_leave_a_share_as_it_is(world: &World) {
    let owner = user();
    let id = of_messages(world, &owner, vec![(Role::User, text("first")), (Role::Assistant, text("answer"))]).await;
    let before = shared(world, new(&owner, &id, "before")).await;
    let seen = world.store.shared_conversation("before").await.unwrap();
    let listed = world.store.messages(&owner, &id, &page(10, None)).await.unwrap().unwrap().items;
    let from = RewindFrom::At(listed[1].id.clone());
    fresh(
        world
            .store
            .rewind_conversation(Rewind { owner: owner.clone(), conversation_id: id.clone(), from, now: NOW }, None)
            .await
            .unwrap(),
    );
    let title = ConversationChange { title: Some("Another".to_owned()), ..ConversationChange::default() };
    world.store.change_conversation(&owner, &id, &title, NOW).await.unwrap();
    assert_eq!(world.store.shared_conversation("before").await.unwrap(), seen);
    let after = shared(world, new(&owner, &id, "after")).await;
    assert_eq!((after.title.as_str(), after.message_count, before.message_count), ("Another", 1, 3));
    assert_eq!(messages(world, "after").await, Some(vec![said(Role::User, "hello")]), "superseded messages are not shared");
    let ids: Vec<_> = world.store.shares(&owner, &id).await.unwrap().into_iter().map(|share| share.id).collect();
    assert!(ids.len() == 2 && ids.contains(&before.id) && ids.contains(&after.id), "{ids:?}");
}

async fn expired_share_is_unknown_and_removed(world: &World) {
    let owner = user();
    let id = of_messages(world, &owner, vec![(Role::User, text("first"))]).await;
    shared(world, NewShare { lifetime_ms: 0, ..new(&owner, &id, "over") }).await;
    let long = shared(world, new(&owner, &id, "long")).await;
    assert_eq!(messages(world, "over").await, None);
    assert_eq!(world.store.shares(&owner, &id).await.unwrap(), [long]);
    assert_eq!(world.store.count_expired(0, None).await.unwrap().tickets, 1);
    assert_eq!(world.store.remove_expired_shares().await.unwrap(), 1);
    assert_eq!(world.store.remove_expired_shares().await.unwrap(), 0);
    assert!(messages(world, "long").await.is_some());
}

async fn conversation_has_limited_shares(world: &World) {
    let owner = user();
    let id = of_messages(world, &owner, vec![(Role::User, text("first"))]).await;
    let other = of_messages(world, &owner, vec![(Role::User, text("first"))]).await;
    shared(world, NewShare { lifetime_ms: 0, ..new(&owner, &id, "over") }).await;
    let first = shared(world, new(&owner, &id, "0")).await;
    // Concurrent requests do not exceed the limit.
    let (one, two) = tokio::join!(create(world, new(&owner, &id, "1")), create(world, new(&owner, &id, "2")));
    assert_eq!([&one, &two].into_iter().filter(|outcome| **outcome == ShareOutcome::TooMany).count(), 1, "{one:?} {two:?}");
    assert_eq!(create(world, new(&owner, &id, "3")).await, ShareOutcome::TooMany);
    shared(world, new(&owner, &other, "4")).await;
    assert!(world.store.delete_share(&owner, &id, &first.id).await.unwrap());
    shared(world, new(&owner, &id, "5")).await;
}

async fn share_of_many_messages_is_complete_or_refused(world: &World) {
    let owner = user();
    let turns = (0..130).flat_map(|n| [(Role::User, text(&format!("question {n}"))), (Role::Assistant, text(&"a".repeat(300)))]);
    let id = of_messages(world, &owner, turns.collect()).await;
    let share = shared(world, new(&owner, &id, "all")).await;
    let read = messages(world, "all").await.unwrap();
    assert_eq!((share.message_count, read.len()), (261, 261));
    assert_eq!(read[259], said(Role::User, "question 129"));
    let json = serde_json::to_string(&read).unwrap().len();
    for (bytes, is_shared) in [(json, true), (json - 1, false), (30_000, false)] {
        assert!(world.store.delete_share(&owner, &id, &world.store.shares(&owner, &id).await.unwrap()[0].id).await.unwrap());
        let limits = ShareLimits { bytes, ..LIMITS };
        let outcome = create(world, NewShare { limits, ..new(&owner, &id, &format!("{bytes}")) }).await;
        assert_eq!(matches!(outcome, ShareOutcome::Shared(_)), is_shared, "{bytes}");
        if !is_shared {
            assert_eq!(outcome, ShareOutcome::TooLarge);
            shared(world, new(&owner, &id, &format!("again {bytes}"))).await;
        }
    }
    // Only the shared texts count.
    let reasoning = Part::Reasoning(ReasoningPart { id: PartId::generate(&UuidIds), text: "r".repeat(2_000_000), raw: None });
    let file = Part::File(FilePart::of(PartId::generate(&UuidIds), "text/plain"));
    let parts = vec![reasoning, file, text("short").remove(0)];
    let large = of_messages(world, &owner, vec![(Role::User, text("first")), (Role::Assistant, parts)]).await;
    assert_eq!(shared(world, new(&owner, &large, "large")).await.message_count, 3);
    assert_eq!(messages(world, "large").await.unwrap()[2], said(Role::Assistant, "short"));
    // But a transaction reads only so much.
    let limits = ShareLimits { read_bytes: 1_000_000, ..LIMITS };
    assert_eq!(create(world, NewShare { limits, ..new(&owner, &large, "read") }).await, ShareOutcome::TooLarge);
}

async fn repeated_creation_returns_the_first_share(world: &World) {
    let owner = user();
    let id = of_messages(world, &owner, vec![(Role::User, text("first"))]).await;
    let ask = async |hash: &str, fingerprint: &str| {
        world.store.create_share(new(&owner, &id, hash), key(&owner, "k", fingerprint)).await.unwrap()
    };
    let (one, two) = tokio::join!(ask("one", "f"), ask("two", "f"));
    let ((IdempotentOutcome::Fresh(first), IdempotentOutcome::Replayed(second))
    | (IdempotentOutcome::Replayed(second), IdempotentOutcome::Fresh(first))) = (one, two)
    else {
        panic!("one of two requests is repeated")
    };
    assert_eq!(first, second);
    assert_eq!(ask("three", "g").await, IdempotentOutcome::Mismatch);
    assert_eq!(world.store.shares(&owner, &id).await.unwrap().len(), 1);
}

async fn deleted_conversation_has_no_shares(world: &World) {
    let owner = user();
    let id = of_messages(world, &owner, vec![(Role::User, text("first"))]).await;
    let other = of_messages(world, &owner, vec![(Role::User, text("first"))]).await;
    shared(world, new(&owner, &id, "one")).await;
    shared(world, new(&owner, &other, "two")).await;
    assert!(world.store.delete_conversation(&owner, &id).await.unwrap().is_some());
    assert_eq!(messages(world, "one").await, None);
    assert!(messages(world, "two").await.is_some());
    assert_eq!(world.database.count("SELECT CAST(count(*) AS text) FROM conversation_shares").await, 1);
    // A deletion that was interrupted after its first step.
    let step = format!("UPDATE conversations SET owner_id = '' WHERE id = '{other}' RETURNING id");
    world.database.rows(&step).await;
    assert_eq!(messages(world, "two").await, None);
    assert_eq!(listed(world, &owner, 10).await, []);
}

/// Reads all shares of an owner in pages of `limit`.
async fn listed(world: &World, owner: &UserId, limit: u32) -> Vec<Share> {
    all_items(async |after| world.store.shares_page(owner, &page(limit, after)).await.unwrap()).await
}

async fn owner_lists_the_shares_of_all_conversations(world: &World) {
    let (owner, other) = (user(), user());
    let mut expected = Vec::new();
    for number in 0..3 {
        let id = of_messages(world, &owner, vec![(Role::User, text("first"))]).await;
        for again in 0..2 {
            expected.push(shared(world, new(&owner, &id, &format!("{number} {again}"))).await);
        }
        shared(
            world,
            NewShare {
                lifetime_ms: 0,
                limits: ShareLimits { per_conversation: 3, ..LIMITS },
                ..new(&owner, &id, &format!("over {number}"))
            },
        )
        .await;
    }
    let foreign = of_messages(world, &other, vec![(Role::User, text("first"))]).await;
    let foreign = shared(world, new(&other, &foreign, "foreign")).await;
    // Several shares may have the same time.
    expected.sort_by(|one, next| (next.created_at, next.id.as_str()).cmp(&(one.created_at, one.id.as_str())));
    for limit in [1, 2, 100] {
        assert_eq!(listed(world, &owner, limit).await, expected, "in pages of {limit}");
    }
    assert_eq!(listed(world, &other, 100).await, [foreign]);
    let revoked = expected.remove(2);
    assert!(world.store.delete_share(&owner, &revoked.conversation_id, &revoked.id).await.unwrap());
    assert_eq!(listed(world, &owner, 100).await, expected);
}
