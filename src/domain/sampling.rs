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
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sampling {
    /// 0 to 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
}

impl Sampling {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }

    fn options(self) -> ModelOptions {
        ModelOptions { temperature: self.temperature, top_p: self.top_p, ..ModelOptions::default() }
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
        let Sampling { temperature, top_p } = if has_tools { self.tool_turn } else { self.talk_turn };
        options.temperature = options.temperature.or(temperature);
        options.top_p = options.top_p.or(top_p);
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
        let tool_turn = Sampling { temperature: Some(0.1), top_p: Some(0.2) };
        let sampling = SamplingByTurn { tool_turn, talk_turn: Sampling { temperature: Some(0.7), top_p: None } };
        let filled = |temperature, has_tools| {
            let mut options = ModelOptions { temperature, ..ModelOptions::default() };
            sampling.fill(&mut options, has_tools);
            (options.temperature, options.top_p)
        };
        assert_eq!(filled(None, true), (Some(0.1), Some(0.2)));
        assert_eq!(filled(None, false), (Some(0.7), None));
        assert_eq!(filled(Some(1.0), true), (Some(1.0), Some(0.2)));
        let hot = SamplingByTurn { talk_turn: Sampling { temperature: Some(3.0), top_p: None }, ..SamplingByTurn::default() };
        assert_eq!(hot.check().unwrap_err().0, "talk_turn/temperature");
        assert!(sampling.check().is_ok());
    }
}
