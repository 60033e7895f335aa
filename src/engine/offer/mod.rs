//! Which tools a model call is offered, of all that its run may use.
//!
//! Owns the rules. What was chosen stands in the run's counters, so that whoever takes the run up offers the same; the choice
//! is made anew when a message joins. Must not know how tools are ranked: that may ask a model outside, and comes as an input.
//! What is not on offer may be called all the same, and is offered from then on.

mod categories;
mod pick;

pub(super) use categories::{areas, selector};
use categories::{categories, named_by, place};
pub(super) use pick::best;

use std::collections::HashSet;
use std::sync::Arc;

use super::draft::Draft;
use super::source::Source;
use super::{Command, RunState, model_step, plan};
use crate::domain::agent::ToolsPolicy;
use crate::domain::change::StepKind;
use crate::domain::ids::RunId;
use crate::domain::message::{Message, Role};
use crate::domain::model::{ModelTurn, ToolChoice};
use crate::domain::record::RunRecord;
use crate::domain::tool::{ASK_USER, ToolDefinition};
use crate::domain::tool_filter::{ChosenBy, ChosenTools, RankedTools, ToolFilterMode, ToolsOffered};
use crate::support::{text, words};

/// How much is searched by of what was said, in characters.
const MAX_QUERY: usize = 4_000;

/// A user who says fewer words than this, such as "yes, do it", is understood by what was said before, too.
const FEW_WORDS: usize = 8;

/// How much of that, in characters: enough for what "it" is, not enough to drown a new question.
const MAX_EARLIER: usize = 400;

/// What is missing before the next model call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    /// Nothing.
    Nothing,
    /// An order of the tools.
    Ranking,
    /// The model's word on categories: the next call asks for it.
    Categories,
}

/// The tools that a run may use now, whether they are on offer or not.
pub(super) fn usable<'t>(tools: &'t [Arc<ToolDefinition>], record: &RunRecord) -> Vec<&'t Arc<ToolDefinition>> {
    let (profile, counters) = (&record.profile, &record.counters);
    let withheld = counters.force_final
        || match profile.tools_policy {
            ToolsPolicy::EveryRound => false,
            ToolsPolicy::FirstRoundOnly => counters.rounds > 0,
            ToolsPolicy::OneRoundThenText => record.calls.iter().any(|call| call.step > counters.heard_step),
            ToolsPolicy::None => true,
        };
    if withheld { Vec::new() } else { permitted(tools, record) }
}

/// The tools that the model may call now. What is on offer in the first round only may be called in later ones, too: whoever knows of
/// it has not used up their rounds.
pub(super) fn callable<'t>(tools: &'t [Arc<ToolDefinition>], record: &RunRecord) -> Vec<&'t Arc<ToolDefinition>> {
    match record.profile.tools_policy {
        ToolsPolicy::FirstRoundOnly if !record.counters.force_final => permitted(tools, record),
        ToolsPolicy::EveryRound | ToolsPolicy::FirstRoundOnly | ToolsPolicy::OneRoundThenText | ToolsPolicy::None => {
            usable(tools, record)
        }
    }
}

/// Those that the run may use at all, but for what it has lost on the way.
fn permitted<'t>(tools: &'t [Arc<ToolDefinition>], record: &RunRecord) -> Vec<&'t Arc<ToolDefinition>> {
    let (profile, counters) = (&record.profile, &record.counters);
    tools
        .iter()
        .filter(|tool| profile.tools.as_ref().is_none_or(|wanted| wanted.contains(&tool.name)))
        .filter(|tool| !counters.dropped_tools.contains(&tool.name))
        .filter(|tool| !counters.quarantined_tools.contains(&tool.name))
        .collect()
}

/// The choice that holds for the model that is asked now.
fn chosen(record: &RunRecord) -> Option<&ChosenTools> {
    let filter = &record.profile.tool_filter;
    let is_on = filter.mode != ToolFilterMode::Off && !filter.skips(record.model());
    record.counters.chosen_tools.as_ref().filter(|_| is_on)
}

/// Those of the usable tools that a model call is offered. No provider shall see a call of a tool that it is not told of, so
/// what was called in the history that it is shown is always among them.
pub(super) fn offered<'t, 'm>(
    usable: Vec<&'t Arc<ToolDefinition>>,
    record: &RunRecord,
    history: impl Iterator<Item = &'m Message>,
) -> Vec<&'t Arc<ToolDefinition>> {
    let Some(chosen) = chosen(record) else { return usable };
    let own: HashSet<&str> = chosen.names.iter().map(String::as_str).collect();
    let is_chosen = |tool: &ToolDefinition| match chosen.by {
        ChosenBy::Semantic | ChosenBy::Lexical => own.contains(tool.name.as_str()),
        ChosenBy::Categories => own.contains(place(tool)),
    };
    let mut names: HashSet<&str> = HashSet::new();
    names.extend(record.calls.iter().map(|call| call.name.as_str()));
    names.extend(history.flat_map(Message::tool_calls).map(|call| call.name.as_str()));
    if let Some(ToolChoice::Tool(name)) = &record.profile.options.tool_choice {
        names.insert(name);
    }
    let asks_user = |tool: &ToolDefinition| tool.server.is_none() && tool.tool == ASK_USER;
    usable.into_iter().filter(|tool| is_chosen(tool) || asks_user(tool) || names.contains(tool.name.as_str())).collect()
}

/// What is missing before a model call with these tools.
pub(super) fn missing(usable: &[&Arc<ToolDefinition>], record: &RunRecord) -> Missing {
    // The models of a plan have their own.
    if plan::phase(record).is_some() {
        return Missing::Nothing;
    }
    let filter = &record.profile.tool_filter;
    let may_call = record.profile.options.tool_choice != Some(ToolChoice::None);
    if record.counters.chosen_tools.is_some() || filter.skips(record.model()) || !may_call {
        return Missing::Nothing;
    }
    match filter.mode {
        ToolFilterMode::Off => Missing::Nothing,
        ToolFilterMode::Semantic if usable.len() > filter.k => Missing::Ranking,
        ToolFilterMode::Categories if usable.len() > filter.above => {
            // Where there is nothing to choose among, or nothing was chosen, the order decides.
            let may_choose = !record.counters.named_no_category && categories(usable).len() > 1;
            if may_choose { Missing::Categories } else { Missing::Ranking }
        }
        ToolFilterMode::Semantic | ToolFilterMode::Categories => Missing::Nothing,
    }
}

/// What is missing before the next model call of a run.
pub(super) fn missing_in(state: &RunState) -> Missing {
    if state.record.profile.tool_filter.mode == ToolFilterMode::Off {
        return Missing::Nothing;
    }
    missing(&state.usable_tools(), &state.record)
}

/// The same in a decision.
fn missing_now(draft: &Draft<'_>) -> Missing {
    if draft.profile().tool_filter.mode == ToolFilterMode::Off {
        return Missing::Nothing;
    }
    missing(&usable(draft.tools(), &draft.work.record), &draft.work.record)
}

/// Whether the model call waits for an order of the tools. It is asked for then.
pub(super) fn waits_for_ranking(draft: &mut Draft<'_>) -> bool {
    let waits = missing_now(draft) == Missing::Ranking;
    if waits {
        draft.command(Command::RankTools);
    }
    waits
}

/// The tools are in order.
pub(super) fn ranked(draft: &mut Draft<'_>, ranked: RankedTools) {
    if plan::ranked(draft, &ranked) {
        return;
    }
    // A model step that is open is one whose worker died: it begins again, and no call is under way while its tools are missing.
    if draft.open_tool_step().is_some() || missing_now(draft) != Missing::Ranking {
        return;
    }
    let filter = &draft.profile().tool_filter;
    let said = said_in(&draft.base.record);
    let names = best(filter, &usable(draft.tools(), &draft.work.record), &said, &ranked.names);
    draft.counters().chosen_tools = Some(ChosenTools { by: ranked.by, names });
    model_step::begin(draft);
}

/// The model was asked for categories and has answered. Nothing of the answer is kept: what it was for stands in the counters.
pub(super) fn categories_named(draft: &mut Draft<'_>, step: u32, message: &Message, turn: &ModelTurn) {
    let usable = usable(draft.tools(), &draft.work.record);
    let names = named_by(message, &usable);
    let counters = draft.counters();
    counters.named_no_category = names.is_none();
    counters.chosen_tools = names.map(|names| ChosenTools { by: ChosenBy::Categories, names });
    draft.complete_step(step, Some(turn.usage));
    model_step::begin(draft);
}

/// How many tools a step that begins is offered, where they are narrowed down.
pub(super) fn announced(draft: &Draft<'_>, kind: StepKind) -> Option<ToolsOffered> {
    if kind != StepKind::Model || draft.profile().tool_filter.mode == ToolFilterMode::Off {
        return None;
    }
    let record = &draft.work.record;
    let usable = usable(draft.tools(), record);
    let of = usable.len();
    if missing(&usable, record) == Missing::Categories {
        return Some(ToolsOffered { offered: 0, of, by: "choosing".to_owned() });
    }
    let by = chosen(record)?.by.as_str().to_owned();
    Some(ToolsOffered { offered: Source::in_draft(draft).offered().len(), of, by })
}

/// What the tools of a run are searched by: what its user says in its turn, the newest first, and what was said before if that
/// is next to nothing.
#[must_use]
pub fn tool_query(state: &RunState) -> String {
    let record = &state.record;
    if let Some(query) = plan::query(record) {
        return text::prefix_chars(&query, MAX_QUERY).to_owned();
    }
    let mut query = said_in(record);
    if words::words(&query).len() < FEW_WORDS {
        let turn = turn(record.history.iter());
        let earlier = record.history.iter().rev().filter(|message| match message.role {
            Role::User => !message.internal && Some(&message.run_id) != turn,
            Role::Assistant => true,
            Role::Tool => false,
        });
        // The last exchange.
        for message in earlier.take(2) {
            query.push('\n');
            query.push_str(text::prefix_chars(&message.text(), MAX_EARLIER / 2));
        }
    }
    text::prefix_chars(query.trim(), MAX_QUERY).to_owned()
}

fn said_in(record: &RunRecord) -> String {
    said_by_user(record.history.iter())
}

/// The newest run that a user has spoken in. A run that goes on from another one, or makes it again, has no message of its own: it
/// answers what that one was asked.
pub(super) fn turn<'m>(history: impl DoubleEndedIterator<Item = &'m Message>) -> Option<&'m RunId> {
    history.rev().find(|message| is_said_by_user(message)).map(|message| &message.run_id)
}

fn is_said_by_user(message: &Message) -> bool {
    message.role == Role::User && !message.internal
}

/// What the user says in the turn, the newest first.
pub(super) fn said_by_user<'m>(history: impl DoubleEndedIterator<Item = &'m Message> + Clone) -> String {
    let turn = turn(history.clone());
    let own = history.rev().filter(|message| is_said_by_user(message) && Some(&message.run_id) == turn);
    let mut said = String::new();
    for message in own {
        said.push_str(text::prefix_chars(&message.text(), MAX_QUERY));
        said.push('\n');
    }
    text::prefix_chars(said.trim(), MAX_QUERY).to_owned()
}
