//! The body of a chat completion, and the run that it asks for.

use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::domain::model::{ModelOptions, OutputSchema, ReasoningEffort};
use crate::domain::run::OnBusy;
use crate::domain::tool::client_tool::ClientTool;
use crate::domain::trace::TraceId;
use crate::http::openai::content::{WireContent, add_result};
use crate::http::openai::target::Target;
use crate::http::openai::tool_choice::ToolChoiceField;
use crate::service::{Content, Error, Result, RunSetup, SentCall, SentMessage, SentResult, SentTranscript, StartRun};

/// The fields that have an effect. Clients send many others, which are ignored.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct ChatRequest {
    model: Option<String>,
    messages: Vec<WireMessage>,
    pub stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    #[serde(default)]
    store: Option<bool>,
    n: Option<u32>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
    seed: Option<i64>,
    stop: Option<Stop>,
    #[serde(default)]
    tools: Option<Vec<WireTool>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    response_format: Option<ResponseFormat>,
    reasoning_effort: Option<ReasoningEffort>,
}

#[derive(Debug, Deserialize, ToSchema)]
struct StreamOptions {
    include_usage: Option<bool>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "must be a text, or a list of texts")]
enum Stop {
    One(String),
    Many(Vec<String>),
}

#[derive(Debug, Deserialize, ToSchema)]
struct WireMessage {
    role: String,
    content: Option<WireContent>,
    /// Gateways send the reasoning in this field, in `reasoning`, or in both.
    reasoning_content: Option<String>,
    reasoning: Option<String>,
    refusal: Option<String>,
    tool_calls: Option<Vec<WireCall>>,
    tool_call_id: Option<String>,
}

#[derive(Debug, Deserialize, ToSchema)]
struct WireCall {
    id: String,
    function: Option<WireFunctionCall>,
}

#[derive(Debug, Deserialize, ToSchema)]
struct WireFunctionCall {
    name: String,
    arguments: Option<String>,
}

#[derive(Debug, Deserialize, ToSchema)]
struct WireTool {
    #[serde(rename = "type")]
    kind: String,
    function: Option<WireFunction>,
}

#[derive(Debug, Deserialize, ToSchema)]
struct WireFunction {
    name: String,
    description: Option<String>,
    parameters: Option<Value>,
}

#[derive(Debug, Deserialize, ToSchema)]
struct ResponseFormat {
    #[serde(rename = "type")]
    kind: String,
    json_schema: Option<JsonSchema>,
}

#[derive(Debug, Deserialize, ToSchema)]
struct JsonSchema {
    name: Option<String>,
    schema: Option<Value>,
    strict: Option<bool>,
}

impl ChatRequest {
    /// Returns the `model` of the request; empty if it has none.
    pub(super) fn model(&self) -> &str {
        self.model.as_deref().unwrap_or_default()
    }

    pub(super) fn includes_usage(&self) -> bool {
        self.stream_options.as_ref().is_some_and(|options| options.include_usage == Some(true))
    }

    /// Returns the run of the request, and its messages.
    pub(super) fn into_run(self, trace: TraceId) -> Result<(StartRun, SentTranscript)> {
        if self.n.is_some_and(|count| count != 1) {
            return Err(Error::field("/n", "must be 1: a run has one answer"));
        }
        let (instructions, messages) = read_messages(&self.messages)?;
        let target = Target::of(self.model());
        let chosen = ToolChoiceField::read(self.tool_choice.as_ref(), &target)?;
        let options = ModelOptions {
            temperature: self.temperature,
            top_p: self.top_p,
            max_output_tokens: self.max_completion_tokens.or(self.max_tokens),
            seed: self.seed,
            stop: match self.stop {
                None => Vec::new(),
                Some(Stop::One(stop)) => vec![stop],
                Some(Stop::Many(stops)) => stops,
            },
            tool_choice: chosen.choice.clone(),
            output_schema: self.response_format.map(output_schema).transpose()?.flatten(),
            reasoning_effort: self.reasoning_effort,
        };
        let setup = RunSetup {
            plain: target.is_plain(),
            instructions,
            one_call: self.parallel_tool_calls == Some(false),
            ..RunSetup::default()
        };
        let tools = self.tools.unwrap_or_default().into_iter().enumerate().map(|(at, tool)| client_tool(at, tool));
        let tools = chosen.select(tools.collect::<Result<Vec<_>>>()?)?;
        let run = StartRun {
            agent: target.agent,
            model: target.model,
            options: Some(options),
            tools,
            on_busy: OnBusy::Reject,
            create: true,
            setup,
            ..StartRun::new(Content::Parts(Vec::new()), "messages", trace)
        };
        let hidden = !self.store.unwrap_or_default();
        Ok((run, SentTranscript { messages, questions: Vec::new(), hidden, field: "messages" }))
    }
}

/// Returns the instructions, and the other messages in order. Consecutive tool results become one message.
fn read_messages(wire: &[WireMessage]) -> Result<(String, Vec<SentMessage>)> {
    let mut instructions = Vec::new();
    let mut messages: Vec<SentMessage> = Vec::new();
    for (at, message) in wire.iter().enumerate() {
        let pointer = format!("/messages/{at}");
        let content = || message.content.clone().unwrap_or_else(|| WireContent::Text(String::new()));
        match message.role.as_str() {
            "system" | "developer" => instructions.push(content().text()),
            "user" => messages.push(SentMessage::User(content().content(&format!("{pointer}/content"))?)),
            "assistant" => {
                let calls = message.tool_calls.iter().flatten().filter_map(|call| {
                    let function = call.function.as_ref()?;
                    let arguments = function.arguments.clone().unwrap_or_default();
                    Some(SentCall { id: call.id.clone(), name: function.name.clone(), arguments })
                });
                let reasoning = message.reasoning_content.as_ref().or(message.reasoning.as_ref()).cloned().unwrap_or_default();
                let text = message.content.as_ref().map(WireContent::text).or_else(|| message.refusal.clone()).unwrap_or_default();
                messages.push(SentMessage::Assistant { text, reasoning, calls: calls.collect() });
            }
            "tool" => {
                let call_id = message.tool_call_id.clone();
                let call_id = call_id.ok_or_else(|| Error::field(&format!("{pointer}/tool_call_id"), "must name the call"))?;
                let content = content().content(&format!("{pointer}/content"))?;
                add_result(&mut messages, SentResult { call_id, content, is_error: false });
            }
            other => {
                let shown: String = other.chars().take(50).collect();
                let reason = format!("{shown:?} is not supported; send system, developer, user, assistant or tool");
                return Err(Error::field(&format!("{pointer}/role"), reason));
            }
        }
    }
    Ok((instructions.join("\n\n"), messages))
}

fn client_tool(at: usize, tool: WireTool) -> Result<ClientTool> {
    let function = tool.function.filter(|_| tool.kind == "function");
    let function = function.ok_or_else(|| Error::field(&format!("/tools/{at}/type"), "must be function"))?;
    let WireFunction { name, description, parameters } = function;
    Ok(ClientTool { name, description: description.unwrap_or_default(), parameters: parameters.filter(|schema| !schema.is_null()) })
}

fn output_schema(format: ResponseFormat) -> Result<Option<OutputSchema>> {
    match (format.kind.as_str(), format.json_schema) {
        ("text", _) => Ok(None),
        ("json_object", _) => {
            Ok(Some(OutputSchema { name: "answer".to_owned(), schema: json!({ "type": "object" }), strict: false }))
        }
        ("json_schema", Some(JsonSchema { name, schema: Some(schema), strict })) => {
            let name = name.unwrap_or_else(|| "answer".to_owned());
            Ok(Some(OutputSchema { name, schema, strict: strict.unwrap_or_default() }))
        }
        ("json_schema", _) => Err(Error::field("/response_format/json_schema", "must have a schema")),
        (_, _) => Err(Error::field("/response_format/type", "must be text, json_object or json_schema")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::model::ToolChoice;
    use crate::support::ids::UuidIds;

    fn run(body: Value) -> Result<(StartRun, SentTranscript)> {
        serde_json::from_value::<ChatRequest>(body).unwrap().into_run(TraceId::generate(&UuidIds))
    }

    #[test]
    fn chat_request_becomes_run_with_transcript() {
        let (run, sent) = run(json!({
            "model": "acme/large", "user": "ignored",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "developer", "content": [{"type": "text", "text": "Be kind."}]},
                {"role": "user", "content": "Which door?"},
                {"role": "assistant", "content": null, "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}},
                    {"id": "c2", "type": "function", "function": {"name": "point", "arguments": "{\"at\":1}"}}]},
                {"role": "tool", "tool_call_id": "c1", "content": "red"},
                {"role": "tool", "tool_call_id": "c2", "content": "there"},
            ],
            "tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}],
            "tool_choice": {"type": "function", "function": {"name": "look"}},
            "parallel_tool_calls": false, "max_completion_tokens": 9, "stop": "END", "reasoning_effort": "low",
            "response_format": {"type": "json_schema", "json_schema": {"name": "door", "schema": {"type": "object"}, "strict": true}},
        }))
        .unwrap();
        assert_eq!((run.agent, run.model.as_deref()), (None, Some("acme/large")));
        let setup =
            RunSetup { plain: true, instructions: "Be brief.\n\nBe kind.".to_owned(), one_call: true, ..RunSetup::default() };
        assert_eq!((run.setup, run.tools[0].name.as_str()), (setup, "look"));
        let options = run.options.unwrap();
        assert_eq!((options.max_output_tokens, options.stop.len()), (Some(9), 1));
        assert_eq!(options.tool_choice, Some(ToolChoice::Tool("look".to_owned())));
        assert_eq!(options.output_schema.map(|schema| (schema.name, schema.strict)), Some(("door".to_owned(), true)));
        let calls: Vec<&str> = sent
            .messages
            .iter()
            .flat_map(|message| match message {
                SentMessage::Results(results) => results.iter().map(|result| result.call_id.as_str()).collect(),
                SentMessage::User(_) | SentMessage::Assistant { .. } => Vec::new(),
            })
            .collect();
        assert_eq!((sent.messages.len(), calls, sent.hidden), (3, vec!["c1", "c2"], true));
    }

    #[test]
    fn only_allowed_tools_are_offered() {
        let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
        let (run, _) = run(json!({
            "model": "acme/large", "messages": [{"role": "user", "content": "hi"}],
            "stream": null, "stream_options": {"include_usage": null}, "tools": [tool("look"), tool("drop")],
            "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [tool("look")]}},
        }))
        .unwrap();
        let offered: Vec<&str> = run.tools.iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!((offered, run.options.unwrap().tool_choice), (vec!["look"], Some(ToolChoice::Auto)));
    }

    #[test]
    fn impossible_chat_request_is_refused_by_field() {
        let message = json!([{"role": "user", "content": "hi"}]);
        for (body, pointer) in [
            (json!({"messages": message, "n": 2}), "/n"),
            (json!({"messages": [{"role": "robot", "content": "hi"}]}), "/messages/0/role"),
            (json!({"messages": [{"role": "tool", "content": "hi"}]}), "/messages/0/tool_call_id"),
            (json!({"messages": message, "tools": [{"type": "web_search"}]}), "/tools/0/type"),
            (json!({"messages": message, "tool_choice": "any"}), "/tool_choice"),
            (json!({"messages": message, "response_format": {"type": "json_schema"}}), "/response_format/json_schema"),
        ] {
            let problem = run(body).unwrap_err().problem();
            assert_eq!(problem.errors[0].pointer, pointer, "{problem:?}");
        }
    }
}
