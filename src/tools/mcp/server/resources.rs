//! Resources and prompts of a server for people: bounded, with secrets redacted and without invisible characters.

use rmcp::model::{Prompt, PromptArgument, Resource};
use serde::Serialize;
use utoipa::ToSchema;

use crate::support::text;
use crate::tools::invisible_chars::visible;
use crate::tools::mcp::config::redaction::SecretRedactor;

/// The longest name or type, in characters.
const MAX_NAME: usize = 256;
const MAX_DESCRIPTION: usize = 1_024;
/// The longest URI. A longer one is omitted, because a cut URI has another meaning.
const MAX_URI: usize = 2_048;
const MAX_ARGUMENTS: usize = 64;

/// A resource of an MCP server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct McpResource {
    /// The URI by which the resource is requested.
    pub uri: String,
    /// The name of the resource.
    pub name: String,
    /// The title for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The server's description of the resource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The media type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mime_type: Option<String>,
    /// The size in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
}

/// A prompt of an MCP server: a template for messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct McpPrompt {
    /// The name by which the prompt is requested.
    pub name: String,
    /// The title for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The server's description of the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The arguments of the prompt.
    pub arguments: Vec<McpPromptArgument>,
}

/// An argument of a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct McpPromptArgument {
    /// The name of the argument.
    pub name: String,
    /// The server's description of the argument.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Whether the argument is required.
    pub required: bool,
}

pub fn resources(all: Vec<Resource>, redactor: &SecretRedactor) -> Vec<McpResource> {
    let (name, description) = shorteners(redactor);
    let fits = all.into_iter().filter(|resource| resource.uri.chars().count() <= MAX_URI);
    let converted = fits.map(|resource| McpResource {
        uri: redacted_text(&resource.uri, MAX_URI, redactor),
        name: name(resource.name),
        title: resource.title.map(&name),
        description: resource.description.map(&description),
        mime_type: resource.mime_type.map(&name),
        size: resource.size,
    });
    converted.collect()
}

pub fn prompts(all: Vec<Prompt>, redactor: &SecretRedactor) -> Vec<McpPrompt> {
    let (name, description) = shorteners(redactor);
    let shown_argument = |argument: PromptArgument| McpPromptArgument {
        name: name(argument.name),
        description: argument.description.map(&description),
        required: argument.required.unwrap_or_default(),
    };
    let shown_prompt = |prompt: Prompt| McpPrompt {
        name: name(prompt.name),
        title: prompt.title.map(&name),
        description: prompt.description.map(&description),
        arguments: prompt.arguments.into_iter().flatten().take(MAX_ARGUMENTS).map(shown_argument).collect(),
    };
    all.into_iter().map(shown_prompt).collect()
}

/// Returns the functions that shorten a name and a description.
fn shorteners(redactor: &SecretRedactor) -> (impl Fn(String) -> String, impl Fn(String) -> String) {
    (
        |name: String| redacted_text(&name, MAX_NAME, redactor),
        |description: String| redacted_text(&description, MAX_DESCRIPTION, redactor),
    )
}

fn redacted_text(raw: &str, most: usize, redactor: &SecretRedactor) -> String {
    // Invisible characters inside a secret would hide it from redaction, so they are removed first.
    text::prefix_chars(redactor.redact(&visible(raw)).trim(), most).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_server_texts_are_bounded_and_clean() {
        let mut redactor = SecretRedactor::default();
        redactor.add("api_key", "s3cret-canary");
        let mut resource = Resource::new("file:///a?key=s3cret-canary", "a\u{200b}\u{202e}b");
        resource.description = Some("x".repeat(5_000));
        let long = Resource::new(format!("file:///{}", "x".repeat(MAX_URI)), "long");
        let mut parted = Resource::new("file:///b", "s3cret-\u{200b}canary");
        parted.description = Some("Reads with s3cret-\u{200b}canary".to_owned());
        let converted = resources(vec![resource, long, parted], &redactor);
        assert_eq!((converted.len(), converted[0].uri.as_str()), (2, "file:///a?key=[redacted]"));
        assert_eq!(
            (converted[1].name.as_str(), converted[1].description.as_deref()),
            ("[redacted]", Some("Reads with [redacted]"))
        );
        assert_eq!(converted[0].description.as_ref().map(String::len), Some(MAX_DESCRIPTION));
        assert!(!converted[0].name.contains(['\u{200b}', '\u{202e}']), "{:?}", converted[0].name);
        let prompt = Prompt::new("p", Some("d"), Some((0..100).map(|n| rmcp::model::PromptArgument::new(n.to_string())).collect()));
        assert_eq!(prompts(vec![prompt], &redactor)[0].arguments.len(), MAX_ARGUMENTS);
    }
}
