//! Questions to a human, as runs ask and close them.

use super::batch::Batch;
use crate::domain::ids::{InputId, RunId};
use crate::domain::input::{InputRequest, InputState};
use crate::store::StoreResult;
use crate::store::rows::encode_storable;

/// Stores a question of a run. The owner is that of the run.
pub(super) fn insert(batch: &mut Batch, request: &InputRequest) -> StoreResult<()> {
    let question = encode_storable("input_requests", "question", request.id.as_str(), &request.question)?;
    batch.add(concat!(
        "INSERT INTO input_requests (id, conversation_id, run_id, owner_id, call_id, kind, question, state, created_at,
             expires_at)
         SELECT ?, conversation_id, id, owner_id, ?, ?, ?, ?, ",
        now!(),
        ", ",
        now!(),
        " + ? FROM runs WHERE id = ?"
    ));
    let call = request.call_id.as_ref().map(crate::domain::ids::CallId::as_str);
    batch.bind(request.id.as_str()).bind(call).bind(request.kind.as_str()).bind(question).bind(request.state.as_str());
    batch.bind(request.expires_in_ms.map(|left| i64::try_from(left).unwrap_or(i64::MAX / 4))).bind(request.run_id.as_str());
    Ok(())
}

/// A question needs no answer any more.
pub(super) fn close(batch: &mut Batch, run: &RunId, id: &InputId, state: InputState) {
    batch.add(concat!(
        "UPDATE input_requests SET state = ?, resolved_at = coalesce(resolved_at, ",
        now!(),
        ") WHERE id = ? AND run_id = ?"
    ));
    batch.bind(state.as_str()).bind(id.as_str()).bind(run.as_str());
}

/// The run is over, and what it has still to ask needs no answer any more. Its worker has closed what it knew of; the server of a
/// call may have asked at the last moment.
pub(super) fn close_all(batch: &mut Batch, run: &RunId) {
    batch.add(concat!(
        "UPDATE input_requests SET state = 'cancelled', resolved_at = ",
        now!(),
        " WHERE run_id = ? AND state = 'pending'"
    ));
    batch.bind(run.as_str());
}
