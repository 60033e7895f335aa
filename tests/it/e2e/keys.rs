//! Resources of another owner look like resources that do not exist.

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use support::audit;
use support::database::Kind;
use support::server::Site;
use support::ws::WsClient;

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn foreign_resources_look_missing(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let site = Site::new(kind).await;
    let (ada, bob) = (site.key_of("ada").await, site.key_of("bob").await);
    let mut server = site.start().await;
    assert_eq!(server.get("/conversations").send().await.unwrap().status(), 401);
    server.set_key("cap_wrong");
    assert_eq!(server.get("/conversations").send().await.unwrap().status(), 401);

    server.set_key(&ada);
    let run = server.start_run(&json!({"input": "hello"})).await;
    let run_id = run["id"].as_str().unwrap().to_owned();
    let conversation = run["conversation_id"].as_str().unwrap().to_owned();
    server.finished(&run_id).await;
    let before = server.run_events_json(&run_id).await;
    let answer = server.messages(&conversation).await[1]["id"].as_str().unwrap().to_owned();
    let rate = |conversation: &str| format!("/conversations/{conversation}/messages/{answer}/feedback");
    assert_eq!(server.post_json(&rate(&conversation), &json!({"rating": "up"})).await.0, 200);

    server.set_key(&bob);
    let digits = |id: &str| id.replace(|letter: char| letter.is_ascii_digit(), "1");
    let (no_run, no_conversation) = (digits(&run_id), digits(&conversation));
    let routes = |run: &str, conversation: &str| {
        vec![
            (Method::GET, format!("/runs/{run}"), None),
            (Method::GET, format!("/runs/{run}/events"), None),
            (Method::GET, format!("/runs/{run}/explain"), None),
            (Method::POST, format!("/runs/{run}/cancel"), Some(json!({}))),
            (Method::POST, format!("/runs/{run}/resume"), Some(json!({}))),
            (Method::GET, format!("/conversations/{conversation}"), None),
            (Method::PATCH, format!("/conversations/{conversation}"), Some(json!({"title": "mine"}))),
            (Method::DELETE, format!("/conversations/{conversation}"), None),
            (Method::GET, format!("/conversations/{conversation}/messages"), None),
            (Method::POST, format!("/conversations/{conversation}/messages"), Some(json!({"content": "x"}))),
            (Method::GET, format!("/conversations/{conversation}/events"), None),
            (Method::POST, rate(conversation), Some(json!({"rating": "down"}))),
            (Method::DELETE, rate(conversation), None),
        ]
    };
    let foreign = routes(&run_id, &conversation);
    let missing = routes(&no_run, &no_conversation);
    for ((method, path, body), (_, missing_path, _)) in foreign.into_iter().zip(missing) {
        let ask = |path: String| {
            let mut request = server.request(method.clone(), &path);
            if let Some(body) = &body {
                request = request.json(body);
            }
            async move {
                let answer = request.send().await.unwrap();
                let status = answer.status().as_u16();
                let mut problem: Value = answer.json().await.unwrap();
                problem["request_id"] = Value::Null;
                let detail = problem["detail"].as_str().unwrap().to_owned();
                (status, problem, detail)
            }
        };
        let (status, mut problem, detail) = ask(path.clone()).await;
        let (missing_status, mut missing_problem, missing_detail) = ask(missing_path.clone()).await;
        assert_eq!((status, missing_status), (404, 404), "{method} {path}: {problem}");
        // Only the requested id may differ.
        let without = |text: &str| {
            text.replace(&run_id, "ID").replace(&no_run, "ID").replace(&conversation, "ID").replace(&no_conversation, "ID")
        };
        assert_eq!(without(&detail), without(&missing_detail));
        problem["detail"] = Value::Null;
        missing_problem["detail"] = Value::Null;
        assert_eq!(problem, missing_problem);
    }
    assert_eq!(server.get_json("/conversations").await["data"], json!([]));
    assert_eq!(server.get_json("/feedback").await["data"], json!([]));
    let (status, _) = server.post_json("/runs", &json!({"input": "x", "conversation_id": conversation})).await;
    assert_eq!(status, 404, "a run in another owner's conversation");
    let mut socket = WsClient::connect(&server.url, Some(&bob)).await;
    for params in [json!({"run_id": run_id}), json!({"conversation_id": conversation})] {
        assert_eq!(socket.call("subscribe", params).await["error"]["code"], "not_found");
    }
    assert_eq!(socket.call("run.cancel", json!({"run_id": run_id})).await["error"]["code"], "not_found");

    server.set_key(&ada);
    assert_eq!(server.run_events_json(&run_id).await, before, "the owner's log is unchanged");
    audit::assert_sound(&site.database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_public_address_without_a_key() {
    let site = Site::new(Kind::Sqlite).await;
    let mut server = site.spawn(&[("CAPSTAN_LISTEN", "0.0.0.0:0")]);
    let status = server.ended(std::time::Duration::from_secs(20)).await;
    assert!(!status.success());
    let log = server.log_text();
    assert!(log.contains("keys create"), "the error tells how to create a key: {log}");
    // A key never appears in the log.
    let key = site.key_of("ada").await;
    let mut server = site.start().await;
    server.set_key(&key);
    server.get_json("/conversations").await;
    assert!(!server.log_text().contains(&key));
    let stored = site.database.rows("SELECT hash FROM api_keys").await;
    assert!(!stored.is_empty() && stored.iter().all(|row| !row[0].as_ref().unwrap().contains(&key)));
}

#[tokio::test(flavor = "multi_thread")]
async fn configured_keys_are_not_revoked_and_create_no_higher_role() {
    let site = Site::new(Kind::Sqlite).await;
    let (ada, bob) = (site.key_of("ada").await, site.key_of("bob").await);
    let (is_set, output) = site.command(&["users", "role", "ada", "admin"]).await;
    assert!(is_set, "{output}");
    // The key of the administrator ada has the role member. The key of bob is also stored.
    let configured = format!("[{{user = 'ada', key = 'cap_configured_0123456789'}}, {{user = 'bob', key = '{bob}'}}]");
    let mut server = site.start_with(&[("CAPSTAN_AUTH__KEYS", configured.as_str())]).await;
    server.set_key("cap_configured_0123456789");
    let (status, problem) = server.post_json("/keys", &json!({})).await;
    assert_eq!(status, 403, "{problem}");

    server.set_key(&ada);
    let keys = server.get_json("/keys").await;
    let stored = keys["data"].as_array().unwrap().iter().find(|key| key["user"] == "bob").unwrap();
    let id = |field: &str| stored[field].as_str().unwrap().to_owned();
    let requests = [
        server.request(Method::DELETE, &format!("/keys/{}", id("id"))),
        server.request(Method::PATCH, &format!("/users/{}", id("user_id"))).json(&json!({"role": "admin"})),
    ];
    for request in requests {
        let refused = request.send().await.unwrap();
        assert_eq!(refused.status(), 409);
        assert!(refused.text().await.unwrap().contains("auth.keys"));
    }
}
