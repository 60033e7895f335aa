//! Configuration mistakes: each is refused or reported, and none is silently ignored.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use rstest::rstest;
use serde_json::{Map, Value, json};

use support::database::Kind;
use support::model::ModelMock;
use support::server::{Server, Site};
use support::wait;

/// Returns the ledger's entry with more keys beside `command` and inside `capstan`.
fn entry(site: &Site, beside: Value, inside: Value) -> Value {
    let mut entry = site.ledger.mcp_server();
    entry["capstan"].as_object_mut().unwrap().remove("trusted");
    extend(&mut entry, beside);
    extend(&mut entry["capstan"], inside);
    entry
}

fn extend(object: &mut Value, more: Value) {
    let Value::Object(more) = more else { panic!("no object: {more}") };
    object.as_object_mut().unwrap().extend(more);
}

/// Writes the `mcpServers` file of servers and commands.
fn with_file(site: Site, document: &Value) -> Site {
    let file = site.folder.path().join("servers.json");
    std::fs::write(&file, document.to_string()).unwrap();
    site.env("CAPSTAN_MCP_CONFIG", file.to_str().unwrap())
}

fn log_line<'l>(log: &'l str, words: &[&str]) -> &'l str {
    let found = log.lines().find(|line| words.iter().all(|word| line.contains(word)));
    found.unwrap_or_else(|| panic!("no line with {words:?} in {log}"))
}

async fn call_append(server: &Server, names: &[&str]) {
    let calls: String = names.iter().map(|name| format!(r#"[[call:{name}__append {{"text":"{name}"}}]]"#)).collect();
    let run = server.start_run(&json!({"input": format!("[[id:c]]{calls}[[next]][[text:1,0]]")})).await;
    server.finished(run["id"].as_str().unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_or_disabled_mcp_entry_never_runs() {
    let refused = [
        ("misplaced", json!({"approval": {"append": "ask"}}), json!({}), "approval"),
        ("misspelt", json!({"aproval": {"append": "ask"}}), json!({}), "aproval"),
        ("undoing", json!({"undo": {}}), json!({}), "undo"),
        ("unclear", json!({"disabled": 1}), json!({}), "disabled"),
        ("unsure", json!({"enabled": "no"}), json!({}), "enabled"),
        ("only", json!({"includeTools": ["lookup"]}), json!({}), "includeTools"),
        ("without", json!({"excludeTools": ["append"]}), json!({}), "excludeTools"),
        ("hidden", json!({"disabledTools": ["append"]}), json!({}), "disabledTools"),
        ("listed", json!({"tools": {"append": false}}), json!({}), "tools"),
        ("asks", json!({"require_approval": "always"}), json!({}), "require_approval"),
        ("inside", json!({}), json!({"disabled": true}), "capstan.disabled"),
        ("typo", json!({}), json!({"aproval": {"append": "ask"}}), "capstan.aproval"),
        ("pattern", json!({}), json!({"approval": {"*": "ask"}}), "capstan.approval"),
        ("repeats", json!({}), json!({"replay": {"app*": "read"}}), "capstan.replay"),
        ("unset", json!({"args": ["${NOT_SET_ANYWHERE}"]}), json!({}), "NOT_SET_ANYWHERE"),
    ];
    let off = [
        ("off", json!({"disabled": true})),
        ("offtext", json!({"disabled": "true"})),
        ("noton", json!({"enabled": false})),
        ("notontext", json!({"enabled": "False"})),
        ("both", json!({"enabled": true, "disabled": true})),
        ("inactive", json!({"isActive": false})),
    ];
    let model = ModelMock::start().await;
    let site = Site::new(Kind::Sqlite).await.with_model(&model);
    let mut servers = Map::new();
    for (name, beside, inside, _) in &refused {
        servers.insert((*name).to_owned(), entry(&site, beside.clone(), inside.clone()));
    }
    for (name, beside) in &off {
        servers.insert((*name).to_owned(), entry(&site, beside.clone(), json!({})));
    }
    servers.insert("good".to_owned(), entry(&site, json!({"enabled": "true", "disabled": false}), json!({})));
    let site = with_file(site, &json!({"mcpServers": servers}));
    let server = site.start().await;
    let log = server.log_text();
    for (name, _, _, key) in &refused {
        log_line(&log, &["WARN", "servers.json", &format!("entry=\"{name}\""), key]);
    }
    let names: Vec<&str> =
        refused.iter().map(|(name, ..)| *name).chain(off.iter().map(|(name, _)| *name)).chain(["good"]).collect();
    call_append(&server, &names).await;
    let ran: Vec<String> = site.ledger.entries().iter().map(|entry| entry.arguments["text"].as_str().unwrap().to_owned()).collect();
    assert_eq!(ran, ["good"]);

    let shown = server.get_json("/tools").await["servers"].clone();
    let states: Vec<(&str, &Value)> =
        shown.as_array().unwrap().iter().map(|server| (server["name"].as_str().unwrap(), &server["error"])).collect();
    for (name, _, _, key) in &refused {
        let (_, error) = states.iter().find(|(shown, _)| shown == name).unwrap_or_else(|| panic!("{name} is not in {shown}"));
        assert!(error.as_str().is_some_and(|error| error.contains(key)), "{name}: {error}");
    }
    assert!(off.iter().all(|(name, _)| states.iter().all(|(shown, _)| shown != name)), "{shown}");

    let (good, report) = site.command(&["doctor"]).await;
    assert!(!good, "{report}");
    for (name, _, _, key) in &refused {
        log_line(&report, &["FAIL", &format!("{name}: "), key]);
    }
    log_line(&report, &["ok", "good: "]);
}

#[tokio::test(flavor = "multi_thread")]
async fn harmless_unknown_mcp_key_warns() {
    let model = ModelMock::start().await;
    let site = Site::new(Kind::Sqlite).await.with_model(&model);
    let beside = json!({"type": "stdio", "description": "x", "gallery": true, "autoApprove": ["append"], "headerss": {},
        "timeout": 60, "headers": {"X": "y"}, "disabledTools": []});
    let rules = json!({"approval": {"no_such_tool": "ask"}});
    let document = json!({"mcpServers": {"good": entry(&site, beside, rules)}, "inputs": []});
    let site = with_file(site, &document).env("CAPSTAN_AGENT__TOOLS", r#"["good__append", "good__apend"]"#);
    let server = site.start().await;
    let log = server.log_text();
    let keys = ["description", "gallery", "autoApprove", "timeout", "headers", "disabledTools"];
    for key in keys {
        log_line(&log, &["WARN", "servers.json", "entry=\"good\"", &format!("\\\"{key}\\\"")]);
    }
    log_line(&log, &["WARN", "headerss", "did you mean", "headers"]);
    log_line(&log, &["WARN", "servers.json", "inputs"]);
    call_append(&server, &["good"]).await;
    assert_eq!(site.ledger.count("append", "good"), 1);
    let (good, report) = site.command(&["doctor"]).await;
    assert!(good, "{report}");
    for key in keys {
        log_line(&report, &["warn  mcp config", "good: ", &format!("{key:?}")]);
    }
    log_line(&report, &["warn  mcp config", "inputs"]);
    log_line(&report, &["warn  mcp config", "good: ", "no_such_tool"]);
    log_line(&report, &["warn  tools", "agent.tools", "good__apend"]);
}

/// A file of VS Code, as an editor on Windows writes it: byte order mark, comments, trailing commas, `servers`, empty values.
#[tokio::test(flavor = "multi_thread")]
async fn mcp_file_of_another_program_is_read() {
    let model = ModelMock::start().await;
    let site = Site::new(Kind::Sqlite).await.with_model(&model);
    let mut servers = Map::new();
    servers
        .insert("nulls".to_owned(), entry(&site, json!({"url": "", "headers": null, "envFile": null}), json!({"timeout": null})));
    let mut named = entry(&site, json!({}), json!({}));
    let last = named["args"].as_array().unwrap().len() - 1;
    let folder = named["args"][last].take();
    named["args"][last] = json!("${env:LEDGER_ARGUMENT}");
    servers.insert("named".to_owned(), named);
    let servers = serde_json::to_string_pretty(&servers).unwrap();
    let text = format!("\u{feff}// mine\n{{\n  /* all */ \"servers\": {servers},\n  \"inputs\": [],\n}}\n");
    let file = site.folder.path().join("servers.json");
    std::fs::write(&file, text).unwrap();
    let site = site.env("CAPSTAN_MCP_CONFIG", file.to_str().unwrap()).env("LEDGER_ARGUMENT", folder.as_str().unwrap());
    let server = site.start().await;
    call_append(&server, &["nulls", "named"]).await;
    assert_eq!((site.ledger.count("append", "nulls"), site.ledger.count("append", "named")), (1, 1), "{}", server.log_text());
    // The API takes the same names.
    let imported = json!({"servers": {"kept": {"type": "http", "serverUrl": "http://127.0.0.1:1/${env:PART}", "headers": null}},
        "variables": {"PART": "canary"}});
    let (status, imported) = server.post_json("/mcp-servers/import", &imported).await;
    assert!(status.is_success() && imported["data"][0]["outcome"] == "made", "{imported}");
    let id = imported["data"][0]["id"].as_str().unwrap();
    let kept = server.get_json(&format!("/mcp-servers/{id}")).await;
    assert_eq!(kept["entry"]["url"], "http://127.0.0.1:1/${env:PART}", "{kept}");
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_file_may_begin_with_a_byte_order_mark() {
    let site = Site::new(Kind::Sqlite).await;
    std::fs::write(site.folder.path().join("capstan.toml"), "\u{feff}[agent]\nmax_rounds = 7\n").unwrap();
    let server = site.start().await;
    let agents = server.get_json("/agents").await;
    let default = agents["data"].as_array().unwrap().iter().find(|agent| agent["name"] == "default").unwrap();
    let agent = server.get_json(&format!("/agents/{}", default["id"].as_str().unwrap())).await;
    assert_eq!(agent["effective"]["max_rounds"], 7, "{agent}");
}

#[tokio::test(flavor = "multi_thread")]
async fn duplicate_key_in_the_mcp_file_stops_the_start() {
    let site = Site::new(Kind::Sqlite).await;
    let file = site.folder.path().join("servers.json");
    let rules = r#""capstan": {"approval": {"append": "ask"}}, "capstan": {"timeout": "5s"}"#;
    std::fs::write(&file, format!(r#"{{"mcpServers": {{"a": {{"command": "x", {rules}}}}}}}"#)).unwrap();
    let site = site.env("CAPSTAN_MCP_CONFIG", file.to_str().unwrap());
    let server = site.try_start(&[]).await.err().unwrap();
    log_line(&server.log_text(), &["servers.json", "\"capstan\" twice"]);
}

#[rstest]
#[case::approval("approval", json!({"x": "ask"}))]
#[case::capstan("capstan", json!({"trusted": false}))]
#[case::disabled("disabled", json!(true))]
#[tokio::test(flavor = "multi_thread")]
async fn key_beside_the_servers_stops_the_start(#[case] key: &str, #[case] value: Value) {
    let site = Site::new(Kind::Sqlite).await;
    let document = json!({"mcpServers": {"good": entry(&site, json!({}), json!({}))}, key: value});
    let site = with_file(site, &document);
    let server = site.try_start(&[]).await.err().unwrap();
    log_line(&server.log_text(), &["servers.json", &format!("{key:?}"), "mcpServers"]);
    let (good, report) = site.command(&["doctor"]).await;
    assert!(!good);
    log_line(&report, &["FAIL", &format!("{key:?}")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn api_refuses_or_tells_unknown_keys_of_entries() {
    let site = Site::new(Kind::Sqlite).await;
    let server = site.start().await;
    for (beside, inside, key) in [
        (json!({"approval": {"append": "ask"}}), json!({}), "approval"),
        (json!({"disabled": "maybe"}), json!({}), "disabled"),
        (json!({"excludeTools": ["append"]}), json!({}), "excludeTools"),
        (json!({}), json!({"aproval": {"append": "ask"}}), "capstan.aproval"),
        (json!({}), json!({"approval": {"a*": "ask"}}), "capstan.approval"),
    ] {
        let body = json!({"name": "s", "entry": entry(&site, beside, inside)});
        let (status, problem) = server.post_json("/mcp-servers", &body).await;
        assert!(status.is_client_error(), "{key}: {problem}");
        assert_eq!(problem["errors"][0]["pointer"], "/entry", "{problem}");
        assert!(problem["errors"][0]["detail"].as_str().unwrap().contains(key), "{problem}");
    }

    let harmless = entry(&site, json!({"description": "x", "arg": []}), json!({}));
    let (status, made) = server.post_json("/mcp-servers", &json!({"name": "s", "entry": harmless})).await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    let warnings = made["warnings"].to_string();
    assert!(warnings.contains("description") && warnings.contains("did you mean") && warnings.contains("args"), "{made}");
    let path = format!("/mcp-servers/{}", made["id"].as_str().unwrap());
    assert_eq!(server.get_json(&path).await.get("warnings"), None);
    let change = json!({"entry": entry(&site, json!({"gallery": true, "enabled": "false"}), json!({}))});
    let changed: Value = server.request(Method::PATCH, &path).json(&change).send().await.unwrap().json().await.unwrap();
    assert!(changed["warnings"].to_string().contains("gallery") && changed["enabled"] == false, "{changed}");

    let body = json!({"name": "off", "entry": entry(&site, json!({"disabled": "true"}), json!({}))});
    let (_, made) = server.post_json("/mcp-servers", &body).await;
    assert_eq!(made["enabled"], false, "{made}");
    assert!(!server.get_json("/tools").await["data"].to_string().contains("append"));
}

#[tokio::test(flavor = "multi_thread")]
async fn import_refuses_or_tells_unknown_keys() {
    let site = Site::new(Kind::Sqlite).await;
    let server = site.start().await;
    let beside = |more: Value| entry(&site, more, json!({}));
    let document = json!({"inputs": [], "mcpServers": {
        "misplaced": beside(json!({"trusted": false})), "narrowed": beside(json!({"allowed_tools": ["lookup"]})),
        "unclear": beside(json!({"enabled": 2})), "off": beside(json!({"enabled": false})),
        "told": beside(json!({"gallery": true})),
    }});
    let (status, answer) = server.post_json("/mcp-servers/import", &document).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    assert!(answer["warnings"].to_string().contains("inputs"), "{answer}");
    let of = |name: &str| answer["data"].as_array().unwrap().iter().find(|entry| entry["name"] == name).unwrap().clone();
    for (name, key) in [("misplaced", "trusted"), ("narrowed", "allowed_tools"), ("unclear", "enabled")] {
        assert!(of(name)["outcome"] == "refused" && of(name)["reason"].as_str().unwrap().contains(key), "{}", of(name));
    }
    assert!(of("told")["warnings"].to_string().contains("gallery"), "{answer}");
    let off = server.get_json(&format!("/mcp-servers/{}", of("off")["id"].as_str().unwrap())).await;
    assert_eq!(off["enabled"], false);

    for (key, words) in [("replaces", "did you mean \"replace\""), ("approval", "has no effect"), ("disabled", "has no effect")] {
        let (status, problem) = server.post_json("/mcp-servers/import", &json!({"mcpServers": {}, key: true})).await;
        assert!(status.is_client_error() && problem.to_string().replace('\\', "").contains(words), "{key}: {problem}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_field_of_a_request_gets_a_suggestion() {
    let site = Site::new(Kind::Sqlite).await;
    let server = site.start().await;
    let document = json!({"format": "capstan.conversation", "version": 1, "conversation": {"titel": "x"}, "messages": []});
    for (path, body, near) in [
        ("/agents", json!({"name": "a", "profile": {"max_round": 3}}), "max_rounds"),
        ("/agents", json!({"name": "a", "profil": {}}), "profile"),
        ("/agents", json!({"name": "a", "profile": {"approval": {"ask_untrustd": true}}}), "ask_untrusted"),
        ("/providers", json!({"name": "p", "kind": "openai", "enabeld": false}), "enabled"),
        ("/runs", json!({"input": "x", "optoins": {}}), "options"),
        ("/conversations/import", document, "title"),
    ] {
        let (status, problem) = server.post_json(path, &body).await;
        assert!(status.is_client_error(), "{problem}");
        let problem = problem.to_string().replace("\\\"", "`");
        assert!(problem.contains(&format!("did you mean `{near}`")), "{problem}");
    }
}

#[rstest]
#[case::any(r#"["*"]"#, "*")]
#[case::pattern(r#"["https://good.example", "https://*.example.org"]"#, "https://*.example.org")]
#[case::path(r#"["https://a.example/app"]"#, "https://a.example/app")]
#[case::host(r#"["a.example"]"#, "a.example")]
#[case::empty(r#"[""]"#, "\"\"")]
#[case::null(r#"["null"]"#, "null")]
#[tokio::test(flavor = "multi_thread")]
async fn wrong_allowed_origin_stops_the_start(#[case] origins: &str, #[case] entry: &str) {
    let site = Site::new(Kind::Sqlite).await.env("CAPSTAN_SERVER__ALLOWED_ORIGINS", origins);
    let server = site.try_start(&[]).await.err().unwrap();
    let log = server.log_text();
    log_line(&log, &["server.allowed_origins", entry]);
    assert!(!log.contains("panicked"), "{log}");
    let (good, report) = site.command(&["doctor"]).await;
    assert!(!good, "{report}");
    log_line(&report, &["FAIL", "server.allowed_origins", entry]);
}

#[tokio::test(flavor = "multi_thread")]
async fn allowed_origin_is_compared_as_browsers_send_it() {
    let origins = r#"["HTTPS://Page.Example/", "http://local.example:80", "https://with.example:8443/"]"#;
    let site = Site::new(Kind::Sqlite).await.env("CAPSTAN_SERVER__ALLOWED_ORIGINS", origins);
    let server = site.start().await;
    for (origin, is_allowed) in [
        ("https://page.example", true),
        ("http://local.example", true),
        ("https://with.example:8443", true),
        ("https://other.example", false),
        ("http://page.example", false),
    ] {
        let answer = server.get("/tools").header("origin", origin).send().await.unwrap();
        let allowed = answer.headers().get("access-control-allow-origin").and_then(|value| value.to_str().ok());
        assert_eq!(allowed, is_allowed.then_some(origin), "{origin}");
    }
}

#[rstest]
#[case::database("DATABASE_URL", "\"sqlite:x.db\"")]
#[case::provider_key("OPENAI_API_KEY", "'sk-canary-0123456789'")]
#[case::provider_url("OPENAI_BASE_URL", "\"http://127.0.0.1:1/v1\"")]
#[case::second_key("GOOGLE_API_KEY", "\"canary\"")]
#[case::model("CAPSTAN_MODEL", "\"demo/demo\"")]
#[case::master_key("CAPSTAN_SECRET_KEY", "\"canary canary canary\"")]
#[case::ollama("OLLAMA_HOST", "\"127.0.0.1:1\"")]
#[case::long_name("CAPSTAN_SERVER__PUBLIC_URL", "'https://a.example'")]
#[case::file("CAPSTAN_CONFIG", "'capstan.toml'")]
#[case::proxy("HTTPS_PROXY", "\"http://127.0.0.1:1\"")]
#[case::own_key("MY_PROVIDER_KEY", "\"canary\"")]
#[case::own_header("MY_PROVIDER_HEADER", "\"canary\"")]
#[case::in_file("MY_PROMPT", "'canary'")]
#[tokio::test(flavor = "multi_thread")]
async fn quoted_variable_stops_the_start(#[case] name: &str, #[case] value: &str) {
    let site = Site::new(Kind::Sqlite).await;
    let settings = "[agent]\nsystem_prompt = '${MY_PROMPT:-x}'\n\
                    [providers.mine]\nkind = 'openai'\nbase_url = 'http://127.0.0.1:1/v1'\nkey_env = 'MY_PROVIDER_KEY'\n\
                    [providers.mine.headers_env]\nx-team = 'MY_PROVIDER_HEADER'\n";
    std::fs::write(site.folder.path().join("capstan.toml"), settings).unwrap();
    let site = site.env("MY_PROVIDER_KEY", "plain").env("MY_PROVIDER_HEADER", "plain");
    let server = site.try_start(&[(name, value)]).await.err().unwrap();
    let log = server.log_text();
    log_line(&log, &[name, "quotes"]);
    assert!(!log.contains("canary"), "{log}");
    let doctor = site.spawn_command(&["doctor"], &[(name, value)]);
    let output = wait::within("doctor", Duration::from_secs(60), doctor.wait_with_output()).await.unwrap();
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!output.status.success(), "{report}");
    log_line(&report, &["FAIL", name, "quotes"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn quoted_variable_of_an_mcp_entry_warns() {
    let site = Site::new(Kind::Sqlite).await.env("LEDGER_TOKEN", "\"canary\"");
    let mut ledger = entry(&site, json!({}), json!({}));
    ledger["env"]["TOKEN"] = json!("${LEDGER_TOKEN}");
    let site = with_file(site, &json!({"mcpServers": {"good": ledger}}));
    let server = site.start().await;
    let log = server.log_text();
    log_line(&log, &["WARN", "servers.json", "LEDGER_TOKEN", "quotes"]);
    assert!(!log.contains("canary"), "{log}");
    let (_, report) = site.command(&["doctor"]).await;
    log_line(&report, &["warn  mcp config", "LEDGER_TOKEN", "quotes"]);
}

#[rstest]
#[case::offer("[agent]\ntools = ['ledger__append', 'ledger__*']", "agent.tools", "ledger__*")]
#[case::approval("[agent.approval.tools]\n'ledger__*' = 'ask'", "agent.approval.tools", "ledger__*")]
#[case::expression("[agent.approval.tools]\n'^ledger__.+$' = 'ask'", "agent.approval.tools", "^ledger__.+$")]
#[case::alias("[agent.repair.aliases]\nfind = 'ledger__*'", "agent.repair.aliases", "ledger__*")]
#[case::choice("[agent.options.tool_choice]\ntool = 'ledger__*'", "agent.options.tool_choice", "one tool")]
#[case::server("[agent.tool_filter.servers.'led*']\nabout = 'x'", "agent.tool_filter.servers", "led*")]
#[case::models("[agent.tool_filter]\nskip_models = ['*gpt*']", "agent.tool_filter.skip_models", "*gpt*")]
#[case::optional("[tools]\nenable = ['http_*']", "tools.enable", "http_*")]
#[case::host("[server]\nallowed_hosts = ['*.example.org']", "server.allowed_hosts", "*.example.org")]
#[case::host_url("[server]\nallowed_hosts = ['https://a.example']", "server.allowed_hosts", "https://a.example")]
#[case::public_url("[server]\npublic_url = 'a.example'", "server.public_url", "a.example")]
#[tokio::test(flavor = "multi_thread")]
async fn pattern_in_the_settings_stops_the_start(#[case] settings: &str, #[case] setting: &str, #[case] entry: &str) {
    let site = Site::new(Kind::Sqlite).await;
    let file = site.folder.path().join("own.toml");
    std::fs::write(&file, settings).unwrap();
    let site = site.env("CAPSTAN_CONFIG", file.to_str().unwrap());
    let server = site.try_start(&[]).await.err().unwrap();
    log_line(&server.log_text(), &[setting, entry]);
    let (good, report) = site.command(&["doctor"]).await;
    assert!(!good, "{report}");
    log_line(&report, &["FAIL", setting, entry]);
}

#[tokio::test(flavor = "multi_thread")]
async fn pattern_in_an_agent_or_a_request_is_refused() {
    let site = Site::new(Kind::Sqlite).await;
    let server = site.start().await;
    let agent = |profile: Value| ("/agents", json!({"name": "a", "profile": profile}));
    for ((path, body), pointer) in [
        (agent(json!({"tools": ["m__*"]})), "/profile/tools/0"),
        (agent(json!({"approval": {"tools": {"m__*": "always_ask"}}})), "/profile/approval/tools/m__*"),
        (agent(json!({"repair": {"aliases": {"x": "m__*"}}})), "/profile/repair/aliases/x"),
        (agent(json!({"options": {"tool_choice": {"tool": "m__*"}}})), "/profile/options/tool_choice/tool"),
        (("/runs", json!({"input": "x", "options": {"tool_choice": {"tool": "m__*"}}})), "/options/tool_choice/tool"),
    ] {
        let (status, problem) = server.post_json(path, &body).await;
        assert!(status.is_client_error(), "{problem}");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
    }
}

#[rstest]
#[case::short_name("CAPSTAN_LISTN", "127.0.0.1:1", "CAPSTAN_LISTEN")]
#[case::long_name("CAPSTAN_WORKER__SLOT", "3", "did you mean `slots`")]
#[case::port("CAPSTAN_PORT", "9090", "this setting does not exist")]
#[case::level("CAPSTAN_LOG__LEVEL", "inof", "did you mean \"info\"")]
#[tokio::test(flavor = "multi_thread")]
async fn unknown_variable_stops_the_start(#[case] name: &str, #[case] value: &str, #[case] words: &str) {
    let site = Site::new(Kind::Sqlite).await;
    let server = site.try_start(&[(name, value)]).await.err().unwrap();
    let name = if name == "CAPSTAN_LOG__LEVEL" { "log.level" } else { name };
    log_line(&server.log_text(), &[name, words]);
}
