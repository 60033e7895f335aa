//! Writes a request in the words of the Responses API.

use std::borrow::Cow;
use std::sync::OnceLock;

use serde::Serialize;
use serde_json::{Value, json};

use crate::domain::message::{FilePart, Message, Part, ReasoningPart, Role, SentContent, ToolCallPart, ToolResultPart};
use crate::domain::model::{ModelError, ModelOptions, ModelRequest, ReasoningEffort, ToolChoice};
use crate::provider::catalog::quirks::model_quirks;
use crate::provider::compose::{arguments_text, cannot_say, file_text};
use crate::provider::openai::schema;
use crate::provider::project::{CallIds, not_sent};
use crate::provider::quirk_forms::EffortForm;
use crate::provider::quirks::Quirks;

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    instructions: &'a str,
    input: Vec<InputItem<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tool<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_choice: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_output_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p: Option<f64>,
    #[serde(skip_serializing_if = "<[&str]>::is_empty")]
    include: &'a [&'a str],
    store: bool,
    stream: bool,
}

#[derive(Serialize)]
#[serde(untagged)]
enum InputItem<'a> {
    Own(OwnItem<'a>),
    /// An item of the provider, as it came.
    Theirs(&'a Value),
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum OwnItem<'a> {
    Message {
        role: &'static str,
        content: Vec<Content<'a>>,
    },
    FunctionCall {
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<&'a str>,
        call_id: Cow<'a, str>,
        name: &'a str,
        arguments: String,
    },
    FunctionCallOutput {
        call_id: Cow<'a, str>,
        output: Output<'a>,
    },
}

#[derive(Serialize)]
#[serde(untagged)]
enum Output<'a> {
    Text(String),
    Parts(Vec<Content<'a>>),
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Content<'a> {
    InputText {
        text: Cow<'a, str>,
    },
    InputImage {
        image_url: Cow<'a, str>,
    },
    InputFile {
        #[serde(skip_serializing_if = "Option::is_none")]
        filename: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        file_data: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        file_url: Option<&'a str>,
    },
    OutputText {
        text: &'a str,
    },
}

#[derive(Serialize)]
struct Tool<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    name: &'a str,
    description: &'a str,
    parameters: Cow<'a, Value>,
    /// Said always: where it is not, this API assumes that it is.
    strict: bool,
}

/// The body of a request.
pub(super) fn body(request: &ModelRequest, quirks: &Quirks, streaming: bool) -> Result<Vec<u8>, ModelError> {
    let options = &request.options;
    if !options.stop.is_empty() {
        return Err(cannot_say(
            "the Responses API knows no stop texts",
            "remove options.stop, or ask the model over chat completions",
        ));
    }
    let tools = request.tools.iter().map(|tool| Tool {
        kind: "function",
        name: &tool.name,
        description: &tool.description,
        parameters: schema::parameters(&tool.parameters, &quirks.schemas),
        strict: false,
    });
    let samples = quirks.takes_sampling(&request.model);
    let reasons = model_quirks().responses.reasons(&request.model);
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
    let wanted = options.output_schema.as_ref()?;
    let format = json!({ "type": "json_schema", "name": wanted.name, "schema": wanted.schema, "strict": wanted.strict });
    Some(json!({ "format": format }))
}

/// What OpenAI's own models take.
fn usual() -> &'static Quirks {
    static USUAL: OnceLock<Quirks> = OnceLock::new();
    USUAL.get_or_init(Quirks::default)
}

fn reasoning(effort: ReasoningEffort, model: &str, quirks: &Quirks) -> Option<Value> {
    if quirks.effort == EffortForm::Unsaid {
        return None;
    }
    let said = quirks.effort_word(model, effort)?;
    let knows_max = effort == ReasoningEffort::Max && model_quirks().responses.knows_max_effort(model);
    // Whoever has words of their own means them.
    let word = if knows_max && usual().effort_word(model, effort) == Some(said) { "max" } else { said };
    Some(if word == "none" { json!({ "effort": word }) } else { json!({ "effort": word, "summary": "auto" }) })
}

fn input(messages: &[Message]) -> Vec<InputItem<'_>> {
    let mut items = Vec::with_capacity(messages.len());
    let mut ids = CallIds::default();
    for message in messages {
        match message.role {
            Role::User => {
                let content = message.parts.iter().filter_map(user_content).collect();
                items.push(InputItem::Own(OwnItem::Message { role: "user", content }));
            }
            Role::Assistant => assistant(message, &mut ids, &mut items),
            Role::Tool => {
                for part in &message.parts {
                    let Part::ToolResult(result) = part else { continue };
                    let (call_id, output) = (ids.of(&result.call_id), output(result));
                    items.push(InputItem::Own(OwnItem::FunctionCallOutput { call_id, output }));
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
        Part::Reasoning(_) | Part::ToolCall(_) | Part::ToolResult(_) => return None,
    })
}

/// PDFs go as files, texts as texts.
fn file(file: &FilePart) -> Content<'_> {
    if let Some(text) = file_text(file) {
        return Content::InputText { text: Cow::Owned(text) };
    }
    match file.url.as_deref().filter(|_| file.media_type == "application/pdf") {
        Some(url) if url.starts_with("data:") => {
            let filename = Some(file.name.as_deref().unwrap_or("file.pdf"));
            Content::InputFile { filename, file_data: Some(url), file_url: None }
        }
        Some(url) => Content::InputFile { filename: None, file_data: None, file_url: Some(url) },
        None => Content::InputText { text: Cow::Owned(not_sent("file", file)) },
    }
}

/// The parts of an answer in their order. The API refuses reasoning without the item that followed it, and an item by its id
/// without the reasoning before it.
fn assistant<'a>(message: &'a Message, ids: &mut CallIds<'a>, items: &mut Vec<InputItem<'a>>) {
    let mut thoughts: Vec<&Value> = Vec::new();
    let mut has_thoughts = false;
    for part in &message.parts {
        match part {
            Part::Reasoning(reasoning) => thoughts.extend(own_reasoning(reasoning)),
            Part::Text(text) => {
                has_thoughts |= !thoughts.is_empty();
                items.extend(thoughts.drain(..).map(InputItem::Theirs));
                let said = Content::OutputText { text: &text.text };
                match items.last_mut() {
                    Some(InputItem::Own(OwnItem::Message { role: "assistant", content })) => content.push(said),
                    Some(_) | None => items.push(InputItem::Own(OwnItem::Message { role: "assistant", content: vec![said] })),
                }
            }
            Part::ToolCall(call) => {
                has_thoughts |= !thoughts.is_empty();
                items.extend(thoughts.drain(..).map(InputItem::Theirs));
                items.push(InputItem::Own(OwnItem::FunctionCall {
                    id: own_id(call).filter(|_| has_thoughts),
                    call_id: ids.mint(&call.call_id, call.provider_call_id.as_deref()),
                    name: &call.name,
                    arguments: arguments_text(&call.arguments),
                }));
            }
            Part::ToolResult(_) | Part::Image(_) | Part::File(_) => {}
        }
    }
}

/// The item of reasoning as it came, if the API can take it back: it keeps none itself, so the content must be in it.
fn own_reasoning(reasoning: &ReasoningPart) -> Option<&Value> {
    let item = reasoning.raw.as_ref()?;
    let is_there = |name: &str| match item.get(name) {
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Array(parts)) => !parts.is_empty(),
        Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_)) | None => false,
    };
    let is_item = item.get("type").and_then(Value::as_str) == Some("reasoning");
    Some(item).filter(|_| is_item && (is_there("encrypted_content") || is_there("content")))
}

fn own_id(call: &ToolCallPart) -> Option<&str> {
    call.raw.as_ref()?.get("id")?.as_str()
}

fn output(result: &ToolResultPart) -> Output<'_> {
    let texts: Vec<Cow<'_, str>> = result.content.iter().filter_map(|content| content.as_sent().into_text()).collect();
    if texts.len() == result.content.len() {
        let text = texts.join("\n");
        return Output::Text(if text.trim().is_empty() { "(no output)".to_owned() } else { text });
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
