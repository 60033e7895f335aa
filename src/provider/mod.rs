//! Models: one trait, one folder per wire dialect, and the offline `demo` model.
//!
//! Owns connections to providers and their keys. Must not know runs, events or the database.

pub mod anthropic;
pub mod breaker;
pub mod catalog;
mod client;
pub mod demo;
mod dialect;
mod dialects;
pub mod embeddings;
mod errors;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod gemini;
pub mod http;
mod list;
mod model_client;
pub mod ollama;
pub mod openai;
pub mod openrouter;
mod request;
pub mod responses;
mod router;
mod stream;

pub use self::client::ClientOptions;
pub use self::dialects::client;
pub use self::errors::vendors::Vendor;
pub use self::http::timeouts::StreamLimits;
pub use self::model_client::{ModelClient, ModelStream, SetupError, priced};
pub use self::request::quirk_forms::ThoughtsInText;
pub use self::request::quirks::Quirks;
pub use self::router::Router;
