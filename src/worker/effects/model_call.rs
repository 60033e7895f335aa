//! One model call: sends the request, shows the answer, and assembles it.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::StreamExt;
use tokio::time::Instant;

use crate::domain::conversation::{BinaryContent, Role};
use crate::domain::ids::{RunId, UserId};
use crate::domain::model::{ModelError, ModelEvent, ModelRequest};
use crate::engine::{Assembler, RunState, check_sendable};
use crate::provider::ModelStream;
use crate::support::failpoint;
use crate::support::ids::SharedIds;
use crate::worker::context::WorkerContext;
use crate::worker::effects::tool_result_files::ContentStore;
use crate::worker::log_writer::{RunLog, Urgency};
use crate::worker::run::run_metrics;

type Storing = Pin<Box<dyn Future<Output = ModelEvent> + Send>>;
type PendingRequest = Pin<Box<dyn Future<Output = Result<ModelStream, ModelError>> + Send>>;

enum Phase {
    /// Reused across polls, because a new future would send a second request.
    Requesting(PendingRequest),
    Streaming(ModelStream),
    /// A picture is being stored, before the answer refers to it. Kept across polls, so that it is stored once.
    Storing(Storing, ModelStream),
    Over,
}

/// Returns the request if it follows the rules that all providers share. Only a bug of this server violates them.
pub fn sendable_request(run_id: &RunId, mut request: ModelRequest) -> Option<ModelRequest> {
    if failpoint::is_planted("results-lost") {
        request.messages.retain(|message| message.role != Role::Tool);
    }
    if let Err(broken) = check_sendable(&request.messages) {
        tracing::error!(run.id = %run_id, error = %broken, "a request that no provider accepts is not sent: this is a bug of the server");
        metrics::counter!("capstan_invalid_model_requests_total").increment(1);
        return None;
    }
    Some(request)
}

/// A call under way. Dropping it closes the provider's connection.
pub struct ModelCall {
    ids: SharedIds,
    pub assembler: Assembler,
    /// Stores a picture of the answer. Returns the event of the picture, or of a note if it cannot be stored.
    store_picture: Arc<dyn Fn(BinaryContent) -> Storing + Send + Sync>,
    phase: Phase,
    began: Instant,
    /// The label of the model's provider in metrics.
    provider: String,
    has_shown_items: bool,
}

impl ModelCall {
    /// Prepares a call, which [`ModelCall::run`] makes.
    pub fn new(context: &WorkerContext, run: &RunState, request: ModelRequest) -> Self {
        let assembler = Assembler::of(run, &request);
        metrics::histogram!("capstan_request_messages").record(request.messages.len() as f64);
        metrics::histogram!("capstan_request_tokens").record(assembler.request_tokens() as f64);
        let WorkerContext { deps, attachments, .. } = context;
        let has_vision = run.has_vision(&request.model);
        let provider = run_metrics::provider_label(&request.model);
        let (models, store, attachments) = (Arc::clone(&deps.models), Arc::clone(&deps.store), Arc::clone(attachments));
        let pending: PendingRequest = Box::pin(async move {
            // The memory permits are released when the provider begins to answer.
            let expanded = attachments.add_files(store.as_ref(), request, has_vision).await?;
            models.stream(expanded.request).await
        });
        let store_picture = picture_storer(ContentStore::new(deps), run.record.owner.clone());
        Self {
            ids: Arc::clone(&deps.ids),
            assembler,
            store_picture,
            phase: Phase::Requesting(pending),
            began: Instant::now(),
            provider,
            has_shown_items: false,
        }
    }

    /// Makes the call, and shows the answer until it is complete or has failed. Cancel-safe: the assembler keeps the shown part.
    pub async fn run(&mut self, log: &RunLog) -> Result<(), ModelError> {
        loop {
            match &mut self.phase {
                Phase::Requesting(pending) => {
                    let stream = pending.await?;
                    failpoint::hit("C06");
                    self.phase = Phase::Streaming(stream);
                }
                Phase::Streaming(stream) => {
                    log.wait_for_capacity().await;
                    let Some(event) = stream.next().await else {
                        self.phase = Phase::Over;
                        continue;
                    };
                    let event = match event? {
                        ModelEvent::Picture(picture) => {
                            let storing = (self.store_picture)(picture);
                            self.phase = match std::mem::replace(&mut self.phase, Phase::Over) {
                                Phase::Streaming(stream) => Phase::Storing(storing, stream),
                                phase @ (Phase::Requesting(_) | Phase::Storing(..) | Phase::Over) => phase,
                            };
                            continue;
                        }
                        event => event,
                    };
                    let finished = matches!(event, ModelEvent::Finished(_));
                    // Text is written at once, because a reader waits for it. Parts of a tool call and the end of an answer wait,
                    // because more items usually follow at once.
                    let is_call = matches!(event, ModelEvent::ToolCallStarted { .. } | ModelEvent::ToolCallArguments { .. });
                    let urgency = if is_call || finished { Urgency::Soon } else { Urgency::Now };
                    self.show(event, urgency, log);
                    // A broken answer is dropped, however it continues.
                    if finished || self.assembler.broken().is_some() {
                        self.phase = Phase::Over;
                    }
                }
                Phase::Storing(storing, _) => {
                    let event = storing.await;
                    if let Phase::Storing(_, stream) = std::mem::replace(&mut self.phase, Phase::Over) {
                        self.phase = Phase::Streaming(stream);
                    }
                    self.show(event, Urgency::Now, log);
                }
                Phase::Over => {
                    failpoint::hit("C08");
                    return Ok(());
                }
            }
        }
    }

    fn show(&mut self, event: ModelEvent, urgency: Urgency, log: &RunLog) {
        let items = self.assembler.push(event, self.ids.as_ref());
        if !self.has_shown_items && !items.is_empty() {
            self.has_shown_items = true;
            metrics::histogram!("capstan_first_token_seconds", "provider" => self.provider.clone())
                .record(self.began.elapsed().as_secs_f64());
        }
        log.push(items, urgency);
    }
}

fn picture_storer(content_store: ContentStore, owner: UserId) -> Arc<dyn Fn(BinaryContent) -> Storing + Send + Sync> {
    let content_store = Arc::new(content_store);
    Arc::new(move |picture| {
        let (content_store, owner) = (Arc::clone(&content_store), owner.clone());
        Box::pin(async move {
            match content_store.store_picture(&owner, picture).await {
                Ok(stored) => ModelEvent::Picture(stored),
                Err(note) => ModelEvent::Text(note),
            }
        })
    })
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
    use crate::support::clock::{SystemClock, UnixMillis};
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
            store_picture: Arc::new(|_| Box::pin(std::future::pending())),
            phase: Phase::Streaming(Box::pin(endless)),
            began: Instant::now(),
            provider: "demo".to_owned(),
            has_shown_items: false,
        };
        let heard = tokio::time::timeout(Duration::from_secs(60), call.run(&log)).await;
        assert_eq!(heard, Ok(Ok(())), "the call is given up");
        let finished = call.assembler.finish(&SequentialIds::default(), UnixMillis(0));
        assert_eq!(finished.map(|_| ()).map_err(|error| error.kind), Err(ModelErrorKind::BadStream));
    }
}
