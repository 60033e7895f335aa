//! Writes requests of chat completions.

use std::borrow::Cow;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};

use super::messages::{WireMessage, messages};
use super::schema;
use crate::domain::model::{ModelError, ModelErrorKind, ModelOptions, ModelRequest, OutputSchema, ReasoningEffort, ToolChoice};
use crate::domain::tool::ToolDefinition;
use crate::provider::request::quirk_values::{EffortForm, OutputLimit, SchemaForm, ToolChoices};
use crate::provider::request::quirks::Quirks;
use crate::provider::request::shared_parts::{WireFunction, WireTool, with_schema};

#[serde_with::skip_serializing_none]
#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    messages: Vec<WireMessage<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<WireTool<'a>>,
    tool_choice: Option<Value>,
    response_format: Option<Value>,
    #[serde(flatten)]
    effort: Option<Effort<'a>>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
    seed: Option<i64>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    stop: &'a [String],
    stream: bool,
    stream_options: Option<Value>,
}

/// The reasoning effort in one of the shapes of [`EffortForm`].
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Effort<'a> {
    #[serde(rename = "reasoning_effort")]
    Word(&'a str),
    Reasoning(Value),
    Thinking(Value),
    EnableThinking(bool),
    ChatTemplateKwargs(Value),
}

pub(super) fn body(request: &ModelRequest, quirks: &Quirks, streaming: bool) -> Result<Vec<u8>, ModelError> {
    let options = &request.options;
    let (tools, tool_choice) = choice(request, quirks)?;
    let newer_name = quirks.output_limit == OutputLimit::MaxCompletionTokens || quirks.knows_new_limit_only(&request.model);
    let limit = options.max_output_tokens;
    let samples = quirks.takes_sampling(&request.model);
    let body = Body {
        model: &request.model,
        messages: messages(request, &system(request, quirks), quirks),
        tools: tools.into_iter().map(|tool| wire_tool(tool, quirks)).collect(),
        tool_choice,
        response_format: response_format(options, quirks),
        effort: options.reasoning_effort.and_then(|requested| effort(requested, &request.model, quirks)),
        temperature: options.temperature.filter(|_| samples),
        top_p: options.top_p.filter(|_| samples),
        max_tokens: limit.filter(|_| !newer_name),
        max_completion_tokens: limit.filter(|_| newer_name),
        seed: options.seed,
        stop: if samples { &options.stop } else { &[] },
        stream: streaming,
        stream_options: (streaming && quirks.stream_usage).then(|| json!({ "include_usage": true })),
    };
    quirks.written(&body)
}

/// Returns the system prompt, with the schema of the answer if the provider has no field for it.
fn system<'a>(request: &'a ModelRequest, quirks: &Quirks) -> Cow<'a, str> {
    match (&request.options.output_schema, quirks.output_schema) {
        (None, _) | (Some(_), SchemaForm::JsonSchema) => Cow::Borrowed(&request.system),
        (Some(OutputSchema { schema, .. }), SchemaForm::JsonObject | SchemaForm::Prompt) => {
            Cow::Owned(with_schema(&request.system, schema))
        }
    }
}

fn wire_tool<'a>(tool: &'a ToolDefinition, quirks: &Quirks) -> WireTool<'a> {
    let parameters = schema::parameters(&tool.parameters, &quirks.schemas);
    WireTool::Function { function: WireFunction { name: &tool.name, description: &tool.description, parameters } }
}

/// Returns the tools on offer and the value of `tool_choice`.
fn choice<'a>(request: &'a ModelRequest, quirks: &Quirks) -> Result<(Vec<&'a Arc<ToolDefinition>>, Option<Value>), ModelError> {
    let tools: Vec<&Arc<ToolDefinition>> = request.tools.iter().collect();
    let Some(choice) = request.options.tool_choice.as_ref().filter(|_| !tools.is_empty()) else { return Ok((tools, None)) };
    let required = || Some(Value::from(quirks.required_choice.as_str()));
    Ok(match (choice, quirks.tool_choices) {
        (ToolChoice::Auto, ToolChoices::All | ToolChoices::Unnamed) => (tools, Some("auto".into())),
        (ToolChoice::Auto, ToolChoices::AutoOnly) => (tools, None),
        (ToolChoice::None, ToolChoices::All | ToolChoices::Unnamed) => (tools, Some("none".into())),
        (ToolChoice::None, ToolChoices::AutoOnly) => (Vec::new(), None),
        (ToolChoice::Required, ToolChoices::All | ToolChoices::Unnamed) => (tools, required()),
        (ToolChoice::Tool(name), ToolChoices::All) => (tools, Some(json!({ "type": "function", "function": { "name": name } }))),
        (ToolChoice::Tool(name), ToolChoices::Unnamed) => {
            (tools.into_iter().filter(|tool| tool.name == *name).collect(), required())
        }
        (ToolChoice::Required | ToolChoice::Tool(_), ToolChoices::AutoOnly) => {
            let why = "this provider has no option to require a tool call; remove options.tool_choice, or use another provider";
            return Err(ModelError::new(ModelErrorKind::InvalidRequest, why));
        }
    })
}

fn response_format(options: &ModelOptions, quirks: &Quirks) -> Option<Value> {
    let OutputSchema { name, schema, strict } = options.output_schema.as_ref()?;
    match quirks.output_schema {
        SchemaForm::JsonSchema => {
            let schema = schema::supported_schema(schema, &quirks.schemas);
            Some(json!({ "type": "json_schema", "json_schema": { "name": name, "schema": schema, "strict": strict } }))
        }
        SchemaForm::JsonObject => Some(json!({ "type": "json_object" })),
        SchemaForm::Prompt => None,
    }
}

fn effort<'a>(requested: ReasoningEffort, model: &str, quirks: &'a Quirks) -> Option<Effort<'a>> {
    let has_own_words = quirks.effort == EffortForm::Field;
    let word = if has_own_words { quirks.effort_word(model, requested)? } else { quirks.effort_words.of(requested)? };
    let thinks = requested != ReasoningEffort::None;
    Some(match quirks.effort {
        EffortForm::Field => Effort::Word(word),
        EffortForm::Object => Effort::Reasoning(json!({ "effort": word })),
        EffortForm::Thinking => Effort::Thinking(json!({ "type": if thinks { "enabled" } else { "disabled" } })),
        EffortForm::EnableThinking => Effort::EnableThinking(thinks),
        EffortForm::ChatTemplate => Effort::ChatTemplateKwargs(json!({ "enable_thinking": thinks })),
        EffortForm::NotSent => return None,
    })
}
