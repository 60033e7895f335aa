//! Writes a request in the words of Messages.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};

use super::content::{self, Block, CACHE, CacheControl, Kind, WireMessage, signed};
use super::models::{Thinking, Traits};
use crate::domain::message::{Message, Part, Role};
use crate::domain::model::{ModelOptions, ModelRequest, ReasoningEffort, ToolChoice};
use crate::domain::tool::ToolDefinition;
use crate::provider::schema::{self, Dress};

/// The least that a model can be told to think.
const LEAST_BUDGET: u32 = 1_024;

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    max_tokens: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    system: Option<System<'a>>,
    messages: Vec<WireMessage<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<WireTool<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_choice: Option<WireChoice<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p: Option<f64>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    stop_sequences: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking: Option<WireThinking>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_config: Option<OutputConfig>,
    stream: bool,
}

#[derive(Serialize)]
#[serde(untagged)]
enum System<'a> {
    Text(&'a str),
    Blocks([Block<'a>; 1]),
}

#[derive(Serialize)]
struct WireTool<'a> {
    name: &'a str,
    description: &'a str,
    input_schema: Cow<'a, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_control: Option<CacheControl>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum WireChoice<'a> {
    Auto,
    Any,
    None,
    Tool { name: &'a str },
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum WireThinking {
    Enabled {
        budget_tokens: u32,
    },
    /// New models keep their thoughts to themselves unless they are asked for them.
    Adaptive {
        display: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        block_binding: Option<BlockBinding>,
    },
    BetweenTools,
    Disabled,
}

/// What becomes of thoughts in the history where anything before them is no longer what it was.
#[derive(Clone, Copy, Serialize)]
struct BlockBinding {
    prefix_mismatch_behavior: &'static str,
}

#[derive(Serialize)]
struct OutputConfig {
    #[serde(skip_serializing_if = "Option::is_none")]
    effort: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    format: Option<Format>,
}

#[derive(Serialize)]
struct Format {
    #[serde(rename = "type")]
    kind: &'static str,
    schema: Value,
}

/// The body of a request.
pub(super) fn body(request: &ModelRequest, streaming: bool) -> Result<Vec<u8>, serde_json::Error> {
    let options = &request.options;
    let traits = Traits::of(&request.model);
    let forced = matches!(options.tool_choice, Some(ToolChoice::Required | ToolChoice::Tool(_)));
    let plan = Plan::of(options, traits, forced, &request.messages);
    let samples = traits.sampling && !plan.thinks();
    let format = options
        .output_schema
        .as_ref()
        .filter(|_| traits.output_schema)
        .map(|output| Format { kind: "json_schema", schema: schema::dressed(&output.schema, &Dress::ANTHROPIC_OUTPUT) });
    let mut messages = content::messages(&request.messages);
    // A request with tools is most likely the first of many that begin alike.
    let has_tools = !request.tools.is_empty();
    if let Some(last) = messages.last_mut().filter(|_| has_tools).and_then(|message| message.content.last_mut()) {
        last.cache_control = Some(CACHE);
    }
    let tools = if has_tools { offered(&request.tools, request.system.is_empty()) } else { former(&request.messages) };
    serde_json::to_vec(&Body {
        model: &request.model,
        max_tokens: plan.max_tokens,
        system: system(&request.system, has_tools),
        messages,
        tool_choice: match (has_tools, tools.is_empty()) {
            (true, _) => choice(options.tool_choice.as_ref(), plan.thinks()),
            (false, false) => Some(WireChoice::None),
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
        (false, true) => Some(System::Blocks([Block { kind: Kind::Text { text: text.into() }, cache_control: Some(CACHE) }])),
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
        last.cache_control = Some(CACHE);
    }
    wire
}

/// The tools of a history whose request offers none, as that of a last summary: calls of tools that are not named are refused
/// with the whole request.
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

fn choice(choice: Option<&ToolChoice>, thinks: bool) -> Option<WireChoice<'_>> {
    Some(match choice? {
        // Who thinks cannot be forced. That is so for models only that cannot be told not to think.
        ToolChoice::Required | ToolChoice::Tool(_) if thinks => WireChoice::Auto,
        ToolChoice::Auto => WireChoice::Auto,
        ToolChoice::None => WireChoice::None,
        ToolChoice::Required => WireChoice::Any,
        ToolChoice::Tool(name) => WireChoice::Tool { name },
    })
}

/// What is said about thinking.
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
            let block_binding = binds_thoughts(traits, history).then_some(BlockBinding { prefix_mismatch_behavior: "drop_block" });
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

/// The word for an effort. Models that take samples are the first that knew efforts, and have none between the high one and the
/// last.
fn word(effort: ReasoningEffort, traits: Traits) -> &'static str {
    match effort {
        ReasoningEffort::None | ReasoningEffort::Minimal | ReasoningEffort::Low => "low",
        ReasoningEffort::Medium => "medium",
        ReasoningEffort::High => "high",
        ReasoningEffort::XHigh if traits.sampling => "high",
        ReasoningEffort::XHigh => "xhigh",
        ReasoningEffort::Max => "max",
    }
}

/// Whether the model is asked to overlook thoughts that no longer fit what stands before them. A view of a conversation may change
/// there: its summary grows, results shrink, and what context providers say is new in each turn.
fn binds_thoughts(traits: Traits, history: &[Message]) -> bool {
    let is_signed = |part: &Part| if let Part::Reasoning(reasoning) = part { signed(reasoning).is_some() } else { false };
    traits.binds_thoughts && history.iter().flat_map(|message| &message.parts).any(is_signed)
}

/// The part of the wire that a request needs and that is not in its version.
pub(super) fn beta(request: &ModelRequest) -> Option<&'static str> {
    // Whether it is said after all does not matter: the part alone changes nothing.
    binds_thoughts(Traits::of(&request.model), &request.messages).then_some("thinking-binding-controls-2026-08-01")
}

/// The tokens to think with, which are a part of the output limit: of a limit that the caller has set, half at most.
fn budget(effort: ReasoningEffort, limit: Option<u32>) -> Option<u32> {
    let wanted = match effort {
        ReasoningEffort::None => return None,
        ReasoningEffort::Minimal => LEAST_BUDGET,
        ReasoningEffort::Low => 4_096,
        ReasoningEffort::Medium => 8_192,
        ReasoningEffort::High | ReasoningEffort::XHigh | ReasoningEffort::Max => 16_384,
    };
    let tokens = limit.map_or(wanted, |limit| wanted.min(limit / 2));
    (tokens >= LEAST_BUDGET).then_some(tokens)
}

/// A turn that is under way without thoughts, because another model began it, a tool was forced, or there was no room for them, goes on
/// without: the provider wants the thoughts that led to the newest calls, whatever was written behind their results.
fn may_begin_to_think(history: &[Message]) -> bool {
    let Some(newest) = history.iter().rfind(|message| message.role == Role::Assistant) else { return true };
    let is_signed = |part: &Part| matches!(part, Part::Reasoning(reasoning) if signed(reasoning).is_some());
    newest.parts.iter().any(is_signed) || !newest.parts.iter().any(|part| matches!(part, Part::ToolCall(_)))
}
