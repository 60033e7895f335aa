//! Poolers in transaction mode, such as PgBouncer: they give each transaction another session of the database.
//!
//! Owns the detection of such a pooler, and the transactions behind one. Behind a pooler, startup parameters do not reach the
//! session, and prepared statements and session locks end with their transaction. So each access is a separate transaction, which
//! sets its own limits and clears its prepared statements. Must not know any table.

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, Connection as _, Error, Row as _, raw_sql};

use crate::store::StoreResult;

/// The limits of a session, which a direct connection gets as startup parameters.
pub const LIMITS: [(&str, &str); 4] =
    [("statement_timeout", "10s"), ("lock_timeout", "2s"), ("idle_in_transaction_session_timeout", "5s"), ("jit", "off")];

/// Begins a transaction with the same limits.
pub const BEGIN: &str = "BEGIN; SET LOCAL statement_timeout = '10s'; SET LOCAL lock_timeout = '2s'; \
     SET LOCAL idle_in_transaction_session_timeout = '5s'; SET LOCAL jit = off";

/// The SQLSTATE with which a pooler refuses a startup parameter.
const PROTOCOL_VIOLATION: &str = "08P01";

/// Connects with a startup parameter that limits the session. Returns `None` if a pooler refuses or ignores such parameters, so that
/// they do not reach the sessions of the database.
pub async fn connect_directly(options: &PgConnectOptions, parameter: (&str, &str)) -> StoreResult<Option<PgConnection>> {
    let (name, limit) = parameter;
    let mut connection = match PgConnection::connect_with(&options.clone().options([parameter])).await {
        Ok(connection) => connection,
        Err(Error::Database(error)) if error.code().as_deref() == Some(PROTOCOL_VIOLATION) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    // Not prepared: the session may be another one for each message.
    let setting = format!("SELECT current_setting('{name}')");
    let row = raw_sql(AssertSqlSafe(setting)).fetch_one(&mut connection).await?;
    if row.try_get::<&str, _>(0)? == limit {
        return Ok(Some(connection));
    }
    let _ = connection.close().await;
    Ok(None)
}

/// Executes `work` in a transaction, which is committed if the work succeeds.
pub async fn in_transaction<T, E: From<Error>>(
    connection: &mut PgConnection,
    work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, E>,
) -> Result<T, E> {
    let mut tx = connection.begin_with(BEGIN).await?;
    let answer = work(&mut *tx).await;
    // Another connection may get this session next. The names of the prepared statements would then be in use.
    let cleared = tx.clear_cached_statements().await;
    let answer = answer?;
    cleared?;
    tx.commit().await?;
    Ok(answer)
}
