//! Feedback of users on answers.

use std::sync::Arc;

use capstan::domain::conversation::feedback::{Feedback, Rating, Review};
use capstan::domain::conversation::message::Message;
use capstan::domain::ids::{ConversationId, MessageId, UserId};
use capstan::domain::run::change::Change;
use capstan::store::{
    CopiedDocument, CopiedEnd, CopiedTurn, CopyConversation, CopyLimits, CopyOutcome, CopySource, CopyUntil, FeedbackFilter,
    FeedbackOutcome, GiveFeedback, IdempotentOutcome, RewindFrom,
};
use capstan::support::clock::UnixMillis;
use capstan::support::ids::UuidIds;

use super::fixture::{NOW, World, assistant, changes, completed, conversation, earlier, fresh, hello, key, page, user};

contract! {
    ;
    of_an_answer_the_last_word_counts,
    only_answers_of_own_conversations_are_rated,
    ratings_are_listed_by_when_they_were_said,
    a_document_brings_its_ratings_and_a_fork_does_not,
    review_is_shown_until_the_next_rating,
}

async fn review_is_shown_until_the_next_rating(world: &World) {
    let (owner, id, root) = (user(), conversation(), user());
    let answer = answered(world, &owner, &id).await;
    let review = async |by: Option<&UserId>| world.store.review_feedback(&answer, by, UnixMillis(NOW.0 + 7)).await.unwrap();
    assert_eq!(review(Some(&root)).await, None, "there is no feedback to review");
    let rate = async |rating| fresh(world.store.give_feedback(give(&owner, &id, &answer, rating, 5), None).await.unwrap());
    let found = async |reviewed| {
        let filter = FeedbackFilter { owner: Some(owner.clone()), reviewed, ..FeedbackFilter::default() };
        world.store.feedback(&filter, &page(10, None)).await.unwrap().items
    };
    rate(Rating::Down).await;
    let looked_at = Review { by: root.clone(), at: UnixMillis(NOW.0 + 7).to_rfc3339() };
    let reviewed = review(Some(&root)).await.unwrap();
    assert_eq!((&reviewed.message_id, reviewed.review.as_ref()), (&answer, Some(&looked_at)));
    assert_eq!(found(Some(true)).await, std::slice::from_ref(&reviewed));
    assert_eq!(found(None).await, [reviewed]);
    assert_eq!(found(Some(false)).await, []);
    assert_eq!(review(None).await.unwrap().review, None);
    assert_eq!(found(Some(false)).await.len(), 1);
    review(Some(&root)).await;
    rate(Rating::Up).await;
    assert_eq!(found(Some(true)).await, [], "a changed rating is not reviewed yet");
    review(Some(&root)).await;
    assert!(world.store.withdraw_feedback(&owner, &id, &answer).await.unwrap());
    rate(Rating::Up).await;
    assert_eq!(found(Some(true)).await, []);
}

/// Runs a message and returns the id of its answer.
async fn answered(world: &World, owner: &UserId, id: &ConversationId) -> MessageId {
    world.accept(hello(owner, id)).await;
    let fence = world.claim_one().await;
    let answer = assistant(&fence, "answer");
    world.commit_one(changes(&fence, vec![Change::AddMessage(answer.clone())])).await.unwrap();
    world.commit_one(completed(&fence)).await.unwrap();
    answer.id
}

fn give(owner: &UserId, id: &ConversationId, message: &MessageId, rating: Rating, after: i64) -> GiveFeedback {
    GiveFeedback {
        owner: owner.clone(),
        conversation_id: id.clone(),
        message_id: message.clone(),
        rating,
        comment: None,
        now: UnixMillis(NOW.0 + after),
    }
}

async fn listed(world: &World, owner: &UserId, id: &ConversationId) -> Vec<Message> {
    world.store.messages(owner, id, &page(100, None)).await.unwrap().unwrap().items
}

async fn of_an_answer_the_last_word_counts(world: &World) {
    let (owner, id) = (user(), conversation());
    let answer = answered(world, &owner, &id).await;
    let (before, log) = (listed(world, &owner, &id).await, world.log(&owner, &id).await);
    let down = GiveFeedback { comment: Some("wrong".to_owned()), ..give(&owner, &id, &answer, Rating::Down, 5) };
    let given = world.store.give_feedback(down.clone(), key(&owner, "k", "f")).await.unwrap();
    let kept = Feedback { rating: Rating::Down, comment: Some("wrong".to_owned()), at: UnixMillis(NOW.0 + 5).to_rfc3339() };
    assert_eq!(given, IdempotentOutcome::Fresh(FeedbackOutcome::Kept(kept.clone())));
    let shown = listed(world, &owner, &id).await;
    assert_eq!(shown[1].feedback.as_deref(), Some(&kept));
    let newest = world.store.earlier_messages(&owner, &id, earlier(1, None)).await.unwrap().unwrap();
    assert!(newest.earlier);
    assert_eq!(newest.into_page().items, shown[1..]);

    let up = give(&owner, &id, &answer, Rating::Up, 9);
    fresh(world.store.give_feedback(up, None).await.unwrap());
    let said = listed(world, &owner, &id).await[1].feedback.clone().unwrap();
    assert_eq!((said.rating, said.comment, said.at), (Rating::Up, None, UnixMillis(NOW.0 + 9).to_rfc3339()));
    // A late repetition of the first request changes nothing.
    assert_eq!(
        world.store.give_feedback(down.clone(), key(&owner, "k", "f")).await.unwrap(),
        IdempotentOutcome::Replayed(FeedbackOutcome::Kept(kept))
    );
    assert_eq!(world.store.give_feedback(down, key(&owner, "k", "g")).await.unwrap(), IdempotentOutcome::Mismatch);
    assert_eq!(listed(world, &owner, &id).await[1].feedback.as_ref().unwrap().rating, Rating::Up);

    // Feedback is not part of the model's history.
    world.accept(hello(&owner, &id)).await;
    let fence = world.claim_one().await;
    assert_eq!(world.load(&fence).await.history[..2], before[..2]);
    world.commit_one(completed(&fence)).await.unwrap();
    assert_eq!(world.log(&owner, &id).await[..log.len()], log, "the log does not contain it either");

    assert!(world.store.withdraw_feedback(&owner, &id, &answer).await.unwrap());
    assert!(!world.store.withdraw_feedback(&owner, &id, &answer).await.unwrap());
    assert_eq!(listed(world, &owner, &id).await[..2], before[..]);
}

async fn only_answers_of_own_conversations_are_rated(world: &World) {
    let (owner, id, other) = (user(), conversation(), conversation());
    let answer = answered(world, &owner, &id).await;
    answered(world, &owner, &other).await;
    let question = listed(world, &owner, &id).await[0].id.clone();
    let rate = async |give| fresh(world.store.give_feedback(give, None).await.unwrap());
    assert_eq!(rate(give(&owner, &id, &question, Rating::Up, 0)).await, FeedbackOutcome::NotAnAnswer);
    for (owner, id) in [(&user(), &id), (&owner, &other), (&owner, &conversation())] {
        assert_eq!(rate(give(owner, id, &answer, Rating::Up, 0)).await, FeedbackOutcome::NoMessage);
        assert!(!world.store.withdraw_feedback(owner, id, &answer).await.unwrap());
    }
    // Feedback on an answer stays after the answer is superseded, and later feedback is refused.
    rate(give(&owner, &id, &answer, Rating::Down, 0)).await;
    let from = RewindFrom::At(answer.clone());
    let rewind = capstan::store::Rewind { owner: owner.clone(), conversation_id: id.clone(), from, now: NOW };
    fresh(world.store.rewind_conversation(rewind, None).await.unwrap());
    assert_eq!(rate(give(&owner, &id, &answer, Rating::Up, 0)).await, FeedbackOutcome::NoMessage);
    let own = FeedbackFilter { owner: Some(owner.clone()), ..FeedbackFilter::default() };
    let found = world.store.feedback(&own, &page(10, None)).await.unwrap().items;
    assert_eq!(found.iter().map(|found| (&found.message_id, found.rating)).collect::<Vec<_>>(), [(&answer, Rating::Down)]);
    // Feedback is deleted with its conversation.
    assert!(world.store.delete_conversation(&owner, &id).await.unwrap().is_some());
    assert_eq!(world.store.feedback(&own, &page(10, None)).await.unwrap().items, []);
}

async fn ratings_are_listed_by_when_they_were_said(world: &World) {
    let (ann, bob) = (user(), user());
    let mut said = Vec::new();
    for (owner, rating, after) in [(&ann, Rating::Up, 3), (&bob, Rating::Down, 1), (&ann, Rating::Down, 2), (&ann, Rating::Up, 2)] {
        let id = conversation();
        let answer = answered(world, owner, &id).await;
        fresh(world.store.give_feedback(give(owner, &id, &answer, rating, after), None).await.unwrap());
        said.push((answer, owner.clone()));
    }
    let [(first, _), (bobs, _), (third, _), (fourth, _)] = said.as_slice() else { panic!("{said:?}") };
    let all = async |filter: &FeedbackFilter| {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = world.store.feedback(filter, &page(1, after)).await.unwrap();
            found.extend(page.items.into_iter().map(|found| found.message_id));
            after = page.next;
            if after.is_none() {
                return found;
            }
        }
    };
    let of = |owner: Option<&UserId>, rating| FeedbackFilter { owner: owner.cloned(), rating, reviewed: None };
    let both = |one: &MessageId, two: &MessageId| if one > two { [one.clone(), two.clone()] } else { [two.clone(), one.clone()] };
    let [second, next] = both(third, fourth);
    assert_eq!(all(&of(Some(&ann), None)).await, [first.clone(), second.clone(), next.clone()]);
    assert_eq!(all(&of(None, None)).await, [first.clone(), second, next, bobs.clone()]);
    assert_eq!(all(&of(None, Some(Rating::Down))).await, [third.clone(), bobs.clone()]);
    assert_eq!(all(&of(Some(&bob), Some(Rating::Up))).await, []);
    let one = world.store.feedback(&of(Some(&bob), None), &page(10, None)).await.unwrap().items.remove(0);
    assert_eq!((&one.owner_id, one.agent.as_str(), one.agent_version, one.model.as_str()), (&bob, "default", 1, "demo/demo"));
}

async fn a_document_brings_its_ratings_and_a_fork_does_not(world: &World) {
    let (owner, id) = (user(), conversation());
    let answer = answered(world, &owner, &id).await;
    let down = GiveFeedback { comment: Some("\"wrong\"".to_owned()), ..give(&owner, &id, &answer, Rating::Down, 0) };
    fresh(world.store.give_feedback(down, None).await.unwrap());
    let said = listed(world, &owner, &id).await;
    let copy = |source| CopyConversation {
        id: conversation(),
        owner: owner.clone(),
        title: None,
        source,
        limits: CopyLimits { messages: 100, bytes: 100_000 },
        max_conversations: 0,
        ids: Arc::new(UuidIds),
        now: UnixMillis(NOW.0 + 50),
    };
    let made = async |source| {
        let copied = fresh(world.store.copy_conversation(copy(source), None).await.unwrap());
        let CopyOutcome::Conversation(made) = copied else { panic!("it is made: {copied:?}") };
        listed(world, &owner, &made.id).await
    };
    let forked = made(CopySource::Conversation { id: id.clone(), until: CopyUntil::End }).await;
    assert_eq!((forked.len(), forked[1].feedback.as_ref()), (2, None), "it counts once");

    let mut later = said[1].clone();
    later.feedback.as_mut().unwrap().at = "2999-01-01T00:00:00Z".to_owned();
    let messages = said.iter().cloned().chain([later]).zip(1..).map(|(message, place)| (place, message)).collect();
    let turn = CopiedTurn {
        begins: 1,
        profile: serde_json::to_string(&hello(&owner, &id).profile).unwrap(),
        agent: "default".to_owned(),
        agent_version: 1,
        model: "demo/demo".to_owned(),
        end: CopiedEnd::Cancelled,
        messages,
    };
    let imported = made(CopySource::Document(CopiedDocument { turns: vec![turn], ..CopiedDocument::default() })).await;
    assert_eq!((imported[0].feedback.as_ref(), &imported[1].feedback), (None, &said[1].feedback));
    assert_eq!(imported[2].feedback.as_ref().unwrap().at, UnixMillis(NOW.0 + 50).to_rfc3339(), "no timestamp is in the future");
}
