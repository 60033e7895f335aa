//! Questions to a human, and their answers.

use async_trait::async_trait;
use capstan::domain::event::{EventBody, NewEvent};
use capstan::domain::ids::{InputId, UserId};
use capstan::domain::input::{InputRecord, InputState};
use capstan::domain::record::ClaimCause;
use capstan::store::{IdempotencyClaim, InputStore, Keyed, ResolveInput, Resolved, StoreResult};

use super::ModelStore;
use super::state::State;

#[async_trait]
impl InputStore for ModelStore {
    async fn input_request(&self, owner: &UserId, id: &InputId) -> StoreResult<Option<InputRecord>> {
        let state = self.state();
        let asked = state.runs.values().filter(|row| row.owner == *owner).flat_map(|row| &row.inputs);
        Ok(asked.into_iter().find(|asked| asked.request.id == *id).cloned())
    }

    async fn resolve_input(&self, resolve: ResolveInput, key: Option<IdempotencyClaim>) -> StoreResult<Keyed<Resolved>> {
        Ok(self.state().keyed(key, |state| state.resolve(&resolve)))
    }
}

impl State {
    fn resolve(&mut self, resolve: &ResolveInput) -> (Resolved, bool) {
        let ResolveInput { owner, id, answer, now } = resolve;
        let (at, at_text) = (self.now, self.now_text());
        let Self { runs, leases, .. } = self;
        let found = runs.values_mut().filter(|row| row.owner == *owner).find_map(|row| {
            let place = row.inputs.iter().position(|asked| asked.request.id == *id)?;
            Some((row, place))
        });
        let Some((row, place)) = found else { return (Resolved::NoRequest, false) };
        let asked = &mut row.inputs[place];
        if asked.request.state != InputState::Pending {
            return (Resolved::Closed { record: Box::new(asked.clone()) }, false);
        }
        (asked.request.state, asked.request.answer) = (InputState::Answered, Some(answer.clone()));
        (asked.resolved_by, asked.resolved_at) = (Some(owner.to_string()), Some(at_text));
        let record = Box::new(asked.clone());
        if leases.contains_key(&row.run.id) {
            row.answered = true;
        } else if !row.is_over() && row.claimable_at.is_none_or(|due| due > at) {
            (row.claimable_at, row.cause) = (Some(at), ClaimCause::Request);
        }
        let body = EventBody::InputResolved {
            id: id.clone(),
            state: InputState::Answered,
            answer: Some(answer.clone()),
            by: Some(owner.clone()),
        };
        let event = NewEvent::new(&body, Some(row.run.id.clone()), row.run.attempt, *now);
        let conversation = row.run.conversation_id.clone();
        let events = self.append(&conversation, vec![event]);
        (Resolved::Answered { record, events }, true)
    }
}
