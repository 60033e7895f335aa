//! Signals to workers: cancellations, and messages that joined their runs.

use super::database::Database;
use super::statement::statements;
use crate::domain::ids::RunId;
use crate::store::rows::decode;
use crate::store::{ControlSignal, StoreResult};

statements! {
    // User messages after the first event of a run have joined it.
    SIGNALS = ["SELECT w.id, r.id IS NULL AS is_gone, CASE WHEN r.cancel_requested_at IS NOT NULL THEN r.cancel_requested_by END AS cancel_by,
             m.body
         FROM ", {
        postgres: "unnest($1::text[]) AS w (id)",
        sqlite: "(SELECT value AS id FROM json_each($1)) AS w"
    }, " LEFT JOIN runs r ON r.id = w.id
         LEFT JOIN messages m ON m.conversation_id = r.conversation_id AND m.position > r.first_seq AND m.run_id = r.id AND m.role = 'user'
         WHERE r.id IS NULL OR r.finished_at IS NULL AND (r.cancel_requested_at IS NOT NULL OR m.id IS NOT NULL)
         ORDER BY w.id, m.position"];
}

pub async fn control_signals(database: Database<'_>, runs: &[RunId]) -> StoreResult<Vec<ControlSignal>> {
    if runs.is_empty() {
        return Ok(Vec::new());
    }
    let mut signals: Vec<ControlSignal> = Vec::new();
    for row in database.fetch_all(SIGNALS, &[runs.iter().map(RunId::as_str).collect()]).await? {
        let run_id = RunId::from_stored(row.get("id")?);
        let message = row.get::<Option<&str>>("body")?.map(|body| decode("messages", "body", run_id.as_str(), body));
        if signals.last().is_none_or(|last| last.run_id != run_id) {
            let (cancel_by, is_gone) = (row.get("cancel_by")?, row.get("is_gone")?);
            signals.push(ControlSignal { run_id, cancel_by, joined: Vec::new(), is_damaged: false, is_gone });
        }
        if let (Some(signal), Some(message)) = (signals.last_mut(), message) {
            signal.join(message);
        }
    }
    signals.retain(ControlSignal::has_changes);
    Ok(signals)
}
