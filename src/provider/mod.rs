//! Models: one trait, one folder per dialect, and the offline `demo` model.
//!
//! Owns connections to providers and their keys. Must not know runs, events or the database.

pub mod anthropic;
pub mod catalog;
pub mod circuit_breaker;
mod client;
pub mod demo;
mod dialect;
mod dialects;
pub mod embeddings;
mod errors;
#[cfg(any(test, feature = "fuzzing"))]
#[path = "../../fuzz/src/checks.rs"]
pub mod fuzzing;
pub mod gemini;
pub mod http;
mod model_client;
mod model_list;
pub mod ollama;
pub mod openai;
pub mod openrouter;
mod profile;
mod request;
pub mod responses;
mod router;
mod stream;

pub use self::client::{ChosenModels, ClientOptions};
pub use self::dialects::client;
pub use self::errors::facts::Vendor;
pub use self::http::timeouts::StreamLimits;
pub use self::model_client::{ModelClient, ModelStream, SetupError, priced};
pub use self::profile::{LimitationStore, ProviderLimitationStore};
pub use self::request::quirk_values::InlineReasoning;
pub use self::request::quirks::Quirks;
pub use self::router::Router;
