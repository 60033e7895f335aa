//! Holds back tools whose definitions have changed since their tool review.

use moka::policy::EvictionPolicy;
use moka::sync::Cache;

use crate::domain::ids::ToolReviewId;
use crate::domain::tool::ToolDefinition;
use crate::engine::{Input, RunFacts};
use crate::store::{ListedDefinition, StoreResult};
use crate::support::ids::IdSource;
use crate::support::json;
use crate::worker::{WorkerDeps, WorkerOptions};

/// The maximum number of accepted definitions in the cache.
const CACHE_ENTRIES: u64 = 10_000;

/// Hashes of definitions that are known to be accepted. An acceptance is permanent.
pub type AcceptedDefinitionCache = Cache<String, ()>;

pub fn new_cache() -> AcceptedDefinitionCache {
    // Least recently used: with eviction by frequency, a full cache would never accept the definitions of new servers.
    Cache::builder().max_capacity(CACHE_ENTRIES).eviction_policy(EvictionPolicy::lru()).build()
}

/// Removes tools of untrusted servers whose definitions have changed from the tools of a new run, and adds their names to its facts.
pub async fn withhold_changed_tools(
    deps: &WorkerDeps,
    options: &WorkerOptions,
    accepted: &AcceptedDefinitionCache,
    facts: &mut RunFacts,
    input: &mut Input,
) -> StoreResult<()> {
    let Input::Claimed { tools, .. } = input else { return Ok(()) };
    if !options.hold_changed_tools {
        return Ok(());
    }
    let mut listed_by_name = Vec::new();
    let mut hashes = Vec::new();
    for tool in tools.iter().filter(|tool| tool.safety.untrusted) {
        let current_hash = current_hash(tool);
        if let Some(listed) = listed_definition(tool, deps.ids.as_ref()).filter(|_| !accepted.contains_key(&current_hash)) {
            listed_by_name.push((tool.name.clone(), listed));
            hashes.push(current_hash);
        }
    }
    if listed_by_name.is_empty() {
        return Ok(());
    }
    let (names, listed_definitions): (Vec<String>, Vec<ListedDefinition>) = listed_by_name.into_iter().unzip();
    let compared = deps.store.compare_tool_definitions(&listed_definitions).await.inspect_err(|error| {
        tracing::error!(
            error = error as &dyn std::error::Error,
            "the run's tools could not be compared with the reviewed definitions"
        );
    })?;
    for owner in &compared.new_reviews_of {
        deps.hub.reviews_changed(owner.as_ref());
    }
    let mut withheld_tools = Vec::new();
    for ((name, listed), current_hash) in names.into_iter().zip(&listed_definitions).zip(hashes) {
        if compared.changed.contains(&listed.id) {
            let ListedDefinition { server, tool, .. } = listed;
            tracing::warn!(server, tool, "a tool is not offered: its definition has changed since its tool review");
            metrics::counter!("capstan_tools_awaiting_review_total").increment(1);
            withheld_tools.push(name);
        } else {
            accepted.insert(current_hash, ());
        }
    }
    tools.retain(|tool| !withheld_tools.contains(&tool.name));
    facts.withheld_tools = withheld_tools;
    Ok(())
}

fn listed_definition(tool: &ToolDefinition, ids: &dyn IdSource) -> Option<ListedDefinition> {
    let original = tool.original.as_ref()?;
    Some(ListedDefinition {
        id: ToolReviewId::generate(ids),
        owner: original.owner.clone(),
        server: tool.server.clone()?,
        tool: tool.tool.clone(),
        definition_hash: tool.definition_hash.clone(),
        description: original.description.clone(),
        parameters: serde_json::to_string(original.schema.as_ref()).unwrap_or_default(),
        hints: original.hints.to_string(),
    })
}

/// Returns the hash of the current definition of a server's tool.
fn current_hash(tool: &ToolDefinition) -> String {
    let owner = tool.original.as_ref().and_then(|original| original.owner.as_ref());
    json::hash(&serde_json::json!([owner, tool.server, tool.tool, tool.definition_hash]))
}
