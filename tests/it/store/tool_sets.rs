//! Tool sets are kept as long as a run refers to them.

use std::str::FromStr as _;
use std::sync::Arc;

use capstan::domain::run::change::Change;
use capstan::domain::run::record::Fence;
use capstan::domain::tool::{ReplayClass, ToolDefinition};
use sqlx::Connection as _;
use sqlx::postgres::{PgConnectOptions, PgConnection};

use super::fixture::{World, changes, completed, started, user};
use support::database::Kind;

contract! {
    ;
    a_set_goes_with_the_last_run_that_names_it,
}

fn tool(name: &str) -> Vec<Arc<ToolDefinition>> {
    let definition = ToolDefinition::new(name, "", serde_json::json!({"type": "object"}), ReplayClass::Read);
    vec![Arc::new(ToolDefinition { definition_hash: name.to_owned(), ..definition })]
}

async fn with_tools(world: &World, tools: &[Arc<ToolDefinition>]) -> Fence {
    let fence = world.claimed(&user()).await;
    world.commit_one(started(&fence)).await.unwrap();
    world.commit_one(changes(&fence, vec![Change::FreezeTools(tools.to_vec())])).await.unwrap();
    fence
}

async fn delete(world: &World, fence: &Fence) {
    let owner = world.owner_of(&fence.conversation_id).await;
    assert!(world.store.delete_conversation(&owner, &fence.conversation_id).await.unwrap().is_some());
}

async fn unused(world: &World) -> u64 {
    world.store.count_expired(3_600_000, None).await.unwrap().tool_sets
}

async fn a_set_goes_with_the_last_run_that_names_it(world: &World) {
    let (shared, own) = (tool("shared"), tool("own"));
    let (first, second, third) =
        (with_tools(world, &shared).await, with_tools(world, &shared).await, with_tools(world, &own).await);
    world.commit_one(completed(&second)).await.unwrap();
    assert_eq!((unused(world).await, world.store.remove_unused_tool_sets().await.unwrap()), (0, 0));
    delete(world, &first).await;
    delete(world, &third).await;
    assert_eq!(unused(world).await, 1);
    assert_eq!(world.store.remove_unused_tool_sets().await.unwrap(), 1, "an ended run refers to the other one");
    assert_eq!((unused(world).await, world.store.remove_unused_tool_sets().await.unwrap()), (0, 0));
    delete(world, &second).await;
    assert_eq!(world.store.remove_unused_tool_sets().await.unwrap(), 1);
    // A deleted set is created again by the next run that uses it.
    let again = with_tools(world, &own).await;
    assert_eq!(world.load(&again).await.tools, Some(own));
}

/// Workers of any version leave the row of an existing set unchanged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_that_a_run_is_just_taking_stays_on_postgres() {
    let world = World::new(Kind::Postgres).await;
    let tools = tool("shared");
    let first = with_tools(&world, &tools).await;
    let hash = world.database.rows("SELECT hash FROM tool_sets").await[0][0].clone().unwrap();
    delete(&world, &first).await;
    let second = world.claimed(&user()).await;
    let mut taking = PgConnection::connect_with(&PgConnectOptions::from_str(&world.database.url).unwrap()).await.unwrap();
    let mut tx = taking.begin().await.unwrap();
    sqlx::query("INSERT INTO tool_sets (hash, definitions) VALUES ($1, 'another text') ON CONFLICT (hash) DO NOTHING")
        .bind(&hash)
        .execute(&mut *tx)
        .await
        .unwrap();
    let named = sqlx::query("UPDATE runs SET tools_hash = $1 WHERE id = $2").bind(&hash).bind(second.run_id.as_str());
    named.execute(&mut *tx).await.unwrap();
    // The reference is not committed yet, and the cleanup does not wait long for the writer.
    assert_eq!(unused(&world).await, 1);
    let kept = world.store.remove_unused_tool_sets().await.unwrap_err();
    assert!(kept.is_transient(), "{kept:?}");
    tx.commit().await.unwrap();
    assert_eq!(world.store.remove_unused_tool_sets().await.unwrap(), 0);
    assert_eq!(world.load(&second).await.tools, Some(tools));
    world.store.close().await;
}
