//! Agent profiles: every difference between agents is data. Frozen into each run when it is accepted.

pub mod agent_record;
pub mod preset;
pub mod prompt;
pub mod response_analysis;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::domain::access::principal::check_groups;
use crate::domain::agent::prompt::PromptPolicy;
use crate::domain::agent::response_analysis::ResponseAnalysis;
use crate::domain::defaults::is_default;
pub use crate::domain::invalid::{InvalidProfile, is_model};
use crate::domain::invalid::{MODEL_FORM, invalid};
use crate::domain::model::sampling::SamplingByTurn;
use crate::domain::model::{ModelErrorKind, ModelOptions};
use crate::domain::run::admission::Admission;
use crate::domain::run::budget::Budget;
use crate::domain::run::context::ContextPolicy;
use crate::domain::run::plan::{PlanPolicy, Strategy};
use crate::domain::tool::approval::ApprovalPolicy;
use crate::domain::tool::tool_filter::ToolFilter;
use crate::domain::tool::tool_names::{check_no_pattern, check_tool_name};

/// The end of a run whose rounds are used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnLimit {
    /// One more model call without tools, which summarizes.
    #[default]
    Summarize,
    Fail,
    /// A fixed text ends the run.
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
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

/// When tools are offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolsPolicy {
    #[default]
    EveryRound,
    /// Only in the first model call of a run. Tools that the model calls later are executed all the same.
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
    /// It fails with `interrupted`; `resume` continues it by hand.
    Fail,
}

/// The effect of a tool call with an unknown outcome on its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnUnknown {
    /// The model is told that the call may or may not have taken effect.
    #[default]
    TellModel,
    /// A human is asked, and the run waits for the answer.
    Ask,
    /// The run fails with `tool_outcome_unknown`.
    Fail,
    /// The call runs again, regardless of its class.
    Rerun,
}

/// The runs that use the profile's fallbacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FallbacksFor {
    /// Runs that name no model: a user who names one may not want another company to see the conversation.
    #[default]
    Unnamed,
    All,
}

/// The source of a conversation's title, unless its user gives one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TitlePolicy {
    #[default]
    FirstWords,
    /// Asks a model once, after the first run with an answer. Until then, or if that fails, the first words of the message are the
    /// title.
    Model,
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputMode {
    /// Words, and the tool calls of its provider.
    #[default]
    Tools,
    /// One JSON object per answer, which is the final answer or one call: for models without tool calls.
    Structured,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LlmRetry {
    /// Milliseconds before each retry; as many retries as entries. The provider's `Retry-After` wins.
    pub delays_ms: Vec<u64>,
    /// The longest `Retry-After` that is obeyed, in milliseconds; a longer one fails the run.
    pub max_retry_after_ms: u64,
    /// Further requests after an answer that is not of the wanted form.
    #[serde(skip_serializing_if = "is_two")]
    pub validation_retries: u32,
    /// The retried kinds of failure, among those that may be temporary. All of them if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub classes: Option<Vec<ModelErrorKind>>,
    /// Whether a fallback takes over before the same model is tried again.
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
            fallback_first: false,
        }
    }
}

impl LlmRetry {
    /// Returns whether a model that failed like this is asked again.
    pub fn covers(&self, kind: ModelErrorKind) -> bool {
        kind.retryable() && self.classes.as_ref().is_none_or(|classes| classes.contains(&kind))
    }
}

/// The tool that is called when no tool on offer has the name that the model wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NameRepair {
    #[default]
    Off,
    /// The only tool that can be meant: by spelling, by a missing server name, or by an alias.
    Unique,
    /// Otherwise the most similar one of the same server.
    Similar,
}

/// Repairs of a model's tool calls before they are judged. The message keeps what the model wrote.
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
    /// Models that take over one after the other. A model that was given up does not return within the run.
    pub fallbacks: Vec<String>,
    /// The runs that use them. Decided when a run is accepted, which freezes its fallbacks.
    #[serde(skip_serializing_if = "is_default")]
    pub fallbacks_for: FallbacksFor,
    /// The answer when no model could be reached; without it, the run fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub final_text: Option<String>,
    #[serde(skip_serializing_if = "is_default")]
    pub title: TitlePolicy,
    /// The model that generates titles, as `provider/name`. The run's model if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title_model: Option<String>,
    pub system_prompt: String,
    #[serde(skip_serializing_if = "is_default")]
    pub prompt: PromptPolicy,
    /// The configured context providers that are asked before each run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub context_providers: Vec<String>,
    pub output: OutputMode,
    pub options: ModelOptions,
    /// Sampling by whether a call is offered tools, where `options` do not say it.
    #[serde(skip_serializing_if = "is_default")]
    pub sampling: SamplingByTurn,
    #[serde(skip_serializing_if = "is_default")]
    pub strategy: Strategy,
    #[serde(skip_serializing_if = "is_default")]
    pub plan: PlanPolicy,
    /// The most model calls with tools in one run.
    pub max_rounds: u32,
    pub on_limit: OnLimit,
    pub tools_policy: ToolsPolicy,
    /// The tools on offer by name; `None` for all.
    pub tools: Option<Vec<String>>,
    #[serde(skip_serializing_if = "is_default")]
    pub tool_filter: ToolFilter,
    #[serde(skip_serializing_if = "is_default")]
    pub context: ContextPolicy,
    pub tool_timeout_ms: u64,
    /// Characters of a tool's answer that the model reads.
    pub tool_result_chars: usize,
    pub repair: RepairPolicy,
    pub tool_parallelism: u32,
    /// Tool calls of one answer that are executed; the rest get an error result.
    pub max_parallel_calls: u32,
    pub tool_error: ToolErrorPolicy,
    /// Failures of one tool after which the breaker acts, the last of them in this run; 0 for never.
    pub breaker_failures: u32,
    #[serde(skip_serializing_if = "is_default")]
    pub breaker_scope: BreakerScope,
    pub breaker_action: BreakerAction,
    pub llm_retry: LlmRetry,
    /// Consecutive rounds of nothing but repeated calls after which a final answer is forced; 0 for off.
    pub duplicate_calls: u32,
    /// Consecutive empty replies after which a final answer is forced; 0 for off.
    pub empty_replies: u32,
    /// Consecutive rounds with only errors after which the model gets a hint. 0 disables the hint.
    pub error_rounds: u32,
    #[serde(skip_serializing_if = "is_default")]
    pub response_analysis: ResponseAnalysis,
    /// The time limit of a run from its first start, waits included; 0 for no limit.
    pub max_run_ms: u64,
    /// Input and output tokens of one run together; 0 for no limit.
    pub max_run_tokens: u64,
    /// Limits in money, and limits that runs share.
    #[serde(skip_serializing_if = "is_default")]
    pub budget: Budget,
    #[serde(skip_serializing_if = "is_default")]
    pub admission: Admission,
    pub on_interrupt: OnInterrupt,
    pub on_unknown: OnUnknown,
    /// The time until an unanswered question expires, and the run continues without an answer; 0 for never.
    pub ask_expires_ms: u64,
    pub approval: ApprovalPolicy,
    /// Claims that may end in a crash before the run fails with `poison`.
    pub max_crashes: u32,
}

impl AgentProfile {
    pub fn counts_earlier_failures(&self) -> bool {
        self.breaker_failures > 0 && self.breaker_scope == BreakerScope::Conversation
    }

    /// Checks for values that no run could be executed with; returns the first.
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
        if let Some(kind) = self.llm_retry.classes.iter().flatten().find(|kind| !kind.retryable()) {
            let reason = format!("{} does not pass by itself, so that nobody is asked again after it", kind.code());
            return Err(invalid("llm_retry/classes", reason));
        }
        if self.llm_retry.validation_retries as usize > MAX_RETRIES {
            return Err(invalid("llm_retry/validation_retries", format!("must be at most {MAX_RETRIES}")));
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

    /// Refuses names that no tool or server can have. `options/tool_choice` is checked with the options.
    fn check_names(&self) -> Result<(), InvalidProfile> {
        for (at, tool) in self.tools.iter().flatten().enumerate() {
            check_tool_name(tool).map_err(|reason| invalid(format!("tools/{at}"), reason))?;
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
        // A `*` at the end is the one pattern that this list knows.
        let is_odd = |model: &&String| model.strip_suffix('*').unwrap_or(model).contains('*');
        match self.tool_filter.skip_models.iter().find(is_odd) {
            Some(model) => {
                Err(invalid("tool_filter/skip_models", format!("{model:?}: a * may only stand at the end, as in anthropic/*")))
            }
            None => Ok(()),
        }
    }
}

/// The longest time that a profile can name: a year.
const LONGEST_MS: u64 = 366 * 24 * 3_600_000;
const MAX_RETRIES: usize = 100;

impl Default for AgentProfile {
    fn default() -> Self {
        Self {
            name: "default".to_owned(),
            version: 1,
            groups: BTreeSet::new(),
            model: "demo/demo".to_owned(),
            fallbacks: Vec::new(),
            fallbacks_for: FallbacksFor::default(),
            final_text: None,
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
            response_analysis: ResponseAnalysis::default(),
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
