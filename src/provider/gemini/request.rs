//! Writes requests of Gemini generateContent.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::{Value, json};

use super::content::{Content, WirePart, contents, wire_name};
use super::models::{ThinkingConfig, Traits};
use crate::domain::model::{ModelError, ModelOptions, ModelRequest, ToolChoice};
use crate::domain::tool::ToolDefinition;
use crate::provider::http::json_body::written;
use crate::provider::request::schema::{self, schema_profiles};

#[serde_with::skip_serializing_none]
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    contents: Vec<Content<'a>>,
    system_instruction: Option<SystemInstruction<'a>>,
    tools: Option<[Tools<'a>; 1]>,
    tool_config: Option<Value>,
    generation_config: Option<GenerationConfig<'a>>,
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

#[serde_with::skip_serializing_none]
#[derive(Serialize)]
struct Declaration<'a> {
    name: Cow<'a, str>,
    description: &'a str,
    parameters: Option<Value>,
}

#[serde_with::skip_serializing_none]
#[derive(Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct GenerationConfig<'a> {
    temperature: Option<f64>,
    top_p: Option<f64>,
    max_output_tokens: Option<u32>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    stop_sequences: &'a [String],
    seed: Option<i32>,
    response_mime_type: Option<&'static str>,
    response_schema: Option<Value>,
    thinking_config: Option<ThinkingConfig>,
}

pub(super) fn body(request: &ModelRequest) -> Result<Vec<u8>, ModelError> {
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
    let config = generation_config(&request.options, traits, has_tools);
    written(&Body {
        contents,
        system_instruction: (has_system && traits.system)
            .then(|| SystemInstruction { parts: [WirePart::text(request.system.as_str())] }),
        tools: has_tools.then(|| [Tools { function_declarations: request.tools.iter().map(|tool| declaration(tool)).collect() }]),
        tool_config: request.options.tool_choice.as_ref().filter(|_| has_tools).map(tool_config),
        generation_config: Some(config).filter(|config| *config != GenerationConfig::default()),
    })
}

fn declaration(tool: &ToolDefinition) -> Declaration<'_> {
    let parameters = schema::projected(&schema::plain_object(&tool.parameters), &schema_profiles().gemini);
    Declaration {
        name: wire_name(&tool.name),
        description: &tool.description,
        // The provider refuses an object without properties; a tool without arguments omits the field.
        parameters: parameters.get("properties").is_some().then_some(parameters),
    }
}

fn tool_config(choice: &ToolChoice) -> Value {
    let calling = match choice {
        ToolChoice::Auto => json!({ "mode": "AUTO" }),
        ToolChoice::None => json!({ "mode": "NONE" }),
        ToolChoice::Required => json!({ "mode": "ANY" }),
        ToolChoice::Tool(name) => json!({ "mode": "ANY", "allowedFunctionNames": [wire_name(name)] }),
    };
    json!({ "functionCallingConfig": calling })
}

fn generation_config(options: &ModelOptions, traits: Traits, has_tools: bool) -> GenerationConfig<'_> {
    let schema = options.output_schema.as_ref().filter(|_| traits.schema_with_tools || !has_tools);
    GenerationConfig {
        temperature: options.temperature,
        top_p: options.top_p,
        max_output_tokens: options.max_output_tokens,
        stop_sequences: &options.stop,
        // The field has 32 bits. A longer seed is cut, because equal seeds only need to stay equal.
        seed: options.seed.map(|seed| i32::try_from(seed).unwrap_or((seed & i64::from(i32::MAX)) as i32)),
        response_mime_type: schema.map(|_| "application/json"),
        response_schema: schema.map(|output| schema::projected(&output.schema, &schema_profiles().gemini)),
        thinking_config: options.reasoning_effort.and_then(|effort| traits.thinking_config(effort)),
    }
}
