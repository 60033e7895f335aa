//! The requests of model steps.

use std::sync::Arc;

use axum::http::StatusCode;
use capstan::domain::conversation::message::{Message, Part, Role, ToolCallPart, ToolContent, ToolResultPart};
use capstan::domain::event::EventBody;
use capstan::domain::ids::{CallId, MessageId, PartId};
use capstan::domain::model::ModelRequest;
use capstan::domain::run::change::{Change, StepKind, StepStatus};
use capstan::domain::run::context::ContextUnit;
use capstan::domain::run::record::Fence;
use capstan::domain::run::request_record::{NewRequestRecord, RecordSources, RequestBudget, RequestDigest};
use capstan::domain::run::{FinishReason, RunStatus};
use capstan::domain::tool::{ReplayClass, ToolCallState, ToolDefinition};
use capstan::support::ids::UuidIds;
use serde_json::{Value, json};

use super::rig::Rig;

/// Starts a model step as a worker does.
async fn begin(rig: &Rig, fence: &Fence, step: u32, messages: Vec<Message>, last: Option<&RequestDigest>) -> Arc<RequestDigest> {
    let record = rig.store.load_run(fence).await.unwrap().unwrap();
    let tools = record.tools.clone().unwrap();
    let request = ModelRequest {
        model: "demo/demo".to_owned(),
        system: "Be brief.".to_owned(),
        messages,
        tools: tools.clone(),
        window: Some(8_000),
        ..ModelRequest::default()
    };
    let budget = RequestBudget { unit: ContextUnit::Tokens, window: 8_000, used: 50, remaining: 7_950 };
    let sources = RecordSources { history: record.history.iter().collect(), tools: &tools };
    let new = NewRequestRecord::of(step, &request, Some(budget), &sources, last);
    let digest = new.digest.clone().unwrap();
    let change = Change::StartStep { step, kind: StepKind::Model, request: Some(Box::new(new)) };
    rig.write(fence, &[EventBody::StepStarted { step, kind: "model".into(), tools: None }], vec![change]).await;
    digest
}

fn of(fence: &Fence, role: Role, parts: Vec<Part>) -> Message {
    Message::new(MessageId::generate(&UuidIds), (fence.run_id.clone(), fence.conversation_id.clone()), role, parts)
}

async fn request(rig: &Rig, fence: &Fence, step: &str) -> Value {
    let reply = rig.get(&format!("/api/v1/runs/{}/steps/{step}/request", fence.run_id)).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
    reply.json()
}

#[tokio::test]
async fn request_of_a_step_is_shown_as_it_was_sent() {
    let rig = Rig::new().await;
    rig.start("hello").await;
    let fence = rig.claim().await;
    let tool = ToolDefinition::new("read", "Reads", json!({"type": "object"}), ReplayClass::Read);
    rig.write(&fence, &[EventBody::StepReset { step: 1, reason: "none".into() }], vec![Change::FreezeTools(vec![Arc::new(tool)])])
        .await;
    let history = rig.store.load_run(&fence).await.unwrap().unwrap().history;
    let first = begin(&rig, &fence, 1, history.clone(), None).await;
    // The run is in progress.
    let shown = request(&rig, &fence, "1").await;
    assert_eq!((&shown["run_id"], &shown["step"], &shown["model"]), (&json!(fence.run_id), &json!(1), &json!("demo/demo")));
    assert_eq!((&shown["system"], &shown["options"], &shown["missing"]), (&json!("Be brief."), &json!({}), &json!([])));
    assert_eq!(shown["tools"], json!([{"name": "read", "description": "Reads", "input_schema": {"type": "object"}}]));
    assert_eq!(shown["budget"], json!({"unit": "tokens", "window": 8_000, "used": 50, "remaining": 7_950}));
    assert_eq!((&shown["window"], &shown["messages"]), (&json!(8_000), &json!(history)));

    let (call_id, part) = (CallId::generate(&UuidIds), PartId::generate(&UuidIds));
    let call = ToolCallPart::new(part.clone(), call_id.clone(), "read".to_owned(), json!({"n": 1}));
    let answer = of(&fence, Role::Assistant, vec![Part::ToolCall(call)]);
    let result = |text: &str| {
        let (id, call_id, name) = (part.clone(), call_id.clone(), "read".to_owned());
        let content = vec![ToolContent::text(text)];
        Part::ToolResult(ToolResultPart {
            id,
            call_id,
            name,
            content,
            is_error: false,
            state: ToolCallState::Done,
            undoable: false,
        })
    };
    let results = of(&fence, Role::Tool, vec![result("a long result")]);
    let end = |step| Change::EndStep { step, status: StepStatus::Completed, usage: None };
    let events: Vec<_> =
        [&answer, &results].into_iter().map(|message| EventBody::MessageCompleted { message: message.clone() }).collect();
    rig.write(&fence, &events, vec![Change::AddMessage(answer.clone()), Change::AddMessage(results), end(1)]).await;
    // The result is shortened for the model, and has the id of the answer in the request.
    let shortened = Message { role: Role::Tool, parts: vec![result("a long")], ..answer.clone() };
    begin(&rig, &fence, 2, vec![history[0].clone(), answer, shortened], Some(&first)).await;
    let completed = EventBody::RunCompleted {
        finish_reason: FinishReason::Stop,
        usage: capstan::domain::model::Usage::default(),
        output: None,
        error: None,
        notice: None,
    };
    let finish =
        Change::Finish { status: RunStatus::Completed, finish_reason: Some(FinishReason::Stop), error: None, joined: None };
    rig.write(&fence, &[completed], vec![end(2), finish]).await;
    // The run has ended.
    let shown = request(&rig, &fence, "2").await;
    let roles: Vec<_> = shown["messages"].as_array().unwrap().iter().map(|message| message["role"].clone()).collect();
    assert_eq!(roles, ["user", "assistant", "tool"]);
    assert_eq!(shown["messages"][1]["parts"][0]["arguments"], json!({"n": 1}));
    assert_eq!(shown["messages"][2]["parts"][0]["content"][0]["text"], "a long");
    assert_eq!(
        (&shown["system"], &shown["tools"][0]["name"], &shown["missing"]),
        (&json!("Be brief."), &json!("read"), &json!([]))
    );
}

#[tokio::test]
async fn request_of_an_unknown_step_is_not_found() {
    let (rig, _, run) = Rig::with_played_run("hello").await;
    for (step, detail) in [("2", "no such model step"), ("1", "no such recorded request"), ("x", "no such"), ("-1", "no such")] {
        let reply = rig.get(&format!("/api/v1/runs/{run}/steps/{step}/request")).await;
        assert_eq!((reply.status, reply.code().as_str()), (StatusCode::NOT_FOUND, "not_found"), "{step}");
        assert!(reply.body.contains(detail), "{}", reply.body);
    }
}
