//! The drain of a worker.

use std::time::Duration;

use capstan::domain::ids::ConversationId;
use capstan::domain::run::question::InputAnswer;
use capstan::domain::run::{OnBusy, RunStatus};
use capstan::store::{AcceptRun, AcceptingWorker, InputFilter, PageRequest, QuestionFilterKind, ResolveInput};
use capstan::support::clock::UnixMillis;
use capstan::worker::Worker;

use super::harness::{Answer, Harness, options, until};
use support::database::Kind;

#[tokio::test]
async fn a_drain_hands_runs_back_without_counting_a_crash() {
    let (h, worker, conversation, run) = Harness::in_answer([Answer::Hang("half an answer "), Answer::Text("a whole one")]).await;
    worker.drain(Duration::from_millis(50)).await;
    let explanation = h.explain(&run).await;
    assert_eq!((explanation.crashes, explanation.lease_node), (0, None));
    let _next = h.worker().await;
    let done = h.until(&run, RunStatus::Completed).await;
    assert_eq!(done.attempt, 2);
    let kinds = h.kinds(&conversation).await;
    let reset = kinds.iter().position(|kind| kind == "step.reset").expect("the half answer is void");
    assert!(kinds[reset..].iter().any(|kind| kind == "part.delta"));
}

/// A drain releases the claim of a request that has not handed its run over, however recent the claim is.
#[tokio::test]
async fn claim_without_hand_off_is_released_by_a_drain_on_postgres() {
    let h = Harness::on(Kind::Postgres).await;
    let mut options = options(&h.ids);
    // The heartbeat does not release the claim before the drain.
    (options.lease, options.sweep_interval) = (Duration::from_secs(60), Duration::from_secs(3600));
    let node = options.node.clone();
    let worker = Worker::start(h.deps(), options).await.unwrap();
    let slot = until("a slot", async || h.hub.hand_off().reserve()).await;
    let conversation = ConversationId::generate(h.ids.as_ref());
    let taker = Some(AcceptingWorker { node, lease_ms: slot.lease_ms() });
    let message = AcceptRun { taker, ..h.message(&conversation, "go", OnBusy::Queue) };
    let run = message.run_id.clone();
    h.store.accept_run(message, None).await.unwrap();
    let explanation = h.explain(&run).await;
    assert!(explanation.lease_node.is_some(), "the run is claimed with its acceptance");
    // The request fails after the drain has begun.
    let loses = async {
        until("no more slots", async || h.hub.hand_off().reserve().is_none().then_some(())).await;
        drop(slot);
    };
    futures_util::future::join(worker.drain(Duration::from_millis(50)), loses).await;
    let explanation = h.explain(&run).await;
    assert_eq!((explanation.crashes, explanation.lease_node), (0, None));
}

#[tokio::test]
async fn a_drain_waits_for_a_step_within_its_grace() {
    let h = Harness::with_answers([Answer::Calls(vec!["quick"]), Answer::Text("done")]).await;
    let worker = h.worker().await;
    let (_, run) = h.say("go").await;
    h.until(&run, RunStatus::Completed).await;
    worker.drain(Duration::from_secs(5)).await;
    assert_eq!(worker.active(), 0);
}

#[tokio::test]
async fn a_drain_claims_nothing_more_however_much_is_queued() {
    let h = Harness::new().await;
    let mut runs = Vec::new();
    for _ in 0..200 {
        runs.push(h.say("go").await.1);
    }
    let worker = h.worker().await;
    // The worker has had no time for its first claim.
    worker.drain(Duration::from_secs(5)).await;
    assert_eq!(h.model.request_count(), 0);
    for run in runs {
        assert_eq!(h.run(&run).await.attempt, 0);
    }
}

/// The server of an unsafe call asks for input at the moment of the stop. The outcome is not unknown: the call goes on with the
/// user's answer.
#[tokio::test]
async fn call_paused_during_drain_continues_with_its_answer() {
    let h = Harness::with_answers([Answer::Calls(vec!["asks"]), Answer::Text("red it is")]).await;
    let worker = h.worker().await;
    let (conversation, run) = h.say("go").await;
    until("the call", async || (!h.tools.executed.lock().unwrap().is_empty()).then_some(())).await;
    worker.drain(Duration::from_millis(50)).await;
    let _next = h.worker().await;
    h.until(&run, RunStatus::Waiting).await;
    let id = until("the question", async || {
        let page = PageRequest { limit: 10, after: None };
        let found = h
            .store
            .input_requests(
                InputFilter { owner: &h.owner, kind: QuestionFilterKind::Questions, state: None, conversation: None },
                &page,
            )
            .await
            .unwrap();
        found.items.first().map(|asked| asked.request.id.clone())
    })
    .await;
    let answer = InputAnswer::new("accept", None);
    let resolve = ResolveInput { owner: h.owner.clone(), id, answer, grant: None, now: UnixMillis(1_767_225_600_000) };
    h.store.resolve_input(resolve, None).await.unwrap();
    h.hub.queue_signal().notify_one();
    h.until(&run, RunStatus::Completed).await;
    assert_eq!(*h.tools.executed.lock().unwrap(), ["asks", "asks"]);
    let told = h.events(&conversation).await.into_iter().filter(|event| event.kind == "tool.completed");
    let states: Vec<_> = told.map(|event| event.data.contains("unknown")).collect();
    assert_eq!(states, [false], "one outcome, and it is known");
}

/// A call that was not sent before the process ended is not unknown. A repeatable call runs again, as after each stop.
#[tokio::test]
async fn a_call_that_was_not_sent_is_known_not_to_have_happened() {
    let h = Harness::with_answers([Answer::Calls(vec!["late", "idle"]), Answer::Text("nothing was done")]).await;
    let worker = h.worker().await;
    let (conversation, run) = h.say("go").await;
    until("the calls", async || (h.tools.executed.lock().unwrap().len() == 2).then_some(())).await;
    worker.drain(Duration::from_millis(50)).await;
    let told = async || {
        let events = h.events(&conversation).await;
        events.into_iter().filter(|event| event.kind == "tool.completed").map(|event| event.data).collect::<Vec<_>>()
    };
    let [first] = &told().await[..] else { panic!("the other one stays started") };
    assert!(first.contains("late ran") && first.contains("\"cancelled\""), "{first}");
    let next = h.worker().await;
    until("the other call", async || (h.tools.executed.lock().unwrap().len() == 3).then_some(())).await;
    let executed = h.tools.executed.lock().unwrap().clone();
    assert_eq!((executed.iter().filter(|name| *name == "late").count(), executed[2].as_str()), (1, "idle"));
    let explanation = h.explain(&run).await;
    assert_eq!(explanation.crashes, 0);
    next.drain(Duration::from_millis(50)).await;
}
