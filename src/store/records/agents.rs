//! Stored agents: the values.

use serde::{Deserialize, Serialize};

use crate::domain::ids::AgentId;
use crate::store::NameCursor;
use crate::store::pages::cursor_text;

pub type AgentCursor = NameCursor<AgentId>;

cursor_text!(AgentVersionCursor);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentVersionCursor(pub u32);

/// Limit of stored versions of an agent. A new version deletes the oldest one, unless that is pinned.
pub const MAX_AGENT_VERSIONS: u32 = 1_000;
