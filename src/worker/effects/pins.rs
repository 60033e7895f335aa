//! Holds back tools whose definitions have changed since they were accepted.

use moka::policy::EvictionPolicy;
use moka::sync::Cache;

use crate::domain::ids::PinId;
use crate::domain::tool::ToolDefinition;
use crate::engine::{Input, RunFacts};
use crate::store::{SeenTool, StoreResult};
use crate::support::ids::IdSource;
use crate::support::json;
use crate::worker::{WorkerDeps, WorkerOptions};

/// The most accepted definitions in the cache.
const REMEMBERED: u64 = 10_000;

/// Definitions that are known to be accepted, which they stay.
pub type Accepted = Cache<String, ()>;

pub fn accepted() -> Accepted {
    // Least recently used: by frequency, a full cache would refuse the definitions of new servers for ever.
    Cache::builder().max_capacity(REMEMBERED).eviction_policy(EvictionPolicy::lru()).build()
}

/// Removes tools of untrusted servers whose definitions have changed from what a run is about to be offered, and names them in its
/// facts.
pub async fn hold(
    deps: &WorkerDeps,
    options: &WorkerOptions,
    accepted: &Accepted,
    facts: &mut RunFacts,
    input: &mut Input,
) -> StoreResult<()> {
    let Input::Claimed { tools, .. } = input else { return Ok(()) };
    if !options.hold_changed_tools {
        return Ok(());
    }
    let mut seen = Vec::new();
    let mut marks = Vec::new();
    for tool in tools.iter().filter(|tool| tool.safety.untrusted) {
        let mark = mark(tool);
        if let Some(sight) = sight(tool, deps.ids.as_ref()).filter(|_| !accepted.contains_key(&mark)) {
            seen.push((tool.name.clone(), sight));
            marks.push(mark);
        }
    }
    if seen.is_empty() {
        return Ok(());
    }
    let (names, sights): (Vec<String>, Vec<SeenTool>) = seen.into_iter().unzip();
    let changed = deps.store.sight_tools(&sights).await.inspect_err(|error| {
        tracing::error!(error = error as &dyn std::error::Error, "the run's tools could not be compared with what was seen");
    })?;
    let mut held = Vec::new();
    for ((name, sight), mark) in names.into_iter().zip(&sights).zip(marks) {
        if changed.contains(&sight.id) {
            let SeenTool { server, tool, .. } = sight;
            tracing::warn!(server, tool, "a tool is not offered: its definition has changed since it was looked at");
            metrics::counter!("capstan_tools_held_total").increment(1);
            held.push(name);
        } else {
            accepted.insert(mark, ());
        }
    }
    tools.retain(|tool| !held.contains(&tool.name));
    facts.held = held;
    Ok(())
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

/// Returns a hash of a server's tool as it is now.
fn mark(tool: &ToolDefinition) -> String {
    let owner = tool.original.as_ref().and_then(|original| original.owner.as_ref());
    json::hash(&serde_json::json!([owner, tool.server, tool.tool, tool.definition_hash]))
}
