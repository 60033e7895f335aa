//! Counts the tokens of an answer: the counts that the provider reports, or estimates for missing ones.

use crate::domain::model::{Cost, Usage};

/// The average bytes per token, for estimates.
const BYTES_PER_TOKEN: usize = 4;

/// Token counts and cost that a provider reports. They may arrive in parts, and repeatedly.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::provider) struct ReportedUsage {
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
    pub(super) reported: ReportedUsage,
}

impl UsageCounter {
    pub(super) fn new(request_bytes: usize) -> Self {
        Self { request_bytes, answer_bytes: 0, reported: ReportedUsage::default() }
    }

    /// Adds reported values. Each one replaces an earlier one.
    pub(super) fn take(&mut self, reported: ReportedUsage) {
        self.reported = ReportedUsage {
            input: reported.input.or(self.reported.input),
            output: reported.output.or(self.reported.output),
            cached_input: reported.cached_input.or(self.reported.cached_input),
            reasoning: reported.reasoning.or(self.reported.reasoning),
            cache_write: reported.cache_write.or(self.reported.cache_write),
            cost: reported.cost.or(self.reported.cost),
        };
    }

    pub(super) fn is_reported(&self) -> bool {
        self.reported.input.is_some() && self.reported.output.is_some()
    }

    pub(super) fn usage(&self) -> Usage {
        let estimate = |bytes: usize| bytes.div_ceil(BYTES_PER_TOKEN) as u64;
        let ReportedUsage { input, output, cached_input, reasoning, cache_write, cost } = self.reported;
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
