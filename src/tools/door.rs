//! The tool executor: the one place that executes tool calls.
//!
//! It resolves the tool, checks the arguments and executes the call within a time limit. The worker writes durable rows and
//! events, and cuts long answers for the model.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Map, Value};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::builtin::BuiltIns;
use super::mcp::{McpAnswer, McpCall, McpServers};
use super::options::DoorOptions;
use super::reconcile;
use super::schema::Validators;
use super::{CallPermit, ProgressSender, ServerStatus, Toolbox};
use crate::domain::agent::prompt::ServerNote;
use crate::domain::ids::UserId;
use crate::domain::tool::{Reconciled, ReplayClass, ToolCall, ToolCallState, ToolDefinition, ToolOutcome};

/// The only argument of a call whose arguments were no JSON object: the text of the model.
const RAW_ARGUMENTS: &str = "_raw";
const NO_OBJECT: &str = "the arguments are not a JSON object: send one object with the arguments by name";

pub struct Door {
    built_ins: BuiltIns,
    mcp: Arc<McpServers>,
    validators: Validators,
}

impl Door {
    /// Starts nothing: servers are connected when they are first needed.
    pub fn new(options: DoorOptions) -> Arc<Self> {
        let built_ins = BuiltIns::new(&options);
        Arc::new(Self { built_ins, mcp: McpServers::new(options), validators: Validators::default() })
    }

    pub fn mcp(&self) -> &Arc<McpServers> {
        &self.mcp
    }

    async fn built_in(
        &self,
        definition: &ToolDefinition,
        arguments: &Value,
        timeout: Duration,
        cancel: &CancellationToken,
    ) -> McpAnswer {
        let call = tokio::time::timeout(timeout, self.built_ins.call(&definition.tool, arguments));
        let result = tokio::select! {
            biased;
            () = cancel.cancelled() => return cancelled(),
            result = call => result,
        };
        match result {
            Ok(Ok(content)) => McpAnswer { state: ToolCallState::Done, content, is_error: false, structured: None },
            Ok(Err(reason)) => McpAnswer::failed(reason),
            Err(_) => McpAnswer::failed(format!("the tool did not finish within {timeout:?}")),
        }
    }
}

#[async_trait]
impl Toolbox for Door {
    async fn definitions(&self, owner: &UserId) -> Vec<Arc<ToolDefinition>> {
        let mut definitions = self.built_ins.definitions.clone();
        definitions.extend(self.mcp.definitions(owner).await);
        definitions
    }

    async fn notes(&self, owner: &UserId) -> Vec<ServerNote> {
        self.mcp.notes(owner).await
    }

    async fn execute(
        &self,
        owner: &UserId,
        definition: &ToolDefinition,
        call: &ToolCall,
        timeout: Duration,
        progress: ProgressSender,
        permit: CallPermit,
    ) -> ToolOutcome {
        let started = Instant::now();
        let arguments = if permit.token.is_cancelled() {
            Err(cancelled())
        } else {
            prepared_arguments(&self.validators, definition, call).map_err(McpAnswer::failed)
        };
        let answer = match (arguments, &definition.server) {
            (Err(refusal), _) => refusal,
            (Ok(arguments), None) => self.built_in(definition, &arguments, timeout, &permit.token).await,
            (Ok(arguments), Some(server)) => {
                let call = McpCall {
                    owner,
                    id: &call.id,
                    server,
                    tool: &definition.tool,
                    frozen_hash: Some(&definition.definition_hash),
                    frozen_destination: definition.destination.as_deref(),
                    handle: call.handle.as_ref(),
                    may_repeat: definition.replay.may_repeat(),
                    arguments,
                    meta: meta(definition, call),
                    timeout,
                    progress,
                    permit: &permit,
                };
                self.mcp.call(call).await
            }
        };
        let McpAnswer { state, content, is_error, .. } = answer;
        let duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        tracing::debug!(call.id = %call.id, tool = definition.name, state = state.as_str(), duration_ms, "tool call ended");
        ToolOutcome { state, content, is_error, duration_ms }
    }

    async fn reconcile(
        &self,
        owner: &UserId,
        definition: &ToolDefinition,
        call: &ToolCall,
        timeout: Duration,
        cancel: CancellationToken,
    ) -> Reconciled {
        let (Some(server), ReplayClass::Reconcile { tool }) = (&definition.server, &definition.replay) else {
            return Reconciled::Unclear("there is nobody to be asked".to_owned());
        };
        // A server that only tells the outcome of an earlier call has no progress to report.
        let (progress, _) = tokio::sync::mpsc::channel(1);
        let permit = cancel.into();
        let answer = self.mcp.call(McpCall {
            owner,
            id: &call.id,
            server,
            tool,
            frozen_hash: None,
            frozen_destination: definition.destination.as_deref(),
            handle: None,
            may_repeat: true,
            arguments: reconcile::question(definition, call),
            meta: Map::new(),
            timeout,
            progress,
            permit: &permit,
        });
        let said = reconcile::read(answer.await);
        // The texts of the answer are content of the tool, and stay out of the log.
        let outcome = said.as_str();
        tracing::info!(call.id = %call.id, tool = definition.name, outcome, "a server was asked what became of a call");
        said
    }

    async fn servers(&self, owner: &UserId) -> Vec<ServerStatus> {
        self.mcp.statuses(owner).await
    }

    async fn shutdown(&self) {
        self.mcp.shutdown().await;
    }
}

/// Returns the arguments to send: with our idempotency key, and checked against the frozen schema.
fn prepared_arguments(validators: &Validators, definition: &ToolDefinition, call: &ToolCall) -> Result<Value, String> {
    let Value::Object(given) = &call.arguments else { return Err(NO_OBJECT.to_owned()) };
    if let Some(Value::String(raw)) = given.get(RAW_ARGUMENTS).filter(|_| given.len() == 1) {
        let known =
            definition.parameters.pointer("/properties").and_then(Value::as_object).is_some_and(|p| p.contains_key(RAW_ARGUMENTS));
        if !known {
            return Err(match serde_json::from_str::<Value>(raw) {
                Ok(_) => NO_OBJECT.to_owned(),
                Err(error) => format!("the arguments are not valid JSON ({error}): send one JSON object"),
            });
        }
    }
    let mut arguments = given.clone();
    if let ReplayClass::Keyed { argument } = &definition.replay {
        arguments.insert(argument.clone(), Value::String(call.key().as_str().to_owned()));
    }
    let arguments = Value::Object(arguments);
    validators.check(&definition.parameters, &arguments).map_err(|error| error.to_string())?;
    Ok(arguments)
}

/// Returns `_meta`: our idempotency key, for tools that take it there or can be asked about it.
fn meta(definition: &ToolDefinition, call: &ToolCall) -> Map<String, Value> {
    let field = match &definition.replay {
        ReplayClass::KeyedMeta { field } => field,
        ReplayClass::Reconcile { .. } => reconcile::KEY_FIELD,
        ReplayClass::Read | ReplayClass::Idempotent | ReplayClass::Keyed { .. } | ReplayClass::Unsafe => return Map::new(),
    };
    Map::from_iter([(field.to_owned(), Value::String(call.key().as_str().to_owned()))])
}

fn cancelled() -> McpAnswer {
    McpAnswer::error(ToolCallState::Cancelled, "the call was cancelled before it was made".to_owned())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::domain::conversation::message::ToolContent;
    use crate::domain::ids::{CallId, MessageId, RunId};
    use crate::support::clock::{ManualClock, UnixMillis};
    use crate::support::ids::SequentialIds;
    use serde_json::json;

    fn options() -> DoorOptions {
        DoorOptions::new(PathBuf::from("/nonexistent"), Arc::new(ManualClock::new(UnixMillis(1_767_225_600_000))))
    }

    fn call(name: &str, arguments: Value) -> ToolCall {
        let ids = SequentialIds::default();
        let (id, of) = (CallId::generate(&ids), (RunId::generate(&ids), MessageId::generate(&ids)));
        let tool = ToolDefinition::new(name, "", Value::Null, ReplayClass::Read);
        ToolCall { state: ToolCallState::Started, ..ToolCall::planned(id, of, &tool, arguments) }
    }

    fn owner() -> UserId {
        UserId::generate(&SequentialIds::default())
    }

    async fn run(door: &Door, name: &str, arguments: Value, cancel: CancellationToken) -> (ToolCallState, String) {
        let definition = door.definitions(&owner()).await.into_iter().find(|tool| tool.name == name).unwrap();
        let (progress, _reports) = tokio::sync::mpsc::channel(1);
        let outcome =
            door.execute(&owner(), &definition, &call(name, arguments), Duration::from_secs(5), progress, cancel.into()).await;
        assert_eq!(outcome.is_error, outcome.state != ToolCallState::Done);
        let [ToolContent::Text { text }] = outcome.content.as_slice() else { panic!("one text: {outcome:?}") };
        (outcome.state, text.clone())
    }

    #[tokio::test]
    async fn built_in_tools_answer() {
        let door = Door::new(options());
        let names: Vec<String> = door.definitions(&owner()).await.iter().map(|tool| tool.name.clone()).collect();
        assert_eq!(names, ["current_time", "calculate", "list_directory", "read_file"]);
        let token = CancellationToken::new;
        assert_eq!(run(&door, "calculate", json!({"expression": "17*23"}), token()).await, (ToolCallState::Done, "391".to_owned()));
        let (state, text) = run(&door, "current_time", json!({}), token()).await;
        assert!(state == ToolCallState::Done && text.starts_with("2026-01-01T00:00:00+00:00"), "{text}");
        let (state, text) = run(&door, "list_directory", json!({}), token()).await;
        assert!(state == ToolCallState::Failed && text.contains("does not exist"), "{text}");
    }

    #[tokio::test]
    async fn wrong_arguments_are_told_so_that_a_model_can_mend_them() {
        let door = Door::new(options());
        for (arguments, reason) in [
            (json!({}), r#"(top level): "expression" is a required property"#),
            (json!({"expression": 5}), r#"/expression: 5 is not of type "string""#),
            (json!({"expression": "1", "x": 1}), "'x' was unexpected"),
            (json!({"_raw": "{\"expression\": "}), "not valid JSON"),
            (json!({"_raw": "[1]"}), "not a JSON object"),
            (json!([1]), "not a JSON object"),
        ] {
            let (state, text) = run(&door, "calculate", arguments, CancellationToken::new()).await;
            assert!(state == ToolCallState::Failed && text.contains(reason), "{text}");
        }
    }

    #[tokio::test]
    async fn cancelled_call_does_not_run() {
        let door = Door::new(options());
        let cancel = CancellationToken::new();
        cancel.cancel();
        let (state, _) = run(&door, "calculate", json!({"expression": "1"}), cancel).await;
        assert_eq!(state, ToolCallState::Cancelled);
    }

    fn of_bank(tool: &str, replay: ReplayClass) -> ToolDefinition {
        ToolDefinition {
            server: Some("bank".to_owned()),
            tool: tool.to_owned(),
            ..ToolDefinition::new(&format!("bank__{tool}"), "", json!({"type": "object"}), replay)
        }
    }

    #[test]
    fn a_keyed_tool_gets_our_call_id_whatever_the_model_said() {
        let call = call("pay", json!({"amount": 1, "key": "mine"}));
        let definition = ToolDefinition {
            parameters: json!({"type": "object", "properties": {"amount": {}, "key": {"type": "string"}}, "required": ["key"]})
                .into(),
            ..of_bank("pay", ReplayClass::Keyed { argument: "key".to_owned() })
        };
        assert_eq!(
            prepared_arguments(&Validators::default(), &definition, &call).unwrap(),
            json!({"amount": 1, "key": call.id.as_str()})
        );
    }
}
