//! Both databases can prepare every shared statement.

use capstan::store::statements;
use sqlx::postgres::PgConnection;
use sqlx::sqlite::SqliteConnection;
use sqlx::{Connection as _, Executor as _, SqlSafeStr as _};

use super::fixture::World;
use support::database::Kind;

#[tokio::test]
async fn every_statement_is_prepared_by_postgres() {
    let world = World::new(Kind::Postgres).await;
    let mut connection = PgConnection::connect(&world.database.url).await.unwrap();
    for (module, statements) in statements() {
        for statement in statements {
            let prepared = connection.prepare(statement.postgres.into_sql_str()).await;
            assert!(prepared.is_ok(), "{module}::{}: {:?}", statement.name, prepared.err());
        }
    }
    connection.close().await.unwrap();
    world.store.close().await;
}

#[tokio::test]
async fn every_statement_is_prepared_by_sqlite() {
    let world = World::new(Kind::Sqlite).await;
    let mut connection = SqliteConnection::connect(&world.database.url).await.unwrap();
    for (module, statements) in statements() {
        for statement in statements {
            let prepared = connection.prepare(statement.sqlite.into_sql_str()).await;
            assert!(prepared.is_ok(), "{module}::{}: {:?}", statement.name, prepared.err());
        }
    }
    connection.close().await.unwrap();
    world.store.close().await;
}
