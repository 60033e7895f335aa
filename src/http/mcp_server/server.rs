//! The MCP server: lists its tools, and dispatches their calls.

use std::sync::Arc;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData, Implementation, JsonObject, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool, ToolAnnotations, object,
};
use rmcp::service::RequestContext;
use rmcp::{RoleServer, ServerHandler};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::calls::{AgentArguments, DEFAULT_WAIT_SECONDS, MAX_WAIT_SECONDS, McpToolCall, RunArguments, WaitArguments};
use crate::http::options::App;
use crate::http::wire::problem::{HttpResult, Problem};
use crate::service::Error;

const RUN_GET: &str = "run_get";
const RUN_WAIT: &str = "run_wait";
const RUN_CANCEL: &str = "run_cancel";
/// Prefixes the tool name of an agent that is called `run_get`, `run_wait` or `run_cancel`.
const AGENT_PREFIX: &str = "agent_";

const INSTRUCTIONS: &str = "Each tool is an agent that answers a message, except run_get, run_wait and run_cancel. An agent that needs \
    longer answers with a run_id: call run_wait with it until the status is completed, failed or cancelled. To continue a \
    conversation, pass its conversation_id.";

#[derive(Clone)]
pub(super) struct AgentServer {
    app: App,
}

impl AgentServer {
    pub(super) fn new(app: App) -> Self {
        Self { app }
    }

    async fn tools(&self, call: &McpToolCall) -> HttpResult<Vec<Tool>> {
        let agents = self.app.service.all_agents(call.principal()).await?;
        let usable = agents.iter().filter(|view| view.effective.is_ok());
        let mut tools = run_tools();
        tools.extend(usable.map(|view| agent_tool(view.agent.name(), view.agent.description())));
        Ok(tools)
    }

    /// Continues a call whose questions the client has answered, or begins a new one.
    async fn call(&self, call: &McpToolCall, request: CallToolRequestParams) -> HttpResult<CallToolResponse> {
        let CallToolRequestParams { name, arguments, input_responses, request_state, .. } = request;
        let arguments = Value::Object(arguments.unwrap_or_default());
        if let Some(run) = request_state {
            let seconds = arguments["wait_seconds"].as_u64();
            return call.continue_answered(&run, input_responses.unwrap_or_default(), seconds).await;
        }
        match name.as_ref() {
            RUN_GET => call.get(parse::<RunArguments>(arguments)?).await,
            RUN_WAIT => call.wait(parse::<WaitArguments>(arguments)?).await,
            RUN_CANCEL => call.cancel(parse::<RunArguments>(arguments)?).await,
            tool => call.start(agent_of(tool), parse::<AgentArguments>(arguments)?).await,
        }
    }
}

impl ServerHandler for AgentServer {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().build();
        let server = Implementation::new("capstan", env!("CARGO_PKG_VERSION")).with_title("Capstan");
        ServerConfig::new(capabilities).with_server_info(server).with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _page: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let call = McpToolCall::new(&self.app, context)?;
        let tools = self.tools(&call).await;
        tools.map(ListToolsResult::with_all_items).map_err(|Problem(problem)| ErrorData::internal_error(problem.detail, None))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let call = McpToolCall::new(&self.app, context)?;
        let name = request.name.clone();
        let answered = tokio::select! {
            biased;
            answered = Box::pin(self.call(&call, request)) => answered,
            () = call.wait_until_ended() => return Err(ErrorData::invalid_request("the call was cancelled, or its key is not valid any more", None)),
        };
        match answered {
            Ok(response) => Ok(response),
            Err(Problem(problem)) if problem.errors.iter().any(|error| error.pointer == "/agent") => {
                Err(ErrorData::invalid_params(format!("unknown tool {name:?}; tools/list names all"), None))
            }
            Err(Problem(problem)) => {
                let text = format!("{} ({})", problem.detail, problem.code);
                Ok(CallToolResult::error(vec![ContentBlock::text(text)]).into())
            }
        }
    }
}

fn parse<T: DeserializeOwned>(arguments: Value) -> HttpResult<T> {
    serde_json::from_value(arguments).map_err(|error| Error::invalid(format!("the arguments are not valid: {error}")).into())
}

fn agent_tool(name: &str, description: &str) -> Tool {
    let tool = if is_run_tool(name) { format!("{AGENT_PREFIX}{name}") } else { name.to_owned() };
    let description = match description.is_empty() {
        true => format!("Asks the agent {name}."),
        false => description.to_owned(),
    };
    let input = schema(json!({
        "type": "object",
        "properties": {
            "message": { "type": "string", "description": "The message to the agent" },
            "conversation_id": { "type": "string", "description": "The conversation to continue; a new one if absent" },
            "wait_seconds": wait_schema(),
        },
        "required": ["message"],
    }));
    Tool::new(tool, description, input)
        .with_raw_output_schema(output_schema())
        .with_annotations(ToolAnnotations::new().open_world(true))
}

/// Returns the name of a tool's agent.
fn agent_of(tool: &str) -> &str {
    tool.strip_prefix(AGENT_PREFIX).filter(|name| is_run_tool(name)).unwrap_or(tool)
}

fn is_run_tool(name: &str) -> bool {
    [RUN_GET, RUN_WAIT, RUN_CANCEL].contains(&name)
}

fn run_tools() -> Vec<Tool> {
    let run = json!({ "type": "string", "description": "The run_id of an earlier result" });
    let input = schema(json!({ "type": "object", "properties": { "run_id": run }, "required": ["run_id"] }));
    let wait = schema(json!({
        "type": "object", "properties": { "run_id": run, "wait_seconds": wait_schema() }, "required": ["run_id"],
    }));
    let get = Tool::new(RUN_GET, "Returns the status of a run, and its answer once it has ended.", Arc::clone(&input))
        .with_annotations(ToolAnnotations::new().read_only(true));
    let wait =
        Tool::new(RUN_WAIT, "Waits until a run ends or needs an answer of the user, and returns its status and answer.", wait);
    let cancel = Tool::new(RUN_CANCEL, "Cancels a run. One that has ended stays as it is.", input)
        .with_annotations(ToolAnnotations::new().destructive(true).idempotent(true));
    [get, wait, cancel].map(|tool| tool.with_raw_output_schema(output_schema())).into()
}

fn wait_schema() -> Value {
    let description = format!("Seconds to wait for the end of the run; {DEFAULT_WAIT_SECONDS} if absent");
    json!({ "type": "integer", "minimum": 0, "maximum": MAX_WAIT_SECONDS, "description": description })
}

fn output_schema() -> Arc<JsonObject> {
    schema(json!({
        "type": "object",
        "properties": {
            "run_id": { "type": "string" },
            "conversation_id": { "type": "string" },
            "status": { "type": "string", "description": "completed, failed and cancelled are final" },
            "reason": { "type": "string", "description": "The reason why the run waits" },
            "text": { "type": "string", "description": "The answer" },
            "output": { "description": "The answer as JSON, if the agent has a schema for it" },
            "error": { "type": "string", "description": "The code of the error" },
            "pending": { "type": "array", "items": { "type": "object" }, "description": "The questions that wait for an answer" },
        },
        "required": ["run_id", "conversation_id", "status"],
    }))
}

fn schema(value: Value) -> Arc<JsonObject> {
    Arc::new(object(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_with_name_of_another_tool_gets_prefix() {
        let name = |agent: &str| agent_tool(agent, "").name.into_owned();
        assert_eq!((name("writer").as_str(), name("run_get").as_str()), ("writer", "agent_run_get"));
        for agent in ["writer", "run_get", "agent_x"] {
            assert_eq!(agent_of(&name(agent)), agent);
        }
    }
}
