//! One answer of a model beside the steps of a run: asked for, and heard to its end.

use std::sync::Arc;

use futures_util::StreamExt as _;

use super::WorkerDeps;
use crate::domain::ids::{ConversationId, RunId};
use crate::domain::message::Message;
use crate::domain::model::{ModelError, ModelEvent, ModelRequest, ModelTurn, Usage};
use crate::engine::Assembler;

/// Asks, and has the answer or why there is none, and what that has used. `over` ends it before its time, with this reason.
pub async fn one_answer(
    deps: &WorkerDeps,
    request: ModelRequest,
    (run, conversation): (RunId, ConversationId),
    over: impl Future<Output = ModelError>,
) -> (Result<(Message, ModelTurn), ModelError>, Usage) {
    let mut answer = Assembler::new(run, conversation, request.model.clone(), 0).asked(&request);
    let models = Arc::clone(&deps.models);
    let asked = async {
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
    let (asked, is_given_up) = tokio::select! {
        biased;
        why = over => (Err(why), true),
        asked = asked => (asked, false),
    };
    // The provider may have read the request of one that is given up.
    let spent = if is_given_up { answer.given_up() } else { answer.spent() };
    match asked.and_then(|()| answer.finish(deps.ids.as_ref(), deps.clock.now())) {
        Ok((message, turn, _)) => {
            let usage = turn.usage;
            (Ok((message, turn)), usage)
        }
        Err(error) => (Err(error), spent),
    }
}
