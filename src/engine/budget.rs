//! What may be spent: whether the next model call may begin, and what follows if it may not.
//!
//! What one run has spent its rows say, and that decides here. What others spend, too, only the store knows: it is asked before
//! each call, and the call is settled with the write that charges it.

use super::draft::Draft;
use super::model_failure::spread;
use super::source::Source;
use super::{Command, RunState, context, model_step};
use crate::domain::budget::{Amount, BudgetOf, OnDaySpent, Reserve, Reserved};
use crate::domain::change::{Change, ReleaseCause};
use crate::domain::cost::Cost;
use crate::domain::event::EventBody;
use crate::domain::model::Usage;
use crate::domain::problem::ProblemCode;
use crate::domain::run::{RunStatus, WaitReason};

/// When to ask again for what calls that are under way hold, in milliseconds.
const ASK_AGAIN_MS: u64 = 5_000;

/// Whether the run has spent what it may spend by itself.
pub(super) fn is_run_over(draft: &Draft<'_>, usage: Usage) -> bool {
    let (limit, spent) = (draft.profile().max_run_tokens, Amount::of(&usage));
    (limit > 0 && spent.tokens >= limit) || draft.profile().budget.run_usd.is_some_and(|most| spent.cost >= most.cost())
}

/// Whether the next model call may begin. If not, the decision says what follows instead: the store is asked, or the run waits, or
/// it has ended.
pub(super) fn allows_call(draft: &mut Draft<'_>) -> bool {
    let budget = draft.profile().budget;
    if budget.counts_money() && Source::in_draft(draft).capacity.prices.is_none() {
        let detail = format!(
            "the agent has a budget in money, and nobody knows what {} costs; say so in the entry of its provider, or have a budget in tokens",
            draft.work.record.model()
        );
        draft.fail(ProblemCode::UnpricedModel, detail);
        return false;
    }
    if !budget.is_shared() {
        return true;
    }
    let wanted = wanted(draft);
    // What was granted before is settled by what the decision charges.
    let answer = draft.base.reserved().filter(|(asked, _)| !draft.is_charged() && asked.amount.covers(wanted));
    match answer.map(|(_, answer)| answer) {
        None => {
            let reserve = Reserve { amount: wanted, conversation: budget.conversation, day: budget.day };
            draft.command(Command::Reserve(reserve));
            false
        }
        Some(Reserved::Granted { .. }) => true,
        Some(Reserved::Busy) => {
            let detail = "calls that are under way may spend what is left of the day's budget";
            wait(draft, ASK_AGAIN_MS, detail.to_owned());
            false
        }
        Some(Reserved::Spent { of, spent, resets_in_ms }) => {
            refused(draft, of, spent, wanted, resets_in_ms);
            false
        }
    }
}

/// What the next call may come to.
fn wanted(draft: &Draft<'_>) -> Amount {
    let source = Source::in_draft(draft);
    let output = draft.profile().options.max_output_tokens;
    Amount::at_most(context::tokens(&source), output, source.capacity.prices.as_ref())
}

/// The store has answered.
pub(super) fn answered(draft: &mut Draft<'_>) {
    if draft.open_tool_step().is_none() && draft.profile().budget.is_shared() {
        model_step::begin(draft);
    }
}

/// Charges the call that a worker before this one has left behind: nobody saw its end, and its provider bills it all the same. It is
/// taken at what was reserved for it. Where nothing is reserved, no more is known than that it was asked, and the rest is guessed only
/// if the run has a limit to keep.
pub(super) fn charge_lost(draft: &mut Draft<'_>) {
    let lost = draft.base.record.lost.map(|lost| lost.amount);
    let was_made = lost.is_some() || !draft.profile().budget.is_shared() && draft.open_model_step().is_some();
    if !was_made {
        return;
    }
    let source = Source::in_draft(draft);
    let prices = source.capacity.prices.as_ref();
    let asked = context::tokens(&source);
    let is_limited = draft.profile().max_run_tokens > 0 || draft.profile().budget.run_usd.is_some();
    let amount = lost.unwrap_or_else(|| match is_limited {
        true => Amount::at_most(asked, draft.profile().options.max_output_tokens, prices),
        false => Amount::at_most(asked, Some(0), prices),
    });
    let input_tokens = asked.min(amount.tokens);
    let cost = (prices.is_some() || amount.cost > Cost::default()).then_some(amount.cost);
    draft.charge(Usage {
        input_tokens,
        output_tokens: amount.tokens - input_tokens,
        model_calls: 1,
        abandoned_calls: 1,
        estimated: true,
        cost,
        ..Usage::default()
    });
}

/// What a decision settles that charges the run with so much in all.
pub(super) fn settled(base: &RunState, usage: Usage) -> Option<Change> {
    let day = match (base.record.lost, base.reserved()) {
        (Some(lost), _) => lost.day,
        (None, Some((_, Reserved::Granted { day }))) => day,
        (None, Some((_, Reserved::Busy | Reserved::Spent { .. })) | None) => return None,
    };
    Some(Change::Settle { day, amount: Amount::of(&usage).minus(Amount::of(&base.record.usage)) })
}

/// Too little is left for another call.
fn refused(draft: &mut Draft<'_>, of: BudgetOf, spent: Amount, wanted: Amount, resets_in_ms: Option<u64>) {
    let budget = draft.profile().budget;
    let (whose, allowance) = match of {
        BudgetOf::Conversation => ("conversation", budget.conversation),
        BudgetOf::Day => ("day", budget.day),
    };
    let limits = [
        allowance
            .tokens
            .map(|most| format!("{} of {most} tokens are used, and the next call may need {}", spent.tokens, wanted.tokens)),
        allowance
            .usd
            .map(|most| format!("{} of {most} US dollars are spent, and the next call may cost {}", spent.cost, wanted.cost)),
    ];
    let limits: Vec<String> = limits.into_iter().flatten().collect();
    let detail = format!("the budget of the {whose} is used up: {}", limits.join("; "));
    match resets_in_ms.filter(|_| budget.on_day_spent == OnDaySpent::Wait) {
        Some(left) if !draft.is_out_of_time_after(left) => wait(draft, left, detail),
        Some(_) => draft.fail(ProblemCode::BudgetSpent, format!("{detail}; the run's time limit leaves no time to wait")),
        None => draft.fail(ProblemCode::BudgetSpent, detail),
    }
}

/// Waits without a worker. A step that a dead worker has left open begins again after it.
fn wait(draft: &mut Draft<'_>, after_ms: u64, detail: String) {
    if let Some(step) = draft.open_model_step() {
        draft.abandon_step(step);
    }
    draft.event(EventBody::RunWaiting { reason: WaitReason::Budget, id: None, detail: Some(detail) });
    draft.set_status(RunStatus::Waiting, Some(WaitReason::Budget));
    let spread = spread(&draft.base.record.fence.run_id, after_ms);
    draft.release(Some(after_ms.saturating_add(spread)), ReleaseCause::Waiting);
}
