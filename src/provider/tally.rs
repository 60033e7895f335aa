//! Counts the tokens of an answer: the provider's figures, or an estimate in place of those that it does not give.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::Deserializer;
use serde_json::Value;

use crate::domain::cost::Cost;
use crate::domain::model::Usage;
use crate::support::text;

/// Bytes that a token has on average, for estimates.
const BYTES_PER_TOKEN: usize = 4;

/// A number of tokens, if it is one that can be true.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Count(pub(super) Option<u64>);

/// More tokens than any model takes or gives in one call.
const ABSURD_TOKENS: u64 = 1_000_000_000;

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Figures are no reason to lose an answer: what is no number counts as none.
        let number = Value::deserialize(deserializer)?;
        let count = number.as_u64().or_else(|| number.as_f64().filter(|float| *float >= 0.0).map(|float| float as u64));
        let count = count.or_else(|| number.as_str()?.parse().ok());
        Ok(Self(count.filter(|count| *count < ABSURD_TOKENS)))
    }
}

/// Whether something is so; what is no truth value is not.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Flag(pub(super) bool);

impl<'de> Deserialize<'de> for Flag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(Value::deserialize(deserializer)? == true))
    }
}

/// US dollars: a number, or an object with their sum (Perplexity) or with what another provider takes (`OpenRouter`).
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Dollars(pub(super) Option<f64>);

impl<'de> Deserialize<'de> for Dollars {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        Ok(Self(
            value.as_f64().or_else(|| ["total_cost", "upstream_inference_cost"].iter().find_map(|name| value.get(name)?.as_f64())),
        ))
    }
}

/// US dollars in the unit of xAI: <https://docs.x.ai/developers/cost-tracking>.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Ticks(Option<f64>);

impl Ticks {
    const OF_A_DOLLAR: f64 = 1e10;

    pub(super) fn dollars(self) -> Option<f64> {
        self.0.map(|ticks| ticks / Self::OF_A_DOLLAR)
    }
}

impl<'de> Deserialize<'de> for Ticks {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(Value::deserialize(deserializer)?.as_f64()))
    }
}

/// What a provider says about its tokens. Figures may come in pieces, and again.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Figures {
    /// Tokens of the request, cached ones included.
    pub(super) input: Option<u64>,
    /// Tokens of the answer, reasoning included.
    pub(super) output: Option<u64>,
    /// The cached part of the input.
    pub(super) cached_input: Option<u64>,
    /// The reasoning part of the output.
    pub(super) reasoning: Option<u64>,
    /// The part of the input that was put into a cache.
    pub(super) cache_write: Option<u64>,
    /// What the call cost, if the provider says it.
    pub(super) cost: Option<Cost>,
}

/// The count of one answer.
#[derive(Debug)]
pub(super) struct Tally {
    request_bytes: usize,
    answer_bytes: usize,
    figures: Figures,
}

impl Tally {
    pub(super) fn new(request_bytes: usize) -> Self {
        Self { request_bytes, answer_bytes: 0, figures: Figures::default() }
    }

    /// The model has said more: text, reasoning, names or arguments.
    pub(super) fn said(&mut self, bytes: usize) {
        self.answer_bytes = self.answer_bytes.saturating_add(bytes);
    }

    /// Some of what the model has said comes again as something else.
    pub(super) fn unsaid(&mut self, bytes: usize) {
        self.answer_bytes = self.answer_bytes.saturating_sub(bytes);
    }

    /// The provider gives figures. Each that is there replaces an earlier one.
    pub(super) fn given(&mut self, figures: Figures) {
        self.figures = Figures {
            input: figures.input.or(self.figures.input),
            output: figures.output.or(self.figures.output),
            cached_input: figures.cached_input.or(self.figures.cached_input),
            reasoning: figures.reasoning.or(self.figures.reasoning),
            cache_write: figures.cache_write.or(self.figures.cache_write),
            cost: figures.cost.or(self.figures.cost),
        };
    }

    /// Whether the provider has given figures.
    pub(super) fn has_figures(&self) -> bool {
        self.figures.input.is_some() && self.figures.output.is_some()
    }

    /// The usage of the call.
    pub(super) fn usage(&self) -> Usage {
        let estimate = |bytes: usize| bytes.div_ceil(BYTES_PER_TOKEN) as u64;
        let Figures { input, output, cached_input, reasoning, cache_write, cost } = self.figures;
        Usage {
            input_tokens: input.unwrap_or_else(|| estimate(self.request_bytes)),
            output_tokens: output.unwrap_or_else(|| estimate(self.answer_bytes)),
            cached_input_tokens: cached_input.unwrap_or(0),
            cache_write_tokens: cache_write.unwrap_or(0),
            reasoning_tokens: reasoning.unwrap_or(0),
            model_calls: 1,
            abandoned_calls: 0,
            estimated: !self.has_figures(),
            cost,
        }
    }
}

/// A text of the wire as it may be stored, without a copy where it is owned already.
pub(super) fn storable(said: Cow<'_, str>) -> String {
    match text::storable(&said) {
        Cow::Borrowed(_) => said.into_owned(),
        Cow::Owned(changed) => changed,
    }
}
