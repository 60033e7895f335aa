//! OpenAI's chat completions, which most providers and local servers speak with quirks of their own.
//!
//! Facts about the wire: <https://platform.openai.com/docs/api-reference/chat>. Requests differ by [`Quirks`], which are data; one
//! decoder understands the answers of all providers.

mod calls;
mod chat_completions;
mod decode;
mod details;
mod messages;
mod moving;
mod own;
mod request;
pub(super) mod schema;
mod wire;

use std::sync::{Arc, Mutex};

use self::chat_completions::ChatCompletions;
use self::moving::Moving;
use super::client::{ClientOptions, DialectClient};
use super::endpoint::without_operation;
use super::model_client::{ModelClient, SetupError};
use super::quirks::Quirks;
use super::responses::Responses;
#[cfg(any(test, feature = "fuzzing"))]
use super::{
    quirk_forms::ThoughtsInText,
    stream::{AnswerAssembler, AnswerDecoder, StreamAdapter},
};

/// Returns a client of an endpoint that speaks chat completions, and perhaps Responses beside them for some of its models.
/// A base URL without any path gets `/v1`. No connection is made yet.
///
/// # Errors
/// If the base URL, the URLs of the quirks, the key or a header cannot be used.
pub fn client(options: ClientOptions, quirks: Quirks) -> Result<Arc<dyn ModelClient>, SetupError> {
    let base = without_operation(&options.base_url);
    let beside = (!quirks.responses_url.is_empty()).then(|| Responses::at(&base, quirks.clone())).transpose()?;
    let chat = DialectClient::new(ChatCompletions::at(&options.base_url, quirks)?, options)?;
    Ok(match beside {
        Some(responses) => Arc::new(Moving { responses: chat.speaking(responses), chat, moved: Mutex::default() }),
        None => Arc::new(chat),
    })
}

/// Returns a decoder of an answer without a request, to which two tools were offered.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn decoder() -> AnswerDecoder<impl StreamAdapter> {
    let quirks = Quirks { thoughts_in_text: ThoughtsInText::Always, ..Quirks::default() };
    let answer = AnswerAssembler::new(None, 0).with_tags(quirks.think_tags(""));
    decode::decoder(["get_time", "get_weather"].map(str::to_owned).into(), answer)
}
