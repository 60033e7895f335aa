//! Tools whose definitions have changed since somebody looked at them are held back from new runs.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{WorkerDeps, WorkerOptions};
use crate::domain::ids::PinId;
use crate::domain::tool::ToolDefinition;
use crate::engine::{Input, RunFacts};
use crate::store::{PinStore, SeenTool, StoreResult};
use crate::support::ids::IdSource;
use crate::support::json;

/// The most accepted definitions that are remembered.
const REMEMBERED: usize = 10_000;

/// Definitions that this process knows to be accepted: what is accepted stays so.
#[derive(Clone, Default)]
pub struct Accepted {
    known: Arc<Mutex<HashSet<String>>>,
}

impl Accepted {
    fn lock(&self) -> MutexGuard<'_, HashSet<String>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remember(&self, marks: Vec<String>) {
        let mut known = self.lock();
        if known.len() + marks.len() > REMEMBERED {
            known.clear();
        }
        known.extend(marks);
    }
}

/// Takes out of what a run is about to be offered what has changed, and notes it.
pub async fn hold(
    deps: &WorkerDeps,
    options: &WorkerOptions,
    accepted: &Accepted,
    facts: &mut RunFacts,
    input: &mut Input,
) -> StoreResult<()> {
    let Input::Claimed { tools, .. } = input else { return Ok(()) };
    if options.hold_changed_tools {
        let held = hold_changed(deps.store.as_ref(), accepted, deps.ids.as_ref(), tools).await.inspect_err(|error| {
            tracing::error!(error = error as &dyn std::error::Error, "the run's tools could not be compared with what was seen");
        });
        facts.held = held?;
    }
    Ok(())
}

/// Takes out the tools of servers that are not trusted whose definitions have changed, and returns their names.
async fn hold_changed(
    store: &dyn PinStore,
    accepted: &Accepted,
    ids: &dyn IdSource,
    tools: &mut Vec<Arc<ToolDefinition>>,
) -> StoreResult<Vec<String>> {
    let mut seen = Vec::new();
    let mut marks = Vec::new();
    {
        let known = accepted.lock();
        for tool in tools.iter().filter(|tool| tool.safety.untrusted) {
            let mark = mark(tool);
            if let Some(sight) = sight(tool, ids).filter(|_| !known.contains(&mark)) {
                seen.push((tool.name.clone(), sight));
                marks.push(mark);
            }
        }
    }
    if seen.is_empty() {
        return Ok(Vec::new());
    }
    let (names, sights): (Vec<String>, Vec<SeenTool>) = seen.into_iter().unzip();
    let changed = store.sight_tools(&sights).await?;
    let is_held = |sight: &SeenTool| changed.contains(&sight.id);
    let (mut held, mut fine) = (Vec::new(), Vec::new());
    for ((name, sight), mark) in names.into_iter().zip(&sights).zip(marks) {
        if is_held(sight) {
            let SeenTool { server, tool, .. } = sight;
            tracing::warn!(server, tool, "a tool is not offered: its definition has changed since it was looked at");
            metrics::counter!("capstan_tools_held_total").increment(1);
            held.push(name);
        } else {
            fine.push(mark);
        }
    }
    accepted.remember(fine);
    tools.retain(|tool| !held.contains(&tool.name));
    Ok(held)
}

fn sight(tool: &ToolDefinition, ids: &dyn IdSource) -> Option<SeenTool> {
    let original = tool.original.as_ref()?;
    Some(SeenTool {
        id: PinId::generate(ids),
        owner: original.owner.clone(),
        server: tool.server.clone()?,
        tool: tool.tool.clone(),
        definition_hash: tool.definition_hash.clone(),
        description: original.description.clone(),
        parameters: serde_json::to_string(original.schema.as_ref()).unwrap_or_default(),
        hints: original.hints.to_string(),
    })
}

/// One text for a tool of a server as it is now.
fn mark(tool: &ToolDefinition) -> String {
    let owner = tool.original.as_ref().and_then(|original| original.owner.as_ref());
    json::hash(&serde_json::json!([owner, tool.server, tool.tool, tool.definition_hash]))
}
