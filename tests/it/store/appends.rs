//! Messages that are appended to a conversation.

use capstan::domain::conversation::message::{Message, Role};
use capstan::domain::ids::{ConversationId, UserId};
use capstan::domain::run::RunStatus;
use capstan::store::{AppendMessages, AppendOutcome, IdempotentOutcome};

use super::fixture::{World, append, conversation, failed, fresh, hello, key, page, text, user};

contract! {
    @databases
    appended_messages_follow_those_of_runs,
    refused_append_stores_nothing,
}

async fn listed(world: &World, owner: &UserId, id: &ConversationId) -> Vec<Message> {
    world.store.messages(owner, id, &page(100, None)).await.unwrap().unwrap().items
}

async fn appended(world: &World, request: AppendMessages) -> AppendOutcome {
    fresh(world.store.append_messages(request, None).await.unwrap())
}

async fn appended_messages_follow_those_of_runs(world: &World) {
    let (owner, id) = (user(), conversation());
    let asked = world.accept(hello(&owner, &id)).await;
    let request = append(&owner, &id, vec![(Role::User, text("tw\u{0}o")), (Role::Assistant, text("three"))]);
    let active = fresh(world.store.append_messages(request.clone(), key(&owner, "k", "f")).await.unwrap());
    assert_eq!(active, AppendOutcome::Active { run_id: asked.run.id });
    world.commit_one(failed(&world.claim_one().await)).await.unwrap();
    let before = world.log(&owner, &id).await;

    // The refused request has not used the key.
    let done = fresh(world.store.append_messages(request.clone(), key(&owner, "k", "f")).await.unwrap());
    let AppendOutcome::Appended { messages, events } = done else { panic!("they are stored: {done:?}") };
    let log = world.log(&owner, &id).await;
    assert_eq!((&log[..before.len()], &log[before.len()..]), (&before[..], &events[..]));
    let kinds: Vec<&str> = events.iter().map(|event| event.kind.as_ref()).collect();
    assert_eq!(kinds, ["message.created", "run.queued", "message.created", "run.completed", "conversation.updated"]);
    let all = listed(world, &owner, &id).await;
    assert_eq!((&all[0].id, &all[1..]), (&asked.message.id, &messages[..]));
    let turn = &request.turns[0];
    assert!(turn.messages.iter().all(|(_, sent)| all.iter().all(|message| message.id != sent.id)), "the ids are new");
    let view = world.view(&owner, &messages[0].run_id).await;
    let (first, last) = (events[0].seq, events[3].seq);
    assert_eq!((view.run.status, view.first_seq, view.last_seq), (RunStatus::Completed, first, Some(last)));
    assert_eq!(world.status(&owner, &id).await, "idle");
    assert!(world.claim(10).await.is_empty(), "no run is queued");

    let replayed = world.store.append_messages(request.clone(), key(&owner, "k", "f")).await.unwrap();
    let same = AppendOutcome::Appended { messages: messages.clone(), events: Vec::new() };
    assert_eq!(replayed, IdempotentOutcome::Replayed(same));
    assert_eq!(world.store.append_messages(request, key(&owner, "k", "g")).await.unwrap(), IdempotentOutcome::Mismatch);
    assert_eq!(world.log(&owner, &id).await, log);

    // The model of the next run reads them in order.
    let next = world.accept(hello(&owner, &id)).await.message.id;
    let read: Vec<_> = world.load(&world.claim_one().await).await.history.into_iter().map(|message| message.id).collect();
    assert_eq!(read, all.into_iter().map(|message| message.id).chain([next]).collect::<Vec<_>>());
}

async fn refused_append_stores_nothing(world: &World) {
    let (owner, id) = (user(), conversation());
    world.accept(hello(&owner, &id)).await;
    world.commit_one(failed(&world.claim_one().await)).await.unwrap();
    let said = vec![(Role::User, text("more"))];
    assert_eq!(appended(world, append(&user(), &id, said.clone())).await, AppendOutcome::NoConversation, "another owner");
    assert_eq!(appended(world, append(&owner, &conversation(), said.clone())).await, AppendOutcome::NoConversation);

    // Texts extend the system prompt, up to its limit.
    let prompt = async || world.store.conversation(&owner, &id).await.unwrap().unwrap().system_prompt;
    let brief = AppendMessages { system_prompt: Some("Be brief.".to_owned()), max_prompt_chars: 20, ..append(&owner, &id, said) };
    for expected in ["Be brief.", "Be brief.\n\nBe brief."] {
        let only = AppendMessages { turns: Vec::new(), ..brief.clone() };
        let AppendOutcome::Appended { messages, events } = appended(world, only).await else { panic!("it fits") };
        assert_eq!((messages.len(), events.len(), prompt().await.as_deref()), (0, 1, Some(expected)));
        assert_eq!(world.status(&owner, &id).await, "failed");
    }
    let log = world.log(&owner, &id).await;
    assert_eq!(appended(world, brief).await, AppendOutcome::LongPrompt { chars: 31 });
    assert_eq!((listed(world, &owner, &id).await.len(), world.log(&owner, &id).await), (1, log));
}
