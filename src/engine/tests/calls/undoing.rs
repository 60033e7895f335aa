//! Runs that undo a tool call.

use std::sync::Arc;

use rstest::rstest;
use serde_json::{Map, json};

use crate::domain::agent::AgentProfile;
use crate::domain::conversation::message::Part;
use crate::domain::run::RunStatus;
use crate::domain::run::plan::Strategy;
use crate::domain::run::record::ClaimCause;
use crate::domain::run::undo::UndoRule;
use crate::domain::tool::ToolCallState::{self, Done, Failed, Unknown};
use crate::domain::tool::{ReplayClass, ToolDefinition, ToolOutcome};
use crate::engine::Command;
use crate::engine::tests::world::{World, call, done, tool, tools};

/// Returns a run whose only call undoes another one, under way.
fn undoing(profile: AgentProfile) -> World {
    let mut world = World::started(AgentProfile::default());
    world.calls(&[call("write", &json!({"n": 1}))]);
    world.die();
    world.rows.profile = Arc::new(profile);
    let call = Arc::make_mut(&mut world.rows.calls[0]);
    (call.undoes, call.state) = (Some(call.id.clone()), ToolCallState::Planned);
    world.rows.tools = Some(tools());
    world.claim(ClaimCause::HandedBack);
    world
}

#[rstest]
#[case(Done, RunStatus::Completed, "")]
#[case(Failed, RunStatus::Failed, "tool_failed")]
#[case(Unknown, RunStatus::Failed, "tool_outcome_unknown")]
fn no_model_is_asked_about_it(
    #[case] state: ToolCallState,
    #[case] status: RunStatus,
    #[case] code: &str,
    #[values(Strategy::default(), Strategy::PlanExecute)] strategy: Strategy,
) {
    let mut world = undoing(AgentProfile { strategy, ..AgentProfile::default() });
    let decision = world.tool_ends(0, ToolOutcome { state, is_error: state != Done, ..done("said") });
    assert_eq!(decision.commands, [Command::Stop]);
    assert_eq!(world.ended().status, status);
    assert_eq!(world.ended().error.as_ref().map_or("", |error| error.code.as_str()), code);
    world.check_next_turn();
}

#[test]
fn a_message_that_joins_is_answered() {
    let mut world = undoing(AgentProfile::default());
    world.join("and now?");
    let decision = world.tool_ends(0, done("moved"));
    assert!(matches!(decision.commands[..], [Command::CallModel(_)]));
    world.says_text("Done.");
    assert_eq!(world.ended().status, RunStatus::Completed);
}

/// Each execution of a repeated call can be undone. A duplicate call that was only quoted had no effect.
#[test]
fn each_call_that_was_made_can_be_taken_back() {
    let undo = UndoRule { tool: "write".to_owned(), arguments: Map::new() };
    let write = ToolDefinition { undo: Some(undo), ..tool("write", ReplayClass::Unsafe) };
    let mut world = World::new(AgentProfile::default());
    world.claim_with(ClaimCause::First, vec![Arc::new(write)]);
    let again = || call("write", &json!({"n": 1}));
    world.calls(&[again()]);
    world.join("Once more.");
    world.tool_says(0, "written");
    world.calls(&[again()]);
    world.tool_says(0, "written");
    world.calls(&[again()]);
    let parts = world.rows.history.iter().flat_map(|message| &message.parts);
    let undoable = parts.filter_map(|part| if let Part::ToolResult(result) = part { Some(result.undoable) } else { None });
    assert_eq!(undoable.collect::<Vec<_>>(), [true, true, false]);
}
