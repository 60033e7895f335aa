//! Every table has a column for the owner of its rows, or a reason not to.

use std::collections::BTreeSet;

use super::fixture::World;
use support::database::Kind;

/// Tables without an owner column, and why.
const NOBODYS: [(&str, &str); 10] = [
    ("_sqlx_migrations", "the schema"),
    ("users", "the owners"),
    ("clone_detection", "the database"),
    ("tool_sets", "definitions, found by their content through a run"),
    ("agent_versions", "pieces of an agent, found through its row"),
    ("file_chunks", "pieces of a file, found through its row"),
    ("file_uses", "which conversations have a file, found through both rows"),
    ("model_limitations", "facts about models of a provider, found by its settings"),
    ("message_words", "the index of messages, found through their rows"),
    ("message_words_of", "the same"),
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
