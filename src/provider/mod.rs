//! Models: one trait, one folder per wire dialect, and the offline `demo` model.
//!
//! Owns connections to providers and their keys. Must not know runs, events or the database: it is asked for one answer and
//! streams it.

use std::pin::Pin;

use async_trait::async_trait;
use futures_util::Stream;

use crate::domain::model::{ModelError, ModelEvent, ModelRequest};

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
}
