//! Requests of model steps, rebuilt from their records.

use std::sync::Arc;

use capstan::domain::conversation::message::{Message, Part};
use capstan::domain::ids::UserId;
use capstan::domain::model::ModelRequest;
use capstan::domain::run::change::{Change, StepKind, StepStatus};
use capstan::domain::run::record::Fence;
use capstan::domain::run::request_record::{NewRequestRecord, RecordSources, RequestDigest, SentTool};
use capstan::domain::run::step_request::{MissingStepRequest, StepRequest};
use capstan::domain::tool::{ReplayClass, ToolDefinition};

use super::fixture::{World, assistant, changes, completed, started, user};

contract! {
    ;
    request_is_rebuilt_from_records_and_rows,
    repeated_step_has_its_last_request,
    step_without_a_current_record_is_not_recorded,
    record_goes_with_its_conversation,
}

fn tools() -> Vec<Arc<ToolDefinition>> {
    let schema = serde_json::json!({"type": "object", "minProperties": 1.50});
    vec![Arc::new(ToolDefinition::new("read", "Reads", schema, ReplayClass::Read))]
}

/// A run whose worker records its requests.
struct RecordedRun {
    fence: Fence,
    owner: UserId,
    last: Option<Arc<RequestDigest>>,
}

impl RecordedRun {
    async fn new(world: &World) -> Self {
        let owner = user();
        let fence = world.claimed(&owner).await;
        world.commit_one(started(&fence)).await.unwrap();
        world.commit_one(changes(&fence, vec![Change::FreezeTools(tools())])).await.unwrap();
        Self { fence, owner, last: None }
    }

    async fn messages(&self, world: &World) -> Vec<Message> {
        world.load(&self.fence).await.history
    }

    /// Returns the change that begins a model step with a request of these messages.
    async fn begin(&mut self, world: &World, step: u32, model: &str, messages: &[Message]) -> Change {
        let record = world.load(&self.fence).await;
        let request = ModelRequest {
            model: model.to_owned(),
            system: "Be brief.\u{0}".to_owned(),
            messages: messages.to_vec(),
            tools: tools(),
            ..ModelRequest::default()
        };
        let sources = RecordSources { history: record.history.iter().collect(), tools: record.tools.as_deref().unwrap() };
        let new = NewRequestRecord::of(step, &request, None, &sources, self.last.as_deref());
        self.last.clone_from(&new.digest);
        Change::StartStep { step, kind: StepKind::Model, request: Some(Box::new(new)) }
    }

    async fn commit(&self, world: &World, all: Vec<Change>) {
        world.commit_one(changes(&self.fence, all)).await.unwrap();
    }

    async fn outcome(&self, world: &World, step: u32) -> Result<StepRequest, MissingStepRequest> {
        world.store.step_request(&self.owner, &self.fence.run_id, step).await.unwrap()
    }

    async fn request(&self, world: &World, step: u32) -> StepRequest {
        self.outcome(world, step).await.unwrap()
    }
}

fn end(step: u32) -> Change {
    Change::EndStep { step, status: StepStatus::Completed, usage: None }
}

async fn request_is_rebuilt_from_records_and_rows(world: &World) {
    let mut run = RecordedRun::new(world).await;
    let question = run.messages(world).await;
    let first = run.begin(world, 1, "demo/demo", &question).await;
    run.commit(world, vec![first]).await;
    let answer = assistant(&run.fence, "half an answer");
    run.commit(world, vec![Change::AddMessage(answer.clone()), end(1)]).await;
    let mut sent = vec![question[0].clone(), answer, Message { internal: true, ..question[0].clone() }];
    let Part::Text(part) = &mut sent[2].parts[0] else { panic!("{sent:?}") };
    part.text = "go on".to_owned();
    let second = run.begin(world, 2, "demo/demo", &sent).await;
    run.commit(world, vec![second, end(2)]).await;
    world.commit_one(completed(&run.fence)).await.unwrap();
    let request = run.request(world, 2).await;
    assert_eq!((request.model.as_str(), request.system.as_deref()), ("demo/demo", Some("Be brief.\u{fffd}")));
    assert_eq!((request.tools, request.messages, request.missing), (vec![SentTool::of(&tools()[0])], sent, Vec::new()));
    assert_eq!(run.request(world, 1).await.messages, question);
    let foreign = world.store.step_request(&user(), &run.fence.run_id, 1).await.unwrap();
    assert_eq!((foreign, run.outcome(world, 3).await), (Err(MissingStepRequest::Run), Err(MissingStepRequest::Step)));
}

async fn repeated_step_has_its_last_request(world: &World) {
    let mut run = RecordedRun::new(world).await;
    let question = run.messages(world).await;
    let first = run.begin(world, 1, "demo/demo", &question).await;
    let abandoned = Change::EndStep { step: 1, status: StepStatus::Abandoned, usage: None };
    let again = run.begin(world, 1, "demo/other", &question).await;
    // In one write, and then in another one.
    run.commit(world, vec![first.clone(), abandoned.clone(), again.clone(), abandoned.clone()]).await;
    assert_eq!(run.request(world, 1).await.model, "demo/other");
    run.commit(world, vec![first]).await;
    assert_eq!(run.request(world, 1).await.model, "demo/demo");
    run.commit(world, vec![abandoned, again]).await;
    assert_eq!(run.request(world, 1).await.model, "demo/other");
}

async fn step_without_a_current_record_is_not_recorded(world: &World) {
    let mut run = RecordedRun::new(world).await;
    let question = run.messages(world).await;
    let first = run.begin(world, 1, "demo/demo", &question).await;
    run.commit(world, vec![first]).await;
    // An older version begins the step again, and does not know the column.
    world.database.rows("UPDATE run_steps SET attempt = attempt + 1 WHERE step = 1 RETURNING CAST(step AS text)").await;
    assert_eq!(run.outcome(world, 1).await, Err(MissingStepRequest::Record));
    let bare = |step, kind| Change::StartStep { step, kind, request: None };
    run.commit(world, vec![end(1), bare(2, StepKind::Model), end(2), bare(3, StepKind::Tools)]).await;
    assert_eq!(run.outcome(world, 2).await, Err(MissingStepRequest::Record));
    assert_eq!(run.outcome(world, 3).await, Err(MissingStepRequest::Step));
}

async fn record_goes_with_its_conversation(world: &World) {
    let mut run = RecordedRun::new(world).await;
    let question = run.messages(world).await;
    let first = run.begin(world, 1, "demo/demo", &question).await;
    run.commit(world, vec![first]).await;
    assert!(world.store.delete_conversation(&run.owner, &run.fence.conversation_id).await.unwrap().is_some());
    assert_eq!(run.outcome(world, 1).await, Err(MissingStepRequest::Run));
    assert_eq!(world.database.count("SELECT CAST(count(*) AS text) FROM run_steps WHERE request IS NOT NULL").await, 0);
}
