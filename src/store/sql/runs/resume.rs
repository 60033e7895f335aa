//! Resumes runs: wakes a waiting run, or continues an ended one.
//!
//! Owns the statements that check whether a run can be continued, and that supersede messages for that. Must not know how a run
//! works.

use crate::domain::conversation::{AgentChoice, ConversationStatus};
use crate::domain::ids::{CallId, ConversationId, MessageId};
use crate::domain::run::{Run, RunStatus, WaitReason};
use crate::store::rows::{decode_profile, encode_storable, storable_message};
use crate::store::runs::created_rows;
use crate::store::sql::runs::calls::insert_call;
use crate::store::sql::runs::new_run::{ConversationState, NewRun, insert_message, insert_run, update_conversation};
use crate::store::sql::runs::run_rows::{find_run, has_all_runs, lock_head_of_run};
use crate::store::sql::{Transaction, refuse, statements, text, values};
use crate::store::{CallBatch, IdempotencyKey, IdempotentResult, ResumeKind, ResumeOutcome, ResumeRun, StoreResult};

/// Tests whether a message body in a column is an internal message.
macro_rules! is_internal {
    (postgres $body:literal) => {
        text!(postgres: "(" $body "::json ->> 'internal' IS NOT NULL)")
    };
    (sqlite $body:literal) => {
        text!(sqlite: "(" $body " ->> 'internal' IS NOT NULL)")
    };
}

/// Tests whether run `$run` was created to undo a call, and has answered no message.
macro_rules! only_undid {
    ($dialect:ident $run:literal) => {
        text!($dialect: "(EXISTS (SELECT 1 FROM tool_calls t WHERE t.run_id = " $run ".id AND t.undoes IS NOT NULL)
             AND NOT EXISTS (SELECT 1 FROM messages m WHERE m.run_id = " $run ".id AND m.role = 'user' AND NOT " (is_internal "m.body") "))")
    };
}

/// Tests whether a rewind has superseded the message that run `$run` answers. That is the first user message of run `$run`, or else
/// of the newest earlier run that has a user message. Ignores messages that were superseded before the run began, which
/// `NOTE_REWINDS` marks.
macro_rules! turn_taken_out {
    ($dialect:ident $run:literal) => {
        text!($dialect: "coalesce((
                 SELECT m.superseded_by IS NOT NULL FROM messages m JOIN runs t ON t.id = m.run_id
                 WHERE m.conversation_id = " $run ".conversation_id AND m.role = 'user' AND NOT " (is_internal "m.body") "
                     AND t.first_seq <= " $run ".first_seq
                     AND NOT EXISTS (SELECT 1 FROM runs s WHERE s.id = m.superseded_by AND s.first_seq <= " $run ".first_seq)
                 ORDER BY t.first_seq DESC, m.position LIMIT 1
             ), false)")
    };
}

/// Selects the messages of run `$run`, for a further condition.
macro_rules! messages_of {
    ($dialect:ident $run:literal) => {
        text!($dialect: "SELECT 1 FROM messages m WHERE m.conversation_id = " $run ".conversation_id AND m.run_id = " $run ".id")
    };
}

/// Tests whether the failed run `runs` can be continued: no other run answers its message, and no rewind has superseded that
/// message.
macro_rules! is_resumable {
    ($dialect:ident) => {
        text!($dialect:
            // A later run has answered the message, or has resumed this run already. A run that only undid a call answers no
            // message, and neither does a run that a rewind has superseded completely.
            "(NOT EXISTS (SELECT 1 FROM runs n WHERE n.conversation_id = runs.conversation_id
                 AND (n.finished_at IS NULL OR n.first_seq > runs.first_seq AND NOT " (only_undid "n")
            " AND (EXISTS (" (messages_of "n") " AND m.superseded_by IS NULL) OR NOT (" (turn_taken_out "n")
            // Messages that a retry replaces contain the id of the retry's run. All other superseded messages were superseded by a
            // rewind.
            " OR EXISTS (" (messages_of "n") " AND m.superseded_by IS NOT NULL
                 AND NOT EXISTS (SELECT 1 FROM runs s WHERE s.id = m.superseded_by))))))
             AND NOT " (only_undid "runs")
            " AND (EXISTS (" (messages_of "runs") " AND m.superseded_by IS NULL) OR NOT " (turn_taken_out "runs") "))")
    };
}
pub(in crate::store) use {is_internal, is_resumable, messages_of, only_undid, turn_taken_out};

statements! {
    WAKE = ["UPDATE runs SET claim_cause = 'request', claimable_at = ", least, "(coalesce(claimable_at, ", now, "), ", now, ")
         WHERE id = $1 AND NOT EXISTS (SELECT 1 FROM run_leases WHERE run_id = $1)"];

    // A call can be undone once, even if other runs came after it.
    ENDED = ["SELECT runs.profile, c.title, c.status, CASE WHEN CAST($3 AS text) IS NULL THEN ", is_resumable, " ELSE
                 NOT EXISTS (SELECT 1 FROM runs n WHERE n.conversation_id = c.id AND n.finished_at IS NULL)
                 -- A duplicate call has an answer, but was not executed. For a call that never started, a retry may have executed a
                 -- call with the same key.
                 AND EXISTS (SELECT 1 FROM tool_calls t JOIN runs m ON m.id = t.run_id
                     WHERE m.conversation_id = c.id AND (t.id = $3 OR t.key = $3) AND t.started_at IS NOT NULL)
                 AND NOT EXISTS (SELECT 1 FROM tool_calls t WHERE t.undoes = $3
                     AND t.state NOT IN ('failed', 'denied', 'cancelled', 'unknown'))
                 AND ($4 OR NOT EXISTS (SELECT 1 FROM tool_calls t WHERE t.undoes = $3 AND t.started_at IS NOT NULL
                     AND t.state IN ('failed', 'cancelled', 'unknown')))
             END
             -- A rewind may have superseded the answer with which the new run begins.
             AND coalesce((SELECT superseded_by IS NULL FROM messages WHERE id = $2), true) AS is_newest,
             -- The new run copies the outcomes of the answer's calls, or makes these calls again under their keys. Neither is
             -- possible for a call that was undone since.
             EXISTS (SELECT 1 FROM tool_calls t JOIN tool_calls u ON u.undoes = coalesce(t.key, t.id)
                 WHERE t.run_id = runs.id AND t.message_id = $2
                     AND u.state <> 'denied' AND (u.started_at IS NOT NULL OR u.state = 'done')) AS is_taken_back
         FROM runs JOIN conversations c ON c.id = runs.conversation_id WHERE runs.id = $1"];

    // A turn begins with the newest run that has a user message which no rewind has superseded. Later runs have continued another
    // one, have undone a call, or are superseded. Runs that have undone a call of an earlier turn stay, because models still read
    // that call.
    SUPERSEDE = ["WITH turn AS (
             SELECT max(r.first_seq) AS begins FROM messages m JOIN runs r ON r.id = m.run_id
             WHERE m.conversation_id = $2 AND m.role = 'user' AND NOT ", (is_internal "m.body"), " AND m.superseded_by IS NULL
         )
         UPDATE messages SET superseded_by = $1
         WHERE conversation_id = $2 AND (role <> 'user' OR ", (is_internal "body"), ") AND superseded_by IS NULL
             AND CASE WHEN CAST($4 AS text) IS NULL THEN
             run_id IN (SELECT r.id FROM runs r, turn WHERE r.conversation_id = $2 AND r.first_seq >= turn.begins AND NOT EXISTS (
                 SELECT 1 FROM tool_calls u JOIN tool_calls undone ON undone.id = u.undoes JOIN runs earlier ON earlier.id = undone.run_id
                 WHERE u.run_id = r.id AND earlier.first_seq < turn.begins))
         ELSE run_id = $3 AND position >= (SELECT position FROM messages WHERE id = $4 AND run_id = $3) END
         RETURNING id, position"];

    // A summary that covers messages of these runs describes superseded messages.
    DELETE_SUMMARY = ["DELETE FROM context_summaries WHERE conversation_id = $1 AND EXISTS (
             SELECT 1 FROM messages m JOIN messages gone ON gone.run_id = m.run_id
             WHERE m.id = context_summaries.covers AND gone.conversation_id = $1 AND gone.superseded_by = $2)"];

    // Marks the messages that rewinds have superseded so far. The new run answers the remaining messages, and earlier runs answer
    // none.
    NOTE_REWINDS = ["UPDATE messages SET superseded_by = $1
         WHERE conversation_id = $2 AND role = 'user' AND NOT ", (is_internal "body"), " AND superseded_by IS NOT NULL
             AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.id = messages.superseded_by)"];

    BEGIN_STEP = ["INSERT INTO run_steps (run_id, owner_id, step, kind, status, attempt, started_at)
         VALUES ($1, $2, 1, 'tools', 'started', 1, ", now, ")"];

    // The copied answer counts as the first round. Its request contained all messages that had joined before it.
    COUNT_ROUND = ["UPDATE runs SET tools_hash = (SELECT tools_hash FROM runs WHERE id = $2), counters = ", {
        postgres: "(counters::jsonb || jsonb_build_object('rounds', 1, 'joined_at_restart',
                 (SELECT joined FROM conversation_heads h WHERE h.conversation_id = runs.conversation_id)))::text",
        sqlite: "json_set(counters, '$.rounds', 1, '$.joined_at_restart',
                 (SELECT joined FROM conversation_heads h WHERE h.conversation_id = runs.conversation_id))"
    }, " WHERE id = $1"];
}

pub async fn resume_in(tx: &mut Transaction, resume: &ResumeRun, key: Option<&IdempotencyKey>) -> IdempotentResult<ResumeOutcome> {
    let head = lock_head_of_run(tx, &resume.owner, &resume.run_id).await?;
    if let Some(recorded) = tx.recorded(key).await? {
        return Ok(recorded);
    }
    let Some((conversation, base)) = head else { return refuse(ResumeOutcome::NoRun) };
    let Some(run) = find_run(tx, &resume.owner, &resume.run_id).await? else {
        return refuse(ResumeOutcome::NoRun);
    };
    let resumed = match (&resume.how, run.status) {
        // A run that waits for a human or its client continues only after an answer.
        (ResumeKind::Resume, RunStatus::Waiting) if !run.reason.is_some_and(WaitReason::needs_answer) => {
            tx.execute(WAKE, values![run.id.as_str()]).await?;
            ResumeOutcome::Run { run, events: Vec::new() }
        }
        (how, status) if created_rows::can_be_gone_on_from(how, status) => {
            continue_after(tx, resume, run, &conversation, base).await?
        }
        _ => ResumeOutcome::NotResumable { run },
    };
    if matches!(resumed, ResumeOutcome::Run { .. }) { tx.record(key, resumed).await } else { refuse(resumed) }
}

/// Stores a new run with the profile of the ended run, or with another model. It continues with the same history.
async fn continue_after(
    tx: &mut Transaction,
    resume: &ResumeRun,
    ended: Run,
    conversation: &ConversationId,
    base: i64,
) -> StoreResult<ResumeOutcome> {
    let ResumeRun { owner, run_id, how, model, new_run_id, trace, max_active_runs, now } = resume;
    let row = values![run_id.as_str(), how.original(), how.undone_call().map(CallId::as_str), how.is_confirmed()];
    let row = tx.fetch_one(ENDED, row).await?;
    if !row.get("is_newest")? {
        return Ok(ResumeOutcome::NotResumable { run: ended });
    }
    if row.get("is_taken_back")? {
        return Ok(ResumeOutcome::TakenBack);
    }
    if has_all_runs(tx, owner, *max_active_runs).await? {
        return Ok(ResumeOutcome::TooManyRuns);
    }
    let (stored, title): (&str, &str) = (row.get("profile")?, row.get("title")?);
    let mut profile = decode_profile(run_id.as_str(), stored)?;
    let max_crashes = profile.max_crashes;
    let profile = match model {
        Some(model) => {
            profile.name_model(model);
            encode_storable("runs", "profile", new_run_id.as_str(), &profile)?
        }
        None => stored.to_owned(),
    };
    let run = Run {
        id: new_run_id.clone(),
        model: model.clone().unwrap_or(ended.model),
        status: RunStatus::Queued,
        attempt: 0,
        finish_reason: None,
        usage: None,
        error: None,
        output: None,
        trace_id: Some(trace.clone()),
        created_at: now.to_rfc3339(),
        started_at: None,
        finished_at: None,
        ..ended
    };
    let superseded = supersede(tx, resume, conversation).await?;
    tx.execute(NOTE_REWINDS, values![new_run_id.as_str(), conversation.as_str()]).await?;
    let is_changed = row.get::<&str>("status")? != ConversationStatus::Queued.as_str();
    let events = created_rows::continuation_events(resume, superseded, is_changed.then_some(title));
    let (status, default_agent) = (ConversationStatus::Queued, Some(run.agent.as_str()));
    let state = ConversationState { title, status, choice: &AgentChoice::default(), default_agent, hides: false };
    update_conversation(tx, conversation, state, *now).await?;
    let events = tx.append(conversation, base, events).await?;
    let new = NewRun { owner, run: &run, profile: &profile, max_crashes, is_active: true, first_seq: base + 1, now: *now };
    insert_run(tx, new).await?;
    if let Some(batch) = how.batch() {
        take_over(tx, resume, batch, base + 1).await?;
    }
    Ok(ResumeOutcome::Run { run, events })
}

/// Supersedes the messages that the new run replaces, including internal messages. User messages stay.
async fn supersede(tx: &mut Transaction, resume: &ResumeRun, conversation: &ConversationId) -> StoreResult<Vec<MessageId>> {
    if matches!(resume.how, ResumeKind::Resume | ResumeKind::Undo { .. }) {
        return Ok(Vec::new());
    }
    let (new, conversation) = (resume.new_run_id.as_str(), conversation.as_str());
    let rows = tx.fetch_all(SUPERSEDE, values![new, conversation, resume.run_id.as_str(), resume.how.original()]).await?;
    tx.execute(DELETE_SUMMARY, values![conversation, new]).await?;
    let superseded = rows.iter().map(|row| Ok((row.get("position")?, row.get("id")?)));
    let mut superseded = superseded.collect::<StoreResult<Vec<(i64, String)>>>()?;
    superseded.sort_unstable();
    Ok(superseded.into_iter().map(|(_, id)| MessageId::from_stored(id)).collect())
}

/// Stores the answer and its calls as the first step of the new run.
async fn take_over(tx: &mut Transaction, resume: &ResumeRun, batch: &CallBatch, position: i64) -> StoreResult<()> {
    let (owner, new) = (&resume.owner, &resume.new_run_id);
    let (message, body) = storable_message(batch.message.clone())?;
    insert_message(tx, owner, &message, body, position, resume.now).await?;
    for call in &batch.calls {
        insert_call(tx, owner, new, call).await?;
    }
    tx.execute(BEGIN_STEP, values![new.as_str(), owner.as_str()]).await?;
    tx.execute(COUNT_ROUND, values![new.as_str(), resume.run_id.as_str()]).await?;
    Ok(())
}
