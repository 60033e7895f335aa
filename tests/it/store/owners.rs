//! Whose a row is: every table says it, and servers of the version before need not.

use std::collections::BTreeSet;
use std::str::FromStr as _;

use sqlx::Connection as _;
use sqlx::postgres::{PgConnectOptions, PgConnection};

use super::fixture::{World, conversation, user};
use crate::support::database::Kind;

/// Tables without a column for the owner, and why.
const NOBODYS: [(&str, &str); 11] = [
    ("_sqlx_migrations", "the schema"),
    ("owners_left", "the schema"),
    ("users", "the owners"),
    ("lineage", "the database"),
    ("tool_sets", "definitions, found by their content through a run"),
    ("agent_versions", "pieces of an agent, found through its row"),
    ("file_chunks", "pieces of a file, found through its row"),
    ("file_uses", "which conversations have a file, found through both rows"),
    ("message_words", "the index of messages, found through their rows"),
    ("message_words_of", "the same"),
    ("message_words_left", "the same"),
];

async fn every_table_says_whose_its_rows_are(kind: Kind) {
    let world = World::new(kind).await;
    let (tables, owned) = match kind {
        Kind::Sqlite => (
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' AND name NOT LIKE 'message_words\\_%' ESCAPE '\\'",
            "SELECT s.name FROM sqlite_schema s JOIN pragma_table_info(s.name) c WHERE s.type = 'table' AND c.name IN ('owner_id', 'user_id')",
        ),
        Kind::Postgres => (
            "SELECT table_name::text FROM information_schema.tables WHERE table_schema = 'public' AND table_type = 'BASE TABLE'",
            "SELECT table_name::text FROM information_schema.columns WHERE table_schema = 'public' AND column_name IN ('owner_id', 'user_id')",
        ),
    };
    let names = async |sql: &str| -> BTreeSet<String> {
        world.database.rows(sql).await.into_iter().filter_map(|row| row.into_iter().next().flatten()).collect()
    };
    let (tables, owned) = (names(tables).await, names(owned).await);
    assert!(owned.contains("events") && owned.contains("run_steps") && owned.contains("conversation_heads"), "{owned:?}");
    let without: Vec<&String> =
        tables.difference(&owned).filter(|table| NOBODYS.iter().all(|(nobodys, _)| nobodys != table)).collect();
    assert!(without.is_empty(), "these have no owner_id: {without:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_table_says_whose_its_rows_are_on_sqlite() {
    every_table_says_whose_its_rows_are(Kind::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_table_says_whose_its_rows_are_on_postgres() {
    every_table_says_whose_its_rows_are(Kind::Postgres).await;
}

/// During a rolling update they go on writing, and name no owner: not even where one statement makes all there is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_of_the_version_before_name_no_owner_postgres() {
    let world = World::new(Kind::Postgres).await;
    let (owner, id) = (user(), conversation());
    let mut older = PgConnection::connect_with(&PgConnectOptions::from_str(&world.database.url).unwrap()).await.unwrap();
    sqlx::query(
        "WITH conversation AS (
             INSERT INTO conversations (id, owner_id, title, status, created_at, updated_at) VALUES ($1, $2, '', 'queued', 1, 1)
             RETURNING id
         ), head AS (
             INSERT INTO conversation_heads (conversation_id, last_seq) SELECT id, 1 FROM conversation RETURNING conversation_id AS id
         )
         INSERT INTO events (conversation_id, seq, attempt, kind, at, data) SELECT id, 1, 0, 'conversation.updated', 1, '{}' FROM head",
    )
    .bind(id.as_str())
    .bind(owner.as_str())
    .execute(&mut older)
    .await
    .unwrap();
    assert_eq!(world.store.events(&owner, &id, 0, 10).await.unwrap().len(), 1);
    assert_eq!(world.store.log_bounds(&owner, &id).await.unwrap().map(|bounds| bounds.head), Some(1));
}
