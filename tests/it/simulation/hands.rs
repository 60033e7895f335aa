//! Tools with a ledger outside of the server, which counts their effects.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use capstan::domain::conversation::message::ToolContent;
use capstan::domain::ids::{CallId, UserId};
use capstan::domain::run::undo::UndoRule;
use capstan::domain::tool::approval::{ApprovalMode, ToolSafety};
use capstan::domain::tool::{Reconciled, ReplayClass, ToolCall, ToolCallState, ToolDefinition, ToolOutcome};
use capstan::tools::{CallControl, Progress, Report, ServerStatus, Toolbox};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::dice::Dice;
use super::gate::Gate;
use super::line::tail;
use super::witness::Witness;
use support::model_store::ModelStore;

/// The effects of one call.
#[derive(Default)]
pub struct Done {
    /// The name and the replay class of its tool.
    pub call: Option<(String, ReplayClass)>,
    /// The arguments of each execution.
    pub executions: Vec<Value>,
    /// How often it was reported as not done.
    pub denials: usize,
    /// The call that it undoes.
    pub undoes: Option<CallId>,
    /// Whether the key had an effect.
    pub is_known: bool,
}

/// The effects of all calls. A call's id is the key of a keyed tool.
#[derive(Default)]
pub struct Ledger(pub Mutex<BTreeMap<CallId, Done>>);

impl Ledger {
    fn entry<T>(&self, call: &CallId, change: impl FnOnce(&mut Done) -> T) -> T {
        change(self.0.lock().unwrap().entry(call.clone()).or_default())
    }

    /// Returns `happened` or `did_not_happen`. A call that was reported as not done may run once more.
    pub fn recall(&self, call: &CallId, key: &CallId) -> &'static str {
        if self.entry(key, |done| done.is_known) {
            return "happened";
        }
        self.entry(call, |done| done.denials += 1);
        "did_not_happen"
    }
}

/// The tools of one node.
pub struct Hands {
    pub name: &'static str,
    pub dice: Arc<Dice>,
    pub gate: Arc<Gate>,
    pub ledger: Arc<Ledger>,
    pub model: Arc<ModelStore>,
    pub witness: Arc<Witness>,
}

impl Hands {
    /// Returns the reconciliation answer of the tool's server.
    fn recall(&self, call: &ToolCall) -> Reconciled {
        if self.dice.chance(100) {
            return Reconciled::Unclear("nobody knows".to_owned());
        }
        match self.ledger.recall(&call.id, call.key()) {
            "happened" => Reconciled::Happened(outcome(ToolCallState::Done, format!("{} was done", call.id))),
            _ => Reconciled::DidNotHappen,
        }
    }

    /// Executes the effect. It has happened from here on, whether or not the reply arrives.
    fn act(&self, call: &ToolCall) {
        let state = self.model.state();
        let row = state.runs.get(&call.run_id).and_then(|run| run.calls.iter().find(|row| row.id == call.id));
        // A built-in read-only tool may start while its row is being written. The run of a deleted conversation has no rows.
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
            server: server.map(str::to_owned),
            definition_hash: name.to_owned(),
            // An unsafe tool, so that an approval that is used twice shows.
            safety: ToolSafety { approval: (name == "launch").then_some(ApprovalMode::Ask), ..ToolSafety::default() },
            undo: matches!(name, "launch" | "note").then(|| undo.clone()),
            ..ToolDefinition::new(name, "", json!({"type": "object"}), replay)
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

    async fn execute(&self, _: &UserId, _: &ToolDefinition, call: &ToolCall, control: CallControl) -> ToolOutcome {
        let CallControl { timeout, progress, permit: cancel } = control;
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
