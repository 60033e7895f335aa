//! Writes a request in the words of `generateContent`.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::Value;

use super::content::{Content, WirePart, contents, wire_name};
use super::models::{ThinkingConfig, Traits};
use crate::domain::model::{ModelOptions, ModelRequest, ToolChoice};
use crate::domain::tool::ToolDefinition;
use crate::provider::schema::{self, Dress};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    contents: Vec<Content<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    system_instruction: Option<SystemInstruction<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<[Tools<'a>; 1]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_config: Option<ToolConfig<'a>>,
    #[serde(skip_serializing_if = "GenerationConfig::says_nothing")]
    generation_config: GenerationConfig<'a>,
}

#[derive(Serialize)]
struct SystemInstruction<'a> {
    parts: [WirePart<'a>; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Tools<'a> {
    function_declarations: Vec<Declaration<'a>>,
}

#[derive(Serialize)]
struct Declaration<'a> {
    name: Cow<'a, str>,
    description: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<Value>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ToolConfig<'a> {
    function_calling_config: CallingConfig<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CallingConfig<'a> {
    mode: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    allowed_function_names: Option<[Cow<'a, str>; 1]>,
}

#[derive(Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct GenerationConfig<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_output_tokens: Option<u32>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    stop_sequences: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_mime_type: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_schema: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking_config: Option<ThinkingConfig>,
}

impl GenerationConfig<'_> {
    fn says_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// The body of a request.
pub(super) fn body(request: &ModelRequest) -> Result<Vec<u8>, serde_json::Error> {
    let traits = Traits::of(&request.model);
    let mut contents = contents(&request.messages, traits);
    let has_system = !request.system.is_empty();
    if has_system
        && !traits.system
        && let Some(first) = contents.first_mut()
    {
        first.parts.insert(0, WirePart::text(request.system.as_str()));
    }
    let has_tools = !request.tools.is_empty();
    serde_json::to_vec(&Body {
        contents,
        system_instruction: (has_system && traits.system)
            .then(|| SystemInstruction { parts: [WirePart::text(request.system.as_str())] }),
        tools: has_tools.then(|| [Tools { function_declarations: request.tools.iter().map(|tool| declaration(tool)).collect() }]),
        tool_config: request.options.tool_choice.as_ref().filter(|_| has_tools).map(tool_config),
        generation_config: generation_config(&request.options, traits, has_tools),
    })
}

fn declaration(tool: &ToolDefinition) -> Declaration<'_> {
    let parameters = schema::dressed(&schema::plain_object(&tool.parameters), &Dress::GEMINI);
    Declaration {
        name: wire_name(&tool.name),
        description: &tool.description,
        // An object without properties is refused here; a tool without arguments says nothing of them.
        parameters: parameters.get("properties").is_some().then_some(parameters),
    }
}

fn tool_config(choice: &ToolChoice) -> ToolConfig<'_> {
    let (mode, only) = match choice {
        ToolChoice::Auto => ("AUTO", None),
        ToolChoice::None => ("NONE", None),
        ToolChoice::Required => ("ANY", None),
        ToolChoice::Tool(name) => ("ANY", Some([wire_name(name)])),
    };
    ToolConfig { function_calling_config: CallingConfig { mode, allowed_function_names: only } }
}

fn generation_config(options: &ModelOptions, traits: Traits, has_tools: bool) -> GenerationConfig<'_> {
    let schema = options.output_schema.as_ref().filter(|_| traits.schema_with_tools || !has_tools);
    GenerationConfig {
        temperature: options.temperature,
        top_p: options.top_p,
        max_output_tokens: options.max_output_tokens,
        stop_sequences: &options.stop,
        // The wire has room for half of the bits; which seed it is does not matter, that it is the same does.
        seed: options.seed.map(|seed| i32::try_from(seed).unwrap_or((seed & i64::from(i32::MAX)) as i32)),
        response_mime_type: schema.map(|_| "application/json"),
        response_schema: schema.map(|output| schema::dressed(&output.schema, &Dress::GEMINI)),
        thinking_config: options.reasoning_effort.and_then(|effort| traits.thinking_config(effort)),
    }
}
