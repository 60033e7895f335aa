//! Opens the store of a database URL.

use std::sync::Arc;

use super::postgres::PostgresStore;
use super::sqlite::SqliteStore;
use super::{Store, StoreError, StoreOptions, StoreResult};

/// Opens the store at `url` and migrates its schema. `url` is `postgres://...`, or `sqlite:PATH`, whose folder is created if it is
/// missing.
pub async fn open(url: &str, options: &StoreOptions) -> StoreResult<Arc<dyn Store>> {
    let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
    match scheme {
        "postgres" | "postgresql" => Ok(Arc::new(PostgresStore::connect(url, options).await?)),
        "sqlite" => Ok(Arc::new(SqliteStore::connect(url, options).await?)),
        _ => Err(StoreError::Migration(format!(
            "a database URL of the kind {scheme:?} is not supported: use postgres://USER@HOST/NAME or sqlite:PATH"
        ))),
    }
}
