//! The list of built-in tools and the way from a name to the code.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::{calculate, files, time};
use crate::domain::tool::{ReplayClass, ToolDefinition};
use crate::support::clock::SharedClock;
use crate::support::json;

/// What the built-in tools need.
pub struct BuiltInOptions {
    /// The one folder that the file tools see. It need not exist yet.
    pub files_root: PathBuf,
    /// What time it is.
    pub clock: SharedClock,
    /// The time zone of `current_time` when the model names none: an IANA name.
    pub default_timezone: String,
}

/// The built-in tools.
pub struct BuiltIns {
    options: BuiltInOptions,
    definitions: Vec<ToolDefinition>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BuiltIn {
    CurrentTime,
    Calculate,
    ListDirectory,
    ReadFile,
}

impl BuiltIn {
    const ALL: [Self; 4] = [Self::CurrentTime, Self::Calculate, Self::ListDirectory, Self::ReadFile];

    fn name(self) -> &'static str {
        match self {
            Self::CurrentTime => "current_time",
            Self::Calculate => "calculate",
            Self::ListDirectory => "list_directory",
            Self::ReadFile => "read_file",
        }
    }

    fn description(self) -> &'static str {
        match self {
            Self::CurrentTime => "Tells the current date and time, in the time zone that is named or else in the server's own.",
            Self::Calculate => {
                "Calculates a mathematical expression with numbers, + - * / % ^, parentheses, the functions sqrt, abs, sin, cos, \
                 tan, asin, acos, atan, exp, ln, log2, log10, round, floor, ceil and the constants PI and E."
            }
            Self::ListDirectory => "Lists a folder: one line per entry, with the size of each file. At most 50 entries are shown.",
            Self::ReadFile => "Reads a text file. Long files are cut after 256 KiB.",
        }
    }

    fn parameters(self) -> Value {
        match self {
            Self::CurrentTime => json!({
                "type": "object",
                "properties": {
                    "timezone": {"type": "string", "description": "IANA name of a time zone, such as Europe/Berlin"}
                },
                "additionalProperties": false
            }),
            Self::Calculate => json!({
                "type": "object",
                "properties": {"expression": {"type": "string", "description": "The expression, such as (2 + 3) * 4^2"}},
                "required": ["expression"],
                "additionalProperties": false
            }),
            Self::ListDirectory => json!({
                "type": "object",
                "properties": {
                    "path": {"type": "string", "description": "Path relative to the shared folder; that folder itself if absent"}
                },
                "additionalProperties": false
            }),
            Self::ReadFile => json!({
                "type": "object",
                "properties": {"path": {"type": "string", "description": "Path relative to the shared folder"}},
                "required": ["path"],
                "additionalProperties": false
            }),
        }
    }
}

impl BuiltIns {
    /// The built-in tools with what they need.
    #[must_use]
    pub fn new(options: BuiltInOptions) -> Self {
        let definitions = BuiltIn::ALL
            .into_iter()
            .map(|tool| {
                let parameters = tool.parameters();
                ToolDefinition {
                    name: tool.name().to_owned(),
                    server: None,
                    tool: tool.name().to_owned(),
                    description: tool.description().to_owned(),
                    definition_hash: json::hash(&json!([tool.description(), parameters])),
                    parameters: parameters.into(),
                    replay: ReplayClass::Read,
                }
            })
            .collect();
        Self { options, definitions }
    }

    /// Their definitions.
    #[must_use]
    pub fn definitions(&self) -> &[ToolDefinition] {
        &self.definitions
    }

    /// Carries out the tool called `name`. The text of either kind is for the model.
    ///
    /// # Errors
    /// What went wrong, in words.
    pub async fn call(&self, name: &str, arguments: &Value) -> Result<String, String> {
        let Some(tool) = BuiltIn::ALL.into_iter().find(|tool| tool.name() == name) else {
            return Err(format!("there is no built-in tool {name} any more"));
        };
        let text = |key: &str| arguments.get(key).and_then(Value::as_str).map(str::to_owned);
        match tool {
            BuiltIn::CurrentTime => {
                let zone = text("timezone").unwrap_or_else(|| self.options.default_timezone.clone());
                time::current_time(self.options.clock.now(), &zone)
            }
            BuiltIn::Calculate => calculate::calculate(&text("expression").unwrap_or_default()),
            BuiltIn::ListDirectory => {
                let (root, path) = (self.options.files_root.clone(), text("path").unwrap_or_default());
                blocking(move || files::list_directory(&root, &path)).await
            }
            BuiltIn::ReadFile => {
                let (root, path) = (self.options.files_root.clone(), text("path").unwrap_or_default());
                blocking(move || files::read_file(&root, &path)).await
            }
        }
    }
}

/// File systems block. The thread may outlive a call that ran out of time; it only reads, so nothing is left half done.
async fn blocking(work: impl FnOnce() -> Result<String, String> + Send + 'static) -> Result<String, String> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(format!("the tool broke down: {error}")))
}
