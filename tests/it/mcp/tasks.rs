//! MCP tasks: calls that their server continues in the background. M-31.

use std::time::Duration;

use capstan::domain::run::call_handle::Handle;
use capstan::domain::run::question::{ACCEPT, InputAnswer};
use capstan::domain::tool::{ReplayClass, ToolCall, ToolCallState, ToolOutcome};
use capstan::tools::{CallControl, Report, Toolbox as _};
use rstest::rstest;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use support::mcp::{PATIENCE, Scripted, Tools, call, owner, text};
use support::wait;

const TOOL: &str = "s__labour";

/// A server with tasks and a tool executor.
struct Works {
    server: Scripted,
    tools: Tools,
}

impl Works {
    async fn new(capstan: Value) -> Self {
        let server = Scripted::default();
        let mut entry = server.entry(&["tasks"]);
        entry["capstan"] = capstan;
        let tools = Tools::new(&json!({ "s": entry })).await;
        Self { server, tools }
    }

    /// Returns a call whose task behaves in this way.
    fn call(&self, how: &str) -> ToolCall {
        call(self.tools.definition(TOOL), json!({ "text": how }))
    }

    /// Executes a call, stores task ids and answers questions. Returns the outcome and all reports before it.
    async fn outcome(&self, call: &ToolCall, timeout: Duration, cancel: CancellationToken) -> (ToolOutcome, Vec<String>) {
        let (progress, mut reports) = mpsc::channel(16);
        let (owner, definition) = (owner(), self.tools.definition(TOOL));
        let execution = self.tools.door.execute(&owner, definition, call, CallControl { timeout, progress, permit: cancel.into() });
        let heard = async {
            let mut heard = Vec::new();
            while let Some(report) = reports.recv().await {
                heard.push(match report {
                    Report::Progress(progress) => progress.message.unwrap_or_default(),
                    Report::Handle(handle) => {
                        assert!(self.server.log("tasks/get").is_empty(), "the task is polled only after its id is stored");
                        handle.stored.send(()).unwrap();
                        handle.id
                    }
                    Report::Pauses(pause) => panic!("a task asks otherwise: {pause:?}"),
                    Report::Samples(samples) => panic!("a task asks no model: {samples:?}"),
                    Report::Asks(asks) => {
                        let content = Some(json!({ "colour": "red" }));
                        asks.answer.send(InputAnswer { content, ..InputAnswer::new(ACCEPT, None) }).unwrap();
                        asks.text
                    }
                });
            }
            heard
        };
        wait::within("the task", PATIENCE * 2, futures_util::future::join(execution, heard)).await
    }

    async fn patient(&self, how: &str) -> (ToolOutcome, Vec<String>) {
        self.outcome(&self.call(how), PATIENCE, CancellationToken::new()).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_asked_for_until_it_is_over() {
    let works = Works::new(json!({})).await;
    let (outcome, heard) = works.patient("a house").await;
    assert_eq!((outcome.state, text(&outcome).as_str()), (ToolCallState::Done, "built a house"));
    assert_eq!(heard, ["task-1", "1 of 3 beams", "2 of 3 beams"]);
    assert_eq!(works.server.log("called"), ["labour"]);
    let declared = works.server.log("capabilities");
    assert_eq!(declared[0]["extensions"]["io.modelcontextprotocol/tasks"], json!({}));
    works.tools.shutdown().await;
}

#[rstest]
#[case("badly", "built badly")]
#[case("refuses", "answered with an error: no more wood")]
#[case("stops", "it has cancelled the task")]
#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_fails_is_a_failed_call(#[case] how: &str, #[case] words: &str) {
    let works = Works::new(json!({})).await;
    let (outcome, _) = works.patient(how).await;
    assert_eq!(outcome.state, ToolCallState::Failed);
    assert!(text(&outcome).contains(words) && !text(&outcome).contains("hunter2"), "{}", text(&outcome));
    works.tools.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_with_a_task_is_taken_up_and_not_made_again() {
    let works = Works::new(json!({})).await;
    let (_, heard) = works.patient("a house").await;
    let again = ToolCall { handle: Some(Handle::Task(heard[0].clone())), ..works.call("another house") };
    let (outcome, heard) = works.outcome(&again, PATIENCE, CancellationToken::new()).await;
    assert_eq!((outcome.state, text(&outcome).as_str(), heard.len()), (ToolCallState::Done, "built a house", 0));
    assert_eq!(works.server.log("called").len(), 1);
    works.tools.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn abandoned_task_is_cancelled() {
    let works = Works::new(json!({})).await;
    let cancel = CancellationToken::new();
    let asked = wait::until("the task to be asked for", PATIENCE, || async {
        (works.server.log("tasks/get").len() > 2).then(|| cancel.cancel())
    });
    let call = works.call("endless");
    let ((outcome, _), ()) = futures_util::future::join(works.outcome(&call, PATIENCE, cancel.clone()), asked).await;
    assert_eq!(outcome.state, ToolCallState::Unknown);
    assert_eq!(works.server.log("tasks/cancel"), ["task-1"]);
    works.tools.shutdown().await;
}

/// A disconnected caller may return, or another one may.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_dropped_leaves_its_task_alone() {
    let works = Works::new(json!({})).await;
    let call = works.call("endless");
    let asked =
        wait::until("the task to be asked for", PATIENCE, || async { (works.server.log("tasks/get").len() > 1).then_some(()) });
    tokio::select! {
        _ = works.outcome(&call, PATIENCE, CancellationToken::new()) => panic!("it has no end"),
        () = asked => {}
    }
    works.tools.shutdown().await;
    assert!(works.server.log("tasks/cancel").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn work_extends_the_limit_up_to_the_hard_one() {
    let works = Works::new(json!({"max_timeout": "3s"})).await;
    let (outcome, heard) = works.outcome(&works.call("endless"), Duration::from_millis(900), CancellationToken::new()).await;
    assert_eq!(outcome.state, ToolCallState::Unknown);
    assert!(text(&outcome).contains("within 3s and was cancelled"), "{}", text(&outcome));
    assert!(heard.len() > 10, "{heard:?}");
    assert_eq!(works.server.log("tasks/cancel"), ["task-1"]);
    works.tools.shutdown().await;
}

#[rstest]
#[case::of_which_nothing_is_said("silent", 11, "did not answer a poll of the task within 10 s")]
#[case::whose_polls_fail("errs", 4, "in time; it may have taken effect: the last poll failed: no room to build")]
#[case::whose_server_dies("dies", 11, "no longer knows the task of the call")]
#[tokio::test(flavor = "multi_thread")]
async fn a_task_may_have_come_to_anything(#[case] how: &str, #[case] seconds: u64, #[case] words: &str) {
    let works = Works::new(json!({})).await;
    let (outcome, _) = works.outcome(&works.call(how), Duration::from_secs(seconds), CancellationToken::new()).await;
    assert_eq!(outcome.state, ToolCallState::Unknown);
    assert!(text(&outcome).contains(words) && text(&outcome).contains("it may have taken effect"), "{}", text(&outcome));
    assert!(!text(&outcome).contains("hunter2") && !text(&outcome).contains("connection"), "{}", text(&outcome));
    assert_eq!(works.server.log("called").len(), 1);
    works.tools.shutdown().await;
}

#[rstest]
#[case(json!({}), ToolCallState::Unknown)]
#[case(json!({"replay": {"labour": "idempotent"}}), ToolCallState::Failed)]
#[tokio::test(flavor = "multi_thread")]
async fn forgotten_task_ends_by_its_replay_class(#[case] capstan: Value, #[case] state: ToolCallState) {
    let works = Works::new(capstan).await;
    assert_eq!(works.tools.definition(TOOL).replay == ReplayClass::Idempotent, state == ToolCallState::Failed);
    let forgotten = ToolCall { handle: Some(Handle::Task("task-9".to_owned())), ..works.call("a house") };
    let (outcome, _) = works.outcome(&forgotten, PATIENCE, CancellationToken::new()).await;
    assert_eq!(outcome.state, state, "{}", text(&outcome));
    assert!(text(&outcome).contains("no longer knows the task"), "{}", text(&outcome));
    assert!(works.server.log("called").is_empty());
    works.tools.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn task_question_is_asked_of_the_user() {
    let works = Works::new(json!({"elicitation": true})).await;
    let (outcome, heard) = works.patient("asks").await;
    assert_eq!(heard[..2], ["task-1", "Which colour?"]);
    let answers: Value = serde_json::from_str(&text(&outcome)).unwrap();
    assert_eq!(answers["colour"], json!({"action": "accept", "content": {"colour": "red"}}));
    assert_eq!(works.server.log("tasks/update"), ["task-1"]);
    works.tools.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_wants_to_know_what_it_may_not_ask_is_cancelled() {
    let works = Works::new(json!({})).await;
    let (outcome, _) = works.patient("asks").await;
    assert_eq!(outcome.state, ToolCallState::Failed);
    assert!(text(&outcome).contains("asks for input that is not allowed"), "{}", text(&outcome));
    assert_eq!(works.server.log("tasks/cancel"), ["task-1"]);
    works.tools.shutdown().await;
}
