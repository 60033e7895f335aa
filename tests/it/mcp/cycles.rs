//! Repeated starts and crashes of MCP servers: no process, descriptor or task may stay.

use std::time::{Duration, Instant};

use futures_util::stream::{self, StreamExt as _};
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use support::mcp::{PATIENCE, Scripted, Tools, text};
use support::{measure, print_figure, wait};

/// Concurrent cycles.
const AT_A_TIME: usize = 4;

/// Starts a server, uses it, and ends it in the way that its number selects. Returns the server with its log.
async fn cycle(number: usize) -> Scripted {
    let (server, tools) = Tools::scripted(&[], None).await;
    assert_eq!(text(&tools.call("s__echo", json!({"text": "here"})).await), "here");
    let (progress, mut reports) = mpsc::channel(4);
    let cancel = CancellationToken::new();
    match number % 6 {
        0 => {}
        1 => assert!(tools.call("s__die", json!({})).await.is_error),
        2 => assert!(tools.call("s__babble", json!({})).await.is_error),
        // A call is under way at the shutdown.
        3 => drop(tools.call_with("s__hang", json!({}), Duration::from_millis(20), progress, cancel).await),
        // A flood whose end is not awaited.
        4 => {
            let flood = tools.call_with("s__flood", json!({}), PATIENCE, progress, cancel.clone());
            let stop = async {
                reports.recv().await;
                cancel.cancel();
            };
            tokio::join!(flood, stop);
        }
        // The server no longer reads its input, so it does not notice its end.
        _ => drop(tools.call_with("s__wedge", json!({}), Duration::from_millis(20), progress, cancel).await),
    }
    wait::within("the shutdown", PATIENCE, tools.shutdown()).await;
    server
}

fn descriptors() -> usize {
    std::fs::read_dir("/dev/fd").unwrap().count()
}

fn children() -> usize {
    let output = std::process::Command::new("ps").args(["-A", "-o", "ppid="]).output().unwrap();
    let parent = std::process::id().to_string();
    String::from_utf8_lossy(&output.stdout).lines().filter(|line| line.trim() == parent).count()
}

/// M-09: `CAPSTAN_TEST_MCP_CYCLES` is the number of cycles.
#[tokio::test(flavor = "multi_thread")]
async fn starts_crashes_hangs_and_floods_leave_nothing_behind() {
    let cycles = measure::size("CAPSTAN_TEST_MCP_CYCLES", 60);
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    // The first cycles allocate resources that stay.
    for number in 0..2 {
        cycle(number).await;
    }
    let before = (descriptors(), children(), tasks());
    let began = Instant::now();
    let mut left = Vec::new();
    let mut running = stream::iter(0..cycles).map(cycle).buffer_unordered(AT_A_TIME);
    while let Some(server) = running.next().await {
        left.extend(server.alive());
    }
    assert_eq!(left, Vec::<i64>::new(), "processes that outlived the shutdown of their server");
    // `ps` itself is a child of this process.
    wait::until("descriptors, children and tasks to be as before", PATIENCE, || async {
        let now = (descriptors(), children(), tasks());
        (now.0 <= before.0 && now.1 <= before.1 && now.2 <= before.2).then_some(())
    })
    .await;
    print_figure(&format!(
        "{cycles} cycles in {:?}, {:?} before and after (descriptors, children, tasks)",
        began.elapsed(),
        before
    ));
}
