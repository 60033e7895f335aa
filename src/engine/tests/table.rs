//! A table of states and inputs: the effect of each input in each state of a run.

use serde_json::json;

use crate::domain::agent::AgentProfile;
use crate::domain::ids::CallId;
use crate::domain::model::{ModelError, ModelErrorKind, ModelFinish};
use crate::domain::run::budget::{Allowance, Amount, ReservationOutcome, ReservationRequest};
use crate::domain::run::record::ClaimCause;
use crate::domain::tool::tool_filter::{RankedTools, SelectionMethod};
use crate::engine::tests::world::{Say, World, call, done, tools};
use crate::engine::{Command, Decision, Input};

const PLACES: [&str; 6] = ["queued", "asking", "calling", "waiting", "handed back", "over"];

fn place(name: &str) -> World {
    let profile = || AgentProfile { tool_parallelism: 1, ..AgentProfile::default() };
    let mut world = World::new(profile());
    if name == "queued" {
        world.load(ClaimCause::First);
        return world;
    }
    world.claim(ClaimCause::First);
    let keep = |world: &mut World, input: Input| {
        // The worker drops a run after its release. The machine must be correct even if it did not.
        let decision = world.decide(input);
        world.commit(&decision);
    };
    match name {
        "asking" => {}
        "calling" => {
            world.calls(&[call("write", &json!({"n": 1})), call("write", &json!({"n": 2}))]);
        }
        "waiting" => keep(&mut world, Input::ModelFailed(ModelError::new(ModelErrorKind::Network, ""))),
        "handed back" => keep(&mut world, Input::Drain { stopped: Vec::new(), paused: Vec::new() }),
        "over" => {
            let input = world.answer(&[Say::Text("Bye.")], ModelFinish::Stop);
            keep(&mut world, input);
        }
        other => panic!("no such place: {other}"),
    }
    world
}

fn input(name: &str, world: &mut World) -> Input {
    let first = world.rows.calls.first().map(|call| call.id.clone());
    match name {
        "claimed" => Input::Claimed { tools: tools(), contexts: None, finished: Vec::new() },
        "ranked" => Input::ToolsRanked(RankedTools { by: SelectionMethod::Lexical, names: Vec::new() }),
        "reserved" => Input::Reserved(
            ReservationRequest { amount: Amount::default(), conversation: Allowance::default(), day: Allowance::default() },
            ReservationOutcome::Busy,
        ),
        "text" => world.answer(&[Say::Text("Hello.")], ModelFinish::Stop),
        "calls" => world.answer(&[call("read", &json!({}))], ModelFinish::ToolCalls),
        "nothing" => world.answer(&[], ModelFinish::Stop),
        "overloaded" => Input::ModelFailed(ModelError::new(ModelErrorKind::Overloaded, "")),
        "no key" => Input::ModelFailed(ModelError::new(ModelErrorKind::Auth, "")),
        "result" => Input::ToolFinished(first.unwrap_or_else(|| CallId::generate(&world.ids)), done("ok")),
        "planned result" => {
            let second = world.rows.calls.get(1).map(|call| call.id.clone());
            Input::ToolFinished(second.unwrap_or_else(|| CallId::generate(&world.ids)), done("ok"))
        }
        "joined" => Input::Joined(world.user("And?")),
        "cancel" => Input::CancelRequested { by: "user".to_owned(), partial: None, stopped: Vec::new() },
        "drain" => Input::Drain { stopped: Vec::new(), paused: Vec::new() },
        "given up" => Input::GivenUp { why: "no more".to_owned(), stopped: Vec::new() },
        "time" => Input::TimedOut { partial: None, stopped: Vec::new() },
        other => panic!("no such input: {other}"),
    }
}

/// Returns the last event and the commands.
fn summary(decision: &Decision) -> String {
    let event = decision.events.last().map_or("-", |event| event.kind());
    let commands: Vec<_> = decision
        .commands
        .iter()
        .map(|command| match command {
            Command::CallModel(_) => "model",
            Command::RankTools => "rank",
            Command::Reserve(_) => "reserve",
            Command::RunTool(_) => "tool",
            Command::Reconcile(_) => "reconcile",
            Command::Stop => "stop",
        })
        .collect();
    if event == "-" && commands.is_empty() && decision.changes.is_empty() {
        return "nothing".to_owned();
    }
    format!("{event} {}", commands.join("+")).trim_end().to_owned()
}

#[test]
fn every_input_in_every_place() {
    let expected: [(&str, [&str; 6]); 15] = [
        ("claimed", ["step.started model", "step.started model", "tool.started tool", "nothing", "nothing", "nothing"]),
        ("ranked", ["nothing", "nothing", "nothing", "nothing", "nothing", "nothing"]),
        ("reserved", ["nothing", "nothing", "nothing", "nothing", "nothing", "nothing"]),
        ("text", ["nothing", "run.completed stop", "nothing", "nothing", "nothing", "nothing"]),
        ("calls", ["nothing", "tool.started tool", "nothing", "nothing", "nothing", "nothing"]),
        ("nothing", ["nothing", "step.started model", "nothing", "nothing", "nothing", "nothing"]),
        ("overloaded", ["nothing", "conversation.updated stop", "nothing", "nothing", "nothing", "nothing"]),
        ("no key", ["nothing", "run.failed stop", "nothing", "nothing", "nothing", "nothing"]),
        ("result", ["nothing", "nothing", "tool.started tool", "nothing", "nothing", "nothing"]),
        ("planned result", ["nothing", "nothing", "nothing", "nothing", "nothing", "nothing"]),
        ("joined", ["nothing", "nothing", "nothing", "nothing", "nothing", "nothing"]),
        ("cancel", ["run.cancelled stop", "run.cancelled stop", "run.cancelled stop", "nothing", "nothing", "nothing"]),
        ("drain", ["- stop", "step.reset stop", "- stop", "nothing", "nothing", "nothing"]),
        ("given up", ["run.failed stop", "run.failed stop", "run.failed stop", "nothing", "nothing", "nothing"]),
        ("time", ["run.failed stop", "run.failed stop", "run.failed stop", "nothing", "nothing", "nothing"]),
    ];
    for (name, row) in expected {
        for (at, wanted) in PLACES.iter().zip(row) {
            let mut world = place(at);
            let input = input(name, &mut world);
            assert_eq!(summary(&world.decide(input)), wanted, "{name} while {at}");
        }
    }
}
