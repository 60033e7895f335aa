//! One model call: sends the request, shows the answer, and assembles it.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::StreamExt;
use tokio::time::Instant;

use crate::domain::conversation::message::Role;
use crate::domain::ids::RunId;
use crate::domain::model::{ModelError, ModelEvent, ModelRequest, Usage};
use crate::engine::{Assembler, PartialAnswer, RunState, check_sendable};
use crate::provider::ModelStream;
use crate::support::clock::UnixMillis;
use crate::support::failpoint;
use crate::support::ids::SharedIds;
use crate::worker::context::WorkerContext;
use crate::worker::log_writer::{RunLog, Urgency};

type Asking = Pin<Box<dyn Future<Output = Result<ModelStream, ModelError>> + Send>>;

enum Phase {
    /// Kept across polls: a new future would ask the provider a second time.
    Asking(Asking),
    Streaming(ModelStream),
    Over,
}

/// Returns the request if it keeps the rules that providers have in common. Only a bug of this server breaks them.
pub fn sendable_request(run_id: &RunId, mut request: ModelRequest) -> Option<ModelRequest> {
    if failpoint::is_planted("results-lost") {
        request.messages.retain(|message| message.role != Role::Tool);
    }
    if let Err(broken) = check_sendable(&request.messages) {
        tracing::error!(run.id = %run_id, error = %broken, "a request that no provider takes is not sent: this is a bug of the server");
        metrics::counter!("capstan_unsendable_requests_total").increment(1);
        return None;
    }
    Some(request)
}

/// A call under way. Dropping it closes the provider's connection.
pub struct ModelCall {
    ids: SharedIds,
    assembler: Assembler,
    phase: Phase,
    began: Instant,
    shown: bool,
}

impl ModelCall {
    /// Prepares a call, which [`ModelCall::run`] makes.
    pub fn new(context: &WorkerContext, run: &RunState, request: ModelRequest) -> Self {
        let assembler = Assembler::of(run, &request);
        metrics::histogram!("capstan_request_messages").record(request.messages.len() as f64);
        metrics::histogram!("capstan_request_tokens").record(assembler.asked_tokens() as f64);
        let WorkerContext { deps, attachments, .. } = context;
        let sees = run.sees(&request.model);
        let (models, store, attachments) = (Arc::clone(&deps.models), Arc::clone(&deps.store), Arc::clone(attachments));
        let asking: Asking = Box::pin(async move {
            // The permits are freed when the provider begins to answer.
            let expanded = attachments.expand(store.as_ref(), request, sees).await?;
            models.stream(expanded.request).await
        });
        Self { ids: Arc::clone(&deps.ids), assembler, phase: Phase::Asking(asking), began: Instant::now(), shown: false }
    }

    /// Makes the call, and shows the answer until it is finished or has failed. Cancel-safe: what was shown is in the assembler.
    pub async fn run(&mut self, log: &RunLog) -> Result<(), ModelError> {
        loop {
            match &mut self.phase {
                Phase::Asking(asking) => {
                    let stream = asking.await?;
                    failpoint::reached("C06");
                    self.phase = Phase::Streaming(stream);
                }
                Phase::Streaming(stream) => {
                    log.room().await;
                    let Some(event) = stream.next().await else {
                        self.phase = Phase::Over;
                        continue;
                    };
                    let event = event?;
                    let finished = matches!(event, ModelEvent::Finished(_));
                    // Words are awaited by a reader. The beginning of a call is usually followed at once by the whole call, and the
                    // end of an answer by its consequences.
                    let is_call = matches!(event, ModelEvent::ToolCallStarted { .. } | ModelEvent::ToolCallArguments { .. });
                    let urgency = if is_call || finished { Urgency::Soon } else { Urgency::Now };
                    let items = self.assembler.push(event, self.ids.as_ref());
                    if !self.shown && !items.is_empty() {
                        self.shown = true;
                        metrics::histogram!("capstan_first_token_seconds").record(self.began.elapsed().as_secs_f64());
                    }
                    log.push(items, urgency);
                    // Nothing of a broken answer is kept, however it continues.
                    if finished || self.assembler.broken().is_some() {
                        self.phase = Phase::Over;
                    }
                }
                Phase::Over => {
                    failpoint::reached("C08");
                    return Ok(());
                }
            }
        }
    }

    /// Returns the answer after [`ModelCall::run`] has returned `Ok`.
    pub fn into_assembler(self) -> Assembler {
        self.assembler
    }

    pub fn spent(&self) -> Usage {
        self.assembler.spent()
    }

    /// Returns the usage of a call that is dropped.
    pub fn given_up(&self) -> Usage {
        self.assembler.given_up()
    }

    /// Returns what was shown of an answer that is dropped.
    pub fn into_partial(self, now: UnixMillis) -> Option<PartialAnswer> {
        self.assembler.partial(now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::stream;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::domain::ids::ConversationId;
    use crate::domain::model::ModelErrorKind;
    use crate::domain::run::record::Fence;
    use crate::support::clock::SystemClock;
    use crate::support::ids::SequentialIds;
    use crate::worker::LogWriter;

    #[tokio::test(start_paused = true)]
    async fn broken_answer_is_not_read_to_its_end() {
        let writer = LogWriter::new(Duration::from_millis(25), 16 * 1024);
        let (run, conversation) = (RunId::from_stored("run_1".to_owned()), ConversationId::from_stored("conv_1".to_owned()));
        let fence = Fence { run_id: run.clone(), conversation_id: conversation.clone(), epoch: 1 };
        let log = writer.for_run(fence, 1, CancellationToken::new(), Arc::new(SystemClock));
        let arguments = ModelEvent::ToolCallArguments { index: 0, delta: "{}".to_owned() };
        let endless = stream::iter([Ok(arguments)]).chain(stream::pending());
        let mut call = ModelCall {
            ids: Arc::new(SequentialIds::default()),
            assembler: Assembler::new(run, conversation, "demo/m".to_owned(), 1),
            phase: Phase::Streaming(Box::pin(endless)),
            began: Instant::now(),
            shown: false,
        };
        let heard = tokio::time::timeout(Duration::from_secs(60), call.run(&log)).await;
        assert_eq!(heard, Ok(Ok(())), "the call is given up");
        let finished = call.into_assembler().finish(&SequentialIds::default(), UnixMillis(0));
        assert_eq!(finished.map(|_| ()).map_err(|error| error.kind), Err(ModelErrorKind::BadStream));
    }
}
