//! M-27: connections belong to one owner, have a limited lifetime, and have a limited number of processes.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use capstan::domain::ids::UserId;
use capstan::domain::tool::{ToolCallState, ToolDefinition, ToolOutcome};
use capstan::support::clock::SystemClock;
use capstan::tools::mcp::{ConnectionLimits, McpConfig};
use capstan::tools::{CallControl, Report, ToolExecutor, ToolExecutorOptions, Toolbox as _};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use support::mcp::everything_at;
use support::mcp::{PATIENCE, Scripted, call, entry, text};
use support::wait;

fn owner(name: &str) -> UserId {
    UserId::from_stored(format!("user_{name}"))
}

fn door(servers: &Value, connections: ConnectionLimits, homes: Option<&Path>) -> Arc<ToolExecutor> {
    let mcp = McpConfig::parse(&json!({"mcpServers": servers}).to_string(), &|_| None).unwrap();
    let environment = |name: &str| {
        #[expect(clippy::disallowed_methods, reason = "the tests play the part of the configuration")]
        std::env::var(name).ok()
    };
    let options = ToolExecutorOptions::new(std::env::temp_dir(), Arc::new(SystemClock));
    let homes = homes.map(Path::to_owned);
    let environment = Arc::new(environment);
    ToolExecutor::new(ToolExecutorOptions { mcp, start_wait: PATIENCE, environment, connections, homes, ..options })
}

/// The calls of one owner.
struct Hand<'a> {
    door: &'a ToolExecutor,
    owner: UserId,
    tools: Vec<Arc<ToolDefinition>>,
}

impl<'a> Hand<'a> {
    async fn of(door: &'a ToolExecutor, name: &str) -> Self {
        let owner = owner(name);
        let tools = door.definitions(&owner).await;
        Self { door, owner, tools }
    }

    fn tool(&self, name: &str) -> &ToolDefinition {
        self.tools.iter().find(|tool| tool.name == name).unwrap_or_else(|| panic!("{name} is not offered"))
    }

    async fn call(&self, name: &str, arguments: Value) -> ToolOutcome {
        let (progress, _reports) = mpsc::channel(1);
        self.call_with(name, arguments, progress, CancellationToken::new()).await
    }

    async fn call_with(
        &self,
        name: &str,
        arguments: Value,
        progress: mpsc::Sender<Report>,
        cancel: CancellationToken,
    ) -> ToolOutcome {
        let definition = self.tool(name);
        let call = call(definition, arguments);
        let control = CallControl { timeout: PATIENCE, progress, permit: cancel.into() };
        wait::within(name, PATIENCE * 2, self.door.execute(&self.owner, definition, &call, control)).await
    }
}

/// M-27.
#[tokio::test(flavor = "multi_thread")]
async fn two_owners_do_not_see_what_a_server_remembers() {
    let homes = tempfile::tempdir().unwrap();
    let memory =
        json!({"command": "node", "args": [entry("server-memory")], "env": {"MEMORY_FILE_PATH": "${server.home}/memory.jsonl"}});
    let mut shared = memory.clone();
    shared["capstan"] = json!({"shared": true});
    let door = door(&json!({"own": memory, "all": shared}), ConnectionLimits::default(), Some(homes.path()));
    let (ann, bob) = (Hand::of(&door, "ann").await, Hand::of(&door, "bob").await);
    let entities = json!({"entities": [{"name": "Ada", "entityType": "person", "observations": ["likes numbers"]}]});
    for server in ["own", "all"] {
        let kept = ann.call(&format!("{server}__create_entities"), entities.clone()).await;
        assert_eq!(kept.state, ToolCallState::Done, "{kept:?}");
    }
    let search = json!({"query": "numbers"});
    for (hand, server, sees) in [(&ann, "own", true), (&bob, "own", false), (&ann, "all", true), (&bob, "all", true)] {
        let found = hand.call(&format!("{server}__search_nodes"), search.clone()).await;
        assert_eq!((found.state, text(&found).contains("Ada")), (ToolCallState::Done, sees), "{} {server}", hand.owner);
    }
    let kept: Vec<String> =
        std::fs::read_dir(homes.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    let of = |name: &str| kept.iter().filter(|folder| folder.ends_with(&format!("-{}", owner(name)))).count();
    assert_eq!((kept.len(), of("ann"), of("bob")), (3, 1, 1), "{kept:?}");
    door.shutdown().await;
}

/// M-27.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_over_http_is_of_one_owner_too() {
    let (_http, port) = everything_at("streamableHttp").await;
    let remote = |shared: bool| json!({"url": format!("http://127.0.0.1:{port}/mcp"), "capstan": {"shared": shared}});
    let door = door(&json!({"own": remote(false), "all": remote(true)}), ConnectionLimits::default(), None);
    for name in ["ann", "bob"] {
        let hand = Hand::of(&door, name).await;
        for server in ["own", "all"] {
            assert_eq!(text(&hand.call(&format!("{server}__echo"), json!({"message": "hello"})).await), "Echo: hello");
        }
    }
    // The state of another owner's connection is hidden. The shared connection's state is visible to all.
    let seen = door.servers(&owner("eve")).await;
    let states: Vec<(&str, &str)> = seen.iter().map(|server| (server.name.as_str(), server.status.as_str())).collect();
    assert_eq!(states, [("all", "ok"), ("own", "unknown")]);
    door.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_server_is_stopped_and_stays_offered() {
    let (idle, busy, asking) = (Scripted::default(), Scripted::default(), Scripted::default());
    let (_http, port) = everything_at("streamableHttp").await;
    let mut asks = asking.entry(&["elicits", "stateless"]);
    asks["capstan"] = json!({"elicitation": true});
    let servers = json!({
        "idle": idle.entry(&["family"]), "busy": busy.entry(&[]), "asking": asks,
        "remote": {"url": format!("http://127.0.0.1:{port}/mcp")},
    });
    let limits = ConnectionLimits { idle: Some(Duration::from_secs(1)), processes: None, ..ConnectionLimits::default() };
    let door = door(&servers, limits, None);
    let ann = Hand::of(&door, "ann").await;
    let names = |hand: &Hand<'_>| hand.tools.iter().map(|tool| tool.name.clone()).collect::<Vec<_>>();
    let offered = names(&ann);

    let (progress, mut reports) = mpsc::channel(4);
    let cancel = CancellationToken::new();
    let hangs = ann.call_with("busy__hang", json!({}), progress, cancel.clone());
    let others = async {
        // A round that waits for an answer.
        let (progress, mut pauses) = mpsc::channel(4);
        let paused = ann.call_with("asking__staged", json!({}), progress, CancellationToken::new());
        let (_, pause) = tokio::join!(paused, pauses.recv());
        assert!(matches!(pause, Some(Report::Pauses(_))), "{pause:?}");
        idle.gone().await;
        let started = idle.log("ready").len();
        let again = Hand::of(&door, "ann").await;
        assert_eq!(names(&again), offered, "its tools stay on offer");
        assert_eq!(idle.log("ready").len(), started, "listing them starts no process");
        let status = door.servers(&again.owner).await.into_iter().find(|server| server.name == "idle").unwrap();
        assert_eq!(status.status, "ok", "{status:?}");
        assert_eq!(text(&again.call("idle__echo", json!({"text": "here"})).await), "here");
        assert_eq!(idle.log("ready").len(), started + 1);
        idle.gone().await;
        assert_eq!(text(&again.call("remote__echo", json!({"message": "here"})).await), "Echo: here");
        assert_eq!((busy.alive().len(), asking.alive().len()), (1, 1), "connections with a call or an open question are not idle");
        cancel.cancel();
    };
    let (outcome, ()) = tokio::join!(hangs, others);
    assert_eq!(outcome.state, ToolCallState::Unknown, "{outcome:?}");
    assert!(reports.recv().await.is_none());
    busy.gone().await;
    let before = busy.log("ready").len();
    // An explicit start keeps the server running.
    let id = capstan::domain::tool::mcp_server::configured_id("busy");
    let started = door.mcp().start(&ann.owner, &id, PATIENCE).await.unwrap();
    assert_eq!((started.status.as_str(), busy.log("ready").len()), ("ok", before + 1), "{started:?}");
    door.shutdown().await;
    assert!([idle, busy, asking].iter().all(|server| server.alive().is_empty()));
}

/// A question may stay unanswered, and the tool executor is not notified if its run is cancelled meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_waits_for_an_answer_keeps_no_place_from_others() {
    let (asking, other) = (Scripted::default(), Scripted::default());
    let mut asks = asking.entry(&["elicits", "stateless"]);
    asks["capstan"] = json!({"elicitation": true});
    let limits = ConnectionLimits { idle: None, processes: Some(1), ..ConnectionLimits::default() };
    let door = door(&json!({"asking": asks, "other": other.entry(&[])}), limits, None);
    let ann = Hand::of(&door, "ann").await;
    let (progress, mut pauses) = mpsc::channel(4);
    let paused = ann.call_with("asking__staged", json!({}), progress, CancellationToken::new());
    let (_, pause) = tokio::join!(paused, pauses.recv());
    assert!(matches!(pause, Some(Report::Pauses(_))), "{pause:?}");
    assert_eq!((asking.alive().len(), other.alive().len()), (1, 0));
    assert_eq!(text(&ann.call("other__echo", json!({"text": "here"})).await), "here");
    assert_eq!((asking.alive().len(), other.alive().len()), (0, 1), "the limit is one process");
    assert_eq!(text(&ann.call("asking__echo", json!({"text": "again"})).await), "again");
    door.shutdown().await;
    assert!([asking, other].iter().all(|server| server.alive().is_empty()));
}

#[tokio::test(flavor = "multi_thread")]
async fn there_are_so_many_processes_and_no_more() {
    let servers: Vec<Scripted> = (0..4).map(|_| Scripted::default()).collect();
    let entries: serde_json::Map<String, Value> =
        servers.iter().enumerate().map(|(n, server)| (format!("s{n}"), server.entry(&[]))).collect();
    let limits = ConnectionLimits { processes: Some(2), ..ConnectionLimits::default() };
    let door = door(&Value::Object(entries), limits, None);
    let alive = || servers.iter().map(|server| server.alive().len()).sum::<usize>();
    let ann = Hand::of(&door, "ann").await;
    for n in 0..4 {
        assert_eq!(text(&ann.call(&format!("s{n}__echo"), json!({"text": "here"})).await), "here");
        assert!(alive() <= 2, "{} processes", alive());
    }
    // The most recently used server stays, and the one before it is stopped.
    assert_eq!(servers[3].alive().len(), 1);
    let before = servers[3].log("ready").len();

    // While calls occupy both processes, a start waits for one of them, but not forever.
    let stop = CancellationToken::new();
    let hang = async |n: usize| {
        let (progress, _reports) = mpsc::channel(1);
        ann.call_with(&format!("s{n}__hang"), json!({}), progress, stop.clone()).await
    };
    let third = async {
        wait::until("both to be at work", PATIENCE, || async {
            (servers[2].log("called").len() == 2 && servers[3].log("called").len() == 2).then_some(())
        })
        .await;
        let began = Instant::now();
        let refused = ann.call("s0__echo", json!({"text": "late"})).await;
        assert!(refused.state == ToolCallState::Failed && text(&refused).contains("mcp.max_processes"), "{refused:?}");
        assert!(text(&refused).contains("nothing was sent") && began.elapsed() < PATIENCE, "{refused:?}");
        let waits = ann.call("s1__echo", json!({"text": "in time"}));
        let ends = async {
            stop.cancel();
        };
        let (done, ()) = tokio::join!(waits, ends);
        assert_eq!(text(&done), "in time", "{done:?}");
    };
    let (one, other, ()) = tokio::join!(hang(2), hang(3), third);
    assert_eq!((one.state, other.state), (ToolCallState::Unknown, ToolCallState::Unknown));
    assert_eq!(servers[3].log("ready").len(), before, "no call under way lost its process");
    assert!(alive() <= 2, "{} processes", alive());
    door.shutdown().await;
    assert_eq!(alive(), 0);
}
