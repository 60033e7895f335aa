//! Budgets of owners.

use async_trait::async_trait;
use capstan::domain::ids::UserId;
use capstan::domain::run::budget::{Allowance, Amount, BudgetScope, LostReservation, ReservationOutcome, ReservationRequest};
use capstan::domain::run::record::Fence;
use capstan::store::{BudgetStore, StoreResult};

use super::ModelStore;
use super::state::State;

const DAY: i64 = 86_400_000;

/// A run's spending on a day, and its reservation.
#[derive(Clone)]
pub struct SpendingRow {
    pub spent: Amount,
    pub held: Option<(Fence, Amount)>,
}

#[async_trait]
impl BudgetStore for ModelStore {
    async fn reserve(
        &self,
        fence: &Fence,
        owner: &UserId,
        reserve: &ReservationRequest,
    ) -> StoreResult<Option<ReservationOutcome>> {
        let mut state = self.state();
        if !state.is_newest(fence) {
            return Ok(None);
        }
        let day = state.now / DAY;
        let of_day = || state.spending.iter().filter(|((of, on, _), _)| of == owner && *on == day);
        let sum = |amounts: &mut dyn Iterator<Item = Amount>| amounts.fold(Amount::default(), Amount::plus);
        let reserved = || of_day().filter_map(|(_, row)| row.held.as_ref());
        let lost = sum(&mut reserved().filter(|(by, _)| !state.is_newest(by)).map(|(_, held)| *held));
        let spent = sum(&mut of_day().map(|(_, row)| row.spent)).plus(lost);
        let others = |by: &Fence| by.run_id != fence.run_id && state.is_newest(by);
        let held = sum(&mut reserved().filter(|(by, _)| others(by)).map(|(_, held)| *held));
        let talk = state.runs_in(&fence.conversation_id).into_iter().map(|row| Amount::of(&row.usage));
        let of_conversation = talk.fold(Amount::default(), Amount::plus);
        let has_room = |of: Allowance, sum: Amount| {
            let sum = sum.plus(reserve.amount);
            of.tokens.is_none_or(|most| sum.tokens <= most) && of.usd.is_none_or(|most| sum.cost <= most.cost())
        };
        let answer = if !has_room(reserve.conversation, of_conversation) {
            ReservationOutcome::Spent { of: BudgetScope::Conversation, spent: of_conversation, resets_in_ms: None }
        } else if !has_room(reserve.day, spent) {
            ReservationOutcome::Spent { of: BudgetScope::Day, spent, resets_in_ms: u64::try_from((day + 1) * DAY - state.now).ok() }
        } else if !has_room(reserve.day, spent.plus(held)) {
            ReservationOutcome::Busy
        } else {
            ReservationOutcome::Granted { day }
        };
        // A run has at most one reservation.
        for ((.., run), row) in &mut state.spending {
            let is_own = *run == fence.run_id && row.held.as_ref().is_some_and(|(by, _)| by == fence);
            row.held = row.held.take().filter(|_| !is_own);
        }
        if matches!(answer, ReservationOutcome::Granted { .. }) {
            let row = state.spending.entry((owner.clone(), day, fence.run_id.clone()));
            let row = row.or_insert(SpendingRow { spent: Amount::default(), held: None });
            row.held = Some((fence.clone(), reserve.amount));
        }
        Ok(Some(answer))
    }

    async fn remove_old_spending(&self) -> StoreResult<u64> {
        let mut state = self.state();
        let (rows, day) = (state.spending.len(), state.now / DAY);
        state.spending.retain(|(_, of, _), _| *of >= day - 1);
        Ok((rows - state.spending.len()) as u64)
    }
}

impl State {
    /// Returns the call that the run had reserved under an older fence.
    pub fn lost(&self, fence: &Fence) -> Option<LostReservation> {
        let of_run = self.spending.iter().filter(|((_, day, run), _)| *run == fence.run_id && *day >= self.now / DAY - 1);
        let older =
            of_run.filter_map(|((_, day, _), row)| Some((day, row.held.as_ref().filter(|(by, _)| by.epoch < fence.epoch)?)));
        older.max_by_key(|(day, _)| **day).map(|(day, (_, amount))| LostReservation { day: *day, amount: *amount })
    }
}
