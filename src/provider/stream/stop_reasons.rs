//! The stop reasons of all dialects and gateways.

use super::assembler::incomplete;
use crate::domain::model::{ModelError, ModelErrorKind, ModelFinish};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::provider) enum StopReason {
    Finish(ModelFinish),
    /// The provider paused a long turn. The answer so far is complete. If it has calls, the provider continues after their results.
    Paused,
    /// A gateway sends no reason, or an empty one.
    Unstated,
}

/// Maps a stop reason to its finish reason, to the failure that it reports, or to `BadStream` if it is unknown.
pub(in crate::provider) fn read_stop_reason(word: &str) -> Result<StopReason, ModelError> {
    let lower = word.to_ascii_lowercase().replace('-', "_");
    let failed = |kind, why| Err(ModelError::new(kind, why));
    // Gemini's compatible endpoint sends `content_filter: RECITATION` and `function_call_filter: MALFORMED_FUNCTION_CALL`.
    let finish = match lower.split(": ").next().unwrap_or_default() {
        "stop" | "end" | "end_turn" | "eos" | "eos_token" | "stop_sequence" | "stop_token" | "complete" | "completed"
        // Baidu.
        | "normal" => ModelFinish::Stop,
        "tool_calls" | "tool_call" | "tool_use" | "function_call" => ModelFinish::ToolCalls,
        "length" | "max_tokens" | "max_output_tokens" | "max_completion_tokens" | "max_length" | "maximum_tokens"
        // MiniMax and watsonx, at the end of the window.
        | "max_output" | "token_limit" | "model_length" | "model_context_window_exceeded"
        // Cohere, at the end of the window.
        | "error_limit"
        // vLLM, which stops a model that repeats itself.
        | "repetition" => ModelFinish::Length,
        "content_filter" | "content_filtered" | "guardrail_intervened" | "refusal" | "safety" | "sensitive"
        // Gemini.
        | "recitation" | "prohibited_content" | "blocklist" | "spii" | "language" | "model_armor" | "image_safety"
        | "image_prohibited_content" | "image_recitation"
        // GigaChat.
        | "blacklist"
        // Cohere.
        | "error_toxic" => ModelFinish::Refused,
        "pause_turn" => return Ok(StopReason::Paused),
        "other" | "unknown" | "not_finished" => return Ok(StopReason::Unstated),
        "insufficient_system_resource" => {
            return failed(ModelErrorKind::Overloaded, "the provider ran out of capacity during the answer");
        }
        "error" | "network_error" | "engine_error" => {
            return failed(ModelErrorKind::Unavailable, "the provider broke off with an error");
        }
        // watsonx and Cohere.
        "time_limit" | "timeout" => {
            return failed(ModelErrorKind::Timeout, "the provider broke off because it took too long");
        }
        "abort" | "cancelled" | "canceled" | "user_cancel" => return Err(incomplete("the provider broke off")),
        "malformed_function_call" | "unexpected_tool_call" | "too_many_tool_calls" | "function_call_filter" => {
            return failed(ModelErrorKind::BadStream, "the model wrote a tool call that its provider cannot read");
        }
        _ => return Err(unknown_stop_reason(word)),
    };
    Ok(StopReason::Finish(finish))
}

/// Maps the stop reason of a dialect with complete tool calls: the calls decide the finish, not the reason.
pub(in crate::provider) fn finish_of_stop_reason(word: &str) -> Result<ModelFinish, ModelError> {
    match read_stop_reason(word)? {
        StopReason::Finish(ModelFinish::ToolCalls) => Ok(ModelFinish::Stop),
        StopReason::Finish(finish @ (ModelFinish::Stop | ModelFinish::Length | ModelFinish::Refused)) => Ok(finish),
        StopReason::Paused | StopReason::Unstated => Err(unknown_stop_reason(word)),
    }
}

/// Returns the failure for a stop reason that the dialect does not define.
pub(in crate::provider) fn unknown_stop_reason(word: &str) -> ModelError {
    ModelError::new(ModelErrorKind::BadStream, &format!("the model stopped for an unknown reason, {word:?}"))
}
