//! Writes a request in the words of Messages.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};

use super::content::{self, Block, CacheControl, Kind, WireMessage, signed};
use super::models::{Thinking, Traits};
use crate::domain::conversation::message::{Message, Part, Role};
use crate::domain::model::{ModelError, ModelOptions, ModelRequest, ReasoningEffort, ToolChoice};
use crate::domain::tool::ToolDefinition;
use crate::provider::http::json_body::written;
use crate::provider::request::schema::{self, schema_profiles};

/// The smallest budget that a model takes.
const LEAST_BUDGET: u32 = 1_024;
/// The tokens to think with for each effort from `none` to `max`.
const BUDGETS: [u32; 7] = [0, LEAST_BUDGET, 4_096, 8_192, 16_384, 16_384, 16_384];
const WORDS: [&str; 7] = ["low", "low", "low", "medium", "high", "xhigh", "max"];

#[serde_with::skip_serializing_none]
#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    max_tokens: u32,
    system: Option<System<'a>>,
    messages: Vec<WireMessage<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<WireTool<'a>>,
    tool_choice: Option<Value>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    stop_sequences: &'a [String],
    thinking: Option<WireThinking>,
    output_config: Option<OutputConfig>,
    stream: bool,
}

#[derive(Serialize)]
#[serde(untagged)]
enum System<'a> {
    Text(&'a str),
    Blocks([Block<'a>; 1]),
}

#[serde_with::skip_serializing_none]
#[derive(Serialize)]
struct WireTool<'a> {
    name: &'a str,
    description: &'a str,
    input_schema: Cow<'a, Value>,
    cache_control: Option<CacheControl>,
}

#[serde_with::skip_serializing_none]
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum WireThinking {
    Enabled { budget_tokens: u32 },
    Adaptive { display: &'static str, block_binding: Option<Value> },
    BetweenTools,
    Disabled,
}

#[serde_with::skip_serializing_none]
#[derive(Serialize)]
struct OutputConfig {
    effort: Option<&'static str>,
    format: Option<Value>,
}

pub(super) fn body(request: &ModelRequest, streaming: bool) -> Result<Vec<u8>, ModelError> {
    let options = &request.options;
    let traits = Traits::of(&request.model);
    let forced = matches!(options.tool_choice, Some(ToolChoice::Required | ToolChoice::Tool(_)));
    let plan = Plan::of(options, traits, forced, &request.messages);
    let samples = traits.sampling && !plan.thinks();
    let output = options.output_schema.as_ref().filter(|_| traits.output_schema);
    let projected = |schema| schema::projected(schema, &schema_profiles().anthropic_output);
    let format = output.map(|output| json!({ "type": "json_schema", "schema": projected(&output.schema) }));
    let mut messages = content::messages(&request.messages);
    // A request with tools is most likely the first of many that begin alike.
    let has_tools = !request.tools.is_empty();
    if let Some(last) = messages.last_mut().filter(|_| has_tools).and_then(|message| message.content.last_mut()) {
        last.cache_control = Some(CacheControl::Ephemeral);
    }
    let tools = if has_tools { offered(&request.tools, request.system.is_empty()) } else { former(&request.messages) };
    written(&Body {
        model: &request.model,
        max_tokens: plan.max_tokens,
        system: system(&request.system, has_tools),
        messages,
        tool_choice: match (has_tools, tools.is_empty()) {
            (true, _) => choice(options.tool_choice.as_ref(), plan.thinks()),
            (false, false) => Some(json!({ "type": "none" })),
            (false, true) => None,
        },
        tools,
        temperature: options.temperature.filter(|_| samples).map(|temperature| temperature.min(1.0)),
        // Newer models refuse the two together.
        top_p: options.top_p.filter(|_| samples && options.temperature.is_none()),
        stop_sequences: &options.stop,
        output_config: (plan.effort.is_some() || format.is_some()).then_some(OutputConfig { effort: plan.effort, format }),
        thinking: plan.thinking,
        stream: streaming,
    })
}

fn system(text: &str, caches: bool) -> Option<System<'_>> {
    match (text.is_empty(), caches) {
        (true, _) => None,
        (false, false) => Some(System::Text(text)),
        (false, true) => {
            let kind = Kind::Text { text: text.into() };
            Some(System::Blocks([Block { kind, cache_control: Some(CacheControl::Ephemeral) }]))
        }
    }
}

fn offered(tools: &[Arc<ToolDefinition>], caches: bool) -> Vec<WireTool<'_>> {
    let mut wire: Vec<WireTool<'_>> = tools
        .iter()
        .map(|tool| WireTool {
            name: &tool.name,
            description: &tool.description,
            input_schema: schema::plain_object(&tool.parameters),
            cache_control: None,
        })
        .collect();
    if let Some(last) = wire.last_mut().filter(|_| caches) {
        last.cache_control = Some(CacheControl::Ephemeral);
    }
    wire
}

/// Names the tools of a history whose request offers none: the provider refuses calls of tools that have no definition.
fn former(history: &[Message]) -> Vec<WireTool<'_>> {
    let names: BTreeSet<&str> = history.iter().flat_map(Message::tool_calls).map(|call| call.name.as_str()).collect();
    let former = |name| WireTool {
        name,
        description: "No longer on offer.",
        input_schema: Cow::Owned(json!({ "type": "object" })),
        cache_control: None,
    };
    names.into_iter().map(former).collect()
}

fn choice(choice: Option<&ToolChoice>, thinks: bool) -> Option<Value> {
    Some(match choice? {
        // A thinking model cannot be forced. Only models that cannot be told not to think come here with a forced call.
        ToolChoice::Required | ToolChoice::Tool(_) if thinks => json!({ "type": "auto" }),
        ToolChoice::Auto => json!({ "type": "auto" }),
        ToolChoice::None => json!({ "type": "none" }),
        ToolChoice::Required => json!({ "type": "any" }),
        ToolChoice::Tool(name) => json!({ "type": "tool", "name": name }),
    })
}

struct Plan {
    max_tokens: u32,
    thinking: Option<WireThinking>,
    effort: Option<&'static str>,
}

impl Plan {
    fn of(options: &ModelOptions, traits: Traits, forced: bool, history: &[Message]) -> Self {
        let silent = Self { max_tokens: options.max_output_tokens.unwrap_or(traits.max_tokens), thinking: None, effort: None };
        let wanted = options.reasoning_effort;
        let is_unwanted = wanted == Some(ReasoningEffort::None);
        let adaptive = || {
            let block_binding = binds_thoughts(traits, history).then(|| json!({ "prefix_mismatch_behavior": "drop_block" }));
            // New models hide their reasoning unless a request asks for it.
            let thinking = Some(WireThinking::Adaptive { display: "summarized", block_binding });
            Self { thinking, effort: wanted.map(|effort| word(effort, traits)), ..silent }
        };
        match (traits.thinking, wanted) {
            (Thinking::No, _) | (Thinking::Budget | Thinking::Adaptive, None) => silent,
            (Thinking::Budget, _) if forced || !may_begin_to_think(history) => silent,
            (Thinking::Budget, Some(effort)) => match budget(effort, options.max_output_tokens) {
                Some(tokens) => Self {
                    max_tokens: options.max_output_tokens.unwrap_or(traits.max_tokens.saturating_add(tokens)),
                    thinking: Some(WireThinking::Enabled { budget_tokens: tokens }),
                    ..silent
                },
                None => silent,
            },
            (Thinking::Adaptive | Thinking::OnByDefault, _) if forced || is_unwanted => {
                Self { thinking: Some(WireThinking::Disabled), ..silent }
            }
            (Thinking::BetweenTools, _) if is_unwanted => {
                Self { thinking: Some(WireThinking::BetweenTools), effort: Some("low"), ..silent }
            }
            (Thinking::Adaptive | Thinking::OnByDefault | Thinking::BetweenTools | Thinking::Always, _) => adaptive(),
        }
    }

    fn thinks(&self) -> bool {
        match self.thinking {
            Some(WireThinking::Enabled { .. } | WireThinking::Adaptive { .. } | WireThinking::BetweenTools) => true,
            Some(WireThinking::Disabled) | None => false,
        }
    }
}

/// Returns the word for an effort. Models that take samples were the first with efforts, and have none between `high` and `max`.
fn word(effort: ReasoningEffort, traits: Traits) -> &'static str {
    if effort == ReasoningEffort::XHigh && traits.sampling { "high" } else { WORDS[effort as usize] }
}

fn is_signed(part: &Part) -> bool {
    matches!(part, Part::Reasoning(reasoning) if signed(reasoning).is_some())
}

/// Returns whether the model is asked to drop reasoning that no longer fits the history before it. That history may change: its
/// summary grows, results shrink, and context providers give new texts in each turn.
fn binds_thoughts(traits: Traits, history: &[Message]) -> bool {
    traits.binds_thoughts && history.iter().flat_map(|message| &message.parts).any(is_signed)
}

pub(super) fn beta(request: &ModelRequest) -> Option<&'static str> {
    // The feature alone changes nothing, so it is named even if the body has no use for it.
    binds_thoughts(Traits::of(&request.model), &request.messages).then_some("thinking-binding-controls-2026-08-01")
}

/// Returns the tokens to think with. They are a part of the output limit: at most half of the one that the caller has set.
fn budget(effort: ReasoningEffort, limit: Option<u32>) -> Option<u32> {
    let wanted = BUDGETS[effort as usize];
    let tokens = limit.map_or(wanted, |limit| wanted.min(limit / 2));
    (tokens >= LEAST_BUDGET).then_some(tokens)
}

/// Returns whether a turn may think. The provider wants the reasoning that led to the newest calls. A turn without it goes on without
/// it: another model began the turn, a tool was forced, or there was no room.
fn may_begin_to_think(history: &[Message]) -> bool {
    let Some(newest) = history.iter().rfind(|message| message.role == Role::Assistant) else { return true };
    newest.parts.iter().any(is_signed) || !newest.parts.iter().any(|part| matches!(part, Part::ToolCall(_)))
}
