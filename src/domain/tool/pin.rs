//! Reviews of tool definitions. A server can change a tool's description after people trusted it, so a changed tool is not offered
//! until it is accepted.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::domain::ids::{PinId, UserId};
use crate::domain::words::words;

/// A definition as its server wrote it, not cleaned or cut, for reviewers; but secrets of the server's entry are redacted.
#[derive(Debug, Clone, PartialEq)]
pub struct Original {
    /// `None` for a server that all users may use.
    pub owner: Option<UserId>,
    pub description: String,
    pub schema: Arc<Map<String, Value>>,
    /// The server's annotations, such as `readOnlyHint`; `null` without any.
    pub hints: Value,
}

/// What is thought of a definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PinStatus {
    /// It was the first one that was seen of its tool, or somebody has accepted it.
    Accepted,
    /// It differs from those that are accepted: the tool is not offered to new runs.
    Changed,
}

words!(PinStatus { Accepted = "accepted", Changed = "changed" });

/// A definition and what is thought of it.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct ToolPin {
    /// Its id.
    pub id: PinId,
    /// Whose server it is of; absent for one of everybody.
    pub owner_id: Option<UserId>,
    /// The server: its name in the configuration, or its id.
    pub server: String,
    /// The tool's name at the server.
    pub tool: String,
    /// What is thought of it.
    pub status: PinStatus,
    /// The definition.
    #[serde(flatten)]
    pub definition: SeenDefinition,
    /// Of a changed one: the newest definition that was accepted.
    pub before: Option<SeenDefinition>,
    /// When it was first seen, RFC 3339.
    pub seen_at: String,
    /// Who accepted it; absent for the first one of a tool.
    pub accepted_by: Option<UserId>,
    /// When, RFC 3339.
    pub accepted_at: Option<String>,
}

/// A definition as people look at it.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct SeenDefinition {
    /// SHA-256 of description, schema and hints.
    pub definition_hash: String,
    /// What the tool says of itself, whole. Characters that nobody would see stand as `<U+200B>`.
    pub description: String,
    /// JSON Schema of its arguments, shown in the same way.
    #[schema(value_type = Object)]
    pub parameters: Value,
    /// What its server says of its nature, such as `readOnlyHint`.
    #[serde(skip_serializing_if = "Value::is_null")]
    #[schema(value_type = Option<Object>)]
    pub hints: Value,
}
