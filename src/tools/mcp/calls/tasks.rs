//! Tasks: calls that the server continues by itself (SEP-2663, extension `io.modelcontextprotocol/tasks`).
//!
//! A server may answer a call with the id of a task. The id is stored before anything else happens. Then the task is polled until it
//! ends, by this process or by the next one, and the call is never sent again. Only an explicit cancellation ends a task, so it
//! survives the end of this process. If the server has forgotten a task, the outcome is unknown.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rmcp::model::{CancelTaskParams, ErrorCode, GetTaskParams, InputRequests, TaskPayload, UpdateTaskParams};
use rmcp::service::ServiceError;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::tools::mcp::calls::reply::{ASKS, Limits, Reply, Task, USUAL_PAUSE, pause};
use crate::tools::mcp::server::Server;
use crate::tools::mcp::transport::connection::Connection;
use crate::tools::{Handle, Progress, ProgressSender, Report};

/// How long one poll may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
const CANCEL_LIMIT: Duration = Duration::from_millis(500);

/// Has the id of a task stored. If that fails, the run is about to be loaded again, and this call to be dropped.
pub async fn store(task: &Task, progress: &ProgressSender) {
    let (stored, is_stored) = oneshot::channel();
    if progress.send(Report::Handle(Handle { id: task.id.clone(), stored })).await.is_ok() {
        let _ = is_stored.await;
    }
}

enum Polled {
    Working {
        news: Option<String>,
        pause: Duration,
    },
    Asks {
        requests: InputRequests,
        pause: Duration,
    },
    Over(Reply),
    /// The server cannot be reached, or did not answer in time.
    Away(String),
}

/// Polls a task until it ends. Each answer extends the limit of silence. The connection may be lost and restored meanwhile.
pub async fn follow(
    server: &Arc<Server>,
    task: Task,
    limits: Limits,
    progress: &ProgressSender,
    cancel: &CancellationToken,
) -> Reply {
    let Task { id, mut pause } = task;
    let Limits { silence, whole } = limits;
    let mut end = Instant::now() + whole;
    let mut limit = end.min(Instant::now() + silence);
    let (mut shown, mut news_so_far) = (None, 0.0);
    let (mut answered, mut questions) = (BTreeSet::new(), 0);
    let mut away = None;
    loop {
        let asked = async {
            tokio::time::sleep(pause).await;
            match tokio::time::timeout(ANSWER_LIMIT, ask(server, &id)).await {
                Ok(said) => said,
                Err(_) => Polled::Away(format!("it does not say within {ANSWER_LIMIT:?} how far it is")),
            }
        };
        let said = tokio::select! {
            biased;
            () = cancel.cancelled() => {
                give_up(server, &id).await;
                return Reply::Cancelled;
            }
            said = asked => said,
            () = tokio::time::sleep_until(limit) => match away {
                // The server may continue with the task, and cannot be told to stop.
                Some(reason) => return Reply::Lost(reason),
                None => {
                    give_up(server, &id).await;
                    return Reply::TimedOut(if limit == end { whole } else { silence });
                }
            },
        };
        away = None;
        match said {
            Polled::Over(reply) => return reply,
            Polled::Away(reason) => {
                pause = USUAL_PAUSE;
                away = Some(reason);
                continue;
            }
            Polled::Working { news, pause: wanted } => {
                pause = wanted;
                if news.is_some() && news != shown {
                    news_so_far += 1.0;
                    shown.clone_from(&news);
                    let _ = progress.try_send(Report::Progress(Progress { progress: news_so_far, total: None, message: news }));
                }
            }
            Polled::Asks { mut requests, pause: wanted } => {
                pause = wanted;
                // The server repeats answered questions until it has processed the answers.
                requests.retain(|name, _| !answered.contains(name));
                if !requests.is_empty() {
                    let names: Vec<String> = requests.keys().cloned().collect();
                    let asked_at = Instant::now();
                    let given = answer(server, &id, requests, &mut questions, progress, cancel).await;
                    // The time limit stands still while the user answers.
                    end += asked_at.elapsed();
                    match given {
                        Given::Told => answered.extend(names),
                        Given::NotHeard => {}
                        Given::Nothing => {
                            give_up(server, &id).await;
                            return if cancel.is_cancelled() { Reply::Cancelled } else { Reply::Refused(ASKS.to_owned()) };
                        }
                    }
                }
            }
        }
        limit = end.min(Instant::now() + silence);
    }
}

async fn ask(server: &Arc<Server>, id: &str) -> Polled {
    let live = match server.live().await {
        Ok(live) => live,
        Err(reason) => return Polled::Away(reason),
    };
    let found = match live.connection.peer.get_task(GetTaskParams::new(id)).await {
        Ok(found) => found.task,
        Err(error) => return misunderstood(&live.connection, &error).await,
    };
    let pause = pause(found.task.poll_interval_ms);
    match found.payload {
        TaskPayload::Working => {
            Polled::Working { news: found.task.status_message.map(|news| live.connection.masks.hide_in_text(news)), pause }
        }
        TaskPayload::InputRequired { input_requests } => Polled::Asks { requests: input_requests, pause },
        TaskPayload::Completed { result } => Polled::Over(Reply::Result(Value::Object(result))),
        TaskPayload::Failed { error } => {
            let message = error.get("message").and_then(Value::as_str).unwrap_or("it does not say why");
            Polled::Over(Reply::Refused(live.connection.masks.error_text(message)))
        }
        TaskPayload::Cancelled => Polled::Over(Reply::Refused("it has cancelled the task".to_owned())),
        // A state of a later revision of the extension.
        _ => Polled::Working { news: None, pause },
    }
}

async fn misunderstood(connection: &Connection, error: &ServiceError) -> Polled {
    let reply = connection.reply_from_error(error).await;
    let is_unknown =
        |code: ErrorCode| [ErrorCode::INVALID_PARAMS, ErrorCode::RESOURCE_NOT_FOUND, ErrorCode::METHOD_NOT_FOUND].contains(&code);
    match (error, reply) {
        (ServiceError::McpError(said), Reply::Refused(reason)) if connection.is_alive() && is_unknown(said.code) => {
            Polled::Over(Reply::Gone(reason))
        }
        (_, Reply::Refused(reason) | Reply::NoSession(reason) | Reply::NotSent(reason) | Reply::Lost(reason)) => {
            Polled::Away(reason)
        }
        (_, Reply::Result(_) | Reply::Task(_) | Reply::Paused | Reply::Gone(_) | Reply::TimedOut(_) | Reply::Cancelled) => {
            Polled::Away("its answer is none".to_owned())
        }
    }
}

enum Given {
    Told,
    /// The answers did not reach the server: the next poll returns the questions again.
    NotHeard,
    /// The questions are not allowed.
    Nothing,
}

async fn answer(
    server: &Arc<Server>,
    id: &str,
    requests: InputRequests,
    questions: &mut usize,
    progress: &ProgressSender,
    cancel: &CancellationToken,
) -> Given {
    let Ok(live) = server.live().await else { return Given::NotHeard };
    let Some(answers) = live.connection.input(requests, questions, progress, cancel).await else { return Given::Nothing };
    let told = live.connection.peer.update_task(UpdateTaskParams::new(id, answers));
    match tokio::time::timeout(ANSWER_LIMIT, told).await {
        Ok(Ok(())) => Given::Told,
        Ok(Err(_)) | Err(_) => Given::NotHeard,
    }
}

/// Cancels a task, if the server can be reached.
async fn give_up(server: &Arc<Server>, id: &str) {
    let told = async {
        if let Ok(live) = server.live().await {
            let _ = live.connection.peer.cancel_task(CancelTaskParams::new(id)).await;
        }
    };
    let _ = tokio::time::timeout(CANCEL_LIMIT, told).await;
}

#[cfg(test)]
mod tests {
    use rmcp::model::{CreateTaskResult, Task as Seed, TaskStatus};

    use super::*;
    use crate::tools::mcp::calls::reply::MAX_NAME;

    fn read(id: &str, status: TaskStatus, pause_ms: Option<u64>) -> Result<Task, String> {
        let seed = Seed::new(id, status, "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z");
        let seed = pause_ms.map_or(seed.clone(), |ms| seed.with_poll_interval_ms(ms));
        Task::read(CreateTaskResult::new(seed))
    }

    #[test]
    fn a_server_is_asked_neither_too_often_nor_too_seldom() {
        for (wanted, pause) in [(None, 1_000), (Some(0), 100), (Some(250), 250), (Some(u64::MAX), 30_000)] {
            assert_eq!(read("t", TaskStatus::Working, wanted).unwrap().pause, Duration::from_millis(pause), "{wanted:?}");
        }
        assert_eq!(read("t", TaskStatus::Completed, Some(5_000)).unwrap().pause, Duration::ZERO);
    }

    #[test]
    fn a_name_that_cannot_be_kept_is_refused() {
        for name in [String::new(), "a\0b".to_owned(), "x".repeat(MAX_NAME + 1)] {
            assert!(read(&name, TaskStatus::Working, None).is_err_and(|reason| reason.contains("1 to 1024 bytes")), "{name:?}");
        }
        assert_eq!(read(&"x".repeat(MAX_NAME), TaskStatus::Working, None).unwrap().id.len(), MAX_NAME);
    }
}
