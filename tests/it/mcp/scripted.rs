//! A well-behaved but demanding MCP server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use capstan::domain::tool::ToolCallState;
use capstan::tools::mcp::ConnectionLimits;
use capstan::tools::{CallControl, CallPermit, Toolbox as _};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use support::mcp::{PATIENCE, Scripted, Tools, call, owner, text};
use support::wait;

/// M-11.
#[tokio::test(flavor = "multi_thread")]
async fn all_pages_are_listed_once_though_the_last_cursor_repeats() {
    let (_server, tools) = Tools::scripted(&["banner"], None).await;
    assert_eq!((tools.status("s").await.tools, tools.status("s").await.left_out), (22, false));
    assert_eq!(tools.definition("s__echo").description, "[s] echo");
    tools.shutdown().await;
}

/// M-11.
#[tokio::test(flavor = "multi_thread")]
async fn endless_tool_list_stops_at_100_pages_or_1000_tools() {
    let (pages, crowd) = (Scripted::default(), Scripted::default());
    let tools = Tools::new(&json!({"pages": pages.entry(&["pages"]), "crowd": crowd.entry(&["crowd"])})).await;
    assert_eq!((tools.status("pages").await.tools, pages.log("page").len()), (100, 100));
    assert_eq!((tools.status("crowd").await.tools, tools.status("crowd").await.left_out), (1_000, true));
    assert!(tools.status("pages").await.left_out, "the server has more pages");
    assert_eq!(text(&tools.call("crowd__echo999", json!({"text": "the last"})).await), "the last");
    tools.shutdown().await;
}

/// M-11, M-15.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_takes_no_more_memory_than_it_may() {
    let (heavy, huge) = (Scripted::default(), Scripted::default());
    let tools = Tools::new(&json!({"heavy": heavy.entry(&["heavy"]), "huge": huge.entry(&["huge"])})).await;
    // Ten tools of 100 KB on each page: 83 of them fit into 8 MiB.
    let (listed, pages) = (tools.status("heavy").await.tools, heavy.log("page").len());
    assert_eq!((listed, pages), (83, 9));
    let names: Vec<&str> =
        tools.definitions.iter().map(|tool| tool.name.as_str()).filter(|name| name.starts_with("huge__")).collect();
    assert_eq!(names, ["huge__echo"], "a tool with a schema of more than 64 KiB is left out");
    assert_eq!(text(&tools.call("huge__echo", json!({"text": "here"})).await), "here");
    tools.shutdown().await;
}

/// M-32.
#[tokio::test(flavor = "multi_thread")]
async fn few_servers_start_at_a_time() {
    let shared = Scripted::default();
    let servers: serde_json::Map<String, Value> = (0..50).map(|n| (format!("s{n}"), shared.entry(&[]))).collect();
    let tools = Tools::new(&servers.into()).await;
    assert_eq!(tools.definitions.iter().filter(|tool| tool.name.ends_with("__echo")).count(), 50);
    let log = std::fs::read_to_string(shared.folder.path().join("log")).unwrap();
    let (mut starting, mut most) = (0, 0);
    for line in log.lines() {
        starting += i32::from(line.contains("\"pid\"")) - i32::from(line.contains("\"listed\""));
        most = most.max(starting);
    }
    assert!(starting == 0 && most <= 4, "{most} at a time, {starting} at the end");
    tools.shutdown().await;
}

/// M-32. Servers that never answer do not block other starts, and the wait for a slot does not count.
#[tokio::test(flavor = "multi_thread")]
async fn hanging_servers_do_not_delay_others() {
    let (deaf, fine) = (Scripted::default(), Scripted::default());
    let mut servers: serde_json::Map<String, Value> = (0..4).map(|n| (format!("a{n}"), deaf.entry(&["deaf"]))).collect();
    servers.insert("z".to_owned(), fine.entry(&[]));
    let limits = ConnectionLimits { start: Duration::from_secs(6), ..ConnectionLimits::default() };
    let tools = Tools::limited(&servers.into(), limits).await;
    assert_eq!(text(&tools.call("z__echo", json!({"text": "here"})).await), "here");
    let (status, fine) = (tools.status("a0").await, tools.status("z").await);
    assert_eq!((status.status.as_str(), fine.status.as_str()), ("error", "ok"));
    assert!(fine.since < status.since, "it did not wait for the start timeout of the others: {:?} {:?}", fine.since, status.since);
    assert!(status.error.as_ref().is_some_and(|error| error.contains("mcp.start_timeout_ms")), "{status:?}");
    tools.shutdown().await;
}

/// M-15, M-16.
#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_tool_is_left_out_and_the_others_work() {
    let (_server, tools) = Tools::scripted(&["malformed"], None).await;
    assert_eq!((tools.status("s").await.status.as_str(), tools.status("s").await.left_out), ("ok", true));
    let names: Vec<&str> = tools.definitions.iter().map(|tool| tool.name.as_str()).filter(|name| name.starts_with("s__")).collect();
    assert_eq!(names, ["s__echo", "s__odd"]);
    assert_eq!(text(&tools.call("s__echo", json!({"text": "here"})).await), "here");
    tools.shutdown().await;
}

/// M-21. A tool is left out if cleaning its schema would change the arguments that it accepts.
#[tokio::test(flavor = "multi_thread")]
async fn a_tool_with_invisible_values_is_left_out_and_the_others_work() {
    let (_server, tools) = Tools::scripted(&["hides"], None).await;
    assert_eq!((tools.status("s").await.status.as_str(), tools.status("s").await.left_out), ("ok", true));
    let names: Vec<&str> = tools.definitions.iter().map(|tool| tool.name.as_str()).filter(|name| name.starts_with("s__")).collect();
    assert_eq!(names, ["s__echo"], "joiners within emoji are allowed");
    assert_eq!(text(&tools.call("s__echo", json!({"text": "here"})).await), "here");
    tools.shutdown().await;
}

/// M-23.
#[tokio::test(flavor = "multi_thread")]
async fn a_child_sees_its_own_variables_and_few_of_ours() {
    let server = Scripted::default();
    let mut entry = server.entry(&[]);
    entry["env"] = json!({"OWN": "value"});
    entry["cwd"] = json!(server.folder.path());
    let tools = Tools::new(&json!({"s": entry})).await;
    let outcome = tools.call("s__environment", json!({})).await;
    let seen: Value = serde_json::from_str(&text(&outcome)).unwrap();
    assert_eq!(seen["OWN"], "value");
    // Cargo sets this variable for every test, so an inherited environment would contain it.
    assert_eq!(seen.get("CARGO_MANIFEST_DIR"), None);
    assert_eq!(seen["cwd"], json!(server.folder.path().canonicalize().unwrap()));
    // This process and its runtime have sockets, pipes and files open. Descriptors that it inherited itself are passed on to
    // its children.
    let given = given_files();
    let files: Vec<String> = serde_json::from_value(seen["files"].clone()).unwrap();
    assert!(files.iter().all(|file| given.contains(file)), "{files:?} beside {given:?}");
    // A python that is a shell script sets some of these by itself.
    let harmless = [
        "cwd", "files", "OWN", "PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TERM", "TMPDIR", "TZ", "PWD", "OLDPWD", "SHLVL", "_",
    ];
    // Passed on, because a server behind a company's proxy cannot reach the network without them.
    let of_the_network = [
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "NODE_EXTRA_CA_CERTS",
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "NO_PROXY",
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "no_proxy",
    ];
    #[expect(clippy::disallowed_methods, reason = "what must not be inherited is what is set here")]
    let ours = |key: &str| std::env::var(key).is_ok();
    let is_expected = |key: &str| harmless.contains(&key) || of_the_network.contains(&key);
    let inherited: Vec<&String> = seen.as_object().unwrap().keys().filter(|key| !is_expected(key) && ours(key)).collect();
    assert!(inherited.is_empty(), "{inherited:?}");
    tools.shutdown().await;
}

/// Returns the open files that child processes inherit.
fn given_files() -> Vec<String> {
    const CLOSED_IN_PROGRAMS: u32 = 0o2_000_000;
    let Ok(open) = std::fs::read_dir("/proc/self/fdinfo") else { return Vec::new() };
    let names = open.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let is_given = |name: &String| {
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{name}")).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).map(str::trim);
        flags.and_then(|flags| u32::from_str_radix(flags, 8).ok()).is_some_and(|flags| flags & CLOSED_IN_PROGRAMS == 0)
    };
    let given = names.filter(is_given).filter_map(|name| std::fs::read_link(format!("/proc/self/fd/{name}")).ok());
    given.map(|path| path.display().to_string()).collect()
}

/// A server's own secrets are redacted in each answer.
#[tokio::test(flavor = "multi_thread")]
async fn secrets_of_its_entry_are_not_in_what_a_tool_answers() {
    let server = Scripted::default();
    let mut entry = server.entry(&["--api-key", "argument-canary"]);
    entry["env"] = json!({"BANK_TOKEN": "token-canary-1", "ADDRESS": "postgresql://ann:password-canary@h/x", "OWN": "plain"});
    let tools = Tools::new(&json!({"s": entry})).await;
    let seen: Value = serde_json::from_str(&text(&tools.call("s__environment", json!({})).await)).unwrap();
    assert_eq!((&seen["BANK_TOKEN"], &seen["OWN"]), (&json!("[redacted:BANK_TOKEN]"), &json!("plain")));
    assert!(!seen.to_string().contains("canary"), "{seen}");
    let said = tools.call("s__echo", json!({"text": "argument-canary password-canary token-canary-1 token-canar"})).await;
    assert_eq!(text(&said), "[redacted:api-key] [redacted:ADDRESS] [redacted:BANK_TOKEN] token-canar");
    // `ann:password-canary` in base64, as in a header, and the argument in hexadecimal.
    let said = tools.call("s__echo", json!({"text": "YW5uOnBhc3N3b3JkLWNhbmFyeQ== 617267756d656e742d63616e617279"})).await;
    assert_eq!(text(&said), "YW5uOn[redacted:ADDRESS]Q== [redacted:api-key]");
    tools.shutdown().await;
}

/// They are redacted in tool definitions as well, at first and after a change.
#[tokio::test(flavor = "multi_thread")]
async fn secrets_of_its_entry_are_not_in_what_it_says_of_its_tools() {
    let server = Scripted::default();
    let file = server.folder.path().join("catalogue.json");
    let said =
        json!({"echo": "As token-canary-1", "change": "Changes", "environment": "Speaks to postgresql://ann:password-canary@h/x"});
    std::fs::write(&file, said.to_string()).unwrap();
    let mut entry = server.entry(&[&format!("catalogue={}", file.display())]);
    entry["env"] = json!({"BANK_TOKEN": "token-canary-1", "ADDRESS": "postgresql://ann:password-canary@h/x"});
    let tools = Tools::new(&json!({"s": entry})).await;
    let described = |tools: &Tools| {
        let of = |name: &str| tools.definition(name).description.clone();
        (of("s__echo"), of("s__environment"))
    };
    let (echo, environment) = described(&tools);
    assert!(echo.starts_with("[s] As [redacted") && environment.contains("[redacted"), "{echo}; {environment}");
    assert_eq!(text(&tools.call("s__change", json!({})).await), "changed");
    let renewed = Tools { definitions: tools.door.definitions(&owner()).await, door: tools.door.clone() };
    let (changed, again) = described(&renewed);
    assert!(changed.ends_with("(changed)"), "{changed}");
    assert!([echo, environment, changed, again].iter().all(|said| !said.contains("canary")));
    tools.shutdown().await;
}

/// M-23.
#[tokio::test(flavor = "multi_thread")]
async fn each_child_has_a_working_directory_of_its_own() {
    let (one, other, homes) = (Scripted::default(), Scripted::default(), tempfile::tempdir().unwrap());
    let mut first = one.entry(&[]);
    first["capstan"] = json!({"shared": true});
    let packages = support::mcp::entry("server-filesystem");
    let files = json!({"command": "node", "args": [packages, one.folder.path()]});
    let tools = Tools::at_home(&json!({"one": first, "other": other.entry(&[]), "files": files}), homes.path()).await;
    let mut seen = Vec::new();
    for name in ["one__environment", "other__environment"] {
        let environment: Value = serde_json::from_str(&text(&tools.call(name, json!({})).await)).unwrap();
        seen.push(environment["cwd"].as_str().unwrap().to_owned());
    }
    let homes = homes.path().canonicalize().unwrap().display().to_string();
    assert!(seen[0] != seen[1] && seen.iter().all(|cwd| cwd.starts_with(&homes)), "{seen:?} in {homes}");
    assert!(seen[1].ends_with(owner().as_str()), "{seen:?}");
    assert!(!tools.call("files__list_allowed_directories", json!({})).await.is_error);
    tools.shutdown().await;
}

/// M-03.
#[tokio::test(flavor = "multi_thread")]
async fn progress_extends_the_limit_of_a_call() {
    let (_server, tools) = Tools::scripted(&[], None).await;
    let (progress, mut reports) = mpsc::channel(16);
    // The number of tenths of a second: twice the timeout, which each report restarts.
    let (steps, limit) = (json!({"text": "40"}), Duration::from_secs(2));
    let outcome = tools.call_with("s__progress", steps, limit, progress, CancellationToken::new()).await;
    assert_eq!((outcome.state, text(&outcome)), (ToolCallState::Done, "all steps".to_owned()));
    assert!(outcome.duration_ms >= 4_000, "{outcome:?}");
    let mut heard = Vec::new();
    while let Some(report) = support::mcp::heard(&mut reports).await {
        heard.push(report.progress);
    }
    assert!(heard.windows(2).all(|pair| pair[0] < pair[1]) && heard.len() >= 3, "{heard:?}");
    tools.shutdown().await;
}

/// M-03.
#[tokio::test(flavor = "multi_thread")]
async fn progress_extends_it_up_to_a_hard_limit() {
    let (_server, tools) = Tools::scripted(&[], Some(json!({"timeout": "2s", "max_timeout": "3s"}))).await;
    let outcome = tools.call("s__progress", json!({"text": "60"})).await;
    assert_eq!(outcome.state, ToolCallState::Unknown);
    assert!(text(&outcome).contains("did not answer within 3s"), "{outcome:?}");
    tools.shutdown().await;
}

/// M-12, M-13.
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_tool_is_not_called_by_runs_that_know_the_old_one() {
    let (server, tools) = Tools::scripted(&[], None).await;
    assert_eq!(text(&tools.call("s__change", json!({})).await), "changed");
    let refused = tools.call("s__echo", json!({"text": "old"})).await;
    assert_eq!(refused.state, ToolCallState::Failed);
    assert!(text(&refused).contains("has changed since this run began"), "{refused:?}");
    let renewed = Tools { definitions: tools.door.definitions(&owner()).await, door: tools.door.clone() };
    assert_eq!(renewed.definition("s__echo").description, "[s] echo (changed)");
    assert_eq!(text(&renewed.call("s__added", json!({"text": "new"})).await), "new");
    assert_eq!(server.log("called").len(), 2);
    tools.shutdown().await;
}

/// M-12. An unsafe call is not sent by a list that its server has invalidated, however slow the new list is.
#[tokio::test(flavor = "multi_thread")]
async fn unsafe_call_is_not_sent_while_tools_change() {
    let (server, tools) = Tools::scripted(&["stalls"], Some(json!({"replay": {"keyed": "read"}}))).await;
    assert_eq!(text(&tools.call("s__change", json!({})).await), "changed");
    let (refused, read) =
        tokio::join!(tools.call("s__echo", json!({"text": "old"})), tools.call("s__keyed", json!({"text": "reads"})));
    assert_eq!(refused.state, ToolCallState::Failed);
    assert!(text(&refused).contains("are changing") && text(&refused).contains("nothing was sent"), "{refused:?}");
    assert_eq!(text(&read), "reads", "a read-only tool is called by the known list");
    assert_eq!(server.log("called"), [json!("change"), json!("keyed")]);

    std::fs::write(server.folder.path().join("go on"), "").unwrap();
    let renewed = wait::until("the new list", PATIENCE, || async {
        let definitions = tools.door.definitions(&owner()).await;
        definitions.iter().any(|tool| tool.description.contains("(changed)")).then_some(definitions)
    });
    let renewed = Tools { definitions: renewed.await, door: tools.door.clone() };
    assert_eq!(text(&renewed.call("s__echo", json!({"text": "new"})).await), "new");
    tools.shutdown().await;
}

/// M-12, M-20. The stateless revision has no notifications: a list has a time to live.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_holds_no_longer_is_asked_for_again() {
    let (_server, tools) = Tools::scripted(&["stateless", "silent"], None).await;
    assert_eq!(text(&tools.call("s__change", json!({})).await), "changed");
    let renewed = wait::until("the new list", PATIENCE, || async {
        let definitions = tools.door.definitions(&owner()).await;
        definitions.iter().any(|tool| tool.description.contains("(changed)")).then_some(definitions)
    });
    let renewed = Tools { definitions: renewed.await, door: tools.door.clone() };
    let refused = tools.call("s__echo", json!({"text": "old"})).await;
    assert!(text(&refused).contains("has changed since this run began"), "{refused:?}");
    assert_eq!(text(&renewed.call("s__added", json!({"text": "new"})).await), "new");
    tools.shutdown().await;
}

/// M-13.
#[tokio::test(flavor = "multi_thread")]
async fn a_tool_that_is_gone_is_not_called() {
    let (server, tools) = Tools::scripted(&[], None).await;
    assert_eq!(text(&tools.call("s__vanish", json!({})).await), "gone");
    let refused = tools.call("s__echo", json!({"text": "old"})).await;
    assert!(refused.is_error && text(&refused).contains("does not offer the tool echo any more"), "{refused:?}");
    assert_eq!(server.log("called").len(), 1);
    tools.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_keyed_tool_is_sent_our_call_id() {
    let (server, tools) = Tools::scripted(&[], Some(json!({"replay": {"keyed": "keyed:key"}}))).await;
    tools.call("s__keyed", json!({"text": "pay", "key": "the model's own"})).await;
    let sent = server.log("arguments");
    assert!(sent[0]["key"].as_str().unwrap().starts_with("call_"), "{sent:?}");
    tools.shutdown().await;
}

/// M-26.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_works_on_as_many_calls_at_a_time_as_it_may() {
    let (server, tools) = Tools::scripted(&[], Some(json!({"concurrency": 1}))).await;
    let (progress, mut reports) = mpsc::channel(4);
    let other = progress.clone();
    let call = |progress| tools.call_with("s__slow", json!({}), PATIENCE, progress, CancellationToken::new());
    let (one, two) = tokio::join!(call(progress), call(other));
    assert_eq!((one.state, two.state), (ToolCallState::Done, ToolCallState::Done));
    let waits = support::mcp::heard(&mut reports).await.unwrap();
    assert_eq!(waits.message.unwrap(), "waits: s is executing 1 other calls");
    assert!(reports.recv().await.is_none(), "only the second call had to wait");
    let log = std::fs::read_to_string(server.folder.path().join("log")).unwrap();
    let order: Vec<&str> = log
        .lines()
        .filter_map(|line| if line.contains("called") { Some("called") } else { line.contains("finished").then_some("finished") })
        .collect();
    assert_eq!(order, ["called", "finished", "called", "finished"]);
    tools.shutdown().await;
}

/// I7: a process may be stopped while a call waits for its turn, and must not send it after it resumes.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_run_is_lost_while_it_waits_is_not_sent() {
    let (server, tools) = Tools::scripted(&[], Some(json!({"concurrency": 1}))).await;
    let (progress, mut reports) = mpsc::channel(4);
    let is_held = Arc::new(AtomicBool::new(true));
    let asked = Arc::clone(&is_held);
    let permit = CallPermit::new(CancellationToken::new(), move || asked.load(Ordering::SeqCst));
    let definition = tools.definition("s__slow");
    let waiting = call(definition, json!({}));
    let (hangs, other) = (CancellationToken::new(), mpsc::channel(4).0);
    let first = tools.call_with("s__hang", json!({}), PATIENCE, other, hangs.clone());
    let second = async {
        // After the first call has arrived.
        wait::until("the first call", PATIENCE, || async { (server.log("called").len() == 1).then_some(()) }).await;
        tools.door.execute(&owner(), definition, &waiting, CallControl { timeout: PATIENCE, progress, permit }).await
    };
    let lost = async {
        support::mcp::heard(&mut reports).await.unwrap();
        is_held.store(false, Ordering::SeqCst);
        hangs.cancel();
    };
    let (first, second, ()) = tokio::join!(first, second, lost);
    assert_eq!((first.state, second.state), (ToolCallState::Unknown, ToolCallState::Failed));
    assert!(text(&second).contains("this process no longer holds its run"), "{second:?}");
    assert_eq!(server.log("called").len(), 1);
    tools.shutdown().await;
}

/// M-16.
#[tokio::test(flavor = "multi_thread")]
async fn content_of_an_unknown_kind_is_named_and_errors_are_errors() {
    let (_server, tools) = Tools::scripted(&[], None).await;
    let outcome = tools.call("s__odd", json!({})).await;
    assert!(outcome.is_error && outcome.state == ToolCallState::Failed, "{outcome:?}");
    assert!(text(&outcome).contains("hologram") && text(&outcome).contains("readable"), "{outcome:?}");
    let refused = tools.call("s__refuse", json!({})).await;
    assert_eq!(refused.state, ToolCallState::Failed);
    assert!(text(&refused).contains("no such account") && !text(&refused).contains("hunter2"), "{refused:?}");
    let untrue = tools.call("s__typed", json!({"text": "one"})).await;
    assert_eq!(untrue.state, ToolCallState::Done);
    assert!(text(&untrue).contains(r#"{"n":"one"}"#) && text(&untrue).contains("violates the tool's output schema"), "{untrue:?}");
    tools.shutdown().await;
}

/// M-16.
#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_result_is_a_failed_call() {
    let (_server, tools) = Tools::scripted(&[], None).await;
    for (arguments, reason) in
        [(json!({"text": "nope"}), "content is not a list"), (json!({"key": "nope"}), "not an object with a type")]
    {
        let outcome = tools.call("s__wrong", arguments).await;
        assert!(outcome.is_error && outcome.state == ToolCallState::Failed, "{outcome:?}");
        assert!(text(&outcome).contains("malformed") && text(&outcome).contains(reason), "{outcome:?}");
    }
    tools.shutdown().await;
}

/// M-32.
#[tokio::test(flavor = "multi_thread")]
async fn starting_server_is_left_out_of_the_offer() {
    let (deaf, fine) = (Scripted::default(), Scripted::default());
    let servers = json!({"deaf": deaf.entry(&["deaf"]), "fine": fine.entry(&[])});
    // The healthy server may take as long as it needs, because only it is listed again.
    let tools = Tools::patient(&servers, Duration::from_millis(100)).await;
    assert_eq!(tools.status("deaf").await.status, "starting");
    let definitions = support::wait::until("the fine server", PATIENCE, || async {
        let definitions = tools.door.definitions(&owner()).await;
        definitions.iter().any(|tool| tool.name == "fine__echo").then_some(definitions)
    });
    let tools = Tools { definitions: definitions.await, door: tools.door.clone() };
    assert_eq!(text(&tools.call("fine__echo", json!({"text": "here"})).await), "here");
    assert_eq!(tools.status("deaf").await.status, "starting");
    tools.shutdown().await;
    deaf.gone().await;
}
