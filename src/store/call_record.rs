//! One call of a tool with its whole result, read from its row: the same for both backends.

use serde_json::Value;
use sqlx::{ColumnIndex, Decode, Row, Type};

use super::StoreResult;
use super::rows::{decode, word};
use crate::domain::call_record::ToolCallRecord;
use crate::domain::ids::{CallId, MessageId, RunId};
use crate::domain::tool::{Repair, ToolCallState, ToolOutcome};
use crate::support::clock::UnixMillis;

/// What [`read_call_record`] reads of a row `t` of `tool_calls`. Beside it belong `written`, the arguments that its message holds, as
/// JSON, and `tool`, its name at its server.
pub(super) const CALL_COLUMNS: &str = "t.id, t.run_id, t.message_id, t.name, t.server, t.arguments, t.state, t.outcome, t.repair, \
     t.undoes, t.started_at, t.ended_at";

/// Reads [`CALL_COLUMNS`], `written` and `tool`.
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
