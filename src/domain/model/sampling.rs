//! Sampling options by the kind of model call: strict for tool calls, free for answers.

use serde::{Deserialize, Serialize};

use crate::domain::defaults::is_default;
use crate::domain::invalid::{InvalidProfile, invalid};
use crate::domain::model::ModelOptions;

/// Applies where `options` set nothing: options of an agent or a request apply to every call.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SamplingByTurn {
    /// For calls that are offered tools.
    #[serde(skip_serializing_if = "is_default")]
    pub tool_turn: Sampling,
    /// For calls that are offered none.
    #[serde(skip_serializing_if = "is_default")]
    pub talk_turn: Sampling,
}

#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sampling {
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    /// Limits a text answer of a call with tools, too.
    pub max_output_tokens: Option<u32>,
}

impl Sampling {
    fn options(self) -> ModelOptions {
        let Self { temperature, top_p, max_output_tokens } = self;
        ModelOptions { temperature, top_p, max_output_tokens, ..ModelOptions::default() }
    }
}

impl SamplingByTurn {
    /// Sets unset fields of `options`.
    pub fn fill(&self, options: &mut ModelOptions, has_tools: bool) {
        let turn = if has_tools { self.tool_turn } else { self.talk_turn };
        *options = std::mem::take(options).over(turn.options());
    }

    pub fn check(&self) -> Result<(), InvalidProfile> {
        for (name, turn) in [("tool_turn", self.tool_turn), ("talk_turn", self.talk_turn)] {
            turn.options().check().map_err(|error| invalid(format!("{name}/{}", error.field), error.reason))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_come_first_and_the_kind_of_call_fills_in_the_rest() {
        let tool_turn = Sampling { temperature: Some(0.1), top_p: Some(0.2), max_output_tokens: Some(300) };
        let sampling = SamplingByTurn { tool_turn, talk_turn: Sampling { temperature: Some(0.7), ..Sampling::default() } };
        let filled = |temperature, has_tools| {
            let mut options = ModelOptions { temperature, ..ModelOptions::default() };
            sampling.fill(&mut options, has_tools);
            (options.temperature, options.top_p)
        };
        assert_eq!(filled(None, true), (Some(0.1), Some(0.2)));
        assert_eq!(filled(None, false), (Some(0.7), None));
        assert_eq!(filled(Some(1.0), true), (Some(1.0), Some(0.2)));
        for (said, has_tools, most) in [(None, true, Some(300)), (Some(50), true, Some(50)), (None, false, None)] {
            let mut options = ModelOptions { max_output_tokens: said, ..ModelOptions::default() };
            sampling.fill(&mut options, has_tools);
            assert_eq!(options.max_output_tokens, most);
        }
        let hot = Sampling { temperature: Some(3.0), ..Sampling::default() };
        assert_eq!(
            SamplingByTurn { talk_turn: hot, ..SamplingByTurn::default() }.check().unwrap_err().field,
            "talk_turn/temperature"
        );
        let silent = Sampling { max_output_tokens: Some(0), ..Sampling::default() };
        assert_eq!(
            SamplingByTurn { tool_turn: silent, ..SamplingByTurn::default() }.check().unwrap_err().field,
            "tool_turn/max_output_tokens"
        );
        assert!(sampling.check().is_ok());
    }
}
