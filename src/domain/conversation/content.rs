//! The content of a tool's answer: text, pictures and other binary content.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::domain::conversation::StoredFile;
use crate::domain::conversation::file::{content_url, decoded, is_picture_type, media_type, shown_name, whole_picture};

/// A piece of a tool's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToolContent {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
    /// A picture that models can be shown.
    Image(BinaryContent),
    /// Other binary content, such as a document or a recording.
    File(BinaryContent),
}

impl ToolContent {
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into() }
    }

    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text { text } => Some(text),
            Self::Image(_) | Self::File(_) => None,
        }
    }

    /// Joins the texts of a tool's answer by line breaks. Omits binary content.
    pub fn joined_text(content: &[Self]) -> String {
        content.iter().filter_map(Self::as_text).collect::<Vec<_>>().join("\n")
    }

    pub fn binary(&self) -> Option<&BinaryContent> {
        match self {
            Self::Image(binary) | Self::File(binary) => Some(binary),
            Self::Text { .. } => None,
        }
    }

    /// Returns the content as a request to a model contains it. A picture without bytes and every file become a note.
    pub fn as_sent(&self) -> SentContent<'_> {
        match self {
            Self::Text { text } => SentContent::Text(Cow::Borrowed(text)),
            Self::Image(BinaryContent { media_type, data: Some(data), .. }) => SentContent::Image { media_type, data },
            Self::Image(binary) => SentContent::Text(Cow::Owned(binary.note("picture"))),
            Self::File(binary) => SentContent::Text(Cow::Owned(binary.note("file"))),
        }
    }
}

/// A piece of a tool's answer as a request to a model contains it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SentContent<'a> {
    Text(Cow<'a, str>),
    Image { media_type: &'a str, data: &'a str },
}

impl<'a> SentContent<'a> {
    pub fn into_text(self) -> Option<Cow<'a, str>> {
        match self {
            Self::Text(text) => Some(text),
            Self::Image { .. } => None,
        }
    }
}

/// Binary content of a tool's answer: a reference to a stored file of the conversation's owner.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BinaryContent {
    /// The media type.
    pub media_type: String,
    /// The id of the stored file.
    pub file_id: Option<String>,
    /// The size in bytes.
    pub size: Option<u64>,
    /// The path on this server at which the bytes are read.
    pub url: Option<String>,
    /// The name to display.
    pub name: Option<String>,
    /// The bytes in base64. Present before the content is stored, in requests to models, and in rows that older versions stored.
    pub data: Option<String>,
}

impl BinaryContent {
    /// Returns content that carries its own bytes, as base64.
    pub fn inline(media_type: impl Into<String>, name: Option<String>, data: impl Into<String>) -> Self {
        Self { media_type: media_type.into(), name, data: Some(data.into()), ..Self::default() }
    }

    /// Returns a reference to a stored file.
    pub fn stored(file: &StoredFile) -> Self {
        Self {
            media_type: file.media_type.clone(),
            file_id: Some(file.id.as_str().to_owned()),
            size: Some(file.size),
            url: Some(content_url(&file.id)),
            name: Some(file.name.clone()),
            data: None,
        }
    }

    /// Returns whether there is neither a file nor bytes.
    pub fn is_empty(&self) -> bool {
        self.file_id.is_none() && self.data.as_ref().is_none_or(String::is_empty)
    }

    pub fn bytes(&self) -> u64 {
        let inline = self.data.as_ref().map_or(0, |data| data.trim_end_matches('=').len() as u64 * 3 / 4);
        self.size.unwrap_or(inline)
    }

    /// Returns the note that replaces the content for the model. `kind` is the kind of the content.
    pub fn note(&self, kind: &str) -> String {
        let location = match &self.url {
            Some(url) => format!("its bytes are not shown here; the user finds it at {url}"),
            None => "its bytes are not shown here".to_owned(),
        };
        format!("[{}: {location}]", self.described(kind))
    }

    /// Returns kind, name, media type and size as text.
    pub fn described(&self, kind: &str) -> String {
        let name = self.name.as_deref().map(|name| format!(" {name}")).unwrap_or_default();
        let media_type = if self.media_type.is_empty() { "unknown type" } else { &self.media_type };
        format!("{kind}{name}, {media_type}, {} bytes", self.bytes())
    }
}

/// Converts binary content of a tool's answer, which still has its bytes, to a picture or a file. The bytes decide, not the media
/// type that the server claims. Content with invalid base64 becomes a note. `kind` is the kind that the server claims.
pub fn tool_binary(kind: &str, claimed: &str, name: Option<&str>, base64: &str) -> ToolContent {
    let name = name.map(shown_name);
    let base64: String = base64.split_ascii_whitespace().collect();
    if let Some((media_type, data)) = whole_picture(&base64) {
        return ToolContent::Image(BinaryContent::inline(media_type, name, data));
    }
    match decoded(&base64) {
        Some(bytes) if !bytes.is_empty() => {
            // An incomplete picture becomes a note: providers would refuse it.
            let claimed = media_type(claimed);
            let media_type = if is_picture_type(&claimed) { media_type("") } else { claimed };
            ToolContent::File(BinaryContent::inline(media_type, name, STANDARD.encode(bytes)))
        }
        Some(_) => ToolContent::text(format!("[{}: it is empty]", BinaryContent::inline(claimed, name, "").described(kind))),
        None => {
            let described = BinaryContent::inline(claimed, name, base64).described(kind);
            ToolContent::text(format!("[{described}: it cannot be read, because the tool sent invalid base64]"))
        }
    }
}
