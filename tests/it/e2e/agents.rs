//! Agents: creating, changing, pinning and rolling back through the API, and their effect on runs.

use reqwest::{Method, StatusCode};
use rstest::rstest;
use serde_json::{Value, json};

use support::database::Kind;
use support::model::ModelMock;
use support::server::{Server, Site};

/// Returns the answer to a request that changes something. Panics unless the answer has this status.
async fn asked(server: &Server, method: Method, path: &str, body: &Value, status: u16) -> Value {
    let answer = server.request(method, path).json(body).send().await.unwrap();
    let (found, text) = (answer.status(), answer.text().await.unwrap());
    assert_eq!(found, status, "{text}");
    if text.is_empty() { Value::Null } else { serde_json::from_str(&text).unwrap() }
}

async fn make(server: &Server, body: &Value) -> Value {
    asked(server, Method::POST, "/agents", body, 201).await
}

/// Starts a run of the agent and returns the system prompt that the model got.
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
    let (model, _site, server) = Site::serve(async |model| Site::new(kind).await.with_model(model)).await;
    let agent = make(&server, &json!({"name": "poet", "profile": {"system_prompt": "Rhyme."}, "note": "first"})).await;
    assert_eq!((&agent["version"], &agent["scope"], &agent["effective"]["max_rounds"]), (&json!(1), &json!("own"), &json!(20)));
    let (run, prompt) = told(&server, &model, "poet", "one").await;
    assert_eq!((run["agent"].as_str(), run["agent_version"].as_u64()), (Some("poet"), Some(1)));
    assert!(prompt.contains("Rhyme."), "{prompt}");

    // A run that waits for its model keeps the version it was accepted with.
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
    assert_eq!(again["version"], 3, "a repeated request creates no version");
    let versions = server.get_json("/agents/poet/versions").await;
    let notes: Vec<&str> = versions["data"].as_array().unwrap().iter().map(|version| version["note"].as_str().unwrap()).collect();
    assert_eq!(notes, ["same as version 1", "second", "first"]);
    assert_eq!(server.get_json("/agents/poet/versions/2").await["profile"]["system_prompt"], "Hum.");

    let answer = server.request(Method::DELETE, &path).send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::NO_CONTENT);
    let (status, problem) = server.post_json("/runs", &json!({"input": "x", "agent": "poet"})).await;
    assert!(status == 400 && problem["errors"][0]["pointer"] == "/agent", "{problem}");
}

#[tokio::test(flavor = "multi_thread")]
async fn built_in_agents_are_readable_and_read_only() {
    let (model, _site, server) = Site::serve(async |model| Site::new(Kind::Sqlite).await.with_model(model)).await;
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
    // An agent that is copied from `cms` fails when a tool fails.
    let mut profile = server.get_json("/agents/cms").await["profile"].clone();
    profile["tool_error"] = json!("fail_run");
    // `cms` itself offers no built-in tool.
    profile["builtin_tools"] = json!(["calculate"]);
    make(&server, &json!({"name": "strict", "profile": profile})).await;
    let run = server.start_run(&json!({"input": r#"[[id:cms]][[call:calculate {"expression":"1/"}]]"#, "agent": "strict"})).await;
    let run = server.finished(run["id"].as_str().unwrap()).await;
    assert_eq!((run["status"].as_str(), run["error"]["code"].as_str()), (Some("failed"), Some("tool_failed")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_lowers_limits_and_never_raises_them() {
    let (model, _site, server) = Site::serve(async |model| Site::new(Kind::Sqlite).await.with_model(model)).await;
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

    // An agent of an administrator may have higher limits. Every user may use it, and members may not change it.
    server.set_key(&root);
    make(&server, &json!({"name": "poet", "scope": "global", "profile": {"system_prompt": "Declaim.", "max_rounds": 30}})).await;
    server.set_key(&bob);
    let (run, prompt) = told(&server, &model, "poet", "bob").await;
    assert!(prompt.contains("Declaim.") && run["agent_version"] == 1, "{run}");
    asked(&server, Method::PATCH, "/agents/poet", &json!({"description": "bob's"}), 403).await;
    server.set_key(&ann);
    assert!(told(&server, &model, "poet", "ann").await.1.contains("Rhyme."), "the owner's own agent takes precedence");
}

async fn listed(server: &Server) -> Vec<String> {
    let list = server.get_json("/agents").await;
    list["data"].as_array().unwrap().iter().map(|agent| agent["name"].as_str().unwrap().to_owned()).collect()
}

/// Returns the code of the error that a run of this agent is refused with.
async fn turned_away(server: &Server, agent: Option<&str>) -> String {
    let mut body = json!({"input": "hello"});
    if let Some(agent) = agent {
        body["agent"] = json!(agent);
    }
    let (status, problem) = server.post_json("/runs", &body).await;
    assert_eq!((status.as_u16(), problem["code"].as_str()), (403, Some("forbidden")), "{problem}");
    problem["detail"].as_str().unwrap().to_owned()
}

async fn set_groups(site: &Site, user: &str, groups: &[&str]) {
    let arguments: Vec<&str> = ["users", "set-groups", user].into_iter().chain(groups.iter().copied()).collect();
    let (ok, output) = site.command(&arguments).await;
    assert!(ok, "{output}");
}

async fn administrator(site: &Site) -> String {
    let (ok, output) = site.command(&["keys", "create", "--user", "root", "--role", "admin"]).await;
    assert!(ok, "{output}");
    output.lines().last().unwrap().trim().to_owned()
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_of_groups_is_for_their_members(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let model = ModelMock::start().await;
    let site = Site::new(kind).await.with_model(&model);
    let (ann, root) = (site.key_of("ann").await, administrator(&site).await);
    let mut server = site.start().await;
    server.set_key(&root);
    make(&server, &json!({"name": "poet", "scope": "global", "profile": {"system_prompt": "Rhyme."}})).await;
    let secret = json!({"profile": {"system_prompt": "Declaim.", "groups": ["staff", "editors"]}});
    asked(&server, Method::PATCH, "/agents/poet", &secret, 200).await;
    for groups in [json!(["Staff"]), json!([""]), json!("staff"), json!((0..33).map(|n| format!("g{n}")).collect::<Vec<_>>())] {
        let body = json!({"name": "more", "profile": {"groups": groups}});
        let problem = asked(&server, Method::POST, "/agents", &body, 400).await;
        assert!(problem["errors"][0]["pointer"].as_str().unwrap().starts_with("/profile/groups"), "{problem}");
    }
    assert!(told(&server, &model, "poet", "root").await.1.contains("Declaim."), "an administrator belongs to no group");

    server.set_key(&ann);
    let outside = async |server: &Server| {
        for agent in ["poet", "poet@1", "poet@2"] {
            let detail = turned_away(server, Some(agent)).await;
            assert!(detail.contains("poet") && !detail.contains("staff") && !detail.contains("editors"), "{detail}");
        }
        for path in ["/agents/poet", "/agents/poet/versions", "/agents/poet/versions/1", "/agents/poet/versions/2"] {
            let problem = asked(server, Method::GET, path, &json!({}), 403).await;
            assert!(!problem.to_string().contains("Declaim."), "{problem}");
        }
        assert!(!listed(server).await.contains(&"poet".to_owned()));
    };
    outside(&server).await;
    set_groups(&site, "ann", &["others"]).await;
    outside(&server).await;

    set_groups(&site, "ann", &["others", "staff"]).await;
    let (run, prompt) = told(&server, &model, "poet", "ann").await;
    assert!(prompt.contains("Declaim.") && run["agent_version"] == 2, "{run}");
    assert!(told(&server, &model, "poet@1", "earlier").await.1.contains("Rhyme."));
    assert!(listed(&server).await.contains(&"poet".to_owned()));
    assert_eq!(server.get_json("/agents/poet").await["effective"]["system_prompt"], "Declaim.");
    assert_eq!(server.get_json("/agents/poet/versions/1").await["profile"]["system_prompt"], "Rhyme.");

    // A version that is not current may be limited to fewer groups.
    server.set_key(&root);
    let narrower = json!({"profile": {"system_prompt": "Whisper.", "groups": ["editors"]}, "pinned_version": 2});
    asked(&server, Method::PATCH, "/agents/poet", &narrower, 200).await;
    server.set_key(&ann);
    assert!(told(&server, &model, "poet", "still").await.1.contains("Declaim."));
    turned_away(&server, Some("poet@3")).await;
    asked(&server, Method::GET, "/agents/poet/versions/3", &json!({}), 403).await;
    let versions = server.get_json("/agents/poet/versions").await;
    let numbers: Vec<_> = versions["data"].as_array().unwrap().iter().map(|version| version["version"].clone()).collect();
    assert_eq!(numbers, [json!(2), json!(1)]);

    // A group change does not affect a run under way. It applies to the next run at once.
    let held =
        server.start_run(&json!({"input": "[[id:held]][[call:calculate {\"expression\":\"1\"}]][[hold]]", "agent": "poet"})).await;
    model.wait_for("the run", "held", |seen| !seen.is_empty()).await;
    set_groups(&site, "ann", &[]).await;
    outside(&server).await;
    // A message that names another agent cannot join the run either.
    let path = format!("/conversations/{}/messages", held["conversation_id"].as_str().unwrap());
    asked(&server, Method::POST, &path, &json!({"content": "more", "on_busy": "steer"}), 403).await;
    model.release("held");
    assert_eq!(server.finished(held["id"].as_str().unwrap()).await["status"], "completed");
}

/// A resumed run keeps its agent, so its owner needs the group. Undoing a tool call needs no group: the caller's own effect is
/// reverted.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn member_without_the_group_cannot_resume_runs_of_the_agent(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let model = ModelMock::start().await;
    let site = Site::new(kind).await.with_model(&model);
    let mut ledger = site.ledger.mcp_server();
    ledger["capstan"]["undo"] = json!({"append": {"tool": "append_keyed", "arguments": {"text": "$arguments.text"}}});
    let site = site.mcp(json!({"mcpServers": {"ledger": ledger}}));
    let (ann, root) = (site.key_of("ann").await, administrator(&site).await);
    let mut server = site.start().await;
    server.set_key(&root);
    make(&server, &json!({"name": "poet", "scope": "global", "profile": {"groups": ["staff"]}})).await;
    let (run, _) = told(&server, &model, "poet", "root").await;
    let again = asked(&server, Method::POST, &format!("/runs/{}/retry", run["id"].as_str().unwrap()), &json!({}), 202).await;
    assert_eq!(server.finished(again["id"].as_str().unwrap()).await["status"], "completed", "an administrator belongs to no group");

    set_groups(&site, "ann", &["staff"]).await;
    server.set_key(&ann);
    let script = r#"[[id:ann]][[call:ledger__append {"text":"x"}]][[call:ledger__append {"txt":"x"}]][[next]][[say:bye]]"#;
    let run = server.start_run(&json!({"input": script, "agent": "poet"})).await;
    let run = server.finished(run["id"].as_str().unwrap()).await;
    let (path, conversation) = (format!("/runs/{}", run["id"].as_str().unwrap()), run["conversation_id"].as_str().unwrap());
    let before = server.messages(conversation).await;
    let results =
        before.iter().filter(|message| message["role"] == "tool").flat_map(|message| message["parts"].as_array().unwrap());
    let calls: Vec<&str> = results.map(|part| part["call_id"].as_str().unwrap()).collect();
    let [done, failed] = calls.as_slice() else { panic!("two calls: {before:#?}") };

    set_groups(&site, "ann", &["others"]).await;
    for (how, body) in [
        ("resume".to_owned(), json!({})),
        ("retry".to_owned(), json!({})),
        (format!("tool-calls/{failed}/retry"), json!({"arguments": {"text": "y"}})),
    ] {
        let problem = asked(&server, Method::POST, &format!("{path}/{how}"), &body, 403).await;
        assert_eq!(problem["code"], "forbidden", "{problem}");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains("poet") && !detail.contains("staff"), "{detail}");
    }
    assert_eq!(server.messages(conversation).await, before);
    let undoing = asked(&server, Method::POST, &format!("{path}/tool-calls/{done}/undo"), &json!({}), 202).await;
    assert_eq!(server.finished(undoing["id"].as_str().unwrap()).await["status"], "completed");
    assert_eq!((site.ledger.count("append_keyed", "x"), site.ledger.count("append", "y")), (1, 0));

    set_groups(&site, "ann", &["staff"]).await;
    let again = asked(&server, Method::POST, &format!("{path}/retry"), &json!({}), 202).await;
    assert_eq!(server.finished(again["id"].as_str().unwrap()).await["status"], "completed");
    assert_eq!(site.ledger.count("append", "x"), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_agent_of_a_member_leaves_the_groups_of_the_servers_own() {
    let model = ModelMock::start().await;
    let site = Site::new(Kind::Sqlite).await.with_model(&model).env("CAPSTAN_AGENT__GROUPS", "['staff']");
    let (ann, root) = (site.key_of("ann").await, administrator(&site).await);
    let mut server = site.start().await;
    server.set_key(&ann);
    for groups in [json!([]), json!(["others"]), json!(["staff", "others"])] {
        let body = json!({"name": "mine", "profile": {"groups": groups}});
        let problem = asked(&server, Method::POST, "/agents", &body, 400).await;
        assert_eq!(problem["errors"][0]["pointer"], "/profile/groups", "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains("only an administrator can"), "{problem}");
    }
    // Members can read the profile that they wrote, but not the effective profile.
    let mine = make(&server, &json!({"name": "mine", "profile": {"system_prompt": "Rhyme."}})).await;
    assert!(mine.get("effective").is_none() && mine["error"].as_str().unwrap().contains("ask an administrator"), "{mine}");
    assert_eq!(listed(&server).await, ["mine"]);
    assert_eq!(server.get_json("/agents/mine/versions/1").await["profile"]["system_prompt"], "Rhyme.");
    for agent in [None, Some("default"), Some("chat"), Some("mine")] {
        let detail = turned_away(&server, agent).await;
        assert!(detail.contains(agent.unwrap_or("default")), "{detail}");
    }
    for agent in ["default", "chat"] {
        asked(&server, Method::GET, &format!("/agents/{agent}"), &json!({}), 403).await;
    }

    set_groups(&site, "ann", &["staff"]).await;
    assert!(told(&server, &model, "mine", "mine").await.1.contains("Rhyme."));
    for agent in ["default", "chat"] {
        told(&server, &model, agent, agent).await;
    }
    assert_eq!(server.get_json("/agents/mine").await["effective"]["groups"], json!(["staff"]));
    assert_eq!(server.get_json("/agents/chat").await["effective"]["groups"], json!(["staff"]));

    // An administrator may open an agent to every user and needs no group for any agent.
    server.set_key(&root);
    told(&server, &model, "default", "root").await;
    make(&server, &json!({"name": "open", "scope": "global", "profile": {"groups": []}})).await;
    set_groups(&site, "ann", &[]).await;
    server.set_key(&ann);
    told(&server, &model, "open", "open").await;
    turned_away(&server, None).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn agent_extends_another_and_names_what_differs(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, _site, server) = Site::serve(async |model| Site::new(kind).await.with_model(model)).await;
    let base = json!({"name": "base", "profile": {"system_prompt": "Rhyme.", "max_rounds": 9, "llm_retry": {"delays_ms": [1]}}});
    let base = make(&server, &base).await;
    let made = make(&server, &json!({"name": "short", "profile": {"extends": "base", "max_rounds": 3}})).await;
    assert_eq!(made["profile"], json!({"extends": "base", "max_rounds": 3}), "only what differs is stored");
    let effective = &made["effective"];
    assert_eq!(
        (&effective["name"], &effective["system_prompt"], &effective["max_rounds"], &effective["llm_retry"]["delays_ms"]),
        (&json!("short"), &json!("Rhyme."), &json!(3), &json!([1]))
    );
    let (run, prompt) = told(&server, &model, "short", "one").await;
    assert!(run["agent"] == "short" && prompt.contains("Rhyme."), "{prompt}");

    // The agent beneath changes, except for who names a version.
    make(&server, &json!({"name": "fixed", "profile": {"extends": "base@1"}})).await;
    let path = format!("/agents/{}", base["id"].as_str().unwrap());
    asked(&server, Method::PATCH, &path, &json!({"profile": {"system_prompt": "Hum."}}), 200).await;
    assert!(told(&server, &model, "short", "two").await.1.contains("Hum."));
    assert!(told(&server, &model, "fixed", "three").await.1.contains("Rhyme."));

    // A preset, with one value of its own.
    let preset = server.get_json("/agents/cms").await;
    let mine = make(&server, &json!({"name": "mine", "profile": {"extends": "cms", "max_rounds": 2}})).await;
    let mut expected = preset["effective"].clone();
    (expected["name"], expected["max_rounds"]) = (json!("mine"), json!(2));
    assert_eq!(mine["effective"], expected);

    for (extends, words) in [(json!("nobody"), "nobody"), (json!("base@9"), "version 9"), (json!(7), "name of an agent")] {
        let body = json!({"name": "wrong", "profile": {"extends": extends}});
        let problem = asked(&server, Method::POST, "/agents", &body, 400).await;
        assert_eq!(problem["errors"][0]["pointer"], "/profile/extends", "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains(words), "{problem}");
    }
    // An agent that leads back to itself is refused.
    asked(&server, Method::PATCH, &path, &json!({"profile": {"extends": "short"}}), 400).await;
    let gone = server.request(Method::DELETE, &path).send().await.unwrap();
    assert_eq!(gone.status(), 204);
    let shown = server.get_json("/agents/short").await;
    assert!(shown["error"].as_str().unwrap().contains("base"), "{shown}");
    let (status, refused) = server.post_json("/runs", &json!({"input": "hi", "agent": "short"})).await;
    assert!(status == 409 && refused["detail"].as_str().unwrap().contains("extends"), "{refused}");
}

/// An agent for some groups stays closed through one that extends it.
#[tokio::test(flavor = "multi_thread")]
async fn extended_agent_of_other_groups_is_not_used() {
    let model = ModelMock::start().await;
    let site = Site::new(Kind::Sqlite).await.with_model(&model);
    let (ok, printed) = site.command(&["keys", "create", "--user", "root", "--role", "admin"]).await;
    assert!(ok, "{printed}");
    let admin = printed.lines().last().unwrap().to_owned();
    let bob = site.key_of("bob").await;
    let mut server = site.start().await;
    server.set_key(&admin);
    let closed = json!({"name": "closed", "scope": "global", "profile": {"groups": ["staff"], "system_prompt": "Secret."}});
    make(&server, &closed).await;
    make(&server, &json!({"name": "open", "scope": "global", "profile": {"extends": "closed", "groups": []}})).await;
    server.set_key(&bob);
    let (status, refused) = server.post_json("/runs", &json!({"input": "hi", "agent": "open"})).await;
    assert!(!status.is_success(), "{refused}");
    let shown = server.get_json("/agents/open").await;
    assert!(shown["effective"].is_null() && !shown.to_string().contains("Secret."), "{shown}");
    let problem = asked(&server, Method::POST, "/agents", &json!({"name": "mine", "profile": {"extends": "closed"}}), 400).await;
    assert_eq!(problem["errors"][0]["pointer"], "/profile/extends", "{problem}");
}
