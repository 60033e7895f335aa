//! Definitions of tools that were seen: what a sight of them comes to, whichever database keeps them.

use std::collections::HashSet;

use async_trait::async_trait;
use serde_json::Value;
use sqlx::{ColumnIndex, Decode, Row, Type};

use super::{StoreResult, rows};
use crate::domain::ids::{PinId, UserId};
use crate::domain::pin::{PinStatus, SeenDefinition, ToolPin};
use crate::support::clock::UnixMillis;

/// The most definitions that are listed.
pub const MAX_PINS: i64 = 1_000;

/// What stands for everybody in a column of owners.
pub(super) const EVERYBODY: &str = "";

/// A tool as it is seen now.
#[derive(Debug, Clone, PartialEq)]
pub struct SeenTool {
    /// The id that it gets if it was never seen before.
    pub id: PinId,
    /// Whose server it is of; `None` for one of everybody.
    pub owner: Option<UserId>,
    /// The server: its name in the configuration, or its id.
    pub server: String,
    /// The tool's name at the server.
    pub tool: String,
    /// SHA-256 of description, schema and hints.
    pub definition_hash: String,
    /// What the tool says of itself.
    pub description: String,
    /// JSON Schema of its arguments, as text.
    pub parameters: String,
    /// What its server says of its nature, as JSON text.
    pub hints: String,
}

impl SeenTool {
    pub(super) fn owner(&self) -> &str {
        self.owner.as_ref().map_or(EVERYBODY, UserId::as_str)
    }
}

/// Definitions of tools that were seen.
#[async_trait]
pub trait PinStore: Send + Sync {
    /// Compares tools with what was seen of them before. The first definition of a tool is kept as accepted, another one as changed, in
    /// the place of the one that had changed before. Returns the ids of those whose definitions are not accepted.
    async fn sight_tools(&self, seen: &[SeenTool]) -> StoreResult<Vec<PinId>>;

    /// Definitions, newest first, at most [`MAX_PINS`]: those of the viewer's own servers and of everybody's.
    async fn tool_pins(&self, viewer: &UserId, status: Option<PinStatus>) -> StoreResult<Vec<ToolPin>>;

    /// Accepts a definition of a server of `scope`. Accepting it again changes nothing. `None` if there is none.
    async fn accept_tool_pin(&self, scope: &PinScope, id: &PinId, by: &UserId) -> StoreResult<Option<ToolPin>>;
}

/// Whose servers somebody may decide about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinScope {
    /// Their own.
    pub owner: UserId,
    /// Whether also those of everybody.
    pub everybody: bool,
}

/// A definition that is kept.
pub(super) struct Kept {
    pub(super) owner: String,
    pub(super) server: String,
    pub(super) tool: String,
    pub(super) hash: String,
    pub(super) is_accepted: bool,
}

/// What a sight comes to.
pub(super) struct Sight<'s> {
    /// To be kept, and as what.
    pub(super) new: Vec<(&'s SeenTool, PinStatus)>,
    /// Those that are not accepted.
    pub(super) changed: Vec<PinId>,
}

/// Compares what is seen with what is kept.
pub(super) fn compare<'s>(seen: &'s [SeenTool], kept: &[Kept]) -> Sight<'s> {
    let accepted: HashSet<(&str, &str, &str, &str)> = kept.iter().filter(|kept| kept.is_accepted).map(key).collect();
    let changed: HashSet<_> = kept.iter().filter(|kept| !kept.is_accepted).map(key).collect();
    let tools: HashSet<_> = kept.iter().map(|kept| (kept.owner.as_str(), kept.server.as_str(), kept.tool.as_str())).collect();
    let mut sight = Sight { new: Vec::new(), changed: Vec::new() };
    for tool in seen {
        let (owner, server, name) = (tool.owner(), tool.server.as_str(), tool.tool.as_str());
        let full = (owner, server, name, tool.definition_hash.as_str());
        if accepted.contains(&full) {
            continue;
        }
        if !tools.contains(&(owner, server, name)) {
            sight.new.push((tool, PinStatus::Accepted));
            continue;
        }
        if !changed.contains(&full) {
            sight.new.push((tool, PinStatus::Changed));
        }
        sight.changed.push(tool.id.clone());
    }
    sight
}

fn key(kept: &Kept) -> (&str, &str, &str, &str) {
    (&kept.owner, &kept.server, &kept.tool, &kept.hash)
}

/// The servers of what is seen, each once, with their owners.
pub(super) fn servers(seen: &[SeenTool]) -> Vec<(&str, &str)> {
    let mut servers: Vec<(&str, &str)> = seen.iter().map(|tool| (tool.owner(), tool.server.as_str())).collect();
    servers.sort_unstable();
    servers.dedup();
    servers
}

/// What [`read`] reads, of `tool_pins p`.
pub(super) const COLUMNS: &str =
    "p.id, p.owner_id, p.server, p.tool, p.definition_hash, p.description, p.parameters, p.hints, p.status,
    p.seen_at, p.accepted_by, p.accepted_at, b.definition_hash AS before_hash, b.description AS before_description,
    b.parameters AS before_parameters, b.hints AS before_hints
    FROM tool_pins p LEFT JOIN tool_pins b ON p.status = 'changed' AND b.id = (
        SELECT n.id FROM tool_pins n WHERE n.owner_id = p.owner_id AND n.server = p.server AND n.tool = p.tool
            AND n.status = 'accepted' ORDER BY coalesce(n.accepted_at, n.seen_at) DESC, n.id DESC LIMIT 1
    )";

pub(super) fn read<'r, R>(row: &'r R) -> StoreResult<ToolPin>
where
    R: Row,
    &'static str: ColumnIndex<R>,
    String: Decode<'r, R::Database> + Type<R::Database>,
    i64: Decode<'r, R::Database> + Type<R::Database>,
{
    let id: String = row.try_get("id")?;
    let owner: String = row.try_get("owner_id")?;
    let status: String = row.try_get("status")?;
    let parameters: String = row.try_get("parameters")?;
    let hints: String = row.try_get("hints")?;
    let accepted_by: Option<String> = row.try_get("accepted_by")?;
    let accepted_at: Option<i64> = row.try_get("accepted_at")?;
    let before_hash: Option<String> = row.try_get("before_hash")?;
    let before_parameters: Option<String> = row.try_get("before_parameters")?;
    let before = before_hash.zip(before_parameters).map(|(hash, parameters)| -> StoreResult<SeenDefinition> {
        let description: Option<String> = row.try_get("before_description")?;
        let hints: Option<String> = row.try_get("before_hints")?;
        Ok(SeenDefinition {
            definition_hash: hash,
            description: description.unwrap_or_default(),
            parameters: rows::decode("tool_pins", "parameters", &id, &parameters)?,
            hints: rows::decode("tool_pins", "hints", &id, hints.as_deref().unwrap_or("null"))?,
        })
    });
    let parameters: Value = rows::decode("tool_pins", "parameters", &id, &parameters)?;
    Ok(ToolPin {
        owner_id: (owner != EVERYBODY).then(|| UserId::from_stored(owner)),
        server: row.try_get("server")?,
        tool: row.try_get("tool")?,
        status: rows::word("tool_pins", "status", &id, &status, PinStatus::from_word)?,
        definition: SeenDefinition {
            definition_hash: row.try_get("definition_hash")?,
            description: row.try_get("description")?,
            parameters,
            hints: rows::decode("tool_pins", "hints", &id, &hints)?,
        },
        before: before.transpose()?,
        seen_at: UnixMillis(row.try_get("seen_at")?).to_rfc3339(),
        accepted_by: accepted_by.map(UserId::from_stored),
        accepted_at: accepted_at.map(|at| UnixMillis(at).to_rfc3339()),
        id: PinId::from_stored(id),
    })
}
