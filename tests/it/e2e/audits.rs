//! The audit list of tool calls in the API.

use rstest::rstest;
use serde_json::{Value, json};

use support::audit;
use support::database::Kind;
use support::model::ModelMock;
use support::server::{Server, Site};

async fn rows(server: &Server, query: &str) -> Vec<Value> {
    server.get_json(&format!("/audit{query}")).await["data"].as_array().unwrap().clone()
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn audit_shows_every_call_to_owner_and_administrators(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let model = ModelMock::start().await;
    let site = Site::scripted(kind, &model).await;
    let site = site.env("CAPSTAN_AGENT__APPROVAL__TOOLS", r#"{ledger__append = "ask"}"#);
    let (ann, bob) = (site.key_of("ann").await, site.key_of("bob").await);
    let (_, admin) = site.command(&["keys", "create", "--user", "root", "--role", "admin"]).await;
    let admin = admin.lines().last().unwrap().trim().to_owned();
    let mut server = site.start().await;
    server.set_key(&ann);
    let input = r#"[[id:audit]][[call:ledger__append {"text":"one"}]][[call:ledger__pay {"text":"rent"}]][[call:nothing]][[next]][[say:bye]]"#;
    let run = server.start_run(&json!({"input": input})).await;
    let run = run["id"].as_str().unwrap();
    let waits = support::wait::until("the question", std::time::Duration::from_secs(30), || async {
        server.get_json("/approvals?status=pending").await["data"].as_array().unwrap().first().cloned()
    });
    let asked = waits.await;
    let path = format!("/approvals/{}", asked["id"].as_str().unwrap());
    assert_eq!(server.post_json(&path, &json!({"decision": "deny"})).await.0, 200);
    let ended = server.finished(run).await;
    let conversation = ended["conversation_id"].as_str().unwrap();

    let found = rows(&server, &format!("?run_id={run}")).await;
    let of = |name: &str| found.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("{name}: {found:#?}"));
    assert_eq!(found.len(), 3);
    let owner = &of("ledger__pay")["owner_id"];
    assert_eq!((&of("ledger__pay")["outcome"], &of("ledger__pay")["server"]), (&json!("success"), &json!("ledger")));
    assert!(of("ledger__pay").get("decided_by").is_none());
    assert_eq!((&of("ledger__append")["outcome"], &of("ledger__append")["decided_by"]), (&json!("denied"), owner));
    assert_eq!(of("ledger__append")["arguments_hash"], asked["arguments_hash"]);
    assert_eq!(of("nothing")["outcome"], "error");
    assert_eq!(rows(&server, "?tool=ledger__pay&outcome=success").await.len(), 1);
    assert_eq!(rows(&server, "?outcome=skipped").await.len(), 0);
    let first = server.get_json("/audit?limit=2").await;
    let next = first["next_cursor"].as_str().unwrap();
    assert_eq!(rows(&server, &format!("?limit=2&cursor={next}")).await.len(), 1);
    audit::assert_sound(&site.database).await;

    assert_eq!(
        server.request(reqwest::Method::DELETE, &format!("/conversations/{conversation}")).send().await.unwrap().status(),
        204
    );
    assert_eq!(rows(&server, "").await.len(), 3, "the audit outlives the conversation");
    for query in ["?owner=all".to_owned(), format!("?owner={}", "user_".to_owned() + &"0".repeat(32))] {
        assert_eq!(server.get(&format!("/audit{query}")).send().await.unwrap().status(), 403, "{query}");
    }
    assert_eq!(server.get("/audit?owner=ann").send().await.unwrap().status(), 400);
    server.set_key(&bob);
    assert_eq!(rows(&server, "").await.len(), 0);
    assert_eq!(rows(&server, &format!("?run_id={run}")).await.len(), 0);
    server.set_key(&admin);
    assert_eq!(rows(&server, "").await.len(), 0, "an administrator's list shows their own calls unless it names other owners");
    assert_eq!(rows(&server, "?owner=all").await.len(), 3);
    assert_eq!(rows(&server, &format!("?owner={}", owner.as_str().unwrap())).await.len(), 3);
}
