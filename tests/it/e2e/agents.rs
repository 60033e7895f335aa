//! Agents: made, changed, pinned and rolled back through the API, and what runs get of them.

use reqwest::{Method, StatusCode};
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::database::Kind;
use crate::support::model::ModelMock;
use crate::support::server::{Server, Site};

/// The answer to a request that changes something; panics unless it has this status.
async fn asked(server: &Server, method: Method, path: &str, body: &Value, status: u16) -> Value {
    let answer = server.request(method, path).json(body).send().await.unwrap();
    let (found, text) = (answer.status(), answer.text().await.unwrap());
    assert_eq!(found, status, "{text}");
    if text.is_empty() { Value::Null } else { serde_json::from_str(&text).unwrap() }
}

async fn make(server: &Server, body: &Value) -> Value {
    asked(server, Method::POST, "/agents", body, 201).await
}

/// What the model is told in a run of an agent: its system prompt.
async fn told(server: &Server, model: &ModelMock, agent: &str, id: &str) -> (Value, String) {
    let run = server.start_run(&json!({"input": format!("[[id:{id}]] hello"), "agent": agent})).await;
    let run = server.finished(run["id"].as_str().unwrap()).await;
    assert_eq!(run["status"], "completed", "{run}");
    let request = &model.exchanges(id)[0].request;
    (run, request["messages"][0]["content"].as_str().unwrap().to_owned())
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_run_gets_the_version_that_counts_when_it_is_accepted(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let model = ModelMock::start().await;
    let site = Site::new(kind).await.with_model(&model);
    let server = site.start().await;
    let agent = make(&server, &json!({"name": "poet", "profile": {"system_prompt": "Rhyme."}, "note": "first"})).await;
    assert_eq!((&agent["version"], &agent["scope"], &agent["effective"]["max_rounds"]), (&json!(1), &json!("own"), &json!(20)));
    let (run, prompt) = told(&server, &model, "poet", "one").await;
    assert_eq!((run["agent"].as_str(), run["agent_version"].as_u64()), (Some("poet"), Some(1)));
    assert!(prompt.contains("Rhyme."), "{prompt}");

    // A run that waits for its model keeps what it has.
    let held =
        server.start_run(&json!({"input": "[[id:held]][[call:calculate {\"expression\":\"1\"}]][[hold]]", "agent": "poet"})).await;
    model.wait_for("the run", "held", |seen| !seen.is_empty()).await;
    let path = format!("/agents/{}", agent["id"].as_str().unwrap());
    let changed = asked(&server, Method::PATCH, &path, &json!({"profile": {"system_prompt": "Hum."}, "note": "second"}), 200).await;
    assert_eq!((&changed["version"], &changed["latest_version"]), (&json!(2), &json!(2)));
    model.release("held");
    let held = server.finished(held["id"].as_str().unwrap()).await;
    assert_eq!(held["agent_version"], 1);
    let last = model.exchanges("held").pop().unwrap();
    assert!(last.request["messages"][0]["content"].as_str().unwrap().contains("Rhyme."), "{}", last.request);

    assert!(told(&server, &model, "poet", "two").await.1.contains("Hum."));
    assert!(told(&server, &model, "poet@1", "three").await.1.contains("Rhyme."));
    let pinned = asked(&server, Method::PATCH, &path, &json!({"pinned_version": 1}), 200).await;
    assert_eq!((&pinned["version"], &pinned["latest_version"], &pinned["pinned_version"]), (&json!(1), &json!(2), &json!(1)));
    assert!(told(&server, &model, "poet", "four").await.1.contains("Rhyme."));
    let back = asked(&server, Method::POST, &format!("{path}/rollback"), &json!({"version": 1}), 200).await;
    assert_eq!((&back["version"], back.get("pinned_version")), (&json!(3), None));
    let again = asked(&server, Method::POST, &format!("{path}/rollback"), &json!({"version": 1}), 200).await;
    assert_eq!(again["version"], 3, "a repeated request makes no other version");
    let versions = server.get_json("/agents/poet/versions").await;
    let notes: Vec<&str> = versions["data"].as_array().unwrap().iter().map(|version| version["note"].as_str().unwrap()).collect();
    assert_eq!(notes, ["as version 1", "second", "first"]);
    assert_eq!(server.get_json("/agents/poet/versions/2").await["profile"]["system_prompt"], "Hum.");

    let answer = server.request(Method::DELETE, &path).send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::NO_CONTENT);
    let (status, problem) = server.post_json("/runs", &json!({"input": "x", "agent": "poet"})).await;
    assert!(status == 400 && problem["errors"][0]["pointer"] == "/agent", "{problem}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_with_the_program_is_read_and_used_and_not_changed() {
    let model = ModelMock::start().await;
    let site = Site::new(Kind::Sqlite).await.with_model(&model);
    let server = site.start().await;
    let list = server.get_json("/agents").await;
    let names: Vec<&str> = list["data"].as_array().unwrap().iter().map(|agent| agent["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["chat", "cms", "default", "desktop", "docker-tools", "react"]);
    for name in names {
        let agent = server.get_json(&format!("/agents/{name}")).await;
        assert_eq!(agent["effective"]["name"], name);
        assert_eq!(server.get_json(&format!("/agents/{}", agent["id"].as_str().unwrap())).await, agent);
        asked(&server, Method::PATCH, &format!("/agents/{name}"), &json!({"description": "mine"}), 409).await;
        asked(&server, Method::POST, "/agents", &json!({"name": name}), 409).await;
    }
    // `docker-tools` offers tools on the first call only, and ends after five rounds with a text.
    let script = r#"[[id:tools]][[call:calculate {"expression":"1"}]]"#;
    let run = server.start_run(&json!({"input": script, "agent": "docker-tools"})).await;
    let run = server.finished(run["id"].as_str().unwrap()).await;
    assert_eq!((run["status"].as_str(), run["agent"].as_str()), (Some("completed"), Some("docker-tools")));
    let offered: Vec<bool> = model.exchanges("tools").iter().map(|seen| seen.request.get("tools").is_some()).collect();
    assert_eq!(offered, [true, false]);
    // One that is made of `cms` fails when a tool does.
    let mut profile = server.get_json("/agents/cms").await["profile"].clone();
    profile["tool_error"] = json!("fail_run");
    make(&server, &json!({"name": "strict", "profile": profile})).await;
    let run = server.start_run(&json!({"input": r#"[[id:cms]][[call:calculate {"expression":"1/"}]]"#, "agent": "strict"})).await;
    let run = server.finished(run["id"].as_str().unwrap()).await;
    assert_eq!((run["status"].as_str(), run["error"]["code"].as_str()), (Some("failed"), Some("tool_failed")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_lowers_limits_and_never_raises_them() {
    let model = ModelMock::start().await;
    let site = Site::new(Kind::Sqlite).await.with_model(&model);
    let server = site.start().await;
    make(&server, &json!({"name": "short", "profile": {"max_rounds": 3, "on_limit": "fail"}})).await;
    let round = |n: usize| format!(r#"[[call:calculate {{"expression":"{n}"}}]]"#);
    let script = |id: &str| format!("[[id:{id}]]{}", (0..6).map(round).collect::<Vec<_>>().join("[[next]]"));
    let rounds = async |id: &str, limits: Value| {
        let run = server.start_run(&json!({"input": script(id), "agent": "short", "limits": limits})).await;
        let run = server.finished(run["id"].as_str().unwrap()).await;
        assert_eq!(run["error"]["code"], "max_rounds", "{run}");
        model.exchanges(id).len()
    };
    assert_eq!(rounds("three", json!({})).await, 3);
    assert_eq!(rounds("one", json!({"max_rounds": 1})).await, 1);
    for (limits, pointer) in [
        (json!({"max_rounds": 4}), "/limits/max_rounds"),
        (json!({"max_rounds": 0}), "/limits/max_rounds"),
        (json!({"tool_timeout_ms": 30_001}), "/limits/tool_timeout_ms"),
    ] {
        let (status, problem) = server.post_json("/runs", &json!({"input": "x", "agent": "short", "limits": limits})).await;
        assert!(status == 400 && problem["errors"][0]["pointer"] == pointer, "{problem}");
    }
    make(&server, &json!({"name": "brief", "profile": {"options": {"max_output_tokens": 100}}})).await;
    let brief =
        |tokens: u32| json!({"input": "[[id:brief]][[say:ok]]", "agent": "brief", "options": {"max_output_tokens": tokens}});
    let (status, problem) = server.post_json("/runs", &brief(101)).await;
    assert!(status == 400 && problem["errors"][0]["pointer"] == "/options/max_output_tokens", "{problem}");
    let run = server.start_run(&brief(50)).await;
    server.finished(run["id"].as_str().unwrap()).await;
    assert_eq!(model.exchanges("brief")[0].request["max_tokens"], 50);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn agents_are_their_owners_alone(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let model = ModelMock::start().await;
    let site = Site::new(kind).await.with_model(&model).env("CAPSTAN_LIMITS__MAX_AGENTS_PER_OWNER", "2");
    let (ann, bob) = (site.key_of("ann").await, site.key_of("bob").await);
    let (ok, output) = site.command(&["keys", "create", "--user", "root", "--role", "admin"]).await;
    assert!(ok, "{output}");
    let root = output.lines().last().unwrap().trim().to_owned();
    let mut server = site.start().await;
    server.set_key(&ann);
    let own = make(&server, &json!({"name": "poet", "profile": {"system_prompt": "Rhyme."}})).await;
    let path = format!("/agents/{}", own["id"].as_str().unwrap());
    for (profile, field) in [
        (json!({"max_rounds": 21}), "/profile/max_rounds"),
        (json!({"max_rounds": "many"}), "/profile/max_rounds"),
        (json!({"approval": {"tools": {"x": "auto"}}}), "/profile/approval/tools/x"),
        (json!({"name": "other"}), "/profile/name"),
        (json!({"surprise": 1}), "/profile"),
    ] {
        let problem = asked(&server, Method::POST, "/agents", &json!({"name": "more", "profile": profile}), 400).await;
        assert!(problem["errors"][0]["pointer"].as_str().unwrap().starts_with(field), "{problem}");
    }
    for name in ["", "a b", "poet@2", ".x", "ä"] {
        asked(&server, Method::POST, "/agents", &json!({ "name": name }), 400).await;
    }
    asked(&server, Method::POST, "/agents", &json!({"name": "all", "scope": "global"}), 403).await;
    make(&server, &json!({"name": "second"})).await;
    let problem = asked(&server, Method::POST, "/agents", &json!({"name": "third"}), 409).await;
    assert!(problem["detail"].as_str().unwrap().contains("2 agents"), "{problem}");
    let stale = server.request(Method::PATCH, &path).header("if-match", "\"7\"").json(&json!({"description": "x"})).send().await;
    assert_eq!(stale.unwrap().status(), StatusCode::PRECONDITION_FAILED);

    server.set_key(&bob);
    for (method, path) in [
        (Method::GET, path.clone()),
        (Method::GET, "/agents/poet".to_owned()),
        (Method::GET, format!("{path}/versions")),
        (Method::GET, format!("{path}/versions/1")),
        (Method::DELETE, path.clone()),
    ] {
        asked(&server, method, &path, &json!({}), 404).await;
    }
    asked(&server, Method::PATCH, &path, &json!({"description": "bob's"}), 404).await;
    asked(&server, Method::POST, &format!("{path}/rollback"), &json!({"version": 1}), 404).await;
    let (status, _) = server.post_json("/runs", &json!({"input": "x", "agent": "poet"})).await;
    assert_eq!(status, 400);

    // An administrator's may have more, and is everybody's to use and nobody's to change.
    server.set_key(&root);
    make(&server, &json!({"name": "poet", "scope": "global", "profile": {"system_prompt": "Declaim.", "max_rounds": 30}})).await;
    server.set_key(&bob);
    let (run, prompt) = told(&server, &model, "poet", "bob").await;
    assert!(prompt.contains("Declaim.") && run["agent_version"] == 1, "{run}");
    asked(&server, Method::PATCH, "/agents/poet", &json!({"description": "bob's"}), 403).await;
    server.set_key(&ann);
    assert!(told(&server, &model, "poet", "ann").await.1.contains("Rhyme."), "her own comes first");
}
