//! Creates clients by dialect. This file is the only one that knows all dialects.

use std::sync::Arc;

use crate::domain::model::ProviderKind;
use crate::provider::client::ClientOptions;
use crate::provider::model_client::{ModelClient, SetupError};
use crate::provider::request::quirks::Quirks;
use crate::provider::{anthropic, gemini, ollama, openai, responses};

/// Returns a client of an endpoint in its dialect, without a connection yet. Only chat completions uses the quirks.
pub fn client(kind: ProviderKind, options: ClientOptions, quirks: Quirks) -> Result<Arc<dyn ModelClient>, SetupError> {
    match kind {
        ProviderKind::Openai => openai::client(options, quirks),
        ProviderKind::OpenaiResponses => responses::client(options),
        ProviderKind::Anthropic => anthropic::client(options),
        ProviderKind::Gemini => gemini::client(options),
        ProviderKind::Ollama => ollama::client(options),
    }
}
