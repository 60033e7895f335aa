//! Writes requests of Anthropic Messages.

use std::borrow::Cow;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};

use super::content::{self, Block, CacheControl, Kind, WireMessage, signed};
use super::models::{Thinking, Traits};
use crate::domain::conversation::{Message, Part, Role};
use crate::domain::model::{ModelError, ModelOptions, ModelRequest, ReasoningEffort, ToolChoice};
use crate::domain::tool::ToolDefinition;
use crate::provider::http::json_body::written;
use crate::provider::request::schema::{self, schema_profiles};

/// The smallest reasoning budget that a model accepts, in tokens.
const MIN_BUDGET: u32 = 1_024;
/// The reasoning budget for each effort from `none` to `max`, in tokens.
const BUDGETS: [u32; 7] = [0, MIN_BUDGET, 4_096, 8_192, 16_384, 16_384, 16_384];
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
    let samples = traits.sampling && !plan.uses_reasoning();
    let output = options.output_schema.as_ref().filter(|_| traits.output_schema);
    let projected = |schema| schema::projected(schema, &schema_profiles().anthropic_output);
    let format = output.map(|output| json!({ "type": "json_schema", "schema": projected(&output.schema) }));
    let mut messages = content::messages(&request.messages);
    // A request with tools is usually the first of many with the same beginning, so it asks for caching.
    let has_tools = !request.tools.is_empty() && options.tool_choice != Some(ToolChoice::None);
    if let Some(last) = messages.last_mut().filter(|_| has_tools).and_then(|message| message.content.last_mut()) {
        last.cache_control = Some(CacheControl::Ephemeral);
    }
    let tools = offered(&request.tools, has_tools && request.system.is_empty());
    written(&Body {
        model: &request.model,
        max_tokens: plan.max_tokens,
        system: system(&request.system, has_tools),
        messages,
        tool_choice: options
            .tool_choice
            .as_ref()
            .filter(|_| !tools.is_empty())
            .map(|requested| choice(requested, plan.uses_reasoning())),
        tools,
        temperature: options.temperature.filter(|_| samples).map(|temperature| temperature.min(1.0)),
        // Newer models refuse both options together.
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

fn choice(choice: &ToolChoice, thinks: bool) -> Value {
    match choice {
        // A model cannot be forced to call a tool while it reasons. A forced choice turns reasoning off where that is possible, so
        // this arm is for models whose reasoning cannot be turned off.
        ToolChoice::Required | ToolChoice::Tool(_) if thinks => json!({ "type": "auto" }),
        ToolChoice::Auto => json!({ "type": "auto" }),
        ToolChoice::None => json!({ "type": "none" }),
        ToolChoice::Required => json!({ "type": "any" }),
        ToolChoice::Tool(name) => json!({ "type": "tool", "name": name }),
    }
}

struct Plan {
    max_tokens: u32,
    thinking: Option<WireThinking>,
    effort: Option<&'static str>,
}

impl Plan {
    fn of(options: &ModelOptions, traits: Traits, forced: bool, history: &[Message]) -> Self {
        let silent = Self { max_tokens: options.max_output_tokens.unwrap_or(traits.max_tokens), thinking: None, effort: None };
        let requested = options.reasoning_effort;
        let is_unwanted = requested == Some(ReasoningEffort::None);
        let adaptive = || {
            let block_binding = drops_stale_reasoning(traits, history).then(|| json!({ "prefix_mismatch_behavior": "drop_block" }));
            // New models hide their reasoning unless a request asks for it.
            let thinking = Some(WireThinking::Adaptive { display: "summarized", block_binding });
            Self { thinking, effort: requested.map(|effort| effort_value(effort, traits)), ..silent }
        };
        match (traits.thinking, requested) {
            (Thinking::No, _) | (Thinking::Budget | Thinking::Adaptive, None) => silent,
            (Thinking::Budget, _) if forced || !may_reason(history) => silent,
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

    fn uses_reasoning(&self) -> bool {
        match self.thinking {
            Some(WireThinking::Enabled { .. } | WireThinking::Adaptive { .. } | WireThinking::BetweenTools) => true,
            Some(WireThinking::Disabled) | None => false,
        }
    }
}

/// Returns the provider's value for an effort. The first models with efforts also accept sampling options, and have no value between `high`
/// and `max`.
fn effort_value(effort: ReasoningEffort, traits: Traits) -> &'static str {
    if effort == ReasoningEffort::XHigh && traits.sampling { "high" } else { WORDS[effort as usize] }
}

fn is_signed(part: &Part) -> bool {
    matches!(part, Part::Reasoning(reasoning) if signed(reasoning).is_some())
}

/// Returns whether the request asks the provider to drop reasoning that does not match the history before it. The history may change
/// between requests: its summary grows, results are compressed, and context providers return new texts.
fn drops_stale_reasoning(traits: Traits, history: &[Message]) -> bool {
    traits.binds_thoughts && history.iter().flat_map(|message| &message.parts).any(is_signed)
}

pub(super) fn beta(request: &ModelRequest) -> Option<&'static str> {
    // The beta feature changes no behaviour by itself, so its header is sent even if the body does not use it.
    drops_stale_reasoning(Traits::of(&request.model), &request.messages).then_some("thinking-binding-controls-2026-08-01")
}

/// Returns the reasoning budget in tokens. It is part of the output limit: at most half of a configured limit.
fn budget(effort: ReasoningEffort, limit: Option<u32>) -> Option<u32> {
    let requested = BUDGETS[effort as usize];
    let tokens = limit.map_or(requested, |limit| requested.min(limit / 2));
    (tokens >= MIN_BUDGET).then_some(tokens)
}

/// Returns whether a turn may reason. The provider requires the reasoning before the newest calls. A turn that began without reasoning
/// continues without it: another model began it, a tool was forced, or its reasoning did not fit.
fn may_reason(history: &[Message]) -> bool {
    let Some(newest) = history.iter().rfind(|message| message.role == Role::Assistant) else { return true };
    newest.parts.iter().any(is_signed) || !newest.parts.iter().any(|part| matches!(part, Part::ToolCall(_)))
}
