//! Exports a conversation as a document: JSON with everything that clients see, or Markdown for people.
//!
//! A document is produced in pieces (its beginning, pages of messages, its end), so that a long conversation is never completely in
//! memory.

use std::fmt::Write as _;

use serde::Deserialize;
use utoipa::ToSchema;

use crate::domain::conversation::Conversation;
use crate::domain::conversation::message::{BinaryContent, FilePart, Message, MessageStatus, Part, Role, SourcePart, ToolContent};
use crate::support::clock::UnixMillis;

/// The format of a document.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ExportFormat)]
pub enum ExportForm {
    /// All fields of `GET /messages`.
    #[default]
    Json,
    /// A readable text without internal messages.
    Markdown,
}

impl ExportForm {
    pub fn beginning(self, conversation: &Conversation, now: UnixMillis) -> String {
        match self {
            Self::Json => {
                let conversation = serde_json::to_string(conversation).unwrap_or_default();
                let at = now.to_rfc3339();
                format!(
                    r#"{{"format":"capstan.conversation","version":1,"exported_at":"{at}","conversation":{conversation},"messages":["#
                )
            }
            Self::Markdown => {
                let title = single_line(&conversation.title);
                let title = if title.is_empty() { conversation.id.as_str() } else { &title };
                format!("# {title}\n\n{}, exported {}\n", conversation.created_at, now.to_rfc3339())
            }
        }
    }

    /// Renders a page of messages. `first` is true for the first page.
    pub fn messages(self, messages: &[Message], first: bool) -> String {
        match self {
            Self::Json => {
                let mut text = String::new();
                for (index, message) in messages.iter().enumerate() {
                    text.push_str(if first && index == 0 { "\n" } else { ",\n" });
                    text.push_str(&serde_json::to_string(message).unwrap_or_default());
                }
                text
            }
            Self::Markdown => messages.iter().filter(|message| !message.internal).map(markdown).collect(),
        }
    }

    pub fn end(self) -> &'static str {
        match self {
            Self::Json => "\n]}\n",
            Self::Markdown => "",
        }
    }

    pub fn extension(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Markdown => "md",
        }
    }
}

fn markdown(message: &Message) -> String {
    let mut text = match (message.role, &message.model) {
        (Role::User, _) => "\n## User\n".to_owned(),
        (Role::Assistant, Some(model)) => format!("\n## Assistant ({model})\n"),
        (Role::Assistant, None) => "\n## Assistant\n".to_owned(),
        (Role::Tool, _) => String::new(),
    };
    for part in &message.parts {
        text.push('\n');
        text.push_str(&part_text(part));
        text.push('\n');
    }
    if message.status == MessageStatus::Partial {
        text.push_str("\n*Stopped here.*\n");
    }
    text
}

fn part_text(part: &Part) -> String {
    match part {
        Part::Text(part) => closed(part.text.trim_end()),
        Part::Reasoning(part) => {
            part.text.trim_end().lines().map(|line| format!("> {line}\n")).collect::<String>().trim_end().to_owned()
        }
        Part::ToolCall(part) => {
            format!("**Call of `{}`**\n\n{}", part.name, fenced("json", &format!("{:#}", part.arguments)))
        }
        Part::ToolResult(part) => {
            let title = if part.is_error { "Error" } else { "Result" };
            let mut text = format!("**{title} of `{}`**", part.name);
            for content in &part.content {
                let shown = match content {
                    ToolContent::Text { text } => fenced("", text),
                    ToolContent::Image(BinaryContent { name, media_type, url, .. }) => file_text("picture", name, media_type, url),
                    ToolContent::File(BinaryContent { name, media_type, url, .. }) => file_text("file", name, media_type, url),
                };
                let _ = write!(text, "\n\n{shown}");
            }
            text
        }
        Part::Image(FilePart { name, media_type, url, .. }) => file_text("picture", name, media_type, url),
        Part::File(FilePart { name, media_type, url, .. }) => file_text("file", name, media_type, url),
        Part::Source(SourcePart { url, title, .. }) => {
            let title = single_line(title.as_deref().or(url.as_deref()).unwrap_or_default());
            match url.as_deref().map(single_line) {
                Some(url) => format!("*Source: {title}, <{url}>*"),
                None => format!("*Source: {title}*"),
            }
        }
    }
}

/// Describes a file and its location.
fn file_text(kind: &str, name: &Option<String>, media_type: &str, url: &Option<String>) -> String {
    let name = single_line(name.as_deref().unwrap_or(kind));
    match url.as_deref().map(single_line) {
        Some(url) => format!("*A {kind}: {name} ({media_type}), <{url}>*"),
        None => format!("*A {kind}: {name} ({media_type})*"),
    }
}

fn single_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Closes an open fence of a text: otherwise a message that ends inside a code block would include everything after it.
fn closed(text: &str) -> String {
    // CommonMark 0.31, 4.5: a line with at least as many of the same character, and nothing else, closes a fence.
    let mut open: Option<&str> = None;
    for line in text.lines() {
        let indent = line.len() - line.trim_start_matches(' ').len();
        let (line, sign) = (line.trim(), if line.trim().starts_with('~') { '~' } else { '`' });
        let length = line.len() - line.trim_start_matches(sign).len();
        let (fence, rest) = line.split_at(length);
        if indent > 3 || length < 3 {
            continue;
        }
        open = match open {
            None if sign == '`' && rest.contains('`') => None,
            None => Some(fence),
            Some(open_fence) if rest.is_empty() && fence.starts_with(open_fence) => None,
            Some(open_fence) => Some(open_fence),
        };
    }
    match open {
        Some(fence) => format!("{text}\n{fence}"),
        None => text.to_owned(),
    }
}

/// Encloses a text in a fence that is longer than any run of backticks in it, so that the text cannot close it.
fn fenced(language: &str, text: &str) -> String {
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    format!("{fence}{language}\n{}\n{fence}", text.trim_end_matches('\n'))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn message(value: Value) -> Message {
        let mut whole = json!({
            "id": "msg_0198c0de-0000-7000-8000-000000000001", "conversation_id": "conv_0198c0de-0000-7000-8000-000000000001", "run_id": "run_0198c0de-0000-7000-8000-000000000001", "status": "complete", "created_at": "2026-01-01T00:00:00.000Z",
        });
        whole.as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
        serde_json::from_value(whole).unwrap()
    }

    #[test]
    fn markdown_export_has_calls_and_results_but_no_nudges() {
        let messages = [
            message(
                json!({"role": "user", "parts": [{"type": "text", "id": "part_0198c0de-0000-7000-8000-000000000001", "text": "Zähl *alles*"},
                {"type": "image", "id": "part_0198c0de-0000-7000-8000-000000000001", "media_type": "image/png", "name": "a.png"}]}),
            ),
            message(
                json!({"role": "user", "internal": true, "parts": [{"type": "text", "id": "part_0198c0de-0000-7000-8000-000000000001", "text": "a hint"}]}),
            ),
            message(json!({"role": "assistant", "model": "demo/demo", "status": "partial", "parts": [
                {"type": "reasoning", "id": "part_0198c0de-0000-7000-8000-000000000001", "text": "first\nsecond"},
                {"type": "tool_call", "id": "part_0198c0de-0000-7000-8000-000000000001", "call_id": "call_0198c0de-0000-7000-8000-000000000001", "name": "count", "arguments": {"n": 1}}]})),
            message(
                json!({"role": "tool", "parts": [{"type": "tool_result", "id": "part_0198c0de-0000-7000-8000-000000000001", "call_id": "call_0198c0de-0000-7000-8000-000000000001", "name": "count",
                "is_error": true, "state": "failed", "content": [{"type": "text", "text": "```\nno\n```"}]}]}),
            ),
        ];
        let text = ExportForm::Markdown.messages(&messages, true);
        let expected = "\n## User\n\nZähl *alles*\n\n*A picture: a.png (image/png)*\n\
            \n## Assistant (demo/demo)\n\n> first\n> second\n\n**Call of `count`**\n\n```json\n{\n  \"n\": 1\n}\n```\n\n*Stopped here.*\n\
            \n**Error of `count`**\n\n````\n```\nno\n```\n````\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn nothing_is_left_open() {
        for (text, end) in [
            ("```rust\nlet x", "\n```"),
            ("~~~~\n```\n~~~", "\n~~~~"),
            ("```\ncode\n````", ""),
            ("````\n```\n````\nwords", ""),
            ("use ```x``` here", ""),
            ("```not` a fence", ""),
            ("    ```\nindented", ""),
            ("```\n``` no end", "\n```"),
            ("", ""),
        ] {
            assert_eq!(closed(text), format!("{text}{end}"));
        }
        let name = "a\n\n# b";
        let part = json!({"type": "file", "id": "part_0198c0de-0000-7000-8000-000000000001", "media_type": "text/plain", "url": "https://h/\nx", "name": name});
        let text = ExportForm::Markdown.messages(&[message(json!({"role": "user", "parts": [part]}))], true);
        assert!(text.contains("*A file: a # b (text/plain), <https://h/ x>*"), "{text}");
    }

    #[test]
    fn pages_make_one_document() {
        let conversation: Conversation = serde_json::from_value(json!({
            "id": "conv_0198c0de-0000-7000-8000-000000000001", "title": "Two\nlines", "status": "idle", "last_seq": 3, "created_at": "then", "updated_at": "then",
        }))
        .unwrap();
        let one = message(json!({"role": "user", "parts": []}));
        let form = ExportForm::Json;
        let document = [
            form.beginning(&conversation, UnixMillis(0)),
            form.messages(std::slice::from_ref(&one), true),
            form.messages(&[one.clone(), one.clone()], false),
            form.end().to_owned(),
        ];
        let document: Value = serde_json::from_str(&document.concat()).unwrap();
        assert_eq!(document["conversation"], serde_json::to_value(&conversation).unwrap());
        assert_eq!(document["messages"], json!([one, one, one]));
        assert!(ExportForm::Markdown.beginning(&conversation, UnixMillis(0)).starts_with("# Two lines\n"));
    }
}
