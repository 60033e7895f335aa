//! The rows of tool calls.
//!
//! Owns the statements by which use cases read and insert calls of a run. A run writes its own calls through the log writer. Must
//! not know what a call does.

use serde_json::Value;

use crate::domain::ids::{CallId, MessageId, RunId, UserId};
use crate::domain::run::Handle;
use crate::domain::tool::{Repair, ToolCall, ToolCallRecord, ToolCallState, ToolOutcome};
use crate::store::rows::{decode, encode, encode_storable, read_json, read_optional_json, read_time, read_word, unsigned_count};
use crate::store::sql::{Database, Row, Transaction, statements, values};
use crate::store::{CallBatch, StoreResult};

const TABLE: &str = "tool_calls";

statements! {
    OF_RUN = ["SELECT id, message_id, step, position, provider_call_id, name, server, arguments, arguments_hash, replay, state,
             outcome, repair, key, undoes, handle FROM tool_calls WHERE run_id = $1 ORDER BY step, position"];

    ANSWER = ["SELECT m.id, m.body, s.definitions FROM tool_calls t JOIN messages m ON m.id = t.message_id
         JOIN runs r ON r.id = t.run_id LEFT JOIN tool_sets s ON s.hash = r.tools_hash
         WHERE t.id = $1 AND t.run_id = $2 AND t.owner_id = $3"];

    // `written` contains the arguments in the message, and `tool` the tool's name at its server.
    RECORD = ["SELECT t.id, t.run_id, t.message_id, t.name, t.server, t.arguments, t.state, t.outcome, t.repair, t.undoes,
             t.started_at, t.ended_at, ", {
        postgres: "(
                 SELECT (p.value -> 'arguments')::text FROM json_array_elements(m.body::json -> 'parts') AS p (value)
                 WHERE p.value ->> 'call_id' = t.id LIMIT 1
             ) AS written,
             (
                 SELECT d.value ->> 'tool' FROM json_array_elements(s.definitions::json) AS d (value)
                 WHERE d.value ->> 'name' = t.name LIMIT 1
             ) AS tool",
        sqlite: "(SELECT value -> 'arguments' FROM json_each(m.body, '$.parts') WHERE value ->> 'call_id' = t.id LIMIT 1) AS written,
             (SELECT value ->> 'tool' FROM json_each(s.definitions) WHERE value ->> 'name' = t.name LIMIT 1) AS tool"
    }, " FROM tool_calls t JOIN runs r ON r.id = t.run_id
         LEFT JOIN messages m ON m.id = t.message_id LEFT JOIN tool_sets s ON s.hash = r.tools_hash
         WHERE t.id = $1 AND t.run_id = $2 AND t.owner_id = $3"];

    INSERT = ["INSERT INTO tool_calls (id, run_id, owner_id, message_id, step, position, provider_call_id, name, server, arguments,
             arguments_hash, replay, repair, state, outcome, key, undoes, ended_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17,
             CASE WHEN CAST($15 AS text) IS NOT NULL THEN ", now, " END)"];
}

/// Reads the calls of a run, by step and position.
pub async fn calls_of_run(database: Database<'_>, run: &RunId) -> StoreResult<Vec<ToolCall>> {
    database.read_all(OF_RUN, values![run.as_str()], |row| read_call(row, run)).await
}

/// Reads the answer of a run that contains a call, with all calls of that answer.
pub async fn call_batch(database: Database<'_>, owner: &UserId, run: &RunId, call: &CallId) -> StoreResult<Option<CallBatch>> {
    let answer = values![call.as_str(), run.as_str(), owner.as_str()];
    let Some(row) = database.fetch_optional(ANSWER, answer).await? else { return Ok(None) };
    let message = decode("messages", "body", row.get("id")?, row.get("body")?)?;
    let tools = read_optional_json(&row, "tool_sets", "definitions", run.as_str())?.unwrap_or_default();
    Ok(Some(CallBatch::from_parts(message, calls_of_run(database, run).await?, tools, call)))
}

pub async fn insert_call(tx: &mut Transaction, owner: &UserId, run: &RunId, call: &ToolCall) -> StoreResult<()> {
    let id = call.id.as_str();
    let values = values![
        id,
        run.as_str(),
        owner.as_str(),
        call.message_id.as_str(),
        call.step,
        call.position,
        &call.provider_call_id,
        &call.name,
        call.server.as_deref(),
        encode_storable(TABLE, "arguments", id, &call.arguments)?,
        &call.arguments_hash,
        encode(TABLE, "replay", id, &call.replay)?,
        call.repair.as_ref().map(|repair| encode_storable(TABLE, "repair", id, repair)).transpose()?,
        call.state.as_str(),
        call.outcome.as_ref().map(|outcome| encode_storable(TABLE, "outcome", id, outcome)).transpose()?,
        call.key.as_ref().map(CallId::as_str),
        call.undoes.as_ref().map(CallId::as_str),
    ];
    tx.execute(INSERT, values).await?;
    Ok(())
}

fn read_call(row: &Row, run: &RunId) -> StoreResult<ToolCall> {
    let id: String = row.get("id")?;
    Ok(ToolCall {
        run_id: run.clone(),
        message_id: MessageId::from_stored(row.get("message_id")?),
        step: unsigned_count(row.get("step")?),
        position: unsigned_count(row.get("position")?),
        provider_call_id: row.get("provider_call_id")?,
        name: row.get("name")?,
        server: row.get("server")?,
        arguments: read_json(row, TABLE, "arguments", &id)?,
        arguments_hash: row.get("arguments_hash")?,
        replay: read_json(row, TABLE, "replay", &id)?,
        repair: read_optional_json(row, TABLE, "repair", &id)?,
        state: read_word(row, TABLE, "state", &id, ToolCallState::from_name)?,
        outcome: read_optional_json(row, TABLE, "outcome", &id)?,
        key: row.get::<Option<String>>("key")?.map(CallId::from_stored),
        undoes: row.get::<Option<String>>("undoes")?.map(CallId::from_stored),
        handle: row.get::<Option<String>>("handle")?.map(Handle::from_stored),
        id: CallId::from_stored(id),
    })
}

/// Reads a row of [`RECORD`]: a call with `written`, the arguments in its message as JSON, and `tool`, the tool's name at its
/// server.
pub fn read_call_record(row: &Row) -> StoreResult<ToolCallRecord> {
    let id: String = row.get("id")?;
    let arguments: Value = read_json(row, TABLE, "arguments", &id)?;
    let written = row.get::<Option<&str>>("written")?.map(|text| decode::<Value>("messages", "body", &id, text)).transpose()?;
    let repair: Option<Repair> = read_optional_json(row, TABLE, "repair", &id)?;
    let outcome: Option<ToolOutcome> = read_optional_json(row, TABLE, "outcome", &id)?;
    // Repaired arguments differ from the written ones even if no human edited them, and the store cannot repeat the repair.
    let is_repaired = repair.as_ref().is_some_and(|repair| !repair.arguments.is_empty());
    let edited = !is_repaired && written.is_some_and(|written| written != arguments);
    let (is_error, duration_ms) =
        (outcome.as_ref().is_some_and(|outcome| outcome.is_error), outcome.as_ref().map(|outcome| outcome.duration_ms));
    Ok(ToolCallRecord {
        run_id: RunId::from_stored(row.get("run_id")?),
        message_id: MessageId::from_stored(row.get("message_id")?),
        name: row.get("name")?,
        server: row.get("server")?,
        tool: row.get("tool")?,
        arguments,
        edited,
        repair,
        undoes: row.get::<Option<String>>("undoes")?.map(CallId::from_stored),
        state: read_word(row, TABLE, "state", &id, ToolCallState::from_name)?,
        is_error,
        content: outcome.map_or_else(Vec::new, |outcome| outcome.content),
        duration_ms,
        started_at: read_time(row, "started_at")?,
        finished_at: read_time(row, "ended_at")?,
        id: CallId::from_stored(id),
    })
}
