//! What the models of a plan are asked.

use super::named::names_step;
use super::{offered, phase, result_of, step_result};
use crate::domain::agent::OutputMode;
use crate::domain::message::{Message, Role};
use crate::domain::model::{ModelOptions, ModelRequest};
use crate::domain::plan::{Plan, PlanPhase};
use crate::domain::record::RunRecord;
use crate::engine::source::Source;
use crate::engine::{context, history, offer, prompt, structured};
use crate::support::text::prefix_chars;

/// So many messages of the conversation the planner reads.
const READ_MESSAGES: usize = 6;

/// An earlier result is given to a step whole up to so many characters,
const WHOLE_RESULT: usize = 200;

/// and of a longer one so many.
const CUT_RESULT: usize = 150;

/// How much of a result is told, in characters.
const TOLD_RESULT: usize = 500;

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

/// The request of the next model step, or of the one that is under way, if a plan has it made.
pub(in crate::engine) fn request(source: &Source<'_>) -> Option<ModelRequest> {
    let record = source.record;
    let plan = record.counters.plan.as_ref()?;
    let profile = &record.profile;
    // Whoever reads what the user says, or speaks to them, does so under the layers that hold for every model of the run.
    let under_layers = |own: &str| [prompt::system(source).as_str(), own].join("\n\n");
    let mut options = ModelOptions { tool_choice: None, output_schema: None, ..profile.options.clone() };
    let mut tools = Vec::new();
    let (system, messages) = match phase(record)? {
        PlanPhase::Planning => {
            let areas = offer::areas(&profile.tool_filter, &source.usable());
            let messages = newest(history::sendable(source));
            let again = plan.short.as_ref().map(|step| format!("\n\n{AGAIN}{}", step.description)).unwrap_or_default();
            let examples = match profile.plan.examples.as_str() {
                "" => String::new(),
                examples => format!("\n\nExamples:\n{examples}"),
            };
            (under_layers(&format!("{PLANNER}{examples}\n\nThe areas:{areas}{again}")), messages)
        }
        PlanPhase::Executing => {
            tools = offered(source.usable(), record, PlanPhase::Executing).into_iter().cloned().collect();
            (ROUTER.to_owned(), vec![history::user_text(record, None, &step_text(record, plan))])
        }
        PlanPhase::Telling => {
            options.output_schema = profile.options.output_schema.clone();
            (under_layers(TELLER), vec![history::user_text(record, None, &told_text(source, plan))])
        }
        PlanPhase::Over => return None,
    };
    profile.sampling.fill(&mut options, phase(record) != Some(PlanPhase::Telling));
    let (owner, model) = (Some(record.owner.clone()), record.model().to_owned());
    let is_planning = phase(record) == Some(PlanPhase::Planning);
    let window = source.said_window();
    let mut request = ModelRequest { owner, model, system: system.trim().to_owned(), messages, tools, options, window };
    if is_planning {
        let mut messages = std::mem::take(&mut request.messages);
        context::fit(source, &request, &mut messages);
        request.messages = messages;
    }
    match profile.output {
        OutputMode::Structured if !request.tools.is_empty() => structured::project(&mut request),
        OutputMode::Structured | OutputMode::Tools => {}
    }
    Some(request)
}

/// The newest messages, from one of the user on.
fn newest(mut messages: Vec<Message>) -> Vec<Message> {
    let from = messages.len().saturating_sub(READ_MESSAGES);
    let first = messages.iter().skip(from).position(|message| message.role == Role::User).map_or(0, |at| from + at);
    messages.drain(..first);
    messages
}

/// A step, with the results that it builds on: the one before it, and those that it names.
fn step_text(record: &RunRecord, plan: &Plan) -> String {
    let Some(step) = plan.steps.get(plan.at) else { return String::new() };
    let mut text = format!("The step: {}", step.description);
    if let Some(server) = &step.server {
        text.push_str(&format!("\nIts area: {server}"));
    }
    let needed = (0..plan.at).filter(|before| before + 1 == plan.at || names_step(&step.description, *before));
    for before in needed {
        let result = step_result(record, &plan.steps[before]);
        let result = if result.chars().count() <= WHOLE_RESULT { result.as_str() } else { prefix_chars(&result, CUT_RESULT) };
        text.push_str(&format!("\nResult of step {}: {result}", before + 1));
    }
    if plan.tries > 0 {
        text.push_str("\nYou have called no tool. Call exactly one now.");
    }
    text
}

/// What the user wants, and a line for each step.
fn told_text(source: &Source<'_>, plan: &Plan) -> String {
    let mut text = format!("The user has asked:\n{}\n\nThe steps:", source.said_by_user());
    for (step, number) in plan.steps.iter().zip(1..) {
        let (word, result) = result_of(source.record, step, TOLD_RESULT);
        text.push_str(&format!("\n{number}. {} - {word}: {result}", step.description));
    }
    text
}
