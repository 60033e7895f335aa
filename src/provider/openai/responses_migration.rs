//! Models of a chat completions provider that are available only over Responses.
//!
//! OpenAI's newer models refuse tools over chat completions, with an error that names Responses
//! (<https://platform.openai.com/docs/guides/migrate-to-responses>). No table lists these models: the refused request is repeated over
//! Responses, and later ones use Responses at once.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;

use super::ChatCompletions;
use crate::domain::ids::UserId;
use crate::domain::model::{ModelEntry, ModelError, ModelErrorKind, ModelRequest};
use crate::domain::run::Capacity;
use crate::provider::client::DialectClient;
use crate::provider::errors::facts::is_served_over_responses;
use crate::provider::model_client::{ModelClient, ModelStream};
use crate::provider::responses::Responses;
use crate::support::locks::lock;

/// Statuses of an endpoint without Responses.
const NO_RESPONSES: [u16; 3] = [404, 405, 501];

/// Statuses of gateways that serve only some paths, and of keys that are limited to chat completions.
const RESPONSES_FORBIDDEN: [u16; 2] = [401, 403];

pub(super) struct ResponsesMigration {
    pub(super) chat: DialectClient<ChatCompletions>,
    pub(super) responses: DialectClient<Responses>,
    /// The models that use Responses, each with whether the request offered tools.
    pub(super) moved: Mutex<BTreeSet<(String, bool)>>,
}

#[async_trait]
impl ModelClient for ResponsesMigration {
    async fn stream(&self, request: ModelRequest) -> Result<ModelStream, ModelError> {
        let kind = (request.model.clone(), !request.tools.is_empty());
        if lock(&self.moved).contains(&kind) {
            match self.responses.ask(&self.for_responses(request.clone())).await {
                Err(error) if has_status(&error, &NO_RESPONSES) => {
                    // The model may be available over chat completions again, or the endpoint has changed.
                    lock(&self.moved).remove(&kind);
                }
                answer => return answer,
            }
        }
        let refusal = match self.chat.ask(&request).await {
            Err(error) if is_served_over_responses(&error) => error,
            answer => return answer,
        };
        match self.responses.ask(&self.for_responses(request)).await {
            Ok(answer) => {
                // Only an accepted request proves that the model uses Responses: any name may be refused with this text.
                lock(&self.moved).insert(kind);
                Ok(answer)
            }
            Err(error) if is_unavailable(&error) => Err(refusal),
            Err(error) => Err(error),
        }
    }

    async fn capacity(&self, owner: &UserId, model: &str) -> Capacity {
        self.chat.capacity(owner, model).await
    }

    async fn may_chat(&self, model: &str) -> bool {
        self.chat.may_chat(model).await
    }

    async fn list_models(&self, time_limit: Duration) -> Result<Vec<ModelEntry>, ModelError> {
        self.chat.list_models(time_limit).await
    }
}

impl ResponsesMigration {
    /// Returns the request for Responses, without the options that chat completions omits for this model.
    fn for_responses(&self, mut request: ModelRequest) -> ModelRequest {
        if !self.chat.dialect.quirks.takes_sampling(&request.model) {
            request.options.stop.clear();
            request.options.temperature = None;
            request.options.top_p = None;
        }
        request
    }
}

fn has_status(error: &ModelError, statuses: &[u16]) -> bool {
    error.status.is_some_and(|status| statuses.contains(&status))
}

/// Returns whether Responses is unavailable or cannot express the request. Then the refusal over chat completions is more helpful.
fn is_unavailable(error: &ModelError) -> bool {
    let cannot_be_said = error.status.is_none() && error.kind == ModelErrorKind::InvalidRequest;
    cannot_be_said || has_status(error, &NO_RESPONSES) || has_status(error, &RESPONSES_FORBIDDEN)
}
