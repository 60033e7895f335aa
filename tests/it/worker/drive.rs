//! Runs that a worker drives to their end.

use capstan::domain::conversation::message::Message;
use capstan::domain::ids::ConversationId;
use capstan::domain::model::{ModelError, ModelErrorKind};
use capstan::domain::run::request_record::SentTool;
use capstan::domain::run::step_request::MissingStepRequest;
use capstan::domain::run::{FinishReason, OnBusy, RunStatus};
use capstan::worker::{Worker, WorkerDeps, WorkerOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::faulty::{Fate, FaultyStore};
use super::harness::{Answer, Harness, options, until};
use support::database::Kind;

#[tokio::test]
async fn a_run_with_tools_is_driven_to_its_answer() {
    let h = Harness::with_answers([Answer::Calls(vec!["quick", "quick"]), Answer::Text("all is well")]).await;
    let _worker = h.worker().await;
    let (conversation, run) = h.say("go").await;
    let run = h.until(&run, RunStatus::Completed).await;
    assert_eq!(run.finish_reason, Some(FinishReason::Stop));
    assert_eq!(run.attempt, 1);
    let events = h.events(&conversation).await;
    let seqs: Vec<i64> = events.iter().map(|event| event.seq).collect();
    assert_eq!(seqs, (1..=events.len() as i64).collect::<Vec<_>>());
    let kinds = h.kinds(&conversation).await;
    assert_eq!(kinds.last().map(String::as_str), Some("run.completed"), "{kinds:?}");
    assert_eq!(kinds.iter().filter(|kind| *kind == "tool.completed").count(), 2);
    let second = h.model.requests.lock().unwrap()[1].clone();
    assert_eq!(second.messages.len(), 3, "user, assistant with calls, results: {:?}", second.messages);
}

#[tokio::test]
async fn request_of_each_step_is_rebuilt_from_its_record() {
    for kind in [Kind::Sqlite, Kind::Postgres] {
        let h = Harness::on(kind).await;
        let error = ModelError::new(ModelErrorKind::Overloaded, "busy");
        for answer in [Answer::Calls(vec!["quick", "quick"]), Answer::Fails(error), Answer::Text("all is well")] {
            h.model.then(answer);
        }
        let _worker = h.worker().await;
        let (_, run) = h.say("go").await;
        h.until(&run, RunStatus::Completed).await;
        let requests = h.model.requests.lock().unwrap().clone();
        for (step, sent) in [(1, &requests[0]), (3, &requests[2])] {
            let Ok(rebuilt) = h.store.step_request(&h.owner, &run, step).await.unwrap() else {
                panic!("step {step} has no record");
            };
            assert_eq!((rebuilt.missing, &rebuilt.model, rebuilt.system), (Vec::new(), &sent.model, Some(sent.system.clone())));
            assert_eq!(rebuilt.tools, sent.tools.iter().map(|tool| SentTool::of(tool)).collect::<Vec<_>>());
            let parts =
                |messages: &[Message]| -> Vec<_> { messages.iter().map(|message| (message.role, message.parts.clone())).collect() };
            assert_eq!(parts(&rebuilt.messages), parts(&sent.messages));
        }
        assert_eq!(h.store.step_request(&h.owner, &run, 2).await.unwrap(), Err(MissingStepRequest::Step), "a step of tools");
    }
}

/// The worker is notified of a message that joins, but may be ending the run at that moment.
#[tokio::test]
async fn a_message_that_joins_at_the_last_moment_is_answered() {
    let h = Harness::new().await;
    let gate = Arc::new(Notify::new());
    h.model.then(Answer::Held("the first answer", gate.clone()));
    h.model.then(Answer::Text("the second answer"));
    let _worker = h.worker().await;
    let (conversation, run) = h.say("go").await;
    h.until_event(&conversation, "part.delta").await;
    let late = h.message(&conversation, "and this", OnBusy::Steer);
    // The worker gets no notification.
    h.store.accept_run(late, None).await.unwrap();
    gate.notify_one();
    h.until(&run, RunStatus::Completed).await;
    let requests = h.model.requests.lock().unwrap().clone();
    assert_eq!(requests.len(), 2);
    assert!(format!("{:?}", requests[1].messages).contains("and this"), "{:?}", requests[1].messages);
    let kinds = h.kinds(&conversation).await;
    assert_eq!(kinds.iter().filter(|kind| *kind == "message.completed").count(), 2, "{kinds:?}");
    let (streamed, completed) = texts(&h, &conversation).await;
    assert_eq!((streamed.as_str(), streamed == completed), ("the first answer indeedthe second answer", true));
    assert!(!kinds.contains(&"step.reset".to_owned()), "the first answer stays: {kinds:?}");
}

#[tokio::test]
async fn the_text_that_was_streamed_is_the_text_that_counts() {
    let h = Harness::with_answers([Answer::Text("one two three four five six seven")]).await;
    let _worker = h.worker().await;
    let (conversation, run) = h.say("go").await;
    h.until(&run, RunStatus::Completed).await;
    let (streamed, completed) = texts(&h, &conversation).await;
    assert_eq!(streamed, "one two three four five six seven");
    assert_eq!(completed, streamed);
}

/// Returns the text of all deltas and the text of all completed parts.
async fn texts(h: &Harness, conversation: &ConversationId) -> (String, String) {
    let mut streamed = String::new();
    let mut completed = String::new();
    for event in h.events(conversation).await {
        let data: serde_json::Value = serde_json::from_str(&event.data).unwrap();
        match event.kind.as_ref() {
            "part.delta" => streamed.push_str(data["delta"].as_str().unwrap()),
            "part.completed" => completed.push_str(data["part"]["text"].as_str().unwrap()),
            _ => {}
        }
    }
    (streamed, completed)
}

#[tokio::test]
async fn a_failed_model_call_is_retried_after_a_wait_without_a_lease() {
    let h = Harness::with_answers([Answer::Fails(ModelError::new(ModelErrorKind::Overloaded, "busy")), Answer::Text("better now")])
        .await;
    let _worker = h.worker().await;
    let (conversation, run) = h.say("go").await;
    let run = h.until(&run, RunStatus::Completed).await;
    assert_eq!(run.attempt, 2);
    let kinds = h.kinds(&conversation).await;
    for kind in ["step.reset", "run.retrying", "run.waiting", "run.resumed"] {
        assert!(kinds.iter().any(|other| other == kind), "{kind} is missing in {kinds:?}");
    }
}

#[tokio::test]
async fn a_key_that_is_refused_fails_the_run_at_once() {
    let h = Harness::with_answers([Answer::Fails(ModelError::new(ModelErrorKind::Auth, "no such key"))]).await;
    let _worker = h.worker().await;
    let (_, run) = h.say("go").await;
    let run = h.until(&run, RunStatus::Failed).await;
    assert_eq!(run.error.unwrap().code, "provider_auth");
    assert_eq!(h.model.request_count(), 1);
}

#[tokio::test]
async fn cancel_closes_the_stream_and_leaves_a_usable_conversation() {
    let h = Harness::on(Kind::Postgres).await;
    h.model.then(Answer::Hang("it begins "));
    h.model.then(Answer::Text("fine"));
    // Polling is off, so the worker depends on the notification.
    let numbers = WorkerOptions { control_poll: Duration::from_secs(60), ..options(&h.ids) };
    let _worker = Worker::start(h.deps(), numbers).await.unwrap();
    let (conversation, run) = h.say("go").await;
    h.until_event(&conversation, "part.delta").await;
    let asked = Instant::now();
    h.cancel(&run).await;
    h.hub.notify_control();
    until("the stream to be closed", async || (h.model.open_streams() == 0).then_some(())).await;
    assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
    h.until(&run, RunStatus::Cancelled).await;
    let next = h.say_in(&conversation, "and now", OnBusy::Queue).await;
    h.until(&next, RunStatus::Completed).await;
    let request = h.model.requests.lock().unwrap()[1].clone();
    let texts: Vec<String> = request.messages.iter().map(|message| message.text()).collect();
    assert_eq!(texts, ["go", "it begins ", "and now"]);
}

#[tokio::test]
async fn cancel_during_tools_gives_every_call_an_outcome() {
    let h = Harness::with_answers([Answer::Calls(vec!["never", "quick"]), Answer::Text("fine")]).await;
    let _worker = h.worker().await;
    let (conversation, run) = h.say("go").await;
    h.until_event(&conversation, "tool.completed").await;
    h.cancel_and_wait(&run).await;
    let next = h.say_in(&conversation, "and now", OnBusy::Queue).await;
    h.until(&next, RunStatus::Completed).await;
    let request = h.model.requests.lock().unwrap()[1].clone();
    let roles: Vec<_> = request.messages.iter().map(|message| message.role.as_str()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "user"]);
    assert_eq!(request.messages[2].parts.len(), 2);
}

#[tokio::test]
async fn a_queued_message_runs_next_and_interrupt_cancels_first() {
    let (h, _worker, conversation, first) = Harness::in_answer([Answer::Hang("first "), Answer::Text("third")]).await;
    let queued = h.say_in(&conversation, "two", OnBusy::Queue).await;
    assert_eq!(h.run(&queued).await.status, RunStatus::Queued);
    let third = h.say_in(&conversation, "three", OnBusy::Interrupt).await;
    h.until(&first, RunStatus::Cancelled).await;
    h.until(&queued, RunStatus::Cancelled).await;
    h.until(&third, RunStatus::Completed).await;
}

#[tokio::test]
async fn a_message_that_joins_is_in_the_next_request() {
    let h = Harness::with_answers([Answer::Calls(vec!["never"])]).await;
    let _worker = h.worker().await;
    let (conversation, run) = h.say("one").await;
    until("the tool", async || h.tools.executed.lock().unwrap().first().cloned()).await;
    assert_eq!(h.say_in(&conversation, "also this", OnBusy::Steer).await, run);
    // Only the cancel ends the tool call, so the message joins in the next model step.
    until("the message in the log", async || {
        h.kinds(&conversation).await.iter().filter(|kind| *kind == "message.created").nth(1).map(|_| ())
    })
    .await;
    assert_eq!(h.model.request_count(), 1);
    h.cancel_and_wait(&run).await;
    let next = h.say_in(&conversation, "two", OnBusy::Queue).await;
    h.until(&next, RunStatus::Completed).await;
    let request = h.model.requests.lock().unwrap()[1].clone();
    let all: String = request.messages.iter().map(|message| message.text()).collect::<Vec<_>>().join("|");
    assert!(all.contains("also this"), "{all}");
}

#[tokio::test]
async fn a_run_can_be_cancelled_while_tools_are_still_starting() {
    let h = Harness::new().await;
    h.tools.never_start.store(true, Ordering::SeqCst);
    let _worker = h.worker().await;
    let (_, run) = h.say("go").await;
    until("the claim", async || (h.run(&run).await.attempt == 1).then_some(())).await;
    h.cancel_and_wait(&run).await;
    assert_eq!(h.model.request_count(), 0);
}

#[tokio::test]
async fn run_with_starting_tools_is_handed_back_undecided() {
    let h = Harness::new().await;
    h.tools.never_start.store(true, Ordering::SeqCst);
    h.model.then(Answer::Calls(vec!["quick"]));
    let first = h.worker().await;
    let (_, run) = h.say("go").await;
    until("the claim", async || (h.run(&run).await.attempt == 1).then_some(())).await;
    let asked = Instant::now();
    first.drain(Duration::from_secs(20)).await;
    assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
    h.tools.never_start.store(false, Ordering::SeqCst);
    let _second = h.worker().await;
    h.until(&run, RunStatus::Completed).await;
    assert_eq!(*h.tools.executed.lock().unwrap(), ["quick"], "the tools were not frozen as an empty list");
}

/// Cancelled after its tools are known and before its context is.
#[tokio::test]
async fn a_run_can_be_cancelled_while_its_surroundings_are_found_out() {
    let h = Harness::new().await;
    h.tools.notes_wait.store(true, Ordering::SeqCst);
    let _worker = h.worker().await;
    let (_, run) = h.say("go").await;
    until("the question", async || (h.tools.notes_asked.load(Ordering::SeqCst) > 0).then_some(())).await;
    h.cancel_and_wait(&run).await;
    assert_eq!(h.model.request_count(), 0);
}

#[tokio::test]
async fn a_run_whose_surroundings_are_being_found_out_is_handed_back() {
    let h = Harness::new().await;
    h.tools.notes_wait.store(true, Ordering::SeqCst);
    h.model.then(Answer::Calls(vec!["quick"]));
    let first = h.worker().await;
    let (_, run) = h.say("go").await;
    until("the question", async || (h.tools.notes_asked.load(Ordering::SeqCst) > 0).then_some(())).await;
    let asked = Instant::now();
    first.drain(Duration::from_secs(20)).await;
    assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
    let explanation = h.explain(&run).await;
    assert_eq!((explanation.crashes, explanation.lease_node), (0, None));
    h.tools.notes_wait.store(false, Ordering::SeqCst);
    let _second = h.worker().await;
    h.until(&run, RunStatus::Completed).await;
    assert_eq!(*h.tools.executed.lock().unwrap(), ["quick"]);
}

#[tokio::test]
async fn message_joined_during_context_lookup_is_in_the_request() {
    let h = Harness::new().await;
    h.tools.notes_wait.store(true, Ordering::SeqCst);
    h.model.then(Answer::Text("to both"));
    let store = FaultyStore::new(h.store.clone());
    let looks = Arc::new(AtomicUsize::new(0));
    let looked = Arc::clone(&looks);
    store.trouble(move |name| {
        if name == "control_signals" {
            looked.fetch_add(1, Ordering::SeqCst);
        }
        Fate::Goes
    });
    let _worker = Worker::start(WorkerDeps { store, ..h.deps() }, options(&h.ids)).await.unwrap();
    let (conversation, run) = h.say("go").await;
    until("the question", async || (h.tools.notes_asked.load(Ordering::SeqCst) > 0).then_some(())).await;
    assert_eq!(h.say_in(&conversation, "and this", OnBusy::Steer).await, run);
    // The second poll of the control signals starts only after the result of the first one was processed.
    for _ in 0..2 {
        let before = looks.load(Ordering::SeqCst);
        h.hub.notify_control();
        until("a look", async || (looks.load(Ordering::SeqCst) > before).then_some(())).await;
    }
    h.tools.gate.notify_one();
    h.until(&run, RunStatus::Completed).await;
    let requests = h.model.requests.lock().unwrap().clone();
    assert_eq!(requests.len(), 1);
    assert!(format!("{:?}", requests[0].messages).contains("and this"), "{:?}", requests[0].messages);
}

#[tokio::test]
async fn the_run_of_a_deleted_conversation_stops_at_once() {
    let h = Harness::on(Kind::Postgres).await;
    h.model.then(Answer::Hang("it begins "));
    let mut numbers = options(&h.ids);
    // The lease is deleted with the conversation. Neither a renewal nor polling finds that first.
    numbers.control_poll = Duration::from_secs(60);
    (numbers.renew, numbers.self_stop) = (Duration::from_secs(60), Duration::from_secs(70));
    numbers.lease = Duration::from_secs(80);
    let worker = Worker::start(h.deps(), numbers).await.unwrap();
    let (conversation, _) = h.say("go").await;
    h.until_event(&conversation, "part.delta").await;
    let asked = Instant::now();
    h.store.delete_conversation(&h.owner, &conversation).await.unwrap();
    h.hub.notify_control();
    until("the stream to be closed", async || (h.model.open_streams() == 0).then_some(())).await;
    assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
    until("the slot to be free", async || (worker.active() == 0).then_some(())).await;
}
