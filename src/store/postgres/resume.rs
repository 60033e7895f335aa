//! Waking a run that waits, and going on after one that failed.

use sqlx::{Connection as _, PgConnection};

use super::PostgresStore;
use super::accept::{NewRun, Writing, is_full, write};
use super::conversations::lock_head;
use super::idempotency::{record, recorded_key, store_key};
use super::{load, runs};
use crate::domain::conversation::ConversationStatus;
use crate::domain::ids::{CallId, ConversationId, MessageId, RunId, UserId};
use crate::domain::run::{Run, RunStatus};
use crate::store::{CallBatch, GoOn, IdempotencyClaim, Keyed, ResumeRun, Resumed, StoreResult, compose, rows};
use crate::support::text::storable;

/// Whether a run was there to take a call back and has answered nobody.
macro_rules! only_undid {
    ($run:literal) => {
        concat!(
            "(EXISTS (SELECT FROM tool_calls t WHERE t.run_id = ",
            $run,
            ".id AND t.undoes IS NOT NULL) AND NOT EXISTS (SELECT FROM messages m WHERE m.run_id = ",
            $run,
            ".id AND m.role = 'user' AND m.body::json ->> 'internal' IS NULL))"
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
            ".conversation_id AND m.role = 'user' AND m.body::json ->> 'internal' IS NULL AND t.first_seq <= ",
            $run,
            ".first_seq AND NOT EXISTS (SELECT FROM runs s WHERE s.id = m.superseded_by AND s.first_seq <= ",
            $run,
            ".first_seq)
                 ORDER BY t.first_seq DESC, m.position LIMIT 1
             ), false)"
        )
    };
}

/// Whether anything that was said in a run is left.
macro_rules! has_words {
    ($run:literal) => {
        concat!(
            "EXISTS (SELECT FROM messages m WHERE m.conversation_id = ",
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
            "EXISTS (SELECT FROM messages m WHERE m.conversation_id = ",
            $run,
            ".conversation_id AND m.run_id = ",
            $run,
            ".id AND m.superseded_by IS NOT NULL AND NOT EXISTS (SELECT FROM runs s WHERE s.id = m.superseded_by))"
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
            "(NOT EXISTS (SELECT FROM runs n WHERE n.conversation_id = ",
            $run,
            ".conversation_id AND (n.finished_at IS NULL OR n.first_seq > ",
            $run,
            ".first_seq AND NOT ",
            $crate::store::postgres::resume::only_undid!("n"),
            " AND (",
            $crate::store::postgres::resume::has_words!("n"),
            " OR NOT (",
            $crate::store::postgres::resume::turn_taken_out!("n"),
            " OR ",
            $crate::store::postgres::resume::was_rewound!("n"),
            ")))) AND NOT ",
            $crate::store::postgres::resume::only_undid!($run),
            " AND (",
            $crate::store::postgres::resume::has_words!($run),
            " OR NOT ",
            $crate::store::postgres::resume::turn_taken_out!($run),
            "))"
        )
    };
}

pub(in crate::store) use {has_words, is_resumable, only_undid, turn_taken_out, was_rewound};

impl PostgresStore {
    pub(super) async fn resume(&self, resume: &ResumeRun, key: Option<&IdempotencyClaim>) -> StoreResult<Keyed<Resumed>> {
        let resumed = self.api.ask(async |connection| {
            let mut tx = connection.begin().await?;
            let outcome = resume_locked(&mut tx, resume, key).await?;
            // Also if nothing was written: a transaction that is dropped would hold its lock a little longer than the call.
            tx.commit().await?;
            Ok(outcome)
        });
        self.or_recorded(resumed.await, key).await
    }
}

async fn resume_locked(tx: &mut PgConnection, resume: &ResumeRun, key: Option<&IdempotencyClaim>) -> StoreResult<Keyed<Resumed>> {
    let ResumeRun { owner, run_id, .. } = resume;
    let run = runs::read(tx, owner, run_id).await?;
    let conversation = run.map(|run| ConversationId::from_stored(run.conversation_id));
    let head = match &conversation {
        Some(conversation) => lock_head(tx, owner, conversation).await?.map(|base| (conversation, base)),
        None => None,
    };
    if let Some(key) = key
        && let Some(recorded) = recorded_key(tx, key).await?
    {
        return Ok(recorded);
    }
    let Some((conversation, base)) = head else { return Ok(Keyed::Fresh(Resumed::NoRun)) };
    let Some(run) = runs::read(tx, owner, run_id).await? else { return Ok(Keyed::Fresh(Resumed::NoRun)) };
    let run = run.into_run()?;
    let resumed = match (&resume.how, run.status) {
        (GoOn::Resume, RunStatus::Waiting) if compose::can_be_woken(&run) => wake(tx, run, key).await?,
        (how, status) if compose::can_be_gone_on_from(how, status) => go_on_after(tx, resume, key, run, conversation, base).await?,
        _ => Resumed::NotResumable { run },
    };
    Ok(Keyed::Fresh(resumed))
}

async fn wake(tx: &mut PgConnection, run: Run, key: Option<&IdempotencyClaim>) -> StoreResult<Resumed> {
    sqlx::query(
        "UPDATE runs r SET claimable_at = least(claimable_at, now_ms()), claim_cause = 'request'
         WHERE id = $1 AND NOT EXISTS (SELECT FROM run_leases WHERE run_id = r.id)",
    )
    .bind(run.id.as_str())
    .execute(&mut *tx)
    .await?;
    let resumed = Resumed::Run { run, events: Vec::new() };
    store_key(tx, record(key, &resumed)?).await?;
    Ok(resumed)
}

async fn go_on_after(
    tx: &mut PgConnection,
    resume: &ResumeRun,
    key: Option<&IdempotencyClaim>,
    run: Run,
    conversation: &ConversationId,
    base: i64,
) -> StoreResult<Resumed> {
    let ResumeRun { owner, run_id, how, new_run_id, trace, max_active_runs, now } = resume;
    // A call is taken back whatever came after it, once.
    let (profile, title, status, is_newest, is_taken_back): (String, String, String, bool, bool) = sqlx::query_as(concat!(
        "SELECT r.profile, c.title, c.status,
             CASE WHEN $3::text IS NULL THEN ",
        is_resumable!("r"),
        " ELSE
                 NOT EXISTS (SELECT FROM runs n WHERE n.conversation_id = c.id AND n.finished_at IS NULL)
                 -- A repeated call is answered without being made. One that never began may have been made by a retry in its name.
                 AND EXISTS (SELECT FROM tool_calls t JOIN runs m ON m.id = t.run_id
                     WHERE m.conversation_id = c.id AND (t.id = $3 OR t.key = $3) AND t.started_at IS NOT NULL)
                 AND NOT EXISTS (SELECT FROM tool_calls t WHERE t.undoes = $3
                     AND t.state NOT IN ('failed', 'denied', 'cancelled', 'unknown'))
                 AND ($4 OR NOT EXISTS (SELECT FROM tool_calls t WHERE t.undoes = $3 AND t.started_at IS NOT NULL
                     AND t.state IN ('failed', 'cancelled', 'unknown')))
             END
             -- The answer that is begun with may have been taken out by a rewind.
             AND coalesce((SELECT superseded_by IS NULL FROM messages WHERE id = $2), true),
             -- Its calls are taken over as they ended, or made again under their keys: of what was taken back since, neither is true.
             EXISTS (SELECT FROM tool_calls t JOIN tool_calls u ON u.undoes = coalesce(t.key, t.id)
                 WHERE t.run_id = r.id AND t.message_id = $2
                     AND u.state <> 'denied' AND (u.started_at IS NOT NULL OR u.state = 'done'))
         FROM runs r JOIN conversations c ON c.id = r.conversation_id WHERE r.id = $1"
    ))
    .bind(run_id.as_str())
    .bind(how.original())
    .bind(how.undone().map(CallId::as_str))
    .bind(how.is_confirmed())
    .fetch_one(&mut *tx)
    .await?;
    if !is_newest {
        return Ok(Resumed::NotResumable { run });
    }
    if is_taken_back {
        return Ok(Resumed::TakenBack);
    }
    if *max_active_runs > 0 && is_full(tx, owner, *max_active_runs).await? {
        return Ok(Resumed::TooManyRuns);
    }
    let max_crashes = rows::signed(rows::decode_profile(run_id.as_str(), &profile)?.max_crashes);
    let next = Run {
        id: new_run_id.clone(),
        status: RunStatus::Queued,
        attempt: 0,
        finish_reason: None,
        usage: None,
        error: None,
        trace_id: Some(trace.clone()),
        created_at: now.to_rfc3339(),
        started_at: None,
        finished_at: None,
        ..run
    };
    let superseded = supersede(tx, resume, conversation).await?;
    note_rewinds(tx, resume, conversation).await?;
    let updated = (status != ConversationStatus::Queued.as_str()).then_some(title.as_str());
    let events = compose::going_on(resume, superseded, updated);
    let resumed = Resumed::Run { run: next.clone(), events: Vec::new() };
    let writing = Writing {
        owner,
        conversation,
        base,
        title: &title,
        status: ConversationStatus::Queued,
        choice: None,
        now: *now,
        message: None,
        run: Some(NewRun { run: &next, profile: &profile, max_crashes, active: true, first_seq: base + 1, trace }),
        events: &events,
        ended: &[],
        record: record(key, &resumed)?,
    };
    if !write(tx, writing, None).await? {
        return Err(sqlx::Error::RowNotFound.into());
    }
    if let Some(batch) = how.batch() {
        take_over(tx, resume, batch, base + 1).await?;
    }
    Ok(Resumed::Run { run: next, events: compose::numbered(conversation, base, events) })
}

/// Takes messages out of the conversation that the new run takes the place of, hints to the model with them. What users have said stays.
async fn supersede(tx: &mut PgConnection, resume: &ResumeRun, conversation: &ConversationId) -> StoreResult<Vec<MessageId>> {
    if matches!(resume.how, GoOn::Resume | GoOn::Undo { .. }) {
        return Ok(Vec::new());
    }
    // A turn begins with the newest run that has a message of a user which no rewind has taken out: those after it have gone on after
    // another one, have taken a call back, or are of what was taken out. Models go on reading of calls of earlier turns that were taken
    // back.
    let mut superseded: Vec<(String, i64)> = sqlx::query_as(
        "WITH turn AS (
             SELECT max(r.first_seq) AS begins FROM messages m JOIN runs r ON r.id = m.run_id
             WHERE m.conversation_id = $2 AND m.role = 'user' AND m.body::json ->> 'internal' IS NULL AND m.superseded_by IS NULL
         )
         UPDATE messages SET superseded_by = $1
         WHERE conversation_id = $2 AND (role <> 'user' OR body::json ->> 'internal' IS NOT NULL) AND superseded_by IS NULL
             AND CASE WHEN $4::text IS NULL THEN
             run_id IN (SELECT r.id FROM runs r, turn WHERE r.conversation_id = $2 AND r.first_seq >= turn.begins AND NOT EXISTS (
                 SELECT FROM tool_calls u JOIN tool_calls undone ON undone.id = u.undoes JOIN runs earlier ON earlier.id = undone.run_id
                 WHERE u.run_id = r.id AND earlier.first_seq < turn.begins))
         ELSE run_id = $3 AND position >= (SELECT position FROM messages WHERE id = $4 AND run_id = $3) END
         RETURNING id, position",
    )
    .bind(resume.new_run_id.as_str())
    .bind(conversation.as_str())
    .bind(resume.run_id.as_str())
    .bind(resume.how.original())
    .fetch_all(&mut *tx)
    .await?;
    // A summary that reaches into these runs tells of what has just been taken out.
    sqlx::query(
        "DELETE FROM context_summaries s WHERE s.conversation_id = $1 AND EXISTS (
             SELECT FROM messages m JOIN messages gone ON gone.run_id = m.run_id
             WHERE m.id = s.covers AND gone.conversation_id = $1 AND gone.superseded_by = $2)",
    )
    .bind(conversation.as_str())
    .bind(resume.new_run_id.as_str())
    .execute(&mut *tx)
    .await?;
    superseded.sort_by_key(|(_, position)| *position);
    Ok(superseded.into_iter().map(|(id, _)| MessageId::from_stored(id)).collect())
}

/// Writes down that what rewinds have taken out until now was gone before the new run began: it answers what is left, and no run of
/// before them does.
async fn note_rewinds(tx: &mut PgConnection, resume: &ResumeRun, conversation: &ConversationId) -> StoreResult<()> {
    sqlx::query(
        "UPDATE messages SET superseded_by = $1
         WHERE conversation_id = $2 AND role = 'user' AND body::json ->> 'internal' IS NULL AND superseded_by IS NOT NULL
             AND NOT EXISTS (SELECT FROM runs WHERE runs.id = messages.superseded_by)",
    )
    .bind(resume.new_run_id.as_str())
    .bind(conversation.as_str())
    .execute(&mut *tx)
    .await?;
    Ok(())
}

/// The new run begins where its predecessor had the answer with these calls.
async fn take_over(tx: &mut PgConnection, resume: &ResumeRun, batch: &CallBatch, position: i64) -> StoreResult<()> {
    let new = &resume.new_run_id;
    let (message, body) = rows::storable_message(batch.message.clone())?;
    sqlx::query(
        "INSERT INTO messages (id, conversation_id, owner_id, run_id, position, role, body, created_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, now_ms())",
    )
    .bind(message.id.as_str())
    .bind(message.conversation_id.as_str())
    .bind(resume.owner.as_str())
    .bind(new.as_str())
    .bind(position)
    .bind(message.role.as_str())
    .bind(body)
    .execute(&mut *tx)
    .await?;
    for call in &batch.calls {
        let id = call.id.as_str();
        let outcome = call.outcome.as_ref().map(|it| rows::encode_storable("tool_calls", "outcome", id, it)).transpose()?;
        let repair = call.repair.as_ref().map(|it| rows::encode_storable("tool_calls", "repair", id, it)).transpose()?;
        sqlx::query(
            "INSERT INTO tool_calls (id, run_id, owner_id, message_id, step, position, provider_call_id, name, server, arguments,
                 arguments_hash, replay, repair, state, outcome, key, undoes, ended_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17,
                 CASE WHEN $15 IS NOT NULL THEN now_ms() END)",
        )
        .bind(id)
        .bind(new.as_str())
        .bind(resume.owner.as_str())
        .bind(call.message_id.as_str())
        .bind(rows::signed(call.step))
        .bind(rows::signed(call.position))
        .bind(storable(&call.provider_call_id))
        .bind(storable(&call.name))
        .bind(call.server.as_deref())
        .bind(rows::encode_storable("tool_calls", "arguments", id, &call.arguments)?)
        .bind(&call.arguments_hash)
        .bind(rows::encode("tool_calls", "replay", id, &call.replay)?)
        .bind(repair)
        .bind(call.state.as_str())
        .bind(outcome)
        .bind(call.key.as_ref().map(CallId::as_str))
        .bind(call.undoes.as_ref().map(CallId::as_str))
        .execute(&mut *tx)
        .await?;
    }
    sqlx::query(
        "WITH step AS (
             INSERT INTO run_steps (run_id, owner_id, step, kind, status, attempt, started_at)
             VALUES ($1, $3, 1, 'tools', 'started', 1, now_ms())
         )
         -- The answer was the first round, and what had joined before it was heard in its request.
         UPDATE runs SET tools_hash = (SELECT tools_hash FROM runs WHERE id = $2),
             counters = (counters::jsonb || jsonb_build_object('rounds', 1, 'heard',
                 (SELECT joined FROM conversation_heads h WHERE h.conversation_id = runs.conversation_id)))::text
         WHERE id = $1",
    )
    .bind(new.as_str())
    .bind(resume.run_id.as_str())
    .bind(resume.owner.as_str())
    .execute(&mut *tx)
    .await?;
    Ok(())
}

/// The answer of a run that holds a call, with all its calls.
pub(super) async fn call_batch(
    connection: &mut PgConnection,
    owner: &UserId,
    run: &RunId,
    call: &CallId,
) -> StoreResult<Option<CallBatch>> {
    let found: Option<(String, String, Option<String>)> = sqlx::query_as(
        "SELECT m.id, m.body, s.definitions FROM tool_calls t JOIN messages m ON m.id = t.message_id
         JOIN runs r ON r.id = t.run_id LEFT JOIN tool_sets s ON s.hash = r.tools_hash
         WHERE t.id = $1 AND t.run_id = $2 AND t.owner_id = $3",
    )
    .bind(call.as_str())
    .bind(run.as_str())
    .bind(owner.as_str())
    .fetch_optional(&mut *connection)
    .await?;
    let Some((id, body, tools)) = found else { return Ok(None) };
    let message = rows::decode("messages", "body", &id, &body)?;
    let tools = tools.map(|text| rows::decode("tool_sets", "definitions", run.as_str(), &text)).transpose()?.unwrap_or_default();
    let calls = load::tool_calls(connection, run).await?;
    Ok(Some(CallBatch::found(message, calls, tools, call)))
}
