//! OpenAI ids, times and lists. An id has the hexadecimal digits of the native id behind another prefix. Times are in seconds.
//! Lists name their first and last id.

use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::domain::ids::ConversationId;
use crate::domain::problem::ProblemCode;
use crate::http::wire::problem::{HttpResult, Problem};
use crate::support::clock::UnixMillis;

/// Returns a native id with another prefix, such as `chatcmpl-`.
pub(super) fn derived(prefix: &str, id: &str) -> String {
    let digits = id.split_once('_').map_or(id, |(_, digits)| digits);
    format!("{prefix}{digits}")
}

/// Parses the id of a conversation. The error is that of an unknown one.
pub(super) fn parse_conversation(id: &str) -> HttpResult<ConversationId> {
    ConversationId::parse(id).map_err(|_| missing_conversation(id))
}

/// Returns the problem of a conversation that does not exist. Its text is that of OpenAI's own service.
pub(super) fn missing_conversation(id: &str) -> Problem {
    Problem::new(ProblemCode::NotFound, format!("Conversation with id {id:?} not found."))
}

/// Returns an RFC 3339 time as seconds since the Unix epoch; 0 if it is not valid.
pub(super) fn seconds(rfc3339: &str) -> i64 {
    UnixMillis::from_rfc3339(rfc3339).map_or(0, |at| at.0 / 1000)
}

/// The direction of a list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(in crate::http) enum Order {
    /// Oldest first.
    Asc,
    /// Newest first.
    #[default]
    Desc,
}

/// Returns a page of a list.
pub(super) fn list(data: Vec<Value>, has_more: bool) -> Value {
    let id = |item: &Value| item["id"].as_str().unwrap_or_default().to_owned();
    let (first, last) = (data.first().map(id).unwrap_or_default(), data.last().map(id).unwrap_or_default());
    json!({ "object": "list", "data": data, "first_id": first, "last_id": last, "has_more": has_more })
}
