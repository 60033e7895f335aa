//! User MCP servers, from the API request to the process. Their secrets appear nowhere else.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use rstest::rstest;
use serde_json::{Value, json};

use super::approvals::waits;
use super::mcp_servers::{everything_over_http, installed};
use support::audit;
use support::database::Kind;
use support::model::ModelMock;
use support::server::{Server, Site};
use support::wait;

const CANARY: &str = "tok-canary-0123456789-wxyz";
const MASTER: &str = "a master key of some length";

/// Returns the ledger as an entry of a member, who may not mark it as trusted.
fn ledger(site: &Site) -> Value {
    let mut entry = site.ledger.mcp_server();
    entry["env"]["API_TOKEN"] = json!(CANARY);
    entry["capstan"].as_object_mut().unwrap().remove("trusted");
    entry
}

async fn make(server: &Server, body: &Value) -> Value {
    let (status, made) = server.post_json("/mcp-servers", body).await;
    assert_eq!(status, 201, "{made}");
    made
}

async fn change(server: &Server, id: &str, body: &Value) -> Value {
    let answer = server.request(Method::PATCH, &format!("/mcp-servers/{id}")).json(body).send().await.unwrap();
    let (status, text) = (answer.status(), answer.text().await.unwrap());
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).unwrap()
}

/// Waits until the server was probed and returns it again. A create or change request itself waits for at most five seconds.
async fn tried(server: &Server, shown: &Value) -> Value {
    if shown["status"]["state"] != "starting" {
        return shown.clone();
    }
    let path = format!("/mcp-servers/{}", shown["id"].as_str().unwrap());
    wait::until("the server to be tried", Duration::from_secs(60), || async {
        let shown = server.get_json(&path).await;
        (shown["status"]["state"] != "starting").then_some(shown)
    })
    .await
}

async fn append(server: &Server, tool: &str) -> Value {
    let script = format!(r#"[[id:kept]][[call:{tool} {{"text":"x"}}]][[next]][[text:1,0]]"#);
    let run = server.start_run(&json!({"input": script})).await;
    server.finished(run["id"].as_str().unwrap()).await
}

async fn offered(server: &Server) -> String {
    server.get_json("/tools").await["data"].to_string()
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn are_their_owners_alone(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let model = ModelMock::start().await;
    let site = Site::new(kind).await.with_model(&model).env("CAPSTAN_SECRET_KEY", MASTER);
    let site = site.env("CAPSTAN_MCP__ALLOW_USER_COMMANDS", "true");
    let (ann, bob) = (site.key_of("ann").await, site.key_of("bob").await);
    let mut server = site.start().await;
    server.set_key(&ann);
    let made = make(&server, &json!({"name": "ledger", "entry": ledger(&site)})).await;
    let shown = tried(&server, &made).await;
    assert_eq!((&shown["status"]["state"], &made["scope"]), (&json!("ok"), &json!("own")), "{shown}");
    assert_eq!(made["entry"]["env"]["API_TOKEN"], "${API_TOKEN}");
    let id = made["id"].as_str().unwrap().to_owned();
    assert_eq!(append(&server, "ledger__append").await["status"], "completed");
    assert_eq!(site.ledger.count("append", "x"), 1);

    server.set_key(&bob);
    assert_eq!(server.get_json("/mcp-servers").await["data"], json!([]));
    for (method, path) in [
        (Method::GET, String::new()),
        (Method::PATCH, String::new()),
        (Method::DELETE, String::new()),
        (Method::GET, "/tools".to_owned()),
        (Method::POST, "/start".to_owned()),
        (Method::POST, "/stop".to_owned()),
        (Method::POST, "/restart".to_owned()),
    ] {
        let asked = server.request(method.clone(), &format!("/mcp-servers/{id}{path}")).json(&json!({})).send().await.unwrap();
        assert_eq!(asked.status(), 404, "{method} {path}");
    }
    assert!(!offered(&server).await.contains("ledger"));
    append(&server, "ledger__append").await;
    assert_eq!(site.ledger.count("append", "x"), 1, "his model was not offered the tool and did not call it");
    let (status, _) = server.post_json("/mcp-servers", &json!({"name": "l", "entry": ledger(&site), "scope": "global"})).await;
    assert_eq!(status, 403);

    // The server survives a restart, and its secrets are stored nowhere else.
    server.kill9().await;
    let mut server = site.start().await;
    server.set_key(&ann);
    let shown = server.get_json(&format!("/mcp-servers/{id}")).await;
    assert_eq!(shown["status"]["state"], "unknown");
    append(&server, "ledger__append").await;
    assert_eq!(site.ledger.count("append", "x"), 2);
    let rows = site.database.rows("SELECT id, name, entry, key_data FROM mcp_servers").await;
    let stored = format!("{rows:?}");
    assert!(stored.contains("API_TOKEN") && !stored.contains("canary"), "{stored}");
    let answers = [server.get_json("/mcp-servers").await, server.get_json("/mcp-servers/export").await, made];
    assert!(!answers.iter().any(|answer| answer.to_string().contains("canary")), "{answers:?}");

    // Disabling a server ends its process.
    let off = change(&server, &id, &json!({"enabled": false})).await;
    assert_eq!((&off["status"]["state"], &off["version"]), (&json!("unknown"), &json!(2)));
    site.ledger.no_server_left().await;
    assert!(!offered(&server).await.contains("ledger"));
    let (status, _) = server.post_json(&format!("/mcp-servers/{id}/start"), &json!({})).await;
    assert_eq!(status, 409);
    // The placeholder of a secret stays valid in the next change.
    let on = change(&server, &id, &json!({"enabled": true, "entry": off["entry"], "name": "book"})).await;
    let shown = tried(&server, &on).await;
    assert_eq!(shown["status"]["state"], "ok", "{shown}");
    append(&server, "book__append").await;
    assert_eq!(site.ledger.count("append", "x"), 3);
    let stale = server.request(Method::DELETE, &format!("/mcp-servers/{id}")).header("if-match", "\"1\"").send().await.unwrap();
    assert_eq!(stale.status(), 412);
    let gone = server.request(Method::DELETE, &format!("/mcp-servers/{id}")).send().await.unwrap();
    assert_eq!(gone.status(), 204);
    site.ledger.no_server_left().await;
    assert!(!server.log_text().contains("canary"));
    audit::assert_sound(&site.database).await;
}

/// M-14. A rule in an agent applies to the operator's server of that name, not to a member's server with the same name.
#[tokio::test(flavor = "multi_thread")]
async fn operator_rule_does_not_relax_user_servers() {
    let model = ModelMock::start().await;
    let site = Site::new(Kind::Sqlite).await.with_model(&model).env("CAPSTAN_SECRET_KEY", MASTER);
    let site =
        site.env("CAPSTAN_MCP__ALLOW_USER_COMMANDS", "true").env("CAPSTAN_AGENT__APPROVAL__TOOLS", r#"{book__destroy = "auto"}"#);
    let (ok, admin) = site.command(&["keys", "create", "--user", "root", "--role", "admin"]).await;
    assert!(ok);
    let (admin, ann) = (admin.lines().last().unwrap().trim().to_owned(), site.key_of("ann").await);
    let mut server = site.start().await;

    server.set_key(&admin);
    let of_all = make(&server, &json!({"name": "book", "entry": ledger(&site), "scope": "global"})).await;
    server.set_key(&ann);
    assert_eq!(append(&server, "book__destroy").await["status"], "completed");
    assert_eq!(site.ledger.count("destroy", "x"), 1, "the operator's rule applies to the operator's server only");

    server.set_key(&admin);
    change(&server, of_all["id"].as_str().unwrap(), &json!({"enabled": false})).await;
    server.set_key(&ann);
    make(&server, &json!({"name": "book", "entry": ledger(&site)})).await;
    let run = server.start_run(&json!({"input": r#"[[id:taken]][[call:book__destroy {"text":"x"}]][[next]][[text:1,0]]"#})).await;
    waits(&server, run["id"].as_str().unwrap()).await;
    assert_eq!(site.ledger.count("destroy", "x"), 1, "no approval was given");
}

#[tokio::test(flavor = "multi_thread")]
async fn global_server_of_an_administrator_serves_all_users() {
    installed().await;
    let (_everything, address) = everything_over_http().await;
    let model = ModelMock::start().await;
    let site = Site::new(Kind::Sqlite).await.with_model(&model).env("CAPSTAN_SECRET_KEY", MASTER);
    let (ok, admin) = site.command(&["keys", "create", "--user", "root", "--role", "admin"]).await;
    assert!(ok);
    let (admin, ann) = (admin.lines().last().unwrap().trim().to_owned(), site.key_of("ann").await);
    let mut server = site.start().await;

    // Fields that a member may not set.
    server.set_key(&ann);
    for (entry, words) in [
        (json!({"command": "sh"}), "mcp.allow_user_commands"),
        (json!({"url": address}), "https"),
        (json!({"url": "https://127.0.0.1/mcp"}), "not public"),
        (json!({"url": "https://example.com/mcp", "capstan": {"trusted": true}}), "administrator"),
    ] {
        let (status, refused) = server.post_json("/mcp-servers", &json!({"name": "mine", "entry": entry})).await;
        assert!(status == 400 && refused.to_string().contains(words), "{refused}");
    }

    server.set_key(&admin);
    let headers = json!({"Authorization": format!("Bearer {CANARY}")});
    let body = json!({"name": "remote", "entry": {"url": address, "headers": headers}, "scope": "global"});
    let made = make(&server, &body).await;
    let shown = tried(&server, &made).await;
    assert_eq!((&shown["status"]["state"], &made["scope"]), (&json!("ok"), &json!("global")), "{shown}");
    let id = made["id"].as_str().unwrap().to_owned();
    let (status, _) = server.post_json("/mcp-servers", &body).await;
    assert_eq!(status, 409);
    // A server that cannot be reached is stored and reports its error.
    let broken = make(&server, &json!({"name": "broken", "entry": {"command": "/no/such/program"}, "scope": "global"})).await;
    let broken = tried(&server, &broken).await;
    let state = &broken["status"];
    assert!(state["state"] == "error" && state["error"].as_str().unwrap().contains("/no/such/program"), "{broken}");
    // The URL may be a secret: the entry shows it, and error texts do not.
    let far = json!({"name": "far", "entry": {"url": "http://127.0.0.1:9/s/hidden-path/mcp"}, "scope": "global"});
    let far = tried(&server, &make(&server, &far).await).await;
    let error = far["status"]["error"].as_str().unwrap();
    assert!(!error.is_empty() && !error.contains("hidden-path"), "{error}");
    // The secrets were entered for the old host.
    let elsewhere = json!({"entry": {"url": "http://127.0.0.1:9/mcp", "headers": {"Authorization": "${AUTHORIZATION}"}}});
    let moved = server.request(Method::PATCH, &format!("/mcp-servers/{id}")).json(&elsewhere).send().await.unwrap();
    assert_eq!(moved.status(), 400);

    server.set_key(&ann);
    let shown = server.get_json(&format!("/mcp-servers/{id}")).await;
    assert_eq!((&shown["entry"], &shown["scope"]), (&Value::Null, &json!("global")), "{shown}");
    // The operator sees the internal cause. Others see only that the server failed.
    let path = format!("/mcp-servers/{}", broken["id"].as_str().unwrap());
    let refused = server.get(&format!("{path}/tools")).send().await.unwrap();
    assert_eq!(refused.status(), 409);
    let words = refused.text().await.unwrap();
    assert!(words.contains("administrator") && !words.contains("/no/such/program"), "{words}");
    let shown = server.get_json(&path).await;
    let state = &shown["status"];
    assert_eq!((&state["state"], state.get("error")), (&json!("error"), None), "{state}");
    let tools = server.get_json(&format!("/mcp-servers/{id}/tools")).await;
    let names: Vec<&str> = tools["data"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"remote__echo"), "{names:?}");
    assert!(tools["data"].as_array().unwrap().iter().all(|tool| tool["approval"] == "auto"), "{tools}");
    let script = r#"[[id:all]][[call:remote__echo {"message":"hello"}]][[next]][[text:1,0]]"#;
    let frames = server.stream_run(&json!({"input": script})).await.all().await;
    let done = frames.iter().find(|frame| frame.kind() == "tool.completed").unwrap().json();
    assert!(done["data"]["content"].to_string().contains("hello"), "{done}");
    for path in ["stop", "start", "restart"] {
        let (status, _) = server.post_json(&format!("/mcp-servers/{id}/{path}"), &json!({})).await;
        assert_eq!(status, 403, "{path}");
    }
    assert_eq!(server.get("/mcp-servers/export?scope=global").send().await.unwrap().status(), 403);

    server.set_key(&admin);
    let (status, stopped) = server.post_json(&format!("/mcp-servers/{id}/stop"), &json!({})).await;
    assert_eq!((status, &stopped["status"]["state"]), (StatusCode::OK, &json!("unknown")), "{stopped}");
    let (_, restarted) = server.post_json(&format!("/mcp-servers/{id}/restart"), &json!({})).await;
    let shown = tried(&server, &restarted).await;
    assert_eq!(shown["status"]["state"], "ok", "{shown}");
    assert!(!server.log_text().contains("canary"));
}

#[tokio::test(flavor = "multi_thread")]
async fn come_in_and_go_out_as_documents() {
    let folder = installed().await;
    let site = Site::new(Kind::Sqlite).await.mcp(json!({"mcpServers": {"file": {"command": "/no/such/program"}}}));
    let server = site.start().await;
    let time = folder.join("venv/bin/python").display().to_string();
    let document = json!({
        "mcpServers": {
            "time": {"command": time, "args": ["-m", "mcp_server_time", "--local-timezone", "${ZONE:-UTC}", "--token", CANARY],
                "env": {"TOKEN": CANARY}, "autoApprove": [CANARY]},
            "tickets": {"type": "http", "url": "https://tickets.example.org/mcp?api_key=canary", "disabled": true,
                "headers": {"Authorization": "Bearer ${TICKETS}"}, "capstan": {"per_owner": true}},
            "lost": {"command": "x", "env": {"A": "${NOWHERE}"}},
            "odd": "text",
        },
        "variables": {"TICKETS": CANARY},
    });
    let (status, report) = server.post_json("/mcp-servers/import", &document).await;
    assert_eq!(status, 200, "{report}");
    let of = |report: &Value, name: &str| {
        let found = report["data"].as_array().unwrap().iter().find(|entry| entry["name"] == name).cloned();
        found.unwrap_or_else(|| panic!("{name} is not in {report}"))
    };
    for (name, outcome, words) in
        [("time", "made", ""), ("tickets", "made", ""), ("lost", "refused", "NOWHERE"), ("odd", "refused", "object")]
    {
        let entry = of(&report, name);
        assert_eq!(entry["outcome"], outcome, "{entry}");
        assert!(entry["reason"].as_str().unwrap_or_default().contains(words), "{entry}");
    }
    // The import probed them: this server does not accept the argument.
    let time =
        server.get_json("/mcp-servers").await["data"].as_array().unwrap().iter().find(|kept| kept["name"] == "time").cloned();
    let time = time.unwrap();
    assert_ne!(time["status"]["state"], "unknown");
    assert_eq!(tried(&server, &time).await["status"]["state"], "error");
    let again = server.post_json("/mcp-servers/import", &document).await.1;
    assert!(of(&again, "time")["reason"].as_str().unwrap().contains("already"), "{again}");
    let mut replacing = document.clone();
    replacing["replace"] = json!(true);
    assert_eq!(of(&server.post_json("/mcp-servers/import", &replacing).await.1, "time")["outcome"], "replaced");

    let list = server.get_json("/mcp-servers?limit=2").await;
    assert_eq!(list["data"][0]["scope"], "config", "{list}");
    let rest = server.get_json(&format!("/mcp-servers?cursor={}", list["next_cursor"].as_str().unwrap())).await;
    let names = |list: &Value| -> Vec<String> {
        list["data"].as_array().unwrap().iter().map(|server| server["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!([names(&list), names(&rest)].concat(), ["file", "tickets", "time"]);
    let file = list["data"][0]["id"].as_str().unwrap();
    assert_eq!(server.request(Method::DELETE, &format!("/mcp-servers/{file}")).send().await.unwrap().status(), 403);
    let tried = server.post_json(&format!("/mcp-servers/{file}/start"), &json!({})).await.1;
    assert_eq!(tried["status"]["state"], "error", "{tried}");

    let exported = server.get_json("/mcp-servers/export").await;
    assert!(!exported.to_string().contains("canary"), "{exported}");
    let tickets = &exported["mcpServers"]["tickets"];
    assert_eq!(tickets["headers"], json!({"Authorization": "${AUTHORIZATION}"}));
    assert_eq!(
        (&tickets["url"], &tickets["disabled"]),
        (&json!("https://tickets.example.org/mcp?api_key=${API_KEY}"), &json!(true))
    );
    assert_eq!(
        exported["mcpServers"]["time"]["args"],
        json!(["-m", "mcp_server_time", "--local-timezone", "${ZONE:-UTC}", "--token", "${TOKEN}"])
    );

    // An exported document can be imported again. The secrets keep their stored values, which no document holds.
    for server_id in [&of(&report, "time")["id"], &of(&report, "tickets")["id"]] {
        let path = format!("/mcp-servers/{}", server_id.as_str().unwrap());
        assert_eq!(server.request(Method::DELETE, &path).send().await.unwrap().status(), 204);
    }
    let mut back = exported.clone();
    let (_, refused) = server.post_json("/mcp-servers/import", &back).await;
    assert!(of(&refused, "time")["reason"].as_str().unwrap().contains("TOKEN"), "{refused}");
    back["variables"] = json!({"TOKEN": CANARY, "AUTHORIZATION": format!("Bearer {CANARY}"), "API_KEY": "canary"});
    let (_, report) = server.post_json("/mcp-servers/import", &back).await;
    assert_eq!(of(&report, "tickets")["outcome"], "made", "{report}");
    assert_eq!(server.get_json("/mcp-servers/export").await, exported);
    assert!(!server.log_text().contains("canary"));
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn come_in_once_for_each_key(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    // With the second server, the limit is reached.
    let site = Site::new(kind).await.env("CAPSTAN_SECRET_KEY", MASTER).env("CAPSTAN_LIMITS__MAX_MCP_SERVERS_PER_OWNER", "2");
    let server = site.start().await;
    let import = async |document: &Value, key: &str| {
        let answer = server.post("/mcp-servers/import", document).header("idempotency-key", key).send().await.unwrap();
        let (status, text) = (answer.status(), answer.text().await.unwrap());
        assert_eq!(status, 200, "{text}");
        serde_json::from_str::<Value>(&text).unwrap()["data"].clone()
    };
    let outcomes = |data: &Value| -> Vec<(String, String)> {
        let word = |entry: &Value, field: &str| entry[field].as_str().unwrap().to_owned();
        let mut outcomes: Vec<_> =
            data.as_array().unwrap().iter().map(|entry| (word(entry, "name"), word(entry, "outcome"))).collect();
        outcomes.sort();
        outcomes
    };
    let both = |known: &str, new: &str| [("known".to_owned(), known.to_owned()), ("new".to_owned(), new.to_owned())];
    let url = |host: &str| format!("https://{host}.example.org/mcp");
    let known = make(&server, &json!({"name": "known", "entry": {"url": url("old")}, "enabled": false})).await;
    let document = json!({
        "mcpServers": {
            "known": {"url": url("one")},
            "new": {"url": url("two"), "headers": {"Authorization": "Bearer ${TOKEN}"}},
        },
        "variables": {"TOKEN": CANARY},
        "replace": true,
    });
    let first = import(&document, "first").await;
    assert_eq!(outcomes(&first), both("replaced", "made"));
    let ids: Vec<String> =
        first.as_array().unwrap().iter().map(|entry| format!("/mcp-servers/{}", entry["id"].as_str().unwrap())).collect();
    assert!(ids.iter().any(|path| path.ends_with(known["id"].as_str().unwrap())), "{first}");
    for (path, host) in ids.iter().zip(["three", "four"]) {
        let id = path.rsplit('/').next().unwrap();
        change(&server, id, &json!({"enabled": false, "entry": {"url": url(host)}})).await;
    }

    // The repeated request returns its stored answer, and later changes stay.
    assert_eq!(import(&document, "first").await, first);
    for (path, host) in ids.iter().zip(["three", "four"]) {
        let shown = server.get_json(path).await;
        assert_eq!((&shown["entry"]["url"], &shown["enabled"]), (&json!(url(host)), &json!(false)), "{shown}");
    }
    let mut otherwise = document.clone();
    otherwise["mcpServers"]["known"] = json!({"url": url("five")});
    let mismatch = server.post("/mcp-servers/import", &otherwise).header("idempotency-key", "first").send().await.unwrap();
    assert_eq!(mismatch.status(), 422);

    // Another request replaces both. The next one names a stored secret, which would not be enough to create a server.
    assert_eq!(outcomes(&import(&document, "second").await), both("replaced", "replaced"));
    let mut named = document.clone();
    named.as_object_mut().unwrap().remove("variables");
    named["mcpServers"]["new"]["headers"]["Authorization"] = json!("${AUTHORIZATION}");
    let third = import(&named, "third").await;
    assert_eq!(outcomes(&third), both("replaced", "replaced"), "{third}");
    let shown = [server.get_json(&ids[0]).await, server.get_json(&ids[1]).await].map(|shown| shown["version"].clone());
    assert_eq!(import(&named, "third").await, third);
    assert_eq!([server.get_json(&ids[0]).await, server.get_json(&ids[1]).await].map(|shown| shown["version"].clone()), shown);

    // A replaced server that was deleted is created again. A created one gets its stored outcome, although it was deleted.
    for path in &ids {
        assert_eq!(server.request(Method::DELETE, path).send().await.unwrap().status(), 204);
    }
    let anew = import(&document, "first").await;
    assert_eq!(outcomes(&anew), both("made", "made"));
    assert!(!anew.to_string().contains(known["id"].as_str().unwrap()), "{anew}");
    assert_eq!(server.get_json("/mcp-servers").await["data"].as_array().unwrap().len(), 1);
}

/// A change in one process reaches the others within seconds.
#[tokio::test(flavor = "multi_thread")]
async fn end_in_every_process_on_postgres() {
    let site = Site::new(Kind::Postgres).await.env("CAPSTAN_SECRET_KEY", MASTER);
    let (one, other) = (site.start().await, site.start().await);
    let made = make(&one, &json!({"name": "ledger", "entry": ledger(&site), "enabled": false})).await;
    let id = made["id"].as_str().unwrap();
    assert_eq!(made["status"]["state"], "unknown");
    site.ledger.no_server_left().await;
    let on = change(&one, id, &json!({"enabled": true})).await;
    let shown = tried(&one, &on).await;
    assert_eq!(shown["status"]["state"], "ok", "{shown}");
    wait::until("the other process to offer it", Duration::from_secs(10), || async {
        offered(&other).await.contains("ledger__append").then_some(())
    })
    .await;
    let (_, stopped) = one.post_json(&format!("/mcp-servers/{id}/stop"), &json!({})).await;
    assert_eq!(stopped["version"], on["version"], "stopping changes no version");
    // The process of the other node ends, too.
    site.ledger.no_server_left().await;
    assert!(offered(&other).await.contains("ledger__append"));
    change(&one, id, &json!({"enabled": false})).await;
    site.ledger.no_server_left().await;
    wait::until("the other process to know", Duration::from_secs(10), || async {
        (!offered(&other).await.contains("ledger__append")).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn list_their_resources_and_prompts() {
    let folder = installed().await;
    let (_everything, address) = everything_over_http().await;
    let python = folder.join("venv/bin/python").display().to_string();
    let site = Site::new(Kind::Sqlite).await;
    let server = site.start().await;
    let remote = make(&server, &json!({"name": "remote", "entry": {"url": address}})).await;
    let list = async |id: &Value, what: &str| {
        let listed = server.get_json(&format!("/mcp-servers/{}/{what}", id.as_str().unwrap())).await;
        listed["data"].as_array().unwrap().clone()
    };
    let resources = list(&remote["id"], "resources").await;
    assert!(
        !resources.is_empty() && resources.iter().all(|one| one["uri"].is_string() && one["name"].is_string()),
        "{resources:?}"
    );
    let prompts = list(&remote["id"], "prompts").await;
    let arguments = |prompt: &Value| prompt["arguments"].as_array().unwrap().len();
    assert!(
        prompts.iter().any(|prompt| arguments(prompt) == 0) && prompts.iter().any(|prompt| arguments(prompt) > 0),
        "{prompts:?}"
    );
    // A server without prompts and resources, and a server that cannot be reached.
    let time = json!({"command": python, "args": ["-m", "mcp_server_time", "--local-timezone", "UTC"]});
    let time = make(&server, &json!({"name": "time", "entry": time})).await;
    let broken = make(&server, &json!({"name": "broken", "entry": {"command": "/no/such/program"}})).await;
    for what in ["resources", "prompts"] {
        assert!(list(&time["id"], what).await.is_empty());
        let refused = server.get(&format!("/mcp-servers/{}/{what}", broken["id"].as_str().unwrap())).send().await.unwrap();
        assert_eq!(refused.status(), 409);
    }
}
