//! The field `tool_choice` of chat completions and of the Responses API.

use serde_json::Value;

use crate::domain::model::ToolChoice;
use crate::domain::tool::client_tool::ClientTool;
use crate::http::openai::target::Target;
use crate::service::{Error, Result};
use crate::support::text;

const FORMS: &str = "must be auto, none, required, a function by name, or allowed_tools with functions by name";

/// Limit of the characters of a name in an error.
const MAX_SHOWN_CHARS: usize = 100;

/// The tools that the model may or must call.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ToolChoiceField {
    pub choice: Option<ToolChoice>,
    /// The only tools of the request that the model may call; `None` for all.
    allowed: Option<Vec<String>>,
}

impl ToolChoiceField {
    /// Reads the field of a request.
    pub(super) fn read(field: Option<&Value>, target: &Target) -> Result<Self> {
        let Some(field) = field.filter(|field| !field.is_null()) else { return Ok(Self::default()) };
        let unknown = || Error::field("/tool_choice", FORMS);
        if field["type"] != "allowed_tools" {
            let choice = mode(field).or_else(|| function(field).map(ToolChoice::Tool)).ok_or_else(unknown)?;
            return Ok(Self { choice: Some(choice), allowed: None });
        }
        // Chat completions wrap the list in another object.
        let list = field.get("allowed_tools").unwrap_or(field);
        let choice = list.get("mode").map_or(Some(ToolChoice::Auto), mode).ok_or_else(unknown)?;
        let functions = list["tools"].as_array().and_then(|tools| tools.iter().map(function).collect()).ok_or_else(unknown)?;
        if !target.is_plain() {
            let reason = "allowed_tools needs a model `provider/name`: an agent's own tools are set by the agent";
            return Err(Error::field("/tool_choice", reason));
        }
        Ok(Self { choice: Some(choice), allowed: Some(functions) })
    }

    /// Returns those tools of the request that the model may call. Fails if an allowed tool is not among them.
    pub(super) fn select(&self, tools: Vec<ClientTool>) -> Result<Vec<ClientTool>> {
        let Some(allowed) = &self.allowed else { return Ok(tools) };
        if let Some(name) = allowed.iter().find(|name| tools.iter().all(|tool| tool.name != **name)) {
            let shown = text::prefix_chars(name, MAX_SHOWN_CHARS);
            return Err(Error::field("/tool_choice", format!("names the tool {shown:?}, which is not in `tools`; add it there")));
        }
        Ok(tools.into_iter().filter(|tool| allowed.contains(&tool.name)).collect())
    }
}

fn mode(field: &Value) -> Option<ToolChoice> {
    match field.as_str()? {
        "auto" => Some(ToolChoice::Auto),
        "none" => Some(ToolChoice::None),
        "required" => Some(ToolChoice::Required),
        _ => None,
    }
}

/// Returns the name of a function, in the form of either API.
fn function(tool: &Value) -> Option<String> {
    let name = tool.pointer("/function/name").or_else(|| tool.get("name"));
    name.filter(|_| tool["type"] == "function").and_then(Value::as_str).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(field: Value, model: &str) -> Result<ToolChoiceField> {
        ToolChoiceField::read(Some(&field), &Target::of(model))
    }

    #[test]
    fn each_form_of_both_apis_is_read() {
        let look = ToolChoice::Tool("look".to_owned());
        for (field, choice) in [
            (json!("auto"), ToolChoice::Auto),
            (json!("none"), ToolChoice::None),
            (json!("required"), ToolChoice::Required),
            (json!({"type": "function", "function": {"name": "look"}}), look.clone()),
            (json!({"type": "function", "name": "look"}), look),
        ] {
            assert_eq!(read(field, "default").unwrap(), ToolChoiceField { choice: Some(choice), allowed: None });
        }
        assert_eq!(read(Value::Null, "default").unwrap(), ToolChoiceField::default());
        for (field, choice) in [
            (json!({"type": "allowed_tools", "tools": [{"type": "function", "name": "look"}]}), ToolChoice::Auto),
            (
                json!({"type": "allowed_tools", "allowed_tools": {
                    "mode": "required", "tools": [{"type": "function", "function": {"name": "look"}}]}}),
                ToolChoice::Required,
            ),
        ] {
            let chosen = read(field, "acme/large").unwrap();
            assert_eq!(
                (chosen.choice.as_ref(), selected(&chosen, &["look", "drop"]).unwrap()),
                (Some(&choice), vec!["look".to_owned()])
            );
        }
    }

    fn selected(chosen: &ToolChoiceField, names: &[&str]) -> Result<Vec<String>> {
        let tool = |name: &&str| ClientTool { name: (*name).to_owned(), description: String::new(), parameters: None };
        let tools = chosen.select(names.iter().map(tool).collect())?;
        Ok(tools.into_iter().map(|tool| tool.name).collect())
    }

    #[test]
    fn allowed_tool_must_be_a_tool_of_the_request() {
        let functions = ["look", "fly"].map(|name| json!({"type": "function", "name": name}));
        let chosen = read(json!({"type": "allowed_tools", "tools": functions}), "acme/large").unwrap();
        for names in [["look", "drop"].as_slice(), &[]] {
            let problem = selected(&chosen, names).unwrap_err().problem();
            assert_eq!(problem.errors[0].pointer, "/tool_choice", "{problem:?}");
        }
        assert_eq!(selected(&chosen, &["fly", "look"]).unwrap().len(), 2);
        assert_eq!(selected(&ToolChoiceField::default(), &["look"]).unwrap(), ["look"], "all tools are allowed");
    }

    #[test]
    fn other_choices_of_tools_are_refused() {
        let list = json!({"type": "allowed_tools", "tools": [{"type": "function", "name": "look"}]});
        for (field, model) in [
            (json!("any"), "acme/large"),
            (json!({"type": "web_search"}), "acme/large"),
            (json!({"type": "mcp", "server_label": "files", "name": "read"}), "acme/large"),
            (json!({"type": "allowed_tools"}), "acme/large"),
            (json!({"type": "allowed_tools", "mode": "some", "tools": []}), "acme/large"),
            (list, "default"),
        ] {
            assert_eq!(read(field.clone(), model).unwrap_err().problem().errors[0].pointer, "/tool_choice", "{field}");
        }
    }
}
