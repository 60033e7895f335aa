//! Recognises refusals of a part, an ability or a field of the request, by the table `catalog/refusals.toml`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::domain::model::{ModelError, ModelErrorKind};
use crate::provider::catalog::table::Table;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::provider) enum PartKind {
    /// An image of the user or of a tool.
    Image,
    /// A document, such as a PDF.
    Document,
    Audio,
    Video,
    /// An image in the result of a tool.
    ToolImage,
}

impl PartKind {
    /// Returns the word for a part in notes, its plural there, and the name of the change that leaves such parts out.
    pub(in crate::provider) fn words(self) -> [&'static str; 3] {
        match self {
            Self::Image => ["image", "images", "images_left_out"],
            Self::Document => ["file", "documents", "documents_left_out"],
            Self::Audio => ["audio", "audio", "audio_left_out"],
            Self::Video => ["video", "videos", "videos_left_out"],
            Self::ToolImage => ["image", "images in tool results", "tool_images_left_out"],
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::provider) enum Meaning {
    /// The model accepts no parts of this kind.
    Unsupported,
    /// The provider cannot read this part.
    Broken,
    /// The provider cannot download this part from its URL.
    Unreachable,
    /// The model accepts fewer parts of this kind.
    TooMany,
}

/// An ability that a model lacks, or a need that it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::provider) enum Ability {
    /// Answers to messages.
    Chat,
    Tools,
    /// As many tools as the request has; the error may name the limit.
    ManyTools,
    SystemRole,
    Streaming,
    /// A schema for the answer.
    OutputSchema,
    /// As much output as the request allows; the error may name the limit.
    LongOutput,
    LookAround,
    /// A keyword of JSON Schema, which the text quotes.
    SchemaKeyword,
    /// Messages without the reasoning that belongs to them.
    MissingReasoning,
    /// Calls in the history of a request without tools.
    UndeclaredTools,
    /// The content `null` of messages that have calls alone.
    NullContent,
}

/// A recognised refusal of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::provider) struct PartRefusal {
    pub(in crate::provider) part: PartKind,
    pub(in crate::provider) meaning: Meaning,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    part: Option<PartKind>,
    means: Option<Meaning>,
    lacks: Option<Ability>,
    #[serde(default)]
    status: Vec<u16>,
    #[serde(default)]
    codes: Vec<String>,
    #[serde(default)]
    texts: Vec<String>,
    #[serde(default)]
    with: Vec<String>,
    #[serde(default)]
    fields: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    refusal: Vec<Rule>,
    field: FieldRules,
}

/// The refusals of a field of the body.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::provider) struct FieldRules {
    status: Vec<u16>,
    codes: Vec<String>,
    texts: Vec<String>,
    /// Fields that every request needs, by dialect; `all` for every dialect.
    needed: BTreeMap<String, Vec<String>>,
    /// Other names of fields, by dialect.
    renamed: BTreeMap<String, BTreeMap<String, String>>,
    /// Fields whose refusal means that the model lacks an ability.
    pub(in crate::provider) abilities: BTreeMap<String, Ability>,
    /// Keywords of JSON Schema that may be left out.
    pub(in crate::provider) keywords: Vec<String>,
}

impl FieldRules {
    pub(in crate::provider) fn is_needed(&self, dialect: &str, path: &str) -> bool {
        let needed = ["all", dialect].into_iter().filter_map(|dialect| self.needed.get(dialect)).flatten();
        needed.into_iter().any(|needed| needed == path.split('.').next().unwrap_or_default())
    }

    pub(in crate::provider) fn other_name(&self, dialect: &str, path: &str) -> Option<&str> {
        self.renamed.get(dialect)?.get(path).map(String::as_str)
    }
}

static RULES: Table<Rules> = Table::new("refusals", include_str!("../catalog/refusals.toml"));

impl Rule {
    fn matches(&self, error: &ModelError, words: &str) -> bool {
        let details = error.details.as_deref();
        if details.is_some_and(|details| details.codes.iter().any(|code| self.codes.contains(code))) {
            return true;
        }
        let is_moderated = error.kind == ModelErrorKind::ContentFilter;
        // An error inside an answer often has no status.
        let has_status = self.status.is_empty() || error.status.is_none_or(|status| self.status.contains(&status));
        let says_any = |phrases: &[String]| phrases.iter().any(|phrase| words.contains(phrase.as_str()));
        let is_about = || {
            let fields = details.map(|details| details.fields.as_slice()).unwrap_or_default();
            fields.iter().any(|field| self.fields.iter().any(|part| field.contains(part.as_str())))
        };
        !is_moderated
            && has_status
            && says_any(&self.texts)
            && (self.with.is_empty() || says_any(&self.with))
            && (self.fields.is_empty() || is_about())
    }
}

/// Returns whether an error may mean that the provider refuses a part of the request.
fn may_be_refusal(error: &ModelError) -> bool {
    let may_be = matches!(
        error.kind,
        ModelErrorKind::InvalidRequest
            | ModelErrorKind::Unavailable
            | ModelErrorKind::ContextOverflow
            | ModelErrorKind::ContentFilter
    );
    may_be && !error.request_not_sent
}

fn matching(error: &ModelError) -> impl Iterator<Item = &'static Rule> {
    let words = error.message.to_lowercase();
    let rules = RULES.get().refusal.iter().filter(move |rule| rule.matches(error, &words));
    rules.filter(|_| may_be_refusal(error))
}

/// Returns the refusals of parts that an error may be, the likeliest first.
pub(in crate::provider) fn parts(error: &ModelError) -> Vec<PartRefusal> {
    matching(error).filter_map(|rule| Some(PartRefusal { part: rule.part?, meaning: rule.means? })).collect()
}

/// Returns the abilities that an error may be about, the likeliest first.
pub(in crate::provider) fn abilities(error: &ModelError) -> Vec<Ability> {
    matching(error).filter_map(|rule| rule.lacks).collect()
}

/// Returns the rules for fields, if the error may be about a field of the body.
pub(in crate::provider) fn field_rules(error: &ModelError) -> Option<&'static FieldRules> {
    let rules = &RULES.get().field;
    let words = error.message.to_lowercase();
    let codes = error.details.as_deref().map(|details| details.codes.as_slice()).unwrap_or_default();
    let says = codes.iter().any(|code| rules.codes.contains(code)) || rules.texts.iter().any(|text| words.contains(text.as_str()));
    let has_status = error.status.is_none_or(|status| rules.status.contains(&status));
    (may_be_refusal(error) && has_status && says).then_some(rules)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::model::ErrorDetails;
    use rstest::rstest;

    #[test]
    fn refusal_table_rules_are_reachable() {
        let rules = &RULES.checked().unwrap().refusal;
        let lower = |texts: &[String]| texts.iter().all(|text| *text == text.to_lowercase());
        for rule in rules {
            assert!(!rule.codes.is_empty() || !rule.texts.is_empty());
            assert!(lower(&rule.texts) && lower(&rule.with) && lower(&rule.codes));
            let found = |status: Option<u16>, words: &str, code: &str| {
                let details = ErrorDetails { codes: vec![code.to_owned()], fields: rule.fields.iter().take(1).cloned().collect() };
                let error = ModelError::new(ModelErrorKind::InvalidRequest, words);
                let error = ModelError { status, details: Some(Box::new(details)), ..error };
                match (rule.part.zip(rule.means), rule.lacks) {
                    (Some((part, meaning)), None) => parts(&error).contains(&PartRefusal { part, meaning }),
                    (None, Some(ability)) => abilities(&error).contains(&ability),
                    (Some(_), Some(_)) | (None, None) => panic!("{rule:?}: a part and its meaning, or an ability"),
                }
            };
            for code in &rule.codes {
                assert!(found(None, "", code), "{code}");
            }
            for text in &rule.texts {
                let words = rule.with.first().map_or_else(|| text.clone(), |with| format!("{text} {with}"));
                for status in &rule.status {
                    assert!(found(Some(*status), &words, ""), "{words}");
                }
                assert!(found(None, &words, ""), "{words}");
            }
        }
    }

    fn first(error: &ModelError) -> Option<PartRefusal> {
        parts(error).first().copied()
    }

    fn refused(status: u16, words: &str) -> Option<(PartKind, Meaning)> {
        let kind = if status >= 500 { ModelErrorKind::Unavailable } else { ModelErrorKind::InvalidRequest };
        let error = ModelError { status: Some(status), ..ModelError::new(kind, words) };
        first(&error).map(|refusal| (refusal.part, refusal.meaning))
    }

    #[rstest]
    #[case(
        400,
        "Failed to deserialize the JSON body into the target type: messages[1]: unknown variant `image_url`, expected `text`"
    )]
    #[case(400, "google/gemma-2b is not a multimodal model")]
    #[case(404, "No endpoints found that support image input")]
    #[case(500, "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj")]
    #[case(400, "Invalid content type. image_url is only supported by certain models.")]
    #[case(400, "Image input modality is not enabled for models/gemma-3-1b-it")]
    #[case(400, "At most 0 image(s) may be provided in one prompt.")]
    #[case(400, "'messages.0' : for 'role:user' the following must be satisfied[('messages.0.content' : value must be a string)]")]
    #[case(400, "messages[0].content must be a string")]
    #[case(400, "This model does not support image inputs")]
    #[case(400, "Model does not support images. Please use a model that does.")]
    #[case(400, "This model doesn't support the image content block that you provided.")]
    #[case(400, "The model is not a VLM (Vision Language Model). Please use text-only prompts.")]
    #[case(500, "this model is missing data required for image input")]
    fn refusals_of_images_by_a_model_are_recognised(#[case] status: u16, #[case] words: &str) {
        assert_eq!(refused(status, words), Some((PartKind::Image, Meaning::Unsupported)));
    }

    #[rstest]
    #[case(400, "Could not process image")]
    #[case(400, "messages.4.content.1.image.source.base64.data: image exceeds 5 MB maximum: 6291456 bytes > 5242880 bytes")]
    #[case(
        400,
        "messages.0.content.0.image.source.base64.data: At least one of the image dimensions exceed max allowed size: 8000 pixels"
    )]
    #[case(
        400,
        "messages.0.content.0: At least one of the image dimensions exceed max allowed size for many-image requests: 2000 pixels"
    )]
    #[case(
        400,
        "Unable to process input image. Please retry or report in https://developers.generativeai.google/guide/troubleshooting"
    )]
    #[case(400, "You uploaded an unsupported image. Please make sure your image has of one the following formats: ['png', 'jpeg']")]
    #[case(400, "Unsupported MIME type: image/svg+xml")]
    #[case(500, "Failed to load image or audio file")]
    fn refusals_of_one_image_are_recognised(#[case] status: u16, #[case] words: &str) {
        assert_eq!(refused(status, words), Some((PartKind::Image, Meaning::Broken)));
    }

    #[rstest]
    #[case("too many images and documents: 120 + 0 > 100", PartKind::Image, Meaning::TooMany)]
    #[case("At most 1 image(s) may be provided in one prompt.", PartKind::Image, Meaning::TooMany)]
    #[case("Too many images provided. This model supports up to 5 images", PartKind::Image, Meaning::TooMany)]
    #[case("Error while downloading https://example.com/x.png.", PartKind::Image, Meaning::Unreachable)]
    #[case("The PDF specified was not valid.", PartKind::Document, Meaning::Broken)]
    #[case("The document has no pages.", PartKind::Document, Meaning::Broken)]
    #[case("'claude-3-haiku' does not support PDF input.", PartKind::Document, Meaning::Unsupported)]
    #[case("unknown variant `file`, expected `text` or `image_url`", PartKind::Document, Meaning::Unsupported)]
    #[case("Audio input modality is not enabled for models/gemma", PartKind::Audio, Meaning::Unsupported)]
    #[case(
        "Image URLs are only allowed for messages with role 'user', but this message with role 'tool' contains an image URL.",
        PartKind::ToolImage,
        Meaning::Unsupported
    )]
    fn refusals_of_other_parts_are_recognised(#[case] words: &str, #[case] part: PartKind, #[case] meaning: Meaning) {
        assert_eq!(refused(400, words), Some((part, meaning)));
    }

    #[rstest]
    #[case(400, "max_tokens is too large: 9999")]
    #[case(400, "Unsupported parameter: 'temperature' is not supported with this model.")]
    #[case(400, "Invalid schema for function 'x'")]
    #[case(400, "messages.1.content.0: Invalid `signature` in `thinking` block")]
    #[case(500, "Internal server error")]
    #[case(404, "The model `x` does not exist")]
    fn refusals_of_something_else_are_not_recognised(#[case] status: u16, #[case] words: &str) {
        assert_eq!(refused(status, words), None);
    }

    #[test]
    fn refusal_codes_count_before_texts() {
        let details =
            |code: &str, field: &str| Some(Box::new(ErrorDetails { codes: vec![code.to_owned()], fields: vec![field.to_owned()] }));
        let filtered = ModelError::new(ModelErrorKind::ContentFilter, "this model does not support images");
        assert_eq!(first(&filtered), None, "an answer of a filter");
        let filtered = ModelError { details: details("image_content_policy_violation", ""), ..filtered };
        assert_eq!(first(&filtered).map(|refusal| refusal.meaning), Some(Meaning::Broken));
        let typed = ModelError::new(ModelErrorKind::InvalidRequest, "Input should be a valid string");
        assert_eq!(first(&typed), None);
        let typed = ModelError { details: details("", "body.messages.0.content"), ..typed };
        assert_eq!(first(&typed).map(|refusal| refusal.meaning), Some(Meaning::Unsupported));
        let limited = ModelError::new(ModelErrorKind::RateLimit, "too many images per minute");
        assert_eq!(first(&limited), None);
    }
}
