//! The profile of a model: its limitations, and the requests and bodies that respect them.

use std::borrow::Cow;

use serde_json::Value;

use super::limitation::Limitation;
use super::unsupported_parts::Exclusions;
use super::{fields, tools};
use crate::domain::model::{ModelRequest, ToolChoice};
use crate::provider::request::shared_parts::{schema_in_prompt, system_in_message};

/// How a dialect has to write a body.
#[derive(Debug, Clone, Copy)]
pub(in crate::provider) struct BodyForm {
    pub(in crate::provider) streaming: bool,
    /// Whether answers go back with their reasoning, even if the dialect does not need it.
    pub(in crate::provider) returns_reasoning: bool,
    /// Whether answers of calls alone may go back with the content `null`.
    pub(in crate::provider) null_content: bool,
}

/// The limitations of a model, each once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::provider) struct ModelProfile(Vec<Limitation>);

impl ModelProfile {
    pub(in crate::provider) fn add(&mut self, limitations: impl IntoIterator<Item = Limitation>) {
        for limitation in limitations {
            if !self.has(&limitation) {
                self.0.push(limitation);
            }
        }
    }

    pub(in crate::provider) fn has(&self, limitation: &Limitation) -> bool {
        self.0.contains(limitation)
    }

    pub(in crate::provider) fn limitations(&self) -> &[Limitation] {
        &self.0
    }

    pub(in crate::provider) fn max_tools(&self) -> Option<usize> {
        let limits = self.0.iter().filter_map(|known| if let Limitation::MaxTools(most) = known { Some(*most) } else { None });
        limits.min()
    }

    pub(in crate::provider) fn form(&self, streaming: bool) -> BodyForm {
        BodyForm {
            streaming: streaming && !self.has(&Limitation::NoStreaming),
            returns_reasoning: self.has(&Limitation::NeedsReasoning),
            null_content: !self.has(&Limitation::NoNullContent),
        }
    }

    /// Returns a request that the model accepts. With `declares_former`, a request without tools still declares the tools that its
    /// messages call.
    pub(in crate::provider) fn apply<'r>(&self, request: &'r ModelRequest, declares_former: bool) -> Cow<'r, ModelRequest> {
        let mut request = Cow::Borrowed(request);
        if !self.0.is_empty() {
            Exclusions::of(&self.0).apply(&mut request);
            tools::apply(self, &mut request);
            self.apply_options(&mut request);
        }
        if (declares_former || self.has(&Limitation::NeedsFormerTools)) && !self.has(&Limitation::NoTools) {
            tools::declare_former(&mut request);
        }
        request
    }

    fn apply_options(&self, request: &mut Cow<'_, ModelRequest>) {
        if self.has(&Limitation::NoOutputSchema) {
            schema_in_prompt(request);
        }
        let limits = self.0.iter().filter_map(|known| if let Limitation::MaxOutput(most) = known { Some(*most) } else { None });
        if let Some(most) = limits.min() {
            let options = &mut request.to_mut().options;
            options.max_output_tokens = Some(options.max_output_tokens.map_or(most, |limit| limit.min(most)));
        }
        if request.tools.is_empty() && request.options.tool_choice.is_some() {
            request.to_mut().options.tool_choice = None;
        }
        if let Some(ToolChoice::Tool(name)) = &request.options.tool_choice
            && request.tools.iter().all(|tool| tool.name != *name)
        {
            request.to_mut().options.tool_choice = None;
        }
        // The system prompt may contain the schema by now.
        if self.has(&Limitation::NoSystemRole) {
            system_in_message(request);
        }
    }

    /// Returns a body without the fields that are left out, and with renamed ones.
    pub(in crate::provider) fn edited(&self, body: Vec<u8>) -> Vec<u8> {
        let is_of_body = |limitation: &Limitation| matches!(limitation, Limitation::NoField(_) | Limitation::RenamedField { .. });
        if !self.0.iter().any(is_of_body) {
            return body;
        }
        let Ok(mut value) = serde_json::from_slice::<Value>(&body) else { return body };
        for limitation in &self.0 {
            if let Limitation::NoField(path) = limitation {
                fields::remove(&mut value, path);
            } else if let Limitation::RenamedField { from, to } = limitation {
                fields::rename(&mut value, from, to);
            }
        }
        serde_json::to_vec(&value).unwrap_or(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::model::ModelOptions;
    use serde_json::json;

    #[test]
    fn fields_are_renamed_and_left_out() {
        let mut profile = ModelProfile::default();
        profile.add([
            Limitation::NoField("reasoning.summary".to_owned()),
            Limitation::RenamedField { from: "max_tokens".to_owned(), to: "max_completion_tokens".to_owned() },
        ]);
        let body = json!({"max_tokens": 5, "reasoning": {"summary": "auto"}, "model": "m"}).to_string();
        let edited: Value = serde_json::from_slice(&profile.edited(body.into_bytes())).unwrap();
        assert_eq!(edited, json!({"max_completion_tokens": 5, "model": "m"}));
    }

    #[test]
    fn output_limit_is_lowered() {
        let options = ModelOptions { max_output_tokens: Some(9_000), ..ModelOptions::default() };
        let request = ModelRequest { options, ..ModelRequest::default() };
        let mut profile = ModelProfile::default();
        profile.add([Limitation::MaxOutput(4_096)]);
        assert_eq!(profile.apply(&request, false).options.max_output_tokens, Some(4_096));
    }
}
