//! The words for why a model stopped, of all dialects and gateways.

use super::assembler::incomplete;
use crate::domain::model::{ModelError, ModelErrorKind, ModelFinish};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::provider) enum FinishReason {
    Finish(ModelFinish),
    /// The provider paused a long turn. The answer so far is whole; with calls the provider goes on by itself.
    Paused,
    /// A gateway has no reason, or no word for it.
    Unstated,
}

/// Reads the word for why a model stopped: its reason, the failure that it reports, or `BadStream` for an unknown word.
pub(in crate::provider) fn finish_reason(word: &str) -> Result<FinishReason, ModelError> {
    let lower = word.to_ascii_lowercase().replace('-', "_");
    let failed = |kind, why| Err(ModelError::new(kind, why));
    // Gemini's compatible endpoint says `content_filter: RECITATION` and `function_call_filter: MALFORMED_FUNCTION_CALL`.
    let finish = match lower.split(": ").next().unwrap_or_default() {
        "stop" | "end" | "end_turn" | "eos" | "eos_token" | "stop_sequence" | "stop_token" | "complete" | "completed"
        // Baidu's.
        | "normal" => ModelFinish::Stop,
        "tool_calls" | "tool_call" | "tool_use" | "function_call" => ModelFinish::ToolCalls,
        "length" | "max_tokens" | "max_output_tokens" | "max_completion_tokens" | "max_length" | "maximum_tokens"
        // MiniMax's, and watsonx's, of their windows.
        | "max_output" | "token_limit" | "model_length" | "model_context_window_exceeded"
        // Cohere's, of its window.
        | "error_limit"
        // vLLM's, which cuts a model that repeats itself.
        | "repetition" => ModelFinish::Length,
        "content_filter" | "content_filtered" | "guardrail_intervened" | "refusal" | "safety" | "sensitive"
        // Gemini's.
        | "recitation" | "prohibited_content" | "blocklist" | "spii" | "language" | "model_armor" | "image_safety"
        | "image_prohibited_content" | "image_recitation"
        // GigaChat's.
        | "blacklist"
        // Cohere's.
        | "error_toxic" => ModelFinish::Refused,
        "pause_turn" => return Ok(FinishReason::Paused),
        "other" | "unknown" | "not_finished" => return Ok(FinishReason::Unstated),
        "insufficient_system_resource" => {
            return failed(ModelErrorKind::Overloaded, "the provider ran out of capacity within the answer");
        }
        "error" | "network_error" | "engine_error" => {
            return failed(ModelErrorKind::Unavailable, "the provider broke off with an error");
        }
        // watsonx's, and Cohere's.
        "time_limit" | "timeout" => {
            return failed(ModelErrorKind::Timeout, "the provider broke off because it took too long");
        }
        "abort" | "cancelled" | "canceled" | "user_cancel" => return Err(incomplete("the provider broke off")),
        "malformed_function_call" | "unexpected_tool_call" | "too_many_tool_calls" | "function_call_filter" => {
            return failed(ModelErrorKind::BadStream, "the model wrote a tool call that its provider cannot read");
        }
        _ => return Err(unknown_finish_reason(word)),
    };
    Ok(FinishReason::Finish(finish))
}

/// Reads the word of a dialect whose tool calls come whole: the calls that are there decide, not the reason.
pub(in crate::provider) fn finish_without_calls(word: &str) -> Result<ModelFinish, ModelError> {
    match finish_reason(word)? {
        FinishReason::Finish(ModelFinish::ToolCalls) => Ok(ModelFinish::Stop),
        FinishReason::Finish(finish @ (ModelFinish::Stop | ModelFinish::Length | ModelFinish::Refused)) => Ok(finish),
        FinishReason::Paused | FinishReason::Unstated => Err(unknown_finish_reason(word)),
    }
}

/// Returns the failure of an answer that ended for a reason which its dialect does not have.
pub(in crate::provider) fn unknown_finish_reason(word: &str) -> ModelError {
    ModelError::new(ModelErrorKind::BadStream, &format!("the model stopped for an unknown reason, {word:?}"))
}
