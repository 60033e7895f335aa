//! One model call: asks, shows what comes, and assembles it.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::StreamExt;
use tokio::time::Instant;

use super::context::Surround;
use super::log_writer::{RunLog, Urgency};
use crate::domain::message::Role;
use crate::domain::model::{ModelError, ModelEvent, ModelRequest, Usage};
use crate::engine::history::check_sendable;
use crate::engine::{Assembler, PartialAnswer, RunState, model_request};
use crate::provider::ModelStream;
use crate::support::clock::UnixMillis;
use crate::support::failpoint;
use crate::support::ids::SharedIds;

type Asking = Pin<Box<dyn Future<Output = Result<ModelStream, ModelError>> + Send>>;

enum Phase {
    /// Kept across polls: beginning it anew would ask the provider a second time.
    Asking(Asking),
    Streaming(ModelStream),
    Over,
}

/// The request of the model step that is under way. `None` if it breaks the rules that providers have in common, which only a
/// bug of ours can make it: no provider would take it.
pub fn sendable_request(run: &RunState) -> Option<ModelRequest> {
    let mut request = model_request(run);
    if failpoint::is_planted("results-lost") {
        request.messages.retain(|message| message.role != Role::Tool);
    }
    if let Err(broken) = check_sendable(&request.messages) {
        let run_id = &run.record.fence.run_id;
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
    /// A call that has not been made yet.
    pub fn new(surround: &Surround, run: &RunState, request: ModelRequest) -> Self {
        let assembler = Assembler::of(run, &request);
        metrics::histogram!("capstan_request_messages").record(request.messages.len() as f64);
        metrics::histogram!("capstan_request_tokens").record(assembler.asked_tokens() as f64);
        let Surround { deps, attachments, .. } = surround;
        let sees = run.sees(&request.model);
        let (models, store, attachments) = (Arc::clone(&deps.models), Arc::clone(&deps.store), Arc::clone(attachments));
        let asking: Asking = Box::pin(async move {
            // What it holds is given back when the provider begins to answer.
            let expanded = attachments.expand(store.as_ref(), request, sees).await?;
            models.stream(expanded.request).await
        });
        Self { ids: Arc::clone(&deps.ids), assembler, phase: Phase::Asking(asking), began: Instant::now(), shown: false }
    }

    /// Makes the call and shows what the model says until it is finished or has failed. Cancel-safe: what was shown is in the
    /// assembler.
    ///
    /// # Errors
    /// The model's failure.
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
                    // Words are waited for. A call's beginning is most often followed at once by the call, whole, and the end of an
                    // answer by what follows from it.
                    let is_call = matches!(event, ModelEvent::ToolCallStarted { .. } | ModelEvent::ToolCallArguments { .. });
                    let urgency = if is_call || finished { Urgency::Soon } else { Urgency::Now };
                    let items = self.assembler.push(event, self.ids.as_ref());
                    if !self.shown && !items.is_empty() {
                        self.shown = true;
                        metrics::histogram!("capstan_first_token_seconds").record(self.began.elapsed().as_secs_f64());
                    }
                    log.push(items, urgency);
                    if finished {
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

    /// The assembled answer after [`ModelCall::run`] has returned `Ok`.
    pub fn into_assembler(self) -> Assembler {
        self.assembler
    }

    /// What the call has used so far.
    pub fn spent(&self) -> Usage {
        self.assembler.spent()
    }

    /// The same, if it is given up.
    pub fn given_up(&self) -> Usage {
        self.assembler.given_up()
    }

    /// What was shown of an answer that is given up.
    pub fn into_partial(self, now: UnixMillis) -> Option<PartialAnswer> {
        self.assembler.partial(now)
    }
}
