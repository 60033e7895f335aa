//! Clone detection on Postgres, by the identity of the cluster and the database. See [`crate::store::clone_detection`].
//!
//! Owns the row with that identity. Must not know why a copy is dangerous.

use sqlx::postgres::PgConnection;
use sqlx::{Connection as _, PgTransaction};

use crate::store::clone_detection::{LEAST_JUMP, NUMBERS_PER_MS, clone_error, log_accepted};
use crate::store::sql::pooler;
use crate::store::{OnClone, StoreResult};

/// Checks whether the database is a copy.
///
/// A dump creates a new table when it is restored into another cluster or database, or into the same one after it was emptied, and
/// so changes the identity. A copy of the cluster's files is not detected. `pg_upgrade` creates a new cluster and leaves the old
/// one intact: both could be served, and only the operator knows which one is.
///
/// Uses a connection that is in no pool, because accepting a copy may take long. Closes it.
pub(super) async fn check(mut connection: PgConnection, on_clone: OnClone, is_pooled: bool) -> StoreResult<()> {
    let checked = match (on_clone, is_pooled) {
        (OnClone::SkipCheck, _) => Ok(()),
        (_, false) => compare(&mut connection, on_clone).await,
        (_, true) => pooler::in_transaction(&mut connection, async |connection| compare(connection, on_clone).await).await,
    };
    let _ = connection.close().await;
    checked
}

async fn compare(connection: &mut PgConnection, on_clone: OnClone) -> StoreResult<()> {
    let current = database_identity(connection).await?;
    let stored: Option<String> = sqlx::query_scalar("SELECT place FROM clone_detection").fetch_optional(&mut *connection).await?;
    if stored.as_ref().is_some_and(|stored| is_same(stored, &current)) && on_clone != OnClone::AcceptUndetected {
        return Ok(());
    }
    let mut tx = connection.begin().await?;
    sqlx::query("INSERT INTO clone_detection (place) VALUES ($1) ON CONFLICT DO NOTHING").bind(&current).execute(&mut *tx).await?;
    // If several servers start together, only one accepts.
    let stored: String = sqlx::query_scalar("SELECT place FROM clone_detection FOR UPDATE").fetch_one(&mut *tx).await?;
    match on_clone {
        OnClone::Refuse if !is_same(&stored, &current) => {
            return Err(clone_error(
                "it is a copy of a database of another cluster: a restored dump, a copy by template, or the result of pg_upgrade",
            ));
        }
        OnClone::Accept if !is_same(&stored, &current) => accept(&mut tx, &current).await?,
        OnClone::AcceptUndetected => accept(&mut tx, &current).await?,
        OnClone::SkipCheck | OnClone::Refuse | OnClone::Accept => {}
    }
    Ok(tx.commit().await?)
}

/// The identifier in place of a cluster's own, if the role may not read that.
const HIDDEN_CLUSTER: i64 = 0;

/// Returns whether two identities are equal. If a cluster does not reveal its identifier, only the ids within the cluster are
/// compared.
fn is_same(stored: &str, current: &str) -> bool {
    let is_hidden = |cluster: &str| cluster == HIDDEN_CLUSTER.to_string();
    match (stored.split_once('/'), current.split_once('/')) {
        (Some((stored_cluster, stored_ids)), Some((current_cluster, current_ids)))
            if is_hidden(stored_cluster) || is_hidden(current_cluster) =>
        {
            stored_ids == current_ids
        }
        (Some(_) | None, Some(_) | None) => stored == current,
    }
}

/// Returns the identity, which no copy shares unless the files of the whole cluster were copied.
async fn database_identity(connection: &mut PgConnection) -> StoreResult<String> {
    // Every role may read it, unless an operator has revoked that.
    let may_read: bool =
        sqlx::query_scalar("SELECT has_function_privilege('pg_control_system()', 'execute')").fetch_one(&mut *connection).await?;
    let cluster: i64 = match may_read {
        true => sqlx::query_scalar("SELECT system_identifier FROM pg_control_system()").fetch_one(&mut *connection).await?,
        false => HIDDEN_CLUSTER,
    };
    let ids_within: String = sqlx::query_scalar(
        "SELECT oid::text || '/' || 'clone_detection'::regclass::oid::text FROM pg_database WHERE datname = current_database()",
    )
    .fetch_one(connection)
    .await?;
    Ok(format!("{cluster}/{ids_within}"))
}

async fn accept(tx: &mut PgTransaction<'_>, current: &str) -> StoreResult<()> {
    // The epochs jump like the sequence numbers, so that no lost worker holds one of the new epochs.
    let lifted = sqlx::query(
        "UPDATE conversation_heads
         SET last_seq = greatest(last_seq + $2, now_ms() * $1), epoch = greatest(epoch + $2, now_ms() * $1)",
    )
    .bind(NUMBERS_PER_MS)
    .bind(LEAST_JUMP)
    .execute(&mut **tx)
    .await?;
    sqlx::query("UPDATE clone_detection SET place = $1").bind(current).execute(&mut **tx).await?;
    log_accepted(lifted.rows_affected());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::is_same;

    #[test]
    fn revoked_right_changes_no_identity() {
        assert!(is_same("7/1/2", "7/1/2") && is_same("7/1/2", "0/1/2") && is_same("0/1/2", "7/1/2"));
        assert!(!is_same("7/1/2", "8/1/2") && !is_same("7/1/2", "0/1/3") && !is_same("7/1/2", "7/1/3"));
    }
}
