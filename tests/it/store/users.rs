//! Users: removal with their rows, the loss of the administrator role, and groups.

use capstan::domain::access::principal::UserRole;
use capstan::domain::ids::{KeyId, UserId};
use capstan::domain::model::provider::{EgressScope, ProviderRecord};
use capstan::domain::tool::mcp_server::McpServerRecord;
use capstan::store::{OwnedCounts, ProviderChanged, StoredUser, UpdateNamedOutcome};
use capstan::support::ids::UuidIds;
use capstan::tools::mcp::{MemberRules, Secrets, read_kept};
use serde_json::{Value, json};

use super::fixture::{NOW, World, all_items, conversation, hello, page, user};
use super::mcp_servers::server;
use super::providers::provider;
use support::database::Kind;

contract! {
    ;
    deleted_user_leaves_no_rows,
    demoted_administrator_reaches_only_member_hosts,
    default_model_belongs_to_its_user,
    groups_are_those_that_were_said_last,
    users_are_paged_by_name,
}

/// Tables whose rows belong to conversations.
const OF_CONVERSATIONS: [&str; 12] = [
    "conversations",
    "conversation_shares",
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

/// Returns every table with an owner column, from the database's catalogue.
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

/// Inserts a row of this owner into a table, with a value in each required column.
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
            "text" => format!("'{}'", support::database::unique()),
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
async fn deleted_user_leaves_no_rows(world: &World) {
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
    assert_eq!(owned, OwnedCounts { conversations: 1, records: u64::try_from(beside.len()).unwrap() }, "{beside:?}");

    assert!(!store.remove_user(&leaves).await.unwrap(), "a conversation is left");
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
    assert_eq!(store.owned_by(&stays).await.unwrap(), owned, "other users keep their rows");
    assert!(store.user_by_key_hash("bob").await.unwrap().is_some());
}

async fn demoted_administrator_reaches_only_member_hosts(world: &World) {
    const MOST: u32 = 100;
    let store = &world.store;
    let (ann, bob) = (user(), user());
    for (id, name) in [(&ann, "ann"), (&bob, "bob")] {
        store.ensure_user(id.clone(), name, UserRole::Admin, NOW).await.unwrap();
    }
    let entry = || json!({"command": "sh"}).as_object().cloned().unwrap();
    let far = |owner, name| McpServerRecord { egress: EgressScope::Anywhere, entry: entry(), secrets: None, ..server(owner, name) };
    let (own, of_bob, of_all) = (far(Some(&ann), "s"), far(Some(&bob), "s"), far(None, "s"));
    let near = server(Some(&ann), "near");
    for record in [&own, &of_bob, &of_all, &near] {
        store.create_mcp_server(record, MOST, None).await.unwrap();
    }
    let far = |owner, name| ProviderRecord { egress: EgressScope::Anywhere, ..provider(owner, name) };
    let (own_models, models_of_bob) = (far(Some(&ann), "p"), far(Some(&bob), "p"));
    for record in [&own_models, &models_of_bob] {
        store.create_provider(record, MOST, None).await.unwrap();
    }

    // Setting the current role changes nothing.
    store.set_role(&ann, UserRole::Admin).await.unwrap();
    assert_eq!(store.mcp_server(&ann, &own.id).await.unwrap(), Some(own.clone()));
    assert_eq!(store.provider(&ann, &own_models.id).await.unwrap(), Some(own_models.clone()));

    // The second change has nothing left to do. After the third, the administrator's servers stay limited.
    for role in [UserRole::Member, UserRole::Member, UserRole::Admin] {
        store.set_role(&ann, role).await.unwrap();
        let stored = store.mcp_server(&ann, &own.id).await.unwrap().unwrap();
        assert_eq!(stored, McpServerRecord { egress: EgressScope::Public, version: 2, ..own.clone() });
        let rules = MemberRules { commands: false, egress: EgressScope::Public };
        let config = read_kept(&Value::Object(stored.entry), &Secrets::new()).unwrap();
        assert!(rules.apply(config, stored.egress).is_err_and(|reason| reason.contains("mcp.allow_user_commands")));
        let stored = store.provider(&ann, &own_models.id).await.unwrap();
        assert_eq!(stored, Some(ProviderRecord { egress: EgressScope::Public, version: 2, ..own_models.clone() }));
    }
    // A concurrent change that began under the administrator role does not restore the wide scope.
    assert_eq!(store.change_mcp_server(&own).await.unwrap(), UpdateNamedOutcome::Stale);
    assert_eq!(store.change_provider(&own_models).await.unwrap(), ProviderChanged::Stale);

    assert_eq!(store.mcp_server(&ann, &near.id).await.unwrap(), Some(near));
    assert_eq!(store.mcp_server(&ann, &of_all.id).await.unwrap(), Some(of_all), "global servers are not theirs");
    assert_eq!(store.mcp_server(&bob, &of_bob.id).await.unwrap(), Some(of_bob));
    assert_eq!(store.provider(&bob, &models_of_bob.id).await.unwrap(), Some(models_of_bob));
}

async fn default_model_belongs_to_its_user(world: &World) {
    let store = &world.store;
    let (ada, bob) = (user(), user());
    for (id, name) in [(&ada, "ada of models"), (&bob, "bob of models")] {
        store.ensure_user(id.clone(), name, UserRole::Member, NOW).await.unwrap();
    }
    store.set_groups(&ada, &["staff".to_owned()]).await.unwrap();
    for model in [Some("openai/gpt-5"), None, Some("ollama/qwen3:4b")] {
        store.set_default_model(&ada, model).await.unwrap();
        let account = store.account(&ada).await.unwrap().unwrap();
        assert_eq!((account.name.as_str(), account.groups.as_slice()), ("ada of models", &["staff".to_owned()][..]));
        assert_eq!(account.default_model.as_deref(), model);
    }
    assert_eq!(store.account(&bob).await.unwrap().unwrap().default_model, None);
    assert_eq!(store.account(&user()).await.unwrap(), None, "there is no such user");
}

async fn groups_are_those_that_were_said_last(world: &World) {
    let store = &world.store;
    let (ada, bob) = (user(), user());
    for (id, name) in [(&ada, "ada"), (&bob, "bob")] {
        store.ensure_user(id.clone(), name, UserRole::Member, NOW).await.unwrap();
        assert!(store.groups_of(id).await.unwrap().is_empty(), "no groups are set");
    }
    for groups in [&["editors", "staff"][..], &["staff"][..], &[][..], &["others"][..]] {
        let groups: Vec<String> = groups.iter().map(|group| (*group).to_owned()).collect();
        store.set_groups(&ada, &groups).await.unwrap();
        assert_eq!(store.groups_of(&ada).await.unwrap(), groups);
    }
    store.set_role(&ada, UserRole::Admin).await.unwrap();
    store.ensure_user(user(), "ada", UserRole::Member, NOW).await.unwrap();
    assert_eq!(store.groups_of(&ada).await.unwrap(), ["others"], "another start of a server changes nothing");
    assert!(store.groups_of(&bob).await.unwrap().is_empty());
    assert!(store.groups_of(&user()).await.unwrap().is_empty(), "there is no such user");
}

async fn users_are_paged_by_name(world: &World) {
    let store = &world.store;
    let mut expected = Vec::new();
    for (name, role) in [("Zoe", UserRole::Member), ("ada", UserRole::Admin), ("bob", UserRole::Member)] {
        let user = store.ensure_user(user(), name, role, NOW).await.unwrap();
        store.set_groups(&user.id, &[format!("of_{}", role.as_str())]).await.unwrap();
        let stored = StoredUser { groups: vec![format!("of_{}", role.as_str())], user, created_at: NOW };
        assert_eq!(store.user(&stored.user.id).await.unwrap().as_ref(), Some(&stored));
        expected.push(stored);
    }
    let listed = all_items(async |after| store.users(&page(1, after)).await.unwrap()).await;
    assert_eq!(listed, expected, "capital letters come first");
    assert_eq!(store.user(&user()).await.unwrap(), None, "there is no such user");
}
