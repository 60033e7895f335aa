//! Durability: the decisions that are committed before their commands start.

use std::sync::Arc;

use serde_json::json;

use crate::domain::agent::AgentProfile;
use crate::domain::model::ModelErrorKind;
use crate::domain::run::budget::{Allowance, Amount, ReservationRequest};
use crate::domain::run::change::Change;
use crate::domain::tool::{ReplayClass, ToolCall};
use crate::engine::machine::decide::durability_of;
use crate::engine::tests::world::{World, call};
use crate::engine::{Command, Decision, Durability};

#[test]
fn only_commands_without_an_effect_start_before_the_commit() {
    let mut world = World::started(AgentProfile::default());
    let request = Box::new(world.asked.clone().unwrap());
    world.calls(&[call("read", &json!({}))]);
    let started = world.under_way[0].clone();
    let of = |server: Option<&str>, replay: ReplayClass| {
        Command::RunTool(Arc::new(ToolCall { server: server.map(str::to_owned), replay, ..started.clone() }))
    };
    let model = || Command::CallModel(request.clone());
    let local_read = || of(None, ReplayClass::Read);
    let keyed = ReplayClass::Keyed { argument: "key".to_owned() };
    let keyed_meta = ReplayClass::KeyedMeta { field: "key".to_owned() };
    let paid = ReplayClass::Reconcile { tool: "paid".to_owned() };
    let reserve = ReservationRequest { amount: Amount::default(), conversation: Allowance::default(), day: Allowance::default() };
    let settle = Change::ChargeBudget { day: 1, amount: Amount::default() };
    let table = [
        ("model call", vec![model()], vec![], Durability::Behind),
        ("ranking", vec![Command::RankTools], vec![], Durability::Behind),
        ("local read call", vec![local_read()], vec![], Durability::Behind),
        ("read call of a server", vec![of(Some("files"), ReplayClass::Read)], vec![], Durability::Before),
        ("local and remote read calls", vec![local_read(), of(Some("files"), ReplayClass::Read)], vec![], Durability::Before),
        ("local idempotent call", vec![of(None, ReplayClass::Idempotent)], vec![], Durability::Before),
        ("local keyed call", vec![of(None, keyed)], vec![], Durability::Before),
        ("local call keyed by its metadata", vec![of(None, keyed_meta)], vec![], Durability::Before),
        ("local call that can be reconciled", vec![of(None, paid)], vec![], Durability::Before),
        ("local unsafe call", vec![of(None, ReplayClass::Unsafe)], vec![], Durability::Before),
        ("reconciling", vec![Command::Reconcile(Arc::new(started.clone()))], vec![], Durability::Before),
        ("reserving", vec![Command::Reserve(reserve)], vec![], Durability::Before),
        ("model call after a settled one", vec![model()], vec![settle], Durability::Before),
        ("end", vec![Command::Stop], vec![], Durability::Before),
        ("nothing", vec![], vec![], Durability::Before),
    ];
    for (name, commands, changes, expected) in table {
        assert_eq!(durability_of(&Decision { commands, changes, ..Decision::default() }), expected, "{name}");
    }
}

/// A failure is not reported twice, so the count of failures must be stored first.
#[test]
fn model_call_after_a_failed_one_is_committed_first() {
    let profile = AgentProfile { fallbacks: vec!["b/other".to_owned()], ..AgentProfile::default() };
    let mut world = World::started(profile);
    let switched = world.fails(ModelErrorKind::Auth);
    assert!(matches!(switched.commands[..], [Command::CallModel(_)]), "{:?}", switched.commands);
    assert_eq!(switched.durability, Durability::Before);
}
