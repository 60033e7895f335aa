//! The requests of model steps.
//!
//! Owns the statements that read their records. The log writer stores a record with the start of its step. Must not know how a request is
//! rebuilt.

use std::collections::HashMap;
use std::sync::Arc;

use crate::domain::conversation::Message;
use crate::domain::ids::{MessageId, RunId, UserId};
use crate::domain::run::{MissingStepRequest, RecordedSteps, RequestRecord, StepRequest};
use crate::domain::tool::ToolDefinition;
use crate::store::rows::{read_json, read_optional_json};
use crate::store::sql::{Row, Value, statements, values};
use crate::store::{RecordStore, StoreResult};

statements! {
    TOOLS = ["SELECT s.definitions FROM runs r LEFT JOIN tool_sets s ON s.hash = r.tools_hash WHERE r.id = $1 AND r.owner_id = $2"];

    // An older version that began a step again has left the record of the attempt before.
    RECORD = ["SELECT CASE WHEN request_attempt = attempt THEN request END AS request FROM run_steps
         WHERE run_id = $1 AND owner_id = $2 AND step = $3 AND kind = 'model'"];

    MESSAGES = ["SELECT id, body FROM messages WHERE owner_id = $1 AND id ", (in_list "$2")];
}

/// Requests of model steps.
impl dyn RecordStore + '_ {
    /// Returns the last request of a model step, rebuilt from its record.
    pub async fn step_request(
        &self,
        owner: &UserId,
        run: &RunId,
        step: u32,
    ) -> StoreResult<Result<StepRequest, MissingStepRequest>> {
        let row = self.database().fetch_optional(TOOLS, values![run.as_str(), owner.as_str()]).await?;
        let Some(row) = row else { return Ok(Err(MissingStepRequest::Run)) };
        let tools: Option<Vec<Arc<ToolDefinition>>> = read_optional_json(&row, "tool_sets", "definitions", run.as_str())?;
        // A record may continue that of an earlier step.
        let (mut records, mut next) = (Vec::new(), Some(step));
        while let Some(at) = next {
            let row = self.database().fetch_optional(RECORD, values![run.as_str(), owner.as_str(), at]).await?;
            let record = match row {
                Some(row) => read_optional_json::<RequestRecord>(&row, "run_steps", "request", run.as_str())?,
                None if at == step => return Ok(Err(MissingStepRequest::Step)),
                None => None,
            };
            next = record.as_ref().and_then(|record| record.base).filter(|base| *base < at);
            records.extend(record.map(|record| (at, record)));
        }
        let recorded = RecordedSteps::new(records);
        let ids: Value<'_> = recorded.message_ids(step).into_iter().map(MessageId::as_str).collect();
        let read = |row: &Row| {
            let id: String = row.get("id")?;
            let message = read_json::<Message>(row, "messages", "body", &id)?;
            Ok((MessageId::from_stored(id), message))
        };
        let rows = self.database().read_all(MESSAGES, &[owner.as_str().into(), ids], read).await?;
        let rows: HashMap<MessageId, Message> = rows.into_iter().collect();
        Ok(recorded.rebuild(run, step, &rows, &tools.unwrap_or_default()).ok_or(MissingStepRequest::Record))
    }
}
