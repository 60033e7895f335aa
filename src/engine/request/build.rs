//! Builds the request of a model call once, so that the measured request is the one that is sent. Must not know the consequences of a
//! request that is too large.

use std::sync::Arc;

use crate::domain::agent::OutputMode;
use crate::domain::conversation::{Message, eviction_summary};
use crate::domain::model::{ModelOptions, ModelRequest, ToolChoice};
use crate::domain::run::RunRecord;
use crate::domain::tool::ToolDefinition;
use crate::engine::machine::RunState;
use crate::engine::offer::usable::Prerequisite;
use crate::engine::request::request_source::RequestSource;
use crate::engine::request::system_prompt;
use crate::engine::request::transcript::sendable;
use crate::engine::request::window::estimate::{self, Measure};
use crate::engine::request::window::remaining::{self, TokenBudget};
use crate::engine::strategy::json_answers::{Reasons, project};
use crate::engine::strategy::plan;

/// A request before its tools are described as text.
pub struct PreparedRequest {
    pub frame: ModelRequest,
    /// The request without messages as it is sent, if tools are described as text.
    projected: Option<ModelRequest>,
    reasons: Reasons,
    pub messages: Vec<Message>,
}

impl PreparedRequest {
    /// Builds a request of the loop before it is cut to the budget.
    pub fn uncut(source: &RequestSource<'_>) -> Self {
        let frame = frame(source);
        let mut messages = sendable(source);
        let reasons = if system_prompt::asks_reasons(source) { Reasons::Asked } else { Reasons::NotAsked };
        let projected = match source.record.profile.output {
            OutputMode::Tools => None,
            OutputMode::Structured => {
                let mut projected = frame.clone();
                project(&mut projected, reasons);
                Some(projected)
            }
        };
        remaining::compress(source, projected.as_ref().unwrap_or(&frame), &mut messages);
        Self { frame, projected, reasons, messages }
    }

    pub fn cut(&mut self, source: &RequestSource<'_>) {
        remaining::cut(source, self.projected.as_ref().unwrap_or(&self.frame), &mut self.messages);
    }

    pub fn cost(&self, measure: Measure) -> u64 {
        estimate::request(measure, self.projected.as_ref().unwrap_or(&self.frame), &self.messages)
    }

    /// Returns the cost in tokens, even if the budget counts characters.
    pub fn tokens(&self, source: &RequestSource<'_>) -> u64 {
        self.cost(match Measure::of(source) {
            Measure::Chars => Measure::Estimate,
            measure @ (Measure::Estimate | Measure::Count(_)) => measure,
        })
    }

    /// Returns how much of the budget the request uses, or `None` without a budget.
    pub fn token_budget(&self, source: &RequestSource<'_>) -> Option<TokenBudget> {
        let has_budget = source.record.profile.context.budget(source.capacity().window).is_some();
        has_budget.then(|| TokenBudget::of(source, |measure| self.cost(measure)))
    }

    pub fn into_request(self) -> ModelRequest {
        let mut request = ModelRequest { messages: self.messages, ..self.frame };
        if self.projected.is_some() {
            project(&mut request, self.reasons);
        }
        request
    }
}

/// Builds the request of the next model step, or of the open one, cut to its budget.
pub fn prepare_request(source: &RequestSource<'_>) -> PreparedRequest {
    if let Some(mut request) = plan::request::request(source) {
        let messages = std::mem::take(&mut request.messages);
        return PreparedRequest { frame: request, projected: None, reasons: Reasons::NotAsked, messages };
    }
    let mut prepared = PreparedRequest::uncut(source);
    prepared.cut(source);
    prepared
}

pub fn model_request(state: &RunState) -> ModelRequest {
    prepare_request(&RequestSource::of(state)).into_request()
}

/// Returns whether the run's budget counts tokens with a tokenizer, which is slow the first time.
pub fn counts_tokens(state: &RunState) -> bool {
    let source = RequestSource::of(state);
    Measure::of(&source).tokenizer().is_some() && source.record.profile.context.budget(source.capacity().window).is_some()
}

/// Counts the tokens of everything that the model may read, to fill the cache for later counts.
pub fn count_ahead(state: &RunState) {
    let source = RequestSource::of(state);
    PreparedRequest::uncut(&source).cost(Measure::of(&source));
}

fn frame(source: &RequestSource<'_>) -> ModelRequest {
    let record = source.record;
    let tools = source.offered();
    let mut options = ModelOptions { tool_choice: choice_among(record, &tools), ..record.profile.options.clone() };
    let tools: Vec<Arc<ToolDefinition>> = match source.missing_prerequisite() {
        // Options that force a call, or set the schema of the answer, apply only to the call after the selection of categories.
        Prerequisite::Categories => {
            (options.tool_choice, options.output_schema) = (None, None);
            vec![Arc::new(source.category_selector())]
        }
        Prerequisite::Nothing | Prerequisite::Ranking => tools.into_iter().cloned().collect(),
    };
    record.profile.sampling.fill(&mut options, !tools.is_empty());
    ModelRequest {
        owner: Some(record.owner.clone()),
        model: record.model().to_owned(),
        system: system(source),
        tools,
        options,
        window: source.agent_window(),
        ..ModelRequest::default()
    }
}

/// Returns the system prompt, followed by the summary of evicted messages.
fn system(source: &RequestSource<'_>) -> String {
    let prompt = system_prompt::system(source);
    match source.record.summary.as_ref().and_then(eviction_summary::section) {
        None => prompt,
        Some(section) if prompt.is_empty() => section,
        Some(section) => format!("{prompt}\n\n{section}"),
    }
}

/// Returns which tools the current model step may or must call.
pub fn tool_choice(state: &RunState) -> Option<ToolChoice> {
    choice_among(&state.record, &RequestSource::of(state).offered_in_step())
}

fn choice_among(record: &RunRecord, tools: &[&Arc<ToolDefinition>]) -> Option<ToolChoice> {
    let choice = record.profile.options.tool_choice.as_ref();
    let may_be = may_be_forced(choice, record.counters.rounds, tools);
    choice.filter(|_| may_be).cloned()
}

/// Returns whether a choice may be sent. A choice that forces a call is sent only in the first round, or the run would never end.
/// Providers refuse a forced choice without tools, or of a tool that is not on offer.
fn may_be_forced(choice: Option<&ToolChoice>, rounds: u32, tools: &[&Arc<ToolDefinition>]) -> bool {
    match choice {
        None => false,
        Some(ToolChoice::Auto | ToolChoice::None) => !tools.is_empty(),
        Some(ToolChoice::Required) => rounds == 0 && !tools.is_empty(),
        Some(ToolChoice::Tool(name)) => rounds == 0 && tools.iter().any(|tool| tool.name == *name),
    }
}
