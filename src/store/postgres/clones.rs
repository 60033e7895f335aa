//! Clone detection of Postgres, by the place where the database is served. See [`crate::store::clones`].
//!
//! Owns the row that names the place. Must not know what a copy could do.

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{Connection as _, PgTransaction};

use crate::store::clones::{LEAST_JUMP, NUMBERS_PER_MS, log_accepted, refused};
use crate::store::{OnCopy, StoreResult};

/// Checks whether the database is a copy.
///
/// A dump that is restored into another cluster or database, or into the same one after it was emptied, makes another table there. A
/// copy of the whole cluster's files is not noticed. `pg_upgrade` makes another cluster and leaves the old one as it was: both could be
/// served, and only the operator knows which one is.
///
/// Takes a connection of its own, because accepting a copy may take long.
pub(super) async fn check(options: &PgConnectOptions, on_copy: OnCopy) -> StoreResult<()> {
    if on_copy == OnCopy::Overlook {
        return Ok(());
    }
    let mut connection = PgConnection::connect_with(options).await?;
    let checked = compare(&mut connection, on_copy).await;
    let _ = connection.close().await;
    checked
}

async fn compare(connection: &mut PgConnection, on_copy: OnCopy) -> StoreResult<()> {
    let here = place(connection).await?;
    let known: Option<String> = sqlx::query_scalar("SELECT place FROM clone_detection").fetch_optional(&mut *connection).await?;
    if known.as_ref().is_some_and(|known| is_same(known, &here)) && on_copy != OnCopy::AcceptUnseen {
        return Ok(());
    }
    let mut tx = connection.begin().await?;
    sqlx::query("INSERT INTO clone_detection (place) VALUES ($1) ON CONFLICT DO NOTHING").bind(&here).execute(&mut *tx).await?;
    // Of several servers that start together, one accepts.
    let known: String = sqlx::query_scalar("SELECT place FROM clone_detection FOR UPDATE").fetch_one(&mut *tx).await?;
    match on_copy {
        OnCopy::Refuse if !is_same(&known, &here) => {
            return Err(refused(
                "it is a copy of a database that was served from another place, a dump, a template or what pg_upgrade has made",
            ));
        }
        OnCopy::Accept if !is_same(&known, &here) => accept(&mut tx, &here).await?,
        OnCopy::AcceptUnseen => accept(&mut tx, &here).await?,
        OnCopy::Overlook | OnCopy::Refuse | OnCopy::Accept => {}
    }
    Ok(tx.commit().await?)
}

/// The identifier of a cluster that does not tell its own.
const UNKNOWN: i64 = 0;

/// Returns whether two places are one. If a cluster does not tell its identifier, only the ids within the cluster count.
fn is_same(known: &str, here: &str) -> bool {
    let tells_nothing = |cluster: &str| cluster == UNKNOWN.to_string();
    match (known.split_once('/'), here.split_once('/')) {
        (Some((one, within)), Some((other, also))) if tells_nothing(one) || tells_nothing(other) => within == also,
        (Some(_) | None, Some(_) | None) => known == here,
    }
}

/// Returns what no copy of the database shares with it, unless the files of the whole cluster were copied.
async fn place(connection: &mut PgConnection) -> StoreResult<String> {
    // Every role may ask for it, unless an operator has revoked that.
    let may_ask: bool =
        sqlx::query_scalar("SELECT has_function_privilege('pg_control_system()', 'execute')").fetch_one(&mut *connection).await?;
    let cluster: i64 = match may_ask {
        true => sqlx::query_scalar("SELECT system_identifier FROM pg_control_system()").fetch_one(&mut *connection).await?,
        false => UNKNOWN,
    };
    let within: String = sqlx::query_scalar(
        "SELECT oid::text || '/' || 'clone_detection'::regclass::oid::text FROM pg_database WHERE datname = current_database()",
    )
    .fetch_one(connection)
    .await?;
    Ok(format!("{cluster}/{within}"))
}

async fn accept(tx: &mut PgTransaction<'_>, here: &str) -> StoreResult<()> {
    // The epochs jump with the numbers of events: a worker of the lost time holds none of these.
    let lifted = sqlx::query(
        "UPDATE conversation_heads
         SET last_seq = greatest(last_seq + $2, now_ms() * $1), epoch = greatest(epoch + $2, now_ms() * $1)",
    )
    .bind(NUMBERS_PER_MS)
    .bind(LEAST_JUMP)
    .execute(&mut **tx)
    .await?;
    sqlx::query("UPDATE clone_detection SET place = $1").bind(here).execute(&mut **tx).await?;
    log_accepted(lifted.rows_affected());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::is_same;

    #[test]
    fn revoked_right_is_no_other_place() {
        assert!(is_same("7/1/2", "7/1/2") && is_same("7/1/2", "0/1/2") && is_same("0/1/2", "7/1/2"));
        assert!(!is_same("7/1/2", "8/1/2") && !is_same("7/1/2", "0/1/3") && !is_same("7/1/2", "7/1/3"));
    }
}
