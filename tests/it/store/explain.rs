//! The explanation of a run that does not move, in each of its states.

use std::future::Future;
use std::pin::Pin;

use capstan::domain::ids::{CallId, ConversationId, InputId, NodeId, RunId, UserId};
use capstan::domain::problem::ProblemCode;
use capstan::domain::run::change::{Change, ReleaseCause, StepKind};
use capstan::domain::run::question::{InputAnswer, InputChoice, InputKind, InputRequest, InputState, Question};
use capstan::domain::run::record::Fence;
use capstan::domain::run::{RunStatus, WaitReason};
use capstan::service::{ProgressState, RunExplanation};
use capstan::store::{CancelRun, ResolveInput, StoreOptions};
use capstan::support::ids::UuidIds;
use rstest::rstest;

use super::fixture::{
    LONG, NOW, World, assistant, changes, completed, conversation, failed, hello, planned_call, released, started, user,
};
use support::database::Kind;

/// A store with the run to explain.
struct Scene {
    world: World,
    owner: UserId,
    id: ConversationId,
    run: RunId,
}

impl Scene {
    async fn claim(&self) -> Fence {
        let fence = self.world.claim_one().await;
        assert_eq!(fence.run_id, self.run);
        self.world.commit_one(started(&fence)).await.unwrap();
        fence
    }

    async fn write(&self, fence: &Fence, written: Vec<Change>) {
        self.world.commit_one(changes(fence, written)).await.unwrap();
    }

    async fn waits(&self, fence: &Fence, reason: WaitReason, after_ms: Option<u64>) {
        let status = Change::SetStatus(RunStatus::Waiting, Some(reason));
        self.write(fence, vec![status, Change::Release { after_ms, cause: ReleaseCause::Waiting }]).await;
    }

    /// Starts a tool call that does not end.
    async fn calls(&self) -> Fence {
        let fence = self.claim().await;
        self.write(&fence, vec![Change::StartStep { step: 2, kind: StepKind::Tools, request: None }]).await;
        self.starts(&fence, 0).await;
        fence
    }

    async fn starts(&self, fence: &Fence, position: u32) {
        let message = assistant(fence, "calls");
        let call = planned_call(fence, &message.id, position);
        let id = call.id.clone();
        self.write(fence, vec![Change::AddMessage(message), Change::AddToolCalls(vec![call]), Change::StartCall(id)]).await;
    }

    /// Makes the run wait for an answer.
    async fn asks(&self) -> InputId {
        let fence = self.claim().await;
        let request = question(&fence, InputKind::UnknownOutcome);
        let id = request.id.clone();
        self.write(&fence, vec![Change::RequestInput(request)]).await;
        self.waits(&fence, WaitReason::Input, None).await;
        id
    }

    async fn cancel(&self) {
        self.world.store.cancel_run(CancelRun { owner: &self.owner, id: &self.run, by: "user", now: NOW }, None).await.unwrap();
    }

    /// Changes rows directly, for states that only time brings about.
    async fn update(&self, sql: &str) {
        self.world.database.rows(sql).await;
    }

    async fn fails(&self, code: ProblemCode, detail: &str) {
        let fence = self.claim().await;
        let mut write = failed(&fence);
        let error = Some(code.body(detail));
        write.changes = vec![Change::Finish { status: RunStatus::Failed, finish_reason: None, error, joined: None }];
        self.world.commit_one(write).await.unwrap();
    }
}

fn question(fence: &Fence, kind: InputKind) -> InputRequest {
    InputRequest {
        id: InputId::generate(&UuidIds),
        conversation_id: fence.conversation_id.clone(),
        run_id: fence.run_id.clone(),
        call_id: Some(CallId::generate(&UuidIds)),
        kind,
        question: Question {
            text: "Did it happen?".to_owned(),
            choices: vec![InputChoice { value: "yes".to_owned(), label: "Yes".to_owned() }],
            ..Question::default()
        },
        state: InputState::Pending,
        answer: None,
        expires_in_ms: None,
    }
}

type Staged<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// A scene: how it arises, the explanation of its run, and whether the run moves without help.
struct State {
    name: &'static str,
    stage: for<'a> fn(&'a mut Scene) -> Staged<'a>,
    said: &'static [&'static str],
    state: ProgressState,
    moving: bool,
}

macro_rules! states {
    ($($name:literal, |$scene:ident| $stage:block => $state:ident, $moving:literal, $($said:literal),+;)*) => {
        &[$(State {
            name: $name,
            stage: |$scene| Box::pin(async move { $stage }),
            said: &[$($said),+],
            state: ProgressState::$state,
            moving: $moving,
        },)*]
    };
}

const STATES: &[State] = states! {
    "accepted a moment ago", |_scene| {} => Queued, true, "is the next in the queue.";
    "in the line", |scene| {
        let other = scene.world.run(&user()).await.run.id;
        scene.update(&format!("UPDATE runs SET claimable_at = claimable_at - 1000 WHERE id = '{other}'")).await;
    } => Queued, true, "is in the queue; 1 run comes first.";
    "no worker is alive", |scene| {
        scene.update("UPDATE runs SET claimable_at = claimable_at - 60000").await;
    } => NoWorker, false, "is the next in the queue, for 6", "probably no worker is alive";
    "all workers are busy", |scene| {
        let other = scene.world.run(&user()).await.run.id;
        scene.update(&format!("UPDATE runs SET claimable_at = claimable_at - 90000 WHERE id = '{other}'")).await;
        scene.world.claim(1).await;
        scene.update("UPDATE runs SET claimable_at = claimable_at - 60000").await;
    } => NoFreeSlot, true, "is the next in the queue, for 6", "probably no worker has a free slot: they hold 1 runs";
    "behind another run", |scene| {
        scene.run = scene.world.accept(hello(&scene.owner, &scene.id)).await.run.id;
    } => BehindRun, true, "The run is queued behind run_", "in the same conversation.";
    "behind a run that waits for a human", |scene| {
        scene.asks().await;
        scene.run = scene.world.accept(hello(&scene.owner, &scene.id)).await.run.id;
    } => BehindRun, false, "The run is queued behind run_", "which waits for a human's answer.";
    "the owner has its cap", |scene| {
        let other = scene.world.run(&scene.owner).await.run.id;
        scene.update(&format!("UPDATE runs SET claimable_at = claimable_at - 5000 WHERE id = '{other}'")).await;
        assert_eq!(scene.world.claim(5).await.len(), 1);
    } => OwnerLimit, true, "because of the owner's limit: 1 runs of its owner are running, and at most 1 may";
    "just claimed", |scene| { scene.claim().await; } => Working, true, "Worker node_", "holds the run and is about to begin.";
    "the model is asked", |scene| {
        let fence = scene.claim().await;
        scene.write(&fence, vec![Change::StartStep { step: 1, kind: StepKind::Model, request: None }]).await;
    } => Working, true, "Worker node_", "waits for the model in step 1 for ";
    "tools are under way", |scene| { scene.calls().await; } => Working, true, "Worker node_", "runs tools (files__read) in step 2 for ";
    "tools are under way, and another call is to be allowed", |scene| {
        let fence = scene.calls().await;
        scene.write(&fence, vec![Change::RequestInput(question(&fence, InputKind::Approval))]).await;
    } => Working, true, "Worker node_", "runs tools (files__read) in step 2 for ";
    "one call asks twice, and another one goes on", |scene| {
        let fence = scene.calls().await;
        let asked = question(&fence, InputKind::Elicitation);
        let again = InputRequest { id: InputId::generate(&UuidIds), ..asked.clone() };
        scene.write(&fence, vec![Change::RequestInput(asked), Change::RequestInput(again)]).await;
        scene.starts(&fence, 1).await;
    } => Working, true, "runs tools (files__read, files__read) in step 2 for ";
    "the step of calls is begun, and none of them", |scene| {
        let fence = scene.claim().await;
        scene.write(&fence, vec![Change::StartStep { step: 2, kind: StepKind::Tools, request: None }]).await;
        scene.update("UPDATE run_steps SET started_at = started_at - 86400000").await;
    } => Working, true, "holds the run and is about to continue the calls of step 2.";
    "a server asks in the middle of a call", |scene| {
        let fence = scene.calls().await;
        scene.write(&fence, vec![Change::RequestInput(question(&fence, InputKind::Elicitation))]).await;
    } => Asking, false, "runs tools (files__read) in step 2 for ", "waits for a human's answer. POST /api/v1/input-requests/input_";
    "the worker is gone", |scene| {
        scene.claim().await;
        scene.update("UPDATE run_leases SET lease_until = lease_until - 605000").await;
    } => LeaseExpired, true, "The lease of worker", "expired", "another worker claims it after the next sweep";
    "the worker is gone, and others are alive", |scene| {
        scene.claim().await;
        scene.update("UPDATE run_leases SET lease_until = lease_until - 3600000").await;
        scene.world.run(&user()).await;
        assert_eq!(scene.world.claim(5).await.len(), 1);
    } => LeaseExpired, true, "The lease of worker", "expired", "another worker claims it after the next sweep";
    "the worker is gone, and nobody else is alive", |scene| {
        scene.claim().await;
        scene.update("UPDATE run_leases SET lease_until = lease_until - 3600000").await;
    } => NoWorker, false, "expired 300", "no worker holds any run: probably no worker is alive.";
    "cancelled when its worker was gone", |scene| {
        scene.claim().await;
        scene.update("UPDATE run_leases SET lease_until = lease_until - 3600000").await;
        scene.cancel().await;
    } => NoWorker, false, "no worker is alive.", "user requested the cancellation; the next worker that claims it ends it.";
    "the owner had its cap, and nobody is alive", |scene| {
        let other = scene.world.run(&scene.owner).await.run.id;
        scene.update(&format!("UPDATE runs SET claimable_at = claimable_at - 5000 WHERE id = '{other}'")).await;
        assert_eq!(scene.world.claim(5).await.len(), 1);
        scene.update("UPDATE run_leases SET lease_until = lease_until - 3600000").await;
        scene.update(&format!("UPDATE runs SET claimable_at = claimable_at - 60000 WHERE id = '{}'", scene.run)).await;
    } => NoWorker, false, "for 6", "no worker holds any run: probably no worker is alive.";
    "behind a run whose worker is gone", |scene| {
        scene.claim().await;
        scene.update("UPDATE run_leases SET lease_until = lease_until - 3600000").await;
        scene.run = scene.world.accept(hello(&scene.owner, &scene.id)).await.run.id;
    } => BehindRun, false, "The run is queued behind run_", "which makes no progress either: The lease of worker node_", "expired";
    "behind a run that nobody takes up", |scene| {
        scene.update("UPDATE runs SET claimable_at = claimable_at - 60000").await;
        scene.run = scene.world.accept(hello(&scene.owner, &scene.id)).await.run.id;
    } => BehindRun, false, "which makes no progress either: The run is the next in the queue, for 6", "no worker is alive.";
    "behind a run that is worked on", |scene| {
        scene.claim().await;
        scene.run = scene.world.accept(hello(&scene.owner, &scene.id)).await.run.id;
    } => BehindRun, true, "The run is queued behind run_", "in the same conversation.";
    "behind a run whose answer is there", |scene| {
        let id = scene.asks().await;
        let answer = InputAnswer::new("yes", None);
        let resolve = ResolveInput { owner: scene.owner.clone(), id, answer, grant: None, now: NOW };
        scene.world.store.resolve_input(resolve, None).await.unwrap();
        scene.run = scene.world.accept(hello(&scene.owner, &scene.id)).await.run.id;
    } => BehindRun, true, "The run is queued behind run_", "in the same conversation.";
    "swept", |scene| {
        scene.claim().await;
        scene.update("UPDATE run_leases SET lease_until = lease_until - 3600000").await;
        assert_eq!(scene.world.store.sweep_expired_leases(5, true).await.unwrap().requeued.len(), 1);
    } => Queued, true, "is the next in the queue.", "Its worker has crashed once.";
    "handed back", |scene| {
        let fence = scene.claim().await;
        scene.world.commit_one(released(&fence, Some(0), ReleaseCause::Drain)).await.unwrap();
    } => Queued, true, "is the next in the queue.";
    "back-off", |scene| {
        let fence = scene.claim().await;
        scene.waits(&fence, WaitReason::Backoff, Some(LONG - 5_000)).await;
    } => Waiting, true, "The model call failed and will be retried in 59", "POST .../resume retries at once";
    "the back-off is over", |scene| {
        let fence = scene.claim().await;
        scene.waits(&fence, WaitReason::Backoff, Some(0)).await;
    } => Queued, true, "The failed model call can be retried, and the run is the next in the queue.";
    "behind a run in back-off", |scene| {
        let fence = scene.claim().await;
        scene.waits(&fence, WaitReason::Backoff, Some(LONG - 5_000)).await;
        scene.run = scene.world.accept(hello(&scene.owner, &scene.id)).await.run.id;
    } => BehindRun, true, "which waits for a retry.";
    "a question", |scene| { scene.asks().await; } => Waiting, false,
        "The run waits for a human's answer. POST /api/v1/input-requests/input_", "answers: Did it happen?";
    "a question of a run whose time is limited", |scene| {
        let fence = scene.claim().await;
        scene.waits(&fence, WaitReason::Input, Some(LONG - 5_000)).await;
    } => Waiting, false, "The run waits for a human's answer, for at most 59";
    "an answer that nobody has acted on", |scene| {
        let id = scene.asks().await;
        let answer = InputAnswer::new("yes", None);
        let resolve = ResolveInput { owner: scene.owner.clone(), id, answer, grant: None, now: NOW };
        scene.world.store.resolve_input(resolve, None).await.unwrap();
    } => Queued, true, "The answer is stored, and the run is the next in the queue.";
    "cancelled while a worker has it", |scene| {
        scene.claim().await;
        scene.cancel().await;
    } => Working, true, "Worker node_", "user requested the cancellation; its worker ends it soon.";
    "cancelled while it waits", |scene| {
        scene.asks().await;
        scene.cancel().await;
    } => Queued, true, "is the next in the queue.", "user requested the cancellation; the next worker that claims it ends it.";
    "cancelled before it began", |scene| { scene.cancel().await; } => Ended, false, "The run was cancelled by user.";
    "completed", |scene| {
        let fence = scene.claim().await;
        scene.world.commit_one(completed(&fence)).await.unwrap();
    } => Ended, false, "The run is completed.";
    "failed", |scene| { scene.fails(ProblemCode::ProviderAuth, "the key was refused").await; } => Ended, false,
        "The run failed: the key was refused.", "POST .../resume continues from the stored state.";
    "poison", |scene| { scene.fails(ProblemCode::Poison, "the run's workers crashed 3 times; the run is not claimed again").await; } => Ended, false,
        "crashed 3 times", "POST .../resume continues from the stored state.";
    "failed, and taken back", |scene| {
        scene.fails(ProblemCode::ProviderAuth, "the key was refused").await;
        scene.update("UPDATE messages SET superseded_by = 'rewind'").await;
    } => Ended, false, "The run failed: the key was refused.";
    "failed, and what came after it only took a call back", |scene| {
        scene.fails(ProblemCode::ProviderAuth, "the key was refused").await;
        let undoing = scene.world.accept(hello(&scene.owner, &scene.id)).await.run.id;
        let failed = std::mem::replace(&mut scene.run, undoing);
        let fence = scene.calls().await;
        scene.world.commit_one(completed(&fence)).await.unwrap();
        scene.update(&format!("UPDATE tool_calls SET undoes = 'call_1' WHERE run_id = '{}'", scene.run)).await;
        scene.update(&format!("DELETE FROM messages WHERE run_id = '{}' AND role = 'user'", scene.run)).await;
        scene.run = failed;
    } => Ended, false, "The run failed: the key was refused.", "POST .../resume continues from the stored state.";
    "failed, and overtaken", |scene| {
        scene.fails(ProblemCode::ProviderAuth, "the key was refused").await;
        scene.world.accept(hello(&scene.owner, &scene.id)).await;
    } => Ended, false, "The run failed: the key was refused.";
};

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn every_state_is_explained_correctly(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let mut wrong = Vec::new();
    let options = StoreOptions { max_running_per_owner: 1, ..StoreOptions::default() };
    let mut world = World::with(kind, &options).await;
    for State { name, stage, said, state, moving } in STATES {
        let (owner, id) = (user(), conversation());
        let run = world.accept(hello(&owner, &id)).await.run.id;
        let mut scene = Scene { world, owner, id, run };
        stage(&mut scene).await;
        let known = scene.world.store.explain_run(&scene.owner, &scene.run).await.unwrap().unwrap();
        let ahead = match &known.behind_run {
            Some(ahead) => scene.world.store.explain_run(&scene.owner, ahead).await.unwrap(),
            None => None,
        };
        let explained = RunExplanation::new(known, ahead.as_ref());
        let missing = said.iter().any(|said| !explained.summary.contains(said));
        let resumes = explained.summary.contains("/resume continues") && !said.iter().any(|said| said.contains("/resume"));
        // The facts beside the summary agree with it.
        let lacks_behind = explained.behind_state.is_some() != (*state == ProgressState::BehindRun);
        let hides_resume = explained.resumable != explained.summary.contains("/resume continues");
        if missing || resumes || lacks_behind || hides_resume || (explained.state, explained.moving) != (*state, *moving) {
            wrong.push(format!("{name}: {:?}, moving {}: {}", explained.state, explained.moving, explained.summary));
        }
        world = scene.world;
        // No remaining row blocks the next scene.
        for table in ["run_leases", "runs"] {
            world.database.rows(&format!("DELETE FROM {table}")).await;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    world.store.close().await;
}

/// The explanation has the node's id, so that an operator finds its log.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_worker_is_named(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let world = World::new(kind).await;
    let owner = user();
    let fence = world.claimed(&owner).await;
    let known = world.store.explain_run(&owner, &fence.run_id).await.unwrap().unwrap();
    let node: NodeId = world.node.clone();
    let explained = RunExplanation::new(known, None);
    assert!(explained.summary.contains(node.as_str()), "{}", explained.summary);
    assert_eq!(explained.lease.unwrap().node, node.as_str());
    world.store.close().await;
}

/// A program that words the state itself also knows the reason why the earlier run waits.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn run_ahead_is_explained_by_its_state(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let world = World::new(kind).await;
    let (owner, id) = (user(), conversation());
    let ahead = world.accept(hello(&owner, &id)).await.run.id;
    let scene = Scene { world, owner, id, run: ahead };
    scene.asks().await;
    let behind = scene.world.accept(hello(&scene.owner, &scene.id)).await.run.id;
    let known = async |run: &RunId| scene.world.store.explain_run(&scene.owner, run).await.unwrap().unwrap();
    let explained = RunExplanation::new(known(&behind).await, Some(&known(&scene.run).await));
    assert_eq!((explained.behind_state, explained.behind_waiting_for), (Some(ProgressState::Waiting), Some(WaitReason::Input)));
    scene.world.store.close().await;
}
