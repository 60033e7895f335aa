//! Message contents, questions and token usage in the JSON forms of the OpenAI API.

use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::domain::ids::FileId;
use crate::domain::model::Usage;
use crate::domain::run::question::{ACCEPT, InputAnswer, InputChoice, Question};
use crate::service::{Content, Error, NewPart, Result, SentMessage, SentResult};

/// The content of a message: a text, or parts.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(untagged, expecting = "must be a text, or a list of parts")]
pub(super) enum WireContent {
    Text(String),
    Parts(Vec<WirePart>),
}

/// A content part of chat completions or of the Responses API.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub(super) struct WirePart {
    #[serde(rename = "type", default)]
    kind: String,
    text: Option<String>,
    refusal: Option<String>,
    image_url: Option<ImageUrl>,
    file: Option<FileSource>,
    #[serde(flatten)]
    source: FileSource,
}

#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(untagged, expecting = "must be a URL, or an object with a url")]
enum ImageUrl {
    Plain(String),
    Object { url: String },
}

#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
struct FileSource {
    file_id: Option<String>,
    file_data: Option<String>,
    file_url: Option<String>,
    filename: Option<String>,
}

impl WireContent {
    /// Returns the text, without other parts.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Parts(parts) => {
                let texts = parts.iter().filter_map(|part| part.text.as_deref().or(part.refusal.as_deref()));
                texts.collect::<Vec<_>>().join("")
            }
        }
    }

    /// Returns the content as the service accepts it. Errors refer to it by `pointer`.
    pub(super) fn content(&self, pointer: &str) -> Result<Content> {
        match self {
            Self::Text(text) => Ok(Content::Text(text.clone())),
            Self::Parts(parts) => {
                let parts = parts.iter().enumerate().map(|(at, part)| part.part(&format!("{pointer}/{at}")));
                parts.collect::<Result<Vec<_>>>().map(Content::Parts)
            }
        }
    }
}

impl WirePart {
    fn part(&self, pointer: &str) -> Result<NewPart> {
        match self.kind.as_str() {
            "text" | "input_text" | "output_text" | "refusal" => {
                let text = self.text.clone().or_else(|| self.refusal.clone());
                Ok(NewPart::Text { text: text.ok_or_else(|| Error::field(pointer, "has no text"))? })
            }
            "image_url" | "input_image" => {
                let url = self.image_url.as_ref().map(|url| match url {
                    ImageUrl::Plain(url) | ImageUrl::Object { url } => url.clone(),
                });
                let file_id = file_id(self.source.file_id.as_deref(), pointer)?;
                let media_type = url.as_deref().map(picture_type);
                Ok(NewPart::Image { media_type, url, file_id, name: None })
            }
            "file" | "input_file" => {
                let source = self.file.as_ref().unwrap_or(&self.source);
                let data = source.file_data.as_ref().map(|data| {
                    if data.starts_with("data:") { data.clone() } else { format!("data:application/pdf;base64,{data}") }
                });
                let url = data.or_else(|| source.file_url.clone());
                let media_type = url.as_deref().map(|url| declared_type(url).unwrap_or("application/pdf").to_owned());
                let file_id = file_id(source.file_id.as_deref(), pointer)?;
                Ok(NewPart::File { media_type, url, file_id, name: source.filename.clone() })
            }
            other => {
                let shown: String = other.chars().take(50).collect();
                Err(Error::field(&format!("{pointer}/type"), format!("{shown:?} is not supported; send text, images and files")))
            }
        }
    }
}

fn file_id(id: Option<&str>, pointer: &str) -> Result<Option<FileId>> {
    let parse = |id: &str| id.parse().map_err(|_| Error::field(&format!("{pointer}/file_id"), "is not the id of a file"));
    id.map(parse).transpose()
}

/// Returns the media type in a `data:` URL.
fn declared_type(url: &str) -> Option<&str> {
    let (head, _) = url.strip_prefix("data:")?.split_once(',')?;
    head.split(';').next().filter(|media_type| !media_type.is_empty())
}

/// Returns the media type of a picture: the one that a `data:` URL declares, or else the one of the file name, by default JPEG.
fn picture_type(url: &str) -> String {
    let path = url.split(['?', '#']).next().unwrap_or_default();
    let by_name = match path.rsplit('.').next().map(str::to_ascii_lowercase).as_deref() {
        Some("png") => "image/png",
        Some("gif") => "image/gif",
        Some("webp") => "image/webp",
        Some(_) | None => "image/jpeg",
    };
    declared_type(url).unwrap_or(by_name).to_owned()
}

/// Adds the result of a call to the last message, if that has results, or as a new message.
pub(super) fn add_result(messages: &mut Vec<SentMessage>, result: SentResult) {
    match messages.last_mut() {
        Some(SentMessage::Results(results)) => results.push(result),
        Some(SentMessage::User(_) | SentMessage::Assistant { .. }) | None => messages.push(SentMessage::Results(vec![result])),
    }
}

/// Returns several contents as one, in order; `None` for none.
pub(super) fn merged<'a>(contents: impl Iterator<Item = &'a Content>) -> Option<Content> {
    let mut all: Vec<Content> = contents.cloned().collect();
    if all.len() < 2 {
        return all.pop();
    }
    let parts = all.into_iter().flat_map(|content| match content {
        Content::Text(text) => vec![NewPart::Text { text }],
        Content::Parts(parts) => parts,
    });
    Some(Content::Parts(parts.collect()))
}

/// Returns the text of a content, without other parts.
pub(super) fn text_of(content: &Content) -> String {
    match content {
        Content::Text(text) => text.clone(),
        Content::Parts(parts) => {
            let texts = parts.iter().filter_map(|part| match part {
                NewPart::Text { text } => Some(text.as_str()),
                NewPart::Image { .. } | NewPart::File { .. } => None,
            });
            texts.collect::<Vec<_>>().join("\n")
        }
    }
}

/// Returns a question as a text that a user can answer by a text.
pub(super) fn question_text(question: &Question) -> String {
    let mut lines = vec![question.text.clone()];
    lines.extend(question.elicitation.iter().filter_map(|elicitation| elicitation.url.clone()));
    lines.extend(question.choices.iter().map(|InputChoice { value, label }| match value == label {
        true => format!("- {value}"),
        false => format!("- {value}: {label}"),
    }));
    lines.extend(question.form().map(|form| format!("To accept, answer with a JSON object of this schema: {form}")));
    lines.join("\n")
}

/// Returns a user's text as the answer to a question: a choice by its value or label, a form as a JSON object, or any other text.
pub(super) fn question_answer(question: &Question, text: &str) -> InputAnswer {
    let text = text.trim();
    let is_named = |choice: &&InputChoice| [&choice.value, &choice.label].iter().any(|name| name.eq_ignore_ascii_case(text));
    let form = question.form().and_then(|_| serde_json::from_str::<Value>(text).ok()).filter(Value::is_object);
    match (form, question.choices.iter().find(is_named)) {
        (Some(form), _) => InputAnswer { content: Some(form), ..InputAnswer::new(ACCEPT, None) },
        (None, Some(choice)) => InputAnswer::new(choice.value.clone(), None),
        (None, None) => InputAnswer::new("", Some(text.to_owned())),
    }
}

pub(super) fn chat_usage(usage: &Usage) -> Value {
    json!({
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": { "cached_tokens": usage.cached_input_tokens },
        "completion_tokens_details": { "reasoning_tokens": usage.reasoning_tokens },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: Value) -> Result<Content> {
        serde_json::from_value::<WireContent>(value).unwrap().content("/messages/0/content")
    }

    #[test]
    fn parts_of_both_apis_become_parts() {
        let url = "https://example.org/a.png?x=1";
        let image =
            NewPart::Image { media_type: Some("image/png".to_owned()), url: Some(url.to_owned()), file_id: None, name: None };
        let text = NewPart::Text { text: "see".to_owned() };
        let both = Content::Parts(vec![text, image]);
        let chat = json!([{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": url, "detail": "low"}}]);
        assert_eq!(read(chat).unwrap(), both);
        let responses = json!([{"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": url, "detail": "auto"}]);
        assert_eq!(read(responses).unwrap(), both);
    }

    #[test]
    fn text_answers_question_by_choice_form_or_words() {
        let choices = InputChoice::all(&[("a", "Red"), ("b", "b")]);
        let question = Question { text: "Which?".to_owned(), choices, ..Question::default() };
        assert_eq!(question_text(&question), "Which?\n- a: Red\n- b");
        let answer = |text: &str| question_answer(&question, text);
        assert_eq!((answer("red").choice, answer(" B\n").choice), ("a".to_owned(), "b".to_owned()));
        assert_eq!(answer("neither").text.as_deref(), Some("neither"));
        let form = Question { form: Some(json!({ "type": "object" })), ..question.clone() };
        let filled = question_answer(&form, r#"{"day": 1}"#);
        assert_eq!((filled.choice.as_str(), filled.content), (ACCEPT, Some(json!({ "day": 1 }))));
        assert_eq!(answer(r#"{"day": 1}"#).content, None, "the question has no form");
    }

    #[test]
    fn unknown_part_is_refused_by_name() {
        let error = read(json!([{"type": "input_audio", "input_audio": {}}])).unwrap_err();
        assert!(error.to_string().contains("input_audio"), "{error}");
    }
}
