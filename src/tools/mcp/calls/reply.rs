//! How a call to a server ended, and the task that may replace its answer.

use std::time::Duration;

use rmcp::model::CreateTaskResult;
use serde_json::Value;

/// The reason for refusing a request for input.
pub const ASKS: &str = "it asks for input that is not allowed";
/// The interval of polls of a task, unless the server requests another one within the two bounds below.
pub const DEFAULT_PAUSE: Duration = Duration::from_secs(1);
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The maximum length of a task's id.
pub const MAX_TASK_ID_BYTES: usize = 1_024;

#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The idle timeout: the longest time without an answer or progress.
    pub idle: Duration,
    /// The total timeout.
    pub total: Duration,
}

/// How a call ended, as far as the transport knows.
pub enum Reply {
    Result(Value),
    Task(Task),
    /// The server requires input before it continues; the worker has been notified.
    Paused,
    /// The server does not know the task any more.
    Gone(String),
    /// The last poll of the task before the time limit failed.
    PollFailed(String),
    /// The server answered with a protocol error.
    Refused(String),
    /// The server does not know the session, and has not read the request.
    NoSession(String),
    NotSent(String),
    /// The connection was lost after the request was sent.
    Lost(String),
    TimedOut(Duration),
    /// The caller aborted the call and notified the server.
    Cancelled,
}

pub struct Task {
    pub id: String,
    /// The wait before the first poll.
    pub pause: Duration,
}

impl Task {
    pub fn read(created: CreateTaskResult) -> Result<Self, String> {
        let CreateTaskResult { task, .. } = created;
        let id = task.task_id;
        if id.is_empty() || id.len() > MAX_TASK_ID_BYTES || id.chars().any(char::is_control) {
            return Err(format!(
                "it answers with a task whose id does not have 1 to {MAX_TASK_ID_BYTES} bytes without control characters"
            ));
        }
        let pause = if task.status.is_terminal() { Duration::ZERO } else { pause(task.poll_interval_ms) };
        Ok(Self { id, pause })
    }
}

/// Returns the interval before the next poll, within the bounds.
pub fn pause(wanted_ms: Option<u64>) -> Duration {
    wanted_ms.map_or(DEFAULT_PAUSE, Duration::from_millis).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
}
