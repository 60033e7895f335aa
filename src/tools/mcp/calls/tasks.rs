//! Tasks: calls that the server continues by itself (SEP-2663, extension `io.modelcontextprotocol/tasks`).
//!
//! A server may answer a call with the id of a task. The id is stored first. Then this process, or the next one, polls the task
//! until it ends, and the call is never sent again. A task ends when the server finishes it or the client cancels it. So it
//! survives the end of this process. If the server has forgotten a task, the replay class decides: a call that may be repeated
//! fails, and any other call has an unknown outcome.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rmcp::model::{CancelTaskParams, ErrorCode, GetTaskParams, InputRequests, TaskPayload, UpdateTaskParams};
use rmcp::service::ServiceError;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::tools::mcp::calls::reply::{ASKS, DEFAULT_PAUSE, Limits, Reply, Task, pause};
use crate::tools::mcp::server::Server;
use crate::tools::mcp::transport::connection::Connection;
use crate::tools::{Handle, Progress, ProgressSender, Report};

/// The time limit of one request about a task.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
const CANCEL_LIMIT: Duration = Duration::from_millis(500);

/// Sends the id of a task to the worker, and waits until the id is stored.
///
/// The function returns without a stored id only if this worker no longer holds the run. The next worker then does not know the
/// task.
pub async fn store(task: &Task, progress: &ProgressSender) {
    let (stored, is_stored) = oneshot::channel();
    if progress.send(Report::Handle(Handle { id: task.id.clone(), stored })).await.is_ok() {
        let _ = is_stored.await;
    }
}

enum TaskPoll {
    Working {
        status: Option<String>,
        pause: Duration,
    },
    InputRequired {
        requests: InputRequests,
        pause: Duration,
    },
    Ended(Reply),
    /// The poll failed: no connection, no answer in time, or an error that does not end the task.
    PollFailed(String),
}

/// Polls a task until it ends. Each answer extends the idle timeout. The connection may be lost and restored meanwhile.
pub async fn follow(
    server: &Arc<Server>,
    task: Task,
    limits: Limits,
    progress: &ProgressSender,
    cancel: &CancellationToken,
) -> Reply {
    let Task { id, mut pause } = task;
    let Limits { idle, total } = limits;
    let mut end = Instant::now() + total;
    let mut limit = end.min(Instant::now() + idle);
    let (mut reported_status, mut news_so_far) = (None, 0.0);
    let (mut answered, mut questions) = (BTreeSet::new(), 0);
    let mut poll_failure = None;
    loop {
        let polled = async {
            tokio::time::sleep(pause).await;
            match tokio::time::timeout(REQUEST_LIMIT, poll_task(server, &id)).await {
                Ok(outcome) => outcome,
                Err(_) => {
                    let seconds = REQUEST_LIMIT.as_secs();
                    TaskPoll::PollFailed(format!("the server did not answer a poll of the task within {seconds} s"))
                }
            }
        };
        let outcome = tokio::select! {
            biased;
            () = cancel.cancelled() => {
                cancel_task(server, &id).await;
                return Reply::Cancelled;
            }
            outcome = polled => outcome,
            () = tokio::time::sleep_until(limit) => match poll_failure {
                // The last poll failed, so the server may continue the task.
                Some(reason) => return Reply::PollFailed(reason),
                None => {
                    cancel_task(server, &id).await;
                    return Reply::TimedOut(if limit == end { total } else { idle });
                }
            },
        };
        poll_failure = None;
        match outcome {
            TaskPoll::Ended(reply) => return reply,
            TaskPoll::PollFailed(reason) => {
                pause = DEFAULT_PAUSE;
                poll_failure = Some(reason);
                continue;
            }
            TaskPoll::Working { status, pause: requested_pause } => {
                pause = requested_pause;
                if status.is_some() && status != reported_status {
                    news_so_far += 1.0;
                    reported_status.clone_from(&status);
                    let _ = progress.try_send(Report::Progress(Progress { progress: news_so_far, total: None, message: status }));
                }
            }
            TaskPoll::InputRequired { mut requests, pause: requested_pause } => {
                pause = requested_pause;
                // The server repeats answered questions until it has processed the answers.
                requests.retain(|name, _| !answered.contains(name));
                if !requests.is_empty() {
                    let names: Vec<String> = requests.keys().cloned().collect();
                    let asked_at = Instant::now();
                    let given = answer_questions(server, &id, requests, &mut questions, progress, cancel).await;
                    // The time limit is suspended while the user answers.
                    end += asked_at.elapsed();
                    match given {
                        AnswerDelivery::Delivered => answered.extend(names),
                        AnswerDelivery::NotDelivered => {}
                        AnswerDelivery::NoAnswers => {
                            cancel_task(server, &id).await;
                            return if cancel.is_cancelled() { Reply::Cancelled } else { Reply::Refused(ASKS.to_owned()) };
                        }
                    }
                }
            }
        }
        limit = end.min(Instant::now() + idle);
    }
}

async fn poll_task(server: &Arc<Server>, id: &str) -> TaskPoll {
    let connected = match server.connected().await {
        Ok(connected) => connected,
        Err(reason) => return TaskPoll::PollFailed(reason),
    };
    let found = match connected.connection.peer.get_task(GetTaskParams::new(id)).await {
        Ok(found) => found.task,
        Err(error) => return poll_outcome_of_error(&connected.connection, &error).await,
    };
    let pause = pause(found.task.poll_interval_ms);
    match found.payload {
        TaskPayload::Working => TaskPoll::Working {
            status: found.task.status_message.map(|status| connected.connection.redactor.redact_text(status)),
            pause,
        },
        TaskPayload::InputRequired { input_requests } => TaskPoll::InputRequired { requests: input_requests, pause },
        TaskPayload::Completed { result } => TaskPoll::Ended(Reply::Result(Value::Object(result))),
        TaskPayload::Failed { error } => {
            let message = error.get("message").and_then(Value::as_str).unwrap_or("it gives no reason");
            TaskPoll::Ended(Reply::Refused(connected.connection.redactor.error_text(message)))
        }
        TaskPayload::Cancelled => TaskPoll::Ended(Reply::Refused("it has cancelled the task".to_owned())),
        // A state of a later revision of the extension.
        _ => TaskPoll::Working { status: None, pause },
    }
}

async fn poll_outcome_of_error(connection: &Connection, error: &ServiceError) -> TaskPoll {
    let reply = connection.reply_from_error(error).await;
    let is_unknown =
        |code: ErrorCode| [ErrorCode::INVALID_PARAMS, ErrorCode::RESOURCE_NOT_FOUND, ErrorCode::METHOD_NOT_FOUND].contains(&code);
    match (error, reply) {
        (ServiceError::McpError(outcome), Reply::Refused(reason)) if connection.is_alive() && is_unknown(outcome.code) => {
            TaskPoll::Ended(Reply::Gone(reason))
        }
        (_, Reply::Refused(reason) | Reply::NoSession(reason) | Reply::NotSent(reason) | Reply::Lost(reason)) => {
            TaskPoll::PollFailed(reason)
        }
        _ => TaskPoll::PollFailed("the server's answer to a poll of the task is not valid".to_owned()),
    }
}

enum AnswerDelivery {
    Delivered,
    /// The answers did not reach the server: the next poll returns the questions again.
    NotDelivered,
    /// There are no answers: the questions are not allowed, or the call was cancelled.
    NoAnswers,
}

async fn answer_questions(
    server: &Arc<Server>,
    id: &str,
    requests: InputRequests,
    questions: &mut usize,
    progress: &ProgressSender,
    cancel: &CancellationToken,
) -> AnswerDelivery {
    let Ok(connected) = server.connected().await else { return AnswerDelivery::NotDelivered };
    let Some(answers) = connected.connection.input(requests, questions, progress, cancel).await else {
        return AnswerDelivery::NoAnswers;
    };
    let request = connected.connection.peer.update_task(UpdateTaskParams::new(id, answers));
    match tokio::time::timeout(REQUEST_LIMIT, request).await {
        Ok(Ok(())) => AnswerDelivery::Delivered,
        Ok(Err(_)) | Err(_) => AnswerDelivery::NotDelivered,
    }
}

/// Cancels a task, if the server can be reached.
async fn cancel_task(server: &Arc<Server>, id: &str) {
    let request = async {
        if let Ok(connected) = server.connected().await {
            let _ = connected.connection.peer.cancel_task(CancelTaskParams::new(id)).await;
        }
    };
    let _ = tokio::time::timeout(CANCEL_LIMIT, request).await;
}

#[cfg(test)]
mod tests {
    use rmcp::model::{CreateTaskResult, Task as Seed, TaskStatus};

    use super::*;
    use crate::tools::mcp::calls::reply::MAX_TASK_ID_BYTES;

    fn read(id: &str, status: TaskStatus, pause_ms: Option<u64>) -> Result<Task, String> {
        let seed = Seed::new(id, status, "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z");
        let seed = pause_ms.map_or(seed.clone(), |ms| seed.with_poll_interval_ms(ms));
        Task::read(CreateTaskResult::new(seed))
    }

    #[test]
    fn a_server_is_asked_neither_too_often_nor_too_seldom() {
        for (requested_pause, pause) in [(None, 1_000), (Some(0), 100), (Some(250), 250), (Some(u64::MAX), 30_000)] {
            assert_eq!(
                read("t", TaskStatus::Working, requested_pause).unwrap().pause,
                Duration::from_millis(pause),
                "{requested_pause:?}"
            );
        }
        assert_eq!(read("t", TaskStatus::Completed, Some(5_000)).unwrap().pause, Duration::ZERO);
    }

    #[test]
    fn task_id_that_cannot_be_stored_is_refused() {
        for id in [String::new(), "a\0b".to_owned(), "x".repeat(MAX_TASK_ID_BYTES + 1)] {
            assert!(read(&id, TaskStatus::Working, None).is_err_and(|reason| reason.contains("1 to 1024 bytes")), "{id:?}");
        }
        let longest = "x".repeat(MAX_TASK_ID_BYTES);
        assert_eq!(read(&longest, TaskStatus::Working, None).unwrap().id, longest);
    }
}
