//! Users who leave take with them all that is theirs.

use capstan::domain::ids::{KeyId, UserId};
use capstan::domain::principal::UserRole;
use capstan::store::Owned;
use capstan::support::ids::UuidIds;

use super::fixture::{NOW, World, conversation, hello, user};
use crate::support::database::Kind;

contract! {
    ;
    whoever_leaves_takes_all_that_is_theirs,
}

/// Tables whose rows hang on conversations.
const OF_CONVERSATIONS: [&str; 11] = [
    "conversations",
    "conversation_heads",
    "runs",
    "run_leases",
    "run_steps",
    "messages",
    "tool_calls",
    "input_requests",
    "events",
    "context_summaries",
    "message_words",
];

/// Every table with an owner, by what the database says of itself.
async fn owned_tables(world: &World) -> Vec<String> {
    let tables = match world.database.kind {
        Kind::Sqlite => {
            "SELECT m.name FROM sqlite_master m JOIN pragma_table_info(m.name) c
             WHERE m.type = 'table' AND m.sql LIKE 'CREATE TABLE%' AND c.name = 'owner_id'"
        }
        Kind::Postgres => {
            "SELECT CAST(c.table_name AS text) FROM information_schema.columns c JOIN information_schema.tables t USING (table_schema, table_name)
             WHERE c.table_schema = current_schema() AND t.table_type = 'BASE TABLE' AND c.column_name = 'owner_id'"
        }
    };
    world.database.rows(tables).await.into_iter().filter_map(|row| row[0].clone()).collect()
}

/// Puts a row of this owner into a table, with something in each column that wants something.
async fn fill(world: &World, table: &str, owner: &UserId) {
    let columns = match world.database.kind {
        Kind::Sqlite => {
            format!("SELECT name, type FROM pragma_table_info('{table}') WHERE (\"notnull\" OR pk > 0) AND dflt_value IS NULL")
        }
        Kind::Postgres => format!(
            "SELECT CAST(column_name AS text), CAST(data_type AS text) FROM information_schema.columns
             WHERE table_schema = current_schema() AND table_name = '{table}' AND is_nullable = 'NO' AND column_default IS NULL"
        ),
    };
    let mut values = vec![("owner_id".to_owned(), format!("'{owner}'"))];
    for column in world.database.rows(&columns).await {
        let (name, kind) = (column[0].clone().unwrap(), column[1].clone().unwrap().to_lowercase());
        let value = match kind.as_str() {
            "text" => format!("'{}'", crate::support::database::unique()),
            "bytea" | "blob" => "''".to_owned(),
            "boolean" => "true".to_owned(),
            _ => "1".to_owned(),
        };
        if name != "owner_id" {
            values.push((name, value));
        }
    }
    let (names, values): (Vec<_>, Vec<_>) = values.into_iter().unzip();
    world.database.rows(&format!("INSERT INTO {table} ({}) VALUES ({})", names.join(", "), values.join(", "))).await;
}

async fn count(world: &World, table: &str, owner: &UserId) -> i64 {
    world.database.count(&format!("SELECT CAST(count(*) AS text) FROM {table} WHERE owner_id = '{owner}'")).await
}

/// D-19.
async fn whoever_leaves_takes_all_that_is_theirs(world: &World) {
    let store = &world.store;
    let (leaves, stays) = (user(), user());
    for (id, name) in [(&leaves, "ada"), (&stays, "bob")] {
        store.ensure_user(id.clone(), name, UserRole::Member, NOW).await.unwrap();
        store.create_key(KeyId::generate(&UuidIds), id, name, name, NOW).await.unwrap();
        world.accept(hello(id, &conversation())).await;
    }
    let tables: Vec<String> = owned_tables(world).await;
    let beside: Vec<&String> = tables.iter().filter(|table| !OF_CONVERSATIONS.contains(&table.as_str())).collect();
    assert!(beside.len() >= 12, "{beside:?}");
    for table in &beside {
        fill(world, table, &leaves).await;
        fill(world, table, &stays).await;
    }
    assert_eq!(store.user_named("nobody").await.unwrap(), None);
    let ada = store.user_named("ada").await.unwrap().unwrap();
    assert_eq!((&ada.id, ada.role), (&leaves, UserRole::Member));
    let owned = store.owned_by(&leaves).await.unwrap();
    assert_eq!(owned, Owned { conversations: 1, records: u64::try_from(beside.len()).unwrap() }, "{beside:?}");

    assert!(!store.remove_user(&leaves).await.unwrap(), "there is a conversation still");
    assert_eq!(store.owned_by(&leaves).await.unwrap(), owned);
    let conversations = store.conversations(&leaves, &Default::default(), &super::fixture::page(10, None)).await.unwrap();
    for conversation in conversations.items {
        store.delete_conversation(&leaves, &conversation.id).await.unwrap();
    }
    assert!(store.remove_user(&leaves).await.unwrap());
    for table in &tables {
        assert_eq!(count(world, table, &leaves).await, 0, "{table}");
    }
    assert_eq!(store.user_named("ada").await.unwrap(), None);
    assert_eq!(store.user_by_key_hash("ada").await.unwrap(), None);
    assert_eq!(store.owned_by(&stays).await.unwrap(), owned, "others keep theirs");
    assert!(store.user_by_key_hash("bob").await.unwrap().is_some());
}
