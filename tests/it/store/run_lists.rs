//! Lists of runs, the newest run of a conversation, and its default agent and model.

use std::collections::BTreeMap;

use capstan::domain::agent::AgentProfile;
use capstan::domain::conversation::AgentChoice;
use capstan::domain::ids::{ConversationId, RunId, UserId};
use capstan::domain::run::{OnBusy, RunStatus};
use capstan::store::{AcceptRun, ConversationChange, PageRequest, RunCursor, RunFilter};
use capstan::support::clock::UnixMillis;
use serde_json::json;

use super::fixture::{NOW, World, completed, conversation, failed, fresh, hello, user};

contract! {
    pages_of_runs_are_newest_first_and_have_no_gaps,
    runs_are_filtered_by_status_agent_and_time,
    runs_of_another_owner_are_not_listed,
    a_conversation_shows_its_newest_run,
    a_conversation_keeps_what_messages_name,
    a_change_sets_and_clears_agent_and_model,
    ;
    deleted_responses_are_those_of_the_owner,
    continued_requests_are_those_of_the_owner,
}

async fn continued_requests_are_those_of_the_owner(world: &World) {
    let (owner, stranger) = (user(), user());
    let run = accept(world, &owner, &conversation(), "default", 0).await;
    let stored = async |of: &UserId| world.store.continued_requests(of, &run).await.unwrap();
    assert!(stored(&owner).await.is_empty());
    let requests = BTreeMap::from([(1, json!({"temperature": 0.5}))]);
    world.store.store_continued_requests(&stranger, &run, &requests).await.unwrap();
    assert!(stored(&owner).await.is_empty());
    world.store.store_continued_requests(&owner, &run, &requests).await.unwrap();
    assert_eq!(stored(&owner).await, requests);
    assert!(stored(&stranger).await.is_empty());
}

async fn deleted_responses_are_those_of_the_owner(world: &World) {
    let (owner, stranger) = (user(), user());
    let run = accept(world, &owner, &conversation(), "default", 0).await;
    let deleted = async |of: &UserId| world.store.deleted_responses(of, &run).await.unwrap().into_iter().collect::<Vec<_>>();
    assert!(deleted(&owner).await.is_empty());
    world.store.delete_response(&stranger, &run, 0).await.unwrap();
    assert!(deleted(&owner).await.is_empty());
    for number in [2, 0, 2] {
        world.store.delete_response(&owner, &run, number).await.unwrap();
    }
    assert_eq!((deleted(&owner).await, deleted(&stranger).await), (vec![0, 2], vec![]));
    let conversation = world.store.run(&owner, &run).await.unwrap().unwrap().run.conversation_id;
    let has_other = async |of: &UserId, run: &RunId| world.store.has_other_whole_run(of, (&conversation, run)).await.unwrap();
    assert!(!has_other(&owner, &run).await, "only the run itself");
    let other = accept(world, &owner, &conversation, "default", 1).await;
    assert_eq!((has_other(&owner, &run).await, has_other(&stranger, &run).await), (true, false));
    assert!(!has_other(&owner, &other).await, "a response of the first run is deleted");
}

async fn accept(world: &World, owner: &UserId, id: &ConversationId, agent: &str, at: i64) -> RunId {
    let profile = AgentProfile { name: agent.to_owned(), ..AgentProfile::default() };
    world.accept(AcceptRun { profile, now: UnixMillis(NOW.0 + at), ..hello(owner, id) }).await.run.id
}

/// Returns all runs, read in pages of two.
async fn list(world: &World, owner: &UserId, filter: &RunFilter) -> Vec<RunId> {
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = world.store.runs(owner, filter, &PageRequest { limit: 2, after }).await.unwrap();
        assert!(page.items.len() == 2 || page.next.is_none());
        found.extend(page.items.into_iter().map(|run| run.id));
        let Some(next) = page.next else { return found };
        after = Some(next.parse::<RunCursor>().unwrap());
    }
}

async fn pages_of_runs_are_newest_first_and_have_no_gaps(world: &World) {
    let (owner, one, other) = (user(), conversation(), conversation());
    let mut made = Vec::new();
    for at in 0..4 {
        made.push(accept(world, &owner, &one, "default", 10 * at).await);
        made.push(accept(world, &owner, &other, "default", 10 * at + 5).await);
    }
    made.reverse();
    assert_eq!(list(world, &owner, &RunFilter::default()).await, made);
    let of_one: Vec<RunId> = made.iter().skip(1).step_by(2).cloned().collect();
    assert_eq!(list(world, &owner, &RunFilter { conversation: Some(one), ..RunFilter::default() }).await, of_one);
    // Runs with equal times are all listed. Runs of one conversation are in its order, not in that of their clocks.
    let (owner, id) = (user(), conversation());
    let mut made = Vec::new();
    for at in [5, 5, 5, 0, 5] {
        made.push(accept(world, &owner, &id, "default", at).await);
    }
    made.reverse();
    assert_eq!(list(world, &owner, &RunFilter { conversation: Some(id), ..RunFilter::default() }).await, made);
    let mut all = list(world, &owner, &RunFilter::default()).await;
    assert_eq!(all.last(), Some(&made[1]), "the oldest by time");
    all.sort_unstable();
    made.sort_unstable();
    assert_eq!(all, made);
}

async fn runs_are_filtered_by_status_agent_and_time(world: &World) {
    let owner = user();
    let done = world.claimed(&owner).await;
    world.commit_one(completed(&done)).await.unwrap();
    let broken = world.claimed(&owner).await;
    world.commit_one(failed(&broken)).await.unwrap();
    let poet = accept(world, &owner, &conversation(), "poet", 10).await;
    let late = accept(world, &owner, &conversation(), "default", 20).await;
    let filter = RunFilter::default;
    let status = |status| RunFilter { status: Some(status), ..filter() };
    assert_eq!(list(world, &owner, &status(RunStatus::Completed)).await, std::slice::from_ref(&done.run_id));
    assert_eq!(list(world, &owner, &status(RunStatus::Failed)).await, std::slice::from_ref(&broken.run_id));
    assert_eq!(list(world, &owner, &status(RunStatus::Queued)).await, [late.clone(), poet.clone()]);
    assert_eq!(list(world, &owner, &status(RunStatus::Waiting)).await, []);
    assert_eq!(list(world, &owner, &RunFilter { agent: Some("poet".to_owned()), ..filter() }).await, std::slice::from_ref(&poet));
    let (from, before) = (Some(UnixMillis(NOW.0 + 10)), Some(UnixMillis(NOW.0 + 20)));
    assert_eq!(list(world, &owner, &RunFilter { created_from: from, ..filter() }).await, [late.clone(), poet.clone()]);
    assert_eq!(list(world, &owner, &RunFilter { created_from: from, created_before: before, ..filter() }).await, [poet]);
    let within = RunFilter { conversation: Some(broken.conversation_id.clone()), ..status(RunStatus::Failed) };
    assert_eq!(list(world, &owner, &within).await, [broken.run_id]);
    assert_eq!(list(world, &owner, &RunFilter { status: Some(RunStatus::Completed), ..within }).await, []);
}

async fn runs_of_another_owner_are_not_listed(world: &World) {
    let (owner, other, id) = (user(), user(), conversation());
    accept(world, &owner, &id, "default", 0).await;
    assert_eq!(list(world, &other, &RunFilter::default()).await, []);
    assert_eq!(list(world, &other, &RunFilter { conversation: Some(id), ..RunFilter::default() }).await, []);
}

async fn a_conversation_shows_its_newest_run(world: &World) {
    let owner = user();
    let fence = world.claimed(&owner).await;
    let id = &fence.conversation_id;
    let last = async || world.store.conversation(&owner, id).await.unwrap().unwrap().last_run.unwrap();
    assert_eq!((last().await.id, last().await.status, last().await.error), (fence.run_id.clone(), RunStatus::Queued, None));
    let queued = accept(world, &owner, id, "default", 10).await;
    assert_eq!(last().await.id, queued);
    world.commit_one(completed(&fence)).await.unwrap();
    let fence = world.claim_one().await;
    world.commit_one(failed(&fence)).await.unwrap();
    let shown = last().await;
    let error = world.view(&owner, &queued).await.run.error;
    assert_eq!((shown.id, shown.status, shown.error.as_ref()), (queued, RunStatus::Failed, error.as_ref()));
    assert_eq!(error.unwrap().code, "provider_auth");
}

fn choice(agent: Option<&str>, model: Option<&str>) -> AgentChoice {
    AgentChoice { agent: agent.map(str::to_owned), model: model.map(str::to_owned) }
}

async fn kept(world: &World, owner: &UserId, id: &ConversationId) -> AgentChoice {
    let found = world.store.conversation(owner, id).await.unwrap().unwrap();
    AgentChoice { agent: found.agent, model: found.model }
}

async fn a_conversation_keeps_what_messages_name(world: &World) {
    let owner = user();
    let say = async |id: &ConversationId, names: AgentChoice, on_busy| {
        fresh(world.store.accept_run(AcceptRun { choice: names, on_busy, ..hello(&owner, id) }, None).await.unwrap())
    };
    let ends = async || world.commit_one(completed(&world.claim_one().await)).await.unwrap();
    // The first message creates the conversation and names both.
    let id = conversation();
    say(&id, choice(Some("poet@2"), Some("a/b")), OnBusy::Queue).await;
    assert_eq!(kept(world, &owner, &id).await, choice(Some("poet@2"), Some("a/b")));
    // To a busy conversation, then to an idle one.
    say(&id, choice(None, Some("c/d")), OnBusy::Queue).await;
    assert_eq!(kept(world, &owner, &id).await, choice(Some("poet@2"), Some("c/d")));
    say(&id, choice(Some("cook"), None), OnBusy::Steer).await;
    assert_eq!(kept(world, &owner, &id).await, choice(Some("cook"), Some("c/d")));
    ends().await;
    ends().await;
    say(&id, choice(None, None), OnBusy::Queue).await;
    assert_eq!(kept(world, &owner, &id).await, choice(Some("cook"), Some("c/d")));
    ends().await;
    say(&id, choice(Some("default"), None), OnBusy::Queue).await;
    assert_eq!(kept(world, &owner, &id).await, choice(Some("default"), Some("c/d")));
    ends().await;
    // A first message without names: the conversation keeps the agent of its run.
    let id = conversation();
    say(&id, choice(None, None), OnBusy::Queue).await;
    assert_eq!(kept(world, &owner, &id).await, choice(Some("default"), None));
}

async fn a_change_sets_and_clears_agent_and_model(world: &World) {
    let (owner, id) = (user(), conversation());
    world.accept(hello(&owner, &id)).await;
    let change = async |agent: Option<&str>, model: Option<&str>| {
        let AgentChoice { agent, model } = choice(agent, model);
        let change = ConversationChange { agent, model, ..ConversationChange::default() };
        let (changed, _) = world.store.change_conversation(&owner, &id, &change, NOW).await.unwrap().unwrap();
        assert_eq!(world.store.conversation(&owner, &id).await.unwrap(), Some(changed.clone()));
        AgentChoice { agent: changed.agent, model: changed.model }
    };
    assert_eq!(change(Some("poet"), None).await, choice(Some("poet"), None));
    assert_eq!(change(None, Some("a/b")).await, choice(Some("poet"), Some("a/b")));
    assert_eq!(change(Some(""), None).await, choice(None, Some("a/b")));
    assert_eq!(change(None, Some("")).await, choice(None, None));
}
