//! Counts the tokens of an answer: the provider's figures, or estimates for missing ones.

use crate::domain::model::{Cost, Usage};

/// The average bytes per token, for estimates.
const BYTES_PER_TOKEN: usize = 4;

/// The token counts of a provider. They may arrive in parts, and repeatedly.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::provider) struct TokenFigures {
    /// Tokens of the request, cached ones included.
    pub(in crate::provider) input: Option<u64>,
    /// Tokens of the answer, reasoning included.
    pub(in crate::provider) output: Option<u64>,
    pub(in crate::provider) cached_input: Option<u64>,
    pub(in crate::provider) reasoning: Option<u64>,
    pub(in crate::provider) cache_write: Option<u64>,
    pub(in crate::provider) cost: Option<Cost>,
}

#[derive(Debug)]
pub(in crate::provider) struct UsageCounter {
    pub(super) request_bytes: usize,
    /// Bytes that the model wrote: text, reasoning, names and arguments.
    pub(super) answer_bytes: usize,
    pub(super) figures: TokenFigures,
}

impl UsageCounter {
    pub(super) fn new(request_bytes: usize) -> Self {
        Self { request_bytes, answer_bytes: 0, figures: TokenFigures::default() }
    }

    /// Adds counts. Each one replaces an earlier one.
    pub(super) fn take(&mut self, figures: TokenFigures) {
        self.figures = TokenFigures {
            input: figures.input.or(self.figures.input),
            output: figures.output.or(self.figures.output),
            cached_input: figures.cached_input.or(self.figures.cached_input),
            reasoning: figures.reasoning.or(self.figures.reasoning),
            cache_write: figures.cache_write.or(self.figures.cache_write),
            cost: figures.cost.or(self.figures.cost),
        };
    }

    pub(super) fn is_reported(&self) -> bool {
        self.figures.input.is_some() && self.figures.output.is_some()
    }

    pub(super) fn usage(&self) -> Usage {
        let estimate = |bytes: usize| bytes.div_ceil(BYTES_PER_TOKEN) as u64;
        let TokenFigures { input, output, cached_input, reasoning, cache_write, cost } = self.figures;
        Usage {
            input_tokens: input.unwrap_or_else(|| estimate(self.request_bytes)),
            output_tokens: output.unwrap_or_else(|| estimate(self.answer_bytes)),
            cached_input_tokens: cached_input.unwrap_or(0),
            cache_write_tokens: cache_write.unwrap_or(0),
            reasoning_tokens: reasoning.unwrap_or(0),
            model_calls: 1,
            abandoned_calls: 0,
            estimated: !self.is_reported(),
            cost,
        }
    }
}
