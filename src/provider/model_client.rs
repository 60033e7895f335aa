//! The trait of all model clients, and the errors of their setup.
//!
//! Must not know any dialect or connection: fakes of other modules implement the trait, too.

use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{Stream, StreamExt as _, stream};

use crate::domain::ids::UserId;
use crate::domain::model::{ModelEntry, ModelError, ModelErrorKind, ModelEvent, ModelRequest, Prices};
use crate::domain::run::Capacity;
use crate::support::net::egress::EgressDenied;

/// A model's answer as a stream. It ends after [`ModelEvent::Finished`] or the first error, because every client converts another end to
/// [`ModelErrorKind::IncompleteStream`]. Dropping it closes the connection.
pub type ModelStream = Pin<Box<dyn Stream<Item = Result<ModelEvent, ModelError>> + Send>>;

/// A client of models: one dialect at one endpoint, the demo model, or the router over them.
#[async_trait]
pub trait ModelClient: Send + Sync {
    /// Sends a request. Returns when the provider has begun to answer. The client has its own time limits. It repeats a request
    /// only in another form, while a model loads, or over a new connection; its caller retries other failures.
    async fn stream(&self, request: ModelRequest) -> Result<ModelStream, ModelError>;

    /// Lists the models of the provider in its order, within a time limit. Fails for a client without a single provider.
    async fn list_models(&self, _time_limit: Duration) -> Result<Vec<ModelEntry>, ModelError> {
        Err(ModelError::new(ModelErrorKind::InvalidRequest, "there is no list of models"))
    }

    /// Returns the facts about a model that this client knows. A client of one provider gets the bare name.
    async fn capacity(&self, _owner: &UserId, _model: &str) -> Capacity {
        Capacity::default()
    }

    /// Returns whether a model may answer messages, as far as refusals have shown. A client of one provider gets the bare name.
    async fn may_chat(&self, _model: &str) -> bool {
        true
    }
}

/// Puts the prices before an answer, so that its reader knows the cost even if the answer breaks off.
pub fn priced(stream: ModelStream, prices: Option<Prices>) -> ModelStream {
    let Some(prices) = prices else { return stream };
    Box::pin(stream::iter([Ok(ModelEvent::Prices(prices))]).chain(stream))
}

/// A provider with an invalid configuration. The messages name the setting, never its value if that is a secret.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    #[error("base URL {url:?} is not usable: {reason}; set one such as https://api.openai.com/v1")]
    BaseUrl {
        /// Without user part and query.
        url: String,
        reason: String,
    },
    #[error("base URL: {0}")]
    Forbidden(#[from] EgressDenied),
    #[error("{name} cannot be sent as an HTTP header: it contains a line break or another control character")]
    Header { name: String },
    #[error("the HTTP client for the provider could not be built")]
    Client(#[source] reqwest::Error),
}
