//! Questions of MCP servers during a call whose answer arrives at the last moment.

use std::sync::Arc;

use async_trait::async_trait;
use capstan::domain::agent::AgentProfile;
use capstan::domain::conversation::message::ToolContent;
use capstan::domain::ids::{ConversationId, UserId};
use capstan::domain::run::change::Change;
use capstan::domain::run::question::{Elicitation, InputAnswer, InputState};
use capstan::domain::run::{OnBusy, RunStatus};
use capstan::domain::tool::{ToolCall, ToolCallState, ToolDefinition, ToolOutcome};
use capstan::store::AcceptRun;
use capstan::tools::{CallControl, ElicitationRequest, Report, ServerStatus, Toolbox};
use capstan::worker::{Worker, WorkerDeps};
use tokio::sync::oneshot;

use super::faulty::{Fate, FaultyStore};
use super::harness::{Answer, Harness, ScriptedTools, options};

/// Tools that ask their user before they act, and report the answer.
struct Curious(Arc<ScriptedTools>);

#[async_trait]
impl Toolbox for Curious {
    async fn definitions(&self, owner: &UserId) -> Vec<Arc<ToolDefinition>> {
        self.0.definitions(owner).await
    }

    async fn execute(&self, _: &UserId, _: &ToolDefinition, _: &ToolCall, control: CallControl) -> ToolOutcome {
        let (answer, given) = oneshot::channel::<InputAnswer>();
        let elicitation = Elicitation { server: "s".to_owned(), requested_schema: None, url: None };
        let asks = ElicitationRequest { text: "Which colour?".to_owned(), elicitation, answer };
        control.progress.send(Report::Asks(Box::new(asks))).await.unwrap();
        let said = given.await.map_or_else(|_| "nobody has answered".to_owned(), |answer| answer.choice);
        ToolOutcome { state: ToolCallState::Done, content: vec![ToolContent::text(said)], is_error: false, duration_ms: 1 }
    }

    async fn servers(&self, _owner: &UserId) -> Vec<ServerStatus> {
        Vec::new()
    }

    async fn shutdown(&self) {}
}

/// Calls a tool whose question is open for a moment. With `answers`, the answer arrives while the question is being closed.
/// Returns the tool's answer, the question's state, and the number of expiry events.
async fn asked_for_a_moment(answers: bool) -> (String, String, usize) {
    let h = Harness::with_answers([Answer::Calls(vec!["once"]), Answer::Text("done")]).await;
    let store = FaultyStore::new(h.store.clone());
    let tools = Arc::new(Curious(h.tools.clone()));
    let deps = WorkerDeps { store: store.clone(), tools, ..h.deps() };
    let _worker = Worker::start(deps, options(&h.ids)).await.unwrap();
    let (database, runtime) = (h.database.url.clone(), tokio::runtime::Handle::current());
    if answers {
        store.judge(move |writes| {
            let expires = |change: &Change| matches!(change, Change::CloseInput { state: InputState::Expired, .. });
            if writes.iter().flat_map(|write| &write.changes).any(expires) {
                tokio::task::block_in_place(|| runtime.block_on(answer(&database)));
            }
            Fate::Goes
        });
    }
    let id = ConversationId::generate(h.ids.as_ref());
    let message = h.message(&id, "go", OnBusy::Queue);
    let profile = AgentProfile { ask_expires_ms: 300, ..message.profile.clone() };
    let run = message.run_id.clone();
    h.store.accept_run(AcceptRun { profile, ..message }, None).await.unwrap();
    h.hub.queue_signal().notify_one();
    h.until(&run, RunStatus::Completed).await;
    let rows = h.database.rows("SELECT t.outcome, q.state FROM tool_calls t JOIN input_requests q ON q.call_id = t.id").await;
    assert_eq!(rows.len(), 1, "{rows:?}");
    let [outcome, state] = &rows[0][..] else { panic!("two columns: {rows:?}") };
    let expired = h.events(&id).await.into_iter().filter(|event| event.kind == "input.resolved" && event.data.contains("expired"));
    (outcome.clone().unwrap(), state.clone().unwrap(), expired.count())
}

/// Answers as a transaction does that began before the expiry.
async fn answer(url: &str) {
    use sqlx::Connection as _;
    let mut connection = sqlx::SqliteConnection::connect(url).await.unwrap();
    let answer = r#"UPDATE input_requests SET state = 'answered', answer = '{"choice":"blue"}', resolved_at = created_at"#;
    sqlx::query(answer).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_was_taken_in_the_last_moment_is_used() {
    let (outcome, state, expired) = asked_for_a_moment(true).await;
    assert!(outcome.contains("blue"), "{outcome}");
    assert_eq!((state.as_str(), expired), ("applied", 0), "no event says that it expired");
}

#[tokio::test(flavor = "multi_thread")]
async fn unanswered_question_is_closed_and_reported_once() {
    let (outcome, state, expired) = asked_for_a_moment(false).await;
    assert!(outcome.contains("nobody has answered"), "{outcome}");
    assert_eq!((state.as_str(), expired), ("expired", 1));
}
