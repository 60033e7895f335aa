//! Clients of providers by their dialects: the only place that knows all of them.

use std::sync::Arc;

use super::client::ClientOptions;
use super::model_client::{ModelClient, SetupError};
use super::quirks::Quirks;
use super::{anthropic, gemini, ollama, openai, responses};
use crate::domain::provider::ProviderKind;

/// Returns a client of an endpoint in its dialect. The quirks are for chat completions alone.
///
/// # Errors
/// If the base URL, the key or a header cannot be used.
pub fn client(kind: ProviderKind, options: ClientOptions, quirks: Quirks) -> Result<Arc<dyn ModelClient>, SetupError> {
    match kind {
        ProviderKind::Openai => openai::client(options, quirks),
        ProviderKind::OpenaiResponses => responses::client(options),
        ProviderKind::Anthropic => anthropic::client(options),
        ProviderKind::Gemini => gemini::client(options),
        ProviderKind::Ollama => ollama::client(options),
    }
}
