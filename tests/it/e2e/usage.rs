//! Usage of runs in the API.

use rstest::rstest;
use serde_json::{Value, json};

use support::database::Kind;
use support::model::ModelMock;
use support::server::{Server, Site};

async fn rows(server: &Server, query: &str) -> Vec<Value> {
    server.get_json(&format!("/usage{query}")).await["data"].as_array().unwrap().clone()
}

async fn run(server: &Server) {
    let run = server.start_run(&json!({"input": "[[id:u]][[say:ok]]"})).await;
    assert_eq!(server.finished(run["id"].as_str().unwrap()).await["status"], "completed");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn owners_see_their_own_and_administrators_all(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let model = ModelMock::start().await;
    let site = Site::new(kind).await.with_model(&model);
    let (ann, bob) = (site.key_of("ann").await, site.key_of("bob").await);
    let (_, admin) = site.command(&["keys", "create", "--user", "root", "--role", "admin"]).await;
    let admin = admin.lines().last().unwrap().trim().to_owned();
    let mut server = site.start().await;
    for of in [&ann, &ann, &bob] {
        server.set_key(of);
        run(&server).await;
    }
    server.set_key(&ann);
    let own = rows(&server, "").await;
    let [row] = own.as_slice() else { panic!("one day, one model: {own:#?}") };
    assert_eq!((&row["model"], &row["runs"]), (&json!("openai/mock"), &json!(2)));
    assert_eq!(row["usage"]["input_tokens"], 20, "{row}");
    assert_eq!(row["day"].as_str().unwrap().len(), 10);
    let me = row["owner_id"].as_str().unwrap();
    assert_eq!(rows(&server, &format!("?owner={me}&days=1")).await.len(), 1);
    let by_hour = rows(&server, "?period=hour&group=agent").await;
    assert_eq!(by_hour.iter().map(|row| row["runs"].as_u64().unwrap()).sum::<u64>(), 2, "{by_hour:#?}");
    assert!(by_hour.iter().all(|row| row["hour"].as_u64() < Some(24) && row["agent"] == "default" && row["model"].is_null()));
    let first = server.get_json("/usage?group=conversation&limit=1").await;
    let next = first["next_cursor"].as_str().unwrap();
    let second = server.get_json(&format!("/usage?group=conversation&limit=1&cursor={next}")).await;
    assert_ne!(second["data"][0]["conversation_id"], first["data"][0]["conversation_id"]);
    for refused in ["?owner=all", "?owner=user_00000000000070008000000000000000"] {
        assert_eq!(server.get(&format!("/usage{refused}")).send().await.unwrap().status(), 403, "{refused}");
    }
    for wrong in ["?days=0", "?days=367", "?owner=me", "?cursor=x", "?period=week", "?group=user"] {
        assert_eq!(server.get(&format!("/usage{wrong}")).send().await.unwrap().status(), 400, "{wrong}");
    }
    server.set_key(&admin);
    assert_eq!(rows(&server, "").await, Vec::<Value>::new());
    assert_eq!(rows(&server, "?owner=all").await.len(), 2);
    let first = server.get_json("/usage?owner=all&limit=1").await;
    let next = first["next_cursor"].as_str().unwrap();
    let second = server.get_json(&format!("/usage?owner=all&limit=1&cursor={next}")).await;
    assert!(second["next_cursor"].is_null() && second["data"][0]["owner_id"] != first["data"][0]["owner_id"], "{second}");
}
