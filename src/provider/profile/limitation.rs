//! The limitations of a model.

use serde::{Deserialize, Serialize};

use crate::provider::errors::refusals::PartKind;

/// A feature that a model or its provider does not accept. Each limitation changes the requests to the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::provider) enum Limitation {
    /// Accepts no parts of this kind.
    NoParts(PartKind),
    /// The part with this hash cannot be read.
    UnreadablePart(String),
    MaxImages(usize),
    /// No image whose base64 has more bytes.
    MaxImageBytes(usize),
    /// No image with a longer side, in pixels.
    MaxImageEdge(usize),
    /// Cannot chat: requests go to another model.
    NoChat,
    NoTools,
    MaxTools(usize),
    /// The system prompt is moved into the first user message.
    NoSystemRole,
    NoStreaming,
    /// The schema of the answer is moved into the system prompt.
    NoOutputSchema,
    MaxOutput(u32),
    /// A field of the body, as a path with dots, is left out.
    NoField(String),
    RenamedField {
        from: String,
        to: String,
    },
    /// Patterns of schemas must not use look-around.
    NoLookAround,
    /// Schemas must not use this keyword.
    NoKeyword(String),
    /// The tool with this key is sent with a minimal schema.
    SimpleTool(String),
    SimpleTools,
    /// The tool with this key is not offered.
    NoTool(String),
    /// Earlier answers must be sent with their reasoning.
    NeedsReasoning,
    /// Tools that were called earlier must be defined in the request.
    NeedsFormerTools,
    /// An earlier answer with calls only must be sent with an empty text, not null.
    NoNullContent,
}

impl Limitation {
    /// Returns the name of the change for events and the API: `name`, or `name:detail`.
    pub(in crate::provider) fn adaptation_name(&self) -> String {
        let name = |key: &str| key.split(' ').next().unwrap_or_default().to_owned();
        match self {
            Self::NoParts(kind) => kind.words()[2].to_owned(),
            Self::UnreadablePart(_) => "parts_left_out".to_owned(),
            Self::NoChat => "model_replaced".to_owned(),
            Self::MaxImages(_) | Self::MaxImageBytes(_) | Self::MaxImageEdge(_) => "images_limited".to_owned(),
            Self::NoTools => "tools_left_out".to_owned(),
            Self::MaxTools(most) => format!("tools_limited:{most}"),
            Self::NoSystemRole => "system_prompt_moved".to_owned(),
            Self::NoStreaming => "streaming_left_out".to_owned(),
            Self::NoOutputSchema => "output_schema_moved".to_owned(),
            Self::MaxOutput(most) => format!("output_limited:{most}"),
            Self::NoField(path) => format!("field_left_out:{path}"),
            Self::RenamedField { from, to } => format!("field_renamed:{from}:{to}"),
            Self::NoLookAround => "look_around_left_out".to_owned(),
            Self::NoKeyword(keyword) => format!("schema_keyword_left_out:{keyword}"),
            Self::SimpleTool(key) => format!("tool_schema_simplified:{}", name(key)),
            Self::SimpleTools => "tool_schemas_simplified".to_owned(),
            Self::NoTool(key) => format!("tool_left_out:{}", name(key)),
            Self::NeedsReasoning => "reasoning_returned".to_owned(),
            Self::NeedsFormerTools => "former_tools_declared".to_owned(),
            Self::NoNullContent => "null_content_left_out".to_owned(),
        }
    }
}
