//! Agent profiles: all differences between agents are data. A run freezes its profile when it is accepted.
//!
//! Owns the settings of an agent and their checks. Must not know how a run uses them.

pub mod agent_record;
pub mod preset;
pub mod prompt;
pub mod stop_analysis_settings;

pub use agent_record::{AgentRecord, AgentVersion, ProfileDocument};
pub use prompt::{OwnLayers, OwnPrompt, PromptPolicy, ProvidedContext, ServerNote, ToolNotes};
pub use stop_analysis_settings::{PhraseListName, StopAnalysisSettings};

use std::collections::{BTreeMap, BTreeSet};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::domain::access::principal::check_groups;
use crate::domain::defaults::is_default;
pub use crate::domain::invalid::{InvalidProfile, is_model};
use crate::domain::invalid::{MODEL_FORM, invalid};
use crate::domain::model::{ModelErrorKind, ModelOptions, SamplingByTurn, Usage};
use crate::domain::run::{Admission, Amount, Budget, ContextPolicy, PlanPolicy, Strategy};
use crate::domain::tool::tool_name_check::{check_no_pattern, check_tool_name};
use crate::domain::tool::{ApprovalPolicy, ClientTool, ToolDefinition, ToolFilter};
use crate::support::search_words::{contains_phrase, words};

/// The reaction when a run reaches its limit of model calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnLimit {
    /// Makes one more model call without tools, which summarizes.
    #[default]
    Summarize,
    Fail,
    /// Ends the run with a fixed text.
    Message,
}

/// The effect of a failed tool call on its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolErrorPolicy {
    /// The model reads the error.
    #[default]
    FeedBack,
    FailRun,
}

/// The reaction to a tool that failed too often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BreakerAction {
    #[default]
    DropTool,
    /// One last call without tools ends the run.
    ForceFinal,
}

/// The failures of a tool that the breaker counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BreakerScope {
    #[default]
    Run,
    /// Also those of earlier runs of the conversation, since the tool last succeeded.
    Conversation,
}

/// The model calls in which tools are offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolsPolicy {
    #[default]
    EveryRound,
    /// Only in the first model call of a run. Later calls of tools are still executed.
    FirstRoundOnly,
    /// Until tools have run once; then the model must answer in text.
    OneRoundThenText,
    None,
}

/// The effect of a crash on a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnInterrupt {
    #[default]
    Resume,
    /// The run fails with `interrupted`. A user can resume it.
    Fail,
}

/// The effect of a tool call with an unknown outcome on its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnUnknown {
    /// The model reads that the call may or may not have taken effect.
    #[default]
    TellModel,
    /// A human is asked, and the run waits for the answer.
    Ask,
    /// The run fails with `tool_outcome_unknown`.
    Fail,
    /// The call runs again, regardless of its replay class.
    Rerun,
}

/// The runs that use the profile's fallbacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FallbackTrigger {
    /// Runs whose request and conversation name no model. A user who names a model may not want another company to see the
    /// conversation.
    #[default]
    Unnamed,
    All,
}

/// The failures of models that the profile's `final_text` answers. The run keeps the error in each case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinalTextFor {
    /// Outages: no model could be reached, or each provider refused the key or the account. If a provider refuses the request
    /// itself, the run fails with that error.
    #[default]
    Outage,
    All,
}

/// The source of a conversation's title, unless the user sets one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TitlePolicy {
    #[default]
    FirstWords,
    /// Calls a model once, after the first run with an answer. Until then, or if the call fails, the title is the beginning of the
    /// message.
    Model,
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputMode {
    /// Text, and the provider's native tool calls.
    #[default]
    Tools,
    /// One JSON object per answer, which is the final answer or one call. For models without tool calls.
    Structured,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LlmRetry {
    /// Milliseconds before each retry. The number of entries is the number of retries. The provider's `Retry-After` has priority.
    pub delays_ms: Vec<u64>,
    /// The longest accepted `Retry-After`, in milliseconds. A longer one fails the run.
    pub max_retry_after_ms: u64,
    /// Number of further requests after an answer that does not match the requested format.
    #[serde(skip_serializing_if = "is_two")]
    pub validation_retries: u32,
    /// The failures that are retried, among those that may be temporary. All of them if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub classes: Option<Vec<ModelErrorKind>>,
    /// Words of a provider's error message after which the model is also asked again, for every kind of failure. Each is
    /// matched as whole words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<String>,
    /// Whether a fallback is tried before a retry of the same model.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub fallback_first: bool,
}

fn is_two(count: &u32) -> bool {
    *count == 2
}

impl Default for LlmRetry {
    fn default() -> Self {
        Self {
            delays_ms: vec![3_000, 6_000],
            max_retry_after_ms: 600_000,
            validation_retries: 2,
            classes: None,
            messages: Vec::new(),
            fallback_first: false,
        }
    }
}

impl LlmRetry {
    /// Returns whether a failure of this kind is retried.
    pub fn covers(&self, kind: ModelErrorKind) -> bool {
        kind.is_retryable() && self.classes.as_ref().is_none_or(|classes| classes.contains(&kind))
    }

    /// Returns whether a model that failed with this message is asked again.
    pub fn covers_message(&self, message: &str) -> bool {
        let message_words = words(message);
        self.messages.iter().any(|phrase| contains_phrase(&message_words, &words(phrase)))
    }
}

/// How an unknown tool name in a model's call is repaired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NameRepair {
    #[default]
    Off,
    /// Uses the only candidate: by spelling, by a missing server name, or by an alias.
    Unique,
    /// Like `unique`. Without a candidate, uses the most similar tool of the same server.
    Similar,
}

/// Repairs of a model's tool calls before they are checked. The message keeps the original text.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RepairPolicy {
    pub names: NameRepair,
    pub aliases: BTreeMap<String, String>,
    /// Whether arguments that are nearly JSON are repaired.
    pub arguments: bool,
}

/// The versioned settings of an agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AgentProfile {
    pub name: String,
    pub version: u32,
    /// The groups that may use it, beside administrators. Empty: all members.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub groups: BTreeSet<String>,
    pub model: String,
    /// Models that replace the agent's model, in this order. A model that has failed for good is not used again in the run.
    pub fallbacks: Vec<String>,
    /// The runs that use the fallbacks. The server decides this when it accepts a run, and freezes the run's fallbacks.
    #[serde(skip_serializing_if = "is_default")]
    pub fallbacks_for: FallbackTrigger,
    /// The answer if no model can be reached. Without it, the run fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub final_text: Option<String>,
    /// The failures for which `final_text` is the answer.
    #[serde(skip_serializing_if = "is_default")]
    pub final_text_for: FinalTextFor,
    #[serde(skip_serializing_if = "is_default")]
    pub title: TitlePolicy,
    /// The model that generates titles, as `provider/name`. The run's model if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title_model: Option<String>,
    pub system_prompt: String,
    #[serde(skip_serializing_if = "is_default")]
    pub prompt: PromptPolicy,
    /// The configured context providers that are called before each run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub context_providers: Vec<String>,
    pub output: OutputMode,
    pub options: ModelOptions,
    /// Sampling options for calls with and without tools, where `options` set none.
    #[serde(skip_serializing_if = "is_default")]
    pub sampling: SamplingByTurn,
    #[serde(skip_serializing_if = "is_default")]
    pub strategy: Strategy,
    #[serde(skip_serializing_if = "is_default")]
    pub plan: PlanPolicy,
    /// The most answers of the model since the last user message, except malformed and forced ones.
    pub max_rounds: u32,
    pub on_limit: OnLimit,
    pub tools_policy: ToolsPolicy,
    /// The names of the offered tools; `None` for all.
    pub tools: Option<Vec<String>>,
    /// The built-in tools among them by name; `None` for all. A document may write `"none"` for the empty list.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "builtin_tools")]
    pub builtin_tools: Option<Vec<String>>,
    /// The tools that the client of a run executes. Only the profile of a run has them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub client_tools: Vec<ClientTool>,
    /// The limit of calls of the server's tools until the client sends results of its own tools. Further calls get an error result.
    /// Only the profile of a run has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_server_calls: Option<u32>,
    /// Facts of the run's request that responses of its protocol repeat. Only the profile of a run has them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Value>,
    #[serde(skip_serializing_if = "is_default")]
    pub tool_filter: ToolFilter,
    #[serde(skip_serializing_if = "is_default")]
    pub context: ContextPolicy,
    pub tool_timeout_ms: u64,
    /// Number of characters of a tool's result that the model reads.
    pub tool_result_chars: usize,
    pub repair: RepairPolicy,
    pub tool_parallelism: u32,
    /// The limit of executed tool calls per answer. Further calls get an error result.
    pub max_parallel_calls: u32,
    pub tool_error: ToolErrorPolicy,
    /// Number of failures of one tool after which the breaker opens, if the last one is in this run. 0 disables it.
    pub breaker_failures: u32,
    #[serde(skip_serializing_if = "is_default")]
    pub breaker_scope: BreakerScope,
    pub breaker_action: BreakerAction,
    pub llm_retry: LlmRetry,
    /// Consecutive rounds with only duplicate calls after which a final answer is forced. 0 disables it.
    pub duplicate_calls: u32,
    /// Consecutive empty answers after which a final answer is forced. 0 disables it.
    pub empty_replies: u32,
    /// Consecutive rounds with only errors after which the model gets a hint. 0 disables the hint.
    pub error_rounds: u32,
    #[serde(skip_serializing_if = "is_default")]
    pub response_analysis: StopAnalysisSettings,
    /// The time limit of a run from its first start, including waiting times. 0 for no limit.
    pub max_run_ms: u64,
    /// The limit of input and output tokens of one run. 0 for no limit.
    pub max_run_tokens: u64,
    /// Limits of cost, and limits that several runs share.
    #[serde(skip_serializing_if = "is_default")]
    pub budget: Budget,
    #[serde(skip_serializing_if = "is_default")]
    pub admission: Admission,
    pub on_interrupt: OnInterrupt,
    pub on_unknown: OnUnknown,
    /// Milliseconds until an unanswered question expires. The run then continues without an answer. 0 for never.
    pub ask_expires_ms: u64,
    pub approval: ApprovalPolicy,
    /// Number of crashed claims after which the run fails with `poison`. 0 for no limit.
    pub max_crashes: u32,
}

/// Reads a list of names, or `"none"`.
fn builtin_tools<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<String>>, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::Null => Ok(None),
        Value::String(word) if word == "none" => Ok(Some(Vec::new())),
        list @ Value::Array(_) => serde_json::from_value(list).map(Some).map_err(D::Error::custom),
        _ => Err(D::Error::custom("must be a list of names or \"none\"")),
    }
}

impl AgentProfile {
    /// Returns whether runs may be offered a tool at all.
    pub fn may_use(&self, tool: &ToolDefinition) -> bool {
        let lists = |names: &Option<Vec<String>>| names.as_ref().is_none_or(|names| names.contains(&tool.name));
        tool.by_client || lists(&self.tools) && (tool.server.is_some() || lists(&self.builtin_tools))
    }

    /// Returns whether a run with this usage has reached its own limits of tokens or money.
    pub fn is_spent(&self, usage: Usage) -> bool {
        let (limit, spent) = (self.max_run_tokens, Amount::of(&usage));
        (limit > 0 && spent.tokens >= limit) || self.budget.run_usd.is_some_and(|most| spent.cost >= most.cost())
    }

    pub fn counts_earlier_failures(&self) -> bool {
        self.breaker_failures > 0 && self.breaker_scope == BreakerScope::Conversation
    }

    /// Checks for values with which no run could be executed. Returns the first error.
    pub fn check(&self) -> Result<(), InvalidProfile> {
        check_groups(&self.groups).map_err(|error| invalid("groups", error.to_string()))?;
        for (field, models) in [
            ("model", std::slice::from_ref(&self.model)),
            ("fallbacks", self.fallbacks.as_slice()),
            ("title_model", self.title_model.as_slice()),
        ] {
            if !models.iter().all(|model| is_model(model)) {
                return Err(invalid(field, MODEL_FORM));
            }
        }
        self.options.check().map_err(|error| invalid(format!("options/{}", error.field), error.reason))?;
        self.sampling.check().map_err(|error| error.within("sampling"))?;
        self.plan.check().map_err(|error| error.within("plan"))?;
        self.response_analysis.check().map_err(|error| error.within("response_analysis"))?;
        if let Some(kind) = self.llm_retry.classes.iter().flatten().find(|kind| !kind.is_retryable()) {
            let reason = format!("{} is a permanent failure, which is never retried", kind.code());
            return Err(invalid("llm_retry/classes", reason));
        }
        if self.llm_retry.messages.iter().any(|phrase| words(phrase).is_empty()) {
            return Err(invalid("llm_retry/messages", "each entry needs a word: an empty one would match every message"));
        }
        if self.llm_retry.validation_retries as usize > MAX_RETRIES {
            return Err(invalid("llm_retry/validation_retries", format!("must be at most {MAX_RETRIES}")));
        }
        if !self.client_tools.is_empty() {
            return Err(invalid("client_tools", "cannot be set: the request of a run brings its client tools, as `tools`"));
        }
        for (field, is_set) in [("max_server_calls", self.max_server_calls.is_some()), ("protocol", self.protocol.is_some())] {
            if is_set {
                return Err(invalid(field, "cannot be set: it is a part of runs only"));
            }
        }
        self.check_names()?;
        if !(1..=ToolFilter::MAX_K).contains(&self.tool_filter.k) {
            return Err(invalid("tool_filter/k", format!("must be 1 to {}", ToolFilter::MAX_K)));
        }
        self.context.check().map_err(|error| error.within("context"))?;
        self.budget.check().map_err(|error| error.within("budget"))?;
        let counts = [
            ("max_rounds", u64::from(self.max_rounds)),
            ("tool_timeout_ms", self.tool_timeout_ms),
            ("tool_parallelism", u64::from(self.tool_parallelism)),
            ("max_parallel_calls", u64::from(self.max_parallel_calls)),
        ];
        if let Some((field, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
            return Err(invalid(field, "must be at least 1"));
        }
        let times = [
            ("tool_timeout_ms", self.tool_timeout_ms),
            ("max_run_ms", self.max_run_ms),
            ("ask_expires_ms", self.ask_expires_ms),
            ("approval/expires_ms", self.approval.expires_ms),
            ("llm_retry/max_retry_after_ms", self.llm_retry.max_retry_after_ms),
            ("llm_retry/delays_ms", self.llm_retry.delays_ms.iter().copied().max().unwrap_or_default()),
        ];
        if let Some((field, _)) = times.into_iter().find(|(_, time)| *time > LONGEST_MS) {
            return Err(invalid(field, format!("must be at most {LONGEST_MS}, which is a year")));
        }
        match self.llm_retry.delays_ms.len() {
            0..=MAX_RETRIES => Ok(()),
            count => Err(invalid("llm_retry/delays_ms", format!("has {count} entries; the most is {MAX_RETRIES}"))),
        }
    }

    /// Refuses names that no tool or server can have. `options/tool_choice` is checked with the other options.
    fn check_names(&self) -> Result<(), InvalidProfile> {
        for (field, names) in [("tools", &self.tools), ("builtin_tools", &self.builtin_tools)] {
            for (at, tool) in names.iter().flatten().enumerate() {
                check_tool_name(tool).map_err(|reason| invalid(format!("{field}/{at}"), reason))?;
            }
        }
        for tool in self.approval.tools.keys() {
            check_tool_name(tool).map_err(|reason| invalid(format!("approval/tools/{tool}"), reason))?;
        }
        for (alias, tool) in &self.repair.aliases {
            let checked = check_no_pattern(alias).and_then(|()| check_no_pattern(tool));
            checked.map_err(|reason| invalid(format!("repair/aliases/{alias}"), reason))?;
        }
        for server in self.tool_filter.servers.keys() {
            check_no_pattern(server).map_err(|reason| invalid(format!("tool_filter/servers/{server}"), reason))?;
        }
        // This list accepts no pattern except a `*` at the end.
        let is_odd = |model: &&String| model.strip_suffix('*').unwrap_or(model).contains('*');
        match self.tool_filter.skip_models.iter().find(is_odd) {
            Some(model) => {
                Err(invalid("tool_filter/skip_models", format!("{model:?}: a * is only allowed at the end, as in anthropic/*")))
            }
            None => Ok(()),
        }
    }
}

/// The longest duration in a profile: one year.
const LONGEST_MS: u64 = 366 * 24 * 3_600_000;
const MAX_RETRIES: usize = 100;

impl AgentProfile {
    /// Uses this model for all calls, those of a plan included.
    pub fn name_model(&mut self, model: &str) {
        model.clone_into(&mut self.model);
        (self.plan.planner, self.plan.router) = (None, None);
    }
}

impl Default for AgentProfile {
    fn default() -> Self {
        Self {
            name: "default".to_owned(),
            version: 1,
            groups: BTreeSet::new(),
            model: "demo/demo".to_owned(),
            fallbacks: Vec::new(),
            fallbacks_for: FallbackTrigger::default(),
            final_text: None,
            final_text_for: FinalTextFor::default(),
            title: TitlePolicy::default(),
            title_model: None,
            system_prompt: "You are a helpful assistant.".to_owned(),
            prompt: PromptPolicy::default(),
            context_providers: Vec::new(),
            output: OutputMode::default(),
            options: ModelOptions::default(),
            sampling: SamplingByTurn::default(),
            strategy: Strategy::default(),
            plan: PlanPolicy::default(),
            max_rounds: 20,
            on_limit: OnLimit::default(),
            tools_policy: ToolsPolicy::default(),
            tools: None,
            builtin_tools: None,
            client_tools: Vec::new(),
            max_server_calls: None,
            protocol: None,
            tool_filter: ToolFilter::default(),
            context: ContextPolicy::default(),
            tool_timeout_ms: 30_000,
            tool_result_chars: 6_000,
            repair: RepairPolicy::default(),
            tool_parallelism: 4,
            max_parallel_calls: 32,
            tool_error: ToolErrorPolicy::default(),
            breaker_failures: 3,
            breaker_scope: BreakerScope::default(),
            breaker_action: BreakerAction::default(),
            llm_retry: LlmRetry::default(),
            duplicate_calls: 2,
            empty_replies: 2,
            error_rounds: 2,
            response_analysis: StopAnalysisSettings::default(),
            max_run_ms: 0,
            max_run_tokens: 0,
            budget: Budget::default(),
            admission: Admission::default(),
            on_interrupt: OnInterrupt::default(),
            on_unknown: OnUnknown::default(),
            ask_expires_ms: 7 * 24 * 3_600_000,
            approval: ApprovalPolicy::default(),
            max_crashes: 3,
        }
    }
}
