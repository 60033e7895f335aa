//! Tool calls, read from their rows: the same for both backends.

use serde_json::Value;
use sqlx::{ColumnIndex, Decode, Row, Type};

use super::StoreResult;
use super::rows::{decode, unsigned, word};
use crate::domain::call_record::ToolCallRecord;
use crate::domain::handle::Handle;
use crate::domain::ids::{CallId, MessageId, RunId};
use crate::domain::tool::{Repair, ToolCall, ToolCallState, ToolOutcome};
use crate::support::clock::UnixMillis;

/// Reads a row of `tool_calls`, with `written`, the arguments in its message as JSON, and `tool`, its name at its server.
pub(super) fn read_call_record<'r, R>(row: &'r R) -> StoreResult<ToolCallRecord>
where
    R: Row,
    &'static str: ColumnIndex<R>,
    String: Decode<'r, R::Database> + Type<R::Database>,
    i64: Decode<'r, R::Database> + Type<R::Database>,
{
    let table = "tool_calls";
    let text = |column: &'static str| -> Result<String, sqlx::Error> { row.try_get(column) };
    let maybe = |column: &'static str| -> Result<Option<String>, sqlx::Error> { row.try_get(column) };
    let time = |column: &'static str| -> Result<Option<String>, sqlx::Error> {
        let at: Option<i64> = row.try_get(column)?;
        Ok(at.map(|at| UnixMillis(at).to_rfc3339()))
    };
    let id = text("id")?;
    let arguments: Value = decode(table, "arguments", &id, &text("arguments")?)?;
    let written: Option<Value> = maybe("written")?.map(|text| decode("messages", "body", &id, &text)).transpose()?;
    let repair: Option<Repair> = maybe("repair")?.map(|text| decode(table, "repair", &id, &text)).transpose()?;
    let outcome: Option<ToolOutcome> = maybe("outcome")?.map(|text| decode(table, "outcome", &id, &text)).transpose()?;
    // What was mended differs from what was written whoever has changed it, and mending is not the store's to repeat.
    let is_mended = repair.as_ref().is_some_and(|repair| !repair.arguments.is_empty());
    let edited = !is_mended && written.is_some_and(|written| written != arguments);
    let (is_error, duration_ms) = (outcome.as_ref().is_some_and(|it| it.is_error), outcome.as_ref().map(|it| it.duration_ms));
    Ok(ToolCallRecord {
        run_id: RunId::from_stored(text("run_id")?),
        message_id: MessageId::from_stored(text("message_id")?),
        name: text("name")?,
        server: maybe("server")?,
        tool: maybe("tool")?,
        arguments,
        edited,
        repair,
        undoes: maybe("undoes")?.map(CallId::from_stored),
        state: word(table, "state", &id, &text("state")?, ToolCallState::from_word)?,
        is_error,
        content: outcome.map_or_else(Vec::new, |outcome| outcome.content),
        duration_ms,
        started_at: time("started_at")?,
        finished_at: time("ended_at")?,
        id: CallId::from_stored(id),
    })
}

/// Reads a row of `tool_calls` as its run goes on with it.
pub(super) fn read_call<'r, R>(row: &'r R, run_id: &RunId) -> StoreResult<ToolCall>
where
    R: Row,
    &'static str: ColumnIndex<R>,
    String: Decode<'r, R::Database> + Type<R::Database>,
    i64: Decode<'r, R::Database> + Type<R::Database>,
{
    let id: String = row.try_get("id")?;
    let arguments: String = row.try_get("arguments")?;
    let replay: String = row.try_get("replay")?;
    let state: String = row.try_get("state")?;
    let outcome: Option<String> = row.try_get("outcome")?;
    let repair: Option<String> = row.try_get("repair")?;
    Ok(ToolCall {
        arguments: decode("tool_calls", "arguments", &id, &arguments)?,
        replay: decode("tool_calls", "replay", &id, &replay)?,
        state: word("tool_calls", "state", &id, &state, ToolCallState::from_word)?,
        outcome: outcome.map(|outcome| decode("tool_calls", "outcome", &id, &outcome)).transpose()?,
        repair: repair.map(|repair| decode("tool_calls", "repair", &id, &repair)).transpose()?,
        id: CallId::from_stored(id),
        run_id: run_id.clone(),
        message_id: MessageId::from_stored(row.try_get("message_id")?),
        step: unsigned(row.try_get("step")?),
        position: unsigned(row.try_get("position")?),
        provider_call_id: row.try_get("provider_call_id")?,
        name: row.try_get("name")?,
        server: row.try_get("server")?,
        key: row.try_get::<Option<String>, _>("key")?.map(CallId::from_stored),
        undoes: row.try_get::<Option<String>, _>("undoes")?.map(CallId::from_stored),
        handle: row.try_get::<Option<String>, _>("handle")?.map(Handle::from_stored),
        arguments_hash: row.try_get("arguments_hash")?,
    })
}
