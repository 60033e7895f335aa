//! Waking a run that waits, and going on after one that failed.

use sqlx::{Connection as _, PgConnection};

use super::PostgresStore;
use super::accept::{NewRun, Writing, record, write};
use super::cancel::store_key;
use super::conversations::{lock_head, recorded_key};
use super::runs;
use crate::domain::conversation::ConversationStatus;
use crate::domain::ids::ConversationId;
use crate::domain::run::{Run, RunStatus};
use crate::store::{IdempotencyClaim, Keyed, ResumeRun, Resumed, StoreResult, compose};

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
    let resumed = match run.status {
        RunStatus::Waiting if compose::can_be_woken(&run) => wake(tx, run, key).await?,
        RunStatus::Failed => go_on_after(tx, resume, key, run, conversation, base).await?,
        RunStatus::Queued
        | RunStatus::Processing
        | RunStatus::ToolLoop
        | RunStatus::Waiting
        | RunStatus::Completed
        | RunStatus::Cancelled => Resumed::NotResumable { run },
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
    let ResumeRun { owner, run_id, new_run_id, trace, now } = resume;
    // What came after any other run than the newest has answered it, or has been resumed already.
    let (profile, title, status, is_newest): (String, String, String, bool) = sqlx::query_as(
        "SELECT r.profile, c.title, c.status,
             NOT EXISTS (SELECT FROM runs n WHERE n.conversation_id = c.id AND n.first_seq > r.first_seq)
         FROM runs r JOIN conversations c ON c.id = r.conversation_id WHERE r.id = $1",
    )
    .bind(run_id.as_str())
    .fetch_one(&mut *tx)
    .await?;
    if !is_newest {
        return Ok(Resumed::NotResumable { run });
    }
    let next = Run {
        id: new_run_id.clone(),
        status: RunStatus::Queued,
        attempt: 0,
        usage: None,
        error: None,
        created_at: now.to_rfc3339(),
        started_at: None,
        finished_at: None,
        ..run
    };
    let mut events = vec![compose::run_queued(new_run_id, 0, *now)];
    if status != ConversationStatus::Queued.as_str() {
        events.push(compose::conversation_updated(&title, ConversationStatus::Queued, *now));
    }
    let resumed = Resumed::Run { run: next.clone(), events: Vec::new() };
    let writing = Writing {
        owner,
        conversation,
        base,
        title: &title,
        status: ConversationStatus::Queued,
        now: *now,
        message: None,
        run: Some(NewRun { run: &next, profile: &profile, active: true, first_seq: base + 1, trace }),
        events: &events,
        ended: &[],
        record: record(key, &resumed)?,
    };
    if !write(tx, writing, None).await? {
        return Err(sqlx::Error::RowNotFound.into());
    }
    Ok(Resumed::Run { run: next, events: compose::numbered(conversation, base, events) })
}
