//! Titles that models write beside the runs.

use std::sync::Arc;
use std::time::Duration;

use capstan::domain::agent::TitlePolicy;
use capstan::domain::ids::{ConversationId, RunId};
use capstan::domain::model::{ModelError, ModelErrorKind};
use capstan::domain::run::{OnBusy, RunStatus};
use capstan::store::{AcceptRun, UsageFilter};
use capstan::support::clock::UnixMillis;
use capstan::worker::{Worker, WorkerOptions};
use tokio::sync::Notify;

use super::harness::{Answer, Harness, options, until};

async fn worker(h: &Harness, change: impl FnOnce(&mut WorkerOptions)) -> Arc<Worker> {
    let mut options = options(&h.ids);
    change(&mut options);
    Worker::start(h.deps(), options).await.unwrap()
}

/// Sends a message to an agent with model titles.
async fn say(h: &Harness, conversation: &ConversationId, text: &str) -> RunId {
    let mut accept = AcceptRun { create_with_title: Some(String::new()), ..h.message(conversation, text, OnBusy::Queue) };
    accept.profile.title = TitlePolicy::Model;
    accept.profile.final_text = Some("Nobody answers.".to_owned());
    let run = accept.run_id.clone();
    h.store.accept_run(accept, None).await.unwrap();
    h.hub.queue_signal().notify_one();
    h.until(&run, RunStatus::Completed).await;
    run
}

async fn title(h: &Harness, id: &ConversationId) -> String {
    h.store.conversation(&h.owner, id).await.unwrap().unwrap().title
}

/// Returns the number of model calls that are charged to the owner.
async fn charged(h: &Harness) -> u64 {
    let filter = UsageFilter::by_day_and_model(Some(h.owner.clone()), UnixMillis(0));
    let page = capstan::store::PageRequest { limit: 10, after: None };
    h.store.usage(&filter, &page).await.unwrap().items.iter().map(|row| row.usage.model_calls).sum()
}

#[tokio::test]
async fn a_title_holds_no_slot() {
    let h = Harness::new().await;
    let gate = Arc::new(Notify::new());
    h.model.then(Answer::Text("From China."));
    h.model.then(Answer::Held("**Tea:**", Arc::clone(&gate)));
    let worker = worker(&h, |options| options.slots = 1).await;
    let id = ConversationId::generate(h.ids.as_ref());
    say(&h, &id, "Where is tea from?").await;
    until("the question for a title", async || (h.model.request_count() == 2).then_some(())).await;
    let (_, other) = h.say("another one").await;
    h.until(&other, RunStatus::Completed).await;
    assert_eq!(title(&h, &id).await, "Where is tea from?");
    gate.notify_one();
    until("the title", async || (title(&h, &id).await == "Tea: indeed").then_some(())).await;
    assert_eq!(h.kinds(&id).await.last().unwrap(), "conversation.updated");
    let requests = h.model.requests.lock().unwrap().clone();
    let said: Vec<String> = requests[1].messages.iter().map(|message| message.text()).collect();
    assert_eq!(said[..2], ["Where is tea from?", "From China."]);
    assert_eq!((requests[1].tools.len(), requests[1].options.max_output_tokens), (0, Some(600)));
    worker.drain(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn missing_title_is_abandoned_and_not_requested_again() {
    let h = Harness::with_answers([Answer::Text("From China."), Answer::Hang("The History of")]).await;
    let worker = worker(&h, |options| options.title_timeout = Duration::from_millis(100)).await;
    let id = ConversationId::generate(h.ids.as_ref());
    say(&h, &id, "Where is tea from?").await;
    // The usage of the abandoned request is charged.
    until("the end of the wait", async || (charged(&h).await == 2).then_some(())).await;
    assert_eq!(h.model.open_streams(), 0);
    say(&h, &id, "And coffee?").await;
    worker.drain(Duration::from_secs(5)).await;
    assert_eq!(h.model.request_count(), 3);
    assert_eq!(title(&h, &id).await, "Where is tea from?");
}

#[tokio::test]
async fn the_last_words_of_an_agent_get_no_title() {
    let h = Harness::with_answers([
        Answer::Fails(ModelError::new(ModelErrorKind::Auth, "the key was refused")),
        Answer::Text("From China."),
        Answer::Text("Tea"),
    ])
    .await;
    let worker = worker(&h, |_| ()).await;
    let id = ConversationId::generate(h.ids.as_ref());
    let first = say(&h, &id, "Where is tea from?").await;
    assert!(h.run(&first).await.error.is_some());
    say(&h, &id, "Once more, please.").await;
    until("the title", async || (title(&h, &id).await == "Tea").then_some(())).await;
    let asked = h.model.requests.lock().unwrap()[2].messages[0].text();
    assert_eq!((h.model.request_count(), asked.as_str()), (3, "Once more, please."));
    worker.drain(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn a_drain_waits_for_no_title() {
    let h = Harness::with_answers([Answer::Text("From China."), Answer::Hang("The History of")]).await;
    let worker = worker(&h, |_| ()).await;
    let id = ConversationId::generate(h.ids.as_ref());
    say(&h, &id, "Where is tea from?").await;
    until("the question for a title", async || (h.model.request_count() == 2).then_some(())).await;
    let drained = tokio::time::timeout(Duration::from_secs(5), worker.drain(Duration::from_secs(60))).await;
    assert!(drained.is_ok());
    assert_eq!((h.model.open_streams(), title(&h, &id).await.as_str()), (0, "Where is tea from?"));
}
