//! The tool executor: the one place that executes tool calls.
//!
//! Resolves the tool, checks the arguments, and executes the call within a time limit. Must not know durable rows and events, which the
//! worker writes.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Map, Value};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::builtin::BuiltIns;
use super::mcp::{McpAnswer, McpCall, McpServers};
use super::options::ToolExecutorOptions;
use super::reconcile;
use super::schema::Validators;
use super::{CallControl, CallPermit, ServerStatus, Toolbox};
use crate::domain::agent::ServerNote;
use crate::domain::ids::UserId;
use crate::domain::tool::{Reconciled, ReplayClass, ToolCall, ToolCallState, ToolDefinition, ToolOutcome};

/// The name of the only argument if the model's arguments were not a JSON object. Its value is the model's text.
const RAW_ARGUMENTS: &str = "_raw";
const NO_OBJECT: &str = "the arguments are not a JSON object: send one object with the arguments by name";

pub struct ToolExecutor {
    built_ins: BuiltIns,
    mcp: Arc<McpServers>,
    validators: Validators,
}

impl ToolExecutor {
    /// Connects to no server: a connection is opened at its first use.
    pub fn new(options: ToolExecutorOptions) -> Arc<Self> {
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
            () = cancel.cancelled() => return cancelled("ended"),
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
impl Toolbox for ToolExecutor {
    async fn definitions(&self, owner: &UserId) -> Vec<Arc<ToolDefinition>> {
        let mut definitions = self.built_ins.definitions.clone();
        definitions.extend(self.mcp.definitions(owner).await);
        definitions
    }

    async fn notes(&self, owner: &UserId) -> Vec<ServerNote> {
        self.mcp.notes(owner).await
    }

    async fn execute(&self, owner: &UserId, definition: &ToolDefinition, call: &ToolCall, control: CallControl) -> ToolOutcome {
        let CallControl { timeout, progress, permit } = control;
        let started = Instant::now();
        let arguments = if permit.token.is_cancelled() {
            Err(cancelled("started"))
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
                    meta: meta(owner, definition, call, &permit),
                    timeout,
                    progress,
                    permit: &permit,
                };
                self.mcp.call(call).await
            }
        };
        let McpAnswer { state, content, is_error, .. } = answer;
        let duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
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
            return Reconciled::Unclear("its tool has no server that could be asked".to_owned());
        };
        // A server that only reports the outcome of an earlier call sends no progress.
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
            arguments: reconcile::arguments(definition, call),
            meta: Map::new(),
            timeout,
            progress,
            permit: &permit,
        });
        let reconciled = reconcile::read(answer.await);
        // The server's texts are tool content, which is not logged.
        let outcome = reconciled.as_str();
        tracing::info!(call.id = %call.id, tool = definition.name, outcome, "an MCP server was asked for the outcome of a call");
        reconciled
    }

    async fn servers(&self, owner: &UserId) -> Vec<ServerStatus> {
        self.mcp.statuses(owner).await
    }

    async fn shutdown(&self) {
        self.mcp.shutdown().await;
    }
}

/// Checks the arguments, with the idempotency key, against the frozen schema, and returns them.
fn prepared_arguments(validators: &Validators, definition: &ToolDefinition, call: &ToolCall) -> Result<Value, String> {
    let Value::Object(model_arguments) = &call.arguments else { return Err(NO_OBJECT.to_owned()) };
    if let Some(Value::String(raw)) = model_arguments.get(RAW_ARGUMENTS).filter(|_| model_arguments.len() == 1) {
        let known =
            definition.parameters.pointer("/properties").and_then(Value::as_object).is_some_and(|p| p.contains_key(RAW_ARGUMENTS));
        if !known {
            return Err(match serde_json::from_str::<Value>(raw) {
                Ok(_) => NO_OBJECT.to_owned(),
                Err(error) => format!("the arguments are not valid JSON ({error}): send one JSON object"),
            });
        }
    }
    let mut arguments = model_arguments.clone();
    if let ReplayClass::Keyed { argument } = &definition.replay {
        arguments.insert(argument.clone(), Value::String(call.key().as_str().to_owned()));
    }
    let arguments = Value::Object(arguments);
    validators.check(&definition.parameters, &arguments).map_err(|error| error.to_string())?;
    Ok(arguments)
}

/// Returns the `_meta` of a call: the ids of its run, user and conversation. Adds the idempotency key for tools that accept it
/// there, or that report the outcome of a call by its key.
fn meta(owner: &UserId, definition: &ToolDefinition, call: &ToolCall, permit: &CallPermit) -> Map<String, Value> {
    let conversation = permit.conversation.as_ref().map(|id| ("capstan/conversation_id", id.as_str()));
    let known = [("capstan/run_id", call.run_id.as_str()), ("capstan/user_id", owner.as_str())];
    let key = match &definition.replay {
        ReplayClass::KeyedMeta { field } => Some(field.as_str()),
        ReplayClass::Reconcile { .. } => Some(reconcile::KEY_FIELD),
        ReplayClass::Read | ReplayClass::Idempotent | ReplayClass::Keyed { .. } | ReplayClass::Unsafe => None,
    };
    let key = key.map(|field| (field, call.key().as_str()));
    known.into_iter().chain(conversation).chain(key).map(|(field, id)| (field.to_owned(), Value::from(id))).collect()
}

fn cancelled(before: &str) -> McpAnswer {
    McpAnswer::error(ToolCallState::Cancelled, format!("the call was cancelled before it {before}"))
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

    fn options() -> ToolExecutorOptions {
        ToolExecutorOptions::new(PathBuf::from("/nonexistent"), Arc::new(ManualClock::new(UnixMillis(1_767_225_600_000))))
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

    async fn run(door: &ToolExecutor, name: &str, arguments: Value, cancel: CancellationToken) -> (ToolCallState, String) {
        let definition = door.definitions(&owner()).await.into_iter().find(|tool| tool.name == name).unwrap();
        let (progress, _reports) = tokio::sync::mpsc::channel(1);
        let control = CallControl { timeout: Duration::from_secs(5), progress, permit: cancel.into() };
        let outcome = door.execute(&owner(), &definition, &call(name, arguments), control).await;
        assert_eq!(outcome.is_error, outcome.state != ToolCallState::Done);
        let [ToolContent::Text { text }] = outcome.content.as_slice() else { panic!("one text: {outcome:?}") };
        (outcome.state, text.clone())
    }

    #[tokio::test]
    async fn built_in_tools_answer() {
        let door = ToolExecutor::new(options());
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
    async fn invalid_arguments_error_names_the_place() {
        let door = ToolExecutor::new(options());
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
        let door = ToolExecutor::new(options());
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
    fn keyed_tool_gets_the_call_id_as_key() {
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
