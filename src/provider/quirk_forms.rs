//! The forms that the fields of a request may have, as values of quirks.

use serde::Deserialize;

use crate::domain::model::ReasoningEffort;

/// Whether answers may begin with thoughts between tags, which are then shown as reasoning. Servers that do not take them out leave
/// them there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThoughtsInText {
    /// Those of the models that are known for it.
    ByModel,
    /// Those of all models.
    Always,
    /// None: a tag is a text.
    Never,
}

/// The name of the limit of output tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputLimit {
    /// `max_tokens`.
    MaxTokens,
    /// `max_completion_tokens`.
    MaxCompletionTokens,
}

/// Where the system prompt stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SystemPlace {
    /// A message of the role `system`.
    System,
    /// A message of the role `developer`.
    Developer,
    /// At the beginning of the first message of the user, for models without a system role.
    User,
}

/// The form of the ids of tool calls. An id of another form is replaced, in the call and its result alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallIdRule {
    /// Anything.
    Any,
    /// Exactly nine letters and digits (Mistral).
    NineAlphanumerics,
}

/// Which of the choices of tools a provider takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolChoices {
    /// All of them.
    All,
    /// All but that of one named tool: then it is the only one on offer, and required.
    Unnamed,
    /// Only `auto`. With `none` no tools are offered; what cannot be said is an error.
    AutoOnly,
}

/// How a schema of the answer is asked for.
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

/// How the reasoning effort is asked for.
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
    /// Not at all.
    Unsaid,
}

/// A provider's words for how hard to think; an empty word is not sent.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EffortWords {
    /// For [`ReasoningEffort::None`].
    pub none: String,
    /// For [`ReasoningEffort::Minimal`].
    pub minimal: String,
    /// For [`ReasoningEffort::Low`].
    pub low: String,
    /// For [`ReasoningEffort::Medium`].
    pub medium: String,
    /// For [`ReasoningEffort::High`].
    pub high: String,
    /// For [`ReasoningEffort::XHigh`]; like `high` if absent.
    pub xhigh: Option<String>,
    /// For [`ReasoningEffort::Max`]; like `xhigh` if absent.
    pub max: Option<String>,
}

impl Default for EffortWords {
    fn default() -> Self {
        let [none, minimal, low, medium, high] = ["none", "minimal", "low", "medium", "high"].map(str::to_owned);
        Self { none, minimal, low, medium, high, xhigh: None, max: None }
    }
}

/// From `none` to `max`.
impl From<&[String; 7]> for EffortWords {
    fn from(words: &[String; 7]) -> Self {
        let [none, minimal, low, medium, high, xhigh, max] = words.clone();
        Self { none, minimal, low, medium, high, xhigh: Some(xhigh), max: Some(max) }
    }
}

impl EffortWords {
    /// The word for an effort, if there is one.
    #[must_use]
    pub fn of(&self, effort: ReasoningEffort) -> Option<&str> {
        let word = match effort {
            ReasoningEffort::None => &self.none,
            ReasoningEffort::Minimal => &self.minimal,
            ReasoningEffort::Low => &self.low,
            ReasoningEffort::Medium => &self.medium,
            ReasoningEffort::High => &self.high,
            ReasoningEffort::XHigh => self.xhigh.as_ref().unwrap_or(&self.high),
            ReasoningEffort::Max => self.max.as_ref().or(self.xhigh.as_ref()).unwrap_or(&self.high),
        };
        Some(word.as_str()).filter(|word| !word.is_empty())
    }
}

/// The form in which a model gets its own reasoning back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReasoningForm {
    /// Not at all.
    None,
    /// As the text `reasoning_content`.
    ReasoningContent,
    /// As the text `reasoning`.
    Reasoning,
    /// As the list `reasoning_details`, signatures and encrypted pieces as they came (`OpenRouter`).
    ReasoningDetails,
    /// As `thinking` chunks of the content (Mistral).
    ThinkingChunks,
    /// As the list `thinking_blocks`, with their signatures as they came (`LiteLLM`).
    ThinkingBlocks,
    /// As text between `<think>` tags before the answer (`MiniMax`).
    ThinkTags,
}

/// Which messages without reasoning get the filler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FillerSpan {
    /// Those with calls.
    Calls,
    /// All.
    All,
}

/// Of which messages a model gets its reasoning back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReasoningSpan {
    /// Those after the last message of the user.
    Turn,
    /// All.
    All,
}

/// Where the images of tool results go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolImages {
    /// Into a message of the user after the results: OpenAI's results are texts.
    UserMessage,
    /// Into the result.
    Result,
}

/// How files are sent. A note stands for a file that cannot be sent so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileForm {
    /// As `file` parts with the bytes as a `data:` URL. PDFs only, which are what providers read.
    FileData,
    /// As `document_url` chunks with any URL (Mistral).
    DocumentUrl,
    /// Not at all.
    None,
}

/// The parts of JSON Schema that a provider refuses. Parts without another form are left out: that makes the schema wider, never
/// narrower.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SchemaRules {
    /// Keywords that are left out everywhere.
    pub drop: Vec<String>,
    /// Whether `$ref` is understood. Where not, what it points to stands in its place.
    pub refs: bool,
    /// Whether the parameters of a tool may be a union (`anyOf`, `oneOf`, `allOf`) at the top. Where not, the properties of its
    /// branches stand in one object.
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
