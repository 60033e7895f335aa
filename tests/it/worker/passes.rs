//! The same scenario again and again: with every action done twice, and with the first, second, third call of the database failing,
//! until it ends without having met the failure.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use capstan::domain::ids::UserId;
use capstan::domain::message::Role;
use capstan::domain::model::{ModelError, ModelEvent, ModelFinish, ModelRequest};
use capstan::domain::run::{Run, RunStatus};
use capstan::domain::tool::{ToolCall, ToolDefinition, ToolOutcome};
use capstan::provider::{ModelClient, ModelStream};
use capstan::tools::{CallPermit, ProgressSender, ServerStatus, Toolbox};
use capstan::worker::{Worker, WorkerDeps, WorkerOptions};
use futures_util::stream::{self, StreamExt as _};
use rstest::rstest;

use super::faulty::{Fate, FaultyStore, away};
use super::harness::{Harness, ScriptedTools, options};
use crate::support::audit;
use crate::support::database::Kind;
use crate::support::wait;

/// How often the scenario calls the tool that must not run twice.
const ONCE: usize = 2;

/// Answers by how often it has answered: two rounds of tools, then words. Whoever asks again gets the same answer.
struct ByRound;

#[async_trait]
impl ModelClient for ByRound {
    async fn stream(&self, request: ModelRequest) -> Result<ModelStream, ModelError> {
        let round = request.messages.iter().filter(|message| message.role == Role::Assistant).count();
        let names: &[&str] = match round {
            0 => &["quick", "once", "quick"],
            1 => &["once"],
            _ => &[],
        };
        let mut events = vec![ModelEvent::Text("let us ".to_owned()), ModelEvent::Text("see".to_owned())];
        for (index, name) in names.iter().enumerate() {
            let provider_call_id = format!("r{round}c{index}");
            events.push(ModelEvent::ToolCallStarted { index, provider_call_id, name: (*name).to_owned() });
            events.push(ModelEvent::ToolCallArguments { index, delta: format!("{{\"n\":{index}}}") });
        }
        let finish = if names.is_empty() { ModelFinish::Stop } else { ModelFinish::ToolCalls };
        events.push(ModelEvent::Finished(finish));
        Ok(stream::iter(events.into_iter().map(Ok)).boxed())
    }
}

/// Asks twice; the first answer is left in the middle.
struct AskedTwice;

#[async_trait]
impl ModelClient for AskedTwice {
    async fn stream(&self, request: ModelRequest) -> Result<ModelStream, ModelError> {
        let mut first = ByRound.stream(request.clone()).await?;
        first.next().await;
        drop(first);
        ByRound.stream(request).await
    }
}

/// Lists its tools twice, and runs those twice that may run again.
struct RunTwice(Arc<ScriptedTools>);

#[async_trait]
impl Toolbox for RunTwice {
    async fn definitions(&self, owner: &UserId) -> Vec<Arc<ToolDefinition>> {
        self.0.definitions(owner).await;
        self.0.definitions(owner).await
    }

    async fn execute(
        &self,
        owner: &UserId,
        definition: &ToolDefinition,
        call: &ToolCall,
        timeout: Duration,
        progress: ProgressSender,
        cancel: CallPermit,
    ) -> ToolOutcome {
        if definition.replay.may_repeat() {
            self.0.execute(owner, definition, call, timeout, progress.clone(), cancel.clone()).await;
        }
        self.0.execute(owner, definition, call, timeout, progress, cancel).await
    }

    async fn servers(&self, owner: &UserId) -> Vec<ServerStatus> {
        self.0.servers(owner).await
    }

    async fn shutdown(&self) {
        self.0.shutdown().await;
    }
}

/// Leases that are found soon when whoever holds them does not know of them.
fn hasty(h: &Harness) -> WorkerOptions {
    WorkerOptions {
        lease: Duration::from_millis(600),
        renew: Duration::from_millis(150),
        sweep: Duration::from_millis(100),
        self_stop: Duration::from_millis(450),
        ..options(&h.ids)
    }
}

/// Plays the scenario once; what goes wrong is up to the store.
async fn play(h: &Harness, deps: WorkerDeps, what: &str) -> Run {
    h.tools.executed.lock().unwrap().clear();
    let run = h.say("go").await.1;
    // A process that does not get its database at its start ends, and is started again.
    let starting = async || Worker::start(deps.clone(), hasty(h)).await.ok();
    let worker = wait::until("a worker", Duration::from_secs(20), starting).await;
    let ended = wait::until(&format!("the end of the run, {what}"), Duration::from_secs(20), async || {
        let run = h.run(&run).await;
        run.status.is_terminal().then_some(run)
    })
    .await;
    worker.drain(Duration::from_secs(1)).await;
    assert_eq!(ended.status, RunStatus::Completed, "{what}: {ended:?}");
    let done = format!(
        "SELECT CAST(count(*) AS text) FROM tool_calls WHERE run_id = '{}' AND name = 'once' AND state = 'done'",
        run.as_str()
    );
    let done = usize::try_from(h.database.count(&done).await).unwrap();
    let executed = h.tools.executed.lock().unwrap().iter().filter(|name| *name == "once").count();
    assert!(done <= executed && executed <= ONCE, "{what}: {executed} of {ONCE} calls were carried out, and {done} are done");
    audit::assert_sound(&h.database).await;
    ended
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn every_action_may_be_done_twice(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let h = Harness::on(kind).await;
    let store = FaultyStore::new(h.store.clone());
    // What is claimed by a first claim cannot be claimed by a second; and a commit is never repeated, but looked for.
    store.trouble(|name| if matches!(name, "claim_runs" | "commit") { Fate::Goes } else { Fate::Twice });
    let deps = WorkerDeps { store, models: Arc::new(AskedTwice), tools: Arc::new(RunTwice(h.tools.clone())), ..h.deps() };
    let run = play(&h, deps, "twice").await;
    assert_eq!(run.attempt, 1);
    let executed = h.tools.executed.lock().unwrap().clone();
    assert_eq!(executed.iter().filter(|name| *name == "quick").count(), 4);
    assert_eq!(executed.iter().filter(|name| *name == "once").count(), ONCE);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn any_call_of_the_database_may_fail(
    #[values(Kind::Sqlite, Kind::Postgres)] kind: Kind,
    #[values("is not done", "is done unheard")] how: &'static str,
) {
    let h = Harness::on(kind).await;
    for n in 1.. {
        let calls = Arc::new(AtomicUsize::new(0));
        let store = FaultyStore::new(h.store.clone());
        let count = Arc::clone(&calls);
        store.trouble(move |_| {
            if count.fetch_add(1, Ordering::SeqCst) + 1 != n {
                return Fate::Goes;
            }
            if how == "is not done" { Fate::Fails(away()) } else { Fate::Unheard(away()) }
        });
        let deps = WorkerDeps { store, models: Arc::new(ByRound), ..h.deps() };
        let run = play(&h, deps, &format!("call {n} {how}")).await;
        let made = calls.load(Ordering::SeqCst);
        if made < n {
            assert_eq!(run.attempt, 1, "nothing failed");
            assert!(n > 8, "the scenario makes only {made} calls");
            return;
        }
    }
}
