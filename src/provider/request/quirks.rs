//! The quirks of one provider's chat completions: its deviations from OpenAI, as data. Settings and records call them `accent`.
//!
//! Owns the differences in requests and in reasoning within the text. Must not know connections, keys or decoders.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::domain::model::{ModelError, ReasoningEffort};
use crate::provider::catalog::quirks::{model_quirks, starts_with_any};
use crate::provider::catalog::table::longest_prefix;
use crate::provider::http::json_body::written;
use crate::provider::request::quirk_values::{
    CallIdRule, EffortForm, EffortWords, FileForm, FillerSpan, InlineReasoning, OutputLimit, ReasoningForm, ReasoningSpan,
    SchemaForm, SchemaRules, SystemPromptRole, ToolChoices, ToolImages,
};
use crate::provider::stream::ReasoningTags;

/// The quirks of a provider; `quirk_values.rs` explains the values. The default is OpenAI's.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Quirks {
    /// The URL of requests. `{base}` is the base URL, with `/v1` if it has no path; `{host}` is the base URL unchanged; `{model}` is the
    /// model's name. Azure: `{host}/openai/deployments/{model}/chat/completions?api-version=2024-10-21`.
    pub url: String,
    /// The URL of Responses, for models that refuse tools over chat completions. Empty if there is none.
    pub responses_url: String,
    /// The header with the key: `authorization` as a bearer token, any other header with the plain key (Azure: `api-key`).
    pub key_header: String,
    pub output_limit: OutputLimit,
    /// Models that only accept the field `max_completion_tokens`, by the prefix of their bare names.
    pub new_limit_models: Vec<String>,
    pub system: SystemPromptRole,
    /// Whether streamed requests ask for usage (`stream_options`). Servers that refuse unknown fields send usage without it.
    pub stream_usage: bool,
    pub call_ids: CallIdRule,
    pub tool_choices: ToolChoices,
    /// The value for a required tool call (Mistral: `any`).
    pub required_choice: String,
    pub output_schema: SchemaForm,
    pub effort: EffortForm,
    pub effort_words: EffortWords,
    /// The values of single models, by the prefix of their bare names; the longest prefix applies.
    pub efforts_of: BTreeMap<String, EffortWords>,
    /// Models that refuse `temperature`, `top_p` and `stop`, by the prefix of their bare names; the longest prefix applies.
    pub fixed_sampling: BTreeMap<String, bool>,
    pub thoughts_in_text: InlineReasoning,
    /// Models that write reasoning between tags, by a part of their bare names.
    pub think_models: Vec<String>,
    /// Models whose prompt ends with the opening tag, so that answers begin inside the reasoning, by a part of their bare names: R1 on vLLM
    /// without its reasoning parser. Without a closing tag the reasoning is also the answer.
    pub think_opened: Vec<String>,
    pub think_tags: Vec<[String; 2]>,
    pub reasoning: ReasoningForm,
    pub reasoning_of: ReasoningSpan,
    /// The text that replaces missing reasoning, for providers that refuse messages without it. Only for text fields.
    pub reasoning_filler: Option<String>,
    pub filler_of: FillerSpan,
    /// Whether models accept images; if not, a note replaces each.
    pub images: bool,
    pub tool_images: ToolImages,
    pub files: FileForm,
    /// Whether the result of a tool contains the tool's name.
    pub result_names: bool,
    /// Whether a user message may follow tool results. If not, a short assistant message is inserted.
    pub user_after_tools: bool,
    /// Whether an answer of calls alone is sent with the content `null`, or with an empty text.
    pub null_content: bool,
    pub schemas: SchemaRules,
    /// Fields of the body with other names (Mistral: `seed = "random_seed"`).
    pub rename: BTreeMap<String, String>,
    /// Optional fields of the body that the provider refuses.
    pub omit: Vec<String>,
    /// More fields of the body, which take precedence.
    pub extra: Map<String, Value>,
}

impl Default for Quirks {
    fn default() -> Self {
        let models = &model_quirks().chat_completions;
        Self {
            url: "{base}/chat/completions".to_owned(),
            responses_url: "{base}/responses".to_owned(),
            key_header: "authorization".to_owned(),
            output_limit: OutputLimit::MaxTokens,
            new_limit_models: models.new_limit_models.clone(),
            system: SystemPromptRole::System,
            stream_usage: true,
            call_ids: CallIdRule::Any,
            tool_choices: ToolChoices::All,
            required_choice: "required".to_owned(),
            output_schema: SchemaForm::JsonSchema,
            effort: EffortForm::Field,
            effort_words: EffortWords::default(),
            efforts_of: models.efforts_of.iter().map(|(start, words)| (start.clone(), words.into())).collect(),
            fixed_sampling: models.fixed_sampling.clone(),
            thoughts_in_text: InlineReasoning::ByModel,
            think_models: models.think_models.clone(),
            think_opened: Vec::new(),
            think_tags: models.think_tags.clone(),
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

/// Returns the entry with the longest prefix of a model's bare name.
fn longest<'a, T>(entries: &'a BTreeMap<String, T>, model: &str) -> Option<&'a T> {
    longest_prefix(entries, &bare_name(model)).map(|(_, entry)| entry)
}

/// Returns whether the bare name of a model contains one of these parts.
fn is_among(parts: &[String], model: &str) -> bool {
    let bare = bare_name(model);
    parts.iter().any(|part| bare.contains(part.as_str()))
}

fn bare_name(model: &str) -> String {
    model.rsplit('/').next().unwrap_or(model).to_ascii_lowercase()
}

impl Quirks {
    /// Returns whether a model only accepts the newer name of the output limit.
    pub fn knows_new_limit_only(&self, model: &str) -> bool {
        starts_with_any(&bare_name(model), &self.new_limit_models)
    }

    /// Returns whether a model accepts `temperature`, `top_p` and `stop`.
    pub fn takes_sampling(&self, model: &str) -> bool {
        !longest(&self.fixed_sampling, model).is_some_and(|fixed| *fixed)
    }

    /// Returns the value for an effort of a model, if there is one.
    pub fn effort_word(&self, model: &str, effort: ReasoningEffort) -> Option<&str> {
        longest(&self.efforts_of, model).unwrap_or(&self.effort_words).of(effort)
    }

    /// Returns the quirks for a model whose answers all have to go back with their reasoning, or not with the content `null`.
    pub(in crate::provider) fn adapted(&self, returns_reasoning: bool, null_content: bool) -> Cow<'_, Self> {
        if !returns_reasoning && null_content {
            return Cow::Borrowed(self);
        }
        let mut quirks = self.clone();
        quirks.null_content &= null_content;
        if returns_reasoning {
            quirks.reasoning = ReasoningForm::ReasoningContent;
            quirks.reasoning_of = ReasoningSpan::All;
            quirks.reasoning_filler = Some(" ".to_owned());
            quirks.filler_of = FillerSpan::All;
        }
        Cow::Owned(quirks)
    }

    /// Serializes the body of a request, with fields renamed, omitted and added.
    pub(in crate::provider) fn written(&self, body: &impl Serialize) -> Result<Vec<u8>, ModelError> {
        if self.rename.is_empty() && self.omit.is_empty() && self.extra.is_empty() {
            return written(body);
        }
        let Value::Object(fields) = serde_json::to_value(body).unwrap_or_default() else { return written(body) };
        let sent = fields.into_iter().filter(|(name, _)| !self.omit.contains(name));
        let mut sent: Map<String, Value> =
            sent.map(|(name, value)| (self.rename.get(&name).cloned().unwrap_or(name), value)).collect();
        sent.extend(self.extra.clone());
        written(&sent)
    }

    /// Returns whether the answer of a model may begin with reasoning between tags.
    pub fn may_inline_reasoning(&self, model: &str) -> bool {
        match self.thoughts_in_text {
            InlineReasoning::Always => true,
            InlineReasoning::Never => false,
            InlineReasoning::ByModel => is_among(&self.think_models, model) || is_among(&self.think_opened, model),
        }
    }

    /// Returns the reader of reasoning in the text of a model's answer.
    pub(in crate::provider) fn think_tags(&self, model: &str) -> ReasoningTags {
        match self.may_inline_reasoning(model) {
            true if is_among(&self.think_opened, model) => ReasoningTags::opened_by_prompt(&self.think_tags),
            true => ReasoningTags::detecting(&self.think_tags),
            false => ReasoningTags::without_tag_detection(&self.think_tags),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quirks_are_read_from_settings() {
        let mistral: Quirks = toml::from_str(
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
        assert_eq!(toml::from_str::<Quirks>("").unwrap(), Quirks::default());
        let error = toml::from_str::<Quirks>("stream_useage = false").unwrap_err().to_string();
        assert!(error.contains("stream_useage"), "{error}");
    }

    #[test]
    fn refused_reasoning_effort_is_not_sent() {
        let quirks = Quirks::default();
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
            let said = |effort| quirks.effort_word(model, effort);
            let words = (said(ReasoningEffort::None), said(ReasoningEffort::Minimal), said(ReasoningEffort::Max));
            assert_eq!(words, (none, minimal, max), "{model}");
        }
        assert!(quirks.takes_sampling("gpt-4.1") && !quirks.takes_sampling("gpt-6.2-sol"));
    }
}
