//! Builds the requests to the models of a plan.

use crate::domain::agent::OutputMode;
use crate::domain::conversation::{Message, Role};
use crate::domain::model::{ModelOptions, ModelRequest};
use crate::domain::run::{Plan, PlanPhase, RunRecord};
use crate::engine::offer::categories::describe_categories;
use crate::engine::request::request_source::RequestSource;
use crate::engine::request::system_prompt;
use crate::engine::request::transcript::{sendable, user_text};
use crate::engine::request::window::remaining;
use crate::engine::strategy::json_answers::{Reasons, project};
use crate::engine::strategy::plan::progress::{offered, phase, result_of};
use crate::engine::strategy::plan::step_references::names_step;
use crate::support::text::prefix_chars;

/// Messages of the conversation that the planner reads.
const READ_MESSAGES: usize = 6;

/// The longest earlier result, in characters, that a step's request contains in full.
const WHOLE_RESULT: usize = 200;

/// The length to which a longer result is cut.
const CUT_RESULT: usize = 150;

/// The limits for results in a step's request; a smaller one applies if the request would not fit.
const RESULT_LIMITS: [usize; 3] = [WHOLE_RESULT, 100, 50];

/// The limits for results, and for the user's text and the steps, in a report: results are shortened first, until the request fits. All
/// steps and their success are always included.
const REPORT_LIMITS: [(usize, usize); 10] = [
    (500, MAX_TEXT_CHARS),
    (250, MAX_TEXT_CHARS),
    (120, MAX_TEXT_CHARS),
    (60, MAX_TEXT_CHARS),
    (0, MAX_TEXT_CHARS),
    (0, 1_000),
    (0, 500),
    (0, 250),
    (0, 120),
    (0, 60),
];

const MAX_TEXT_CHARS: usize = 4_000;

const PLANNER: &str = "You plan the work that a user asks for. You call no tools yourself; another model carries out one step after the other. It sees \
     only that step, and results of earlier ones.\n\
     Write one line for each step, and nothing else:\n\
     [step(\"AREA\", \"what is to be done\")]\n\
     and close with [done()]. The rules:\n\
     - Each step is one call of one tool of one area. Split what the user wants at every \"and\", \"then\" and \"also\".\n\
     - Each step is whole in itself: copy names, paths, numbers and words of the user into it as they are.\n\
     - A step that needs the result of another one says so: \"step 2\".\n\
     - Use only the areas below. Make up nothing.\n\
     - If no tool is needed, write [answer(\"your answer to the user\")] instead.";

const AGAIN: &str = "The user seems to want more than one thing, and you have planned one step only. Plan again, with a step for each. That step \
     was: ";

const ROUTER: &str = "Carry out the one step that you are given by calling exactly one tool, the one that fits it best. Take paths, names and values from \
     the words of the step, and from the earlier results if it speaks of them. Do not answer in words.";

const TELLER: &str = "The work that the user has asked for was carried out in the steps below. Tell the user what was done and what was found, in their \
     language. Report only what is marked as ok as done. Report what is marked as failed as failed, with its reason. Make up nothing, and offer \
     nothing.";

/// Returns the request of the next model step, or of the open one, if it belongs to a plan.
pub fn request(source: &RequestSource<'_>) -> Option<ModelRequest> {
    let plan = source.record.counters.plan.as_ref()?;
    match phase(source.record)? {
        PlanPhase::Planning => Some(planner(source, plan)),
        PlanPhase::Executing => first_that_fits(source, RESULT_LIMITS.into_iter().map(|most| router(source, plan, most))),
        PlanPhase::Telling => first_that_fits(
            source,
            REPORT_LIMITS.into_iter().map(|(result, words)| final_answer_request(source, plan, result, words)),
        ),
        PlanPhase::Over => None,
    }
}

/// Returns the first request that fits, or the last and shortest one.
fn first_that_fits(source: &RequestSource<'_>, requests: impl Iterator<Item = ModelRequest>) -> Option<ModelRequest> {
    let mut last = None;
    for request in requests {
        if remaining::fits(source, &request) {
            return Some(request);
        }
        last = Some(request);
    }
    last
}

fn planner(source: &RequestSource<'_>, plan: &Plan) -> ModelRequest {
    let profile = &source.record.profile;
    let areas = describe_categories(&profile.tool_filter, &source.usable());
    let again = plan.short.as_ref().map(|step| format!("\n\n{AGAIN}{}", step.description)).unwrap_or_default();
    let examples = match profile.plan.examples.as_str() {
        "" => String::new(),
        examples => format!("\n\nExamples:\n{examples}"),
    };
    let system = with_prompt_layers(source, &format!("{PLANNER}{examples}\n\nThe areas:{areas}{again}"));
    let mut request = framed(source, &system, options(source, PlanPhase::Planning));
    let mut messages = newest(sendable(source));
    remaining::compress(source, &request, &mut messages);
    remaining::cut(source, &request, &mut messages);
    request.messages = messages;
    request
}

fn router(source: &RequestSource<'_>, plan: &Plan, most: usize) -> ModelRequest {
    let record = source.record;
    let mut request = framed(source, ROUTER, options(source, PlanPhase::Executing));
    request.tools = offered(source.usable(), record, PlanPhase::Executing).into_iter().cloned().collect();
    request.messages = vec![user_text(record, None, &step_text(record, plan, most))];
    match record.profile.output {
        OutputMode::Structured if !request.tools.is_empty() => project(&mut request, Reasons::NotAsked),
        OutputMode::Structured | OutputMode::Tools => {}
    }
    request
}

fn final_answer_request(source: &RequestSource<'_>, plan: &Plan, result: usize, words: usize) -> ModelRequest {
    let mut options = options(source, PlanPhase::Telling);
    options.output_schema = source.record.profile.options.output_schema.clone();
    let mut request = framed(source, &with_prompt_layers(source, TELLER), options);
    request.messages = vec![user_text(source.record, None, &plan_results_text(source, plan, result, words))];
    request
}

/// Adds the layers of the system prompt, which apply to models that read the user's text or write to the user.
fn with_prompt_layers(source: &RequestSource<'_>, own: &str) -> String {
    [system_prompt::system(source).as_str(), own].join("\n\n")
}

fn options(source: &RequestSource<'_>, phase: PlanPhase) -> ModelOptions {
    let profile = &source.record.profile;
    let mut options = ModelOptions { tool_choice: None, output_schema: None, ..profile.options.clone() };
    profile.sampling.fill(&mut options, phase != PlanPhase::Telling);
    options
}

fn framed(source: &RequestSource<'_>, system: &str, options: ModelOptions) -> ModelRequest {
    let record = source.record;
    ModelRequest {
        owner: Some(record.owner.clone()),
        model: record.model().to_owned(),
        system: system.trim().to_owned(),
        options,
        window: source.agent_window(),
        ..ModelRequest::default()
    }
}

/// Keeps the newest messages, from a user message on.
fn newest(mut messages: Vec<Message>) -> Vec<Message> {
    let from = messages.len().saturating_sub(READ_MESSAGES);
    let first = messages.iter().skip(from).position(|message| message.role == Role::User).map_or(0, |at| from + at);
    messages.drain(..first);
    messages
}

/// Describes a step with the results that it builds on: of the previous step, and of the steps that it names.
fn step_text(record: &RunRecord, plan: &Plan, most: usize) -> String {
    let Some(step) = plan.steps.get(plan.at) else { return String::new() };
    let mut text = format!("The step: {}", step.description);
    if let Some(server) = &step.server {
        text.push_str(&format!("\nIts area: {server}"));
    }
    let needed = (0..plan.at).filter(|before| before + 1 == plan.at || names_step(&step.description, *before));
    for before in needed {
        let (word, result) = result_of(record, &plan.steps[before], WHOLE_RESULT + 1);
        let limit = if result.chars().count() <= WHOLE_RESULT { WHOLE_RESULT } else { CUT_RESULT };
        text.push_str(&format!("\nResult of step {}: {word}: {}", before + 1, prefix_chars(&result, limit.min(most))));
    }
    if plan.tries > 0 {
        text.push_str("\nYou have called no tool. Call exactly one now.");
    }
    text
}

/// Describes the user's request, and each step with its result.
fn plan_results_text(source: &RequestSource<'_>, plan: &Plan, result: usize, words: usize) -> String {
    let user_text = source.text_of_user_messages();
    let mut text = format!("The user has asked:\n{}\n\nThe steps:", prefix_chars(&user_text, words));
    for (step, number) in plan.steps.iter().zip(1..) {
        let (word, result) = result_of(source.record, step, result);
        text.push_str(&format!("\n{number}. {} - {word}: {result}", prefix_chars(&step.description, words)));
    }
    text
}
