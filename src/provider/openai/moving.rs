//! Models that a place which speaks chat completions serves over Responses alone.
//!
//! OpenAI's newer models refuse tools over chat completions, and say where they are to be asked
//! (<https://platform.openai.com/docs/guides/migrate-to-responses>). Which they are changes with each model, so nothing is listed:
//! what is refused so is asked for there, and from then on at once.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;

use super::ChatCompletions;
use crate::domain::model::{ModelError, ModelRequest};
use crate::provider::client::DialectClient;
use crate::provider::responses::Responses;
use crate::provider::{ModelClient, ModelStream};

/// What refusals have in common: "To use function tools, use /v1/responses", "only supported in v1/responses".
const ELSEWHERE: &str = "v1/responses";

/// Statuses of such refusals.
const REFUSED: [u16; 3] = [400, 404, 422];

/// Statuses of a place that has no Responses.
const NOT_THERE: [u16; 3] = [404, 405, 501];

/// Asks over chat completions, and over Responses for what is served there.
pub(super) struct Moving {
    pub(super) chat: DialectClient<ChatCompletions>,
    pub(super) responses: DialectClient<Responses>,
    /// What has moved: models, with whether they were offered tools.
    pub(super) moved: Mutex<BTreeSet<(String, bool)>>,
}

#[async_trait]
impl ModelClient for Moving {
    async fn stream(&self, request: ModelRequest) -> Result<ModelStream, ModelError> {
        let kind = (request.model.clone(), !request.tools.is_empty());
        if self.moved.lock().unwrap_or_else(PoisonError::into_inner).contains(&kind) {
            return self.responses.ask(&self.there(request)).await;
        }
        let refusal = match self.chat.ask(&request).await {
            Err(error) if is_elsewhere(&error) => error,
            answer => return answer,
        };
        match self.responses.ask(&self.there(request)).await {
            Err(error) if error.status.is_some_and(|status| NOT_THERE.contains(&status)) => Err(refusal),
            answer => {
                self.moved.lock().unwrap_or_else(PoisonError::into_inner).insert(kind);
                answer
            }
        }
    }
}

impl Moving {
    /// The request as it is made over Responses. Chat completions leave out the stops of models that refuse them.
    fn there(&self, mut request: ModelRequest) -> ModelRequest {
        if !self.chat.dialect().accent.takes_sampling(&request.model) {
            request.options.stop.clear();
        }
        request
    }
}

fn is_elsewhere(error: &ModelError) -> bool {
    error.status.is_some_and(|status| REFUSED.contains(&status)) && error.message.contains(ELSEWHERE)
}
