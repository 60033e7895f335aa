//! Limits of the cost of model calls that runs share: per conversation, and per owner and day.
//!
//! A reservation holds the maximum cost of a call until the call is charged. Reservations of running calls count, so that
//! concurrent runs cannot spend the same money twice. Days are UTC. A call counts on the day of its reservation.

use serde::{Deserialize, Serialize};

use crate::domain::defaults::is_default;
use crate::domain::invalid::{InvalidProfile, invalid};
use crate::domain::model::{Cost, Prices, Usage, Usd};

/// Tokens that are reserved for an answer if its agent does not limit answers.
pub const UNBOUNDED_OUTPUT: u64 = 4_096;

/// The budget of an agent, in addition to `max_run_tokens` and `max_run_ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Budget {
    /// US dollars of one run. At the limit, the run summarizes and ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_usd: Option<Usd>,
    /// Shared by all runs of a conversation. A run that would exceed it fails.
    #[serde(skip_serializing_if = "is_default")]
    pub conversation: Allowance,
    /// Shared by all runs of an owner that have such a budget, on one day.
    #[serde(skip_serializing_if = "is_default")]
    pub day: Allowance,
    #[serde(skip_serializing_if = "is_default")]
    pub on_day_spent: OnDaySpent,
}

/// The reaction to a spent budget of the day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDaySpent {
    /// The run waits without a worker until the next day.
    #[default]
    Wait,
    /// The run fails with `budget_spent`.
    Fail,
}

/// A limit of tokens and cost. An absent limit does not apply.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Allowance {
    pub tokens: Option<u64>,
    pub usd: Option<Usd>,
}

impl Budget {
    /// Returns whether calls need a reservation, because other runs spend from the same budget.
    pub fn is_shared(&self) -> bool {
        self.conversation != Allowance::default() || self.day != Allowance::default()
    }

    /// Returns whether the model's prices must be known.
    pub fn counts_money(&self) -> bool {
        self.run_usd.is_some() || self.conversation.usd.is_some() || self.day.usd.is_some()
    }

    /// Checks for values with which no run could be executed. Returns the first error.
    pub fn check(&self) -> Result<(), InvalidProfile> {
        let money = [("run_usd", self.run_usd), ("conversation/usd", self.conversation.usd), ("day/usd", self.day.usd)];
        let tokens = [("conversation/tokens", self.conversation.tokens), ("day/tokens", self.day.tokens)];
        let nothing = money.into_iter().filter(|(_, usd)| *usd == Some(Usd::default())).map(|(field, _)| field);
        match nothing.chain(tokens.into_iter().filter(|(_, tokens)| *tokens == Some(0)).map(|(field, _)| field)).next() {
            Some(field) => Err(invalid(field, "must be more than 0; leave it out for no limit")),
            None => Ok(()),
        }
    }
}

impl Allowance {
    /// Returns the stricter limits of both.
    pub fn and(self, other: Self) -> Self {
        fn stricter<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
            one.into_iter().chain(other).min()
        }
        Self { tokens: stricter(self.tokens, other.tokens), usd: stricter(self.usd, other.usd) }
    }

    fn admits(&self, amount: Amount) -> bool {
        self.tokens.is_none_or(|most| amount.tokens <= most) && self.usd.is_none_or(|most| amount.cost <= most.cost())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amount {
    /// Input and output tokens together.
    pub tokens: u64,
    /// Zero if no price is known.
    pub cost: Cost,
}

impl Amount {
    pub fn of(usage: &Usage) -> Self {
        Self { tokens: usage.input_tokens.saturating_add(usage.output_tokens), cost: usage.cost.unwrap_or_default() }
    }

    /// Returns the maximum cost of a call whose request has this number of tokens.
    pub fn at_most(input_tokens: u64, output_tokens: Option<u32>, prices: Option<&Prices>) -> Self {
        let output_tokens = output_tokens.map_or(UNBOUNDED_OUTPUT, u64::from);
        let usage = Usage { input_tokens, output_tokens, ..Usage::default() };
        Self::of(&Usage { cost: prices.map(|prices| prices.cost(&usage)), ..usage })
    }

    pub fn plus(self, other: Self) -> Self {
        Self { tokens: self.tokens.saturating_add(other.tokens), cost: self.cost.plus(other.cost) }
    }

    /// Subtracts, down to zero.
    pub fn minus(self, other: Self) -> Self {
        Self { tokens: self.tokens.saturating_sub(other.tokens), cost: self.cost.minus(other.cost) }
    }

    /// Returns whether both tokens and cost are at least those of `other`.
    pub fn covers(self, other: Self) -> bool {
        self.tokens >= other.tokens && self.cost >= other.cost
    }
}

/// A request for a reservation of a model call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReservationRequest {
    pub amount: Amount,
    pub conversation: Allowance,
    pub day: Allowance,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BudgetScope {
    Conversation,
    Day,
}

/// The answer to a [`ReservationRequest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReservationOutcome {
    /// The call may be made. It is charged to this day, counted from 1970.
    Granted { day: i64 },
    /// Refused for now: running calls have reserved the rest.
    Busy,
    /// Refused: the rest of the budget is too small.
    Spent {
        of: BudgetScope,
        spent: Amount,
        /// Milliseconds until the budget is renewed.
        resets_in_ms: Option<u64>,
    },
}

/// A reservation whose claim ended before the call was charged: its worker crashed, or lost the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LostReservation {
    pub day: i64,
    pub amount: Amount,
}

/// The use of a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BudgetUse {
    /// Charged cost, and reservations of lost calls.
    pub spent: Amount,
    /// Reservations of running calls of other runs.
    pub held: Amount,
}

impl ReservationRequest {
    /// Decides about a call on this day, which ends in `left_ms` milliseconds. The caller holds a lock, so that no other
    /// reservation of the owner is granted meanwhile.
    pub fn decide(&self, conversation: Amount, of_day: BudgetUse, day: i64, left_ms: u64) -> ReservationOutcome {
        // Only one run of a conversation is active at a time.
        if !self.conversation.admits(conversation.plus(self.amount)) {
            return ReservationOutcome::Spent { of: BudgetScope::Conversation, spent: conversation, resets_in_ms: None };
        }
        let wanted = of_day.spent.plus(self.amount);
        match (self.day.admits(wanted), self.day.admits(wanted.plus(of_day.held))) {
            (_, true) => ReservationOutcome::Granted { day },
            (true, false) => ReservationOutcome::Busy,
            (false, false) => ReservationOutcome::Spent { of: BudgetScope::Day, spent: of_day.spent, resets_in_ms: Some(left_ms) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn usd(dollars: &str) -> Option<Usd> {
        Some(serde_json::from_str(dollars).unwrap())
    }

    fn amount(tokens: u64, cost: &str) -> Amount {
        Amount { tokens, cost: cost.parse().unwrap() }
    }

    #[rstest]
    #[case::room(0, 0, ReservationOutcome::Granted { day: 7 })]
    #[case::just_enough(40, 30, ReservationOutcome::Granted { day: 7 })]
    #[case::held_by_others(40, 31, ReservationOutcome::Busy)]
    #[case::spent(71, 0, ReservationOutcome::Spent { of: BudgetScope::Day, spent: amount(71, "0"), resets_in_ms: Some(5) })]
    #[case::spent_whatever_is_held(71, 30, ReservationOutcome::Spent { of: BudgetScope::Day, spent: amount(71, "0"), resets_in_ms: Some(5) })]
    fn active_calls_count_with_their_reservations(#[case] spent: u64, #[case] held: u64, #[case] answer: ReservationOutcome) {
        let reserve = ReservationRequest {
            amount: amount(30, "0.5"),
            conversation: Allowance::default(),
            day: Allowance { tokens: Some(100), usd: None },
        };
        let of_day = BudgetUse { spent: amount(spent, "0"), held: amount(held, "0") };
        assert_eq!(reserve.decide(Amount::default(), of_day, 7, 5), answer);
    }

    #[test]
    fn money_is_a_limit_of_its_own() {
        let day = Allowance { tokens: None, usd: usd("1.5") };
        let conversation = Allowance { tokens: None, usd: usd("0.75") };
        let reserve = ReservationRequest { amount: amount(u64::MAX, "0.5"), conversation, day };
        let judge = |conversation: &str, day: &str| {
            let of_day = BudgetUse { spent: amount(0, day), held: Amount::default() };
            reserve.decide(amount(u64::MAX, conversation), of_day, 1, 1)
        };
        assert_eq!(judge("0.25", "1"), ReservationOutcome::Granted { day: 1 });
        let spent = amount(u64::MAX, "0.250000000001");
        assert_eq!(
            judge("0.250000000001", "1"),
            ReservationOutcome::Spent { of: BudgetScope::Conversation, spent, resets_in_ms: None }
        );
        let spent = amount(0, "1.000000000001");
        assert_eq!(judge("0", "1.000000000001"), ReservationOutcome::Spent { of: BudgetScope::Day, spent, resets_in_ms: Some(1) });
    }

    #[test]
    fn a_call_is_taken_at_the_most_that_it_may_come_to() {
        let prices: Prices = serde_json::from_value(json!({"input": 1, "output": 10})).unwrap();
        assert_eq!(Amount::at_most(1_000, Some(100), Some(&prices)), amount(1_100, "0.002"));
        assert_eq!(Amount::at_most(1_000, None, Some(&prices)), amount(5_096, "0.04196"));
        assert_eq!(Amount::at_most(1_000, Some(100), None), amount(1_100, "0"));
    }

    #[test]
    fn the_stricter_limit_holds() {
        let one = Allowance { tokens: Some(5), usd: usd("2") };
        assert_eq!(one.and(Allowance { tokens: Some(9), usd: usd("1") }), Allowance { tokens: Some(5), usd: usd("1") });
        assert_eq!(one.and(Allowance::default()), one);
    }

    #[rstest]
    #[case(json!({"day": {"tokens": 0}}), Some("day/tokens"))]
    #[case(json!({"conversation": {"usd": 0}}), Some("conversation/usd"))]
    #[case(json!({"run_usd": 0.0}), Some("run_usd"))]
    #[case(json!({"run_usd": 0.01, "day": {"usd": 5}, "on_day_spent": "fail"}), None)]
    fn a_budget_of_nothing_is_refused(#[case] said: serde_json::Value, #[case] field: Option<&str>) {
        let budget: Budget = serde_json::from_value(said).unwrap();
        assert_eq!(budget.check().err().map(|error| error.field).as_deref(), field);
        let again: Budget = serde_json::from_value(serde_json::to_value(budget).unwrap()).unwrap();
        assert_eq!(again, budget);
    }
}
