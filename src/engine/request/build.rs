//! Builds the request of a model call: once, so that what is measured is what is sent. Must not know what follows from a request
//! that is too large.

use std::sync::Arc;

use crate::domain::agent::OutputMode;
use crate::domain::conversation::message::Message;
use crate::domain::conversation::summary;
use crate::domain::model::{ModelOptions, ModelRequest, ToolChoice};
use crate::domain::run::record::RunRecord;
use crate::domain::tool::ToolDefinition;
use crate::engine::machine::RunState;
use crate::engine::offer::usable::Missing;
use crate::engine::request::source::Source;
use crate::engine::request::system_prompt;
use crate::engine::request::transcript::sendable;
use crate::engine::request::window::estimate::{self, Measure};
use crate::engine::request::window::room::{self, Room};
use crate::engine::strategy::json_answers::project;
use crate::engine::strategy::plan;

/// A request before tools are put into words.
pub struct Prepared {
    pub frame: ModelRequest,
    /// The frame as its model reads it, if tools are put into words.
    projected: Option<ModelRequest>,
    pub messages: Vec<Message>,
}

impl Prepared {
    /// Builds a request of the loop, from which nothing is cut.
    pub fn uncut(source: &Source<'_>) -> Self {
        let frame = frame(source);
        let mut messages = sendable(source);
        room::compress(source, &mut messages);
        let projected = match source.record.profile.output {
            OutputMode::Tools => None,
            OutputMode::Structured => {
                let mut projected = frame.clone();
                project(&mut projected);
                Some(projected)
            }
        };
        Self { frame, projected, messages }
    }

    pub fn cut(&mut self, source: &Source<'_>) {
        room::cut(source, self.projected.as_ref().unwrap_or(&self.frame), &mut self.messages);
    }

    pub fn cost(&self, measure: Measure) -> u64 {
        estimate::request(measure, self.projected.as_ref().unwrap_or(&self.frame), &self.messages)
    }

    /// Returns the cost in tokens, also if the budget counts characters.
    pub fn tokens(&self, source: &Source<'_>) -> u64 {
        self.cost(match Measure::of(source) {
            Measure::Chars => Measure::Estimate,
            measure @ (Measure::Estimate | Measure::Count(_)) => measure,
        })
    }

    /// Returns the use of the budget, if there is one.
    pub fn room(&self, source: &Source<'_>) -> Option<Room> {
        let has_budget = source.record.profile.context.budget(source.capacity().window).is_some();
        has_budget.then(|| Room::of(source, |measure| self.cost(measure)))
    }

    pub fn into_request(self) -> ModelRequest {
        let mut request = ModelRequest { messages: self.messages, ..self.frame };
        if self.projected.is_some() {
            project(&mut request);
        }
        request
    }
}

/// Builds the request of the next model step, or of the one under way, cut to its budget.
pub fn prepared(source: &Source<'_>) -> Prepared {
    if let Some(mut request) = plan::request::request(source) {
        let messages = std::mem::take(&mut request.messages);
        return Prepared { frame: request, projected: None, messages };
    }
    let mut prepared = Prepared::uncut(source);
    prepared.cut(source);
    prepared
}

pub fn model_request(state: &RunState) -> ModelRequest {
    prepared(&Source::of(state)).into_request()
}

/// Returns whether tokens are counted for the run's budget, which takes long for the first time.
pub fn counts_tokens(state: &RunState) -> bool {
    let source = Source::of(state);
    Measure::of(&source).tokenizer().is_some() && source.record.profile.context.budget(source.capacity().window).is_some()
}

/// Counts the tokens of all that the model may read, so that later counts find them in the cache.
pub fn count_ahead(state: &RunState) {
    let source = Source::of(state);
    Prepared::uncut(&source).cost(Measure::of(&source));
}

fn frame(source: &Source<'_>) -> ModelRequest {
    let record = source.record;
    let tools = source.offered();
    let mut options = ModelOptions { tool_choice: choice_among(record, &tools), ..record.profile.options.clone() };
    let tools: Vec<Arc<ToolDefinition>> = match source.missing() {
        // Options that force or form the user's answer are for the next call.
        Missing::Categories => {
            (options.tool_choice, options.output_schema) = (None, None);
            vec![Arc::new(source.selector())]
        }
        Missing::Nothing | Missing::Ranking => tools.into_iter().cloned().collect(),
    };
    record.profile.sampling.fill(&mut options, !tools.is_empty());
    ModelRequest {
        owner: Some(record.owner.clone()),
        model: record.model().to_owned(),
        system: system(source),
        tools,
        options,
        window: source.said_window(),
        ..ModelRequest::default()
    }
}

/// Returns the instructions and the summary.
fn system(source: &Source<'_>) -> String {
    let prompt = system_prompt::system(source);
    match source.record.summary.as_ref().and_then(summary::section) {
        None => prompt,
        Some(section) if prompt.is_empty() => section,
        Some(section) => format!("{prompt}\n\n{section}"),
    }
}

/// Returns which tools the current model step may or must call.
pub fn tool_choice(state: &RunState) -> Option<ToolChoice> {
    choice_among(&state.record, &Source::of(state).offered_in_step())
}

fn choice_among(record: &RunRecord, tools: &[&Arc<ToolDefinition>]) -> Option<ToolChoice> {
    let choice = record.profile.options.tool_choice.as_ref();
    let may_be = may_be_forced(choice, record.counters.rounds, tools);
    choice.filter(|_| may_be).cloned()
}

/// A choice that forces a call holds for the first answer only, or the run could never end. Providers refuse a choice without
/// tools, or of a tool that is not on offer.
fn may_be_forced(choice: Option<&ToolChoice>, rounds: u32, tools: &[&Arc<ToolDefinition>]) -> bool {
    match choice {
        None => false,
        Some(ToolChoice::Auto | ToolChoice::None) => !tools.is_empty(),
        Some(ToolChoice::Required) => rounds == 0 && !tools.is_empty(),
        Some(ToolChoice::Tool(name)) => rounds == 0 && tools.iter().any(|tool| tool.name == *name),
    }
}
