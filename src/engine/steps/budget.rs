//! Decides whether a budget allows the next model call, and how the run continues if not.
//!
//! The rows of a run contain its own usage. Only the store knows shared budgets, so each call asks it for a reservation; the write that
//! charges the call ends the reservation.

use crate::domain::model::{Cost, Usage};
use crate::domain::problem::ProblemCode;
use crate::domain::run::{Amount, BudgetScope, Capacity, Change, OnDaySpent, ReservationOutcome, ReservationRequest, WaitReason};
use crate::engine::machine::{Command, DecisionBuilder, ModelCall, Next};
use crate::engine::request::build;
use crate::engine::steps::time_limits::wait;

/// The interval of repeated reservation requests while reservations of calls under way use the budget.
const ASK_AGAIN_MS: u64 = 5_000;

/// Decides whether the next model call may begin. If not, returns the continuation: a reservation request, a wait, or the end.
pub fn check_budget(decision: &mut DecisionBuilder<'_>, call: &ModelCall) -> Option<Next> {
    let budget = decision.profile().budget;
    let source = decision.source();
    if budget.counts_money() && source.capacity().prices.is_none() {
        let detail = format!(
            "the agent has a budget in money, but the model {} has no known prices; set them in the entry of its provider, or use a budget in tokens",
            decision.progress.model()
        );
        return Some(Next::fail(ProblemCode::UnpricedModel, detail));
    }
    if !budget.is_shared() {
        return None;
    }
    let output = decision.profile().options.max_output_tokens;
    let needed = Amount::at_most(call.prepared.tokens(&source), output, source.capacity().prices.as_ref());
    // The decision's charge has ended an earlier reservation.
    let answer = decision.facts.reserved.filter(|(reserved, _)| !decision.is_charged() && reserved.amount.covers(needed));
    match answer.map(|(_, answer)| answer) {
        None => {
            let reserve = ReservationRequest { amount: needed, conversation: budget.conversation, day: budget.day };
            decision.command(Command::Reserve(reserve));
            Some(Next::Wait)
        }
        Some(ReservationOutcome::Granted { .. }) => None,
        Some(ReservationOutcome::Busy) => {
            let detail = "calls under way have reserved the rest of the day's budget";
            Some(wait(decision, ASK_AGAIN_MS, WaitReason::Budget, Some(detail.to_owned())))
        }
        Some(ReservationOutcome::Spent { of, spent, resets_in_ms }) => Some(refused(decision, of, spent, needed, resets_in_ms)),
    }
}

/// Continues after the store's reply.
pub fn continue_after_reply(decision: &DecisionBuilder<'_>) -> Next {
    match decision.open_tool_step().is_none() && decision.profile().budget.is_shared() {
        true => Next::ModelStep,
        false => Next::Wait,
    }
}

/// Charges a model call of an earlier worker whose end is unknown, because the provider bills it. Charges the reserved amount.
/// Without a reservation, charges the request, and adds the largest possible answer if the run has its own limit of tokens or
/// money.
pub fn charge_lost(decision: &mut DecisionBuilder<'_>) {
    let lost = decision.before.lost.map(|lost| lost.amount);
    let was_made = lost.is_some() || !decision.profile().budget.is_shared() && decision.open_model_step().is_some();
    if !was_made {
        return;
    }
    let source = decision.source();
    let Capacity { prices, .. } = source.capacity();
    let prices = prices.as_ref();
    let request_tokens = build::prepare_request(&source).tokens(&source);
    let is_limited = decision.profile().max_run_tokens > 0 || decision.profile().budget.run_usd.is_some();
    let amount = lost.unwrap_or_else(|| match is_limited {
        true => Amount::at_most(request_tokens, decision.profile().options.max_output_tokens, prices),
        false => Amount::at_most(request_tokens, Some(0), prices),
    });
    let input_tokens = request_tokens.min(amount.tokens);
    let cost = (prices.is_some() || amount.cost > Cost::default()).then_some(amount.cost);
    decision.charge(Usage {
        input_tokens,
        output_tokens: amount.tokens - input_tokens,
        model_calls: 1,
        abandoned_calls: 1,
        estimated: true,
        cost,
        ..Usage::default()
    });
}

/// Returns the charge for a reserved call. A decision that ends the run, or gives up its lease, makes no call and charges zero.
pub fn charge_for_call(decision: &DecisionBuilder<'_>) -> Option<Change> {
    if !decision.is_charged() && !decision.releases_lease() {
        return None;
    }
    let (before, usage) = (decision.before, decision.progress.usage);
    let day = match (before.lost, decision.facts.reserved) {
        (Some(lost), _) => lost.day,
        (None, Some((_, ReservationOutcome::Granted { day }))) => day,
        (None, Some((_, ReservationOutcome::Busy | ReservationOutcome::Spent { .. })) | None) => return None,
    };
    Some(Change::ChargeBudget { day, amount: Amount::of(&usage).minus(Amount::of(&before.usage)) })
}

fn refused(decision: &mut DecisionBuilder<'_>, of: BudgetScope, spent: Amount, needed: Amount, resets_in_ms: Option<u64>) -> Next {
    let budget = decision.profile().budget;
    let (whose, allowance) = match of {
        BudgetScope::Conversation => ("conversation", budget.conversation),
        BudgetScope::Day => ("day", budget.day),
    };
    let limits = [
        allowance
            .tokens
            .map(|most| format!("{} of {most} tokens are used, and the next call may need {}", spent.tokens, needed.tokens)),
        allowance
            .usd
            .map(|most| format!("{} of {most} US dollars are spent, and the next call may cost {}", spent.cost, needed.cost)),
    ];
    let limits: Vec<String> = limits.into_iter().flatten().collect();
    let detail = format!("the budget of the {whose} is used up: {}", limits.join("; "));
    match resets_in_ms.filter(|_| budget.on_day_spent == OnDaySpent::Wait) {
        Some(left) if !decision.is_out_of_time_after(left) => wait(decision, left, WaitReason::Budget, Some(detail)),
        Some(_) => Next::fail(ProblemCode::BudgetSpent, format!("{detail}; the run's time limit leaves no time to wait")),
        None => Next::fail(ProblemCode::BudgetSpent, detail),
    }
}
