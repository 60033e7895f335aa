//! Tool reviews. A server can change a tool's description after a user trusted it. A changed tool is therefore not offered until a
//! user accepts it.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::domain::enum_names::named_enum;
use crate::domain::ids::{ToolReviewId, UserId};

/// A definition as its server sent it, for reviewers: not cleaned or cut. Secrets of the server's entry are redacted.
#[derive(Debug, Clone, PartialEq)]
pub struct Original {
    /// `None` for a server that all users may use.
    pub owner: Option<UserId>,
    pub description: String,
    pub schema: Arc<Map<String, Value>>,
    /// The server's annotations, such as `readOnlyHint`; `null` without any.
    pub hints: Value,
}

named_enum! {
    /// The review status of a tool definition.
    pub enum ToolReviewStatus {
        /// The definition is the first one of its tool, or a user has accepted it.
        Accepted = "accepted",
        /// The definition differs from the accepted ones. The tool is not offered to new runs.
        Changed = "changed",
    }
}

/// A tool definition and its review.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct ToolReview {
    /// The id of the review.
    pub id: ToolReviewId,
    /// The owner of the MCP server. Absent for a server that all users may use.
    pub owner_id: Option<UserId>,
    /// The MCP server: its name in the configuration, or its id.
    pub server: String,
    /// The tool's name at the server.
    pub tool: String,
    /// The review status of the definition.
    pub status: ToolReviewStatus,
    /// The definition.
    #[serde(flatten)]
    pub definition: ReviewedDefinition,
    /// The newest accepted definition, if this definition has changed.
    pub before: Option<ReviewedDefinition>,
    /// When the definition was first seen, RFC 3339.
    pub seen_at: String,
    /// The user who accepted the definition. Absent for the first definition of a tool.
    pub accepted_by: Option<UserId>,
    /// When the definition was accepted, RFC 3339.
    pub accepted_at: Option<String>,
}

/// A tool definition in a form for human review.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct ReviewedDefinition {
    /// SHA-256 of description, schema and hints.
    pub definition_hash: String,
    /// The complete description of the tool. Invisible characters are shown as `<U+200B>`.
    pub description: String,
    /// JSON Schema of the arguments, shown in the same way.
    #[schema(value_type = Object)]
    pub parameters: Value,
    /// The server's annotations of the tool, such as `readOnlyHint`.
    #[serde(skip_serializing_if = "Value::is_null")]
    #[schema(value_type = Option<Object>)]
    pub hints: Value,
}
