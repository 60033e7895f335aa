//! Log output is best effort: if standard error accepts no lines, only the count of lost lines changes.

use std::fs::OpenOptions;
use std::process::Stdio;
use std::time::Duration;

use rstest::rstest;
use serde_json::json;

use support::database::Kind;
use support::server::{Server, Site};
use support::wait;

/// The way in which standard error fails.
#[derive(Debug, Clone, Copy)]
enum BrokenStderr {
    FullDisk,
    ClosedPipe,
    ReaderThatStopped,
}

const RUNS: usize = 60;

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn broken_stderr_loses_only_log_lines(
    #[values(BrokenStderr::FullDisk, BrokenStderr::ClosedPipe, BrokenStderr::ReaderThatStopped)] broken: BrokenStderr,
) {
    // The queue and the pipe are small, so both are full before the last run.
    let site = Site::new(Kind::Sqlite).await.env("CAPSTAN_LOG__QUEUE_BYTES", "8192");
    let (reader, writer) = std::io::pipe().unwrap();
    rustix::pipe::fcntl_setpipe_size(&writer, 4096).unwrap();
    let (stderr, reader) = match broken {
        BrokenStderr::FullDisk => (Stdio::from(OpenOptions::new().write(true).open("/dev/full").unwrap()), None),
        BrokenStderr::ClosedPipe => {
            drop(reader);
            (Stdio::from(writer), None)
        }
        BrokenStderr::ReaderThatStopped => (Stdio::from(writer), Some(reader)),
    };
    let mut server = site.spawn_logging_to(Some(stderr), &[]);
    wait::until("the server to be ready", Duration::from_secs(60), || async { is_ready(&server).await.then_some(()) }).await;

    let mut runs = Vec::with_capacity(RUNS);
    for _ in 0..RUNS {
        runs.push(server.start_run(&json!({"input": "What is 6*7?"})).await);
    }
    for run in &runs {
        let ended = server.finished(run["id"].as_str().unwrap()).await;
        assert_eq!(ended["status"], "completed", "{ended}");
    }
    assert!(is_ready(&server).await);
    assert!(dropped_lines(&server).await > 0);

    server.signal("TERM").await;
    let status = server.ended(Duration::from_secs(20)).await;
    assert_eq!(status.code(), Some(0), "{status}");
    drop(reader);
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_start_with_stopped_reader_still_exits() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    fill(&mut writer);
    // An error at start is the only line that a command prints without a request.
    let site = Site::new(Kind::Sqlite).await;
    let mut server = site.spawn_logging_to(Some(Stdio::from(writer)), &[("DATABASE_URL", "nowhere:database")]);
    let status = server.ended(Duration::from_secs(30)).await;
    assert_eq!(status.code(), Some(1), "{status}");
    drop(reader);
}

#[tokio::test(flavor = "multi_thread")]
async fn hangup_and_user_signals_do_not_end_the_server() {
    let site = Site::new(Kind::Sqlite).await;
    let mut server = site.start().await;
    for name in ["HUP", "USR1", "USR2"] {
        server.signal(name).await;
        let line = format!("SIG{name}");
        let told = || async { server.log_text().lines().any(|text| text.contains(&line)).then_some(()) };
        wait::until("the log to name the ignored signal", Duration::from_secs(20), told).await;
    }
    let run = server.start_run(&json!({"input": "What is 6*7?"})).await;
    assert_eq!(server.finished(run["id"].as_str().unwrap()).await["status"], "completed");
    server.signal("TERM").await;
    assert_eq!(server.ended(Duration::from_secs(20)).await.code(), Some(0));
}

/// Fills a pipe that has no reader.
fn fill(writer: &mut std::io::PipeWriter) {
    let size = rustix::pipe::fcntl_getpipe_size(&*writer).unwrap();
    std::io::Write::write_all(writer, &vec![b'.'; size]).unwrap();
}

async fn is_ready(server: &Server) -> bool {
    server.get("//readyz").send().await.is_ok_and(|answer| answer.status() == 200)
}

async fn dropped_lines(server: &Server) -> u64 {
    let metrics = server.get("//metrics").send().await.unwrap().text().await.unwrap();
    let line = metrics.lines().find_map(|line| line.strip_prefix("capstan_log_lines_dropped_total "));
    line.unwrap().parse().unwrap()
}
