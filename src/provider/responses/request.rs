//! Writes requests of OpenAI Responses.

use std::borrow::Cow;
use std::sync::LazyLock;

use serde::Serialize;
use serde_json::{Value, json};

use crate::domain::conversation::{FilePart, Message, Part, ReasoningPart, Role, SentContent, ToolResultPart};
use crate::domain::model::{ModelError, ModelErrorKind, ModelOptions, ModelRequest, ReasoningEffort, ToolChoice};
use crate::provider::catalog::quirks::{model_quirks, starts_with_any};
use crate::provider::openai::schema;
use crate::provider::request::quirk_values::EffortForm;
use crate::provider::request::quirks::Quirks;
use crate::provider::request::shared_parts::{CallIds, NO_OUTPUT, arguments_object, not_sent, tool_results};

#[serde_with::skip_serializing_none]
#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    instructions: &'a str,
    input: Vec<InputItem<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tool<'a>>,
    tool_choice: Option<Value>,
    text: Option<Value>,
    reasoning: Option<Value>,
    max_output_tokens: Option<u32>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    #[serde(skip_serializing_if = "<[&str]>::is_empty")]
    include: &'a [&'a str],
    store: bool,
    stream: bool,
}

#[derive(Serialize)]
#[serde(untagged)]
enum InputItem<'a> {
    Own(TranscriptItem<'a>),
    /// An item exactly as the provider sent it.
    Original(&'a Value),
}

#[serde_with::skip_serializing_none]
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum TranscriptItem<'a> {
    Message { role: &'static str, content: Vec<Content<'a>> },
    FunctionCall { id: Option<&'a str>, call_id: &'a str, name: &'a str, arguments: String },
    FunctionCallOutput { call_id: &'a str, output: Output<'a> },
}

#[derive(Serialize)]
#[serde(untagged)]
enum Output<'a> {
    Text(String),
    Parts(Vec<Content<'a>>),
}

#[serde_with::skip_serializing_none]
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Content<'a> {
    InputText { text: Cow<'a, str> },
    InputImage { image_url: Cow<'a, str> },
    InputFile { filename: Option<&'a str>, file_data: Option<&'a str>, file_url: Option<&'a str> },
    OutputText { text: &'a str },
}

#[derive(Serialize)]
struct Tool<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    name: &'a str,
    description: &'a str,
    parameters: Cow<'a, Value>,
    /// Always sent, because the API assumes `true` for an absent field.
    strict: bool,
}

pub(super) fn body(request: &ModelRequest, quirks: &Quirks, streaming: bool) -> Result<Vec<u8>, ModelError> {
    let options = &request.options;
    if !options.stop.is_empty() {
        let why = "the Responses API has no option for stop texts; remove options.stop, or use the model over chat completions";
        return Err(ModelError::new(ModelErrorKind::InvalidRequest, why));
    }
    let tools = request.tools.iter().map(|tool| Tool {
        kind: "function",
        name: &tool.name,
        description: &tool.description,
        parameters: schema::parameters(&tool.parameters, &quirks.schemas),
        strict: false,
    });
    let samples = quirks.takes_sampling(&request.model);
    let reasons = !starts_with_any(&request.model, &model_quirks().responses.no_reasoning);
    let body = Body {
        model: &request.model,
        instructions: &request.system,
        input: input(&request.messages),
        tools: tools.collect(),
        tool_choice: options.tool_choice.as_ref().filter(|_| !request.tools.is_empty()).map(tool_choice),
        text: text_format(options),
        reasoning: options.reasoning_effort.filter(|_| reasons).and_then(|effort| reasoning(effort, &request.model, quirks)),
        max_output_tokens: options.max_output_tokens,
        temperature: options.temperature.filter(|_| samples),
        top_p: options.top_p.filter(|_| samples),
        include: if reasons { &["reasoning.encrypted_content"] } else { &[] },
        store: false,
        stream: streaming,
    };
    quirks.written(&body)
}

fn tool_choice(choice: &ToolChoice) -> Value {
    match choice {
        ToolChoice::Auto => "auto".into(),
        ToolChoice::None => "none".into(),
        ToolChoice::Required => "required".into(),
        ToolChoice::Tool(name) => json!({ "type": "function", "name": name }),
    }
}

fn text_format(options: &ModelOptions) -> Option<Value> {
    let output_schema = options.output_schema.as_ref()?;
    let format = json!({ "type": "json_schema", "name": output_schema.name, "schema": output_schema.schema, "strict": output_schema.strict });
    Some(json!({ "format": format }))
}

fn reasoning(effort: ReasoningEffort, model: &str, quirks: &Quirks) -> Option<Value> {
    if quirks.effort == EffortForm::NotSent {
        return None;
    }
    static OPENAI: LazyLock<Quirks> = LazyLock::new(Quirks::default);
    let effort_name = quirks.effort_word(model, effort)?;
    let knows_max = effort == ReasoningEffort::Max && starts_with_any(model, &model_quirks().responses.know_max_effort);
    // A provider's own values are sent unchanged.
    let word = if knows_max && OPENAI.effort_word(model, effort) == Some(effort_name) { "max" } else { effort_name };
    Some(if word == "none" { json!({ "effort": word }) } else { json!({ "effort": word, "summary": "auto" }) })
}

fn input(messages: &[Message]) -> Vec<InputItem<'_>> {
    let mut items = Vec::with_capacity(messages.len());
    let mut ids = CallIds::default();
    for message in messages {
        match message.role {
            Role::User => {
                let content = message.parts.iter().filter_map(user_content).collect();
                items.push(InputItem::Own(TranscriptItem::Message { role: "user", content }));
            }
            Role::Assistant => assistant(message, &mut ids, &mut items),
            Role::Tool => {
                for result in tool_results(message) {
                    let (call_id, output) = (ids.sent_call_id(result), output(result));
                    items.push(InputItem::Own(TranscriptItem::FunctionCallOutput { call_id, output }));
                }
            }
        }
    }
    items
}

fn user_content(part: &Part) -> Option<Content<'_>> {
    Some(match part {
        Part::Text(text) => Content::InputText { text: Cow::Borrowed(&text.text) },
        Part::Image(image) => match &image.url {
            Some(url) => Content::InputImage { image_url: Cow::Borrowed(url) },
            None => Content::InputText { text: Cow::Owned(not_sent("image", image)) },
        },
        Part::File(file) => self::file(file),
        Part::Reasoning(_) | Part::ToolCall(_) | Part::ToolResult(_) | Part::Source(_) => return None,
    })
}

fn file(file: &FilePart) -> Content<'_> {
    match file.url.as_deref().filter(|_| file.media_type == "application/pdf") {
        Some(url) if url.starts_with("data:") => {
            let filename = Some(file.name.as_deref().unwrap_or("file.pdf"));
            Content::InputFile { filename, file_data: Some(url), file_url: None }
        }
        Some(url) => Content::InputFile { filename: None, file_data: None, file_url: Some(url) },
        None => Content::InputText { text: Cow::Owned(not_sent("file", file)) },
    }
}

/// Writes the parts of an answer in order. The API refuses reasoning without the item that followed it, and an item with an id without the
/// reasoning before it.
fn assistant<'a>(message: &'a Message, ids: &mut CallIds<'a>, items: &mut Vec<InputItem<'a>>) {
    let mut thoughts: Vec<&Value> = Vec::new();
    let mut has_thoughts = false;
    for part in &message.parts {
        match part {
            Part::Reasoning(reasoning) => thoughts.extend(sendable_reasoning(reasoning)),
            Part::Text(text) => {
                has_thoughts |= !thoughts.is_empty();
                items.extend(thoughts.drain(..).map(InputItem::Original));
                let output_text = Content::OutputText { text: &text.text };
                match items.last_mut() {
                    Some(InputItem::Own(TranscriptItem::Message { role: "assistant", content })) => content.push(output_text),
                    Some(_) | None => {
                        items.push(InputItem::Own(TranscriptItem::Message { role: "assistant", content: vec![output_text] }));
                    }
                }
            }
            Part::ToolCall(call) => {
                has_thoughts |= !thoughts.is_empty();
                items.extend(thoughts.drain(..).map(InputItem::Original));
                items.push(InputItem::Own(TranscriptItem::FunctionCall {
                    id: call.raw.as_ref().filter(|_| has_thoughts).and_then(|raw| raw.get("id")?.as_str()),
                    call_id: ids.id(call),
                    name: &call.name,
                    arguments: arguments_object(call).to_string(),
                }));
            }
            Part::ToolResult(_) | Part::Image(_) | Part::File(_) | Part::Source(_) => {}
        }
    }
}

/// Returns the reasoning item, if the API accepts it again: the provider stores none, so the item must have content.
fn sendable_reasoning(reasoning: &ReasoningPart) -> Option<&Value> {
    let item = reasoning.raw.as_ref()?;
    let is_there = |name: &str| match item.get(name) {
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Array(parts)) => !parts.is_empty(),
        Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_)) | None => false,
    };
    let is_item = item.get("type").and_then(Value::as_str) == Some("reasoning");
    Some(item).filter(|_| is_item && (is_there("encrypted_content") || is_there("content")))
}

fn output(result: &ToolResultPart) -> Output<'_> {
    let texts: Vec<Cow<'_, str>> = result.content.iter().filter_map(|content| content.as_sent().into_text()).collect();
    if texts.len() == result.content.len() {
        let text = texts.join("\n");
        return Output::Text(if text.trim().is_empty() { NO_OUTPUT.to_owned() } else { text });
    }
    Output::Parts(
        result
            .content
            .iter()
            .map(|content| match content.as_sent() {
                SentContent::Text(text) => Content::InputText { text },
                SentContent::Image { media_type, data } => {
                    Content::InputImage { image_url: Cow::Owned(format!("data:{media_type};base64,{data}")) }
                }
            })
            .collect(),
    )
}
