//! Models: one trait, one folder per wire dialect, and the offline `demo` model.
//!
//! Owns connections to providers and their keys. Must not know runs, events or the database.

mod adapt;
pub mod anthropic;
pub mod breaker;
pub mod catalog;
mod client;
mod compose;
mod connection;
pub mod demo;
mod dialect;
mod dialects;
pub mod embeddings;
mod endpoint;
mod error_facts;
mod failure;
mod frames;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod gemini;
mod json_body;
pub mod limits;
mod lines;
mod list;
mod model_client;
mod monitor;
pub mod ollama;
pub mod openai;
pub mod openrouter;
mod quirk_forms;
mod quirks;
mod refusals;
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

pub use self::client::ClientOptions;
pub use self::dialects::client;
pub use self::limits::StreamLimits;
pub use self::model_client::{ModelClient, ModelStream, SetupError, priced};
pub use self::quirk_forms::ThoughtsInText;
pub use self::quirks::Quirks;
pub use self::router::Router;
pub use self::vendors::Vendor;
