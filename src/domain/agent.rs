//! Agent profiles: every difference between agents is data. Frozen into each run when it is accepted.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::admission::Admission;
use super::approval::ApprovalPolicy;
use super::budget::Budget;
use super::context::ContextPolicy;
use super::model::{InvalidOption, ModelErrorKind, ModelOptions};
use super::plan::{PlanPolicy, Strategy};
use super::principal::check_groups;
use super::prompt::PromptPolicy;
use super::response_analysis::ResponseAnalysis;
use super::sampling::SamplingByTurn;
use super::tool_filter::ToolFilter;
use super::tool_names::{check_no_pattern, check_tool_name};

/// What to do when the rounds are used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnLimit {
    /// One more model call without tools, which sums up.
    #[default]
    Summarize,
    /// The run fails with `max_rounds`.
    Fail,
    /// A fixed text ends the run.
    Message,
}

/// What a failed tool call does to its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolErrorPolicy {
    /// The model reads the error.
    #[default]
    FeedBack,
    /// The run fails.
    FailRun,
}

/// What happens when a tool has failed too often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BreakerAction {
    /// The tool is no longer offered, and the model is told.
    #[default]
    DropTool,
    /// One last call without tools ends the run.
    ForceFinal,
}

/// Which failures of a tool the breaker counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BreakerScope {
    /// Those of its run.
    #[default]
    Run,
    /// Those of earlier runs of the conversation, too, since the tool has worked last.
    Conversation,
}

impl BreakerScope {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// When tools are offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolsPolicy {
    /// In every round.
    #[default]
    EveryRound,
    /// Only in the first model call of a run. What the model calls in later ones is carried out all the same.
    FirstRoundOnly,
    /// Until tools have run once; then the model must answer in text.
    OneRoundThenText,
    /// Never.
    None,
}

/// What a crash does to a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnInterrupt {
    /// Another attempt takes it up.
    #[default]
    Resume,
    /// It fails with `interrupted`; `resume` takes it up by hand.
    Fail,
}

/// What a tool call with an unknown outcome does to its run.
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
    /// The call runs again, whatever its class.
    Rerun,
}

/// Which runs go on with the profile's fallbacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FallbacksFor {
    /// Those that name no model: whoever names one means that one, and perhaps no other company.
    #[default]
    Unnamed,
    /// All.
    All,
}

impl FallbacksFor {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Where the title of a conversation comes from that its user gives none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TitlePolicy {
    /// From the first words of its first message.
    #[default]
    FirstWords,
    /// From a model that is asked once, after the first turn with an answer; from the first words until then, and if that fails.
    Model,
    /// From nowhere: it has none.
    None,
}

impl TitlePolicy {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// How a model says what it wants to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputMode {
    /// In words, and with the tool calls of its provider.
    #[default]
    Tools,
    /// As one JSON object per answer, which is the final answer or one call: for models without tool calls.
    Structured,
}

/// Retries of failed model calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LlmRetry {
    /// The wait before each retry, in milliseconds; as many retries as entries. The provider's `Retry-After` wins.
    pub delays_ms: Vec<u64>,
    /// The longest `Retry-After` that is obeyed; a longer one fails the run. In milliseconds.
    pub max_retry_after_ms: u64,
    /// How often a model is asked again whose answer is not of the form that was asked for.
    #[serde(skip_serializing_if = "is_two")]
    pub validation_retries: u32,
    /// The kinds of failure after which it is asked again, of those that may pass by themselves; all of them if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub classes: Option<Vec<ModelErrorKind>>,
    /// Whether a fallback that is left takes over before the same model is tried again.
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
    /// Whether a model that failed like this is asked again.
    #[must_use]
    pub fn covers(&self, kind: ModelErrorKind) -> bool {
        kind.retryable() && self.classes.as_ref().is_none_or(|classes| classes.contains(&kind))
    }
}

/// Which tool is called when a model writes a name that no tool on offer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NameRepair {
    /// None.
    #[default]
    Off,
    /// The only one that can be meant: written otherwise, without its server, or under an alias.
    Unique,
    /// Failing that, the most similar one of the same server.
    Similar,
}

/// What is mended in the tool calls of a model before they are judged. What it wrote stays in its message.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RepairPolicy {
    /// Names.
    pub names: NameRepair,
    /// Other names of tools.
    pub aliases: BTreeMap<String, String>,
    /// Whether arguments are mended that are nearly JSON.
    pub arguments: bool,
}

/// What is wrong with a profile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct InvalidProfile {
    /// The field, with `/` between its parts.
    pub field: String,
    /// Why, and what it may be.
    pub reason: String,
}

/// A versioned profile.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AgentProfile {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: u32,
    /// The groups that it is for: members who are in none of them may not use it. Everybody may if there is none, and administrators
    /// always.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub groups: BTreeSet<String>,
    /// The model, as `provider/name`.
    pub model: String,
    /// Models that take over one after the other when the one before is given up. None comes back within the run.
    pub fallbacks: Vec<String>,
    /// Which runs go on with them. Decided when a run is accepted: what it freezes are the fallbacks that it has.
    #[serde(skip_serializing_if = "FallbacksFor::is_default")]
    pub fallbacks_for: FallbacksFor,
    /// What the user reads when no model could be reached; without it, the run fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub final_text: Option<String>,
    /// Where the titles of its conversations come from.
    #[serde(skip_serializing_if = "TitlePolicy::is_default")]
    pub title: TitlePolicy,
    /// Who is asked for them, as `provider/name`; the run's model if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title_model: Option<String>,
    /// The agent's layer of the system prompt.
    pub system_prompt: String,
    /// The other layers.
    #[serde(skip_serializing_if = "PromptPolicy::is_default")]
    pub prompt: PromptPolicy,
    /// Who is asked, before each turn, what else the model should know: names of configured context providers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub context_providers: Vec<String>,
    /// How the model says what it wants to do.
    pub output: OutputMode,
    /// Options of model calls.
    pub options: ModelOptions,
    /// What those do not say, by whether a call is offered tools.
    #[serde(skip_serializing_if = "SamplingByTurn::is_default")]
    pub sampling: SamplingByTurn,
    /// How the run goes about its work.
    #[serde(skip_serializing_if = "Strategy::is_default")]
    pub strategy: Strategy,
    /// How plans are made and carried out, where the strategy is one.
    #[serde(skip_serializing_if = "PlanPolicy::is_default")]
    pub plan: PlanPolicy,
    /// Model calls with tools in one run.
    pub max_rounds: u32,
    /// What follows when they are used up.
    pub on_limit: OnLimit,
    /// When tools are offered.
    pub tools_policy: ToolsPolicy,
    /// The tools on offer by name; `None` for all.
    pub tools: Option<Vec<String>>,
    /// Which of them the model is offered if there are many.
    #[serde(skip_serializing_if = "ToolFilter::is_default")]
    pub tool_filter: ToolFilter,
    /// How much the model reads of the conversation.
    #[serde(skip_serializing_if = "ContextPolicy::is_default")]
    pub context: ContextPolicy,
    /// The longest that one tool call may take, in milliseconds.
    pub tool_timeout_ms: u64,
    /// How much of a tool's answer the model reads, in characters.
    pub tool_result_chars: usize,
    /// What is mended in calls of tools.
    pub repair: RepairPolicy,
    /// Tool calls of one reply that run at a time.
    pub tool_parallelism: u32,
    /// Tool calls of one reply that are carried out; the rest get an error result.
    pub max_parallel_calls: u32,
    /// What a failed tool call does.
    pub tool_error: ToolErrorPolicy,
    /// Failures of one tool after which the breaker acts, the last of them in the run; 0 for never.
    pub breaker_failures: u32,
    /// Where else they are counted.
    #[serde(skip_serializing_if = "BreakerScope::is_default")]
    pub breaker_scope: BreakerScope,
    /// What the breaker does.
    pub breaker_action: BreakerAction,
    /// Retries of model calls.
    pub llm_retry: LlmRetry,
    /// Consecutive rounds of nothing but repeated calls after which a final answer is forced; 0 for off.
    pub duplicate_calls: u32,
    /// Consecutive empty replies after which a final answer is forced; 0 for off.
    pub empty_replies: u32,
    /// Consecutive rounds of nothing but errors after which the model gets a hint; 0 for off.
    pub error_rounds: u32,
    /// What the words of an answer lead to.
    #[serde(skip_serializing_if = "ResponseAnalysis::is_default")]
    pub response_analysis: ResponseAnalysis,
    /// The longest that a run may take from its first start, waiting included, in milliseconds; 0 for no limit.
    pub max_run_ms: u64,
    /// Input and output tokens of one run together; 0 for no limit.
    pub max_run_tokens: u64,
    /// What may be spent beside that: money, and what other runs spend from, too.
    #[serde(skip_serializing_if = "Budget::is_default")]
    pub budget: Budget,
    /// What it takes on at all.
    #[serde(skip_serializing_if = "Admission::is_default")]
    pub admission: Admission,
    /// What a crash does.
    pub on_interrupt: OnInterrupt,
    /// What an unknown outcome does.
    pub on_unknown: OnUnknown,
    /// How long a human has to answer before the run goes on without, in milliseconds; 0 for as long as they like.
    pub ask_expires_ms: u64,
    /// When a human is asked before a tool is called.
    pub approval: ApprovalPolicy,
    /// Claims that may end in a crash before the run fails with `poison`.
    pub max_crashes: u32,
}

impl AgentProfile {
    /// Whether failures of earlier runs of its conversation count in a run.
    #[must_use]
    pub fn counts_earlier_failures(&self) -> bool {
        self.breaker_failures > 0 && self.breaker_scope == BreakerScope::Conversation
    }

    /// Looks for values that no run could be carried out with.
    ///
    /// # Errors
    /// [`InvalidProfile`]: the first one.
    pub fn check(&self) -> Result<(), InvalidProfile> {
        const MODELS: &str = "models are written provider/name, such as openai/gpt-5-mini";
        let wrong = |field: &str, reason: String| Err(InvalidProfile { field: field.to_owned(), reason });
        if let Err(error) = check_groups(&self.groups) {
            return wrong("groups", error.to_string());
        }
        if !is_model(&self.model) {
            return wrong("model", MODELS.to_owned());
        }
        if !self.fallbacks.iter().all(|model| is_model(model)) {
            return wrong("fallbacks", MODELS.to_owned());
        }
        if self.title_model.as_deref().is_some_and(|model| !is_model(model)) {
            return wrong("title_model", MODELS.to_owned());
        }
        if let Err(InvalidOption { field, reason }) = self.options.check() {
            return wrong(&format!("options/{field}"), reason.to_string());
        }
        if let Err((field, reason)) = self.sampling.check() {
            return wrong(&format!("sampling/{field}"), reason);
        }
        if let Err((field, reason)) = self.plan.check() {
            return wrong(&format!("plan/{field}"), reason);
        }
        if let Err((field, reason)) = self.response_analysis.check() {
            return wrong(&format!("response_analysis/{field}"), reason);
        }
        if let Some(kind) = self.llm_retry.classes.iter().flatten().find(|kind| !kind.retryable()) {
            return wrong(
                "llm_retry/classes",
                format!("{} does not pass by itself, so that nobody is asked again after it", kind.code()),
            );
        }
        if self.llm_retry.validation_retries as usize > MAX_RETRIES {
            return wrong("llm_retry/validation_retries", format!("must be at most {MAX_RETRIES}"));
        }
        if let Err((field, reason)) = self.check_names() {
            return wrong(&field, reason);
        }
        let k = self.tool_filter.k;
        if !(1..=ToolFilter::MAX_K).contains(&k) {
            return wrong("tool_filter/k", format!("must be 1 to {}", ToolFilter::MAX_K));
        }
        if let Err((field, reason)) = self.context.check() {
            return wrong(&format!("context/{field}"), reason);
        }
        if let Err((field, reason)) = self.budget.check() {
            return wrong(&format!("budget/{field}"), reason);
        }
        let counts = [
            ("max_rounds", u64::from(self.max_rounds)),
            ("tool_timeout_ms", self.tool_timeout_ms),
            ("tool_parallelism", u64::from(self.tool_parallelism)),
            ("max_parallel_calls", u64::from(self.max_parallel_calls)),
        ];
        if let Some((field, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
            return wrong(field, "must be at least 1".to_owned());
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
            return wrong(field, format!("must be at most {LONGEST_MS}, which is a year"));
        }
        match self.llm_retry.delays_ms.len() {
            0..=MAX_RETRIES => Ok(()),
            count => wrong("llm_retry/delays_ms", format!("has {count} entries; the most is {MAX_RETRIES}")),
        }
    }
}

impl AgentProfile {
    /// Refuses names of tools and servers that no tool or server can have. `options/tool_choice` is checked with the options.
    fn check_names(&self) -> Result<(), (String, String)> {
        for (at, tool) in self.tools.iter().flatten().enumerate() {
            check_tool_name(tool).map_err(|reason| (format!("tools/{at}"), reason))?;
        }
        for tool in self.approval.tools.keys() {
            check_tool_name(tool).map_err(|reason| (format!("approval/tools/{tool}"), reason))?;
        }
        for (alias, tool) in &self.repair.aliases {
            let checked = check_no_pattern(alias).and_then(|()| check_no_pattern(tool));
            checked.map_err(|reason| (format!("repair/aliases/{alias}"), reason))?;
        }
        for server in self.tool_filter.servers.keys() {
            check_no_pattern(server).map_err(|reason| (format!("tool_filter/servers/{server}"), reason))?;
        }
        // A `*` at the end is the one pattern that this list knows.
        let is_odd = |model: &&String| model.strip_suffix('*').unwrap_or(model).contains('*');
        match self.tool_filter.skip_models.iter().find(is_odd) {
            Some(model) => {
                Err(("tool_filter/skip_models".to_owned(), format!("{model:?}: a * may only stand at the end, as in anthropic/*")))
            }
            None => Ok(()),
        }
    }
}

/// The longest time that a profile can name, in milliseconds.
const LONGEST_MS: u64 = 366 * 24 * 3_600_000;
/// The most retries of a model call.
const MAX_RETRIES: usize = 100;

/// Whether it is written `provider/name`.
#[must_use]
pub fn is_model(model: &str) -> bool {
    model.split_once('/').is_some_and(|(provider, name)| !provider.is_empty() && !name.is_empty())
}

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
