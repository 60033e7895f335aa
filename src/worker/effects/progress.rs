//! Reports of a tool call under way: progress, questions, sampling, tasks and pauses.

use std::pin::Pin;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::domain::event::EventBody;
use crate::domain::ids::CallId;
use crate::domain::run::call_handle::Handle as Kept;
use crate::domain::run::{Change, InputRequired};
use crate::engine::StreamItem;
use crate::support::failpoint;
use crate::support::text::prefix_chars;
use crate::tools::{Handle, Progress, Report};
use crate::worker::effects::elicitation::QuestionSender;
use crate::worker::effects::sampling::Sampler;
use crate::worker::log_writer::{RunLog, Urgency};

/// The shortest interval between two progress events of a call.
const INTERVAL: Duration = Duration::from_millis(200);

/// Characters of a report's message that are shown.
const MESSAGE_CHARS: usize = 500;

/// Shows the newest report of each [`INTERVAL`], when the log has capacity for it. Drops reports that are not shown at the end,
/// since the call's outcome follows. Returns the server's request for input, if the server has paused the call.
///
/// The id of a task is stored at once; then the call can be detached (`by_itself`). `log` is the run's current one: progress is lost while
/// the log is not writable, and the id is stored in the next log.
pub async fn show(
    log: &watch::Receiver<RunLog>,
    call: &CallId,
    mut reports: mpsc::Receiver<Report>,
    company: Option<(&QuestionSender, &Sampler)>,
    by_itself: &CancellationToken,
) -> Option<InputRequired> {
    let mut pause = None;
    let mut answers: FuturesUnordered<Pin<Box<dyn Future<Output = ()> + Send + '_>>> = FuturesUnordered::new();
    let mut newest: Option<Progress> = None;
    let mut next = Instant::now();
    loop {
        let may_show = async {
            tokio::time::sleep_until(next).await;
            let log = log.borrow().clone();
            log.wait_for_capacity().await;
        };
        tokio::select! {
            biased;
            report = reports.recv() => match report {
                Some(Report::Progress(report)) => newest = Some(report),
                Some(Report::Asks(asks)) => {
                    if let Some((asker, _)) = company {
                        answers.push(Box::pin(asker.ask(call, *asks)));
                    }
                }
                Some(Report::Samples(samples)) => {
                    if let Some((_, sampler)) = company {
                        answers.push(Box::pin(sampler.answer(*samples)));
                    }
                }
                Some(Report::Handle(Handle { id, stored })) => {
                    if is_stored(log.clone(), Change::SetHandle(call.clone(), Some(Kept::Task(id)))).await {
                        failpoint::hit("handle");
                        by_itself.cancel();
                        let _ = stored.send(());
                    }
                }
                Some(Report::Pauses(asks)) => pause = Some(*asks),
                None => break,
            },
            Some(()) = answers.next() => {}
            () = may_show, if newest.is_some() => {
                if let Some(Progress { progress, total, message }) = newest.take() {
                    let message = message.map(|message| prefix_chars(&message, MESSAGE_CHARS).to_owned());
                    let body = EventBody::ToolProgress { call_id: call.clone(), progress, total, message };
                    log.borrow().push(vec![StreamItem::Event(body)], Urgency::Now);
                    next = Instant::now() + INTERVAL;
                }
            }
        }
    }
    // The call has ended: open questions are closed before its outcome is stored.
    while answers.next().await.is_some() {}
    pause
}

/// Stores a change that may be stored twice, in this log or a later one.
async fn is_stored(mut log: watch::Receiver<RunLog>, change: Change) -> bool {
    loop {
        let now = log.borrow_and_update().clone();
        match now.commit(&[], vec![change.clone()]).await {
            Ok(()) => return true,
            // The run is reloaded under a new fence, or is lost.
            Err(_) => {
                if log.changed().await.is_err() {
                    return false;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::domain::ids::{ConversationId, RunId};
    use crate::domain::run::record::Fence;
    use crate::support::clock::SystemClock;
    use crate::worker::LogWriter;

    #[tokio::test(start_paused = true)]
    async fn a_tool_that_reports_without_end_is_shown_now_and_then() {
        let writer = LogWriter::new(Duration::from_millis(25), 16 * 1024);
        let (run, conversation) = ("run_1".to_owned(), "conv_1".to_owned());
        let fence = Fence { run_id: RunId::from_stored(run), conversation_id: ConversationId::from_stored(conversation), epoch: 1 };
        let log = writer.for_run(fence, 1, CancellationToken::new(), Arc::new(SystemClock));
        let (sender, reports) = mpsc::channel(16);
        let began = Instant::now();
        let tool = async move {
            for n in 0_u32..1_000 {
                let message = Some(format!("{n}{}", "\u{e4}".repeat(600)));
                let _ = sender.try_send(Report::Progress(Progress { progress: f64::from(n), total: None, message }));
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let call = CallId::from_stored("call_1".to_owned());
        let log = watch::channel(log).1;
        futures_util::future::join(tool, show(&log, &call, reports, None, &CancellationToken::new())).await;
        let shown = writer.pending_data();
        assert!(began.elapsed() < Duration::from_millis(1_010), "{:?}", began.elapsed());
        let places: Vec<_> = shown.iter().map(|data| data.split(',').nth(1)).collect();
        assert_eq!(shown.len(), 5, "one per 200 ms: {places:?}");
        for data in &shown {
            let report: serde_json::Value = serde_json::from_str(data).unwrap();
            let message = report["message"].as_str().unwrap();
            assert_eq!(message.chars().count(), MESSAGE_CHARS);
            assert!(message.starts_with(&report["progress"].as_f64().unwrap().to_string()), "{message}");
        }
        let last: serde_json::Value = serde_json::from_str(&shown[4]).unwrap();
        assert!(last["progress"].as_f64().unwrap() >= 795.0, "the newest: {last}");
    }
}
