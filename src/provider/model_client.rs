//! The trait of all sources of answers, and the errors of their setup.
//!
//! Must not know any dialect or connection: fakes of other modules implement it, too.

use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::Stream;

use crate::domain::context::Capacity;
use crate::domain::ids::UserId;
use crate::domain::model::{ModelError, ModelErrorKind, ModelEvent, ModelRequest};
use crate::domain::provider::ModelEntry;
use crate::support::outbound::Forbidden;

/// A model's answer as it comes. Ends after [`ModelEvent::Finished`] or the first error; an end without either cannot happen,
/// because every client turns it into [`crate::domain::model::ModelErrorKind::IncompleteStream`]. Dropping it closes the
/// connection.
pub type ModelStream = Pin<Box<dyn Stream<Item = Result<ModelEvent, ModelError>> + Send>>;

/// A source of answers: one dialect at one endpoint, the demo model, or the router in front of them.
#[async_trait]
pub trait ModelClient: Send + Sync {
    /// Sends a request. Returns when the provider has begun to answer; limits on first byte, idle and total time are the
    /// client's own.
    ///
    /// # Errors
    /// A typed failure; none is retried here.
    async fn stream(&self, request: ModelRequest) -> Result<ModelStream, ModelError>;

    /// Lists the models of the provider in its order, waiting at most this long.
    ///
    /// # Errors
    /// A typed failure; also of a client that is not of one provider.
    async fn list_models(&self, _patience: Duration) -> Result<Vec<ModelEntry>, ModelError> {
        Err(ModelError::new(ModelErrorKind::InvalidRequest, "there is no list of models"))
    }

    /// Returns the window of a model, as `provider/name`, and whether it sees pictures, as far as that is known.
    async fn capacity(&self, _owner: &UserId, _model: &str) -> Capacity {
        Capacity::default()
    }
}

/// A provider that cannot be used as it is configured. The messages name the setting, never its value if that is a secret.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The base URL is no URL, or not an HTTP one.
    #[error("base URL {url:?} is not usable: {reason}; give one such as https://api.openai.com/v1")]
    BaseUrl {
        /// The URL, without user part and query.
        url: String,
        /// The fault.
        reason: String,
    },
    /// The base URL leads where it must not.
    #[error("base URL: {0}")]
    Forbidden(#[from] Forbidden),
    /// The key or an extra header holds a character that no HTTP header can carry.
    #[error("{name} cannot be sent as an HTTP header: it holds a line break or another control character")]
    Header {
        /// The header's name.
        name: String,
    },
    /// The HTTP client could not be built.
    #[error("the HTTP client for the provider could not be built")]
    Client(#[source] reqwest::Error),
}
