//! Rows as plain values, and their conversion to the domain's types: shared by both backends.
//!
//! Owns no state. Must not know which database a row came from, nor execute any statement.

use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Map;

use super::sql::Row;
use super::{Claim, NewConversation, StoreError, StoreResult, UnnamedLease};
use crate::domain::agent::{AgentProfile, LlmRetry, OwnLayers, PromptPolicy, RepairPolicy, StopAnalysisSettings};
use crate::domain::conversation::{Conversation, ConversationStatus, Message};
use crate::domain::ids::{ConversationId, RunId, UserId};
use crate::domain::model::{ModelOptions, SamplingByTurn};
use crate::domain::run::{Admission, Budget, ClaimCause, ContextPolicy, Fence, PlanPolicy};
use crate::domain::tool::{ApprovalPolicy, ServerHint, ToolFilter};
use crate::domain::trace::TraceId;
use crate::support::clock::UnixMillis;
use crate::support::json::{keep_fields, nesting};
use crate::support::text::{storable, storable_json};

/// Returns the conversation that a request creates, with texts as the databases store them.
pub fn new_conversation(new: &NewConversation) -> Conversation {
    let text = |text: &str| storable(text).into_owned();
    Conversation {
        id: new.id.clone(),
        title: text(&new.title),
        status: ConversationStatus::Idle,
        active_run_id: None,
        reason: None,
        pinned: false,
        archived_at: None,
        tags: Vec::new(),
        system_prompt: new.system_prompt.as_deref().map(text),
        instructions: new.instructions.as_deref().map(text),
        forked_from: None,
        metadata: Map::new(),
        last_run: None,
        agent: new.choice.agent.as_deref().map(text),
        model: new.choice.model.as_deref().map(text),
        last_seq: 0,
        created_at: new.now.to_rfc3339(),
        updated_at: new.now.to_rfc3339(),
    }
}

/// Reads the conversation's layers of the system prompt.
pub fn own_layers(row: &Row) -> Result<OwnLayers, sqlx::Error> {
    let [system_prompt, instructions] = ["system_prompt", "instructions"].map(|column| row.get::<Option<String>>(column));
    Ok(OwnLayers { system_prompt: system_prompt?.unwrap_or_default(), instructions: instructions?.unwrap_or_default() })
}

/// Returns the message without U+0000, and its stored body, so that the row equals the event.
pub fn storable_message(message: Message) -> StoreResult<(Message, String)> {
    let rendered = encode("messages", "body", message.id.as_str(), &message)?;
    let body = storable_json(rendered.clone());
    if body == rendered {
        return Ok((message, body));
    }
    let message = decode("messages", "body", message.id.as_str(), &body)?;
    Ok((message, body))
}

/// The name of a table or of a column, for errors.
type Name = &'static str;

/// Encodes a value as JSON text without U+0000.
pub fn encode_storable<T: Serialize>(table: Name, column: Name, id: &str, value: &T) -> StoreResult<String> {
    encode(table, column, id, value).map(storable_json)
}

/// The reason for refusing a value that could not be read again.
pub const UNREADABLE: &str = "a value could not be read again";

/// The deepest nesting that [`decode`] accepts. Encoding has no such limit, and one unreadable row would make its whole
/// conversation unreadable.
const MAX_NESTING: usize = 127;

/// Encodes a value as JSON text that [`decode`] can read.
pub fn encode<T: Serialize>(table: Name, column: Name, id: &str, value: &T) -> StoreResult<String> {
    let text = serde_json::to_string(value).map_err(|error| corrupt_value(table, column, id, error))?;
    if nesting(&text) > MAX_NESTING {
        return Err(corrupt_value(table, column, id, format!("it is nested more than {MAX_NESTING} levels deep")));
    }
    Ok(text)
}

/// Decodes a value from JSON text.
pub fn decode<T: DeserializeOwned>(table: Name, column: Name, id: &str, text: &str) -> StoreResult<T> {
    serde_json::from_str(text).map_err(|error| corrupt_value(table, column, id, error))
}

/// Decodes messages from their bodies. A run keeps them in memory until its end, so their capacity is trimmed.
pub fn history(conversation: &str, bodies: &[String]) -> StoreResult<Vec<Message>> {
    let mut messages = Vec::with_capacity(bodies.len() + 1);
    for body in bodies {
        let mut message: Message = decode("messages", "body", conversation, body)?;
        message.parts.shrink_to_fit();
        messages.push(message);
    }
    Ok(messages)
}

/// Decodes a frozen profile. Ignores unknown fields: a newer version may have added them on the same database. A request with an
/// unknown field is still refused.
pub fn decode_profile(run: &str, text: &str) -> StoreResult<AgentProfile> {
    let strict = decode("runs", "profile", run, text);
    let Err(error) = strict else { return strict };
    let Ok(mut value) = serde_json::from_str::<serde_json::Value>(text) else { return Err(error) };
    keep_fields::<AgentProfile>(Some(&mut value));
    keep_fields::<ModelOptions>(value.get_mut("options"));
    keep_fields::<PlanPolicy>(value.get_mut("plan"));
    keep_fields::<SamplingByTurn>(value.get_mut("sampling"));
    keep_fields::<StopAnalysisSettings>(value.get_mut("response_analysis"));
    keep_fields::<LlmRetry>(value.get_mut("llm_retry"));
    keep_fields::<ApprovalPolicy>(value.get_mut("approval"));
    keep_fields::<RepairPolicy>(value.get_mut("repair"));
    keep_fields::<ToolFilter>(value.get_mut("tool_filter"));
    keep_fields::<PromptPolicy>(value.get_mut("prompt"));
    keep_fields::<ContextPolicy>(value.get_mut("context"));
    keep_fields::<Budget>(value.get_mut("budget"));
    keep_fields::<Admission>(value.get_mut("admission"));
    let servers = value.pointer_mut("/tool_filter/servers").and_then(serde_json::Value::as_object_mut);
    servers.into_iter().flatten().for_each(|(_, server)| keep_fields::<ServerHint>(Some(server)));
    serde_json::from_value(value).map_err(|error| corrupt_value("runs", "profile", run, error))
}

/// Reads the claim cause. An unknown cause counts as a crash, because a worker checks the most after a crash. The run is already
/// claimed: an error here would let its lease expire, and the run would be claimed again and again.
pub fn claim_cause(run: &str, text: &str) -> ClaimCause {
    ClaimCause::from_name(text).unwrap_or_else(|| {
        tracing::warn!(run.id = run, cause = text, "the claim cause of a run is unknown, so the run continues as after a crash");
        ClaimCause::Crash
    })
}

/// Reads a column of JSON text.
pub fn read_json<T: DeserializeOwned>(row: &Row, table: Name, column: Name, id: &str) -> StoreResult<T> {
    decode(table, column, id, row.get(column)?)
}

/// Reads a column of JSON text that may be NULL.
pub fn read_optional_json<T: DeserializeOwned>(row: &Row, table: Name, column: Name, id: &str) -> StoreResult<Option<T>> {
    row.get::<Option<&str>>(column)?.map(|text| decode(table, column, id, text)).transpose()
}

/// Reads a column with the name of an enum variant.
pub fn read_word<T>(row: &Row, table: Name, column: Name, id: &str, read: impl FnOnce(&str) -> Option<T>) -> StoreResult<T> {
    parse_word(table, column, id, row.get(column)?, read)
}

/// Reads a column with the name of an enum variant, or NULL.
pub fn read_optional_word<T>(
    row: &Row,
    table: Name,
    column: Name,
    id: &str,
    read: impl FnOnce(&str) -> Option<T>,
) -> StoreResult<Option<T>> {
    row.get::<Option<&str>>(column)?.map(|text| parse_word(table, column, id, text, read)).transpose()
}

/// Reads a column with a time or NULL, formatted for clients.
pub fn read_time(row: &Row, column: Name) -> Result<Option<String>, sqlx::Error> {
    Ok(row.get::<Option<i64>>(column)?.map(|at| UnixMillis(at).to_rfc3339()))
}

/// Converts the name of an enum variant.
pub fn parse_word<T>(table: Name, column: Name, id: &str, text: &str, read: impl FnOnce(&str) -> Option<T>) -> StoreResult<T> {
    read(text).ok_or_else(|| corrupt_value(table, column, id, format!("unknown value {text:?}")))
}

fn corrupt_value(table: Name, column: Name, id: &str, reason: impl ToString) -> StoreError {
    StoreError::Corrupt { table, column, id: id.to_owned(), reason: reason.to_string() }
}

/// Reads a claimed run, whose lease began after `claimed_at`.
pub fn read_claim(row: &Row, epoch: i64, claimed_at: Instant) -> StoreResult<Claim> {
    let run_id = RunId::from_stored(row.get("id")?);
    Ok(Claim {
        owner: UserId::from_stored(row.get("owner_id")?),
        cause: claim_cause(run_id.as_str(), row.get("claim_cause")?),
        queued_ms: row.count("queued_ms")?,
        trace: row.get::<Option<String>>("trace_id")?.map(TraceId::from_stored),
        crashes: unsigned_count(row.get("crashes")?),
        claimed_at,
        fence: Fence { run_id, conversation_id: ConversationId::from_stored(row.get("conversation_id")?), epoch },
    })
}

/// Returns the readable claims, and logs the others.
///
/// All of them are claimed already, so one error must not lose the rest. An unreadable claim becomes an orphaned claim of its node,
/// which releases it and may claim it again. Both schemas are typed, so only a damaged database contains one.
pub fn readable_claims(claims: impl Iterator<Item = StoreResult<Claim>>) -> Vec<Claim> {
    let readable = claims.filter_map(|claim| {
        claim.inspect_err(|error| tracing::error!(error = error as &dyn std::error::Error, "a claim cannot be read")).ok()
    });
    readable.collect()
}

/// Reads an unnamed lease: run, conversation, epoch, and age in milliseconds.
pub fn unnamed_lease((run, conversation, epoch, age_ms): (String, String, i64, i64)) -> UnnamedLease {
    let fence = Fence { run_id: RunId::from_stored(run), conversation_id: ConversationId::from_stored(conversation), epoch };
    UnnamedLease { fence, age: Duration::from_millis(u64::try_from(age_ms).unwrap_or(0)) }
}

/// Selects the messages of the conversation that are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TranscriptScope {
    All,
    None,
}

/// Converts a stored count. No statement makes it negative.
pub fn unsigned_count(count: i64) -> u32 {
    u32::try_from(count).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_row_is_decoded() {
        let nested = |levels: usize| (0..levels).fold(serde_json::json!(1), |inner, _| serde_json::json!([inner]));
        for levels in 0..=MAX_NESTING {
            let text = encode("t", "c", "id", &nested(levels)).unwrap();
            assert_eq!(decode::<serde_json::Value>("t", "c", "id", &text).unwrap(), nested(levels));
        }
        assert!(encode("t", "c", "id", &nested(MAX_NESTING + 1)).is_err());
    }
}
