//! The token budget of model requests, and the summary that replaces evicted messages.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::domain::ids::MessageId;
use crate::domain::invalid::{InvalidProfile, invalid};
use crate::domain::model::Prices;
use crate::support::tokens::Tokenizer;

/// The unit of a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ContextUnit {
    /// Counted if the model's tokenizer is known, and otherwise estimated.
    #[default]
    Tokens,
    Chars,
}

/// Known facts about a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capacity {
    /// In tokens.
    pub window: Option<u64>,
    pub tokenizer: Option<Tokenizer>,
    pub prices: Option<Prices>,
    pub vision: Option<bool>,
    /// The most tools of one request.
    pub max_tools: Option<u32>,
}

/// How a request that does not fit is shortened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContextStrategy {
    /// Evicts older messages. A summary keeps one line for each.
    #[default]
    Summarize,
    DropOldest,
    None,
}

/// The budget of model requests. All numbers except `keep_last` and `summary_tokens` are in its unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ContextPolicy {
    pub unit: ContextUnit,
    /// The complete budget; `None` for the model's window, if it is known.
    pub limit: Option<u64>,
    pub strategy: ContextStrategy,
    /// Reserved for the answer.
    pub reserve_output: u64,
    /// Reserved for errors of the estimates.
    pub safety: u64,
    /// If less than this remains, the next model call is the last one and has no tools.
    pub start_gate: u64,
    /// If less than this remains, older messages are evicted.
    pub evict_below: u64,
    /// Number of newest messages that are never evicted, if they fit.
    pub keep_last: u32,
    pub summary_tokens: u64,
    /// Whether long results that are older than the last four messages are cut to their beginnings, once less than `evict_below`
    /// remains. That comes before messages are left out.
    pub compress_results: bool,
}

impl Default for ContextPolicy {
    fn default() -> Self {
        Self {
            unit: ContextUnit::Tokens,
            limit: None,
            strategy: ContextStrategy::Summarize,
            reserve_output: 2_000,
            safety: 768,
            start_gate: 1_500,
            evict_below: 5_000,
            keep_last: 10,
            summary_tokens: 500,
            compress_results: false,
        }
    }
}

impl ContextPolicy {
    /// The largest accepted number.
    const MOST: u64 = 1_000_000_000;

    /// Returns the part of the budget that requests cannot use.
    pub fn reserved(&self) -> u64 {
        self.reserve_output.saturating_add(self.safety)
    }

    /// Returns the smaller one of `limit` and the model's window; `None` if neither is known. A window that is smaller than the
    /// reserved part is ignored: the provider then reports requests that do not fit.
    pub fn budget(&self, window: Option<u64>) -> Option<u64> {
        let least = self.reserved().saturating_add(self.start_gate);
        let usable_window = window.map(|window| self.held_by(window)).filter(|usable_window| *usable_window > least);
        match (self.limit, usable_window) {
            (Some(limit), Some(usable_window)) => Some(limit.min(usable_window)),
            (limit, usable_window) => limit.or(usable_window),
        }
    }

    /// Converts a window to the budget's unit. A budget in characters may reserve nothing for the answer, because windows are in
    /// tokens. Then the default reserve applies.
    fn held_by(&self, window: u64) -> u64 {
        match self.unit {
            ContextUnit::Tokens => window,
            ContextUnit::Chars => json_bytes(window.saturating_sub(Self::default().reserved())),
        }
    }

    /// Returns the limit of a request and its answer in tokens. `None` if the agent sets no limit, or a limit in characters.
    pub fn token_limit(&self, window: Option<u64>) -> Option<u64> {
        self.limit.filter(|_| self.unit == ContextUnit::Tokens).and_then(|_| self.budget(window))
    }

    pub fn check(&self) -> Result<(), InvalidProfile> {
        let least = self.reserved().saturating_add(self.start_gate);
        match self.limit {
            Some(limit) if limit <= least => {
                let reason = format!("must be more than {least}, which is reserve_output, safety and start_gate together");
                return Err(invalid("limit", reason));
            }
            None if self.unit == ContextUnit::Chars => {
                return Err(invalid("limit", "is required if the unit is chars, because windows of models count tokens"));
            }
            Some(_) | None => {}
        }
        let numbers = [
            ("limit", self.limit.unwrap_or(0)),
            ("reserve_output", self.reserve_output),
            ("safety", self.safety),
            ("start_gate", self.start_gate),
            ("evict_below", self.evict_below),
            ("summary_tokens", self.summary_tokens),
        ];
        if let Some((field, _)) = numbers.into_iter().find(|(_, number)| *number > Self::MOST) {
            return Err(invalid(field, format!("must be at most {}", Self::MOST)));
        }
        if self.keep_last == 0 {
            return Err(invalid("keep_last", "must be at least 1"));
        }
        Ok(())
    }
}

/// Estimates the tokens of prose: 3.2 bytes each.
pub fn prose_tokens(bytes: usize) -> u64 {
    (bytes as u64).saturating_mul(5).div_ceil(16)
}

/// Estimates the tokens of JSON: 2.8 bytes each.
pub fn json_tokens(bytes: usize) -> u64 {
    (bytes as u64).saturating_mul(5).div_ceil(14)
}

/// Estimates the bytes of JSON that fit into this number of tokens.
fn json_bytes(tokens: u64) -> u64 {
    tokens.saturating_mul(14) / 5
}

/// The summary that replaces evicted messages in requests. The messages stay stored. The user's question stays visible until it is
/// answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextSummary {
    /// The newest evicted message. All earlier messages are evicted too.
    pub covers: MessageId,
    /// The number of evicted messages.
    pub messages: u32,
    /// The user's open questions among them, which requests still contain.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub asked: Vec<MessageId>,
    /// One line for each message, oldest first. Empty if messages are dropped without a summary.
    pub text: String,
    /// Files named in the arguments of evicted calls, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub files: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::fine(ContextPolicy::default(), None)]
    #[case::too_small(ContextPolicy { limit: Some(4_268), ..ContextPolicy::default() }, Some("limit"))]
    #[case::just_enough(ContextPolicy { limit: Some(4_269), ..ContextPolicy::default() }, None)]
    #[case::chars_need_a_limit(ContextPolicy { unit: ContextUnit::Chars, ..ContextPolicy::default() }, Some("limit"))]
    #[case::nothing_kept(ContextPolicy { keep_last: 0, ..ContextPolicy::default() }, Some("keep_last"))]
    #[case::enormous(ContextPolicy { evict_below: u64::MAX, ..ContextPolicy::default() }, Some("evict_below"))]
    #[case::no_overflow(ContextPolicy { limit: Some(9), safety: u64::MAX, ..ContextPolicy::default() }, Some("limit"))]
    fn unusable_context_policy_is_refused(#[case] policy: ContextPolicy, #[case] refused: Option<&str>) {
        assert_eq!(policy.check().err().map(|error| error.field).as_deref(), refused);
    }

    fn chars(limit: u64) -> ContextPolicy {
        let (reserve_output, safety, start_gate, evict_below) = (0, 0, 0, 0);
        ContextPolicy {
            unit: ContextUnit::Chars,
            limit: Some(limit),
            reserve_output,
            safety,
            start_gate,
            evict_below,
            ..ContextPolicy::default()
        }
    }

    #[rstest]
    #[case::said(ContextPolicy { limit: Some(9_000), ..ContextPolicy::default() }, None, Some(9_000))]
    #[case::said_beside_a_window_without_room(ContextPolicy { limit: Some(9_000), ..ContextPolicy::default() }, Some(4_000), Some(9_000))]
    #[case::said_and_larger_than_the_window(ContextPolicy { limit: Some(32_768), ..ContextPolicy::default() }, Some(8_192), Some(8_192))]
    #[case::said_and_smaller_than_the_window(ContextPolicy { limit: Some(8_192), ..ContextPolicy::default() }, Some(32_768), Some(8_192))]
    #[case::known(ContextPolicy::default(), Some(8_192), Some(8_192))]
    #[case::characters_in_a_small_window(chars(200_000), Some(8_192), Some((8_192 - 2_768) * 14 / 5))]
    #[case::characters_in_a_large_window(chars(200_000), Some(128_000), Some(200_000))]
    #[case::characters_in_an_unknown_window(chars(200_000), None, Some(200_000))]
    #[case::characters_in_no_window(chars(200_000), Some(2_768), Some(200_000))]
    #[case::too_small_to_keep_anything_free(ContextPolicy::default(), Some(4_096), None)]
    #[case::unknown(ContextPolicy::default(), None, None)]
    fn a_budget_is_said_or_known_of_the_model(
        #[case] policy: ContextPolicy,
        #[case] window: Option<u64>,
        #[case] budget: Option<u64>,
    ) {
        assert_eq!(policy.budget(window), budget);
        let is_said = policy.limit.is_some() && policy.unit == ContextUnit::Tokens;
        assert_eq!(policy.token_limit(window), budget.filter(|_| is_said));
    }
}
