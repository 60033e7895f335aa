//! The values of quirks: the variants that the fields of a request may have.

use serde::Deserialize;

use crate::domain::model::ReasoningEffort;

/// Whether answers may begin with reasoning between tags, which some servers leave in the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InlineReasoning {
    /// Answers of the models that are known for it.
    ByModel,
    Always,
    /// A tag is ordinary text.
    Never,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputLimit {
    MaxTokens,
    MaxCompletionTokens,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SystemPromptRole {
    System,
    Developer,
    /// The first user message begins with the system prompt, for models without a system role.
    User,
}

/// The required format of tool call ids. An id in another format is replaced, in the call and in its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallIdRule {
    Any,
    /// Exactly nine letters and digits (Mistral).
    NineAlphanumerics,
}

/// The values of `tool_choice` that a provider accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolChoices {
    All,
    /// All but a named tool. Instead, the request offers that tool alone and requires a call.
    Unnamed,
    /// Only `auto`. With `none` the request offers no tools; other choices are errors.
    AutoOnly,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SchemaForm {
    /// `response_format` with the schema.
    JsonSchema,
    /// `response_format` asks for any JSON object, and the system prompt shows the schema.
    JsonObject,
    /// The system prompt shows the schema.
    Prompt,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EffortForm {
    /// `reasoning_effort: "low"`.
    Field,
    /// `reasoning: {effort: "low"}` (`OpenRouter`).
    Object,
    /// `thinking: {type: "enabled"}` or `"disabled"` (`DeepSeek`, Zhipu, Moonshot).
    Thinking,
    /// `enable_thinking: true` or `false` (Qwen).
    EnableThinking,
    /// `chat_template_kwargs: {enable_thinking: true}` or `false` (vLLM, llama.cpp).
    ChatTemplate,
    #[serde(rename = "unsaid")]
    NotSent,
}

/// A provider's values for the reasoning efforts. An empty value is not sent.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EffortWords {
    none: String,
    minimal: String,
    low: String,
    medium: String,
    high: String,
    /// Defaults to `high`.
    xhigh: Option<String>,
    /// Defaults to `xhigh`.
    max: Option<String>,
}

impl Default for EffortWords {
    fn default() -> Self {
        let [none, minimal, low, medium, high] = ["none", "minimal", "low", "medium", "high"].map(str::to_owned);
        Self { none, minimal, low, medium, high, xhigh: None, max: None }
    }
}

impl From<&[String; 7]> for EffortWords {
    fn from(words: &[String; 7]) -> Self {
        let [none, minimal, low, medium, high, xhigh, max] = words.clone();
        Self { none, minimal, low, medium, high, xhigh: Some(xhigh), max: Some(max) }
    }
}

impl EffortWords {
    pub fn of(&self, effort: ReasoningEffort) -> Option<&str> {
        let Self { none, minimal, low, medium, high, xhigh, max } = self;
        let xhigh = xhigh.as_ref().unwrap_or(high);
        let words = [none, minimal, low, medium, high, xhigh, max.as_ref().unwrap_or(xhigh)];
        Some(words[effort as usize].as_str()).filter(|word| !word.is_empty())
    }
}

/// How a model gets its own reasoning back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReasoningForm {
    None,
    ReasoningContent,
    Reasoning,
    /// As a list with signatures and encrypted pieces (OpenRouter).
    ReasoningDetails,
    /// As `thinking` chunks of the content (Mistral).
    ThinkingChunks,
    /// As a list with signatures (LiteLLM).
    ThinkingBlocks,
    /// As text between `<think>` tags before the answer (MiniMax).
    ThinkTags,
}

/// The messages without reasoning that get the filler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FillerSpan {
    Calls,
    All,
}

/// The messages whose reasoning a model gets back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReasoningSpan {
    /// Messages after the last user message.
    Turn,
    All,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolImages {
    /// A user message after the results, because OpenAI's results are texts.
    UserMessage,
    Result,
}

/// How files are sent. A note replaces a file that cannot be sent this way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileForm {
    /// As `file` parts with the bytes as a `data:` URL. Only PDFs, because providers accept no other type.
    FileData,
    /// As `document_url` chunks with any URL (Mistral).
    DocumentUrl,
    None,
}

/// The JSON Schema keywords that a provider refuses. A schema without one accepts more values, never fewer.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SchemaRules {
    pub drop: Vec<String>,
    /// Whether `$ref` is accepted. If not, its target replaces it.
    pub refs: bool,
    /// Whether parameters may be a union (`anyOf`, `oneOf`, `allOf`) at the top level. If not, one object has all properties.
    pub top_unions: bool,
}

impl Default for SchemaRules {
    fn default() -> Self {
        Self { drop: Vec::new(), refs: true, top_unions: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn efforts_have_words() {
        let words: EffortWords = toml::from_str("none = ''\nminimal = 'low'").unwrap();
        let said = |effort| words.of(effort);
        assert_eq!((said(ReasoningEffort::None), said(ReasoningEffort::Minimal)), (None, Some("low")));
        assert_eq!(said(ReasoningEffort::High), Some("high"));
        for (toml, xhigh, max) in
            [("high = 'most'", "most", "most"), ("xhigh = 'xhigh'", "xhigh", "xhigh"), ("max = 'max'", "high", "max")]
        {
            let words: EffortWords = toml::from_str(toml).unwrap();
            assert_eq!((words.of(ReasoningEffort::XHigh), words.of(ReasoningEffort::Max)), (Some(xhigh), Some(max)), "{toml}");
        }
    }
}
