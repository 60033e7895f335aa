//! The body of a request for a response.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::domain::agent::AgentProfile;
use crate::domain::ids::{CallId, ConversationId, InputId};
use crate::domain::model::{ModelOptions, OutputSchema, ReasoningEffort};
use crate::domain::run::OnBusy;
use crate::domain::tool::client_tool::ClientTool;
use crate::domain::trace::TraceId;
use crate::http::clients::pauses::RunPauses;
use crate::http::openai::content::{WireContent, add_result, merged};
use crate::http::openai::responses::items;
use crate::http::openai::target::Target;
use crate::http::openai::tool_choice::ToolChoiceField;
use crate::service::{Content, Error, Result, RunSetup, SentCall, SentConversation, SentMessage, SentResult, StartRun};

const MAX_METADATA_KEYS: usize = 16;
const MAX_METADATA_KEY_CHARS: usize = 64;
const MAX_METADATA_VALUE_CHARS: usize = 512;

/// Limit of the texts that earlier system items add to the instructions of a response, in characters. The oldest ones are left out.
const MAX_EARLIER_SYSTEM_CHARS: usize = 32_000;

/// Limit of the items that one request adds to a conversation, as at OpenAI.
const MAX_ADDED_ITEMS: usize = 20;

/// The fields that have an effect. Others are ignored.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(super) struct CreateRequest {
    model: Option<String>,
    input: Option<WireInput>,
    instructions: Option<String>,
    pub previous_response_id: Option<String>,
    pub conversation: Option<WireConversation>,
    pub store: Option<bool>,
    pub stream: Option<bool>,
    pub background: Option<bool>,
    metadata: Option<Map<String, Value>>,
    max_output_tokens: Option<u32>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    max_tool_calls: Option<u32>,
    reasoning: Option<WireReasoning>,
    text: Option<WireText>,
    truncation: Option<Truncation>,
    user: Option<String>,
    /// Has no effect. The response repeats it and `prompt_cache_key`.
    safety_identifier: Option<String>,
    prompt_cache_key: Option<String>,
}

/// The body of a request for a conversation.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(in crate::http) struct ConversationRequest {
    items: Option<Vec<WireItem>>,
    metadata: Option<Map<String, Value>>,
}

impl ConversationRequest {
    pub(super) fn references(&self) -> Vec<Reference<'_>> {
        references("items", self.items.as_deref().unwrap_or_default())
    }

    pub(super) fn into_conversation(self, known: &KnownItems) -> Result<SentConversation> {
        let metadata = self.metadata.unwrap_or_default();
        check_metadata(&metadata)?;
        let mut input = Input::default();
        for (at, item) in self.items.iter().flatten().enumerate() {
            item.read(&format!("/items/{at}"), known, &mut input)?;
        }
        if !input.approvals.is_empty() {
            return Err(Error::field("/items", "cannot answer an approval request: send the answer as input of a response"));
        }
        let system_prompt =
            Some(texts_of(&input.system_items).collect::<Vec<_>>().join("\n\n")).filter(|text| !text.trim().is_empty());
        Ok(SentConversation { messages: input.messages, system_prompt, metadata, field: "items" })
    }

    pub(super) fn into_added(self, known: &KnownItems) -> Result<SentConversation> {
        match self.items.as_ref().map_or(0, Vec::len) {
            1..=MAX_ADDED_ITEMS => self.into_conversation(known),
            count => Err(Error::field("/items", format!("has {count} items; 1 to {MAX_ADDED_ITEMS} are accepted"))),
        }
    }
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "must be the id of a conversation, or an object with it")]
pub(super) enum WireConversation {
    Id(String),
    Object { id: String },
}

impl WireConversation {
    pub(super) fn id(&self) -> &str {
        let (Self::Id(id) | Self::Object { id }) = self;
        id
    }
}

/// Has no effect. The response repeats it.
#[derive(Debug, Clone, Copy, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Truncation {
    Auto,
    Disabled,
}

#[derive(Debug, Deserialize, ToSchema)]
struct WireReasoning {
    effort: Option<ReasoningEffort>,
    summary: Option<String>,
}

#[derive(Debug, Deserialize, ToSchema)]
struct WireText {
    format: Option<Value>,
    /// Has no effect. The response repeats it.
    verbosity: Option<String>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "must be a text, or a list of items")]
enum WireInput {
    Text(String),
    Items(Vec<WireItem>),
}

/// The items to which a request refers, by their ids, without those that have no effect.
pub(super) type KnownItems = BTreeMap<String, WireItem>;

/// A reference of a request to a stored item.
#[derive(Debug)]
pub(super) struct Reference<'a> {
    pub pointer: String,
    pub id: &'a str,
}

/// Returns the references among the items of a request. `field` is the JSON name of the field with the items.
fn references<'a>(field: &str, items: &'a [WireItem]) -> Vec<Reference<'a>> {
    let named = items.iter().enumerate().filter(|(_, item)| item.kind() == ITEM_REFERENCE);
    named.filter_map(|(at, item)| Some(Reference { pointer: format!("/{field}/{at}/id"), id: item.id.as_deref()? })).collect()
}

#[derive(Debug, Default, Deserialize, ToSchema)]
pub(super) struct WireItem {
    #[serde(rename = "type")]
    kind: Option<String>,
    id: Option<String>,
    role: Option<String>,
    content: Option<WireContent>,
    call_id: Option<String>,
    name: Option<String>,
    arguments: Option<String>,
    output: Option<WireContent>,
    error: Option<Value>,
    server_label: Option<String>,
    approval_request_id: Option<String>,
    approve: Option<bool>,
    reason: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ApprovalResponse {
    pub id: InputId,
    pub approve: bool,
    pub reason: Option<String>,
}

/// An item of the role `system` or `developer`. It applies to the later responses of its conversation, too.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct SystemItem {
    pub role: String,
    pub text: String,
}

fn texts_of(items: &[SystemItem]) -> impl Iterator<Item = &str> {
    items.iter().map(|item| item.text.as_str()).filter(|text| !text.is_empty())
}

/// The system items of a response, as the agent profile of its run stores them for later responses.
#[derive(Debug, Default, Deserialize, Serialize)]
struct SystemTextRecord {
    #[serde(default)]
    system_items: Vec<SystemItem>,
    /// The texts of the system items of earlier responses.
    #[serde(default)]
    earlier_system_texts: Vec<String>,
}

impl SystemTextRecord {
    fn of(stored: &Value) -> Self {
        Self::deserialize(stored).unwrap_or_default()
    }
}

/// Returns the system items of a request from its stored fields.
pub(super) fn system_items(stored: &Value) -> Vec<SystemItem> {
    SystemTextRecord::of(stored).system_items
}

#[derive(Debug, Default, PartialEq)]
pub(super) struct Input {
    system_items: Vec<SystemItem>,
    /// The texts of the system items of earlier responses.
    earlier_system_texts: Vec<String>,
    pub messages: Vec<SentMessage>,
    pub approvals: Vec<ApprovalResponse>,
    /// The ids of the assistant messages, each read as the id of a question.
    pub questions: Vec<InputId>,
    /// The references so far. Clients may refer to a call twice: for the call, and for its result.
    referenced: BTreeSet<String>,
    /// The number of messages up to the last item of a model.
    messages_until_model: usize,
    /// The number of messages up to the last item with an id of this server's model. If that item is of this conversation, the server
    /// has these messages.
    stored_messages: usize,
}

impl Input {
    /// Returns the content of the user's messages after the last item of a model, and all results: what a paused run waits for.
    pub(super) fn answers(&self) -> (Option<Content>, Vec<SentResult>) {
        (contents(self.messages.iter().skip(self.messages_until_model)), self.results().cloned().collect())
    }

    /// Returns the content of the user's messages at the end, and the messages before them that the server does not have.
    pub(super) fn new_messages(&self) -> (Option<Content>, Vec<SentMessage>) {
        let mut earlier = self.messages.get(self.stored_messages..).unwrap_or_default().to_vec();
        let is_user = |message: &SentMessage| matches!(message, SentMessage::User(_));
        let begins = earlier.iter().rposition(|message| !is_user(message)).map_or(0, |at| at + 1);
        let last = earlier.split_off(begins);
        (contents(last.iter()), earlier)
    }

    /// Adds the system items of the responses before this one. `stored` has the stored fields of the requests of the previous run,
    /// oldest first.
    pub(super) fn add_earlier_system_items<'a>(&mut self, stored: impl Iterator<Item = &'a Value>) {
        let mut earlier_system_texts: Vec<String> = Vec::new();
        for SystemTextRecord { system_items, earlier_system_texts: before } in stored.map(SystemTextRecord::of) {
            let texts = before.into_iter().chain(texts_of(&system_items).map(str::to_owned));
            for text in texts {
                if !earlier_system_texts.contains(&text) {
                    earlier_system_texts.push(text);
                }
            }
        }
        let mut left = MAX_EARLIER_SYSTEM_CHARS;
        let is_kept = |text: &&String| {
            let rest = left.checked_sub(text.chars().count());
            left = rest.unwrap_or(0);
            rest.is_some()
        };
        let mut kept: Vec<String> = earlier_system_texts.iter().rev().take_while(is_kept).cloned().collect();
        kept.reverse();
        self.earlier_system_texts = kept;
    }

    /// Returns the texts of all system items. A client may send an item again that applies already.
    fn system_texts(&self) -> impl Iterator<Item = &str> {
        let is_new = |text: &&str| self.earlier_system_texts.iter().all(|known| known != text);
        self.earlier_system_texts.iter().map(String::as_str).chain(texts_of(&self.system_items).filter(is_new))
    }

    /// Removes the results of calls for which `is_open` returns false.
    pub(super) fn keep_results(&mut self, is_open: impl Fn(&str) -> bool) {
        for message in &mut self.messages {
            if let SentMessage::Results(results) = message {
                results.retain(|result| is_open(&result.call_id));
            }
        }
    }

    pub(super) fn results(&self) -> impl Iterator<Item = &SentResult> {
        self.messages.iter().flat_map(|message| match message {
            SentMessage::Results(results) => results.as_slice(),
            SentMessage::User(_) | SentMessage::Assistant { .. } => &[],
        })
    }

    /// Turns the system items into a message of the user if there is no other input: some clients send a question so.
    fn turn_system_items_into_message(&mut self) {
        let is_blank = |message: &SentMessage| matches!(message, SentMessage::User(content) if content.is_blank());
        if self.approvals.is_empty() && self.messages.iter().all(is_blank) && !self.system_items.is_empty() {
            let text = texts_of(&self.system_items).collect::<Vec<_>>().join("\n\n");
            self.messages = vec![SentMessage::User(Content::Text(text))];
            self.system_items.clear();
        }
    }

    /// Returns whether the input has results of calls, or answers to approval requests.
    pub(super) fn has_answers(&self) -> bool {
        !self.approvals.is_empty() || self.results().next().is_some()
    }

    /// Returns whether the input has answers, and the run has got answers to all of their calls and approval requests already.
    pub(super) fn repeats(&self, pauses: &RunPauses) -> bool {
        let approvals = self.approvals.iter().map(|answer| answer.id.as_str());
        let answers: Vec<&str> = self.results().map(|result| result.call_id.as_str()).chain(approvals).collect();
        !answers.is_empty() && pauses.has_answers(&answers)
    }
}

/// Fails if the metadata is larger than that of OpenAI's own service may be.
pub(super) fn check_metadata(metadata: &Map<String, Value>) -> Result<()> {
    let is_valid = |(key, value): (&String, &Value)| {
        key.chars().count() <= MAX_METADATA_KEY_CHARS
            && value.as_str().is_some_and(|text| text.chars().count() <= MAX_METADATA_VALUE_CHARS)
    };
    if metadata.len() > MAX_METADATA_KEYS || !metadata.iter().all(is_valid) {
        let reason = format!(
            "must have at most {MAX_METADATA_KEYS} keys of at most {MAX_METADATA_KEY_CHARS} characters, whose values are texts of at most \
             {MAX_METADATA_VALUE_CHARS} characters"
        );
        return Err(Error::field("/metadata", reason));
    }
    Ok(())
}

impl CreateRequest {
    /// Returns the `model` of the request; empty if it has none.
    pub(super) fn model(&self) -> &str {
        self.model.as_deref().unwrap_or_default()
    }

    pub(super) fn references(&self) -> Vec<Reference<'_>> {
        match &self.input {
            Some(WireInput::Items(items)) => references("input", items),
            Some(WireInput::Text(_)) | None => Vec::new(),
        }
    }

    /// Returns the input. `known` has the items to which the input refers.
    pub(super) fn input(&self, known: &KnownItems) -> Result<Input> {
        let mut input = Input::default();
        match &self.input {
            None => return Err(Error::field("/input", "missing field `input`: send a text or a list of items")),
            Some(WireInput::Text(text)) => input.messages.push(SentMessage::User(Content::Text(text.clone()))),
            Some(WireInput::Items(items)) => {
                for (at, item) in items.iter().enumerate() {
                    item.read(&format!("/input/{at}"), known, &mut input)?;
                }
            }
        }
        input.turn_system_items_into_message();
        Ok(input)
    }

    /// Returns the request's fields as its response shows them.
    pub(super) fn echoed_fields(&self) -> Value {
        let conversation = self.conversation.as_ref().map(|conversation| json!({ "id": conversation.id() }));
        let reasoning = self.reasoning.as_ref().map(|wire| json!({ "effort": wire.effort, "summary": wire.summary }));
        let text = self.text.as_ref().map(|text| {
            let format = text.format.clone().unwrap_or_else(|| json!({ "type": "text" }));
            let verbosity = text.verbosity.as_ref().map(|verbosity| ("verbosity".to_owned(), verbosity.as_str().into()));
            Value::Object([("format".to_owned(), format)].into_iter().chain(verbosity).collect())
        });
        json!({
            "background": self.background,
            "conversation": conversation,
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": self.max_tool_calls,
            "metadata": self.metadata,
            "model": self.model,
            "parallel_tool_calls": self.parallel_tool_calls,
            "previous_response_id": self.previous_response_id,
            "prompt_cache_key": self.prompt_cache_key,
            "reasoning": reasoning,
            "safety_identifier": self.safety_identifier,
            "store": self.store,
            "temperature": self.temperature,
            "text": text,
            "tool_choice": self.tool_choice,
            "tools": self.tools.as_ref().map(|tools| tools.iter().map(echoed_tool).collect::<Vec<_>>()),
            "top_p": self.top_p,
            "truncation": self.truncation,
            "user": self.user,
        })
    }

    /// Returns the fields in which this request differs from the one that began its run; `None` for none.
    pub(super) fn continued_fields(&self, input: &Input, profile: &AgentProfile) -> Option<Value> {
        let mut fields = self.echoed_fields();
        // The run keeps its limit.
        for name in ["previous_response_id", "max_tool_calls"] {
            fields[name] = Value::Null;
        }
        if !input.system_items.is_empty() {
            fields["system_items"] = json!(input.system_items);
        }
        let first = |name: &str| profile.protocol.as_ref().and_then(|protocol| protocol.get(name));
        let own = fields.as_object().into_iter().flatten().filter(|(name, value)| !value.is_null() && first(name) != Some(value));
        let own: Map<String, Value> = own.map(|(name, value)| (name.clone(), value.clone())).collect();
        (!own.is_empty()).then_some(Value::Object(own))
    }

    pub(super) fn client_tools(&self) -> Result<Vec<ClientTool>> {
        let tools = self.tools.iter().flatten().enumerate();
        tools.map(|(at, tool)| client_tool(tool).ok_or_else(|| Error::field(&format!("/tools/{at}"), UNKNOWN_TOOL))).collect()
    }

    /// Fails if no run could begin with these fields.
    pub(super) fn check(&self) -> Result<()> {
        self.tools_and_options(&Target::of(self.model())).map(drop)
    }

    fn tools_and_options(&self, target: &Target) -> Result<(Vec<ClientTool>, ModelOptions)> {
        self.metadata.as_ref().map_or(Ok(()), check_metadata)?;
        let chosen = ToolChoiceField::read(self.tool_choice.as_ref(), target)?;
        let tools = chosen.select(self.client_tools()?)?;
        let format = self.text.as_ref().and_then(|text| text.format.as_ref());
        let options = ModelOptions {
            temperature: self.temperature,
            top_p: self.top_p,
            max_output_tokens: self.max_output_tokens,
            seed: None,
            stop: Vec::new(),
            tool_choice: chosen.choice,
            output_schema: format.map(output_schema).transpose()?.flatten(),
            reasoning_effort: self.reasoning.as_ref().and_then(|reasoning| reasoning.effort),
        };
        Ok((tools, options))
    }

    /// Returns the run of the request, with `content` as its message, in `conversation` if there is one.
    pub(super) fn run(
        &self,
        input: &Input,
        conversation: Option<ConversationId>,
        content: Option<Content>,
        trace: TraceId,
    ) -> Result<StartRun> {
        let target = Target::of(self.model());
        let (tools, options) = self.tools_and_options(&target)?;
        let own = self.instructions.as_deref().filter(|text| !text.is_empty());
        let instructions: Vec<&str> = own.into_iter().chain(input.system_texts()).collect();
        let mut protocol = self.echoed_fields();
        protocol["system_items"] = json!(input.system_items);
        protocol["earlier_system_texts"] = json!(input.earlier_system_texts);
        let setup = RunSetup {
            plain: target.is_plain(),
            instructions: instructions.join("\n\n"),
            one_call: self.parallel_tool_calls == Some(false),
            max_server_calls: self.max_tool_calls,
            protocol: Some(protocol),
            ..RunSetup::default()
        };
        Ok(StartRun {
            conversation_id: conversation,
            agent: target.agent,
            model: target.model,
            options: Some(options),
            tools,
            on_busy: OnBusy::Reject,
            setup,
            ..StartRun::new(content.unwrap_or(Content::Parts(Vec::new())), "input", trace)
        })
    }
}

/// Returns a tool as a response shows it again: with all fields, of which a request may leave out some.
fn echoed_tool(tool: &Value) -> Value {
    let mut shown = json!({ "type": "function", "name": null, "description": null, "parameters": null, "strict": null });
    if let (Some(shown), Some(sent)) = (shown.as_object_mut(), tool.as_object()) {
        shown.extend(sent.clone());
    }
    shown
}

const UNKNOWN_TOOL: &str =
    "must be a tool of the type function with a name; tools of MCP servers are configured on this server, by its agents";

fn client_tool(tool: &Value) -> Option<ClientTool> {
    let name = tool.get("name").and_then(Value::as_str).filter(|_| tool["type"] == "function")?;
    let description = tool.get("description").and_then(Value::as_str).unwrap_or_default();
    let parameters = tool.get("parameters").filter(|parameters| !parameters.is_null()).cloned();
    Some(ClientTool { name: name.to_owned(), description: description.to_owned(), parameters })
}

fn output_schema(format: &Value) -> Result<Option<OutputSchema>> {
    match (format["type"].as_str().unwrap_or_default(), format.get("schema")) {
        ("text", _) => Ok(None),
        ("json_object", _) => {
            Ok(Some(OutputSchema { name: "answer".to_owned(), schema: json!({ "type": "object" }), strict: false }))
        }
        ("json_schema", Some(schema)) => {
            let name = format["name"].as_str().unwrap_or("answer").to_owned();
            Ok(Some(OutputSchema { name, schema: schema.clone(), strict: format["strict"] == true }))
        }
        (_, _) => Err(Error::field("/text/format", "must be text, json_object, or json_schema with a schema")),
    }
}

const ITEM_REFERENCE: &str = "item_reference";

impl WireItem {
    /// Returns the type. A message and a reference may leave it out.
    fn kind(&self) -> &str {
        let is_reference = self.id.is_some() && self.role.is_none() && self.content.is_none();
        let without_kind = if is_reference { ITEM_REFERENCE } else { "message" };
        self.kind.as_deref().unwrap_or(without_kind)
    }

    fn read(&self, pointer: &str, known: &KnownItems, input: &mut Input) -> Result<()> {
        let need = |field: &str, value: &Option<String>| {
            value.clone().ok_or_else(|| Error::field(&format!("{pointer}/{field}"), "is required for this type of item"))
        };
        let empty = || WireContent::Text(String::new());
        let kind = self.kind();
        match kind {
            "message" => {
                let content = self.content.clone().unwrap_or_else(empty);
                match self.role.as_deref() {
                    Some("user") => input.messages.push(SentMessage::User(content.content(&format!("{pointer}/content"))?)),
                    Some("assistant") => {
                        let digits = self.id.as_deref().and_then(|id| id.strip_prefix("msg_"));
                        input.questions.extend(digits.and_then(|digits| InputId::parse(&format!("input_{digits}")).ok()));
                        let (reasoning, calls) = (String::new(), Vec::new());
                        input.messages.push(SentMessage::Assistant { text: content.text(), reasoning, calls });
                    }
                    Some(role @ ("system" | "developer")) => {
                        input.system_items.push(SystemItem { role: role.to_owned(), text: content.text() });
                    }
                    Some(_) | None => {
                        return Err(Error::field(&format!("{pointer}/role"), "must be user, assistant, system or developer"));
                    }
                }
            }
            "function_call" => {
                let arguments = self.arguments.clone().unwrap_or_default();
                let call = SentCall { id: need("call_id", &self.call_id)?, name: need("name", &self.name)?, arguments };
                add_call(&mut input.messages, call);
            }
            "function_call_output" => {
                let content = self.output.clone().unwrap_or_else(empty).content(&format!("{pointer}/output"))?;
                add_result(&mut input.messages, SentResult { call_id: need("call_id", &self.call_id)?, content, is_error: false });
            }
            "mcp_call" => {
                let label = self.server_label.as_deref().unwrap_or_default();
                let (id, tool) = (need("id", &self.id)?, need("name", &self.name)?);
                let name = items::joined_name(label, tool);
                let arguments = self.arguments.clone().unwrap_or_default();
                add_call(&mut input.messages, SentCall { id: id.clone(), name, arguments });
                let output = self.output.as_ref().map(WireContent::text);
                let is_error = output.is_none();
                let text = output.or_else(|| self.error.as_ref().map(error_text));
                let content = Content::Text(text.unwrap_or_else(|| "the call has no result".to_owned()));
                add_result(&mut input.messages, SentResult { call_id: id, content, is_error });
            }
            "mcp_approval_response" => {
                let id = need("approval_request_id", &self.approval_request_id)?;
                let digits = id.strip_prefix("mcpr_").unwrap_or_default();
                let id = InputId::parse(&format!("input_{digits}"))
                    .map_err(|_| Error::field(&format!("{pointer}/approval_request_id"), "is not the id of an approval request"))?;
                input.approvals.push(ApprovalResponse { id, approve: self.approve == Some(true), reason: self.reason.clone() });
            }
            // These items only describe earlier answers of the model, and are ignored.
            "reasoning" | "mcp_approval_request" | "mcp_list_tools" => {}
            ITEM_REFERENCE => {
                let id = need("id", &self.id)?;
                if !input.referenced.insert(id.clone()) {
                    return Ok(());
                }
                if let Some(item) = known.get(&id) {
                    return item.read(pointer, known, input);
                }
                // The item only describes an answer, or its step was reset.
            }
            other => {
                let shown: String = other.chars().take(50).collect();
                return Err(Error::field(&format!("{pointer}/type"), format!("{shown:?} is not supported")));
            }
        }
        let is_of_client = self.role.as_deref().is_some_and(|role| role != "assistant")
            || ["function_call_output", "mcp_approval_response"].contains(&kind);
        if !is_of_client {
            input.messages_until_model = input.messages.len();
        }
        if self.is_of_this_server() {
            input.stored_messages = input.messages.len();
        }
        Ok(())
    }

    /// Returns whether the model of this server has made the item, so that the server has it and all items before it. Only the form
    /// of the id counts: an item of another conversation is taken for one of this conversation.
    fn is_of_this_server(&self) -> bool {
        let has_own_id = |id: &Option<String>, prefix: &str| {
            let digits = id.as_deref().and_then(|id| id.strip_prefix(prefix)?.split('_').next());
            digits.is_some_and(|digits| CallId::parse(&format!("call_{digits}")).is_ok())
        };
        match self.kind() {
            "message" => self.role.as_deref() == Some("assistant") && has_own_id(&self.id, "msg_"),
            "function_call" => has_own_id(&self.call_id, "call_") || has_own_id(&self.id, "fc_"),
            "mcp_call" => has_own_id(&self.id, "mcp_"),
            "mcp_approval_request" => has_own_id(&self.id, "mcpr_"),
            _ => false,
        }
    }
}

/// Returns the content of the user's messages among these; `None` for none.
fn contents<'a>(messages: impl Iterator<Item = &'a SentMessage>) -> Option<Content> {
    merged(messages.filter_map(|message| match message {
        SentMessage::User(content) => Some(content),
        SentMessage::Assistant { .. } | SentMessage::Results(_) => None,
    }))
}

/// Returns the text of the error of an MCP call: a text, or an object with content.
fn error_text(error: &Value) -> String {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let pieces = error["content"].as_array().into_iter().flatten().filter_map(|piece| text(&piece["text"]));
    text(error).or_else(|| text(&error["message"])).unwrap_or_else(|| pieces.collect::<Vec<_>>().join("\n"))
}

fn add_call(messages: &mut Vec<SentMessage>, call: SentCall) {
    match messages.last_mut() {
        Some(SentMessage::Assistant { calls, .. }) => calls.push(call),
        Some(SentMessage::User(_) | SentMessage::Results(_)) | None => {
            let (text, reasoning) = (String::new(), String::new());
            messages.push(SentMessage::Assistant { text, reasoning, calls: vec![call] });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::openai::content::text_of;
    use crate::support::ids::UuidIds;

    fn input(items: Value) -> Result<Input> {
        serde_json::from_value::<CreateRequest>(json!({ "input": items })).unwrap().input(&KnownItems::new())
    }

    #[test]
    fn input_items_become_messages_and_answers() {
        let read = input(json!([
            {"role": "developer", "content": "Be brief."},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Look."}]},
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
            {"type": "function_call", "call_id": "c2", "name": "look", "arguments": "{\"at\":1}"},
            {"type": "function_call_output", "call_id": "c1", "output": "a door"},
            {"type": "mcp_approval_response", "approval_request_id": "mcpr_01980000000070008000000000000001", "approve": true},
        ]))
        .unwrap();
        assert_eq!(read.system_texts().collect::<Vec<_>>(), ["Be brief."]);
        let [SentMessage::User(_), SentMessage::Assistant { calls, .. }, SentMessage::Results(results)] = read.messages.as_slice()
        else {
            panic!("three messages: {:?}", read.messages);
        };
        assert_eq!((calls.len(), results[0].call_id.as_str()), (2, "c1"));
        assert_eq!(read.approvals[0].id.as_str(), "input_01980000000070008000000000000001");
        assert!(read.approvals[0].approve);
        let (content, results) = read.answers();
        assert_eq!((content.is_some(), results.len()), (false, 1), "the user's message stands before items of the model");
    }

    #[test]
    fn system_items_are_asked_only_without_other_input() {
        let system = json!({"role": "system", "content": "Describe it."});
        let picture = json!({"role": "user", "content": [{"type": "input_image", "image_url": "https://example.org/a.png"}]});
        let is_asked = |items: Value| input(items).unwrap().system_items.is_empty();
        let blank = json!({"role": "user", "content": " "});
        assert!(is_asked(json!([system])) && is_asked(json!([system, blank])) && !is_asked(json!([system, picture])));
    }

    #[test]
    fn oldest_system_items_are_left_out_above_the_limit() {
        let item = |letter: &str| SystemItem { role: "system".to_owned(), text: letter.repeat(MAX_EARLIER_SYSTEM_CHARS / 2) };
        let stored = |items: &[SystemItem]| json!({ "system_items": items });
        let kept = |items: &[SystemItem]| {
            let mut input = Input::default();
            input.add_earlier_system_items([&stored(items)].into_iter());
            input.earlier_system_texts.iter().map(|text| text[..1].to_owned()).collect::<String>()
        };
        assert_eq!((kept(&[item("a"), item("b")]), kept(&[item("a"), item("b"), item("c")])), ("ab".to_owned(), "bc".to_owned()));
    }

    #[test]
    fn messages_after_the_last_item_of_this_server_are_new() {
        let user = |text: &str| json!({"role": "user", "content": text});
        let assistant = |id: Option<&str>| json!({"type": "message", "id": id, "role": "assistant", "content": "B"});
        let own = "msg_01980000000070008000000000000001_0";
        for (items, earlier, last) in [
            (json!([user("A"), assistant(None), user("C")]), 2, Some("C")),
            (json!([user("A"), assistant(Some("msg_of_another")), user("C")]), 2, Some("C")),
            (json!([user("A"), assistant(Some(own)), user("C")]), 0, Some("C")),
            (json!([user("A"), assistant(Some(own)), user("B"), assistant(None)]), 2, None),
        ] {
            let (content, before) = input(items.clone()).unwrap().new_messages();
            let content = content.map(|content| text_of(&content));
            assert_eq!((before.len(), content.as_deref()), (earlier, last), "{items}");
        }
    }

    #[test]
    fn system_items_apply_to_later_responses_once() {
        let sent = |texts: &[&str]| -> CreateRequest {
            let mut items: Vec<Value> = texts.iter().map(|text| json!({"role": "system", "content": text})).collect();
            items.push(json!({"role": "user", "content": "hi"}));
            serde_json::from_value(json!({ "input": items, "instructions": "Now." })).unwrap()
        };
        let mut profile = AgentProfile::default();
        for (texts, expected) in
            [(vec!["One."], "Now.\n\nOne."), (vec![], "Now.\n\nOne."), (vec!["One.", "Two."], "Now.\n\nOne.\n\nTwo.")]
        {
            let request = sent(&texts);
            let mut input = request.input(&KnownItems::new()).unwrap();
            input.add_earlier_system_items(profile.protocol.iter());
            let run = request.run(&input, None, None, TraceId::generate(&UuidIds)).unwrap();
            assert_eq!(run.setup.instructions, expected);
            profile.protocol = run.setup.protocol;
            assert_eq!(
                profile.protocol.as_ref().map(system_items).unwrap().len(),
                texts.len(),
                "a response lists the items of its own request"
            );
        }
    }

    #[test]
    fn mcp_call_keeps_its_name_and_its_error() {
        let call = |label: &str, error: Value| json!({"type": "mcp_call", "id": "m", "server_label": label, "name": "read", "error": error});
        let error = json!({"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": "lost"}]});
        for (label, error, name) in [("files", error, "files__read"), ("capstan", json!("lost"), "read")] {
            let read = input(json!([call(label, error)])).unwrap();
            let [SentMessage::Assistant { calls, .. }, SentMessage::Results(results)] = read.messages.as_slice() else {
                panic!("two messages: {:?}", read.messages);
            };
            assert_eq!((calls[0].name.as_str(), &results[0].content), (name, &Content::Text("lost".to_owned())));
            assert!(results[0].is_error);
        }
    }

    #[test]
    fn metadata_has_the_limits_of_openai() {
        let check = |metadata: Value| check_metadata(metadata.as_object().unwrap()).is_ok();
        let keys = |count: usize| (0..count).map(|at| (at.to_string(), json!("x"))).collect::<Map<_, _>>();
        assert!(check(json!(keys(MAX_METADATA_KEYS))) && !check(json!(keys(MAX_METADATA_KEYS + 1))));
        let long = |key: usize, value: usize| json!({ "k".repeat(key): "v".repeat(value) });
        assert!(check(long(MAX_METADATA_KEY_CHARS, MAX_METADATA_VALUE_CHARS)));
        assert!(!check(long(MAX_METADATA_KEY_CHARS + 1, 1)) && !check(long(1, MAX_METADATA_VALUE_CHARS + 1)));
        assert!(!check(json!({ "number": 1 })));
    }

    #[test]
    fn value_of_another_type_is_explained_without_names_of_types() {
        for (body, reason) in [
            (json!({"conversation": 1}), "must be the id of a conversation, or an object with it"),
            (json!({"input": 1}), "must be a text, or a list of items"),
            (json!({"input": [{"role": "user", "content": 1}]}), "must be a text, or a list of items"),
        ] {
            let error = serde_json::from_value::<CreateRequest>(body).unwrap_err().to_string();
            assert_eq!(error, reason);
        }
    }

    #[test]
    fn impossible_input_item_is_refused_by_field() {
        for (items, pointer) in [
            (json!([{"type": "computer_call"}]), "/input/0/type"),
            (json!([{"type": "item_reference"}]), "/input/0/id"),
            (json!([{"role": "robot", "content": "x"}]), "/input/0/role"),
            (json!([{"type": "function_call_output", "output": "x"}]), "/input/0/call_id"),
            (json!([{"type": "mcp_approval_response", "approval_request_id": "x"}]), "/input/0/approval_request_id"),
        ] {
            assert_eq!(input(items).unwrap_err().problem().errors[0].pointer, pointer);
        }
    }
}
