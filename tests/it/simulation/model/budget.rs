//! What owners may spend.

use async_trait::async_trait;
use capstan::domain::budget::{Allowance, Amount, BudgetOf, Reserve, Reserved};
use capstan::domain::ids::UserId;
use capstan::domain::record::Fence;
use capstan::store::{BudgetStore, StoreResult};

use super::ModelStore;

/// The milliseconds of a day.
const DAY: i64 = 86_400_000;

/// What a run has spent on a day, and what it holds.
#[derive(Clone)]
pub struct SpendingRow {
    pub spent: Amount,
    pub held: Option<(Fence, Amount)>,
}

#[async_trait]
impl BudgetStore for ModelStore {
    async fn reserve(&self, fence: &Fence, owner: &UserId, reserve: &Reserve) -> StoreResult<Option<Reserved>> {
        let mut state = self.state();
        if !state.is_newest(fence) {
            return Ok(None);
        }
        let day = state.now / DAY;
        let of_day = || state.spending.iter().filter(|((of, on, _), _)| of == owner && *on == day);
        let spent = of_day().fold(Amount::default(), |sum, (_, row)| sum.plus(row.spent));
        let held =
            of_day().filter_map(|(_, row)| row.held.as_ref()).filter(|(by, _)| by.run_id != fence.run_id && state.is_newest(by));
        let held = held.fold(Amount::default(), |sum, (_, held)| sum.plus(*held));
        let talk = state.runs_in(&fence.conversation_id).into_iter().map(|row| Amount::of(&row.usage));
        let of_conversation = talk.fold(Amount::default(), Amount::plus);
        let has_room = |of: Allowance, sum: Amount| {
            let sum = sum.plus(reserve.amount);
            of.tokens.is_none_or(|most| sum.tokens <= most) && of.usd.is_none_or(|most| sum.cost <= most.cost())
        };
        if !has_room(reserve.conversation, of_conversation) {
            return Ok(Some(Reserved::Spent { of: BudgetOf::Conversation, spent: of_conversation, resets_in_ms: None }));
        }
        if !has_room(reserve.day, spent) {
            let resets_in_ms = u64::try_from((day + 1) * DAY - state.now).ok();
            return Ok(Some(Reserved::Spent { of: BudgetOf::Day, spent, resets_in_ms }));
        }
        if !has_room(reserve.day, spent.plus(held)) {
            return Ok(Some(Reserved::Busy));
        }
        let row = state.spending.entry((owner.clone(), day, fence.run_id.clone()));
        let row = row.or_insert(SpendingRow { spent: Amount::default(), held: None });
        row.held = Some((fence.clone(), reserve.amount));
        Ok(Some(Reserved::Granted { day }))
    }
}
