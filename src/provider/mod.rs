//! Models: one trait, one folder per wire dialect, and the offline `demo` model.
//!
//! Owns connections to providers and their keys. Must not know runs, events or the database: it is asked for one answer and
//! streams it.

mod adapt;
pub mod anthropic;
pub mod breaker;
pub mod catalogue;
mod client;
mod compose;
pub mod demo;
mod dialect;
pub mod embeddings;
mod endpoint;
mod failure;
mod failure_codes;
mod failure_words;
mod frames;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod gemini;
pub mod limits;
mod lines;
mod list;
mod monitor;
pub mod ollama;
pub mod openai;
pub mod openrouter;
mod priced;
mod project;
mod refusals;
mod refused_tool;
pub mod responses;
mod router;
mod schema;
mod secrets;
mod sse;
mod strays;
mod stream;
mod transport;
mod vendors;
mod wait;

use std::pin::Pin;

use async_trait::async_trait;
use futures_util::Stream;

pub use self::client::ClientOptions;
pub use self::limits::StreamLimits;
pub use self::list::list_models;
pub use self::priced::priced;
pub use self::router::Router;
pub use self::transport::endpoint_url;
pub use self::vendors::Vendor;
use crate::domain::context::Capacity;
use crate::domain::ids::UserId;
use crate::domain::model::{ModelError, ModelEvent, ModelRequest};
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

    /// What a model, as `provider/name`, reads at most and whether it sees pictures, as far as that is known of it.
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
        /// What is wrong with it.
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
