//! The trait of all sources of answers, and the errors of their setup.
//!
//! Must not know any dialect or connection: fakes of other modules implement it, too.

use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{Stream, StreamExt as _, stream};

use crate::domain::ids::UserId;
use crate::domain::model::cost::Prices;
use crate::domain::model::provider::ModelEntry;
use crate::domain::model::{ModelError, ModelErrorKind, ModelEvent, ModelRequest};
use crate::domain::run::context::Capacity;
use crate::support::net::outbound::Forbidden;

/// A model's answer as it comes. It ends after [`ModelEvent::Finished`] or the first error, because every client turns another end into
/// [`ModelErrorKind::IncompleteStream`]. Dropping it closes the connection.
pub type ModelStream = Pin<Box<dyn Stream<Item = Result<ModelEvent, ModelError>> + Send>>;

/// A source of answers: one dialect at one endpoint, the demo model, or the router in front of them.
#[async_trait]
pub trait ModelClient: Send + Sync {
    /// Sends a request. Returns when the provider has begun to answer. The client has its own time limits, and retries no failure.
    async fn stream(&self, request: ModelRequest) -> Result<ModelStream, ModelError>;

    /// Lists the models of the provider in its order, waiting at most this long. Fails for a client that is not of one provider.
    async fn list_models(&self, _patience: Duration) -> Result<Vec<ModelEntry>, ModelError> {
        Err(ModelError::new(ModelErrorKind::InvalidRequest, "there is no list of models"))
    }

    /// Returns the window of a model, as `provider/name`, and whether it sees pictures, as far as that is known.
    async fn capacity(&self, _owner: &UserId, _model: &str) -> Capacity {
        Capacity::default()
    }
}

/// Puts the prices before an answer, so that its reader knows the cost even if the answer breaks off.
pub fn priced(stream: ModelStream, prices: Option<Prices>) -> ModelStream {
    let Some(prices) = prices else { return stream };
    Box::pin(stream::iter([Ok(ModelEvent::Prices(prices))]).chain(stream))
}

/// A provider that cannot be used as it is configured. The messages name the setting, never its value if that is a secret.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    #[error("base URL {url:?} is not usable: {reason}; give one such as https://api.openai.com/v1")]
    BaseUrl {
        /// Without user part and query.
        url: String,
        reason: String,
    },
    #[error("base URL: {0}")]
    Forbidden(#[from] Forbidden),
    #[error("{name} cannot be sent as an HTTP header: it holds a line break or another control character")]
    Header { name: String },
    #[error("the HTTP client for the provider could not be built")]
    Client(#[source] reqwest::Error),
}
