//! The processes of MCP servers end with them.

use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};

use support::mcp::{PATIENCE, Scripted, Tools};
#[cfg(target_os = "linux")]
use support::mcp::{control_group, kill};
use support::wait;

/// Returns the server's entry behind a shell, as behind `npx`: the direct child is not the server.
fn behind_a_shell(server: &Scripted, habits: &[&str]) -> Value {
    let command = server.command(habits).iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ");
    json!({"command": "sh", "args": ["-c", format!("'{}' {command}; exit $?", Scripted::python().display())]})
}

/// M-09.
#[rstest]
#[case::obedient(&[], Duration::from_secs(5))]
#[case::with_family(&["family"], Duration::from_secs(10))]
#[case::stubborn(&["stubborn", "family"], Duration::from_secs(20))]
#[tokio::test(flavor = "multi_thread")]
async fn shutdown_leaves_no_process(#[case] habits: &[&str], #[case] limit: Duration) {
    let server = Scripted::default();
    let tools = Tools::new(&json!({"s": behind_a_shell(&server, habits)})).await;
    tools.definition("s__echo");
    let processes = server.alive().len();
    assert_eq!(processes, if habits.contains(&"family") { 3 } else { 1 });
    wait::within("the shutdown", limit, tools.shutdown()).await;
    assert_eq!(server.alive(), Vec::<i64>::new());
    assert_eq!(server.log("input"), [json!("ended")], "it saw the end of its input");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_family_of_a_server_that_died_ends_with_it() {
    let server = Scripted::default();
    let tools = Tools::new(&json!({"s": behind_a_shell(&server, &["family"])})).await;
    let family = server.alive();
    assert_eq!(family.len(), 3);
    tools.call("s__die", json!({})).await;
    // The connection may have been reopened by now, with another process.
    wait::until("the family to end", PATIENCE, || async { (!server.alive().iter().any(|pid| family.contains(pid))).then_some(()) })
        .await;
    tools.shutdown().await;
    server.gone().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_door_takes_its_servers_with_it() {
    let server = Scripted::default();
    let tools = Tools::new(&json!({"s": behind_a_shell(&server, &["family"])})).await;
    assert_eq!(server.alive().len(), 3);
    drop(tools);
    server.gone().await;
}

/// M-10.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn process_outside_the_group_ends_with_its_server() {
    let (server, other) = (Scripted::default(), Scripted::default());
    let tools = Tools::new(&json!({"s": server.entry(&["escapes"]), "t": other.entry(&["escapes"])})).await;
    let first = server.alive();
    assert_eq!((first.len(), other.alive().len()), (2, 2));
    tools.call("s__die", json!({})).await;
    // The connection may have been reopened by now, with another process.
    wait::until("both to end", PATIENCE, || async { (!server.alive().iter().any(|pid| first.contains(pid))).then_some(()) }).await;
    assert_eq!(other.alive().len(), 2, "the other server's process stays");
    wait::within("the shutdown", Duration::from_secs(20), tools.shutdown()).await;
    assert_eq!((server.alive(), other.alive()), (Vec::<i64>::new(), Vec::new()));
}

/// M-10. Its parent still runs when the server is ended, so the parent identifies it.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn process_without_group_and_mark_ends_with_its_parent() {
    let (server, tools) = Tools::scripted(&["forgets", "stubborn"], None).await;
    // A child of another parent: of this process, which is the server's parent, too.
    let mut other = std::process::Command::new("/bin/sleep").arg("1000").env_clear().spawn().unwrap();
    assert_eq!(server.alive().len(), 2);
    wait::within("the shutdown", Duration::from_secs(20), tools.shutdown()).await;
    assert_eq!(server.alive(), Vec::<i64>::new());
    assert!(other.try_wait().unwrap().is_none(), "the other parent's child stays");
    other.kill().unwrap();
    other.wait().unwrap();
}

/// M-10. Without its own control group, a server behaves as in `docs/guides/mcp-servers.md`.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn unmarked_orphan_ends_with_the_control_group() {
    let (server, other) = (Scripted::default(), Scripted::default());
    let tools = Tools::new(&json!({"s": server.entry(&["abandons"]), "t": other.entry(&["abandons"])})).await;
    let groups = (control_group(server.alive()[0]).await, control_group(other.alive()[0]).await);
    for name in ["s__abandon", "t__abandon"] {
        assert!(!tools.call(name, json!({})).await.is_error);
    }
    let (first, others) = (server.alive(), other.alive());
    assert_eq!((first.len(), others.len()), (2, 2));
    let (Some(group), Some(of_other)) = groups else {
        wait::within("the shutdown", Duration::from_secs(20), tools.shutdown()).await;
        assert_eq!((server.alive(), other.alive()), (vec![first[1]], vec![others[1]]));
        return [first[1], others[1]].into_iter().for_each(kill);
    };
    assert_ne!(group, of_other);
    tools.call("s__die", json!({})).await;
    // The connection may have been reopened by now, with another process.
    wait::until("both to end", PATIENCE, || async { (!server.alive().iter().any(|pid| first.contains(pid))).then_some(()) }).await;
    assert_eq!(other.alive(), others, "the other server's processes stay");
    wait::within("the shutdown", Duration::from_secs(20), tools.shutdown()).await;
    assert_eq!((server.alive(), other.alive()), (Vec::<i64>::new(), Vec::new()));
    assert!(!group.exists() && !of_other.exists(), "both control groups are removed");
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_are_used_after_the_shutdown_are_not_started() {
    let (server, tools) = Tools::scripted(&[], None).await;
    tools.shutdown().await;
    let outcome = tools.call("s__echo", json!({"text": "late"})).await;
    assert!(support::mcp::text(&outcome).contains("shut down"), "{outcome:?}");
    assert_eq!(server.log("pid").len(), 1);
    wait::within("a second shutdown", PATIENCE, tools.shutdown()).await;
}
