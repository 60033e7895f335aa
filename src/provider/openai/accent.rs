//! How one provider's chat completions differ from OpenAI's own: data, so that a provider which speaks them needs no code.
//!
//! Only what is *sent* differs here. Answers of all accents are read by one tolerant reader.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::domain::model::{ModelError, ReasoningEffort};
use crate::provider::compose::written;
use crate::provider::stream::ReasoningTags;

/// The accent of a provider. The default is OpenAI's.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Accent {
    /// Where requests go. `{base}` is the base URL with `/v1` where it has no path, `{host}` the base URL as it is, `{model}` the
    /// model's name. Azure: `{host}/openai/deployments/{model}/chat/completions?api-version=2024-10-21`.
    pub url: String,
    /// Where requests go that the provider refuses here and takes over Responses, as OpenAI does for tools of its newer models; an
    /// empty one if there is no such place.
    pub responses_url: String,
    /// The header that bears the key: `authorization` as a bearer token, any other one the bare key (Azure: `api-key`).
    pub key_header: String,
    /// The name of the limit of output tokens.
    pub output_limit: OutputLimit,
    /// Models that know the limit as `max_completion_tokens` only, by the start of their bare names.
    pub new_limit_models: Vec<String>,
    /// Where the system prompt stands.
    pub system: SystemPlace,
    /// Whether streamed answers must be asked for their figures (`stream_options`). Servers that refuse unknown fields give them
    /// unasked.
    pub stream_usage: bool,
    /// What ids of tool calls must look like.
    pub call_ids: CallIdRule,
    /// Which of the choices of tools the provider takes.
    pub tool_choices: ToolChoices,
    /// The word for "must call a tool" (Mistral: `any`).
    pub required_choice: String,
    /// How a schema of the answer is asked for.
    pub output_schema: SchemaForm,
    /// How the reasoning effort is asked for.
    pub effort: EffortForm,
    /// The provider's words for the efforts; an empty word is not sent.
    pub effort_words: EffortWords,
    /// The words of single models, by the start of their bare names; the longest counts.
    pub efforts_of: BTreeMap<String, EffortWords>,
    /// Models that refuse `temperature`, `top_p` and `stop`, by the start of their bare names; the longest counts.
    pub fixed_sampling: BTreeMap<String, bool>,
    /// Whether answers may begin with thoughts between tags.
    pub thoughts_in_text: ThoughtsInText,
    /// Models that write such thoughts, by a part of their bare names.
    pub think_models: Vec<String>,
    /// Those of them whose prompt ends with the opening tag, so that answers begin within the thoughts, by a part of their bare
    /// names: R1 on vLLM without its reasoning parser. Where no closing tag comes either, what was thought is also the answer.
    pub think_opened: Vec<String>,
    /// The tags: what opens thoughts and what closes them.
    pub think_tags: Vec<[String; 2]>,
    /// The form in which the model gets its own reasoning back.
    pub reasoning: ReasoningForm,
    /// Of which messages it gets it back.
    pub reasoning_of: ReasoningSpan,
    /// What stands in place of reasoning in a message with tool calls that has none, for providers that refuse such messages.
    /// Only for the forms that are a text.
    pub reasoning_filler: Option<String>,
    /// Which messages without reasoning get the filler.
    pub filler_of: FillerSpan,
    /// Whether models of this provider see images at all; else a note stands in their place.
    pub images: bool,
    /// Where the images of tool results go.
    pub tool_images: ToolImages,
    /// How files are sent.
    pub files: FileForm,
    /// Whether the result of a tool bears the tool's name.
    pub result_names: bool,
    /// Whether a user may speak directly after tool results. Where not, a short message of the assistant stands between.
    pub user_after_tools: bool,
    /// Whether an answer of calls alone goes back with the content `null`, as `OpenAI` gives it, or with an empty text.
    pub null_content: bool,
    /// What the provider refuses in the schemas of tools and answers.
    pub schemas: SchemaRules,
    /// Fields of the body under other names (Mistral: `seed = "random_seed"`).
    pub rename: BTreeMap<String, String>,
    /// Fields of the body that the provider refuses and that it may do without.
    pub omit: Vec<String>,
    /// More fields of the body, which win over ours.
    pub extra: Map<String, Value>,
}

impl Default for Accent {
    fn default() -> Self {
        Self {
            url: "{base}/chat/completions".to_owned(),
            responses_url: "{base}/responses".to_owned(),
            key_header: "authorization".to_owned(),
            output_limit: OutputLimit::MaxTokens,
            new_limit_models: ["o1", "o3", "o4-mini", "gpt-5", "gpt-6"].map(str::to_owned).to_vec(),
            system: SystemPlace::System,
            stream_usage: true,
            call_ids: CallIdRule::Any,
            tool_choices: ToolChoices::All,
            required_choice: "required".to_owned(),
            output_schema: SchemaForm::JsonSchema,
            effort: EffortForm::Field,
            effort_words: EffortWords::default(),
            efforts_of: efforts_of_openai(),
            fixed_sampling: [
                ("o1", true),
                ("o3", true),
                ("o4-mini", true),
                ("gpt-5", true),
                ("gpt-5-chat", false),
                ("gpt-6", true),
            ]
            .map(|(start, fixed)| (start.to_owned(), fixed))
            .into(),
            thoughts_in_text: ThoughtsInText::ByModel,
            think_models: THINK_MODELS.map(str::to_owned).to_vec(),
            think_opened: Vec::new(),
            think_tags: THINK_TAGS.map(|marks| marks.map(str::to_owned)).to_vec(),
            reasoning: ReasoningForm::None,
            reasoning_of: ReasoningSpan::Turn,
            reasoning_filler: None,
            filler_of: FillerSpan::Calls,
            images: true,
            tool_images: ToolImages::UserMessage,
            files: FileForm::FileData,
            result_names: false,
            user_after_tools: true,
            null_content: true,
            schemas: SchemaRules::default(),
            rename: BTreeMap::new(),
            omit: Vec::new(),
            extra: Map::new(),
        }
    }
}

/// The tags of most open models; of Gemini's compatible endpoint; of gpt-oss at Bedrock; of MiniMax M3; of Seed-OSS, Magistral, Kimi-VL
/// and gpt-oss, where their servers leave them. `<thinking>` is none of them, because prompts ask for it.
const THINK_TAGS: [[&str; 2]; 8] = [
    ["<think>", "</think>"],
    ["<thought>", "</thought>"],
    ["<reasoning>", "</reasoning>"],
    ["<mm:think>", "</mm:think>"],
    ["<seed:think>", "</seed:think>"],
    ["[THINK]", "[/THINK]"],
    ["◁think▷", "◁/think▷"],
    ["<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"],
];

/// Open models that think between tags, those that were trained by their answers, and those whose servers write tags.
const THINK_MODELS: [&str; 27] = [
    "-r1",
    "cogito",
    "deephermes",
    "deepseek-v3.1",
    "ernie-4.5",
    "exaone",
    "gemini-",
    "glm-4",
    "glm-5",
    "glm-z1",
    "gpt-oss",
    "hermes-4",
    "hunyuan",
    "intern-s1",
    "magistral",
    "minimax-m",
    "nemotron",
    "phi-4-reasoning",
    "qwen3",
    "qwq",
    "r1-",
    "reasoning",
    "seed-oss",
    "smollm3",
    "step-3",
    "thinking",
    "tng-",
];

/// The efforts that OpenAI's models know: <https://platform.openai.com/docs/guides/reasoning>. The nearest one stands for one that
/// a model refuses.
fn efforts_of_openai() -> BTreeMap<String, EffortWords> {
    // From none to max.
    let known = [
        ("gpt-3.5", ["", "", "", "", "", "", ""]),
        ("gpt-4", ["", "", "", "", "", "", ""]),
        ("gpt-5", ["minimal", "minimal", "low", "medium", "high", "high", "high"]),
        ("gpt-5-chat", ["", "", "", "", "", "", ""]),
        ("gpt-5-codex", ["low", "low", "low", "medium", "high", "high", "high"]),
        ("gpt-5-pro", ["high", "high", "high", "high", "high", "high", "high"]),
        ("gpt-5.", ["none", "low", "low", "medium", "high", "xhigh", "xhigh"]),
        ("gpt-5.1", ["none", "low", "low", "medium", "high", "high", "high"]),
        ("gpt-5.1-codex", ["low", "low", "low", "medium", "high", "high", "high"]),
        ("gpt-5.1-codex-max", ["low", "low", "low", "medium", "high", "xhigh", "xhigh"]),
        ("gpt-5.2-codex", ["low", "low", "low", "medium", "high", "xhigh", "xhigh"]),
        ("gpt-5.2-pro", ["medium", "medium", "medium", "medium", "high", "xhigh", "xhigh"]),
        ("gpt-5.3-codex", ["low", "low", "low", "medium", "high", "xhigh", "xhigh"]),
        ("gpt-5.4-pro", ["medium", "medium", "medium", "medium", "high", "xhigh", "xhigh"]),
        ("gpt-5.5-pro", ["medium", "medium", "medium", "medium", "high", "xhigh", "xhigh"]),
        ("gpt-6", ["low", "low", "low", "medium", "high", "xhigh", "xhigh"]),
        ("gpt-6-sol", ["none", "low", "low", "medium", "high", "xhigh", "xhigh"]),
        ("gpt-6-luna", ["none", "low", "low", "medium", "high", "xhigh", "xhigh"]),
        ("gpt-oss", ["low", "low", "low", "medium", "high", "high", "high"]),
        ("o1", ["low", "low", "low", "medium", "high", "high", "high"]),
        ("o3", ["low", "low", "low", "medium", "high", "high", "high"]),
        ("o4-mini", ["low", "low", "low", "medium", "high", "high", "high"]),
    ];
    known.map(|(start, words)| (start.to_owned(), EffortWords::from_none_to_max(words))).into()
}

/// The entry with the longest start of a model's bare name.
fn longest<'a, T>(entries: &'a BTreeMap<String, T>, model: &str) -> Option<&'a T> {
    let bare = bare_name(model);
    let known = entries.iter().filter(|(start, _)| bare.starts_with(start.as_str()));
    known.max_by_key(|(start, _)| start.len()).map(|(_, entry)| entry)
}

/// Whether the bare name of a model has one of these parts.
fn is_among(parts: &[String], model: &str) -> bool {
    let bare = bare_name(model);
    parts.iter().any(|part| bare.contains(part.as_str()))
}

fn bare_name(model: &str) -> String {
    model.rsplit('/').next().unwrap_or(model).to_ascii_lowercase()
}

impl Accent {
    /// Whether a model knows the limit of output tokens by its newer name only.
    #[must_use]
    pub fn knows_new_limit_only(&self, model: &str) -> bool {
        let bare = bare_name(model);
        self.new_limit_models.iter().any(|start| bare.starts_with(start.as_str()))
    }

    /// Whether a model takes `temperature`, `top_p` and `stop`.
    #[must_use]
    pub fn takes_sampling(&self, model: &str) -> bool {
        !longest(&self.fixed_sampling, model).is_some_and(|fixed| *fixed)
    }

    /// The word for an effort of a model, if there is one.
    #[must_use]
    pub fn effort_word(&self, model: &str, effort: ReasoningEffort) -> Option<&str> {
        longest(&self.efforts_of, model).unwrap_or(&self.effort_words).of(effort)
    }

    /// The body of a request as JSON text, with the fields that the accent names, leaves out and adds.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(in crate::provider) fn written(&self, body: &impl Serialize) -> Result<Vec<u8>, ModelError> {
        if self.rename.is_empty() && self.omit.is_empty() && self.extra.is_empty() {
            return written(body);
        }
        let Value::Object(fields) = serde_json::to_value(body).unwrap_or_default() else { return written(body) };
        let mut said: Map<String, Value> = fields
            .into_iter()
            .filter(|(name, _)| !self.omit.contains(name))
            .map(|(name, value)| (self.rename.get(&name).cloned().unwrap_or(name), value))
            .collect();
        said.extend(self.extra.iter().map(|(name, value)| (name.clone(), value.clone())));
        written(&said)
    }

    /// Whether the answer of a model may begin with thoughts between tags.
    #[must_use]
    pub fn thinks_aloud(&self, model: &str) -> bool {
        match self.thoughts_in_text {
            ThoughtsInText::Always => true,
            ThoughtsInText::Never => false,
            ThoughtsInText::ByModel => is_among(&self.think_models, model) || is_among(&self.think_opened, model),
        }
    }

    /// The reader of the thoughts in the text of a model's answer.
    pub(super) fn think_tags(&self, model: &str) -> ReasoningTags {
        match self.thinks_aloud(model) {
            true if is_among(&self.think_opened, model) => ReasoningTags::within(&self.think_tags),
            true => ReasoningTags::looking(&self.think_tags),
            false => ReasoningTags::blind(&self.think_tags),
        }
    }
}

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

/// What ids of tool calls must look like. An id that does not is replaced, in the call and its result alike.
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

impl EffortWords {
    fn from_none_to_max(words: [&str; 7]) -> Self {
        let [none, minimal, low, medium, high, xhigh, max] = words.map(str::to_owned);
        Self { none, minimal, low, medium, high, xhigh: Some(xhigh), max: Some(max) }
    }

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

/// How files are sent. What cannot be sent so is a note.
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

/// What a provider refuses in a JSON Schema. What has no other form is left out, which makes the schema wider, never narrower.
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
    fn an_accent_is_data() {
        let mistral: Accent = toml::from_str(
            r#"
            stream_usage = false
            call_ids = "nine_alphanumerics"
            required_choice = "any"
            reasoning = "thinking_chunks"
            files = "document_url"
            user_after_tools = false
            rename = { seed = "random_seed" }
            extra = { safe_prompt = true }
            "#,
        )
        .unwrap();
        assert_eq!(mistral.call_ids, CallIdRule::NineAlphanumerics);
        assert_eq!(mistral.rename["seed"], "random_seed");
        assert_eq!(mistral.extra["safe_prompt"], true);
        assert_eq!(mistral.output_limit, OutputLimit::MaxTokens);
        assert_eq!(toml::from_str::<Accent>("").unwrap(), Accent::default());
        let error = toml::from_str::<Accent>("stream_useage = false").unwrap_err().to_string();
        assert!(error.contains("stream_useage"), "{error}");
    }

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

    #[test]
    fn models_are_told_no_effort_that_they_refuse() {
        let accent = Accent::default();
        for (model, none, minimal, max) in [
            ("gpt-5-mini", Some("minimal"), Some("minimal"), Some("high")),
            ("gpt-5.1", Some("none"), Some("low"), Some("high")),
            ("gpt-5.1-codex-max", Some("low"), Some("low"), Some("xhigh")),
            ("gpt-5.5", Some("none"), Some("low"), Some("xhigh")),
            ("gpt-5.6-terra", Some("none"), Some("low"), Some("xhigh")),
            ("gpt-6-sol", Some("none"), Some("low"), Some("xhigh")),
            ("gpt-6.2-astra", Some("low"), Some("low"), Some("xhigh")),
            ("gpt-4.1", None, None, None),
            ("unheard-of", Some("none"), Some("minimal"), Some("high")),
        ] {
            let said = |effort| accent.effort_word(model, effort);
            let words = (said(ReasoningEffort::None), said(ReasoningEffort::Minimal), said(ReasoningEffort::Max));
            assert_eq!(words, (none, minimal, max), "{model}");
        }
        assert!(accent.takes_sampling("gpt-4.1") && !accent.takes_sampling("gpt-6.2-sol"));
    }
}
