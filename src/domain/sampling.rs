//! How freely a model chooses its words: narrowly where it calls tools, widely where it talks.

use serde::{Deserialize, Serialize};

use super::model::ModelOptions;

/// Sampling by the kind of a model call. It stands behind `options`: what an agent or a request says there holds for every call.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SamplingByTurn {
    /// Of calls that are offered tools.
    #[serde(skip_serializing_if = "Sampling::is_default")]
    pub tool_turn: Sampling,
    /// Of calls that are offered none.
    #[serde(skip_serializing_if = "Sampling::is_default")]
    pub talk_turn: Sampling,
}

/// Options of one kind of call.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sampling {
    /// 0 to 2.
    pub temperature: Option<f64>,
    /// 0 to 1.
    pub top_p: Option<f64>,
    /// The most tokens of an answer. An answer in words can come from a call with tools, too, and is cut there as well.
    pub max_output_tokens: Option<u32>,
}

impl Sampling {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }

    fn options(self) -> ModelOptions {
        let Self { temperature, top_p, max_output_tokens } = self;
        ModelOptions { temperature, top_p, max_output_tokens, ..ModelOptions::default() }
    }
}

impl SamplingByTurn {
    /// Whether it is as it is by itself.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Fills in what `options` do not say.
    pub fn fill(&self, options: &mut ModelOptions, has_tools: bool) {
        let turn = if has_tools { self.tool_turn } else { self.talk_turn };
        *options = std::mem::take(options).over(turn.options());
    }

    /// Looks for values that no provider takes.
    ///
    /// # Errors
    /// The field and the reason.
    pub fn check(&self) -> Result<(), (String, String)> {
        for (name, turn) in [("tool_turn", self.tool_turn), ("talk_turn", self.talk_turn)] {
            turn.options().check().map_err(|error| (format!("{name}/{}", error.field), error.reason.to_owned()))?;
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
        assert_eq!(SamplingByTurn { talk_turn: hot, ..SamplingByTurn::default() }.check().unwrap_err().0, "talk_turn/temperature");
        let silent = Sampling { max_output_tokens: Some(0), ..Sampling::default() };
        assert_eq!(
            SamplingByTurn { tool_turn: silent, ..SamplingByTurn::default() }.check().unwrap_err().0,
            "tool_turn/max_output_tokens"
        );
        assert!(sampling.check().is_ok());
    }
}
