//! The log writer's transaction: many writes at once, each under its own fence.
//!
//! Everything is one statement, which is its own transaction and one round trip: it updates the heads whose run and epoch
//! match, taking the numbers, and every other part hangs on the heads that matched. A write whose fence does not match finds
//! no head and leaves nothing. A run's end takes a second statement in the same transaction, because the run that follows it
//! may have been queued while the first one waited for the head's lock, and would not be in its snapshot.

use sqlx::pool::PoolConnection;
use sqlx::{Connection as _, PgConnection, Postgres, Row as _};

use super::PostgresStore;
use super::cancel::settle;
use super::errors::{is_refusal, retried};
use super::fold::{self, Folded, Place, TablesJson};
use crate::domain::conversation::ConversationStatus;
use crate::domain::ids::RunId;
use crate::domain::record::{Fence, RunWrite};
use crate::store::{Committed, Refused, StoreError, StoreResult, rows};

/// The heads that match, and their events.
macro_rules! heads_and_events {
    () => {
        "WITH fence AS (
            SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bool[], $6::bigint[])
                WITH ORDINALITY AS f (conversation_id, run_id, epoch, events, lets_go, joined, place)
        ), head AS (
            UPDATE conversation_heads h
            SET last_seq = h.last_seq + f.events, run_id = CASE WHEN f.lets_go THEN NULL ELSE h.run_id END
            FROM fence f
            WHERE h.conversation_id = f.conversation_id AND h.run_id = f.run_id AND h.epoch = f.epoch
                AND h.joined = coalesce(f.joined, h.joined)
            RETURNING f.place::int - 1 AS ord, h.conversation_id, f.run_id, f.epoch, f.lets_go, h.last_seq - f.events AS base
        ), event AS (
            INSERT INTO events (conversation_id, seq, run_id, attempt, kind, at, data)
            SELECT h.conversation_id, h.base + e.place, e.run_id, e.attempt, e.kind, e.at, e.data
            FROM unnest($7::int[], $8::bigint[], $9::text[], $10::int[], $11::text[], $12::bigint[], $13::text[])
                AS e (ord, place, run_id, attempt, kind, at, data)
            JOIN head h ON h.ord = e.ord
        )"
    };
}

const EVENTS: &str = concat!(heads_and_events!(), " SELECT ord, base FROM head");

const EVERYTHING: &str = concat!(
    heads_and_events!(),
    ", run AS (
        UPDATE runs r SET
            status = coalesce(p.status, r.status),
            reason = CASE WHEN p.status IS NULL THEN r.reason ELSE p.reason END,
            started_at = CASE WHEN p.started THEN coalesce(r.started_at, now_ms()) ELSE r.started_at END,
            tools_hash = coalesce(p.tools_hash, r.tools_hash),
            counters = coalesce(p.counters, r.counters),
            usage = coalesce(p.usage, r.usage),
            finish_reason = coalesce(p.finish_reason, r.finish_reason),
            error = coalesce(p.error, r.error),
            last_seq = CASE WHEN p.finished THEN h.base + p.last_place ELSE r.last_seq END,
            finished_at = CASE WHEN p.finished THEN now_ms() END,
            active = r.active AND NOT p.finished,
            -- A run that was asked to end while its worker let go of it must not wait for anything else.
            claimable_at = CASE
                WHEN p.finished THEN NULL
                WHEN p.released AND r.cancel_requested_at IS NOT NULL THEN now_ms()
                WHEN p.released THEN now_ms() + p.after_ms
                ELSE r.claimable_at
            END,
            claim_cause = coalesce(p.claim_cause, r.claim_cause),
            crashes = CASE WHEN p.released THEN greatest(r.crashes - 1, 0) ELSE r.crashes END
        FROM json_to_recordset($14::json) AS p (ord int, status text, reason text, started bool, tools_hash text,
            counters text, usage text, finished bool, finish_reason text, error text, last_place bigint, released bool,
            after_ms bigint, claim_cause text)
        JOIN head h ON h.ord = p.ord
        WHERE r.id = h.run_id AND r.finished_at IS NULL
    ), tool_set AS (
        INSERT INTO tool_sets (hash, definitions)
        SELECT DISTINCT ON (t.hash) t.hash, t.definitions
        FROM json_to_recordset($15::json) AS t (ord int, hash text, definitions text)
        JOIN head h ON h.ord = t.ord ORDER BY t.hash
        ON CONFLICT (hash) DO NOTHING
    ), step_begun AS (
        INSERT INTO run_steps AS s (run_id, step, kind, status, attempt, usage, started_at, ended_at)
        SELECT h.run_id, b.step, b.kind, b.status, b.begins, b.usage, now_ms(), CASE WHEN b.ended THEN now_ms() END
        FROM json_to_recordset($16::json)
            AS b (ord int, step int, kind text, status text, begins int, ended bool, usage text)
        JOIN head h ON h.ord = b.ord
        ON CONFLICT (run_id, step) DO UPDATE SET kind = excluded.kind, status = excluded.status,
            attempt = s.attempt + excluded.attempt, usage = excluded.usage, started_at = excluded.started_at,
            ended_at = excluded.ended_at
    ), step_ended AS (
        UPDATE run_steps s SET status = e.status, usage = coalesce(e.usage, s.usage), ended_at = now_ms()
        FROM json_to_recordset($17::json) AS e (ord int, step int, status text, usage text)
        JOIN head h ON h.ord = e.ord
        WHERE s.run_id = h.run_id AND s.step = e.step
    ), message AS (
        INSERT INTO messages (id, conversation_id, owner_id, run_id, position, role, body, created_at)
        SELECT m.id, h.conversation_id, r.owner_id, h.run_id, h.base + m.place, m.role, m.body, now_ms()
        FROM json_to_recordset($18::json) AS m (ord int, place bigint, id text, role text, body text)
        JOIN head h ON h.ord = m.ord JOIN runs r ON r.id = h.run_id
    ), call AS (
        INSERT INTO tool_calls (id, run_id, owner_id, message_id, step, position, provider_call_id, name, server, arguments,
            arguments_hash, replay, state, outcome, started_at, ended_at)
        SELECT c.id, h.run_id, r.owner_id, c.message_id, c.step, c.position, c.provider_call_id, c.name, c.server, c.arguments,
            c.arguments_hash, c.replay, c.state, c.outcome,
            CASE WHEN c.started THEN now_ms() END, CASE WHEN c.ended THEN now_ms() END
        FROM json_to_recordset($19::json) AS c (ord int, id text, message_id text, step int, position int,
            provider_call_id text, name text, server text, arguments text, arguments_hash text, replay text, state text,
            outcome text, started bool, ended bool)
        JOIN head h ON h.ord = c.ord JOIN runs r ON r.id = h.run_id
    ), call_changed AS (
        UPDATE tool_calls t SET state = c.state, outcome = coalesce(c.outcome, t.outcome),
            started_at = CASE WHEN c.started THEN now_ms() ELSE t.started_at END,
            ended_at = CASE WHEN c.ended THEN now_ms() END
        FROM json_to_recordset($20::json) AS c (ord int, id text, state text, outcome text, started bool, ended bool)
        JOIN head h ON h.ord = c.ord
        WHERE t.id = c.id AND t.run_id = h.run_id AND t.outcome IS NULL
    ), conversation AS (
        UPDATE conversations v SET status = c.status, updated_at = now_ms()
        FROM json_to_recordset($21::json) AS c (ord int, status text) JOIN head h ON h.ord = c.ord
        WHERE v.id = h.conversation_id AND v.status <> c.status
    ), lease AS (
        DELETE FROM run_leases WHERE run_id IN (
            SELECT l.run_id FROM run_leases l JOIN head h ON h.run_id = l.run_id AND h.epoch = l.epoch
            WHERE h.lets_go ORDER BY l.run_id FOR UPDATE OF l
        )
    ), refused AS (
        SELECT CASE
            WHEN c.started AND t.state IS DISTINCT FROM 'planned' THEN refuse('a tool call is started that is not planned')
            WHEN t.id IS NULL OR t.outcome IS NOT NULL THEN refuse('a tool call gets a second outcome')
        END AS reason
        FROM json_to_recordset($20::json) AS c (ord int, id text, started bool)
        JOIN head h ON h.ord = c.ord LEFT JOIN tool_calls t ON t.id = c.id AND t.run_id = h.run_id
        UNION ALL
        SELECT CASE WHEN s.run_id IS NULL THEN refuse('a step ends that never began') END
        FROM json_to_recordset($17::json) AS e (ord int, step int)
        JOIN head h ON h.ord = e.ord LEFT JOIN run_steps s ON s.run_id = h.run_id AND s.step = e.step
    )
    SELECT ord, base FROM head WHERE (SELECT count(reason) FROM refused) = 0"
);

impl PostgresStore {
    /// Commits a batch. Tried again only when the database says that it was rolled back.
    pub(super) async fn commit_batch(&self, writes: &[RunWrite]) -> StoreResult<Vec<Result<Committed, Refused>>> {
        if writes.is_empty() {
            return Ok(Vec::new());
        }
        let batch = fold::fold(writes)?;
        let found = match batch.refused {
            Some(_) => None,
            None => match retried(|| self.write_batch(&batch)).await {
                Ok(found) => Some(found),
                Err(error) if is_refusal(&error) => None,
                Err(error) => return Err(error),
            },
        };
        // A write that breaks a rule takes back all of its batch, but shall only cost itself.
        let Some(found) = found else { return retried(|| self.write_one_by_one(writes)).await };
        let mut answers: Vec<_> = batch.places.iter().map(|place| answer(*place, &found)).collect();
        // An end that comes too early takes back all writes of its fence, and shall only cost itself, too.
        let early = |fence: usize| batch.fences[fence].joined.is_some() && found[fence].is_none();
        let again: Vec<usize> =
            (0..writes.len()).filter(|index| batch.places[*index].is_some_and(|place| early(place.fence))).collect();
        if !again.is_empty() {
            let repeated: Vec<RunWrite> = again.iter().map(|index| writes[*index].clone()).collect();
            let second = retried(|| self.write_one_by_one(&repeated)).await?;
            for (index, answer) in again.into_iter().zip(second) {
                answers[index] = answer;
            }
        }
        Ok(answers)
    }

    /// For each fence what was found at its head, if it still holds.
    async fn write_batch(&self, batch: &Folded<'_>) -> StoreResult<Vec<Option<Head>>> {
        let mut kept = self.log.try_lock().ok();
        let connection = match kept.as_mut().and_then(|kept| kept.take()) {
            Some(connection) => Ok(connection),
            None => self.worker.acquire().await,
        };
        // A connection that fails goes back to its pool, which tests it and closes it if it is broken.
        let mut connection: PoolConnection<Postgres> = connection?;
        let found = if batch.fences.iter().any(|fenced| fenced.ends_as.is_some()) {
            let mut tx = connection.begin().await?;
            let found = write_and_settle(&mut tx, batch).await?;
            tx.commit().await?;
            found
        } else {
            write(&mut connection, batch).await?
        };
        if let Some(kept) = kept.as_mut() {
            **kept = Some(connection);
        }
        Ok(found)
    }

    /// Each write on its own in one transaction, so that one that is refused leaves nothing and the others stay.
    async fn write_one_by_one(&self, writes: &[RunWrite]) -> StoreResult<Vec<Result<Committed, Refused>>> {
        let mut tx = self.worker.begin().await?;
        sqlx::query("SELECT FROM conversation_heads WHERE conversation_id = ANY($1::text[]) ORDER BY conversation_id FOR UPDATE")
            .bind(writes.iter().map(|write| write.fence.conversation_id.as_str()).collect::<Vec<_>>())
            .execute(&mut *tx)
            .await?;
        let mut answers = Vec::with_capacity(writes.len());
        for write in writes {
            let alone = fold::fold(std::slice::from_ref(write))?;
            if let Some(reason) = alone.refused {
                fold::report(write, reason);
                answers.push(Err(Refused::Fenced));
                continue;
            }
            let mut savepoint = tx.begin().await?;
            match write_and_settle(&mut savepoint, &alone).await {
                Ok(found) => {
                    savepoint.commit().await?;
                    let place = alone.places.first().copied().flatten();
                    let answer = match answer(place, &found) {
                        Err(Refused::Fenced) if place.is_some() && holds(&mut tx, &write.fence).await? => Err(Refused::Unheard),
                        answer => answer,
                    };
                    answers.push(answer);
                }
                Err(error) if is_refusal(&error) => {
                    savepoint.rollback().await?;
                    fold::report(write, &refusal(&error));
                    answers.push(Err(Refused::Fenced));
                }
                Err(error) => return Err(error),
            }
        }
        tx.commit().await?;
        Ok(answers)
    }
}

/// What a write met at the head of its conversation.
#[derive(Clone, Copy)]
struct Head {
    /// The number that the log stood at.
    base: i64,
    /// The run's end has made another run claimable.
    next_waits: bool,
}

fn answer(place: Option<Place>, found: &[Option<Head>]) -> Result<Committed, Refused> {
    let place = place.ok_or(Refused::Fenced)?;
    let head = found.get(place.fence).copied().flatten().ok_or(Refused::Fenced)?;
    Ok(Committed { first_seq: head.base + place.offset + 1, next_waits: head.next_waits })
}

/// Whether a fence is the newest. The head is locked.
async fn holds(connection: &mut PgConnection, fence: &Fence) -> StoreResult<bool> {
    Ok(sqlx::query_scalar(
        "SELECT EXISTS (SELECT FROM conversation_heads WHERE conversation_id = $1 AND run_id = $2 AND epoch = $3)",
    )
    .bind(fence.conversation_id.as_str())
    .bind(fence.run_id.as_str())
    .bind(fence.epoch)
    .fetch_one(connection)
    .await?)
}

/// The database's words for a refusal, without the values that a row holds.
fn refusal(error: &StoreError) -> String {
    match error {
        StoreError::Statement(sqlx::Error::Database(database)) => database.message().to_owned(),
        StoreError::Statement(_)
        | StoreError::Unavailable(_)
        | StoreError::Contended(_)
        | StoreError::Corrupt { .. }
        | StoreError::Migration(_)
        | StoreError::Locked(_) => error.to_string(),
    }
}

async fn write_and_settle(connection: &mut PgConnection, batch: &Folded<'_>) -> StoreResult<Vec<Option<Head>>> {
    let mut found = write(connection, batch).await?;
    let ended = fold::ended(&batch.fences, |fence| found.get(fence).is_some_and(Option::is_some));
    if !ended.is_empty() {
        let settled = settle(connection, &ended).await?;
        let queued: Vec<_> = settled.iter().filter(|settled| settled.status == ConversationStatus::Queued).collect();
        for (fenced, head) in batch.fences.iter().zip(&mut found) {
            let next_waits = queued.iter().any(|settled| settled.conversation == fenced.fence.conversation_id);
            if let Some(head) = head.as_mut().filter(|_| fenced.ends_as.is_some()) {
                head.next_waits = next_waits;
            }
        }
    }
    Ok(found)
}

async fn write(connection: &mut PgConnection, batch: &Folded<'_>) -> StoreResult<Vec<Option<Head>>> {
    let Folded { fences, events, tables, .. } = batch;
    let statement = if tables.is_some() { EVERYTHING } else { EVENTS };
    let mut query = sqlx::query(statement)
        .bind(fences.iter().map(|fenced| fenced.fence.conversation_id.as_str()).collect::<Vec<_>>())
        .bind(fences.iter().map(|fenced| fenced.fence.run_id.as_str()).collect::<Vec<_>>())
        .bind(fences.iter().map(|fenced| fenced.fence.epoch).collect::<Vec<_>>())
        .bind(fences.iter().map(|fenced| fenced.events).collect::<Vec<_>>())
        .bind(fences.iter().map(|fenced| fenced.lets_go).collect::<Vec<_>>())
        .bind(fences.iter().map(|fenced| fenced.joined).collect::<Vec<_>>())
        .bind(events.iter().map(|(ord, _, _)| *ord).collect::<Vec<_>>())
        .bind(events.iter().map(|(_, place, _)| *place).collect::<Vec<_>>())
        .bind(events.iter().map(|(_, _, event)| event.run_id.as_ref().map(RunId::as_str)).collect::<Vec<_>>())
        .bind(events.iter().map(|(_, _, event)| rows::signed(event.attempt)).collect::<Vec<_>>())
        .bind(events.iter().map(|(_, _, event)| event.kind).collect::<Vec<_>>())
        .bind(events.iter().map(|(_, _, event)| event.at.0).collect::<Vec<_>>())
        .bind(events.iter().map(|(_, _, event)| event.data.as_str()).collect::<Vec<_>>());
    if let Some(tables) = tables {
        let TablesJson { runs, tool_sets, steps_begun, steps_ended, messages, calls, calls_changed, conversations } = tables;
        for list in [runs, tool_sets, steps_begun, steps_ended, messages, calls, calls_changed, conversations] {
            query = query.bind(list);
        }
    }
    let mut found = vec![None; fences.len()];
    for row in query.fetch_all(connection).await? {
        let ord: i32 = row.try_get("ord")?;
        let base: i64 = row.try_get("base")?;
        if let Some(slot) = usize::try_from(ord).ok().and_then(|ord| found.get_mut(ord)) {
            *slot = Some(Head { base, next_waits: false });
        }
    }
    Ok(found)
}
