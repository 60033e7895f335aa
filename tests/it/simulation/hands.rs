//! Tools with a ledger outside of the server, which is the judge of what was done.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use capstan::domain::approval::{ApprovalMode, ToolSafety};
use capstan::domain::ids::{CallId, UserId};
use capstan::domain::message::ToolContent;
use capstan::domain::tool::{Reconciled, ReplayClass, ToolCall, ToolCallState, ToolDefinition, ToolOutcome};
use capstan::domain::undo::UndoRule;
use capstan::tools::{CallPermit, Progress, ProgressSender, Report, ServerStatus, Toolbox};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::dice::Dice;
use super::gate::Gate;
use super::line::tail;
use super::model::ModelStore;
use super::witness::Witness;

/// What was done for one call.
#[derive(Default)]
pub struct Done {
    /// The name of its tool, and the class.
    pub call: Option<(String, ReplayClass)>,
    /// The arguments of each execution.
    pub executions: Vec<Value>,
    /// How often it was said that it has not been done.
    pub denials: usize,
    /// The call that it takes back.
    pub undoes: Option<CallId>,
    /// Of a key: whether anything was done for it.
    pub is_known: bool,
}

/// All that was ever done, by call. The id of a call is the key that a keyed tool is given.
#[derive(Default)]
pub struct Ledger(pub Mutex<BTreeMap<CallId, Done>>);

impl Ledger {
    fn entry<T>(&self, call: &CallId, change: impl FnOnce(&mut Done) -> T) -> T {
        change(self.0.lock().unwrap().entry(call.clone()).or_default())
    }

    /// Whether a call was done: `happened` or `did_not_happen`. One of which it was said that it was not may be done once more.
    pub fn recall(&self, call: &CallId, key: &CallId) -> &'static str {
        if self.entry(key, |done| done.is_known) {
            return "happened";
        }
        self.entry(call, |done| done.denials += 1);
        "did_not_happen"
    }
}

/// The tools as one node reaches them.
pub struct Hands {
    pub name: &'static str,
    pub dice: Arc<Dice>,
    pub gate: Arc<Gate>,
    pub ledger: Arc<Ledger>,
    pub model: Arc<ModelStore>,
    pub witness: Arc<Witness>,
}

impl Hands {
    /// What the tool's server says of a call.
    fn recall(&self, call: &ToolCall) -> Reconciled {
        if self.dice.chance(100) {
            return Reconciled::Unclear("nobody knows".to_owned());
        }
        match self.ledger.recall(&call.id, call.key()) {
            "happened" => Reconciled::Happened(outcome(ToolCallState::Done, format!("{} was done", call.id))),
            _ => Reconciled::DidNotHappen,
        }
    }

    /// The effect. From here on it has happened, whether anybody learns of it or not.
    fn act(&self, call: &ToolCall) {
        let state = self.model.state();
        let row = state.runs.get(&call.run_id).and_then(|run| run.calls.iter().find(|row| row.id == call.id));
        // A tool of the process itself that only reads may begin while its row is being written. A run whose conversation was
        // deleted has no rows any more.
        let may_begin = call.server.is_none() && call.replay == ReplayClass::Read;
        let is_gone = !state.runs.contains_key(&call.run_id);
        if !may_begin && !is_gone && row.is_none_or(|row| row.state == ToolCallState::Planned) {
            self.witness.wrong(format!("{} of {} was executed before it was started in the store", call.id, call.name));
        }
        drop(state);
        let number = call.arguments["n"].as_u64();
        if number.is_none_or(|number| self.witness.seen().cut_calls.contains(&number)) {
            self.witness.wrong(format!("{} was executed with arguments that no model has given to the end", call.id));
        }
        self.ledger.entry(&call.id, |done| {
            done.call = Some((call.name.clone(), call.replay.clone()));
            done.executions.push(call.arguments.clone());
            done.undoes.clone_from(&call.undoes);
        });
        self.ledger.entry(call.key(), |done| done.is_known = true);
        self.dice.note(format_args!("{} does {} for {}", self.name, call.name, tail(call.id.as_str())));
    }
}

fn outcome(state: ToolCallState, text: String) -> ToolOutcome {
    ToolOutcome { state, content: vec![ToolContent::text(text)], is_error: state != ToolCallState::Done, duration_ms: 1 }
}

#[async_trait]
impl Toolbox for Hands {
    async fn definitions(&self, _owner: &UserId) -> Vec<Arc<ToolDefinition>> {
        self.dice.stumble().await;
        self.gate.pass().await;
        let undo = UndoRule { tool: "land".to_owned(), arguments: [("n".to_owned(), json!("$arguments.n"))].into_iter().collect() };
        let tool = |name: &str, server: Option<&str>, replay| ToolDefinition {
            name: name.to_owned(),
            server: server.map(str::to_owned),
            tool: name.to_owned(),
            description: String::new(),
            parameters: Arc::new(json!({"type": "object"})),
            replay,
            definition_hash: name.to_owned(),
            // One that must not run twice, so that an answer that is used twice is seen.
            safety: ToolSafety { approval: (name == "launch").then_some(ApprovalMode::Ask), ..ToolSafety::default() },
            destination: None,
            undo: matches!(name, "launch" | "note").then(|| undo.clone()),
            preview: None,
            original: None,
        };
        vec![
            tool("look", None, ReplayClass::Read).into(),
            tool("fetch", Some("far"), ReplayClass::Read).into(),
            tool("note", Some("far"), ReplayClass::Idempotent).into(),
            tool("pay", Some("far"), ReplayClass::Keyed { argument: "key".to_owned() }).into(),
            tool("order", Some("far"), ReplayClass::Reconcile { tool: "was_ordered".to_owned() }).into(),
            tool("launch", Some("far"), ReplayClass::Unsafe).into(),
            tool("land", Some("far"), ReplayClass::Unsafe).into(),
        ]
    }

    async fn execute(
        &self,
        _owner: &UserId,
        _definition: &ToolDefinition,
        call: &ToolCall,
        timeout: Duration,
        progress: ProgressSender,
        cancel: CallPermit,
    ) -> ToolOutcome {
        self.dice.stumble().await;
        self.gate.pass().await;
        if cancel.token.is_cancelled() {
            return outcome(ToolCallState::Cancelled, format!("{} was not called", call.id));
        }
        self.act(call);
        let work = async {
            if self.dice.chance(200) {
                let _ = progress.try_send(Report::Progress(Progress { progress: 0.5, total: Some(1.0), message: None }));
            }
            self.dice.stumble().await;
            match self.dice.below(20) {
                0 => std::future::pending().await,
                1 => self.dice.sleep(1_000, 12_000).await,
                2 => return outcome(ToolCallState::Failed, format!("{} broke", call.id)),
                _ => {}
            }
            outcome(ToolCallState::Done, format!("{} is done", call.id))
        };
        let ended = tokio::select! {
            biased;
            () = cancel.token.cancelled() => outcome(ToolCallState::Unknown, format!("{} was cancelled", call.id)),
            ended = tokio::time::timeout(timeout, work) => {
                ended.unwrap_or_else(|_| outcome(ToolCallState::Unknown, format!("{} took too long", call.id)))
            }
        };
        self.gate.pass().await;
        ended
    }

    async fn reconcile(
        &self,
        _owner: &UserId,
        _definition: &ToolDefinition,
        call: &ToolCall,
        _timeout: Duration,
        _cancel: CancellationToken,
    ) -> Reconciled {
        self.dice.stumble().await;
        self.gate.pass().await;
        let said = self.recall(call);
        self.dice.note(format_args!("{} is told of {}: {said:?}", self.name, tail(call.id.as_str())));
        self.dice.stumble().await;
        self.gate.pass().await;
        said
    }

    async fn servers(&self, _owner: &UserId) -> Vec<ServerStatus> {
        Vec::new()
    }

    async fn shutdown(&self) {}
}
