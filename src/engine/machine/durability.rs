//! The durability of decisions. A call that leaves the process, or has an effect, starts after its row is stored.

use crate::domain::model::Usage;
use crate::domain::run::change::Change;
use crate::domain::tool::ReplayClass;
use crate::engine::machine::decision::{Command, Decision, Durability, Input};
use crate::engine::machine::state::RunState;

/// Returns whether losing an input is harmless, because a model or a read tool can be asked again. Losing `spent` usage is not
/// harmless: only this worker knows it, and no other attempt would charge it.
pub fn may_be_lost(state: &RunState, input: &Input, spent: &Usage) -> bool {
    let may_come_again = match input {
        Input::Claimed { .. } | Input::ToolsRanked(_) | Input::Reserved(..) | Input::ModelFinished { .. } => true,
        Input::ToolFinished(id, _) => state.record.call(id).is_some_and(|call| call.replay == ReplayClass::Read),
        _ => false,
    };
    may_come_again && *spent == Usage::default()
}

pub fn of(decision: &Decision) -> Durability {
    // The cost of a call is stored before another reservation.
    let charges = decision.changes.iter().any(|change| matches!(change, Change::ChargeBudget { .. }));
    let stays_here = |command: &Command| match command {
        Command::CallModel(_) | Command::RankTools => true,
        Command::RunTool(call) => call.server.is_none() && call.replay == ReplayClass::Read,
        Command::Reserve(_) | Command::Reconcile(_) | Command::Stop => false,
    };
    match !charges && !decision.commands.is_empty() && decision.commands.iter().all(stays_here) {
        true => Durability::Behind,
        false => Durability::Before,
    }
}
