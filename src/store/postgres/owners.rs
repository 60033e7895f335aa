//! Whose the rows are that were stored before every row said so.
//!
//! The schema has new rows say it, whoever writes them. The older ones are completed here, before the process serves: until then it
//! would find nothing in them. In small pieces, each its own transaction together with the note of how far it has come, so that
//! others go on writing meanwhile, and a process that dies is continued by the next one.

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, Connection as _, Row as _};
use tokio::time::{Duration, Instant};

use super::connect::{MIGRATION_LOCK, MIGRATION_PAUSE};
use super::errors::was_rolled_back;
use crate::store::{StoreError, StoreResult};

/// Rows of a piece: they are locked for as long as it takes, some tens of milliseconds.
const PIECE: i64 = 2_000;

/// How often it is told how far it has come.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// For pieces alone: a key is looked up by its index, however the statistics of the tables are. A commit that is lost takes its note
/// along, so nobody waits for the disk.
const SESSION: [(&str, &str); 4] = [MIGRATION_LOCK, ("enable_seqscan", "off"), ("jit", "off"), ("synchronous_commit", "off")];

/// Gives every row its owner; returns when none is left. Of processes that start together, each does a piece in turn.
///
/// # Errors
/// If the database cannot be asked. What was done stays done.
pub(super) async fn complete(options: &PgConnectOptions) -> StoreResult<()> {
    let mut connection = PgConnection::connect_with(&options.clone().options(SESSION)).await?;
    let completed = complete_on(&mut connection).await;
    let _ = connection.close().await;
    completed
}

async fn complete_on(connection: &mut PgConnection) -> StoreResult<()> {
    let (mut rows, mut told) = (0, None::<Instant>);
    loop {
        let begun = Instant::now();
        match piece(connection).await {
            Ok(Some(done)) => {
                rows += done;
                if told.is_none_or(|told| told.elapsed() >= TELL_EVERY) {
                    tracing::info!(rows, "older rows are told whose they are; the server starts when all of them are");
                    told = Some(Instant::now());
                }
                // Half of the time is for others.
                tokio::time::sleep(begun.elapsed()).await;
            }
            Ok(None) if told.is_none() => return Ok(()),
            Ok(None) => {
                tracing::info!(rows, "all older rows say whose they are");
                return Ok(());
            }
            // Another process does a piece, or somebody else needs the rows.
            Err(error) if was_rolled_back(&error) => tokio::time::sleep(MIGRATION_PAUSE).await,
            Err(error) => return Err(error),
        }
    }
}

/// What the rows of a table are found by, and whose row says whose they are.
struct Keys {
    id: &'static str,
    /// What tells rows of one id apart.
    number: &'static str,
    parent: &'static str,
}

fn keys(table: &str) -> Option<Keys> {
    match table {
        "events" => Some(Keys { id: "t.conversation_id", number: "t.seq", parent: "conversations" }),
        "run_steps" => Some(Keys { id: "t.run_id", number: "t.step", parent: "runs" }),
        "conversation_heads" | "context_summaries" => {
            Some(Keys { id: "t.conversation_id", number: "0::bigint", parent: "conversations" })
        }
        _ => None,
    }
}

/// Does one piece. Returns how many rows it has looked at; `None` if no table is left.
async fn piece(connection: &mut PgConnection) -> StoreResult<Option<i64>> {
    let mut tx = connection.begin().await?;
    let left = sqlx::query("SELECT of_table, id, number FROM owners_left ORDER BY of_table LIMIT 1 FOR UPDATE")
        .fetch_optional(&mut *tx)
        .await?;
    let Some(left) = left else { return Ok(None) };
    let table: String = left.try_get("of_table")?;
    let Some(Keys { id, number, parent }) = keys(&table) else {
        return Err(StoreError::Migration(format!(
            "rows of the table {table:?} need an owner, which this program does not know of"
        )));
    };
    // Nobody makes a row without its owner any more, so none comes to be behind the key that was reached.
    let last: Option<(String, i64, i64)> = sqlx::query_as(AssertSqlSafe(format!(
        "WITH piece AS (
             SELECT {id} AS id, {number} AS number FROM {table} t
             WHERE {id} >= $1 AND ({id}, {number}) > ($1, $2) ORDER BY {id}, {number} LIMIT $3
         ), owned AS (
             UPDATE {table} t SET owner_id = p.owner_id FROM piece JOIN {parent} p ON p.id = piece.id
             WHERE {id} = piece.id AND {number} = piece.number AND t.owner_id = ''
         )
         SELECT id, number::bigint, (SELECT count(*) FROM piece) FROM piece ORDER BY id DESC, number DESC LIMIT 1"
    )))
    .bind(left.try_get::<String, _>("id")?)
    .bind(left.try_get::<i64, _>("number")?)
    .bind(PIECE)
    .fetch_optional(&mut *tx)
    .await?;
    let done = match last {
        Some((id, number, done)) => {
            let reached = "UPDATE owners_left SET id = $2, number = $3 WHERE of_table = $1";
            sqlx::query(reached).bind(&table).bind(id).bind(number).execute(&mut *tx).await?;
            done
        }
        None => {
            sqlx::query("DELETE FROM owners_left WHERE of_table = $1").bind(&table).execute(&mut *tx).await?;
            0
        }
    };
    tx.commit().await?;
    Ok(Some(done))
}
