//! How a call to a server ended, and the task that may stand for its answer.
//!
//! Owns plain values only. Must not know connections.

use std::time::Duration;

use rmcp::model::CreateTaskResult;
use serde_json::Value;

/// What a server may not ask for.
pub const ASKS: &str = "it asks for input that it is not given";
/// How long after one answer its server is asked again, if it does not say.
pub const USUAL_PAUSE: Duration = Duration::from_secs(1);
/// How soon a server is asked again at the soonest, whatever it says.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
/// How soon a server is asked again at the latest, whatever it says.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The longest name of a task, in bytes.
pub const MAX_NAME: usize = 1_024;

/// How long a call may take.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Without an answer or a report of progress.
    pub silence: Duration,
    /// In all.
    pub whole: Duration,
}

/// How a call ended, as far as the transport can tell.
pub enum Reply {
    /// The server answered, with a result or with what else it is entitled to.
    Result(Value),
    /// The server goes on with the call by itself.
    Task(Task),
    /// The server lets go of the call until it knows more; whoever listens has been told.
    Paused,
    /// The server does not know the task any more that stood for the answer.
    Gone(String),
    /// The server answered with an error of the protocol.
    Refused(String),
    /// The server says that it does not know the session, and so has not looked at the request.
    NoSession(String),
    /// The request never reached the server.
    NotSent(String),
    /// The connection was lost after the request had been sent.
    Lost(String),
    /// No answer and no progress within the limit.
    TimedOut(Duration),
    /// The caller gave up, and the server was told.
    Cancelled,
}

/// The task that stands for the answer to a call.
pub struct Task {
    /// Its name.
    pub id: String,
    /// When it is asked for first.
    pub pause: Duration,
}

impl Task {
    /// The task that a server has answered with.
    ///
    /// # Errors
    /// Why it cannot be asked for.
    pub fn read(created: CreateTaskResult) -> Result<Self, String> {
        let CreateTaskResult { task, .. } = created;
        let id = task.task_id;
        if id.is_empty() || id.len() > MAX_NAME || id.chars().any(char::is_control) {
            return Err(format!("it answers with a task whose name is not of 1 to {MAX_NAME} bytes without control characters"));
        }
        let pause = if task.status.is_terminal() { Duration::ZERO } else { pause(task.poll_interval_ms) };
        Ok(Self { id, pause })
    }

    /// A task that was answered with in a process that is gone.
    pub fn known(id: &str) -> Self {
        Self { id: id.to_owned(), pause: Duration::ZERO }
    }
}

/// Returns the pause before a server is asked again, in bounds.
pub fn pause(wanted_ms: Option<u64>) -> Duration {
    wanted_ms.map_or(USUAL_PAUSE, Duration::from_millis).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
}
