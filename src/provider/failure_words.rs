//! What providers say where they have no code for it: closed lists of phrases, in lower case, as they were reported.

use crate::domain::model::ModelErrorKind;

const OVERFLOW: [&str; 33] = [
    "maximum context length",
    "context length exceeded",
    "exceeds the context",
    "exceed context limit",
    "exceeds the model's context",
    "available context size",
    "context window",
    "contextwindowexceeded",
    "prompt is too long",
    "input is too long",
    "maximum prompt length",
    "exceeds the maximum number of tokens",
    "reduce the length of the messages",
    // vLLM.
    "longer than the maximum model length",
    // SGLang, and Together with it.
    "longer than the model's context length",
    // Text Generation Inference.
    "`max_new_tokens` must be <=",
    "`inputs` must have less than",
    // Moonshot.
    "exceeded model token limit",
    // DashScope.
    "range of input length should be",
    // Zhipu.
    "prompt exceeds max length",
    // Vertex.
    "but model only supports up to",
    // LM Studio.
    "initial prompt is greater than the context length",
    "context size has been exceeded",
    "when context the overflows",
    // Cohere. Without the colon it is a limit of xAI and Bedrock.
    "too many tokens: ",
    // Bedrock.
    "too many input tokens. max input tokens",
    // watsonx.
    "cannot exceed the total tokens limit",
    // Ollama.
    "exceeded max context length",
    "exceeds maximum context",
    // Copilot.
    "prompt token count of",
    // OpenAI.
    "input tokens exceed the configured limit",
    "input exceeds the context",
    "maximum allowed input length",
];

/// What says that a limit per time is meant.
const VETO: [&str; 8] = ["rate limit", "rate_limit", "per minute", "per day", "per hour", "too many requests", "quota", "(tpm)"];

const QUOTA: [&str; 11] = [
    // Anthropic.
    "credit balance is too low",
    "specified api usage limits",
    // xAI.
    "used all available credits",
    "doesn't have any credits",
    "does not have any credits",
    // Gemini.
    "credits are depleted",
    // OpenRouter.
    "key limit exceeded",
    "insufficient credits",
    // Fireworks.
    "monthly spending limit",
    // DeepSeek, behind gateways.
    "insufficient balance",
    // SiliconFlow.
    "balance is insufficient",
];

const BLOCKED: [&str; 2] = [
    // xAI.
    "content violates usage guidelines",
    // Anthropic.
    "blocked by content filtering policy",
];

/// xAI says this with 400.
const KEYS: [&str; 1] = ["incorrect api key provided"];

fn has(words: &str, phrases: &[&str]) -> bool {
    phrases.iter().any(|phrase| words.contains(phrase))
}

/// Whether the words complain about the length of the prompt. Providers use similar words for limits per minute, which veto.
pub(super) fn says_overflow(words: &str) -> bool {
    let words = words.to_lowercase();
    has(&words, &OVERFLOW) && !has(&words, &VETO)
}

/// Why a request was refused that is well formed, if the words say it.
pub(super) fn refusal(words: &str) -> Option<ModelErrorKind> {
    let words = words.to_lowercase();
    let known =
        [(&QUOTA[..], ModelErrorKind::Quota), (&BLOCKED[..], ModelErrorKind::ContentFilter), (&KEYS[..], ModelErrorKind::Auth)];
    known.into_iter().find(|(phrases, _)| has(&words, phrases)).map(|(_, kind)| kind)
}
