//! User servers: their owners, their tool names, and the lifetime of their connections.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use capstan::domain::ids::{McpServerId, UserId};
use capstan::domain::tool::mcp_server::configured_id;
use capstan::domain::tool::{ToolCallState, ToolDefinition, ToolOutcome};
use capstan::support::clock::{SystemClock, UnixMillis};
use capstan::support::ids::UuidIds;
use capstan::tools::mcp::{ConnectionLimits, McpConfig, Secrets, UserServer, UserServerSource, read_kept};
use capstan::tools::{CallControl, ToolExecutor, ToolExecutorOptions, Toolbox as _};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use support::mcp::{PATIENCE, Scripted, call, text};
use support::wait;

/// User servers in memory instead of a database.
#[derive(Default)]
struct Shelf(Mutex<Vec<UserServer>>);

impl Shelf {
    fn put(&self, owner: Option<&UserId>, name: &str, entry: &Value) -> McpServerId {
        let id = McpServerId::generate(&UuidIds);
        let config = read_kept(entry, &Secrets::new());
        let server = UserServer { id: id.clone(), owner: owner.cloned(), name: name.to_owned(), config, revision: 1 };
        self.0.lock().unwrap().push(server);
        id
    }

    /// Changes the server as another process would.
    fn change(&self, id: &McpServerId) {
        self.0.lock().unwrap().iter_mut().filter(|server| server.id == *id).for_each(|server| server.revision += 1);
    }

    /// Replaces the entry as another process would.
    fn replace(&self, id: &McpServerId, entry: &Value) {
        self.change(id);
        let changed = |server: &mut UserServer| server.config = read_kept(entry, &Secrets::new());
        self.0.lock().unwrap().iter_mut().filter(|server| server.id == *id).for_each(changed);
    }

    fn take(&self, id: &McpServerId) {
        self.0.lock().unwrap().retain(|server| server.id != *id);
    }
}

#[async_trait]
impl UserServerSource for Shelf {
    async fn of_owner(&self, owner: &UserId) -> Result<Vec<UserServer>, String> {
        let all = self.0.lock().unwrap();
        Ok(all.iter().filter(|server| server.owner.as_ref().is_none_or(|whose| whose == owner)).cloned().collect())
    }

    async fn by_ids(&self, ids: &[McpServerId]) -> Result<Vec<UserServer>, String> {
        Ok(self.0.lock().unwrap().iter().filter(|server| ids.contains(&server.id)).cloned().collect())
    }

    fn clear_cache(&self) {}
}

fn owner(name: &str) -> UserId {
    UserId::from_stored(format!("user_{name}"))
}

fn door(configured: &Value, shelf: &Arc<Shelf>) -> Arc<ToolExecutor> {
    limited(configured, shelf, ConnectionLimits::default())
}

fn limited(configured: &Value, shelf: &Arc<Shelf>, connections: ConnectionLimits) -> Arc<ToolExecutor> {
    let mcp = McpConfig::parse(&json!({"mcpServers": configured}).to_string(), &|_| None).unwrap();
    let environment = |name: &str| {
        #[expect(clippy::disallowed_methods, reason = "the tests play the part of the configuration")]
        std::env::var(name).ok()
    };
    let kept: Arc<dyn UserServerSource> = Arc::clone(shelf) as _;
    let options = ToolExecutorOptions::new(std::env::temp_dir(), Arc::new(SystemClock));
    let environment = Arc::new(environment);
    ToolExecutor::new(ToolExecutorOptions {
        mcp,
        user_servers: Some(kept),
        start_wait: PATIENCE,
        connections,
        environment,
        ..options
    })
}

/// Returns an entry whose process is shared by all owners.
fn shared_by_all(server: &Scripted) -> Value {
    let mut entry = server.entry(&[]);
    entry["capstan"] = json!({"shared": true});
    entry
}

async fn run(door: &ToolExecutor, owner: &UserId, definition: &ToolDefinition, arguments: Value) -> ToolOutcome {
    let (progress, _reports) = mpsc::channel(1);
    let asked = call(definition, arguments);
    let control = CallControl { timeout: PATIENCE, progress, permit: CancellationToken::new().into() };
    wait::within(&definition.name, PATIENCE * 2, door.execute(owner, definition, &asked, control)).await
}

/// Returns the tool of this name at the server with this frozen name.
fn tool<'a>(all: &'a [Arc<ToolDefinition>], server: &str, name: &str) -> &'a ToolDefinition {
    let found = all.iter().find(|tool| tool.server.as_deref() == Some(server) && tool.tool == name);
    found.unwrap_or_else(|| panic!("{name} of {server} is not offered"))
}

#[tokio::test(flavor = "multi_thread")]
async fn user_servers_are_per_owner_and_names_stay_reserved() {
    let (of_file, of_all, of_ann, of_bob) = (Scripted::default(), Scripted::default(), Scripted::default(), Scripted::default());
    let (ann, bob) = (owner("ann"), owner("bob"));
    let shelf = Arc::new(Shelf::default());
    // Members choose the names of their servers.
    let annas = shelf.put(Some(&ann), "mail", &of_ann.entry(&[]));
    let shared = shelf.put(None, "notes", &shared_by_all(&of_all));
    let bobs = shelf.put(Some(&bob), "notes", &of_bob.entry(&[]));
    let door = door(&json!({"mail": shared_by_all(&of_file)}), &shelf);
    let seen_by_ann = door.definitions(&ann).await;
    let seen_by_bob = door.definitions(&bob).await;
    for seen in [&seen_by_ann, &seen_by_bob] {
        assert_eq!(tool(seen, "mail", "echo").name, "mail__echo", "the operator's server keeps its name");
        assert_eq!(tool(seen, shared.as_str(), "echo").name, "notes__echo");
    }
    let (mine, theirs) = (tool(&seen_by_ann, annas.as_str(), "echo"), tool(&seen_by_bob, bobs.as_str(), "echo"));
    assert!(mine.name.starts_with("mail_") && mine.name != "mail__echo", "{}", mine.name);
    assert!(theirs.name.starts_with("notes_") && theirs.name != "notes__echo", "{}", theirs.name);
    assert!(mine.description.starts_with("[mail]"), "{}", mine.description);
    assert!(!seen_by_bob.iter().any(|tool| tool.server.as_deref() == Some(annas.as_str())));

    let done = run(&door, &ann, mine, json!({"text": "hello"})).await;
    assert_eq!(done.state, ToolCallState::Done, "{done:?}");
    assert_eq!((of_ann.log("called").len(), of_file.log("called").len()), (1, 0));
    // A tool of another owner cannot be called.
    let refused = run(&door, &bob, mine, json!({"text": "hello"})).await;
    assert!(refused.state == ToolCallState::Failed && text(&refused).contains("not configured"), "{refused:?}");
    assert_eq!(of_ann.log("called").len(), 1);
    // One process serves both owners.
    assert_eq!((of_all.log("pid").len(), of_file.log("pid").len()), (1, 1));
    door.shutdown().await;
    assert!([of_file, of_all, of_ann, of_bob].iter().all(|server| server.alive().is_empty()));
}

/// M-27.
#[tokio::test(flavor = "multi_thread")]
async fn global_server_has_a_process_per_owner() {
    let (of_file, of_all) = (Scripted::default(), Scripted::default());
    let shelf = Arc::new(Shelf::default());
    let shared = shelf.put(None, "notes", &of_all.entry(&[]));
    let door = door(&json!({"mail": of_file.entry(&[])}), &shelf);
    for name in ["ann", "bob", "ann"] {
        let owner = owner(name);
        let seen = door.definitions(&owner).await;
        for server in ["mail", shared.as_str()] {
            let done = run(&door, &owner, tool(&seen, server, "echo"), json!({"text": name})).await;
            assert_eq!(done.state, ToolCallState::Done, "{done:?}");
        }
    }
    assert_eq!((of_file.log("pid").len(), of_all.log("pid").len()), (2, 2));
    // A stop ends the processes of all owners.
    door.mcp().stop(&configured_id("mail")).await;
    assert_eq!((of_file.alive().len(), of_all.alive().len()), (0, 2));
    door.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn server_changed_elsewhere_ends_its_connections() {
    let server = Scripted::default();
    let ann = owner("ann");
    let shelf = Arc::new(Shelf::default());
    let id = shelf.put(Some(&ann), "mail", &server.entry(&["family"]));
    let door = door(&json!({}), &shelf);
    let seen = door.definitions(&ann).await;
    let echo = tool(&seen, id.as_str(), "echo");
    assert_eq!(server.alive().len(), 3);
    shelf.change(&id);
    server.gone().await;
    let done = run(&door, &ann, echo, json!({"text": "again"})).await;
    assert_eq!(done.state, ToolCallState::Done, "the frozen tool goes to the same server: {done:?}");
    assert_eq!(server.alive().len(), 3);
    // This process is notified at once.
    shelf.take(&id);
    door.mcp().changed(&id).await;
    server.gone().await;
    let refused = run(&door, &ann, echo, json!({"text": "late"})).await;
    assert!(text(&refused).contains("not enabled"), "{refused:?}");
    assert!(door.definitions(&ann).await.iter().all(|tool| tool.server.is_none()));
    door.shutdown().await;
}

/// A server that never answers can be ended like any other, and one that waits for a start slot is never started.
#[tokio::test(flavor = "multi_thread")]
async fn starting_server_is_ended_by_a_change() {
    let silent: Vec<Scripted> = (0..4).map(|_| Scripted::default()).collect();
    let waiting = Scripted::default();
    let ann = owner("ann");
    let shelf = Arc::new(Shelf::default());
    let ids: Vec<McpServerId> = silent
        .iter()
        .enumerate()
        .map(|(n, server)| shelf.put(Some(&ann), &format!("s{n}"), &server.entry(&["deaf", "family"])))
        .collect();
    let last = shelf.put(Some(&ann), "last", &waiting.entry(&[]));
    // No start slot is freed by the start timeout.
    let door = limited(&json!({}), &shelf, ConnectionLimits { start: PATIENCE * 60, ..ConnectionLimits::default() });
    let begin = async |id: &McpServerId| door.mcp().start(&ann, id, Duration::ZERO).await.unwrap().status;
    for (id, server) in ids.iter().zip(&silent) {
        assert_eq!(begin(id).await, "starting");
        wait::until("the processes", PATIENCE, || async { (server.alive().len() == 3).then_some(()) }).await;
    }
    // All start slots are taken now.
    assert_eq!(begin(&last).await, "starting");
    wait::within("the end of what was not begun", PATIENCE, door.mcp().stop(&last)).await;
    // Disabled.
    shelf.take(&ids[0]);
    door.mcp().changed(&ids[0]).await;
    silent[0].gone().await;
    for (id, server) in ids.iter().zip(&silent) {
        wait::within("its end", PATIENCE, door.mcp().stop(id)).await;
        assert_eq!(server.alive(), Vec::<i64>::new(), "no process is left after the stop");
    }
    // The start slots are free again for other servers.
    let next = Scripted::default();
    let id = shelf.put(Some(&ann), "next", &next.entry(&[]));
    assert_eq!(door.mcp().start(&ann, &id, PATIENCE).await.unwrap().status, "ok");
    door.shutdown().await;
    assert_eq!(waiting.log("pid").len(), 0, "the stopped server is not started");
}

#[tokio::test(flavor = "multi_thread")]
async fn offered_tool_is_not_called_at_a_changed_server() {
    let (server, other) = (Scripted::default(), Scripted::default());
    let ann = owner("ann");
    let shelf = Arc::new(Shelf::default());
    let id = shelf.put(Some(&ann), "mail", &server.entry(&[]));
    let door = door(&json!({}), &shelf);
    let seen = door.definitions(&ann).await;
    let echo = tool(&seen, id.as_str(), "echo").clone();
    // The same program with the same tools, under another path.
    let mut entry = other.entry(&[]);
    let folder = tempfile::tempdir().unwrap();
    let moved = folder.path().join("python");
    let script = format!("#!/bin/sh\nexec {} \"$@\"\n", entry["command"].as_str().unwrap());
    std::fs::write(&moved, script).unwrap();
    std::fs::set_permissions(&moved, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    entry["command"] = json!(moved);
    shelf.replace(&id, &entry);
    server.gone().await;
    let refused = run(&door, &ann, &echo, json!({"text": "late"})).await;
    assert!(refused.state == ToolCallState::Failed && text(&refused).contains("has another destination since"), "{refused:?}");
    assert_eq!(other.log("called").len(), 0);
    let again = door.definitions(&ann).await;
    let moved = tool(&again, id.as_str(), "echo");
    assert_eq!(moved.definition_hash, echo.definition_hash);
    assert_ne!(moved.consent_hash(), echo.consent_hash(), "an approval of one server does not apply to the other");
    assert_eq!(run(&door, &ann, moved, json!({"text": "now"})).await.state, ToolCallState::Done);
    door.shutdown().await;
}

/// The scripted server as Ann's server "mail", with the tools that she is offered.
async fn mail() -> (Scripted, UserId, McpServerId, Arc<ToolExecutor>, Vec<Arc<ToolDefinition>>) {
    let server = Scripted::default();
    let ann = owner("ann");
    let shelf = Arc::new(Shelf::default());
    let id = shelf.put(Some(&ann), "mail", &server.entry(&[]));
    let door = door(&json!({}), &shelf);
    let seen = door.definitions(&ann).await;
    (server, ann, id, door, seen)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_connection_is_made_again_by_itself() {
    let (server, ann, id, door, seen) = mail().await;
    run(&door, &ann, tool(&seen, id.as_str(), "die"), json!({})).await;
    // The reconnection needs no call.
    wait::until("another process", PATIENCE, || async { (server.log("pid").len() == 2).then_some(()) }).await;
    wait::until("the connection", PATIENCE, || async {
        let status = door.mcp().status_of(&ann, &id).await.unwrap();
        (status.status == "ok" && status.tools > 0 && status.since.is_some()).then_some(())
    })
    .await;
    door.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_reconnection_names_the_time_of_the_next() {
    let (server, ann, id, door, seen) = mail().await;
    let status = async || door.mcp().status_of(&ann, &id).await.unwrap();
    assert_eq!(status().await.next_attempt_at, None, "it is connected");
    server.damage();
    run(&door, &ann, tool(&seen, id.as_str(), "die"), json!({})).await;
    let failed = wait::until("a planned attempt", PATIENCE, || async {
        Some(status().await).filter(|status| status.next_attempt_at.is_some())
    })
    .await;
    let time = |text: Option<String>| UnixMillis::from_rfc3339(&text.unwrap()).unwrap();
    let (since, next) = (time(failed.since), time(failed.next_attempt_at));
    assert!(next > since && next < since.after(20_000), "failed at {since:?}, and is tried again at {next:?}");
    assert_eq!(failed.status, "error");
    server.repair();
    wait::until("the connection", PATIENCE, || async { (status().await.status == "ok").then_some(()) }).await;
    assert_eq!(status().await.next_attempt_at, None, "it is connected again");
    door.shutdown().await;
}

/// Servers that have never run wait for a call.
#[tokio::test(flavor = "multi_thread")]
async fn failed_first_start_plans_no_attempt() {
    let (server, ann, shelf) = (Scripted::default(), owner("ann"), Arc::new(Shelf::default()));
    let id = shelf.put(Some(&ann), "mail", &server.entry(&["broken"]));
    let door = door(&json!({}), &shelf);
    door.definitions(&ann).await;
    let status = door.mcp().status_of(&ann, &id).await.unwrap();
    assert_eq!((status.status.as_str(), status.failures, status.next_attempt_at), ("error", 1, None));
    door.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn crash_looping_server_stays_down_until_started() {
    let (server, ann, id, door, seen) = mail().await;
    let die = tool(&seen, id.as_str(), "die");
    for _ in 0..6 {
        let outcome = run(&door, &ann, die, json!({})).await;
        assert!(text(&outcome).contains("lost"), "{outcome:?}");
    }
    let refused = run(&door, &ann, die, json!({})).await;
    assert!(text(&refused).contains("more than 5 times within 5 minutes"), "{refused:?}");
    assert_eq!(server.log("pid").len(), 6);
    let status = door.mcp().status_of(&ann, &id).await.unwrap();
    assert_eq!(status.status, "error", "{status:?}");
    assert!(status.stderr.is_some_and(|said| said.contains("about to die")), "the last output is shown");
    let status = door.mcp().start(&ann, &id, Duration::from_secs(30)).await.unwrap();
    assert_eq!((status.status.as_str(), server.log("pid").len()), ("ok", 7), "{status:?}");
    assert_eq!(door.mcp().start(&owner("bob"), &id, PATIENCE).await, None);
    door.shutdown().await;
}

/// In virtual time: the program does not exist, so no real process delays the test.
#[tokio::test(start_paused = true)]
async fn unused_owner_connections_are_dropped() {
    let ann = owner("ann");
    let shelf = Arc::new(Shelf::default());
    let entry = json!({"command": "/no/such/program"});
    let of_all = json!({"command": "/no/such/program", "capstan": {"shared": true}});
    let (own, shared) = (shelf.put(Some(&ann), "own", &entry), shelf.put(None, "shared", &of_all));
    let door = door(&json!({}), &shelf);
    door.definitions(&ann).await;
    let state = async |id: &McpServerId| door.mcp().status_of(&ann, id).await.unwrap().status;
    assert_eq!((state(&own).await, state(&shared).await), ("error".to_owned(), "error".to_owned()));
    let begun = tokio::time::Instant::now();
    wait::until("the server to be forgotten", Duration::from_secs(2_000), || async {
        (state(&own).await == "unknown").then_some(())
    })
    .await;
    assert!(begun.elapsed() >= Duration::from_secs(1_800), "{:?}", begun.elapsed());
    assert_eq!(state(&shared).await, "error", "the global server's state stays");
    door.shutdown().await;
}
