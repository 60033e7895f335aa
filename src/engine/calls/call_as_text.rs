//! Detects tool calls that a model writes as text, because the model's server did not parse them. The engine never executes them.

use serde_json::Value;

use crate::domain::conversation::Message;
use crate::engine::calls::json_repair::unfenced;
use crate::engine::calls::name_repair;
use crate::engine::machine::DecisionBuilder;

/// Tags before a tool call in the chat templates of open models.
const OPENERS: [&str; 10] = [
    "<tool_call>",
    "<tool_calls>",
    "<function_call>",
    "<function_calls>",
    "<|tool_call|>",
    "<|tool_call>",
    "<|python_tag|>",
    "[TOOL_CALLS]",
    "<tools>",
    "<tool>",
];

/// Returns whether an answer consists of tool calls as text, and the first of them names a tool of the run.
pub fn is_call(decision: &DecisionBuilder<'_>, message: &Message) -> bool {
    if decision.profile().options.output_schema.is_some() {
        return false;
    }
    let tools = decision.before.tools.as_deref().unwrap_or_default();
    called_name(&message.text()).is_some_and(|name| name_repair::named(&name, tools).is_some())
}

/// Returns the name of the first call, if the text consists of calls.
fn called_name(text: &str) -> Option<String> {
    let text = unfenced(text);
    let marked = OPENERS.iter().find_map(|opener| text.strip_prefix(opener)).map(str::trim_start);
    let call = marked.unwrap_or(text);
    if let Some(rest) = call.strip_prefix("<function=") {
        return rest.split_once('>').map(|(name, _)| name.trim().to_owned());
    }
    let mut values = serde_json::Deserializer::from_str(call).into_iter::<Value>();
    let first = values.next()?.ok()?;
    let rest = call.get(values.byte_offset()..)?.trim_start();
    if !(rest.is_empty() || (marked.is_some() && rest.starts_with(['<', '[']))) {
        return None;
    }
    let object = first.as_array().map_or(Some(&first), |calls| calls.first())?;
    let object = object.get("function").filter(|function| function.is_object()).unwrap_or(object);
    let has_arguments = ["arguments", "parameters", "args"].iter().any(|key| object.get(key).is_some());
    object.get("name").and_then(Value::as_str).filter(|_| has_arguments).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::called_name;

    #[rstest]
    #[case(r#"<tool_call>{"name":"calculate","arguments":{}}</tool_call>"#, Some("calculate"))]
    #[case("<tool_call>\n{\"name\": \"a\", \"arguments\": {}}\n</tool_call>\n<tool_call>{}", Some("a"))]
    #[case("<tool_call><function=read><parameter=path>a</parameter></function></tool_call>", Some("read"))]
    #[case(r#"<function=read>{"path": "a"}</function>"#, Some("read"))]
    #[case(r#"[TOOL_CALLS][{"name": "a", "arguments": {}}]"#, Some("a"))]
    #[case(r#"<|python_tag|>{"name": "a", "parameters": {}}"#, Some("a"))]
    #[case("```json\n{\"name\": \"a\", \"arguments\": {}}\n```", Some("a"))]
    #[case(r#"{"type": "function", "function": {"name": "a", "arguments": "{}"}}"#, Some("a"))]
    #[case(r#"{"name": "a", "arguments": {}} is a call"#, None)]
    #[case(r#"A call is <tool_call>{"name": "a", "arguments": {}}</tool_call>"#, None)]
    #[case(r#"{"name": "Ada"}"#, None)]
    #[case("<tool_call>", None)]
    #[case("[]", None)]
    #[case("", None)]
    fn answer_of_calls_alone_is_recognised(#[case] text: &str, #[case] name: Option<&str>) {
        assert_eq!(called_name(text).as_deref(), name, "{text}");
    }
}
