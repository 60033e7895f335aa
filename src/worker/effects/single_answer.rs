//! A model's answer outside the steps of a run.

use std::sync::Arc;

use futures_util::StreamExt as _;

use crate::domain::conversation::Message;
use crate::domain::ids::{ConversationId, RunId};
use crate::domain::model::{ModelError, ModelEvent, ModelRequest, ModelTurn, Usage};
use crate::engine::Assembler;
use crate::worker::WorkerDeps;

/// Asks a model; returns the answer or the failure, and the usage. `over` ends the call early, with this reason.
pub async fn one_answer(
    deps: &WorkerDeps,
    request: ModelRequest,
    (run, conversation): (RunId, ConversationId),
    over: impl Future<Output = ModelError>,
) -> (Result<(Message, ModelTurn), ModelError>, Usage) {
    let mut answer = Assembler::new(run, conversation, request.model.clone(), 0).for_request(&request);
    let models = Arc::clone(&deps.models);
    let received = async {
        let mut stream = models.stream(request).await?;
        while let Some(event) = stream.next().await {
            let event = event?;
            let is_over = matches!(event, ModelEvent::Finished(_));
            answer.push(event, deps.ids.as_ref());
            if is_over || answer.broken().is_some() {
                break;
            }
        }
        Ok(())
    };
    let (received, is_given_up) = tokio::select! {
        biased;
        why = over => (Err(why), true),
        received = received => (received, false),
    };
    // The provider may have read the request of a dropped call.
    let spent = if is_given_up { answer.given_up() } else { answer.spent() };
    match received.and_then(|()| answer.finish(deps.ids.as_ref(), deps.clock.now())) {
        Ok((message, turn, _)) => {
            let usage = turn.usage;
            (Ok((message, turn)), usage)
        }
        Err(error) => (Err(error), spent),
    }
}
