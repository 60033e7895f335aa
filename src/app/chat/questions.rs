//! Questions of a run, and the conversion of typed lines to answers. Must not know the terminal or the server.

use serde_json::{Value, json};

use super::safe_text::brief;

#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    pub id: String,
    kind: Kind,
}

#[derive(Debug, Clone, PartialEq)]
enum Kind {
    Approval { call: String, destructive: bool, scopes: Vec<String>, arguments_hash: Value },
    Input { text: String, choices: Vec<Choice>, is_form: bool },
}

#[derive(Debug, Clone, PartialEq)]
struct Choice {
    value: String,
    label: String,
}

/// Returns the items of an array, or none for another value.
pub(super) fn items(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

impl Question {
    /// Parses the data of `approval.requested`.
    pub fn approval(data: &Value) -> Self {
        let word = |key: &str| data[key].as_str().unwrap_or_default();
        let mut call = format!("{} {}", brief(word("name")), brief(&data["arguments"].to_string()));
        if let Some(rationale) = data["rationale"].as_str() {
            call.push_str(&format!(" (it says: {})", brief(rationale)));
        }
        let scopes = items(&data["scopes"]).iter().filter_map(|scope| scope.as_str()).map(str::to_owned).collect();
        let kind = Kind::Approval {
            call,
            destructive: data["destructive"].as_bool().unwrap_or_default(),
            scopes,
            arguments_hash: data["arguments_hash"].clone(),
        };
        Self { id: word("id").to_owned(), kind }
    }

    /// Parses the data of `input.requested`.
    pub fn input(data: &Value) -> Self {
        let question = &data["question"];
        let word = |of: &Value, key: &str| of[key].as_str().unwrap_or_default().to_owned();
        let choices = items(&question["choices"])
            .iter()
            .map(|choice| Choice { value: word(choice, "value"), label: brief(&word(choice, "label")) })
            .collect();
        let mut text = brief(&word(question, "text"));
        let elicitation = &question["elicitation"];
        if let Some(url) = elicitation["url"].as_str() {
            text.push_str(&format!(" ({})", brief(url)));
        }
        let is_form = question["form"].is_object() || elicitation["requested_schema"].is_object();
        Self { id: word(data, "id"), kind: Kind::Input { text, choices, is_form } }
    }

    pub fn path(&self) -> String {
        let resource = match self.kind {
            Kind::Approval { .. } => "approvals",
            Kind::Input { .. } => "input-requests",
        };
        format!("/api/v1/{resource}/{}", self.id)
    }

    /// Returns the text for a user without a terminal.
    pub fn remark(&self) -> String {
        let path = self.path();
        match &self.kind {
            Kind::Approval { call, .. } => {
                format!("?? {call} needs an approval: POST {path} with {{\"decision\":\"allow\"}} or {{\"decision\":\"deny\"}}")
            }
            Kind::Input { text, choices, .. } if choices.is_empty() => format!("?? {text} POST {path} with a text"),
            Kind::Input { text, choices, .. } => {
                let choices: Vec<&str> = choices.iter().map(|choice| choice.value.as_str()).collect();
                format!("?? {text} POST {path} with a choice: {}", brief(&choices.join(", ")))
            }
        }
    }

    /// Returns the text for a user at a terminal.
    pub fn prompt(&self) -> String {
        match &self.kind {
            Kind::Approval { call, destructive, scopes, .. } => {
                let danger = if *destructive { " Its server marks it as destructive." } else { "" };
                let further: String = [("conversation", ", c for this conversation"), ("always", ", a for always")]
                    .into_iter()
                    .filter(|(scope, _)| scopes.iter().any(|known| known == scope))
                    .map(|(_, words)| words)
                    .collect();
                format!("?? {call}\n   Allow it?{danger} y for once{further}; n, or a reason to deny it")
            }
            Kind::Input { text, choices, is_form } => {
                let mut lines = vec![format!("?? {text}")];
                let numbered = choices.iter().enumerate();
                lines.extend(numbered.map(|(at, choice)| match &choice.label {
                    label if label.is_empty() => format!("   {}. {}", at + 1, brief(&choice.value)),
                    label => format!("   {}. {}: {label}", at + 1, brief(&choice.value)),
                }));
                lines.push(if *is_form {
                    "   A number, or a JSON object with the fields of the form".to_owned()
                } else if choices.is_empty() {
                    "   Your answer".to_owned()
                } else {
                    "   A number, or an answer".to_owned()
                });
                lines.join("\n")
            }
        }
    }

    /// Converts a typed line to an answer. Fails with a text that says what the line should contain.
    pub fn answer(&self, line: &str) -> Result<Value, String> {
        let line = line.trim();
        match &self.kind {
            _ if line.is_empty() => Err(self.prompt()),
            Kind::Approval { scopes, arguments_hash, .. } => {
                // Contains the hash of the displayed arguments: the server refuses the answer if the arguments have changed.
                let allow = |scope: &str| {
                    if scopes.iter().any(|known| known == scope) {
                        Ok(json!({"decision": "allow", "scope": scope, "arguments_hash": arguments_hash}))
                    } else {
                        Err(format!("-- this call can only be allowed once\n{}", self.prompt()))
                    }
                };
                match line.to_lowercase().as_str() {
                    "y" | "yes" => allow("once"),
                    "c" => allow("conversation"),
                    "a" => allow("always"),
                    "n" | "no" => Ok(json!({"decision": "deny"})),
                    // A single letter is more likely a typing error than a reason.
                    _ if line.chars().count() == 1 => Err(self.prompt()),
                    _ => Ok(json!({"decision": "deny", "reason": line})),
                }
            }
            Kind::Input { choices, is_form, .. } => {
                let numbered = line.parse::<usize>().ok().and_then(|number| choices.get(number.checked_sub(1)?));
                let named = choices.iter().find(|choice| choice.value.eq_ignore_ascii_case(line));
                match numbered.or(named) {
                    Some(choice) => Ok(json!({"choice": choice.value})),
                    None if *is_form => match serde_json::from_str::<Value>(line) {
                        Ok(content) if content.is_object() => {
                            Ok(json!({"choice": crate::domain::run::question::ACCEPT, "content": content}))
                        }
                        Ok(_) | Err(_) => Err(format!("-- not a JSON object\n{}", self.prompt())),
                    },
                    None => Ok(json!({"text": line})),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn approval(scopes: &[&str]) -> Question {
        Question::approval(
            &json!({"id": "input_1", "name": "files__move", "arguments": {"to": "b\u{1b}[2J"}, "arguments_hash": "abc",
            "destructive": false, "scopes": scopes}),
        )
    }

    #[test]
    fn a_call_is_allowed_as_it_was_shown_or_denied_with_words() {
        let asked = approval(&["once", "conversation"]);
        assert_eq!(asked.path(), "/api/v1/approvals/input_1");
        assert!(
            asked.prompt().starts_with("?? files__move {\"to\":\"b") && !asked.prompt().contains('\u{1b}'),
            "{}",
            asked.prompt()
        );
        assert!(asked.prompt().contains("c for this conversation") && !asked.prompt().contains("a for always"));
        assert_eq!(asked.answer(" Y "), Ok(json!({"decision": "allow", "scope": "once", "arguments_hash": "abc"})));
        assert_eq!(asked.answer("c"), Ok(json!({"decision": "allow", "scope": "conversation", "arguments_hash": "abc"})));
        assert_eq!(asked.answer("no"), Ok(json!({"decision": "deny"})));
        assert_eq!(asked.answer("not that file"), Ok(json!({"decision": "deny", "reason": "not that file"})));
        for slip in ["", "a", "x"] {
            assert!(asked.answer(slip).unwrap_err().contains("Allow it?"), "{slip:?}");
        }
    }

    #[test]
    fn a_question_takes_a_number_a_choice_or_words() {
        let asked = Question::input(&json!({"id": "input_2", "question": {"text": "Which\none?",
            "choices": [{"value": "red", "label": "the warm one"}, {"value": "blue", "label": ""}]}}));
        assert_eq!(asked.path(), "/api/v1/input-requests/input_2");
        assert_eq!(asked.prompt(), "?? Which one?\n   1. red: the warm one\n   2. blue\n   A number, or an answer");
        assert_eq!(asked.answer("2"), Ok(json!({"choice": "blue"})));
        assert_eq!(asked.answer("RED"), Ok(json!({"choice": "red"})));
        assert_eq!(asked.answer("3"), Ok(json!({"text": "3"})));
        assert_eq!(asked.remark(), "?? Which one? POST /api/v1/input-requests/input_2 with a choice: red, blue");
    }

    #[test]
    fn a_form_is_filled_in_as_an_object() {
        let asked = Question::input(&json!({"id": "input_3", "question": {"text": "Where to?",
            "choices": [{"value": "accept", "label": ""}, {"value": "decline", "label": ""}],
            "elicitation": {"server": "s", "requested_schema": {"type": "object"}}}}));
        assert_eq!(asked.answer(r#"{"street": "x"}"#), Ok(json!({"choice": "accept", "content": {"street": "x"}})));
        assert_eq!(asked.answer("decline"), Ok(json!({"choice": "decline"})));
        assert!(asked.answer("home").unwrap_err().contains("not a JSON object"));
    }
}
