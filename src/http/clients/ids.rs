//! Ids for names that clients choose: the same name of the same owner always gives the same id.

use crate::domain::ids::{ConversationId, PartId, RunId, UserId};
use crate::http::wire::problem::HttpResult;
use crate::service::Error;

/// Limit of a name, in bytes.
const MAX_NAME: usize = 255;

/// Returns the conversation that an owner's client calls `name`. An id of the native API is used as it is.
pub(in crate::http) fn conversation(owner: &UserId, field: &str, name: &str) -> HttpResult<ConversationId> {
    if let Ok(id) = name.parse() {
        return Ok(id);
    }
    check(field, name)?;
    Ok(ConversationId::derived(owner.as_str(), name))
}

/// Returns the id of a new run that an owner's client calls `name`.
pub(in crate::http) fn run(owner: &UserId, name: &str) -> RunId {
    RunId::derived(owner.as_str(), name)
}

/// Fails if a name is empty or too long.
pub(in crate::http) fn check(field: &str, name: &str) -> HttpResult<()> {
    match name.is_empty() || name.len() > MAX_NAME {
        true => Err(Error::field(&format!("/{field}"), format!("must have 1 to {MAX_NAME} bytes")).into()),
        false => Ok(()),
    }
}

/// Returns the id of the first part of the message that a client calls `name`. An edited message keeps this id.
pub(in crate::http) fn first_part(conversation: &ConversationId, name: &str) -> PartId {
    PartId::derived(conversation.as_str(), name)
}
