//! Waking a run that waits, and going on after one that has ended.

use sqlx::Row as _;

use super::accept::{Beginning, NewRun, store_run, unfinished_runs};
use super::apply::{add_tool_calls, insert_message};
use super::batch::Batch;
use super::connection::Tx;
use super::load::tool_calls;
use super::runs::find_run;
use crate::domain::conversation::AgentChoice;
use crate::domain::ids::{CallId, ConversationId, MessageId, RunId, UserId};
use crate::domain::run::{Run, RunStatus};
use crate::store::rows::{RunRow, decode, decode_profile};
use crate::store::{CallBatch, GoOn, ResumeRun, Resumed, StoreResult, compose};

/// Whether a run was there to take a call back and has answered nobody.
macro_rules! only_undid {
    ($($run:literal),+) => {
        concat!(
            "(EXISTS (SELECT 1 FROM tool_calls WHERE run_id = ",
            $($run,)+
            " AND undoes IS NOT NULL) AND NOT EXISTS (SELECT 1 FROM messages WHERE run_id = ",
            $($run,)+
            " AND role = 'user' AND body ->> 'internal' IS NULL))"
        )
    };
}

/// Whether a rewind has taken out what a run had to answer: the first that a user has said in the newest run, up to this one, in which
/// one has said anything. What was gone before the run began does not count: `note_rewinds` has written down what that is.
macro_rules! turn_taken_out {
    ($run:literal) => {
        concat!(
            "coalesce((
                 SELECT m.superseded_by IS NOT NULL FROM messages m JOIN runs t ON t.id = m.run_id
                 WHERE m.conversation_id = ",
            $run,
            ".conversation_id AND m.role = 'user' AND m.body ->> 'internal' IS NULL AND t.first_seq <= ",
            $run,
            ".first_seq AND NOT EXISTS (SELECT 1 FROM runs s WHERE s.id = m.superseded_by AND s.first_seq <= ",
            $run,
            ".first_seq)
                 ORDER BY t.first_seq DESC, m.position LIMIT 1
             ), 0)"
        )
    };
}

/// Whether anything that was said in a run is left.
macro_rules! has_words {
    ($run:literal) => {
        concat!(
            "EXISTS (SELECT 1 FROM messages m WHERE m.conversation_id = ",
            $run,
            ".conversation_id AND m.run_id = ",
            $run,
            ".id AND m.superseded_by IS NULL)"
        )
    };
}

/// Whether a rewind has taken out anything that was said in a run. What a retry takes the place of names the run of that.
macro_rules! was_rewound {
    ($run:literal) => {
        concat!(
            "EXISTS (SELECT 1 FROM messages m WHERE m.conversation_id = ",
            $run,
            ".conversation_id AND m.run_id = ",
            $run,
            ".id AND m.superseded_by IS NOT NULL AND NOT EXISTS (SELECT 1 FROM runs s WHERE s.id = m.superseded_by))"
        )
    };
}

/// Whether a failed run can be gone on from: nothing else answers what it had to answer, and that was not taken out by a rewind. For
/// a statement that reads the run as `$run`.
macro_rules! is_resumable {
    ($run:literal) => {
        concat!(
            // What came after any other run than the newest has answered it, or has been resumed already. What only took a call
            // back answers nothing, and what a rewind has taken out as a whole does not any more.
            "(NOT EXISTS (SELECT 1 FROM runs n WHERE n.conversation_id = ",
            $run,
            ".conversation_id AND (n.finished_at IS NULL OR n.first_seq > ",
            $run,
            ".first_seq AND NOT ",
            $crate::store::sqlite::resume::only_undid!("n.id"),
            " AND (",
            $crate::store::sqlite::resume::has_words!("n"),
            " OR NOT (",
            $crate::store::sqlite::resume::turn_taken_out!("n"),
            " OR ",
            $crate::store::sqlite::resume::was_rewound!("n"),
            ")))) AND NOT ",
            $crate::store::sqlite::resume::only_undid!($run, ".id"),
            " AND (",
            $crate::store::sqlite::resume::has_words!($run),
            " OR NOT ",
            $crate::store::sqlite::resume::turn_taken_out!($run),
            "))"
        )
    };
}

pub(in crate::store) use {has_words, is_resumable, only_undid, turn_taken_out, was_rewound};

pub(super) async fn resume_in(tx: &mut Tx, resume: &ResumeRun) -> StoreResult<Resumed> {
    let Some(row) = find_run(tx, &resume.owner, &resume.run_id).await? else { return Ok(Resumed::NoRun) };
    let run = row.clone().into_run()?;
    match (&resume.how, run.status) {
        (GoOn::Resume, RunStatus::Waiting) if compose::can_be_woken(&run) => wake(tx, resume, run).await,
        (how, status) if compose::can_be_gone_on_from(how, status) => continue_after(tx, resume, row).await,
        _ => Ok(Resumed::NotResumable { run }),
    }
}

/// A waiting run need not wait any longer. One that a worker has claimed meanwhile goes on anyway.
async fn wake(tx: &mut Tx, resume: &ResumeRun, run: Run) -> StoreResult<Resumed> {
    sqlx::query(concat!(
        "UPDATE runs SET claim_cause = 'request', claimable_at = min(coalesce(claimable_at, ",
        now!(),
        "), ",
        now!(),
        ") WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM run_leases WHERE run_id = ?1)"
    ))
    .bind(resume.run_id.as_str())
    .execute(&mut **tx)
    .await?;
    Ok(Resumed::Run { run, events: Vec::new() })
}

/// A new run with the profile of the one that has ended goes on from the same history, if `is_resumable` says so. A call is taken
/// back whatever came after it, once.
async fn continue_after(tx: &mut Tx, resume: &ResumeRun, ended: RunRow) -> StoreResult<Resumed> {
    let conversation_id = ConversationId::from_stored(ended.conversation_id.clone());
    let (is_newest, is_taken_back): (bool, bool) = sqlx::query_as(concat!(
        "SELECT CASE WHEN ?2 IS NULL THEN ",
        is_resumable!("r"),
        " ELSE
                 NOT EXISTS (SELECT 1 FROM runs n WHERE n.conversation_id = r.conversation_id AND n.finished_at IS NULL)
                 -- A repeated call is answered without being made. One that never began may have been made by a retry in its name.
                 AND EXISTS (SELECT 1 FROM tool_calls t JOIN runs m ON m.id = t.run_id
                     WHERE m.conversation_id = r.conversation_id AND (t.id = ?2 OR t.key = ?2) AND t.started_at IS NOT NULL)
                 AND NOT EXISTS (SELECT 1 FROM tool_calls WHERE undoes = ?2
                     AND state NOT IN ('failed', 'denied', 'cancelled', 'unknown'))
                 AND (?3 OR NOT EXISTS (SELECT 1 FROM tool_calls WHERE undoes = ?2 AND started_at IS NOT NULL
                     AND state IN ('failed', 'cancelled', 'unknown')))
             END
             -- The answer that is begun with may have been taken out by a rewind.
             AND coalesce((SELECT superseded_by IS NULL FROM messages WHERE id = ?1), 1),
             -- Its calls are taken over as they ended, or made again under their keys: of what was taken back since, neither is true.
             EXISTS (SELECT 1 FROM tool_calls t JOIN tool_calls u ON u.undoes = coalesce(t.key, t.id)
                 WHERE t.run_id = r.id AND t.message_id = ?1
                     AND u.state <> 'denied' AND (u.started_at IS NOT NULL OR u.state = 'done'))
         FROM runs r WHERE r.id = ?4"
    ))
    .bind(resume.how.original())
    .bind(resume.how.undone().map(CallId::as_str))
    .bind(resume.how.is_confirmed())
    .bind(&ended.id)
    .fetch_one(&mut **tx)
    .await?;
    if !is_newest {
        return Ok(Resumed::NotResumable { run: ended.into_run()? });
    }
    if is_taken_back {
        return Ok(Resumed::TakenBack);
    }
    if resume.max_active_runs > 0 && unfinished_runs(tx, &resume.owner).await? >= resume.max_active_runs {
        return Ok(Resumed::TooManyRuns);
    }
    let profile = sqlx::query("SELECT profile FROM runs WHERE id = ?").bind(&ended.id).fetch_one(&mut **tx).await?;
    let profile = decode_profile(&ended.id, profile.try_get("profile")?)?;
    let superseded = supersede(tx, resume, &conversation_id).await?;
    note_rewinds(tx, resume, &conversation_id).await?;
    let new = NewRun {
        id: &resume.new_run_id,
        conversation_id: &conversation_id,
        owner: &resume.owner,
        profile: &profile,
        choice: &AgentChoice::default(),
        beginning: Beginning::After(resume, superseded),
        trace: &resume.trace,
        now: resume.now,
    };
    let (row, _, events) = store_run(tx, new).await?;
    if let Some(batch) = resume.how.batch() {
        take_over(tx, resume, batch, row.first_seq).await?;
    }
    Ok(Resumed::Run { run: row.into_run()?, events })
}

/// Takes messages out of the conversation that the new run takes the place of, hints to the model with them. What users have said stays.
async fn supersede(tx: &mut Tx, resume: &ResumeRun, conversation: &ConversationId) -> StoreResult<Vec<MessageId>> {
    if matches!(resume.how, GoOn::Resume | GoOn::Undo { .. }) {
        return Ok(Vec::new());
    }
    // A turn begins with the newest run that has a message of a user which no rewind has taken out: those after it have gone on after
    // another one, have taken a call back, or are of what was taken out. Models go on reading of calls of earlier turns that were taken
    // back.
    let mut superseded: Vec<(String, i64)> = sqlx::query_as(
        "WITH turn AS (
             SELECT max(r.first_seq) AS begins FROM messages m JOIN runs r ON r.id = m.run_id
             WHERE m.conversation_id = ?2 AND m.role = 'user' AND m.body ->> 'internal' IS NULL AND m.superseded_by IS NULL
         )
         UPDATE messages SET superseded_by = ?1
         WHERE conversation_id = ?2 AND (role <> 'user' OR body ->> 'internal' IS NOT NULL) AND superseded_by IS NULL
             AND CASE WHEN ?4 IS NULL THEN
             run_id IN (SELECT r.id FROM runs r, turn WHERE r.conversation_id = ?2 AND r.first_seq >= turn.begins AND NOT EXISTS (
                 SELECT 1 FROM tool_calls u JOIN tool_calls undone ON undone.id = u.undoes JOIN runs earlier ON earlier.id = undone.run_id
                 WHERE u.run_id = r.id AND earlier.first_seq < turn.begins))
         ELSE run_id = ?3 AND position >= (SELECT position FROM messages WHERE id = ?4 AND run_id = ?3) END
         RETURNING id, position",
    )
    .bind(resume.new_run_id.as_str())
    .bind(conversation.as_str())
    .bind(resume.run_id.as_str())
    .bind(resume.how.original())
    .fetch_all(&mut **tx)
    .await?;
    // A summary that reaches into these runs tells of what has just been taken out.
    sqlx::query(
        "DELETE FROM context_summaries WHERE conversation_id = ?1 AND EXISTS (
             SELECT 1 FROM messages m JOIN messages gone ON gone.run_id = m.run_id
             WHERE m.id = context_summaries.covers AND gone.conversation_id = ?1 AND gone.superseded_by = ?2)",
    )
    .bind(conversation.as_str())
    .bind(resume.new_run_id.as_str())
    .execute(&mut **tx)
    .await?;
    superseded.sort_by_key(|(_, position)| *position);
    Ok(superseded.into_iter().map(|(id, _)| MessageId::from_stored(id)).collect())
}

/// Writes down that what rewinds have taken out until now was gone before the new run began: it answers what is left, and no run of
/// before them does.
async fn note_rewinds(tx: &mut Tx, resume: &ResumeRun, conversation: &ConversationId) -> StoreResult<()> {
    sqlx::query(
        "UPDATE messages SET superseded_by = ?1
         WHERE conversation_id = ?2 AND role = 'user' AND body ->> 'internal' IS NULL AND superseded_by IS NOT NULL
             AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.id = messages.superseded_by)",
    )
    .bind(resume.new_run_id.as_str())
    .bind(conversation.as_str())
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// The new run begins where its predecessor had the answer with these calls.
async fn take_over(tx: &mut Tx, resume: &ResumeRun, batch: &CallBatch, position: i64) -> StoreResult<()> {
    let new = &resume.new_run_id;
    let mut rows = Batch::default();
    insert_message(&mut rows, &batch.message, position)?;
    add_tool_calls(&mut rows, new, &batch.calls)?;
    rows.run(tx).await?;
    sqlx::query(concat!(
        "INSERT INTO run_steps (run_id, owner_id, step, kind, status, attempt, started_at) VALUES (?, ?, 1, 'tools', 'started', 1, ",
        now!(),
        ")"
    ))
    .bind(new.as_str())
    .bind(resume.owner.as_str())
    .execute(&mut **tx)
    .await?;
    // The answer was the first round, and what had joined before it was heard in its request.
    sqlx::query(
        "UPDATE runs SET tools_hash = (SELECT tools_hash FROM runs WHERE id = ?1),
             counters = json_set(counters, '$.rounds', 1, '$.heard',
                 (SELECT joined FROM conversation_heads WHERE conversation_id = runs.conversation_id))
         WHERE id = ?2",
    )
    .bind(resume.run_id.as_str())
    .bind(new.as_str())
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// The answer of a run that holds a call, with all its calls.
pub(super) async fn call_batch(tx: &mut Tx, owner: &UserId, run: &RunId, call: &CallId) -> StoreResult<Option<CallBatch>> {
    let found: Option<(String, String, Option<String>)> = sqlx::query_as(
        "SELECT m.id, m.body, s.definitions FROM tool_calls t JOIN messages m ON m.id = t.message_id
         JOIN runs r ON r.id = t.run_id LEFT JOIN tool_sets s ON s.hash = r.tools_hash
         WHERE t.id = ? AND t.run_id = ? AND t.owner_id = ?",
    )
    .bind(call.as_str())
    .bind(run.as_str())
    .bind(owner.as_str())
    .fetch_optional(&mut **tx)
    .await?;
    let Some((id, body, tools)) = found else { return Ok(None) };
    let message = decode("messages", "body", &id, &body)?;
    let tools = tools.map(|text| decode("tool_sets", "definitions", run.as_str(), &text)).transpose()?.unwrap_or_default();
    let calls = tool_calls(tx, run).await?;
    Ok(Some(CallBatch::found(message, calls, tools, call)))
}
